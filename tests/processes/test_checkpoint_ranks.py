"""Several ranks that do not all do the same: one fails, one is slow, each holds something else."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh

from launcher import Env, errors
from launcher.checkpoint import Checkpointer, merge, saving
from launcher.checkpoint import format as checkpoints
from launcher.checkpoint import loading as inspection
from launcher.checkpoint.collectives import SavesFail
from launcher.checkpoint.format import CheckpointError, SaveFailed
from launcher.checkpoint.loading import read_contents
from launcher.checkpoint.saving import Staging
from launcher.checkpoint.state import (
    Content,
    ReplicaTable,
    hash_of,
    local_part,
    merged_values,
    plain,
    replica_conflicts,
)
from launcher.paths import PACKAGE
from launcher.torch_compat import (
    DTensor,
    Replicate,
    Shard,
    destroy_without_gil,
    distribute_tensor,
    fsdp_computes_on,
    fully_shard,
)
from tests.fakes.checkpoint_files import changed
from tests.markers import slow
from tests.processes.workload_ranks import run_ranks

ALONE = Env(0, 0, 1, 1, 0, 1, (), "here", "gloo", torch.device("cpu"), "test", (0,))


def outcomes(checkpointer: Checkpointer, steps: range, state: dict[str, Any]) -> list[str]:
    """What each save came to."""
    found = []
    for step in steps:
        try:
            checkpointer.save(step, state, wait=True)
            found.append("saved")
        except SaveFailed as error:
            found.append(str(error))
    return found


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# -- one rank fails, or is slow


def fail_in_staging(config: dict[str, Any], env: Env) -> dict[str, Any]:
    saving.SMALL = 0
    checkpointer = Checkpointer(Path(config["folder"]), env, identity={})
    copy, left = Staging.copy, [config["times"] if env.rank in config["ranks"] else 0]

    def fails(self: Staging, name: str, tensor: torch.Tensor) -> torch.Tensor:
        if left[0]:
            left[0] -= 1
            raise MemoryError(f"no pinned memory for {name}")
        return copy(self, name, tensor)

    Staging.copy = fails  # type: ignore[method-assign]
    large = torch.ones(4, 300_000).T  # not contiguous: it is copied even if nobody changes it
    result = outcomes(checkpointer, range(1, 4), {f"w{n}": large for n in range(4)})
    checkpointer.close()
    return {"outcomes": result}


@pytest.mark.parametrize("failing", [[1], [0, 2]])
def test_a_rank_that_fails_while_it_stages_fails_this_save_on_all_and_no_later_one(
    tmp_path: Path, failing: list[int]
) -> None:
    case = {"folder": str(tmp_path / "checkpoints"), "ranks": failing, "times": 1}
    for result in run_ranks(fail_in_staging, case, 3):
        first, *others = result.metrics["outcomes"]
        for rank in failing:
            assert f"rank {rank}: MemoryError: no pinned memory" in first
        assert others == ["saved", "saved"]
    assert names(tmp_path / "checkpoints") == ["step-000000002", "step-000000003"]


class Fails:
    """An object whose state_dict raises."""

    def state_dict(self) -> dict[str, Any]:
        raise KeyError("no such layer")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def fail_in_state_dict(config: dict[str, Any], env: Env) -> dict[str, Any]:
    checkpointer = Checkpointer(Path(config["folder"]), env, identity={}, timeout=20)
    part = {"part": Fails() if env.rank == 1 else torch.Generator()}
    said = []
    for call in (
        lambda: checkpointer.load(part),
        lambda: checkpointer.save(1, {"w": torch.ones(2)}, rank_state=part, wait=True),
    ):
        try:
            call()
        except CheckpointError as error:
            said.append(str(error))
    checkpointer._final = None
    checkpointer.close()
    return {"said": said}


def test_an_object_that_fails_on_one_rank_fails_the_load_and_the_save_on_all(tmp_path: Path) -> None:
    for result in run_ranks(fail_in_state_dict, {"folder": str(tmp_path / "checkpoints")}, 2):
        load, save = result.metrics["said"]
        assert load == "rank 1: KeyError: 'no such layer'" and "rank 1: KeyError: 'no such layer'" in save


def too_slow(config: dict[str, Any], env: Env) -> dict[str, Any]:
    saving.SMALL = 0
    checkpointer = Checkpointer(Path(config["folder"]), env, identity={}, timeout=2)
    copy = Staging.copy

    def slow(self: Staging, name: str, tensor: torch.Tensor) -> torch.Tensor:
        if env.rank == 1 and not Path(config["folder"], "slow").exists():
            Path(config["folder"], "slow").touch()
            time.sleep(3)
        return copy(self, name, tensor)

    Staging.copy = slow  # type: ignore[method-assign]
    large = torch.ones(4, 300_000).T
    result = outcomes(checkpointer, range(1, 4), {f"w{n}": large for n in range(2)})
    checkpointer.close()
    return {"outcomes": result}


def test_a_group_that_failed_is_made_anew(tmp_path: Path) -> None:
    """One rank is slower than checkpoint.timeout, so the group's pairs of connections are broken."""
    results = run_ranks(too_slow, {"folder": str(tmp_path / "checkpoints")}, 2)
    for result in results:
        first, *others = result.metrics["outcomes"]
        assert "step 1 was not saved" in first and others == ["saved", "saved"]
    assert "rank 1: the checkpoint of step 1 was not saved" in results[1].printed


