"""The process that runs points of a sweep on this machine: which it starts, and how many at a time."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.errors import RunError, UnavailableError
from launcher.processes import Process
from launcher.runs import events as kinds
from launcher.runs import lease_and_locks as locks
from launcher.runs.directory import Run
from launcher.runs.history import journal_events
from launcher.runs.sweep_directory import Sweep
from launcher.sweeps import local_runner
from tests.unit.plans import plan_of
from tests.unit.sweep_runs import make_sweep


class Starts:
    """Takes the place of starting a point: a process that sleeps."""

    def __init__(self, seconds: str = "0.05") -> None:
        self.seconds = seconds
        self.started: list[int] = []
        self.refuse: set[int] = set()
        self.most = 0
        self._processes: list[subprocess.Popen[bytes]] = []

    def __call__(self, run: Run, *_: Any, resumed: bool) -> None:
        index = int(run.path.name)
        if index in self.refuse:
            raise RunError("no record")
        self._processes.append(subprocess.Popen(["sleep", self.seconds], start_new_session=True))
        run.journal(kinds.ProcessStarted(**asdict(Process.of(self._processes[-1].pid))))
        self.started.append(index)
        self.most = max(self.most, sum(process.poll() is None for process in self._processes))

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Starts]:
    starts = Starts()
    monkeypatch.setattr(local_runner, "start", starts)
    monkeypatch.setattr(local_runner, "POLL_INTERVAL", 0.01)
    yield starts
    starts.end()


def a_sweep(folder: Path, count: int = 4, parallelism: int | None = None) -> Sweep:
    plan = plan_of(cluster={"scheduler": "local"})
    return make_sweep(folder, count, array=None, plan=plan, parallelism=parallelism)


@pytest.mark.parametrize(("parallelism", "most"), [(None, 1), (1, 1), (2, 2), (9, 4)])
def test_all_points_are_started_once_and_so_many_at_a_time(
    tmp_path: Path, starts: Starts, parallelism: int | None, most: int
) -> None:
    sweep = a_sweep(tmp_path, parallelism=parallelism)
    sweep.request_local([2, 0, 1, 3], restart=False)
    assert local_runner.main(str(sweep.path)) == 0
    assert starts.started == [2, 0, 1, 3]
    assert 1 <= starts.most <= most
    assert local_runner.main(str(sweep.path)) == 0
    assert len(starts.started) == 4


@pytest.mark.parametrize("index", [0, 1])
def test_one_point_alone_is_started(tmp_path: Path, starts: Starts, index: int) -> None:
    sweep = a_sweep(tmp_path)
    sweep.request_local([index], restart=False)
    local_runner.main(str(sweep.path))
    assert starts.started == [index]


def test_a_point_that_cannot_be_started_is_told_and_left(
    tmp_path: Path, starts: Starts, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = a_sweep(tmp_path)
    starts.refuse = {1}
    sweep.request_local([0, 1, 2], restart=False)
    assert local_runner.main(str(sweep.path)) == 0
    assert starts.started == [0, 2]
    assert capsys.readouterr().err == "point 1: no record\n"


def test_a_point_that_could_not_be_started_and_is_asked_for_again_meanwhile_is_started(
    tmp_path: Path, starts: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = a_sweep(tmp_path, 3)
    starts.refuse = {0}

    def start(run: Run, *_: Any, resumed: bool) -> None:
        starts(run, resumed=resumed)
        if run.path.name == "1":
            starts.refuse.clear()
            sweep.request_local([0], restart=True)

    monkeypatch.setattr(local_runner, "start", start)
    sweep.request_local([0, 1, 2], restart=False)
    assert local_runner.main(str(sweep.path)) == 0
    assert sorted(starts.started) == [0, 1, 2]


def test_each_outage_of_the_file_server_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep, now, unreadable = a_sweep(tmp_path, 30), [0.0], [3, 9, 20]

    def start(run: Run, *_: Any, resumed: bool) -> None:
        now[0] += 1800.0
        if int(run.path.name) in unreadable:
            unreadable.remove(int(run.path.name))
            raise UnavailableError("no answer")
        run.journal(kinds.ProcessStarted(pid=1, start=0, host="elsewhere"))

    monkeypatch.setattr(local_runner, "start", start)
    monkeypatch.setattr(local_runner, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=lambda _: None))
    sweep.request_local(range(30), restart=False)
    assert local_runner.main(str(sweep.path)) == 0
    assert not unreadable


def test_the_work_grows_as_the_points_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(run: Run, *_: Any, resumed: bool) -> None:
        run.journal(kinds.ProcessStarted(pid=1, start=0, host="elsewhere"))  # it ends at once

    monkeypatch.setattr(local_runner, "start", start)
    monkeypatch.setattr(local_runner.time, "sleep", lambda _: None)
    work = []
    for count in (10, 100):
        sweep = a_sweep(tmp_path / str(count), count, parallelism=2)
        sweep.request_local(range(count), restart=False)
        reads: list[Path] = []
        monkeypatch.setattr(
            local_runner, "journal_events", lambda run, reads=reads: reads.append(run.path) or journal_events(run)
        )
        assert local_runner.main(str(sweep.path)) == 0
        work.append(len(reads))
    assert work[1] <= 15 * work[0]


def test_points_are_started_again_if_that_is_wanted(tmp_path: Path, starts: Starts) -> None:
    sweep = a_sweep(tmp_path)
    sweep.request_local([0, 1], restart=False)
    local_runner.main(str(sweep.path))
    sweep.request_local([0, 1], restart=False)
    local_runner.main(str(sweep.path))
    assert starts.started == [0, 1]
    sweep.request_local([1], restart=True)
    local_runner.main(str(sweep.path))
    assert starts.started == [0, 1, 1]


def test_a_cancelled_sweep_starts_none(tmp_path: Path, starts: Starts) -> None:
    sweep = a_sweep(tmp_path)
    sweep.request_local([0, 1], restart=False)
    sweep.mark_cancelled(True)
    local_runner.main(str(sweep.path))
    assert starts.started == []


def test_of_several_processes_one_works(tmp_path: Path, starts: Starts) -> None:
    sweep = a_sweep(tmp_path)
    sweep.request_local([0], restart=False)
    holder = os.fork()
    if holder == 0:
        with locks.acquire(sweep.path / local_runner.LOCK):
            (sweep.path / "held").touch()
            while not (sweep.path / "go").exists():
                time.sleep(0.01)
        os._exit(0)
    while not (sweep.path / "held").exists():
        time.sleep(0.01)
    assert local_runner.main(str(sweep.path)) == 0
    assert starts.started == []
    (sweep.path / "go").touch()
    os.waitpid(holder, 0)
    local_runner.main(str(sweep.path))
    assert starts.started == [0]
