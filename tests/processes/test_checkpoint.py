"""Saving and loading: at any number of ranks, whatever happens to the process, the disk or the files."""

from __future__ import annotations

import dataclasses
import errno
import json
import math
import multiprocessing
import os
import pickle
import resource
import shutil
import signal
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.checkpoint import CheckpointException
from torch.distributed.device_mesh import init_device_mesh

from launcher import Env
from launcher.checkpoint import folder, storage
from launcher.checkpoint import format as checkpoints
from launcher.checkpoint import loading as checkpoint_read
from launcher.checkpoint import saving as checkpoint
from launcher.checkpoint.checkpointer import Checkpointer, Loaded, merge
from launcher.checkpoint.format import CheckpointError, Misfit, SaveFailed
from launcher.checkpoint.loading import rank_state_of, read_contents
from launcher.checkpoint.saving import Staging
from launcher.checkpoint.state import Content, owned
from launcher.errors import UnavailableError
from launcher.runs.lease_and_locks import LeaseLost
from launcher.torch_compat import DTensor, Replicate, Shard, distribute_tensor
from tests.fakes.checkpoint_files import changed, file_of
from tests.processes.workload_ranks import run_ranks

ALONE = Env(0, 0, 1, 1, 0, 1, (), "here", "gloo", torch.device("cpu"), "test", (0,))
IDENTITY = {"model": {"width": 8, "layers": 2}, "optimizer": "adam"}


@pytest.fixture
def make(tmp_path: Path) -> Any:
    """Makes Checkpointers of one rank over one folder, and closes them."""
    made = []

    def new(**changes: Any) -> Checkpointer:
        settings = {"identity": IDENTITY, "read_timeout": 0, **changes}
        made.append(Checkpointer(tmp_path / "checkpoints", ALONE, **settings))
        return made[-1]

    yield new
    for each in made:
        each.close()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets how many bytes count as small."""
    return lambda size: monkeypatch.setattr(checkpoint, "SMALL", size)


def state(number: float, width: int = 8) -> dict[str, Any]:
    value = float(number)
    return {
        "model": {"weight": torch.full((4, width), value), "bias": torch.full((3,), value, dtype=torch.bfloat16)},
        "optimizer": {"state": {0: {"step": torch.tensor(value)}}, "groups": [{"lr": value, "betas": (0.9, 0.99)}]},
        "epoch": int(value),
    }


def tensors(tree: Any) -> dict[str, Tensor]:
    return Content.of(tree).tensors


def is_filled(tree: Any, value: float) -> bool:
    return all((tensor == value).all() for tensor in tensors(tree).values())


def names(tmp_path: Path) -> list[str]:
    """What is in the folder of the checkpoints."""
    return sorted(path.name for path in (tmp_path / "checkpoints").iterdir())


def load(checkpointer: Checkpointer, width: int = 8) -> tuple[Loaded, dict[str, Any]]:
    into = state(-1, width)
    loaded = checkpointer.load(into)
    assert loaded is not None
    return loaded, into


# -- one rank


@pytest.mark.parametrize("kind", ["single", "sharded"])
@pytest.mark.parametrize("background", [True, False])
def test_all_of_a_state_comes_back(make: Any, small: Any, kind: str, background: bool) -> None:
    small(10**6 if kind == "single" else 0)
    checkpointer = make(background=background)
    checkpointer.save(
        3, state(3), rank_state={"rng": torch.arange(5), "python": (3, (1, 2), None)}, extra={"cursor": 96},
        metrics={"accuracy": 0.5},
    )  # fmt: skip
    checkpointer.close()
    loaded, into = load(make())
    assert is_filled(into, 3)
    assert (loaded.step, loaded.extra, loaded.metrics, loaded.world_size) == (3, {"cursor": 96}, {"accuracy": 0.5}, 1)
    assert loaded.rank_state is not None
    assert loaded.rank_state["rng"].tolist() == [0, 1, 2, 3, 4] and loaded.rank_state["python"] == (3, (1, 2), None)
    merged = merge(into, loaded.values)
    assert merged["optimizer"]["groups"] == [{"lr": 3.0, "betas": (0.9, 0.99)}] and merged["epoch"] == 3
    assert merged["model"]["weight"] is into["model"]["weight"]
    assert checkpoints.read(loaded.path).kind == kind
    assert loaded.passed_over == ()
    for path in [loaded.path.parent, *loaded.path.rglob("*"), loaded.path]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_nothing_is_loaded_where_nothing_is(make: Any) -> None:
    assert make().load(state(0)) is None


@pytest.mark.parametrize("kind", ["single", "sharded"])
def test_the_values_at_the_call_are_saved(make: Any, small: Any, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors change as soon as they may: small ones at once, large ones after staged()."""
    small(10**9 if kind == "single" else 0)
    large = torch.ones(600_000)
    norm = torch.ones(10)
    checkpointer = make()
    for step in (1, 2, 3):
        large.fill_(step)
        norm.fill_(step)
        checkpointer.save(step, {"model": {"large": large, "norm": norm}})
        norm.fill_(-1)
        checkpointer.staged()
        large.fill_(-1)
        checkpointer.wait()
        found = {"model": {"large": torch.zeros(600_000), "norm": torch.zeros(10)}}
        assert checkpointer.load(found) is not None
        assert is_filled(found, step)


