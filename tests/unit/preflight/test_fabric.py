"""A preflight that finds NCCL on another network than the cluster's profile expects."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.agent import preflight as attempt
from launcher.agent import preflight_checks as checks
from launcher.agent.preflight import CheckedNode
from launcher.agent.preflight_checks import CheckLevel, NodeCheck, check
from launcher.failures.codes import PreflightThen
from launcher.worker import devices

LOGS = Path(__file__).parents[1] / "worker" / "nccl"
EXPECTS = {"net": ("AWS Libfabric",)}


def fabric(name: str) -> NodeCheck:
    return check("fabric", lambda: checks.fabric(LOGS / f"{name}.txt", EXPECTS))


def test_the_right_network_is_told() -> None:
    found = fabric("cxi")
    assert (found.level, found.found) == (
        CheckLevel.FINE,
        "NCCL uses AWS Libfabric (aws-ofi-nccl 1.6.0, cxi)",
    )


@pytest.mark.parametrize(
    ("name", "accepted", "text"),
    [
        (
            "2.19.3-roce",
            ("AWS Libfabric",),
            "NCCL 2.19.3 uses IB (mlx5_10, mlx5_11), and this cluster expects net AWS Libfabric (cluster.expects): "
            "it found no plug-in (libnccl-net.so); put its folder on LD_LIBRARY_PATH in cluster.setup",
        ),
        ("ofi-failed", ("Libfabric",), "NET/OFI aws-ofi-nccl initialization failed; NET/IB : No device found; see"),
        ("2.11.4-socket", ("IB", "OFI"), "net IB or OFI (cluster.expects): set NCCL_NET in cluster.environment"),
    ],
)
def test_another_network_than_expected_is_told_with_the_way_to_change_it(
    name: str, accepted: tuple[str, ...], text: str
) -> None:
    found = devices.network_mismatch(devices.read_nccl_log(LOGS / f"{name}.txt"), {"net": accepted})
    assert found is not None
    assert text in found


def test_sockets_on_all_nodes_are_a_matter_of_settings() -> None:
    found = fabric("2.19.3-roce")
    assert (found.level, found.symptom) == (CheckLevel.FAILED, False)
    nodes = [CheckedNode(f"node{index}", f"node{index}", (index,), (index,)) for index in range(2)]
    verdict = attempt.decide(nodes, {0: [found], 1: [found]}, least=2, scheduler="slurm", settings={}, timeout=40)
    assert (verdict.then, verdict.exit_code) == (PreflightThen.FAIL, 93)
    assert verdict.failure.startswith("preflight: all 2 nodes fail: ")
    assert "put its folder on LD_LIBRARY_PATH in cluster.setup" in verdict.failure