@pytest.mark.parametrize(("limit", "until"), [(2, 3), (0, None)])
def test_saves_that_go_on_failing_end_the_attempt_with_75(tmp_path: Path, limit: int, until: int | None) -> None:
    def fence() -> None:
        raise OSError(5, "Input/output error")

    checkpointer = Checkpointer(tmp_path / "checkpoints", ALONE, identity={}, fence=fence, max_failures=limit)
    for step in range(1, until or 9):
        checkpointer.save(step, {"w": torch.ones(1)})
    if until is not None:
        with pytest.raises(
            SavesFail, match=r"the last 2 saves failed \(checkpoint.max_failures=2\).*Input/output"
        ) as caught:
            checkpointer.save(until, {"w": torch.ones(1)})
        assert caught.value.exit_code == errors.RESUME
    checkpointer.close()


def test_a_save_that_works_between_others_that_fail_is_enough(tmp_path: Path) -> None:
    faults = [True, True, False, True, True, False]

    def fence() -> None:
        if faults.pop(0):
            raise OSError(5, "Input/output error")

    checkpointer = Checkpointer(tmp_path / "checkpoints", ALONE, identity={}, fence=fence, max_failures=3)
    for step in range(6):
        checkpointer.save(step, {"w": torch.ones(1)})
        checkpointer.load({"w": torch.ones(1)})  # is no save
    checkpointer.close()
    assert names(tmp_path / "checkpoints") == ["step-000000002", "step-000000005"]


# -- ranks hold different things


def pipeline(config: dict[str, Any], env: Env) -> dict[str, Any]:
    """Each rank has its stage, and one tensor is everybody's."""

    def stage(value: float) -> dict[str, Any]:
        own = {f"layer{env.rank}": {"weight": torch.full((3,), value + env.rank), "bias": torch.full((2,), value)}}
        groups = {f"layer{env.rank}": {"lr": value * (env.rank + 1)}, "all": {"betas": (0.9, 0.99)}}
        return {"model": {**own, "scale": torch.full((1,), value)}, "groups": groups}

    saving.SMALL = config["small"]
    checkpointer = Checkpointer(Path(config["folder"]), env, identity={})
    checkpointer.save(1, stage(5.0), rank_state={"rank": env.rank}, wait=True)
    into = stage(-1.0)
    loaded = checkpointer.load(into)
    checkpointer.close()
    assert loaded is not None and loaded.rank_state == {"rank": env.rank}
    into = merge(into, loaded.values)
    return {
        "weight": into["model"][f"layer{env.rank}"]["weight"].tolist(),
        "groups": into["groups"],
        "passed_over": loaded.passed_over,
    }


