"""A launcher whose runs go to the real Grid Engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch import Launcher
from tests.sge.sge_cluster import SgeCluster


@pytest.fixture
def launcher(sge: SgeCluster, tmp_path: Path) -> Iterator[Launcher]:
    """A launcher that submits to it from its head."""
    yield Launcher(tmp_path / "runs", sge.environment, ["cluster=sge"], sge.on_head, sge.hosts)
    sge.reset()
