"""A packed sweep on PBS: its pilots run out of time, are requeued by a manager, and lose a node."""

from __future__ import annotations

import pytest

from launcher.runs.events import Started, every
from launcher.runs.sweep_directory import Sweep
from tests.chaos import disturbed_sweep
from tests.launch import Launcher
from tests.pbs.pbs_cluster import PbsCluster


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_200_points_survive_a_wall_time_a_requeue_and_a_killed_node(
    stand_in: PbsCluster, stand_in_launcher: Launcher
) -> None:
    stand_in.set(node={"ncpus": 2, "ngpus": 0, "mem": 64 << 20})  # a pilot takes all of a node

    def started(sweep: Sweep) -> list[Started]:
        return [every(sweep.pilot(number).attempts()[-1].events(), Started)[-1] for number in range(2)]

    def preempt(sweep: Sweep) -> None:
        for each in started(sweep):
            stand_in.rerun(each.job)

    disturbed_sweep.survives(
        stand_in_launcher, preempt, lambda sweep: stand_in.lose_node(stand_in.hosts[0]),
        lambda: stand_in.restore_node(stand_in.hosts[0]),
    )  # fmt: skip
