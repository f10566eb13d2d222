"""A few kills of a sweep's submitter; `python -m tests.chaos.sweep_submitter` is for many."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos import sweep_submitter
from tests.chaos.sweep_submitter import Siege
from tests.cluster.slurm_cluster import SlurmCluster
from tests.pbs.pbs_cluster import PbsCluster


def besieged(siege: Siege, kills: int, capsys: pytest.CaptureFixture[str]) -> None:
    code = sweep_submitter.report(siege, kills)
    assert code == 0, capsys.readouterr().out


@pytest.mark.ci
def test_no_point_is_lost_or_doubled_on_slurm(
    tmp_path: Path, slurm: SlurmCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    besieged(sweep_submitter.on_slurm(tmp_path / "runs", slurm, seed=1), 3, capsys)
    slurm.reset()


@pytest.mark.ci
def test_no_point_is_lost_or_doubled_on_pbs(
    tmp_path: Path, pbs_stand_in: PbsCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    besieged(sweep_submitter.on_pbs(tmp_path / "runs", pbs_stand_in, seed=2), 2, capsys)
    pbs_stand_in.reset()


@pytest.mark.slow
@pytest.mark.backend("local", "this machine")
def test_no_point_is_lost_or_doubled_on_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    besieged(sweep_submitter.on_this_machine(tmp_path / "runs", seed=3), 2, capsys)
