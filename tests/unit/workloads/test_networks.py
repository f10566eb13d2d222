"""What `collective` says of the network that NCCL has chosen."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.worker.devices import Fabric
from workloads.collective import networks, own_network

IB, SOCKET = Fabric("2.19.3", "IB", devices=("mlx5_0",)), Fabric("2.19.3", "Socket", devices=("eth0",))


@pytest.mark.parametrize(
    ("fabrics", "lines"),
    [
        ([IB] * 4, ["NCCL 2.19.3 uses IB (mlx5_0) on all ranks"]),
        ([IB, SOCKET, IB], ["NCCL 2.19.3 uses IB (mlx5_0) on ranks 0,2", "NCCL 2.19.3 uses sockets (eth0) on rank 1"]),
        ([None, IB], ["NCCL 2.19.3 uses IB (mlx5_0) on rank 1"]),
        ([None, None], []),
    ],
)
def test_ranks_that_use_the_same_are_one_line(fabrics: list[Fabric | None], lines: list[str]) -> None:
    assert networks(fabrics) == lines


def test_a_log_of_the_users_own_is_not_looked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, net in (("nccl-0.txt", "IB"), ("mine.txt", "")):
        (tmp_path / name).write_text("[0] NCCL INFO Using network IB\n")
        monkeypatch.setenv("NCCL_DEBUG_FILE", str(tmp_path / name))
        assert getattr(own_network(0), "net", "") == net
