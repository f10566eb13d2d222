"""A file system that fails: what passes is waited for, what does not ends with 75, and nothing sound is removed."""

from __future__ import annotations

import errno
import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import DefaultLoadPlanner

from launcher import Env, errors
from launcher.checkpoint import format as checkpoints
from launcher.checkpoint import saving as module
from launcher.checkpoint.checkpointer import Checkpointer
from launcher.checkpoint.collectives import combined_error
from launcher.checkpoint.folder import Retention
from launcher.checkpoint.format import CannotRead, CheckpointError, Damaged, Manifest, Misfit
from launcher.worker import main as rank
from tests.fakes import faulty_files
from tests.fakes.checkpoint_files import changed
from tests.fakes.faulty_files import Fault, FaultyFiles
from tests.processes.workload_ranks import run_ranks

ALONE = Env(0, 0, 1, 1, 0, 1, (), "here", "gloo", torch.device("cpu"), "test", (0,))
LONG = 1e6  # seconds


def state(value: float) -> dict[str, Any]:
    return {
        "model": {"weight": torch.full((400, 8), float(value)), "bias": torch.full((3,), float(value))},
        "lr": value,
    }


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> FaultyFiles:
    return faulty_files.install(monkeypatch)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Checkpointer]]:
    made = []

    def new(**changes: Any) -> Checkpointer:
        made.append(Checkpointer(tmp_path / "checkpoints", ALONE, identity={}, **{"read_timeout": 0, **changes}))
        return made[-1]

    yield new
    for each in made:
        each.close()


def names(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "checkpoints").iterdir())


def save(make: Callable[..., Checkpointer], *steps: int, **changes: Any) -> None:
    checkpointer = make(**changes)
    for step in steps:
        checkpointer.save(step, state(step), wait=True)
    checkpointer.close()


def load(checkpointer: Checkpointer) -> int:
    into = state(-1)
    loaded = checkpointer.load(into)
    assert loaded is not None and loaded.passed_over == ()
    assert (into["model"]["weight"] == loaded.step).all() and loaded.values == {"lr": loaded.step}
    return loaded.step


READS = [
    Fault("list"),
    Fault("list", number=errno.ENOENT),
    Fault("stat", "manifest.json", errno.ESTALE),
    Fault("open", "manifest.json", errno.ETIMEDOUT),
    Fault("open", "manifest.json", errno.EACCES),
    Fault("open", "manifest.json", errno.ENOENT),  # its folder lists it
    Fault("read", "manifest.json", after=100),
    Fault("stat", "state.pt"),
    Fault("stat", "state.pt", errno.ENOENT),
    Fault("open", "state.pt", errno.ESTALE),
    Fault("read", "state.pt", after=3000),  # in the middle
    Fault("stat", "__0_0.distcp"),
    Fault("read", "__0_0.distcp", after=3000),
    Fault("read", ".metadata", after=10),
    Fault("open", "values.pt"),
]


def sharded(fault: Fault) -> bool:
    return fault.part in ("__0_0.distcp", ".metadata", "values.pt")


@pytest.mark.parametrize("fault", READS, ids=str)
@pytest.mark.parametrize("verify", [True, False])  # without it, torch is the first to read the data
def test_an_error_that_passes_is_waited_for(
    make: Any, files: FaultyFiles, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fault: Fault, verify: bool
) -> None:
    monkeypatch.setattr(module, "SMALL", 0 if sharded(fault) else module.SMALL)
    save(make, 99000, 100000)
    before = names(tmp_path)
    checkpointer = make(read_timeout=LONG, verify=verify)
    files.faults.append(Fault(fault.call, fault.part, fault.number, 5, fault.after))
    assert load(checkpointer) == 100000
    assert files.met == 5
    assert names(tmp_path) == before


@pytest.mark.parametrize("fault", READS, ids=str)
def test_an_error_that_stays_ends_with_75_and_nothing_is_removed(
    make: Any, files: FaultyFiles, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fault: Fault
) -> None:
    monkeypatch.setattr(module, "SMALL", 0 if sharded(fault) else module.SMALL)
    save(make, 99000, 100000)
    before = names(tmp_path)
    checkpointer = make()
    files.faults.append(Fault(fault.call, fault.part, fault.number, after=fault.after))
    with pytest.raises(CannotRead, match="could not be read") as caught:
        checkpointer.load(state(0))
    assert caught.value.exit_code == errors.RESUME
    assert names(tmp_path) == before
    files.faults.clear()
    assert load(checkpointer) == 100000
    checkpointer.save(100001, state(100001), wait=True)
    checkpointer.close()
    assert names(tmp_path) == ["step-000100000", "step-000100001"]
    assert [changed(path) for path in checkpoints.candidates(tmp_path / "checkpoints")] == [[], []]