@pytest.mark.parametrize("small", [0, saving.SMALL])
def test_the_stages_of_a_pipeline_come_back(tmp_path: Path, small: int) -> None:
    for rank, result in enumerate(run_ranks(pipeline, {"folder": str(tmp_path / "checkpoints"), "small": small}, 2)):
        assert result.metrics == {
            "weight": [5.0 + rank] * 3,
            "groups": {"layer0": {"lr": 5.0}, "layer1": {"lr": 10.0}, "all": {"betas": (0.9, 0.99)}},
            "passed_over": (),
        }
    path = tmp_path / "checkpoints" / "step-000000001"
    whole = inspection.whole(path, checkpoints.read(path))
    assert sorted(whole["model"]) == ["layer0", "layer1", "scale"]


class ByName:
    """Keeps a tensor for each of a stage's layers, once it has begun."""

    def __init__(self, **averages: torch.Tensor) -> None:
        self.averages = dict(averages)

    def state_dict(self) -> dict[str, Any]:
        return dict(self.averages)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.averages = state


def stage_made_anew(config: dict[str, Any], env: Env) -> dict[str, Any]:
    """A stage has its layer, an optimizer under a name of its own, and averages under a common one."""

    def stage(seed: int) -> dict[str, Any]:
        torch.manual_seed(seed)
        layer = torch.nn.Linear(2 + env.rank, 1)
        optimizer = torch.optim.AdamW(layer.parameters())
        averages = ByName(**{f"layer{env.rank}": torch.full((2,), float(seed)), "all": torch.full((1,), float(seed))})
        model = torch.nn.ModuleDict({f"layer{env.rank}": layer})
        return {"model": model, f"optimizer{env.rank}": optimizer, "averages": averages}

    saving.SMALL = config["small"]
    checkpointer = Checkpointer(Path(config["folder"]), env, identity={})
    first, again = stage(1), stage(2)
    optimizer, other = first[f"optimizer{env.rank}"], again[f"optimizer{env.rank}"]
    sum(each.sum() for each in first["model"].parameters()).backward()
    optimizer.step()
    checkpointer.save(1, first, wait=True)
    checkpointer.load(again)
    checkpointer.close()
    moments = [
        [item["exp_avg"].tolist() for item in each.state_dict()["state"].values()] for each in (optimizer, other)
    ]
    return {
        "layer": [[p.tolist() for p in each["model"].parameters()] for each in (first, again)],
        "moments": moments,
        "averages": {name: tensor.tolist() for name, tensor in again["averages"].averages.items()},
    }


@pytest.mark.parametrize("small", [0, saving.SMALL])
def test_the_objects_of_each_stage_come_back_though_made_anew(tmp_path: Path, small: int) -> None:
    results = run_ranks(stage_made_anew, {"folder": str(tmp_path / "checkpoints"), "small": small}, 2)
    for rank, result in enumerate(results):
        for before, after in (result.metrics["layer"], result.metrics["moments"]):
            assert before == after and len(before) == 2
        assert result.metrics["averages"] == {f"layer{rank}": [1.0, 1.0], "all": [1.0]}


def divided(config: dict[str, Any], env: Env) -> dict[str, Any]:
    """Trains or only loads a model that FSDP divides, with an optimizer that has done no step at the load."""
    torch.manual_seed(env.world_size)
    model = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))
    fully_shard(model, mesh=init_device_mesh("cpu", (env.world_size,)))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    checkpointer = Checkpointer(Path(config["folder"]), env, identity={})
    state = {"model": model, "optimizer": optimizer}
    if config["save"]:
        for step in range(2):
            optimizer.zero_grad()
            model(torch.ones(2, 7) * step).sum().backward()
            optimizer.step()
        checkpointer.save(2, state, wait=True)
    else:
        checkpointer.load(state)
    checkpointer.close()
    moments = optimizer.state_dict()["state"]
    assert all(isinstance(moments[index]["exp_avg"], DTensor) for index in range(4))
    return {
        "weights": [each.full_tensor().tolist() for each in model.state_dict().values()],
        "moments": [
            {
                name: local_part(each).tolist() if each.ndim == 0 else each.full_tensor().tolist()
                for name, each in one.items()
            }
            for one in moments.values()
        ],
        "groups": optimizer.state_dict()["param_groups"],
    }


