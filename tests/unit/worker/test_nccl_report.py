"""NCCL's log, of several versions and networks. Each is from the public report that its first line names."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.worker import devices
from launcher.worker.devices import Fabric, network_mismatch, parse_nccl_log

LOGS = Path(__file__).parent / "nccl"
NO_PLUGIN = "libnccl-net.so: cannot open shared object file"

KNOWN = {
    "2.4.7-ib": Fabric("2.4.7", "IB", devices=("mlx5_0",), missing=("No plugin found",)),
    "2.5.6-socket": Fabric("2.5.6", "Socket", devices=("enP1p1s0f0", "enP1p1s0f1")),
    "2.10.3-efa": Fabric("2.10.3", "AWS Libfabric", "aws-ofi-nccl 1.3.0aws", "efa"),
    "2.11.4-socket": Fabric("2.11.4", "Socket", devices=("enp225s0f1",)),
    "2.19.3-roce": Fabric("2.19.3", "IB", devices=("mlx5_10", "mlx5_11"), missing=(NO_PLUGIN, "No plugin found")),
    "2.20-ibext": Fabric("", "IBext_v8", "IBext_v8", devices=("mlx5_2", "mlx5_3", "mlx5_0", "mlx5_1")),
    "2.25.1-silent": Fabric("2.25.1"),
    "cxi": Fabric("", "AWS Libfabric", "aws-ofi-nccl 1.6.0", "cxi"),
    "ofi-failed": Fabric(
        "", "Socket", devices=("eth0",),
        missing=("NET/OFI aws-ofi-nccl initialization failed", "NET/IB : No device found"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(path.stem for path in LOGS.iterdir()))
def test_the_network_of_a_log(name: str) -> None:
    assert devices.read_nccl_log(LOGS / f"{name}.txt") == KNOWN[name]


def test_the_last_network_counts() -> None:
    first = "[0] NCCL INFO Using network IB\n"
    assert parse_nccl_log(first + "[0] NCCL INFO Using network Socket\n").net == "Socket"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("2.19.3-roce", "NCCL 2.19.3 uses IB (mlx5_10, mlx5_11)"),
        ("cxi", "NCCL uses AWS Libfabric (aws-ofi-nccl 1.6.0, cxi)"),
        ("2.11.4-socket", "NCCL 2.11.4 uses sockets (enp225s0f1)"),
        ("2.25.1-silent", "NCCL 2.25.1 does not report its network"),
    ],
)
def test_words(name: str, words: str) -> None:
    assert KNOWN[name].text == words


@pytest.mark.parametrize(
    ("name", "expects", "told"),
    [
        ("cxi", {"net": ("AWS Libfabric", "Libfabric")}, ""),
        ("cxi", {"net": ("aws libfabric",), "provider": ("cxi",), "plugin": ("aws-ofi-nccl",)}, ""),
        ("2.19.3-roce", {}, ""),
        ("2.19.3-roce", {"net": ("IB",)}, ""),
        ("2.25.1-silent", {"net": ("IB",)}, ""),
        ("2.19.3-roce", {"net": ("AWS Libfabric",)}, "put its folder on LD_LIBRARY_PATH"),
        ("ofi-failed", {"net": ("Libfabric",)}, "NET/IB : No device found; see NCCL_DEBUG=INFO"),
        ("2.11.4-socket", {"net": ("IB",)}, "expects net IB (cluster.expects): set NCCL_NET"),
        ("2.10.3-efa", {"provider": ("cxi", "efa2")}, "expects provider cxi or efa2 (cluster.expects): set NCCL_NET"),
    ],
)
def test_what_a_cluster_expects(name: str, expects: dict[str, tuple[str, ...]], told: str) -> None:
    found = network_mismatch(KNOWN[name], expects)
    assert told in (found or "")
    assert bool(found) is bool(told)


@pytest.mark.parametrize(("net", "expected"), [("IBext_v8", "IB"), ("ib", "IB"), ("AWS Libfabric", "aws")])
def test_a_network_is_expected_by_the_beginning_of_its_name(net: str, expected: str) -> None:
    assert network_mismatch(Fabric(net=net), {"net": (expected,)}) is None
    assert network_mismatch(Fabric(net=f"x{net}"), {"net": (expected,)}) is not None


def test_without_a_log_nobody_can_tell(tmp_path: Path) -> None:
    assert devices.read_nccl_log(tmp_path / "none") is None
    assert network_mismatch(None, {"net": ("IB",)}) is None


@pytest.mark.parametrize(
    ("environ", "asks"),
    [
        ({}, True),
        ({"NCCL_DEBUG": "WARN"}, True),
        ({"NCCL_DEBUG": "INFO"}, False),
        ({"NCCL_DEBUG": "trace"}, False),
        ({"NCCL_DEBUG_FILE": "/tmp/mine.%p"}, False),
    ],
)
def test_a_log_that_the_user_reads_is_left_to_him(environ: dict[str, str], asks: bool) -> None:
    told = devices.nccl_log_variables(environ, Path("/run/rank-0.txt"))
    assert told.get("NCCL_DEBUG_FILE") == ("/run/rank-0.txt" if asks else None)
