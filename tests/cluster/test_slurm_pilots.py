"""A packed sweep on a real Slurm: its pilots run out of time, are preempted, and lose a node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.failures.codes import StopReason
from tests.chaos import disturbed_sweep
from tests.launch import Launcher


@pytest.fixture
def launcher(slurm: Any, tmp_path: Path) -> Iterator[Launcher]:
    yield Launcher(tmp_path / "runs", {"SLURM_CONF": slurm.env()["SLURM_CONF"]}, ["cluster=slurm"])
    slurm.reset()


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_200_points_survive_a_wall_time_a_preemption_and_a_killed_node(launcher: Launcher, slurm: Any) -> None:
    lost: list[str] = []

    def preempt(sweep: object) -> None:
        slurm.run("sbatch", "--partition=urgent", "--nodes=4", "--exclusive", "--wrap=sleep 5", "--output=/dev/null")

    def lose_node(sweep: object) -> None:
        lost.append(slurm.run("squeue", "--noheader", "--states=running", "--format=%N").split()[0])
        slurm.fail_node(lost[0], told=True)

    disturbed_sweep.survives(
        launcher, preempt, lose_node, lambda: slurm.restore_node(lost[0]),
        preempted=(StopReason.SIGNAL, StopReason.WARNING_SIGNAL),
    )  # fmt: skip