@pytest.mark.skipif(not fsdp_computes_on(torch.device("cpu")), reason="FSDP of this torch computes on GPUs alone")
def test_an_optimizer_made_anew_gets_its_part_of_a_divided_state_at_any_number_of_ranks(tmp_path: Path) -> None:
    folder = str(tmp_path / "checkpoints")
    saved = run_ranks(divided, {"folder": folder, "save": True}, 2)[0].metrics
    for result in run_ranks(divided, {"folder": folder, "save": False}, 3):
        assert result.metrics == saved


def copied_parts(config: dict[str, Any], env: Env) -> dict[str, Any]:
    """Each tensor is divided by two, and each part is on two ranks; or two ranks have it all, and two another one."""
    half = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "parts"))
    for group in half.get_all_groups():
        destroy_without_gil(group)
    saving.SMALL = 0

    def state(value: float) -> dict[str, Any]:
        if config["kind"] == "parts":
            whole = torch.full((6, 4), value) + torch.arange(6.0)[:, None]
            return {f"w{n}": distribute_tensor(whole + n, half, [Replicate(), Shard(0)]) for n in range(8)}
        stage = env.rank // 2
        own = {f"stage{stage}.w{n}": torch.full((24,), value + n) for n in range(8)}
        return {**own, "tied": torch.full((24,), value)}

    checkpointer = Checkpointer(Path(config["folder"]), env, identity={})
    checkpointer.save(1, state(5.0), wait=True)
    into = state(-1.0)
    loaded = checkpointer.load(into)
    checkpointer.close()
    assert loaded is not None
    expected = state(5.0)
    return {"right": all(torch.equal(local_part(into[name]), local_part(expected[name])) for name in expected)}


@pytest.mark.parametrize(("kind", "tensors"), [("parts", 8), ("stages", 17)])
def test_what_several_ranks_have_is_written_once_and_by_all_of_them(tmp_path: Path, kind: str, tensors: int) -> None:
    results = run_ranks(copied_parts, {"folder": str(tmp_path / "checkpoints"), "kind": kind}, 4)
    assert [result.metrics for result in results] == [{"right": True}] * 4
    path = tmp_path / "checkpoints" / "step-000000001"
    entries = inspection.entries(read_contents(path, checkpoints.read(path)))
    shards = [shard for entry in entries for shard in entry["shards"]]
    parts = 2 if kind == "parts" else 1
    assert len(entries) == tensors and len(shards) == tensors * parts
    written = [shard["rank"] for shard in shards]
    assert min(map(written.count, range(4))) >= 4
    assert changed(path) == []


def unequal_copies(config: dict[str, Any], env: Env) -> dict[str, Any]:
    """Parts of a DTensor that should be copies of each other, and one of which one rank has changed."""
    half = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "parts"))
    for group in half.get_all_groups():
        destroy_without_gil(group)
    mine = [torch.full((3,), float(n + 10 * (n == 5 and env.rank == 2))) for n in range(8)]
    state = {
        f"w{n}": DTensor.from_local(each, half, [Replicate(), Shard(0)], run_check=False) for n, each in enumerate(mine)
    }
    checkpointer = Checkpointer(Path(config["folder"]), env, identity={})
    result = outcomes(checkpointer, range(1, 2), state)
    checkpointer._final = None
    checkpointer.close()
    return {"outcomes": result}


