"""Runs within an interactive job of Grid Engine: nothing is submitted, qrsh starts the tasks on its other hosts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.test_runs import PLACES
from tests.launch import Launcher
from tests.sge.sge_cluster import NODES, SgeCluster

INTERACTIVE = ["qrsh", "-now", "y", "-cwd", "-V", "-pe", "nodes", "2"]


@pytest.fixture
def launcher(sge: SgeCluster, tmp_path: Path) -> Iterator[Launcher]:
    """The launcher's command line, called within an interactive job of Grid Engine."""
    before = [*sge.on_head, *INTERACTIVE]
    yield Launcher(tmp_path / "runs", sge.environment, ["cluster=allocation"], before, sge.hosts)
    sge.reset()


def test_a_run_uses_all_hosts_of_the_job(launcher: Launcher, sge: SgeCluster) -> None:
    result = launcher.run("workload=collective", "procs_per_node=2", "workload.entry=tests.chaos.faults:tells_places")
    assert result.code == 0, result.output
    assert result.metrics["places"] == [dict(zip(PLACES, values, strict=True)) for values in (
        (0, 0, 4, 2, 0, 2), (1, 1, 4, 2, 0, 2), (2, 0, 4, 2, 1, 2), (3, 1, 4, 2, 1, 2),
    )]  # fmt: skip


def test_a_failing_rank_ends_the_run_and_is_blamed(launcher: Launcher) -> None:
    result = launcher.fault("raises")
    assert result.code == 1, result.output
    assert result.cause.startswith(f"rank 3 on {NODES[1]}: ValueError: the loss is a banana")


def test_more_nodes_than_it_has_are_refused(launcher: Launcher) -> None:
    done = launcher.submit("workload=collective", "nodes=3")
    assert done.returncode == 2
    assert "nodes=3: the allocation that this shell is in holds 2: use nodes=2" in done.stdout + done.stderr
    assert not launcher.runs_dir.exists()
