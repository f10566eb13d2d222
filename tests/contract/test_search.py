"""Searches by the pilots of a sweep."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.runs.lookup import all_sweeps
from launcher.runs.sweep_directory import SearchRecord, Sweep
from tests.contract.schedulers import detached
from tests.contract.test_sweeps import TINY, sweep
from tests.launch import Launcher

pytest.importorskip("optuna", reason="pip install 'launcher[optuna]'")

SEARCHED = (
    "workload.entry=tests.chaos.climb:main", "seed=range(40)", "sweep.search=asha", "sweep.objective=height",
    "sweep.slots=2", "sweep.pack=2",
)  # fmt: skip


def executed(sweep: Sweep, point: int) -> int:
    """Returns how often a point was run."""
    return len(list(sweep.run(point).path.glob("executed-*")))


@detached("local", ci=("slurm",))
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