def with_little_space(config: dict[str, Any], env: Env) -> dict[str, Any]:
    """Ranks 0 and 1, and 2 and 3, have a stage of a pipeline, and all have a trunk of 4,000 bytes."""
    shutil.disk_usage = lambda _: SimpleNamespace(free=config["free"] + saving.SLACK)  # type: ignore[assignment]
    state = {"trunk": torch.ones(1000), f"stage {env.rank // 2}": torch.ones(250)}
    return {"outcomes": outcomes(Checkpointer(config["folder"], env, identity={}), range(1, 2), state)}


@pytest.mark.parametrize(("free", "told"), [(6000, "saved"), (5999, "no space in ")])
def test_a_save_needs_space_for_what_several_ranks_have_once(tmp_path: Path, free: int, told: str) -> None:
    for result in run_ranks(with_little_space, {"folder": str(tmp_path / "checkpoints"), "free": free}, 4):
        (outcome,) = result.metrics["outcomes"]
        assert told in outcome


def test_copies_of_a_part_that_differ_are_refused(tmp_path: Path) -> None:
    for result in run_ranks(unequal_copies, {"folder": str(tmp_path / "checkpoints")}, 4):
        (said,) = result.metrics["outcomes"]
        assert "w5: other values on each of rank 0 / rank 2" in said and "w4" not in said


def differing(config: dict[str, Any], env: Env) -> dict[str, Any]:
    kind = config["kind"]
    saving.SMALL = config["small"]
    state: dict[str, Any] = {"model": {"same": torch.ones(3)}, "epoch": 1}
    if kind == "values":  # a part of a matrix, an expert, a part of an optimizer's state
        state["model"]["expert"] = torch.full((4,), float(env.rank))
    elif kind == "shape":
        state["model"]["part"] = torch.ones(3 + env.rank)
    elif kind == "number":
        state["epoch"] = env.rank
    changes = {"check_replicas": False} if config.get("unchecked") else {}
    checkpointer = Checkpointer(Path(config["folder"]), env, identity={}, **changes)
    result = outcomes(checkpointer, range(1, 2), state)
    try:
        checkpointer.wait()
        final = ""
    except CheckpointError as error:
        final = str(error)
    checkpointer._final = None
    checkpointer.close()
    return {"outcomes": result, "final": final}


@pytest.mark.parametrize("small", [0, saving.SMALL])
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("values", "model.expert: other values on each of rank 0 / rank 1"),
        ("shape", "model.part: torch.float32 (3,) on rank 0, torch.float32 (4,) on rank 1"),
        ("number", "epoch: another value on rank 1 than on lower ones"),
    ],
)
def test_different_things_under_one_name_are_refused_with_what_to_do(
    tmp_path: Path, small: int, kind: str, words: str
) -> None:
    case = {"folder": str(tmp_path / "checkpoints"), "kind": kind, "small": small}
    for result in run_ranks(differing, case, 2):
        (said,) = result.metrics["outcomes"]
        assert words in said and "rank_state" in said and "DTensor" in said
        assert result.metrics["final"] == said  # it would be so at the next save
    assert names(tmp_path / "checkpoints") == []


def test_they_are_saved_if_the_user_says_that_any_will_do(tmp_path: Path) -> None:
    case = {"folder": str(tmp_path / "checkpoints"), "kind": "values", "small": 0, "unchecked": True}
    assert [result.metrics["outcomes"] for result in run_ranks(differing, case, 2)] == [["saved"], ["saved"]]


A, B = ((0,), 1), ((0,), 2)


