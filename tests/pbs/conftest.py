"""This process as a client of the PBS that a test asks for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.schedulers.functions.executor import JobWatcher
from launcher.schedulers.pbs.commands import PBS
from launcher.schedulers.pbs.submitit_executor import PBSJob
from tests.launch import ROOT, Launcher
from tests.pbs.pbs_cluster import PbsCluster
from tests.pbs.real import RealPbs


@pytest.fixture
def site(pbs: PbsCluster | RealPbs, monkeypatch: pytest.MonkeyPatch) -> Iterator[PbsCluster | RealPbs]:
    """The real PBS of this machine, else the stand-in."""
    _use(pbs, monkeypatch)
    yield pbs
    pbs.reset()


@pytest.fixture
def stand_in(pbs_stand_in: PbsCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[PbsCluster]:
    """The stand-in, for what a test cannot do to a real one."""
    _use(pbs_stand_in, monkeypatch)
    yield pbs_stand_in
    pbs_stand_in.reset()


@pytest.fixture
def launcher(site: PbsCluster | RealPbs, tmp_path: Path) -> Launcher:
    return Launcher(tmp_path / "runs", site.environment, ["cluster=pbs"], hosts=site.hosts)


@pytest.fixture
def stand_in_launcher(stand_in: PbsCluster, tmp_path: Path) -> Launcher:
    return Launcher(tmp_path / "runs", stand_in.environment, ["cluster=pbs"], hosts=stand_in.hosts)


def _use(pbs: PbsCluster | RealPbs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PBSJob, "watcher", JobWatcher(PBS()))  # the usual one knows the jobs of other servers
    monkeypatch.chdir(ROOT)  # jobs import the tests from there
    for name, value in pbs.environment.items():
        monkeypatch.setenv(name, value)
