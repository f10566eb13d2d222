"""What the user's own code calls: `should_stop`, `init` where a group is there, functions; and the page about it."""

from __future__ import annotations

import difflib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

import launcher
from launcher.config.overrides import opened
from launcher.config.schema import Function
from launcher.errors import RunError
from launcher.runs import event_files
from launcher.torch_compat import destroy_without_gil
from launcher.worker import process_group, stop
from launcher.worker.main import make_checkpoint_folder
from launcher.worker.stop import Settings
from workloads import function
from workloads.across_ranks import WorkloadError

ROOT = Path(__file__).parents[3]
HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process that has asked nothing yet, outside of any run; its handlers are put back."""
    for name in [name for name in os.environ if name.startswith(("LAUNCHER", "SLURM", "PBS", "RANK", "TORCHELASTIC"))]:
        monkeypatch.delenv(name)
    for name, value in {"_stop": None, "_stopped": None, "_steps": 0}.items():
        monkeypatch.setattr(stop, name, value)
    monkeypatch.setattr(process_group, "_env", None)
    before = [(number, signal.getsignal(number)) for number in HANDLED]
    yield
    for number, handler in before:
        signal.signal(number, handler)
    process_group.close()


@pytest.mark.parametrize("number", HANDLED)
def test_a_signal_is_a_stop_and_stays_one(fresh: None, number: signal.Signals) -> None:
    assert [launcher.should_stop() for _ in range(3)] == [False] * 3
    os.kill(os.getpid(), number)
    assert [launcher.should_stop(step) for step in (4, 5)] == [True, True]


def test_callbacks_save_and_go_on_and_take_signals_back(
    fresh: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(stop, "settings", lambda: Settings(run_dir=tmp_path))
    monkeypatch.setattr(stop, "FILES_INTERVAL", 0.0)
    ours = stop.listen()
    handler = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a trainer's own
    stop.listen().take_signals()
    assert stop.listen() is ours and signal.getsignal(signal.SIGTERM) == handler
    (tmp_path / "save").touch()
    assert [stop.boundary(step).save for step in (1, 2)] == [True, False]
    assert not (tmp_path / "save").exists()
    (tmp_path / "stop").touch()
    assert [stop.boundary(step).stop for step in (3, 4)] == ["asked to stop by its file `stop`"] * 2


def test_the_step_is_told_where_the_program_does_not_tell_more(
    fresh: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "attempts/0/events").mkdir(parents=True)
    for name, value in (("LAUNCHER_RUN_DIR", str(tmp_path)), ("LAUNCHER_ATTEMPT", "0"), ("RANK", "0")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(stop, "settings", lambda: Settings(run_dir=tmp_path))
    monkeypatch.setattr(process_group, "_reporter", None)
    monkeypatch.setattr(process_group, "_has_progress", False)
    for step in (None, 7, 8):
        launcher.should_stop(step)
    launcher.progress(9, 100)
    launcher.should_stop(9)
    events = list(event_files.read(tmp_path / "attempts/0/events/rank-0.jsonl"))
    assert [(each["step"], each["total"]) for each in events] == [(7, 0), (8, 0), (9, 100)]


def test_without_a_group_each_rank_finds_the_stop_file_itself(
    fresh: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(stop, "settings", lambda: Settings(run_dir=tmp_path))
    monkeypatch.setattr(stop, "FILES_INTERVAL", 0.0)
    place = "RANK=3 LOCAL_RANK=1 WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 GROUP_RANK=1 MASTER_ADDR=here MASTER_PORT=21000"
    for word in place.split():
        monkeypatch.setenv(*word.split("="))
    assert process_group.here().rank == 3
    assert launcher.should_stop() is False
    (tmp_path / "stop").touch()
    assert launcher.should_stop() is True


def test_init_takes_the_group_that_is_there(fresh: None) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    destroy_without_gil(dist.group.WORLD)
    env = launcher.init()
    assert (env.rank, env.world_size, env.backend) == (0, 1, "gloo")
    assert process_group.here() == env


def test_a_group_of_somebody_elses_is_enough_to_ask(fresh: None) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    destroy_without_gil(dist.group.WORLD)
    assert launcher.should_stop() is False
    assert process_group.here().world_size == 1


@pytest.mark.parametrize(("rank", "first"), [(None, True), ("0", True), ("3", False)])
def test_rank_zero_is_known_before_there_is_a_group(
    fresh: None, monkeypatch: pytest.MonkeyPatch, rank: str | None, first: bool
) -> None:
    if rank is not None:
        monkeypatch.setenv("RANK", rank)
    assert launcher.rank_zero() is first


def test_every_name_of_the_public_face_is_there() -> None:
    assert {name for name in launcher.__all__ if getattr(launcher, name, None) is None} == set()


# -- functions


def takes(lr: float, name: str = "a") -> dict[str, Any]:
    return {"lr": lr, "name": name}


def tells_nothing() -> None: ...


def tells_a_number() -> float:
    return 3.0


class Holder:
    takes = staticmethod(takes)


def configured(called: str, /, **kwargs: Any) -> Function:
    return Function("function", "m:f", seed=0, target=f"{__name__}:{called}", kwargs=kwargs)


@pytest.mark.parametrize(
    ("name", "kwargs", "metrics"),
    [
        ("takes", {"lr": 1}, {"lr": 1, "name": "a"}),
        ("Holder.takes", {"lr": 1, "name": "b"}, {"lr": 1, "name": "b"}),
        ("tells_nothing", {}, {}),
    ],
)
def test_a_function_gets_its_arguments_and_gives_metrics(
    name: str, kwargs: dict[str, Any], metrics: dict[str, Any]
) -> None:
    assert function.main(configured(name, **kwargs), None) == metrics


def test_what_is_no_dict_of_metrics_is_refused() -> None:
    with pytest.raises(WorkloadError, match="tells_a_number returned float: return a dict of metrics, or None"):
        function.main(configured("tells_a_number"), None)


def test_arguments_of_a_function_need_no_plus() -> None:
    words = ["nodes=2", "workload.kwargs.lr=1,2", "+workload.kwargs.a=1", "workload.target=a:b"]
    assert opened(words) == ["nodes=2", "++workload.kwargs.lr=1,2", "+workload.kwargs.a=1", "workload.target=a:b"]


# -- docs/training-and-resuming.md


@pytest.mark.parametrize(("name", "lines"), [("ten_lines.py", 10), ("five_lines.py", 5)])
def test_the_page_shows_the_difference_between_the_two_scripts(name: str, lines: int) -> None:
    before, after = ((ROOT / "tests" / "examples" / each).read_text() for each in ("plain.py", name))
    difference = [
        line for line in difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
        if line[:1] in "+-" and line[:3] not in ("+++", "---") and '"""' not in line
    ]  # fmt: skip
    added = [line for line in difference if line[0] == "+" and line.strip("+ ")]
    removed = [line for line in difference if line[0] == "-" and line.strip("- ")]
    assert (len(added), len(removed)) == (lines, 1)
    page = [line.strip() for line in (ROOT / "docs" / "training-and-resuming.md").read_text().splitlines()]
    assert [line for line in (*added, *removed) if line.strip() not in page] == []


# -- the folder of its checkpoints


def test_the_folder_of_checkpoints_is_private_whatever_the_umask_is(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        make_checkpoint_folder(tmp_path / "a" / "b" / "c")
    finally:
        os.umask(before)
    assert [each.stat().st_mode & 0o777 for each in (tmp_path / "a", *(tmp_path / "a").rglob("*"))] == [0o700] * 3
    make_checkpoint_folder(tmp_path / "a" / "b" / "c")


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770])
def test_a_folder_of_checkpoints_that_others_can_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    """What a user's own code loads from there is executed: pickles."""
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(mode)
    with pytest.raises(RunError, match=r"checkpoint.dir=.*others can write to .*open"):
        make_checkpoint_folder(tmp_path / "open")


def test_a_folder_of_checkpoints_that_cannot_be_made_is_named_with_its_key(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"checkpoint.dir=.*/file/x: the folder cannot be made \(Not a directory\): set"):
        make_checkpoint_folder(tmp_path / "file" / "x")


def test_a_folder_of_checkpoints_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(RunError, match=r"checkpoint.dir=.*belongs to user \d+, not to you"):
        make_checkpoint_folder(tmp_path)