@pytest.mark.parametrize(
    ("tables", "lines"),
    [
        ([ReplicaTable({"w": "f"}, {"w": A}), ReplicaTable({"w": "f"}, {"w": A})], []),
        ([ReplicaTable({"w": "f"}, {"w": A}), ReplicaTable({"v": "f"}, {"v": B})], []),
        (
            [ReplicaTable({"w": "f"}, {"w": A}), ReplicaTable({"w": "f"}, {"w": B})],
            ["w: other values on each of rank 0 / rank 1"],
        ),
        (
            [ReplicaTable({"w": "f"}, {"w": each}) for each in (A, B, A, A)],
            ["w: other values on each of ranks 0,2-3 / rank 1"],
        ),
        ([ReplicaTable({"w": "f"}, {"w": A}), ReplicaTable({"w": "i"}, {"w": A})], ["w: f on rank 0, i on rank 1"]),
        (
            [ReplicaTable({"w": "f"}, {"w": ((0,), 1)}), ReplicaTable({"w": "f"}, {"w": ((4,), 2)})],
            [],
        ),  # parts of a DTensor
        ([ReplicaTable({"w": "f"}, {}), ReplicaTable({"w": "f"}, {})], []),  # parts that are nowhere twice
    ],
)
def test_what_ranks_may_hold(tables: list[ReplicaTable], lines: list[str]) -> None:
    assert replica_conflicts(tables) == lines


def test_the_running_statistics_of_a_batch_norm_may_differ_between_ranks() -> None:
    """As under DDP, where those of rank 0 count."""
    tables = []
    for rank in range(2):
        layer = torch.nn.BatchNorm1d(2)
        layer(torch.full((4, 2), float(rank)))
        tensors = {f"model.{name}": tensor for name, tensor in layer.state_dict().items()}
        tables.append(ReplicaTable.of(tensors, {}))
    assert replica_conflicts(tables) == []


def test_a_hash_tells_tensors_apart() -> None:
    tensors = [
        torch.zeros(4), torch.zeros(5), torch.ones(4), torch.tensor([1.0, 2, 3, 4]), torch.tensor([2.0, 1, 3, 4]),
        torch.full((4, 8), 2.0), torch.full((4, 8), 3.0), torch.tensor(1), torch.tensor(2), torch.ones(3).bool(),
    ]  # fmt: skip
    assert len({hash_of(tensor) for tensor in tensors}) == len(tensors)
    assert hash_of(torch.arange(6.0).view(2, 3).T) == hash_of(torch.tensor([[0.0, 3], [1, 4], [2, 5]]))
    assert hash_of(torch.ones(0)) == 0
    assert hash_of(torch.tensor([float("nan")])) == hash_of(torch.tensor([float("nan")]))


def test_what_is_no_tensor_is_joined_over_ranks() -> None:
    nan = float("nan")
    values = [{"a": {"x": 1}, "n": nan, "l": [1]}, {"a": {"y": 2}, "n": nan, "l": [1]}, {"a": {"x": 3}, "l": [2]}]
    whole, lines = merged_values(dict(enumerate(values)), range(3))
    assert whole["a"] == {"x": 1, "y": 2} and whole["l"] == [1]
    assert lines == ["a.x: another value on rank 2 than on lower ones", "l: another value on rank 2 than on lower ones"]
    assert values[0]["a"] == {"x": 1}


# -- what is saved can be loaded


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (numpy.float64(0.5), 0.5),
        (
            {"last_lr": [numpy.float32(0.5), numpy.int64(3)], numpy.int64(2): (numpy.bool_(True),)},
            {"last_lr": [0.5, 3], 2: (True,)},
        ),
        (OrderedDict(a=1), OrderedDict(a=1)),
        (torch.Size([2]), torch.Size([2])),
        (None, None),
    ],
)
def test_plain_values_stay_and_numpys_numbers_become_pythons(value: Any, expected: Any) -> None:
    found = plain(value, "state")
    assert found == expected and repr(found) == repr(expected)


@pytest.mark.parametrize("value", [Path("x"), numpy.zeros(3), lambda: 0, {"a": [object()]}])
def test_what_could_not_be_read_again_is_refused_by_its_place(value: Any) -> None:
    with pytest.raises(TypeError, match=r"^state contains what only pickle can restore: s.* is a "):
        plain({"s": value}, "state")


