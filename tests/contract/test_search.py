"""Searches: by a command that is killed in the middle and goes on, and by the pilots of a sweep."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from launcher.runs.lookup import all_sweeps
from launcher.runs.search_record import SearchRecord
from launcher.runs.sweep_directory import Sweep
from tests.contract.schedulers import detached
from tests.contract.test_sweeps import TINY, sweep
from tests.launch import PYTHON, ROOT, Launcher, until

pytest.importorskip("optuna", reason="pip install 'launcher[optuna]'")

SEARCH = (
    "-m", "workload=ddp_mnist", "workload.entry=tests.chaos.parabola:main", "hydra/sweeper=optuna",
    "workload.lr=interval(0,1)", "hydra.sweeper.n_trials=3", "hydra.sweeper.n_jobs=2", "sweep.objective=height",
    "hydra.sweeper.sampler.seed=1",
)  # fmt: skip
SEARCHED = (
    "workload.entry=tests.chaos.climb:main", "seed=range(40)", "sweep.search=asha", "sweep.objective=height",
    "sweep.slots=2", "sweep.pack=2",
)  # fmt: skip


def executed(sweep: Sweep, point: int) -> int:
    """Returns how often a point was run."""
    return len(list(sweep.run(point).path.glob("executed-*")))


def test_a_search_that_is_killed_goes_on_with_what_it_has(tmp_path: Path) -> None:
    launcher = Launcher(tmp_path / "runs", {"PARABOLA_TIME": "1"})
    command = [PYTHON, "-m", "launcher", *SEARCH]
    with subprocess.Popen(command, cwd=ROOT, env=launcher.environ, stdout=subprocess.DEVNULL) as first:
        until(lambda: list(launcher.runs_dir.glob("*-*/*/executed-*")), "a trial has begun", 120)
        first.send_signal(signal.SIGKILL)
    done = launcher(*SEARCH, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    (sweep,) = all_sweeps(launcher.runs_dir)
    assert [executed(sweep, point.index) for point in sweep.points()] == [1, 1, 1]
    heights = {point.index: (point.run.result() or {})["height"] for point in sweep.points()}
    best = min(heights, key=lambda index: heights[index])
    assert f"best  point {best}, height {heights[best]:.5g}" in done.stdout
    assert sweep.manifest().best_is == "min"
    outside = {entry.name for entry in launcher.runs_dir.iterdir()} - {sweep.id, "latest", ".live"}
    assert not outside


@detached("local", "slurm")
def test_a_search_chooses_points_while_its_pilots_run_and_prunes_those_that_are_behind(launcher: Launcher) -> None:
    shown = launcher.submit("-m", *TINY, *SEARCHED, "sweep.budget.points=10", "dry_run=true").stdout
    assert "asha, maximize height: at most 10 points" in shown
    assert not launcher.runs_dir.exists()
    points, printed = sweep(launcher, *SEARCHED, "sweep.budget.points=10", STEP_TIME="0.3")
    assert "asha, maximize height: at most 10 points" in printed
    assert points.wait() == 0
    found = points.sweep.manifest()
    assert len(found.points) == len(set(found.points)) == 10
    states = points.states()
    assert set(states) == {"done", "pruned"}
    assert [executed(points.sweep, index) for index in range(10)] == [1] * 10
    trials = SearchRecord(points.sweep.path).journal().trials
    assert [each.state.name for each in trials] == [{"done": "COMPLETE", "pruned": "PRUNED"}[each] for each in states]
    heights = {index: (points.run(index).result() or {}).get("height") for index in range(10)}
    assert {index: each.value for index, each in enumerate(trials) if each.state.name == "COMPLETE"} == {
        index: height for index, height in heights.items() if height is not None
    }
    told = launcher("sweep", "results", points.sweep.id).stdout
    assert "RUNG (STEPS)" in told
    throttled = launcher("sweep", "throttle", points.sweep.id, "3")
    assert "all its points are over: no pilot is submitted" in throttled.stdout, throttled.stderr
    assert not points.sweep.pilot(2).recorded()
    spent = launcher.submit("-m", *TINY, *SEARCHED, "sweep.budget.points=10", "wait=false")
    assert spent.returncode == 2
    assert "sweep.budget.points=10 is spent" in spent.stderr


def test_an_objective_that_nobody_reports_ends_the_search_with_the_names_that_there_are(tmp_path: Path) -> None:
    launcher = Launcher(tmp_path / "runs", {"STEP_TIME": "0.01"})
    words = ("workload.entry=tests.chaos.climb:main", "seed=range(40)", "sweep.search=random", "sweep.objective=hight")
    done = launcher("-m", *TINY, *words, "sweep.budget.points=20", timeout=200)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "sweep.objective=hight: a point is done and has no such number. Did you mean height?" in done.stderr
    (sweep,) = all_sweeps(launcher.runs_dir)
    assert len(sweep.manifest().points) < 20
