"""A preflight on real nodes: the bad one of four is left out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bad_node import without_tmpdir
from tests.launch import Launcher

pytestmark = pytest.mark.backend("slurm", "preflight on {slurm}, 4 real nodes")


@pytest.fixture
def launcher(slurm: Any, tmp_path: Path) -> Iterator[Launcher]:
    yield Launcher(tmp_path / "runs", {"SLURM_CONF": slurm.env()["SLURM_CONF"]}, ["cluster=slurm"])
    slurm.reset()


@pytest.mark.ci
def test_the_bad_node_of_four_is_named_and_left_out(launcher: Launcher, tmp_path: Path) -> None:
    bad = without_tmpdir(tmp_path / "site", "SLURMD_NODENAME", "node3")
    result = launcher.run(
        "workload=collective", "workload.entry=tests.chaos.faults:fine", "nodes=4", "min_nodes=3", "preflight=true", bad
    )
    assert result.code == 0, result.output
    assert result.metrics["world_size"] == 3
    assert "preflight: node3 (node 2) is left out: TMPDIR=/nowhere/at/all is not there" in result.output
    events = result.run.attempts()[-1].events()
    told = {event["host"]: event["fine"] for event in events if event["event"] == "preflight" and event["round"] == 0}
    assert told == {"node1": True, "node2": True, "node3": False, "node4": True}
    seconds = [event["seconds"] for event in events if event["event"] == "preflighted"]
    assert len(seconds) == 2  # with node3, and without