@pytest.mark.parametrize("value", [1, torch.ones(2)])
@pytest.mark.parametrize("key", [Path("x"), frozenset({1}), object()])
def test_a_key_that_could_not_be_read_again_is_refused_by_its_place(key: Any, value: Any) -> None:
    with pytest.raises(TypeError, match=r"^state contains what only pickle can restore: a key of s\.t is a "):
        Content.of({"s": {"t": {key: value}}})


def test_a_key_of_numpy_becomes_a_number_of_python() -> None:
    content = Content.of({"s": {numpy.int64(2): torch.ones(2)}})
    assert content.paths == {"s.2": ("s", 2)} and type(content.paths["s.2"][1]) is int


@pytest.mark.parametrize("small", [0, saving.SMALL])
def test_numbers_of_numpy_come_back_in_whatever_save_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: int
) -> None:
    monkeypatch.setattr(saving, "SMALL", small)
    checkpointer = Checkpointer(tmp_path / "checkpoints", ALONE, identity={})
    for step, rate in enumerate((0.5, numpy.float64(0.25), numpy.float32(0.125))):
        checkpointer.save(
            step, {"w": torch.ones(2), "scheduler": {"last": [rate]}}, rank_state={"x": rate}, metrics={"loss": rate},
            extra={"best": rate}, wait=True,
        )  # fmt: skip
        loaded = checkpointer.load({"w": torch.zeros(2), "scheduler": {}})
        assert loaded is not None and loaded.passed_over == ()
        assert (loaded.step, loaded.values, loaded.rank_state) == (step, {"scheduler": {"last": [rate]}}, {"x": rate})
        assert loaded.metrics == {"loss": rate} and loaded.extra == {"best": rate}
    checkpointer.save(9, {"w": torch.ones(2), "path": Path("x")})  # also one that is not the first
    with pytest.raises(CheckpointError, match="state contains what only pickle can restore: path is a pathlib"):
        checkpointer.wait()
    checkpointer._final = None
    checkpointer.close()


def test_what_is_saved_is_what_was_there_at_the_call(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path / "checkpoints", ALONE, identity={})
    rates, own = [0.5], torch.ones(2)
    checkpointer.save(1, {"w": torch.ones(2), "rates": rates}, rank_state={"own": own})
    rates[0] = -1.0
    own.fill_(-1)
    checkpointer.wait()
    loaded = checkpointer.load({"w": torch.ones(2), "rates": []})
    checkpointer.close()
    assert loaded is not None and loaded.values == {"rates": [0.5]}
    assert loaded.rank_state is not None and loaded.rank_state["own"].tolist() == [1.0, 1.0]


PROGRAM = """
import shutil, sys, threading, time, torch
from pathlib import Path
from launcher.checkpoint import Checkpointer, saving
from launcher import Env
saving.SMALL = int(sys.argv[2])
env = Env(0, 0, 1, 1, 0, 1, (), "here", "gloo", torch.device("cpu"), "test", (0,))
checkpointer = Checkpointer(Path(sys.argv[1]), env, identity={})
def refuse(thread):
    raise RuntimeError("can't create new thread at interpreter shutdown")
def fence():
    time.sleep(0.2)  # the program has ended by then
    if sys.argv[3]:
        threading.Thread.start = refuse
checkpointer._writer.fence = fence
usage, shutil.disk_usage = shutil.disk_usage, lambda folder: (fence(), usage(folder))[1]
checkpointer.save(1, {"model": {"weight": torch.ones(1000)}})
"""


@pytest.mark.parametrize(  # threads: Python 3.12.0 and 3.12.1 start none then
    ("small", "threads"), [(0, ""), slow(0, "none"), slow(saving.SMALL, ""), (saving.SMALL, "none")]
)
def test_a_save_in_the_background_is_completed_when_the_program_ends(tmp_path: Path, small: int, threads: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "checkpoints"), str(small), threads],
        cwd=PACKAGE.parent, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0 and "not saved" not in done.stdout, done.stdout + done.stderr
    assert changed(tmp_path / "checkpoints" / "step-000000001") == []
