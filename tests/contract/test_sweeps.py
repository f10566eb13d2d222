"""What every scheduler must do with a sweep."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest

from launcher.runs import lookup
from launcher.runs.directory import Run
from launcher.runs.sweep_directory import Sweep
from tests.contract.schedulers import detached, local
from tests.launch import Launcher

TINY = ("workload=collective", "procs_per_node=1", "launch.rendezvous_timeout=120")


class Points:
    """A sweep that was submitted."""

    def __init__(self, launcher: Launcher) -> None:
        self.launcher = launcher
        (self.sweep,) = lookup.all_sweeps(launcher.runs_dir)

    def run(self, index: int) -> Run:
        return self.sweep.run(index)

    def states(self) -> list[str]:
        """Returns the states of all points, as `status` shows them; points without a submission are `unconfirmed`."""
        names = [f"{self.sweep.id}/{index}" for index in range(len(self.sweep.manifest().points))]
        done = self.launcher("status", *names, "--json")
        assert done.returncode == 0, done.stderr
        return [row["state"] for row in json.loads(done.stdout)]

    def wait(self) -> int:
        """Waits until all points are over; returns the exit code."""
        return self.launcher("sweep", "wait", self.sweep.id, timeout=240).returncode

    def attempts(self) -> list[int]:
        return [len(self.run(index).attempts()) for index in range(len(self.sweep.manifest().points))]


def sweep(launcher: Launcher, *overrides: str, **environment: str) -> tuple[Points, str]:
    """Submits a sweep of a workload in tests/chaos/; returns the sweep, and the output of the command."""
    done = launcher.submit("-m", *TINY, *overrides, "wait=false", **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return Points(launcher), done.stdout + done.stderr


def until(launcher: Launcher, condition: Callable[[], object], points: Points) -> None:
    launcher.until(condition, f"that did not come of {points.sweep.id}: {points.states()}", 120)


def printed(run: Run) -> str:
    return "".join(path.read_text() for path in run.outputs())


def events(run: Run) -> list[str]:
    return [event["event"] for attempt in run.attempts() for event in attempt.events()]


FINE = "workload.entry=tests.chaos.faults:fine"


@detached("slurm", "pbs", "sge")
def test_a_grid_is_submitted_and_each_of_its_points_is_a_run(launcher: Launcher) -> None:
    grid = ("seed=1,2", "nodes=1,2", FINE)
    points, printed = sweep(launcher, *grid)
    assert f"{points.sweep.id}: 4 points" in printed
    assert points.wait() == 0
    assert points.states() == ["done"] * 4
    worlds = {
        (run.plan().seed, run.plan().nodes, (run.result() or {})["world_size"]) for run in map(points.run, range(4))
    }
    assert worlds == {(1, 1, 1), (1, 2, 2), (2, 1, 1), (2, 2, 2)}
    assert points.attempts() == [1] * 4
    logs = launcher("logs", f"{points.sweep.id}/2")
    assert logs.returncode == 0, logs.stderr
    assert f"{points.sweep.id}/2" in launcher("status", f"{points.sweep.id}/2").stdout
    files = [path for path in points.sweep.path.rglob("*") if not path.is_symlink()]
    assert [path for path in files if path.stat().st_mode & 0o077] == []

    _, again = sweep(launcher, *reversed(grid))
    assert "4 points had been submitted before: 4 done" in again
    assert len(lookup.all_sweeps(launcher.runs_dir)) == 1
    assert points.attempts() == [1] * 4


@detached("slurm", never=("local", "allocation"))
def test_the_user_submits_a_sweep_with_the_printed_commands(launcher: Launcher) -> None:
    done = launcher.submit("-m", *TINY, "seed=1,2,3", FINE, "submit=false")
    assert done.returncode == 0, done.stderr
    points = Points(launcher)
    assert points.states() == ["unsubmitted"] * 3
    launcher.by_hand(done.stdout)
    assert set(points.states()) <= {"queued", "running", "done"}
    assert points.wait() == 0
    assert points.states() == ["done"] * 3
    assert points.attempts() == [1] * 3


@detached("slurm")
def test_a_point_that_fails_is_named_and_runs_again_alone(launcher: Launcher) -> None:
    """And no more points than sweep.parallelism run at once."""
    points, _ = sweep(
        launcher, "workload.entry=tests.chaos.sweep_points:writes", "seed=range(3)", "sweep.parallelism=1", FAILS="1",
        PAUSE="0.3",
    )  # fmt: skip
    assert points.wait() == 1
    assert points.states() == ["done", "failed", "done"]
    lives = sorted(json.loads(path.read_text()) for path in points.sweep.path.glob("*/executed"))
    assert len(lives) == 3
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(lives)), lives
    told = launcher("sweep", "status", points.sweep.id)
    assert "seed=1" in told.stdout, told.stdout
    assert "point 1 has a banana" in told.stdout
    again = launcher("sweep", "rerun", points.sweep.id, FAILS="")
    assert again.returncode == 0, again.stdout + again.stderr
    assert points.wait() == 0
    assert points.states() == ["done"] * 3
    assert points.attempts() == [1, 2, 1]


@detached("slurm", ci=("sge",))
def test_a_cancelled_sweep_ends_its_points_and_starts_no_more(launcher: Launcher) -> None:
    points, _ = sweep(launcher, "workload.entry=tests.chaos.faults:sleeps", "seed=range(3)", "sweep.parallelism=1")
    until(launcher, lambda: "asleep" in printed(points.run(0)), points)
    done = launcher("sweep", "cancel", points.sweep.id)
    assert done.returncode == 0, done.stdout + done.stderr
    assert points.wait() == 1
    assert points.run(0).path.joinpath("cancelled").exists()
    assert points.attempts()[1:] == [0, 0]
    told = json.loads(launcher("sweep", "status", points.sweep.id, "--json").stdout)
    assert json.dumps(told).count("cancelled") >= 3, told


@detached("slurm")
def test_a_stopped_point_is_resumed_alone(launcher: Launcher) -> None:
    points, _ = sweep(
        launcher, "workload.entry=tests.chaos.steps:main", "seed=range(2)", "sweep.parallelism=2", "resume.how=never",
        STEPS="100000", STEP_TIME="0.05",
    )  # fmt: skip
    until(launcher, lambda: all("progress" in events(points.run(index)) for index in range(2)), points)
    (points.run(1).path / "stop").touch()
    assert launcher("wait", f"{points.sweep.id}/1", "-q").returncode == 75
    assert points.states() == ["running", "stopped"]
    resumed = launcher("resume", f"{points.sweep.id}/1", "wait=true", STEPS="1", STEP_TIME="0")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert (points.run(1).result() or {})["begun"] > 0
    assert points.states() == ["running", "done"]
    assert points.attempts() == [1, 2]
    assert launcher("cancel", f"{points.sweep.id}/0").returncode == 0
    assert points.wait() == 1
    assert points.states() == ["cancelled", "done"]


@pytest.mark.ci
@pytest.mark.parametrize("launcher", ["allocation"], indirect=True)
def test_points_run_inside_an_allocation(launcher: Launcher) -> None:
    done = launcher.submit("-m", *TINY, FINE, "seed=1,2", "nodes=2")
    assert done.returncode == 0, done.stdout + done.stderr
    points = [point.run for point in lookup.all_sweeps(launcher.runs_dir)[0].points()]
    assert [(run.plan().cluster.scheduler, (run.result() or {})["world_size"]) for run in points] == [
        ("allocation", 2)
    ] * 2


@pytest.mark.ci
@pytest.mark.parametrize("launcher", ["slurm"], indirect=True)
def test_a_requeued_element_does_not_affect_the_others(launcher: Launcher, slurm: Any) -> None:
    points, _ = sweep(
        launcher, "workload.entry=tests.chaos.steps:main", "seed=range(2)", STEPS="60", STEP_TIME="0.1", SAVE_EVERY="5"
    )
    until(launcher, lambda: all("progress" in events(points.run(index)) for index in range(2)), points)
    (submission,) = points.sweep.submissions()
    slurm.run("scontrol", "requeue", f"{submission.job}_1")
    assert points.wait() == 0
    assert points.states() == ["done", "done"]
    assert points.attempts() == [1, 2]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["seed=1,x"], ["point 1 (seed=x)", "whole number"]),
        (["workload.op=all_reduce,all_reduc"], ["point 1 (op=all_reduc)", "Did you mean all_reduce"]),
        (["sed=1,2"], ["'sed'", "Did you mean seed"]),
        (["workload=collective,colective"], ["colective", "Did you mean collective"]),
        (["sweep.id=a,b"], ["sweep.id is for the whole sweep"]),
        (["seed=range(0,0)"], ["seed=range(0,0)"]),
    ],
)
@local
def test_bad_input_is_refused_and_leaves_no_files(launcher: Launcher, overrides: list[str], words: list[str]) -> None:
    done = launcher.submit("-m", "workload=collective", *overrides)
    assert done.returncode == 2, done.stdout + done.stderr
    for word in words:
        assert word in done.stderr
    assert "Traceback" not in done.stderr
    assert not launcher.runs_dir.exists()


@pytest.mark.parametrize("launcher", ["pbs"], indirect=True)  # scripts are rendered in the same way for all
def test_a_dry_run_shows_what_is_submitted(launcher: Launcher) -> None:
    words = ["-m", *TINY, FINE, "seed=1,2", "sweep.id=same", *launcher.overrides]
    shown = launcher(*words, "dry_run=true")
    assert shown.returncode == 0, shown.stderr
    assert not launcher.runs_dir.exists()
    assert launcher(*words, "wait=false").returncode == 0
    found = Sweep(launcher.runs_dir / "same")
    (script,) = (path for path in found.path.glob("arrays/*.sh") if not path.match("*.environment.sh"))
    assert script.read_text() in shown.stdout
    assert Points(launcher).wait() == 0
    assert lookup.all_runs(launcher.runs_dir) == []


PACKED = ("sweep.slots=2", "sweep.pack=2", "sweep.retries=1")


@detached("local", ci=("slurm",))
def test_points_share_pilots(launcher: Launcher) -> None:
    points, printed = sweep(
        launcher, "workload.entry=tests.chaos.sweep_points:writes", "seed=range(7)", *PACKED, FAILS="3", PAUSE="0.3"
    )
    assert f"{points.sweep.id}-pilot-1" in printed
    assert points.wait() == 1
    assert points.states() == ["done"] * 3 + ["failed"] + ["done"] * 3
    assert points.attempts() == [1, 1, 1, 2, 1, 1, 1]
    lives = [(points.run(index).path / "executed").read_text().count("\n") for index in range(7)]
    assert lives == [1, 1, 1, 2, 1, 1, 1]
    assert {(points.run(index).result() or {}).get("seed") for index in range(7)} == {0, 1, 2, None, 4, 5, 6}
    assert "point 3 has a banana" in launcher("sweep", "status", points.sweep.id).stdout
    files = [path for path in points.sweep.path.rglob("*") if not path.is_symlink()]
    assert [path for path in files if path.stat().st_mode & 0o077] == []
    for number in range(2):  # for those that run have the environment of their submission
        assert launcher("wait", points.sweep.pilot(number).id, "-q").returncode == 0
    again = launcher("sweep", "rerun", points.sweep.id, FAILS="")
    assert again.returncode == 0, again.stdout + again.stderr
    assert points.wait() == 0
    assert points.states() == ["done"] * 7


@detached("local")
def test_points_of_a_stopped_pilot_go_on_in_its_next_attempt(launcher: Launcher) -> None:
    points, _ = sweep(
        launcher, "workload.entry=tests.chaos.steps:main", "seed=range(2)", "sweep.slots=2",
        "resume.how=never", STEPS="60", STEP_TIME="0.1",
    )  # fmt: skip
    until(launcher, lambda: all("progress" in events(points.run(index)) for index in range(2)), points)
    pilot = points.sweep.pilot(0)
    (pilot.path / "stop").touch()
    assert launcher("wait", pilot.id, "-q").returncode == 75
    assert points.states() == ["queued", "queued"]
    again = launcher("sweep", "rerun", points.sweep.id, STEPS="60", STEP_TIME="0")
    assert again.returncode == 0, again.stdout + again.stderr
    assert points.wait() == 0
    assert points.attempts() == [2, 2]
    assert all((points.run(index).result() or {})["begun"] > 0 for index in range(2))


@detached("slurm", ci=("pbs",))
def test_a_packed_sweep_that_is_cancelled_ends_its_points_and_pilots(launcher: Launcher) -> None:
    """Or one of its points, and no other point of that pilot."""
    points, _ = sweep(launcher, "workload.entry=tests.chaos.faults:sleeps", "seed=range(4)", "sweep.slots=1")
    until(launcher, lambda: "asleep" in printed(points.run(0)), points)
    for index in (0, 3):
        assert launcher("cancel", f"{points.sweep.id}/{index}").returncode == 0
    until(launcher, lambda: "asleep" in printed(points.run(1)), points)
    assert points.states() == ["cancelled", "running", "waiting", "cancelled"]
    assert "sweep rerun" in launcher("resume", f"{points.sweep.id}/0").stderr
    done = launcher("sweep", "cancel", points.sweep.id)
    assert done.returncode == 0, done.stdout + done.stderr
    assert points.wait() == 1
    told = json.loads(launcher("sweep", "status", points.sweep.id, "--json").stdout)
    assert told["counts"] == {"cancelled": 4}
    pilot = points.sweep.pilot(0).id
    launcher("wait", pilot, "-q")
    (row,) = json.loads(launcher("status", pilot, "--json").stdout)
    assert row["state"] in ("done", "cancelled"), "it may have seen that no point is left before its job was cancelled"


@detached("sge", ci=("slurm", "pbs"))
def test_a_run_waits_for_a_sweep_in_pilots(launcher: Launcher) -> None:
    points, _ = sweep(
        launcher, "workload.entry=tests.chaos.sweep_points:writes", "seed=range(3)", "sweep.slots=1", PAUSE="0.5"
    )
    done = launcher.submit(*TINY, FINE, f"after={points.sweep.id}", "run_id=next", "wait=false")
    assert done.returncode == 0, done.stdout + done.stderr
    assert launcher("wait", "next", "-q", timeout=240).returncode == 0
    assert points.states() == ["done"] * 3
    ends = [json.loads((points.run(index).path / "executed").read_text())[1] for index in range(3)]
    (attempt,) = Run(launcher.runs_dir / "next").attempts()
    assert next(event["time"] for event in attempt.events() if event["event"] == "met") >= max(ends)
