"""`hydra/sweeper=optuna`: a search whose command is killed in the middle, and goes on where it was."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from launcher.runs.lookup import all_sweeps
from launcher.runs.sweep_directory import Sweep
from tests.launch import PYTHON, ROOT, Launcher, until

pytest.importorskip("optuna", reason="pip install 'launcher[optuna]'")

SEARCH = (
    "-m", "workload=ddp_mnist", "workload.entry=tests.chaos.parabola:main", "hydra/sweeper=optuna",
    "workload.lr=interval(0,1)", "hydra.sweeper.n_trials=3", "hydra.sweeper.n_jobs=2", "sweep.objective=height",
    "hydra.sweeper.sampler.seed=1",
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
