"""A packed sweep on a real Slurm: its pilots run out of time, are preempted, and lose a node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.runs.claims import Claims, Kind
from launcher.runs.sweep_directory import Sweep
from tests.launch import Launcher

POINTS, STEPS = 200, 10


@pytest.fixture
def launcher(slurm: Any, tmp_path: Path) -> Iterator[Launcher]:
    yield Launcher(tmp_path / "runs", {"SLURM_CONF": slurm.env()["SLURM_CONF"]}, ["cluster=slurm"])
    slurm.reset()


def counts(launcher: Launcher) -> dict[str, int]:
    done = launcher("sweep", "status", "many", "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads(done.stdout)["counts"]
    return found


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_200_points_survive_a_wall_time_a_preemption_and_a_killed_node(launcher: Launcher, slurm: Any) -> None:
    """And their results are those of an undisturbed sweep: the sum of all their steps."""
    submitted = launcher.submit(
        "-m", "workload=collective", "workload.entry=tests.chaos.steps:main", "procs_per_node=1",
        f"seed=range({POINTS})", "sweep.id=many", "sweep.slots=2", "sweep.pack=2", "sweep.retries=0", "time=3m",
        "resume.lead=95s", "wait=false", STEPS=str(STEPS), STEP_TIME="0.05",
    )  # fmt: skip
    assert submitted.returncode == 0, submitted.stdout + submitted.stderr
    sweep = Sweep(launcher.runs_dir / "many")

    def attempts() -> int:
        return sum(len(sweep.pilot(number).attempts()) for number in range(2))

    launcher.until(lambda: counts(launcher).get("done", 0) >= 10, "10 points are done", timeout=120)
    slurm.run("sbatch", "--partition=urgent", "--nodes=4", "--exclusive", "--wrap=sleep 5", "--output=/dev/null")
    launcher.until(lambda: attempts() >= 4, "both pilots are preempted, and go on", timeout=180)
    launcher.until(lambda: counts(launcher).get("running", 0) > 0, "points run", timeout=120)
    node = slurm.run("squeue", "--noheader", "--states=running", "--format=%N").split()[0]
    slurm.fail_node(node, told=True)
    waited = launcher("sweep", "wait", "many", timeout=1000)
    slurm.restore_node(node)
    assert waited.returncode == 0, waited.stdout + waited.stderr
    assert counts(launcher) == {"done": POINTS}
    results = [sweep.run(index).result() or {} for index in range(POINTS)]
    assert [result["sum"] for result in results] == [[float(STEPS)] * 4] * POINTS
    ends = [[entry.kind for entry in log].count(Kind.DONE) for log in Claims(sweep.path, 0).entries().values()]
    assert ends == [1] * POINTS
    assert any(result["begun"] > 0 for result in results)  # from a checkpoint
