"""What a save accepts, verify calls sound and a load returns; all else is refused by name at the save."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from launcher import Env, io_bounds
from launcher.checkpoint import Checkpointer
from launcher.checkpoint import format as checkpoints
from launcher.checkpoint import loading as inspection
from launcher.checkpoint.format import CheckpointError, Misfit
from tests.fakes.checkpoint_files import changed, file_of

ALONE = Env(0, 0, 1, 1, 0, 1, (), "here", "gloo", torch.device("cpu"), "test", (0,))
INTEGERS = [sign * value for sign in (1, -1) for value in (2**63 - 1, 2**63, 2**64 - 1, 2**64, 2**128, 10**300 - 1)]


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.fixture
def come_back(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Saves, verifies and loads; returns what came back, by the names of `save`, and `state` without its tensor."""

    def cycle(identity: Any = None, state: Any = None, **given: Any) -> dict[str, Any]:
        def new() -> Checkpointer:
            return Checkpointer(tmp_path / "checkpoints", ALONE, identity=identity or {}, read_timeout=0)

        saver = new()
        saver.save(1, {"weight": torch.ones(2), **(state or {})}, wait=True, **given)
        saver.close()
        path = tmp_path / "checkpoints" / "step-000000001"
        assert inspection.verify(path) == []
        loader = new()
        loaded = loader.load({"weight": torch.zeros(2), **(state or {})})
        loader.close()
        assert loaded is not None
        return {
            "extra": loaded.extra, "metrics": loaded.metrics, "rank_state": loaded.rank_state, "state": loaded.values,
            "identity": checkpoints.read(path).identity,
        }  # fmt: skip

    return cycle


@pytest.mark.parametrize("what", ["extra", "identity", "metrics", "state", "rank_state"])
@pytest.mark.parametrize("number", INTEGERS, ids=range(len(INTEGERS)))
def test_integers_come_back(come_back: Any, what: str, number: int) -> None:
    assert come_back(**{what: {"number": number}})[what] == {"number": number}


@pytest.mark.parametrize("what", ["extra", "identity", "metrics", "state", "rank_state"])
@pytest.mark.parametrize(
    "number", [io_bounds.JSON_INTEGERS, -io_bounds.JSON_INTEGERS, 10**5000], ids=["least", "negative", "of 5000"]
)
def test_integers_beyond_the_bound_are_refused_at_the_save(come_back: Any, what: str, number: int) -> None:
    with pytest.raises((CheckpointError, ValueError), match=f"{what} .*integer of more than 300 digits|digits"):
        come_back(**{what: {"number": number}})


@pytest.mark.parametrize("what", ["extra", "identity"])
def test_levels_beyond_any_bound_are_refused_at_the_save(come_back: Any, what: str) -> None:
    for levels in (500, 5000):
        with pytest.raises((CheckpointError, ValueError), match=f"{what} .*nested more than 64 levels"):
            come_back(**{what: {"a": nested(levels)}})


def test_a_tensor_whose_elements_share_memory_is_refused_at_the_save(come_back: Any) -> None:
    come_back(state={"row": torch.ones(4).expand(1, 4), "nothing": torch.ones(1, 0).expand(3, 0)})
    with pytest.raises(CheckpointError, match="rows is expanded: its elements share memory"):
        come_back(state={"rows": torch.ones(4).expand(3, 4)})


@pytest.mark.parametrize("what", ["state", "rank_state"])
def test_a_state_is_nested_as_deeply_as_python_copies_it(come_back: Any, what: str) -> None:
    for levels in (61, 62, 300):
        assert come_back(**{what: {"a": nested(levels)}})[what] == {"a": nested(levels)}
    with pytest.raises(CheckpointError, match="nested too deeply"):
        come_back(**{what: {"a": nested(5000)}})


@pytest.mark.parametrize("what", ["extra", "metrics", "identity", "state", "rank_state"])
def test_nan_and_infinity_come_back_and_fit(come_back: Any, what: str) -> None:
    values = {"nan": math.nan, "more": math.inf, "less": -math.inf}
    found = come_back(**{what: values})[what]
    assert math.isnan(found.pop("nan"))
    assert found == {"more": math.inf, "less": -math.inf}


def test_the_largest_facts_and_10_tb_of_32768_ranks_fit_into_a_manifest() -> None:
    blocks, ranks = 10 * 10**12 // checkpoints.BLOCK + 1, 32_768
    of_files = sum(len(json.dumps({f"__{rank}_0.distcp": {"size": 10**9, "crc32": []}})) for rank in range(ranks))
    of_files += sum(len(json.dumps({f"rank-{rank}.pt": {"size": 10**9, "crc32": [2**32]}})) for rank in range(ranks))
    assert 3 * io_bounds.FACTS_BYTES + of_files + blocks * len("4294967295, ") < io_bounds.MANIFEST_BYTES


@pytest.mark.parametrize("value", [True, "0.5", None, [1], {"a": 1}])
def test_metrics_are_numbers(come_back: Any, value: Any) -> None:
    with pytest.raises(CheckpointError, match="metrics must be numbers by name: accuracy is a"):
        come_back(metrics={"accuracy": value})


@pytest.mark.parametrize("step", [-1, 2**64, 1.0, "1", None])
def test_a_step_is_a_whole_number(step: Any, tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path / "checkpoints", ALONE, identity={})
    with pytest.raises((TypeError, ValueError)):
        checkpointer.save(step, {"weight": torch.ones(2)})
    for good in (0, True, torch.tensor(2), 2**64 - 1):
        checkpointer.save(good, {"weight": torch.ones(2)}, wait=True)
        assert inspection.verify(tmp_path / "checkpoints" / checkpoints.name_of(int(good))) == []
    checkpointer.close()


def test_an_identity_with_nan_is_still_compared(come_back: Any, tmp_path: Path) -> None:
    come_back(identity={"decay": [math.nan, 1]})
    other = Checkpointer(tmp_path / "checkpoints", ALONE, identity={"decay": [math.nan, 2]})
    with pytest.raises(Misfit, match="decay"):
        other.load({"weight": torch.zeros(2)})
    other.close()


def test_verify_reads_what_a_load_reads(tmp_path: Path) -> None:
    """A file with the right checksum that no load could read is not sound."""
    checkpointer = Checkpointer(tmp_path / "checkpoints", ALONE, identity={})
    checkpointer.save(1, {"weight": torch.ones(2)}, rank_state={"a": 1}, wait=True)
    checkpointer.close()
    path = tmp_path / "checkpoints" / "step-000000001"
    manifest = checkpoints.read(path)
    for name in ("ranks.pt", "state.pt"):
        (path / name).write_bytes(b"not what torch.save writes")
        manifest.files[name] = file_of(path / name)
        (path / "manifest.json").write_text(manifest.text())
        assert changed(path) == []
        (problem,) = inspection.verify(path)
        assert f"{name} is not what torch.save writes" in problem
