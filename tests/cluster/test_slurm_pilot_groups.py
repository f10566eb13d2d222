"""Points of several nodes in a pilot on a real Slurm, which loses one of its nodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.runs import event_file
from launcher.runs.claims import Claims, Manager
from launcher.runs.events import ManagerBegan, PointBegan, every
from launcher.runs.sweep_directory import Sweep
from tests.launch import Launcher

FIRST, SECOND, LAST = Manager(0, 0, 0, 0), Manager(0, 0, 0, 2), Manager(0, 0, 0, 3)
POINTS, STEPS = 4, 60


@pytest.fixture
def launcher(slurm: Any, tmp_path: Path) -> Iterator[Launcher]:
    yield Launcher(tmp_path / "runs", {"SLURM_CONF": slurm.env()["SLURM_CONF"]}, ["cluster=slurm"])
    slurm.reset()


def test_a_lost_node_interrupts_the_points_of_its_group_only(launcher: Launcher, slurm: Any) -> None:
    submitted = launcher.submit(
        "-m", "workload=collective", "workload.entry=tests.chaos.steps:main", "procs_per_node=1", "nodes=2",
        f"seed=range({POINTS})", "sweep.id=groups", "sweep.slots=1", "sweep.nodes=4", "wait=false",
        STEPS=str(STEPS), STEP_TIME="0.2", SAVE_EVERY="10",
    )  # fmt: skip
    assert submitted.returncode == 0, submitted.stdout + submitted.stderr
    sweep = Sweep(launcher.runs_dir / "groups")
    folder = Claims(sweep.path, 0)

    def of(manager: Manager, kind: Any) -> list[Any]:
        return every(event_file.read(folder.journal(manager)), kind)

    def saved(manager: Manager) -> bool:
        runs = [sweep.run(event.point) for event in of(manager, PointBegan)]
        return any(list((run.path / "checkpoints").glob("step-*")) for run in runs)

    launcher.until(lambda: saved(FIRST) and saved(SECOND), "both groups have saved", timeout=120)
    (lost,) = of(LAST, ManagerBegan)
    slurm.fail_node(lost.host, told=True)
    try:
        waited = launcher("sweep", "wait", "groups", timeout=400)
    finally:
        slurm.restore_node(lost.host)
    assert waited.returncode == 0, waited.stdout + waited.stderr
    results = [sweep.run(index).result() or {} for index in range(POINTS)]
    assert [(each["sum"], each["world_size"]) for each in results] == [([float(STEPS)] * 4, 2)] * POINTS
    interrupted = of(SECOND, PointBegan)[0].point
    attempts = [len(sweep.run(index).attempts()) for index in range(POINTS)]
    assert attempts == [1 + (index == interrupted) for index in range(POINTS)]
    assert results[interrupted]["begun"] >= 10  # from its last save
    assert len(sweep.pilot(0).attempts()) == 1
    causes = [event for event in sweep.run(interrupted).attempts()[0].events() if event["event"] == "fault"]
    assert {event["host"] for event in causes} == {lost.host}
