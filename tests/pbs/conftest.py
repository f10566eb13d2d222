"""Fixtures that make this process a client of a PBS: the real one of this machine, or the stand-in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.schedulers.executor import JobWatcher
from launcher.schedulers.pbs.client import PBS
from launcher.schedulers.pbs.executor import PBSJob
from tests.launch import ROOT, Launcher
from tests.pbs.pbs_cluster import PbsCluster
from tests.pbs.real import RealPbs


@pytest.fixture
def site(pbs: PbsCluster | RealPbs, monkeypatch: pytest.MonkeyPatch) -> Iterator[PbsCluster | RealPbs]:
    """The real PBS of this machine if it has one, else the stand-in; this process is its client during the test."""
    _use(pbs, monkeypatch)
    yield pbs
    pbs.reset()


@pytest.fixture
def stand_in(pbs_stand_in: PbsCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[PbsCluster]:
    """The stand-in for PBS, for tests that need what only it can do; this process is its client during the test."""
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
    """Makes this process a client of a PBS."""
    monkeypatch.setattr(PBSJob, "watcher", JobWatcher(PBS()))  # the default one has cached jobs of other servers
    monkeypatch.chdir(ROOT)  # jobs import the tests from their working directory
    for name, value in pbs.environment.items():
        monkeypatch.setenv(name, value)