def test_an_optimizer_waits_until_its_state_is_copied(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.ones(600_000, requires_grad=True)
    weight.grad = torch.ones_like(weight)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    checkpointer = make()
    waited = []
    monkeypatch.setattr(checkpointer, "staged", lambda: waited.append(weight[0].item()))
    optimizer.step()
    assert waited == [1.0]
    checkpointer.close()
    optimizer.step()
    assert waited == [1.0]


def test_the_newest_and_the_best_are_kept(make: Any, tmp_path: Path) -> None:
    checkpointer = make(keep=2, best="accuracy")
    for step, accuracy in enumerate((0.1, 0.9, 0.2, float("nan"), 0.3), 1):
        checkpointer.save(step, state(step), metrics={"accuracy": accuracy}, wait=True)
    checkpointer.close()
    assert names(tmp_path) == ["step-000000002", "step-000000004", "step-000000005"]


def test_what_is_kept_counts_sound_ones_alone(make: Any, tmp_path: Path) -> None:
    checkpointer = make(keep=2)
    for step in (1, 2):
        checkpointer.save(step, state(step), wait=True)
    truncate(tmp_path / "checkpoints" / "step-000000002" / "state.pt")
    (tmp_path / "checkpoints" / "step-000000099").mkdir()  # not ours
    checkpointer.save(3, state(3), wait=True)
    checkpointer.close()
    assert set(names(tmp_path)) >= {"step-000000001", "step-000000003", "step-000000099"}


def test_the_same_step_is_saved_again(make: Any, tmp_path: Path) -> None:
    checkpointer = make(keep=1)
    checkpointer.save(7, state(1), wait=True)
    checkpointer.save(7, state(2), wait=True)
    _, into = load(checkpointer)
    checkpointer.close()
    assert is_filled(into, 2) and names(tmp_path) == ["step-000000007"]


def test_one_that_was_killed_while_it_replaced_its_step_is_put_back(make: Any, tmp_path: Path) -> None:
    make().save(7, state(1), wait=True)
    folder = tmp_path / "checkpoints"
    (folder / "step-000000007").rename(folder / checkpoints.temporary(7, 0, "old"))
    loaded, into = load(make(attempt=1))
    assert loaded.step == 7 and is_filled(into, 1)


def test_leftovers_of_earlier_attempts_go_and_those_of_later_ones_stay(make: Any, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir(mode=0o700)
    early, own, late = (folder / checkpoints.temporary(5, attempt) for attempt in (0, 1, 2))
    for each in (early, own, late):
        each.mkdir()
        (each / "state.pt").write_text("half")
    make(attempt=1)
    assert names(tmp_path) == [late.name]


def die(folder: str) -> None:
    """Is killed when all is written and nothing published."""
    checkpointer = Checkpointer(Path(folder), ALONE, identity=IDENTITY)
    checkpointer.save(1, state(1), wait=True)
    checkpointer._writer.fence = lambda: os.kill(os.getpid(), signal.SIGKILL)
    checkpointer.save(2, state(2), wait=True)


def test_killed_in_the_middle_of_a_save_the_one_before_is_used(make: Any, tmp_path: Path) -> None:
    process = multiprocessing.get_context("forkserver").Process(target=die, args=(str(tmp_path / "checkpoints"),))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    left = names(tmp_path)
    assert len(left) == 2 and left[0].startswith(".saving-step-000000002")
    loaded, into = load(make(attempt=1))
    assert loaded.step == 1 and is_filled(into, 1)
    assert names(tmp_path) == ["step-000000001"]


# -- what is wrong with a checkpoint


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 100)


def flip(path: Path, byte: int = -2000) -> None:
    data = bytearray(path.read_bytes())
    data[byte] ^= 1
    path.write_bytes(data)


class Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, ("executed",)


def seal(folder: Path, name: str) -> None:
    """Gives a file's checksums to the manifest anew, as one could who can write there."""
    manifest = checkpoints.read(folder)
    manifest.files[name] = file_of(folder / name)
    (folder / "manifest.json").write_text(manifest.text())


def poison(folder: Path) -> None:
    with open(folder / ".metadata", "wb") as file:
        pickle.dump(Evil(), file)
    seal(folder, ".metadata")


def poison_values(folder: Path) -> None:
    torch.save({"values": Evil(), "paths": {}}, folder / "values.pt")
    seal(folder, "values.pt")


DAMAGE: list[tuple[str, Callable[[Path], None], str]] = [
    ("single", lambda folder: truncate(folder / "state.pt"), "state.pt has "),
    ("single", lambda folder: flip(folder / "state.pt"), "state.pt has changed since it was written"),
    ("single", lambda folder: (folder / "state.pt").unlink(), "state.pt is missing"),
    ("single", lambda folder: (folder / "manifest.json").unlink(), "has no manifest.json"),
    ("single", lambda folder: truncate(folder / "manifest.json"), "is not JSON"),
    ("single", lambda folder: flip(folder / "manifest.json", 40), "manifest.json"),
    ("single", lambda folder: (folder / "manifest.json").write_text("[]"), "is not the manifest of a checkpoint"),
    ("sharded", lambda folder: flip(folder / "__0_0.distcp"), "__0_0.distcp has changed since it was written"),
    ("sharded", lambda folder: (folder / "__0_0.distcp").unlink(), "__0_0.distcp is missing"),
    ("sharded", lambda folder: truncate(folder / ".metadata"), ".metadata has "),
    ("sharded", poison, "it asks for posix.mkdir, which no metadata needs"),
    ("sharded", poison_values, "values.pt is not what torch.save writes"),
]


@pytest.mark.parametrize(("kind", "harm", "words"), DAMAGE, ids=range(len(DAMAGE)))
def test_a_damaged_one_is_named_and_the_one_before_is_used(
    make: Any, small: Any, tmp_path: Path, kind: str, harm: Any, words: str,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    small(10**6 if kind == "single" else 0)
    monkeypatch.chdir(tmp_path)
    checkpointer = make(keep=3)
    for step in (1, 2):
        checkpointer.save(step, state(step), wait=True)
    harm(tmp_path / "checkpoints" / "step-000000002")
    loaded, into = load(checkpointer)
    assert loaded.step == 1 and is_filled(into, 1)
    (told,) = loaded.passed_over
    assert "step-000000002" in told and words in told
    assert told in capsys.readouterr().out
    assert not (tmp_path / "executed").exists()
    (aside,) = [path for path in (tmp_path / "checkpoints").iterdir() if path.name.startswith(".aside-step-000000002-")]
    assert words in (aside / "why.txt").read_text()
    checkpointer.save(2, state(5), wait=True)
    loaded, into = load(checkpointer)
    assert loaded.step == 2 and is_filled(into, 5) and loaded.passed_over == ()
    assert aside.name in names(tmp_path)  # for its owner


@pytest.mark.parametrize("kind", ["single", "sharded"])
def test_one_that_another_torch_wrote_and_this_one_cannot_read_is_not_put_aside(
    make: Any, small: Any, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checksums are right, so it is as it was written: all others would be put aside after it."""
    small(10**6 if kind == "single" else 0)
    checkpointer = make(keep=3)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "__version__", "9.9.0")
        for step in (1, 2):
            checkpointer.save(step, state(step), wait=True)

    def read(*_: Any, **__: Any) -> None:
        raise checkpoints.Damaged("an unknown class")

    monkeypatch.setattr(storage, "load_file", read)
    monkeypatch.setattr(storage, "read_metadata", read)
    before = names(tmp_path)
    with pytest.raises(Misfit, match=r"as it was written .* use torch 9\.9\.0, which wrote it \(an unknown class"):
        load(checkpointer)
    assert names(tmp_path) == before


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_poisoned_metadata_would_execute_without_us(make: Any, small: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """What the test above relies on: torch itself runs what is in .metadata."""
    small(0)
    monkeypatch.chdir(tmp_path)
    make().save(1, state(1), wait=True)
    path = tmp_path / "checkpoints" / "step-000000001"
    poison(path)
    with pytest.raises(CheckpointException, match="metadata"):
        torch.distributed.checkpoint.load({"x": torch.zeros(1)}, checkpoint_id=path)
    assert (tmp_path / "executed").exists()


def test_a_flipped_byte_is_not_found_without_verify(make: Any, tmp_path: Path) -> None:
    """So the checksums are ours to compare."""
    checkpointer = make(verify=False)
    value = torch.zeros(10_000)
    checkpointer.save(1, {"model": {"w": value}}, wait=True)
    flip(tmp_path / "checkpoints" / "step-000000001" / "state.pt", 20_000)
    found = {"model": {"w": torch.zeros(10_000)}}
    assert checkpointer.load(found) is not None
    assert found["model"]["w"].count_nonzero() == 1


def test_where_none_is_sound_it_says_so(make: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpointer = make()
    checkpointer.save(1, state(1), wait=True)
    flip(tmp_path / "checkpoints" / "step-000000001" / "state.pt")
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* is sound:\n  step-000000001") as caught:
        checkpointer.load(state(0))
    assert "checkpoint.start_over=true" in str(caught.value)
    assert "cannot be used: step-000000001: state.pt has changed" in capsys.readouterr().out
    with pytest.raises(CheckpointError, match=r"is sound:\n  quarantined: \.aside-step-000000001"):
        make().load(state(0))  # nor does the next attempt begin anew
    (left,) = names(tmp_path)
    anew = make(start_over=True)
    assert anew.load(state(0)) is None
    anew.save(1, state(1), wait=True)
    assert names(tmp_path) == [left, "step-000000001"]
    assert load(make())[0].step == 1


def test_another_identity_is_refused_with_all_differences(make: Any) -> None:
    make().save(1, state(1), wait=True)
    other = {"model": {"width": 16, "layers": 2, "bias": True}, "data": "mnist"}
    with pytest.raises(Misfit) as caught:
        make(identity=other).load(state(-1))
    assert str(caught.value).splitlines()[1:5] == [
        "  model.width: 8 in the checkpoint, 16 now",
        "  model.bias: not in the checkpoint, true now",
        '  optimizer: "adam" in the checkpoint, not there now',
        '  data: not in the checkpoint, "mnist" now',
    ]


@pytest.mark.parametrize("kind", ["single", "sharded"])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda s: s["model"].update(weight=torch.zeros(5, 8)),
            r"model.weight: shape \(4, 8\) in the .*, \(5, 8\) now",
        ),
        (lambda s: s["model"].update(weight=torch.zeros(4, 8).double()), "torch.float32 in the .*, torch.float64 now"),
        (lambda s: s["model"].update(more=torch.zeros(1)), "model.more: not in the checkpoint"),
        (lambda s: s["model"].pop("bias"), "model.bias: in the checkpoint, not in the state"),
    ],
)
def test_another_shape_type_or_name_is_refused_and_nothing_changes(
    make: Any, small: Any, kind: str, change: Any, words: str
) -> None:
    small(10**6 if kind == "single" else 0)
    checkpointer = make()
    checkpointer.save(1, state(1), wait=True)
    into = state(-1)
    change(into)
    with pytest.raises(Misfit, match=words):
        checkpointer.load(into)
    assert not any((tensor == 1).any() for tensor in tensors(into).values())


def test_a_part_of_the_state_can_be_loaded(make: Any) -> None:
    checkpointer = make()
    checkpointer.save(1, state(1), wait=True)
    into = {"model": state(-1)["model"]}
    assert checkpointer.load(into, only=["model"]) is not None and is_filled(into, 1)


def test_a_newer_format_is_refused_by_name(make: Any, tmp_path: Path) -> None:
    checkpointer = make()
    for step in (1, 2):
        checkpointer.save(step, state(step), wait=True)
    path = tmp_path / "checkpoints" / "step-000000002" / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 9, "launcher": "9.1"}))
    with pytest.raises(Misfit, match=r"step-000000002 has format 9, .* knows formats up to 2: .*\(9.1\)"):
        checkpointer.load(state(0))


def test_what_another_number_of_ranks_has_saved_is_loaded_without_their_own_state(make: Any, tmp_path: Path) -> None:
    checkpointer = make()
    checkpointer.save(1, state(1), rank_state={"own": 1}, wait=True)
    path = tmp_path / "checkpoints" / "step-000000001"
    (path / "manifest.json").write_text(dataclasses.replace(checkpoints.read(path), world_size=4, torch="2.0").text())
    loaded = checkpointer.load(state(0))
    assert loaded is not None and loaded.rank_state is None


@pytest.mark.parametrize("which", ["folder", "checkpoint"])
def test_a_folder_that_others_can_write_to_is_refused(make: Any, tmp_path: Path, which: str) -> None:
    checkpointer = make()
    checkpointer.save(1, state(1), wait=True)
    folder = tmp_path / "checkpoints"
    (folder if which == "folder" else folder / "step-000000001").chmod(0o770)
    with pytest.raises(CheckpointError, match="others can write to"):
        checkpointer.load(state(0))


# -- what goes wrong with a save


def test_no_space_is_told_and_does_not_end_the_training(
    make: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    checkpointer = make()
    checkpointer.save(1, state(1), wait=True)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    checkpointer.save(2, state(2))
    checkpointer.wait()
    told = f"the checkpoint of step 2 was not saved: no space in {tmp_path / 'checkpoints'}: "
    printed = capsys.readouterr().out
    assert printed.count(told) == 1 and "bytes are needed, and 1000 are free" in printed
    with pytest.raises(SaveFailed, match="step 3 was not saved: no space"):
        checkpointer.save(3, state(3), wait=True)
    assert names(tmp_path) == ["step-000000001"]
    monkeypatch.undo()
    checkpointer.save(4, state(4), wait=True)
    assert load(checkpointer)[0].step == 4
    assert checkpointer.cost > 0


def test_the_last_save_does_not_wait_until_old_checkpoints_are_removed(
    make: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A stop may leave little time, and a file system a minute for the removal of thousands of files."""
    saved, real = threading.Event(), shutil.rmtree

    def rmtree(path: Any, **options: Any) -> None:
        if ".gone" in str(path):
            assert saved.wait(30), "the next save waits for this removal"
        real(path, **options)

    checkpointer = make(keep=1)
    monkeypatch.setattr(folder.shutil, "rmtree", rmtree)
    checkpointer.save(1, state(1), wait=True)
    checkpointer.save(2, state(2), wait=True)
    checkpoint_of_3 = threading.Thread(target=lambda: checkpointer.save(3, state(3), wait=True))
    checkpoint_of_3.start()
    give_up = time.monotonic() + 30
    while "step-000000003" not in names(tmp_path) and time.monotonic() < give_up:
        time.sleep(0.01)
    assert "step-000000003" in names(tmp_path)
    saved.set()
    checkpoint_of_3.join()
    checkpointer.wait()
    assert names(tmp_path) == ["step-000000003"]


def test_a_fence_that_is_closed_ends_all_saving(make: Any, tmp_path: Path) -> None:
    def closed() -> None:
        raise RuntimeError("attempt 0 has lost the run")

    checkpointer = make()
    checkpointer.save(1, state(1), wait=True)
    checkpointer._writer.fence = closed
    checkpointer.save(2, state(2))
    with pytest.raises(CheckpointError, match=r"step 2 was not saved: attempt 0 has lost the run"):
        checkpointer.wait()
    with pytest.raises(CheckpointError, match="lost the run"):
        checkpointer.save(3, state(3))
    assert names(tmp_path) == ["step-000000001"]
    checkpointer._final = None  # so that it can be closed


@pytest.mark.parametrize("error", [LeaseLost("attempt 1 has it"), UnavailableError("nobody can tell")])
def test_an_attempt_that_loses_the_run_after_it_has_published_removes_nothing(
    make: Any, tmp_path: Path, error: Exception
) -> None:
    answers: list[Exception | None] = [None, None, error]

    def fence() -> None:
        if (answer := answers.pop(0)) is not None:
            raise answer

    checkpointer = make(keep=1)
    checkpointer._writer.fence = fence
    checkpointer.save(1, state(1), wait=True)
    checkpointer.save(2, state(2), wait=True)
    checkpointer.wait()
    assert not answers
    assert names(tmp_path) == ["step-000000001", "step-000000002"]


def test_a_fence_that_cannot_be_read_is_asked_again_at_the_next_save(make: Any, tmp_path: Path) -> None:
    answers = [OSError(errno.ESTALE, "Stale file handle"), None]

    def fence() -> None:
        if error := answers.pop(0):
            raise error

    checkpointer = make()
    checkpointer._writer.fence = fence
    checkpointer.save(1, state(1))
    checkpointer.wait()
    assert names(tmp_path) == []
    checkpointer.save(2, state(2), wait=True)
    assert names(tmp_path) == ["step-000000002"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"state": {"model": {"w": torch.zeros(2).to_sparse()}}}, "model.w is a torch.sparse_coo tensor"),
        ({"state": {"model": {"f": Path("x")}}}, "state contains what only pickle can restore"),
        ({"state": {"a": {"b.c": torch.zeros(1)}, "a.b": {"c": torch.zeros(1)}}}, "two tensors .* the name a.b.c"),
        ({"rank_state": {"path": Path("x")}}, "rank_state contains what only pickle can restore"),
        ({"extra": {"cursor": torch.zeros(2)}}, "extra must be made of JSON types"),
    ],
)
def test_a_state_that_could_not_be_read_again_is_refused(make: Any, change: dict[str, Any], words: str) -> None:
    checkpointer = make()
    given = {"state": state(1), **change}
    with pytest.raises(SaveFailed, match=words):
        checkpointer.save(1, given.pop("state"), wait=True, **given)
    with pytest.raises(CheckpointError, match=words):
        checkpointer.wait()
    checkpointer._final = None