def test_a_file_that_appears_late_is_waited_for(
    make: Any, files: FaultyFiles, monkeypatch: Any, tmp_path: Path
) -> None:
    save(make, 1)
    hidden = [3]
    real = checkpoints._entries

    def late(folder: Path) -> dict[str, bool]:
        found = real(folder)
        if folder.name.startswith("step-") and hidden[0]:
            hidden[0] -= 1
            del found["manifest.json"]
        return found

    monkeypatch.setattr(checkpoints, "_entries", late)
    files.faults.append(Fault("stat", "manifest.json", errno.ENOENT, times=3))
    assert load(make(read_timeout=LONG)) == 1


def test_a_checkpoint_that_cannot_be_read_while_others_are_removed_stays(
    make: Any, files: FaultyFiles, tmp_path: Path
) -> None:
    save(make, 1, 2, keep=2)
    checkpointer = make(keep=1)
    assert load(checkpointer) == 2
    files.faults.append(Fault("read", "step-000000001/manifest.json"))
    checkpointer.save(3, state(3), wait=True)
    checkpointer.wait()
    assert names(tmp_path) == ["step-000000001", "step-000000003"]
    files.faults.clear()
    checkpointer.save(4, state(4), wait=True)
    checkpointer.wait()
    assert names(tmp_path) == ["step-000000004"]


def test_what_begins_anew_is_not_removed_for_its_low_steps_and_is_what_it_goes_on_from(
    make: Any, files: FaultyFiles, tmp_path: Path
) -> None:
    save(make, 99000, 100000)
    save(make, 10, 20, 30)  # without a load: another training, in the same folder
    assert names(tmp_path) == ["step-000000020", "step-000000030", "step-000099000", "step-000100000"]
    assert checkpoints.newest_step(tmp_path / "checkpoints") == 30
    checkpointer = make()
    assert load(checkpointer) == 30
    manifest = checkpoints.read(tmp_path / "checkpoints" / "step-000000030")
    checkpointer.save(99000, state(7), wait=True)  # the name is taken by one that it did not come from
    checkpointer.close()
    new = checkpoints.read(tmp_path / "checkpoints" / "step-000099000")
    assert (new.lineage, new.parent, new.sequence) == (manifest.lineage, 30, manifest.sequence + 1)
    (aside,) = [name for name in names(tmp_path) if name.startswith(".aside-step-000099000-")]
    assert names(tmp_path) == [aside, "step-000000030", "step-000099000", "step-000100000"]


def test_a_folder_of_an_older_format_is_gone_on_from(make: Any, tmp_path: Path) -> None:
    save(make, 1, 2)
    for step in (1, 2):
        path = tmp_path / "checkpoints" / checkpoints.name_of(step) / "manifest.json"
        values = {name: value for name, value in json.loads(path.read_text()).items() if name != "crc32"}
        old = {name: value for name, value in values.items() if name not in ("lineage", "sequence", "parent")} | {
            "format": 1
        }
        path.write_text(json.dumps(old | {"crc32": checkpoints._own_checksum(old)}))
    checkpointer = make(keep=1)
    assert load(checkpointer) == 2
    checkpointer.save(3, state(3), wait=True)
    checkpointer.close()
    assert names(tmp_path) == ["step-000000003"]


def test_one_that_was_replaced_meanwhile_is_not_put_aside(make: Any, tmp_path: Path, monkeypatch: Any) -> None:
    save(make, 1, 2)
    checkpointer = make()
    real = checkpoints.wrong_checksums

    def slow(path: Path, *arguments: Any) -> list[str]:
        monkeypatch.setattr(checkpoints, "wrong_checksums", real)
        with open(path / "state.pt", "r+b") as file:
            file.write(b"torn")
        problems = real(path, *arguments)
        save(make, 2)  # another attempt puts a sound one in its place
        return problems

    monkeypatch.setattr(checkpoints, "wrong_checksums", slow)
    loaded = checkpointer.load(state(0))
    assert loaded is not None and loaded.step == 1
    path = tmp_path / "checkpoints" / "step-000000002"
    assert path.exists() and changed(path) == []


def test_one_whose_replacement_could_not_be_named_is_put_back_or_left_alone(make: Any, tmp_path: Path) -> None:
    save(make, 7)
    folder = tmp_path / "checkpoints"
    old = folder / checkpoints.temporary(7, 0, "old")
    (folder / "step-000000007").rename(old)
    (folder / "step-000000007").touch()  # the name is taken, by nothing that could be loaded
    make(attempt=1)
    assert not old.exists() or checkpoints.read(old).step == 7


def unavailable(config: dict[str, Any], env: Env) -> dict[str, Any]:
    """Rank 1 alone cannot read."""
    checkpointer = Checkpointer(Path(config["folder"]), env, identity={}, read_timeout=0)
    with pytest.MonkeyPatch.context() as patch:
        if env.rank == 1:
            faulty_files.install(patch).faults.append(Fault("open", "state.pt"))
        try:
            checkpointer.load(state(0))
        except CannotRead as error:
            return {"error": str(error), "again": load(checkpointer) if env.rank == 2 else 0}
        finally:
            if env.rank != 2:
                patch.undo()
                checkpointer.close()
    return {}


def test_all_ranks_end_when_one_cannot_read(make: Any, tmp_path: Path) -> None:
    save(make, 1)
    results = run_ranks(unavailable, {"folder": str(tmp_path / "checkpoints")}, 2)
    (said,) = {result.metrics["error"] for result in results}
    assert "state.pt could not be read: Input/output error" in said


