"""The roof: what a socket and memory give is measured, and nothing that is in the way makes a rank hang or raise."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest

from launcher import Env
from launcher.rendezvous import rounds
from tests.processes.workload_ranks import run_ranks
from workloads import hardware_limits


def measured(config: None, env: Env) -> dict[str, Any]:
    return vars(hardware_limits.measure(env))


@pytest.mark.parametrize(("world_size", "nnodes", "way"), [(2, 1, "from rank 0 to rank 1 on node0"),
                                                          (4, 2, "from node0 to node1")])  # fmt: skip
def test_all_ranks_get_the_same_roof(world_size: int, nnodes: int, way: str) -> None:
    first, *others = [result.metrics for result in run_ranks(measured, None, world_size, nnodes)]
    assert all(other == first for other in others)
    assert first["socket"] > 1e6 and first["memory"] > 1e6
    assert f"one TCP stream {way} over lo" in first["how"]


def test_one_rank_has_memory_and_no_link() -> None:
    (only,) = run_ranks(measured, None, 1)
    assert only.metrics["socket"] is None and only.metrics["memory"] > 1e6
    assert "one rank" in only.metrics["how"]


def drop_what_rank_0_sends(env: Env) -> None:
    """As a firewall does: the queue of a socket that nobody accepts from is full, so that the kernel is silent."""
    patch.object(hardware_limits, "STEP_TIMEOUT", 0.3).start()
    if env.rank == 0:
        silent = socket.create_server(("127.0.0.1", 0), backlog=0)
        waiting = [socket.socket() for _ in range(4)]
        for client in waiting:
            client.setblocking(False)
            client.connect_ex(silent.getsockname())
        real = hardware_limits.stream
        kept = (silent, waiting)  # open for as long as the rank lives

        def stream(address: tuple[str, int], token: bytes) -> float:
            return real(kept[0].getsockname(), token)

        patch.object(hardware_limits, "stream", stream).start()


def test_a_blocked_port_is_told_and_hangs_nobody() -> None:
    for result in run_ranks(measured, None, 2, nnodes=2, prepare=drop_what_rank_0_sends, timeout=30):
        assert result.metrics["socket"] is None
        assert "no TCP stream from node0 to node1 over lo, port " in result.metrics["how"]
        assert "timed out" in result.metrics["how"]
        assert result.metrics["memory"] > 1e6


def on_an_interface_that_is_not_there(env: Env) -> None:
    patch.dict("os.environ", GLOO_SOCKET_IFNAME="nosuch0").start()


def test_an_interface_that_is_not_there_is_told() -> None:
    for result in run_ranks(measured, None, 2, prepare=on_an_interface_that_is_not_there):
        assert result.metrics["socket"] is None
        assert "node0 cannot listen over nosuch0" in result.metrics["how"]


def without_memory_on_rank_1(env: Env) -> None:
    if env.rank == 1:
        patch.object(hardware_limits, "copy_speed", side_effect=RuntimeError("not enough memory")).start()


def with_little_memory_on_rank_1(env: Env) -> None:
    if env.rank == 1:  # the kernel would kill the rank
        patch.object(hardware_limits, "available_memory", return_value=2**27 - 1).start()
        patch.object(hardware_limits, "copy_speed", side_effect=AssertionError("it copies")).start()


@pytest.mark.parametrize("prepare", [without_memory_on_rank_1, with_little_memory_on_rank_1])
def test_a_rank_without_memory_leaves_it_unknown(prepare: Callable[[Env], None]) -> None:
    for result in run_ranks(measured, None, 2, prepare=prepare):
        assert result.metrics["memory"] is None
        assert "not enough of it for a copy of 64 MiB in memory on 1 rank" in result.metrics["how"]


def test_a_stranger_on_the_port_is_passed_over() -> None:
    token = b"t" * 16
    server, _ = rounds.listen_on("lo")
    with server:
        address = server.getsockname()[:2]
        with socket.create_connection(address) as stranger:
            stranger.sendall(b"GET / HTTP/1.0\r\n\r\n")
            receiver = threading.Thread(target=hardware_limits.drain, args=(server, token))
            receiver.start()
            speed = hardware_limits.stream(address, token)
            receiver.join()
    assert speed > 1e6


def test_the_speeds_are_told_in_a_terminals_width() -> None:
    lines = hardware_limits.Roof(2.5e9, None, "socket: " + "word " * 30).lines()
    assert lines[0] == "roof: socket 2.50 GB/s, memory unknown"
    assert len(lines) > 2 and all(len(line) <= 76 for line in lines)