def test_a_folder_that_cannot_be_made_is_an_error_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        CheckpointError, match=r"checkpoint\.dir=.*/file/checkpoints: checkpoints cannot be saved there"
    ):
        Checkpointer(tmp_path / "file" / "checkpoints", ALONE, identity={})


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_an_error_at_once(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir(mode=0o500)
    with pytest.raises(CheckpointError, match="it cannot be written to"):
        Checkpointer(tmp_path / "checkpoints", ALONE, identity={})


# -- pieces


def test_what_all_ranks_hold_is_divided_evenly() -> None:
    tensors = {f"t{n}": torch.zeros(n * 25) for n in range(1, 9)}
    chosen = [owned(tensors, rank, 3) for rank in range(3)]
    loads = [sum(tensors[name].nbytes for name in names) for names in chosen]
    assert sorted(name for names in chosen for name in names) == [*tensors] and max(loads) - min(loads) <= 200
    assert owned(tensors, 0, 1) == [*tensors]


def test_memory_for_copies_is_used_again_and_given_back() -> None:
    staging = Staging()
    source = {"a": torch.ones(600_000).view(2, -1).T, "b": torch.ones(600_000)}
    first = staging.start(source).finish(["a", "b"])
    again = staging.start(source).finish(["a"])
    assert again["a"].data_ptr() == first["a"].data_ptr() != source["a"].data_ptr()
    assert again["a"].is_contiguous() and torch.equal(again["a"], source["a"])
    assert staging._copies.keys() == {"a"}


def test_the_unpickler_reads_all_metadata_that_torch_writes(make: Any, small: Any, tmp_path: Path) -> None:
    small(0)
    kinds = [torch.float64, torch.bfloat16, torch.float8_e4m3fn, torch.int8, torch.bool, torch.complex64]
    weights = {"model": {str(kind): torch.zeros(2, 3, dtype=kind) for kind in kinds} | {"scalar": torch.tensor(1)}}
    make().save(1, weights, wait=True)
    path = tmp_path / "checkpoints" / "step-000000001"
    with open(path / ".metadata", "rb") as file:
        expected = pickle.load(file)
    metadata = storage.read_metadata(path)
    assert metadata.state_dict_metadata == expected.state_dict_metadata
    assert metadata.storage_data == expected.storage_data


# -- several ranks


def sharded_state(value: float, env: Env, rows: int = 7) -> dict[str, Any]:
    """Rows of `weight` and `row * 10 + value` in them, divided; something that all ranks hold; something of none."""
    mesh = init_device_mesh("cpu", (env.world_size,))
    whole = torch.arange(rows).mul(10).add(value).float().unsqueeze(1).repeat(1, 4)
    return {
        "model": {
            "weight": distribute_tensor(whole, mesh, [Shard(0)]),
            "norm": distribute_tensor(torch.full((3,), value), mesh, [Replicate()]),
            "bias": torch.full((5,), value),
        },
        "lr": value,
    }


def save_ranks(config: dict[str, Any], env: Env) -> dict[str, Any]:
    checkpoint.SMALL = config.get("small", checkpoint.SMALL)
    checkpointer = Checkpointer(Path(config["folder"]), env, identity=IDENTITY)
    for step in (1, 2):
        given = sharded_state(step, env) if config["divided"] else state(step)
        checkpointer.save(step, given, rank_state={"rank": env.rank}, extra={"world": env.world_size})
        checkpointer.staged()
        for tensor in tensors(given).values():
            (tensor.to_local() if isinstance(tensor, DTensor) else tensor).fill_(-1)
    checkpointer.close()
    return {"cost": checkpointer.cost}


def load_ranks(config: dict[str, Any], env: Env) -> dict[str, Any]:
    checkpointer = Checkpointer(Path(config["folder"]), env, identity=IDENTITY)
    into = sharded_state(-1, env) if config["divided"] else state(-1)
    loaded = checkpointer.load(into)
    checkpointer.close()
    assert loaded is not None
    found = {
        name: (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).float().flatten().tolist()
        for name, tensor in tensors(into).items()
    }
    return {"step": loaded.step, "rank_state": loaded.rank_state, "found": found, "passed_over": loaded.passed_over}


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize(
    ("divided", "size"), [(True, 10**6), (False, 10**6), (False, 0)], ids=["divided", "small", "large"]
)
def test_a_checkpoint_is_loaded_at_other_sizes(tmp_path: Path, ranks: int, divided: bool, size: int) -> None:
    config = {"folder": str(tmp_path / "checkpoints"), "divided": divided, "small": size}
    costs = {result.metrics["cost"] for result in run_ranks(save_ranks, config, ranks)}
    assert len(costs) == 1 and costs.pop() > 0
    path = tmp_path / "checkpoints" / "step-000000002"
    manifest = checkpoints.read(path)
    assert manifest.extra == {"world": ranks} and changed(path) == []
    if divided or not size:
        assert {f"__{rank}_0.distcp" for rank in range(ranks)} <= manifest.files.keys()
    expected = None
    for others in (ranks, ranks % 3 + 1):
        for rank, result in enumerate(run_ranks(load_ranks, config, others)):
            found = result.metrics
            expected = expected or found["found"]
            assert (found["step"], found["found"], found["passed_over"]) == (2, expected, ())
            assert found["rank_state"] == ({"rank": rank} if others == ranks else None)
    assert expected is not None
    if divided:
        assert expected["model.weight"] == [10.0 * row + 2 for row in range(7) for _ in range(4)]
        expected.pop("model.weight")
    assert {value for each in expected.values() for value in each} == {2.0}
    # and without any process group
    tree = checkpoint_read.whole(path, manifest)
    assert tree["model"]["bias"].tolist() == [2.0] * tree["model"]["bias"].numel()
    entries = checkpoint_read.entries(read_contents(path, manifest))
    sizes = [math.prod(shard["shape"]) for entry in entries for shard in entry["shards"]]
    assert sum(sizes) == sum(len(each) for each in expected.values()) + 28 * divided
    assert [rank_state_of(path, manifest, rank) for rank in range(ranks)] == [{"rank": rank} for rank in range(ranks)]


def load_whole_into_shards(config: dict[str, Any], env: Env) -> dict[str, Any]:
    checkpointer = Checkpointer(Path(config["folder"]), env, identity={})
    whole = torch.arange(28.0).view(7, 4)
    checkpointer.save(1, {"w": whole}, wait=True)
    into = sharded_state(0, env)["model"]["weight"]
    assert checkpointer.load({"w": into}) is not None
    checkpointer.close()
    return {
        "kind": checkpoints.read(Path(config["folder"]) / "step-000000001").kind,
        "same": torch.equal(into.full_tensor(), whole),
    }


def test_small_whole_state_is_loaded_into_divided_tensors(tmp_path: Path) -> None:
    for result in run_ranks(load_whole_into_shards, {"folder": str(tmp_path / "checkpoints")}, 3):
        assert result.metrics == {"kind": "single", "same": True}


def trouble(config: dict[str, Any], env: Env) -> dict[str, Any]:
    """One rank cannot write more than a few bytes, in the second save only."""
    checkpoint.SMALL = 0
    checkpointer = Checkpointer(Path(config["folder"]), env, identity=IDENTITY)
    given = {"model": {f"w{n}": torch.ones(50_000) for n in range(4)}}
    checkpointer.save(1, given, wait=True)
    if env.rank == config["rank"]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (config["limit"], resource.RLIM_INFINITY))
    own = torch.zeros(10_000)  # more than the lower limit, which the ranks' store in a file is below
    checkpointer.save(2, given, rank_state={"rank": own})
    checkpointer.wait()
    words = ""
    try:
        checkpointer.save(3, given, wait=True)
    except SaveFailed as error:
        words = str(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    found = checkpointer.load(given)
    assert found is not None
    checkpointer.save(4, given, wait=True)
    checkpointer.close()
    return {"words": words, "step": found.step}


@pytest.mark.parametrize(("rank", "limit"), [(1, 100_000), (0, 100_000), (1, 30_000), (0, 30_000)])
def test_a_full_disk_of_one_rank_is_a_failure_of_all(tmp_path: Path, rank: int, limit: int) -> None:
    folder = tmp_path / "checkpoints"
    results = run_ranks(trouble, {"folder": str(folder), "rank": rank, "limit": limit}, 2)
    assert {result.metrics["step"] for result in results} == {1}
    (words,) = {result.metrics["words"] for result in results}
    assert f"step 3 was not saved: rank {rank}: " in words and "File too large" in words
    assert results[0].printed.count("the checkpoint of step 2 was not saved") == 1
    assert "not saved" not in results[1].printed
    assert names(tmp_path) == ["step-000000001", "step-000000004"]


def differ(config: dict[str, Any], env: Env) -> dict[str, Any]:
    checkpointer = Checkpointer(Path(config["folder"]), env, identity=IDENTITY)
    errors = []
    for step, given in ((env.rank, state(1)), (5, {"stage": {str(env.rank): torch.ones(3 + env.rank)}})):
        try:
            checkpointer.save(step, given, wait=True)
        except SaveFailed as error:
            errors.append(str(error))
    into = {"stage": {str(rank): torch.zeros(3 + rank) for rank in range(2)}}
    assert checkpointer.load(into) is not None
    checkpointer.close()
    return {"errors": errors, "filled": is_filled(into, 1)}


def test_ranks_must_agree_on_the_step_and_may_hold_different_tensors(tmp_path: Path) -> None:
    for rank, result in enumerate(run_ranks(differ, {"folder": str(tmp_path / "checkpoints")}, 2)):
        words = "ranks save different steps: rank 0 saves step 0, rank 1 saves step 1"
        assert result.metrics == {"errors": [f"the checkpoint of step {rank} was not saved: {words}"], "filled": True}


def refuse(config: dict[str, Any], env: Env) -> dict[str, Any]:
    checkpointer = Checkpointer(Path(config["folder"]), env, identity={"width": 9})
    try:
        checkpointer.load(state(-1))
    except Misfit as error:
        return {"error": str(error)}
    finally:
        checkpointer.close()
    return {}


def test_all_ranks_refuse_a_foreign_one_with_the_same_words(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    checkpointer = Checkpointer(folder, ALONE, identity={"width": 8})
    checkpointer.save(1, state(1), wait=True)
    checkpointer.close()
    (words,) = {result.metrics["error"] for result in run_ranks(refuse, {"folder": str(folder)}, 2)}
    assert "width: 8 in the checkpoint, 9 now" in words


def lose_one(config: dict[str, Any], env: Env) -> dict[str, Any]:
    """One shard of the newest is damaged; only one rank looks at it."""
    checkpoint.SMALL = 0
    checkpointer = Checkpointer(Path(config["folder"]), env, identity=IDENTITY)
    for step in (1, 2):
        checkpointer.save(step, state(step), wait=True)
    if env.rank == 0:
        flip(Path(config["folder"]) / "step-000000002" / "__1_0.distcp", 500)
    into = state(-1)
    loaded = checkpointer.load(into)
    checkpointer.close()
    assert loaded is not None
    return {"step": loaded.step, "filled": is_filled(into, 1), "told": loaded.passed_over}


def test_ranks_share_the_checksums_and_go_back_together(tmp_path: Path) -> None:
    for result in run_ranks(lose_one, {"folder": str(tmp_path / "checkpoints")}, 2):
        assert (result.metrics["step"], result.metrics["filled"]) == (1, True)
        assert result.metrics["told"] == (
            "step-000000002: __1_0.distcp has changed since it was written: its checksum is wrong",
        )


class Counter:
    """A data loader's position, say."""

    def __init__(self) -> None:
        self.seen, self.order = 0, torch.zeros(3)

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen, "order": self.order.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen, self.order = state["seen"], state["order"]


def test_objects_with_a_state_of_their_own_are_taken_and_get_it_back(make: Any) -> None:
    """As torch.distributed.checkpoint takes them: a model, an optimizer, whatever has the two methods."""
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.5)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    counter = Counter()
    counter.seen, counter.order = 7, torch.arange(3.0)
    state = {"model": model, "nested": {"optimizer": optimizer, "data": counter}, "epoch": 3}
    make().save(1, state, wait=True)
    saved = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    other, data = torch.nn.Linear(2, 2), Counter()
    another = torch.optim.Adam(other.parameters(), lr=0.1)
    other(torch.ones(1, 2)).sum().backward()
    another.step()
    loaded = make().load({"model": other, "nested": {"optimizer": another, "data": data}, "epoch": 0})
    assert loaded is not None and loaded.values["epoch"] == 3
    assert all(torch.equal(saved[name], tensor) for name, tensor in other.state_dict().items())
    assert another.param_groups[0]["lr"] == 0.5
    assert torch.equal(another.state[other.weight]["exp_avg"], optimizer.state[model.weight]["exp_avg"])
    assert data.seen == 7 and torch.equal(data.order, torch.arange(3.0))
