"""Packed sweeps whose pilots, slot managers and points are killed."""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from pathlib import Path

import pytest

from launcher.runs.event_files import read
from launcher.runs.events import ManagerBegan, every
from launcher.runs.history import process_of
from launcher.runs.point_claims import Claims, EntryKind
from launcher.runs.sweep_directory import Sweep
from tests.launch import Launcher, until

POINTS = 12


@pytest.fixture
def launcher(tmp_path: Path) -> Launcher:
    return Launcher(tmp_path / "runs", {}, ["cluster=local"])


def submitted(launcher: Launcher, *overrides: str, **environment: str) -> Sweep:
    done = launcher.submit(
        "-m", "workload=collective", "workload.entry=tests.chaos.sweep_points:writes", "procs_per_node=1",
        f"seed=range({POINTS})", "sweep.id=many", "wait=false", *overrides, PAUSE="0.5", **environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return Sweep(launcher.runs_dir / "many")


def managers(sweep: Sweep) -> list[ManagerBegan]:
    """How slot managers began, in order."""
    folder = Claims(sweep.path, 0)
    return [event for each in folder.managers() for event in every(read(folder.journal(each)), ManagerBegan)]


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def done(sweep: Sweep) -> int:
    return sum(entry.kind is EntryKind.DONE for log in Claims(sweep.path, 0).entries().values() for entry in log)


def check(sweep: Sweep) -> None:
    """Each point is done once, and was never executed by two at the same time.

    One that was killed after it had written its line, and before its end was recorded, is executed again.
    """
    assert done(sweep) == POINTS
    for index in range(POINTS):
        lines = (sweep.run(index).path / "executed").read_text().splitlines()
        lives = sorted(json.loads(line) for line in lines)
        assert lives
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(lives)), lives


def test_a_killed_slot_manager_is_started_again_and_its_points_go_on(launcher: Launcher) -> None:
    sweep = submitted(launcher, "sweep.slots=2")
    until(lambda: done(sweep) >= 2, "two points are done")
    (manager,) = managers(sweep)
    os.kill(manager.pid, signal.SIGKILL)
    waited = launcher("sweep", "wait", "many", timeout=240)
    assert waited.returncode == 0, waited.stdout + waited.stderr
    assert len(managers(sweep)) == 2
    assert len(sweep.pilot(0).attempts()) == 1
    check(sweep)


def test_the_points_of_a_killed_pilot_go_on_in_another_one(launcher: Launcher) -> None:
    sweep = submitted(launcher, "sweep.pack=2")
    until(lambda: done(sweep) >= 2 and len(managers(sweep)) == 2, "points run in both pilots")
    process = process_of(sweep.pilot(0))
    assert process is not None
    process.signal(signal.SIGKILL)
    waited = launcher("sweep", "wait", "many", timeout=240)
    assert waited.returncode == 0, waited.stdout + waited.stderr
    check(sweep)
    assert launcher("sweep", "throttle", "many", "2").returncode == 0  # all is done: nothing is submitted
    assert len(sweep.pilot(0).attempts()) == 1


def test_two_nodes_of_a_pilot_share_points_and_go_on_when_one_is_killed(launcher: Launcher) -> None:
    sweep = submitted(launcher, "sweep.slots=1", "sweep.nodes=2")
    until(lambda: done(sweep) >= 2 and len(managers(sweep)) == 2, "points run on both nodes")
    first, second = (parent(each.pid) for each in managers(sweep))
    assert first != second
    os.kill(second, signal.SIGKILL)
    waited = launcher("sweep", "wait", "many", timeout=240)
    assert waited.returncode == 0, waited.stdout + waited.stderr
    check(sweep)
    assert len(managers(sweep)) == 2  # the first one was not started again
    resized = [event for event in sweep.pilot(0).attempts()[0].events() if event["event"] == "resized"]
    assert [(event["round"], event["members"]) for event in resized] == [(0, 1)]


def test_throttle_submits_pilots_and_stops_them(launcher: Launcher, tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    sweep = submitted(launcher, "sweep.slots=1", HOLD=str(hold))
    until(lambda: done(sweep) >= 1, "a point is done")
    assert launcher("sweep", "throttle", "many", "2").returncode == 0
    until(lambda: len(managers(sweep)) == 2, "a second pilot runs points")
    fewer = launcher("sweep", "throttle", "many", "1")
    assert "stops    many-pilot-1" in fewer.stdout, fewer.stdout + fewer.stderr
    assert (sweep.pilot(1).path / "stop").exists()
    hold.unlink()
    waited = launcher("sweep", "wait", "many", timeout=240)
    assert waited.returncode == 0, waited.stdout + waited.stderr
    check(sweep)
    assert not sweep.pilot(2).recorded()


def test_what_a_function_returns_is_the_result_of_its_point(launcher: Launcher) -> None:
    """Without a process group, too: no object of the slot manager is used by a point."""
    done = launcher.submit(
        "-m", "workload=function", "workload.init=false", "workload.target=tests.processes.test_pilots:squared",
        "+workload.kwargs.number=range(8)", "sweep.id=squares", "sweep.slots=1", "wait=true",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    sweep = Sweep(launcher.runs_dir / "squares")
    assert [sweep.run(index).result() for index in range(8)] == [{"squared": index**2} for index in range(8)]
    assert sweep.pilot(0).result() == {"points": 8, "done": 8}


def squared(number: int) -> dict[str, int]:
    time.sleep(0.3)
    return {"squared": number**2}