@pytest.mark.parametrize(
    ("said", "world", "kind", "text"),
    [
        ({0: Misfit("m"), 1: Misfit("m")}, 2, Misfit, "m"),
        ({0: Damaged("d"), 1: CannotRead("u")}, 3, CannotRead, "u"),  # which quarantines nothing
        ({0: "x", 2: CannotRead("u")}, 3, CannotRead, "u"),
        ({0: Damaged("a"), 1: Damaged("b"), 2: Damaged("a")}, 3, Damaged, "ranks 0,2: a; rank 1: b"),
        ({1: "disk full", 3: OSError(28, "No space left")}, 4, CheckpointError, "rank 1: disk full; rank 3: No space"),
        ({0: CheckpointError("x"), 1: CheckpointError("x")}, 2, CheckpointError, "x"),
        ({1: CheckpointError("x")}, 2, CheckpointError, "rank 1: x"),
    ],
)
def test_errors_of_ranks_become_one_that_names_them(said: Any, world: int, kind: type, text: str) -> None:
    error = combined_error(said, world)
    assert type(error) is kind and str(error).startswith(text)
    assert type(pickle.loads(pickle.dumps(error))) is kind


@pytest.mark.parametrize("kind", [CannotRead, errors.UnavailableError])
def test_a_rank_that_cannot_read_leaves_with_75_and_the_cause_is_an_event(
    kind: type[errors.UnavailableError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("LAUNCHER_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("LAUNCHER_ATTEMPT", "0")
    monkeypatch.setenv("RANK", "0")
    (tmp_path / "attempts" / "0" / "events").mkdir(parents=True)
    assert rank.end_attempt(kind("x could not be read: EIO")) == 75
    assert "x could not be read: EIO" in capsys.readouterr().err
    (event,) = map(json.loads, (tmp_path / "attempts" / "0" / "events" / "stop.jsonl").read_text().splitlines())
    assert (event["error"], event["reason"]) == ("x could not be read: EIO", "unreadable")


def manifest(step: int, sequence: int, lineage: str = "a", **metrics: Any) -> Manifest:
    return Manifest(step, "single", 1, 0, {}, {}, metrics, {}, lineage=lineage, sequence=sequence)


@pytest.mark.parametrize(
    ("known", "published", "keep", "gone"),
    [
        ([(10, 1), (20, 2), (30, 3)], 30, 2, {10}),
        ([(99, 1), (100, 2), (5, 3), (6, 4)], 6, 2, {99, 100}),  # it went back
        ([(99, 1, "b"), (100, 2, "b"), (5, 3)], 5, 1, set()),  # of others, nothing
        ([(100, 7), (5, 3)], 5, 1, {5} - {5}),  # a clock or a number that is wrong: never the new one
        ([(1, 0, ""), (2, 0, ""), (3, 1, "")], 3, 1, {1, 2}),  # an older launcher's
    ],
)
def test_what_goes_when_one_is_published(known: list[Any], published: int, keep: int, gone: set[int]) -> None:
    all_of_them = {Path(str(each[0])): manifest(*each) for each in known}
    new = all_of_them[Path(str(published))]
    assert {int(path.name) for path in Retention(keep).surplus(all_of_them, new)} == gone


def test_a_steady_file_reads_like_any_other(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(100)))
    with checkpoints.RetryingFile(path) as steady, open(path, "rb") as plain:
        for offset, whence in ((10, 0), (0, 2), (-5, 2), (10, 0), (0, 2), (20, 0), (5, 1), (0, 2), (35, 0)):
            assert steady.seek(offset, whence) == plain.seek(offset, whence) == steady.tell()
            assert steady.read(10) == plain.read(10)


def test_no_memory_to_read_a_checkpoint_is_no_damage(make: Any, tmp_path: Path, monkeypatch: Any) -> None:
    checkpointer, state = make(), {"model": {"w": torch.ones(3)}}
    checkpointer.save(1, state, wait=True)

    def no_memory(*_: Any, **__: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(torch, "load", no_memory)
    with pytest.raises(CannotRead, match="no memory"):
        checkpointer.load(state)
    assert (tmp_path / "checkpoints" / "step-000000001").is_dir()


@pytest.mark.parametrize(
    "error",
    [
        torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("CUDA error: an illegal memory access was encountered"),
    ],
)
def test_a_gpu_that_fails_while_it_is_filled_is_no_damage(
    make: Any, tmp_path: Path, monkeypatch: Any, error: Exception
) -> None:
    monkeypatch.setattr(module, "SMALL", 0)
    checkpointer, state = make(), {"model": {"w": torch.ones(3)}}
    checkpointer.save(1, state, wait=True)

    def fails(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(DefaultLoadPlanner, "resolve_tensor", fails)
    with pytest.raises(CheckpointError):  # before torch 2.6 tensors are filled after the file is closed
        checkpointer.load(state)
    assert (tmp_path / "checkpoints" / "step-000000001").is_dir()
