"""A preflight that finds NCCL on another network than the cluster's profile expects."""

from __future__ import annotations

from pathlib import Path

from launcher.failures.codes import PreflightReason, PreflightThen
from launcher.preflight import bad_nodes, checks
from launcher.preflight.bad_nodes import Node
from launcher.preflight.checks import Check, Level, check

LOGS = Path(__file__).parents[1] / "worker" / "nccl"
EXPECTS = {"net": ("AWS Libfabric",)}


def fabric(name: str) -> Check:
    return check("fabric", lambda: checks.fabric(LOGS / f"{name}.txt", EXPECTS))


def test_the_right_network_is_told() -> None:
    found = fabric("cxi")
    assert (found.level, found.words) == (Level.FINE, "NCCL uses AWS Libfabric (aws-ofi-nccl 1.6.0, cxi)")


def test_sockets_on_all_nodes_are_a_matter_of_settings() -> None:
    found = fabric("2.19.3-roce")
    assert (found.level, found.symptom) == (Level.FAILED, False)
    nodes = [Node(f"node{index}", f"node{index}", (index,), (index,)) for index in range(2)]
    verdict = bad_nodes.decide(nodes, {0: [found], 1: [found]}, least=2, scheduler="slurm", silent="silent")
    assert (verdict.then, verdict.exit_code) == (PreflightThen.FAIL, 93)
    assert verdict.failure is not None
    assert verdict.failure.reason is PreflightReason.ALL_NODES
    assert "put its folder on LD_LIBRARY_PATH in cluster.setup" in verdict.failure.findings[0].words
