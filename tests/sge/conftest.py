"""The fixture `launcher`: the launcher with a real Grid Engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch import Launcher
from tests.sge.sge_cluster import SgeCluster


@pytest.fixture
def launcher(sge: SgeCluster, tmp_path: Path) -> Iterator[Launcher]:
    """The launcher's command line with the real Grid Engine, run on its head node; the cluster is idle afterwards."""
    yield Launcher(tmp_path / "runs", sge.environment, ["cluster=sge"], sge.on_head, sge.hosts)
    sge.reset()
