"""`preflight=true` from the command line to `status`, on simulated nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bad_node import without_tmpdir
from tests.launch import Launcher
from tests.markers import slow

local = pytest.mark.parametrize("launcher", ["local"], indirect=True)  # what nodes find is nothing of a backend's
FINE = ("workload=collective", "workload.entry=tests.chaos.faults:fine", "preflight=true")


@local
def test_a_bad_node_is_named_and_fails_the_run_that_needs_it(launcher: Launcher, tmp_path: Path) -> None:
    bad = without_tmpdir(tmp_path / "site", "LAUNCHER_NODE", "1")
    result = launcher.run(*FINE, "nodes=2", bad)
    assert result.code == 1, result.output
    cause = result.cause
    assert cause.startswith("preflight: ") and "(node 1): TMPDIR=/nowhere/at/all is not there" in cause
    assert f"{result.run.id} failed: {cause}" in result.output
    assert not list(result.run.attempts()[-1].logs.glob("rank-*")), "ranks were started all the same"


@pytest.mark.ci
@local
def test_the_run_goes_on_without_the_node_that_has_the_store(launcher: Launcher, tmp_path: Path) -> None:
    """And without both of its agents."""
    bad = without_tmpdir(tmp_path / "site", "LAUNCHER_NODE", "0")
    result = launcher.run(*FINE, "nodes=3", "procs_per_node=2", "min_nodes=2", "launch=tasks", bad)
    assert result.code == 0, result.output
    assert result.metrics["world_size"] == 4
    told = launcher("status", "latest").stdout
    assert "(node 0) is left out: TMPDIR=/nowhere/at/all is not there" in told, told
    assert "preflight: 2 nodes fine in " in told, told


@pytest.mark.ci
@local
@pytest.mark.parametrize("node", [0, slow(1)])  # the leader's, and another
def test_a_spare_node_replaces_a_bad_one_and_is_checked(launcher: Launcher, tmp_path: Path, node: int) -> None:
    bad = without_tmpdir(tmp_path / "site", "LAUNCHER_NODE", str(node))
    result = launcher.run(*FINE, "nodes=2", "spares=1", bad)
    assert result.code == 0, result.output
    assert result.metrics["world_size"] == 2
    events = result.run.attempts()[-1].events()
    checked = [(event["round"], event["node"]) for event in events if event["event"] == "preflight"]
    assert sorted(checked) == [(0, 0), (0, 1), (1, 1 - node), (1, 2)]
