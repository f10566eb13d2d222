"""The limits of the hardware: the speed of a TCP stream and of a copy in memory, and how much memory is left."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import struct
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import torch

from launcher.binding import hardware
from launcher.formatting import plural
from launcher.rendezvous import rounds
from launcher.worker import devices
from workloads.across_ranks import gather
from workloads.benchmark_keys import pair_of

if TYPE_CHECKING:
    from launcher import Env


def available_memory(env: Env) -> int | None:
    """Returns the bytes that this rank can allocate: on its GPU, or its share of the node's memory; None: unknown."""
    if env.device.type != "cpu":
        found = devices.memory(env.device)
        return None if found is None else found[0]
    whole = hardware.free_memory()
    return None if whole is None else whole // env.local_world_size


# -- Measures the upper limit ("roof") of a benchmark on this hardware: a TCP stream, and a copy in memory
#
# Neither uses the communication library. If a benchmark's busbw is far below the speed of the TCP stream, the library
# or its settings limit it. If it is close, the network limits it, and no setting helps.


T = TypeVar("T")

STREAM_SECONDS = 0.4  # seconds of sending
BURST_SECONDS = 0.02  # seconds of one burst; the fastest burst counts
MOST_BYTES = 2**28  # largest size of a burst
STEP_TIMEOUT = 1.0  # timeout of each socket operation, in seconds; a firewall is the usual cause of a timeout
COPY_SECONDS = 0.2  # seconds of copying
COPY_BYTES, COPY_BYTES_ON_GPU = 64 * 2**20, 512 * 2**20  # size of one copy: more than a cache can hold
_CHUNK = 2**20
_LENGTH = struct.Struct("!Q")


@dataclass(frozen=True)
class Roof:
    """The hardware's speed without a communication library."""

    # bytes/s of one TCP stream, one way, between two nodes, or between two ranks of a single node; None: not measured
    socket: float | None
    # bytes/s of a copy within the memory of a rank's device, on the slowest rank; None: not measured. Each byte counts
    # once, although it is read and written
    memory: float | None
    how: str  # text about how each speed was measured, or why it was not

    def lines(self) -> list[str]:
        speeds = (("socket", self.socket), ("memory", self.memory))
        shown = ", ".join(f"{name} " + (f"{speed / 1e9:.2f} GB/s" if speed else "unknown") for name, speed in speeds)
        return [f"roof: {shown}", *textwrap.wrap(self.how, 74, initial_indent="  ", subsequent_indent="  ")]


def measure(env: Env) -> Roof:
    """Measures the roof in less than a second, for all ranks, which must call it.

    All ranks copy at the same time, since they also share a node's memory when they communicate. The TCP stream is sent
    from CPU memory, even if the ranks use GPUs, and nothing else runs at that time.
    """
    gather(None, env)
    memory, memory_how = _copy_roof(env)
    socket_speed, socket_how = _socket_roof(env)
    return Roof(socket_speed, memory, f"{socket_how}; {memory_how}")


def _copy_roof(env: Env) -> tuple[float | None, str]:
    on_gpu = env.device.type != "cpu"
    size = COPY_BYTES_ON_GPU if on_gpu else COPY_BYTES
    free, mine = available_memory(env), None
    if free is None or 2 * size <= free:  # on a CPU the kernel would kill the rank, in place of an error
        with contextlib.suppress(RuntimeError):  # out of memory, in torch's words on either device
            mine = copy_speed(env.device, size)
    speeds = gather(mine, env)
    known = [speed for speed in speeds if speed is not None]
    what = f"copy of {size // 2**20} MiB " + ("on the GPU" if on_gpu else "in memory")
    if len(known) < len(speeds):
        return None, f"memory: not enough of it for a {what} on {plural(len(speeds) - len(known), 'rank')}"
    return min(known), f"memory: {what}" + (", all ranks at once, the slowest" if len(speeds) > 1 else "")


def copy_speed(device: torch.device, size: int) -> float:
    """Returns the bytes/s of the fastest copy within a device's memory; raises RuntimeError: there is not enough."""
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)  # written once before, so that no copy pays for new pages
    best, until = 0.0, time.perf_counter() + COPY_SECONDS
    while not best or time.perf_counter() < until:
        devices.synchronize(device)
        started = time.perf_counter()
        target.copy_(source)
        devices.synchronize(device)
        best = max(best, size / (time.perf_counter() - started))
    return best


def _socket_roof(env: Env) -> tuple[float | None, str]:
    # All ranks must call it: every rank takes part in every gather, even after an error
    if env.world_size < 2:
        return None, "socket: one rank, so there is no link"
    sender, receiver = pair_of(None, env.node_ranks)
    hosts = gather(env.host, env)
    way = f"from {hosts[sender]} to {hosts[receiver]}"
    if hosts[sender] == hosts[receiver]:
        way = f"from rank {sender} to rank {receiver} on {hosts[sender]}"

    interface = os.environ.get("GLOO_SOCKET_IFNAME")
    opened, problem = _attempt(lambda: rounds.listen_on(interface)) if env.rank == receiver else (None, "")
    server = opened[0] if opened else None
    offer = (opened[1], secrets.token_bytes(16)) if opened else None
    offered, problem, interface = gather((offer, problem, interface), env)[receiver]
    over = f" over {interface}" if interface else ""
    if offered is None:
        return None, f"socket: {hosts[receiver]} cannot listen{over} ({problem})"

    address, token = offered
    speed, problem = None, ""
    if env.rank == sender:
        speed, problem = _attempt(lambda: stream(address, token))
    elif server is not None:
        with server:
            _, problem = _attempt(lambda: drain(server, token))
    results = gather((speed, problem), env)
    speed = results[sender][0]
    if speed is None:
        problem = results[sender][1] or results[receiver][1]
        return None, f"socket: no TCP stream {way}{over}, port {address[1]} ({problem})"
    return speed, f"socket: one TCP stream {way}{over}"


def _attempt(step: Callable[[], T]) -> tuple[T | None, str]:
    # Returns the step's result and ""; or None and the text of its OSError, so that this rank still joins the next
    # gather.
    try:
        return step(), ""
    except OSError as error:
        return None, str(error) or type(error).__name__


def stream(address: tuple[str, int], token: bytes) -> float:
    """Sends data over TCP for STREAM_SECONDS; returns the bytes/s of the fastest burst.

    It first sends the token. A burst starts with its length (8 bytes), and `drain` acknowledges it with one byte.
    Bursts become larger until one takes BURST_SECONDS. Raises OSError: it fails, or stalls for STEP_TIMEOUT.
    """
    data, size, best = memoryview(bytes(_CHUNK)), _CHUNK, 0.0
    with socket.create_connection(address, timeout=STEP_TIMEOUT) as connection:
        connection.sendall(token)
        until = time.perf_counter() + STREAM_SECONDS
        while (began := time.perf_counter()) < until:
            connection.sendall(_LENGTH.pack(size))
            for _ in range(size // _CHUNK):
                connection.sendall(data)
            if not connection.recv(1):
                raise ConnectionError("the other end closed the connection")
            took = time.perf_counter() - began
            best = max(best, size / took)
            if took < BURST_SECONDS and size < MOST_BYTES:
                size *= 2
    return best


def drain(server: socket.socket, token: bytes) -> None:
    """Receives and drops what `stream` sends, until it ends; closes connections without the token.

    Raises OSError: none with it came within 2 STEP_TIMEOUT seconds, or a burst stalled for STEP_TIMEOUT.
    """
    deadline = time.perf_counter() + 2 * STEP_TIMEOUT
    while (left := deadline - time.perf_counter()) > 0:
        server.settimeout(left)
        connection, _ = server.accept()
        with connection:
            connection.settimeout(STEP_TIMEOUT)
            if secrets.compare_digest(_receive(connection, len(token)), token):
                return _bursts(connection)
    raise TimeoutError("timed out")


def _receive(connection: socket.socket, size: int) -> bytes:
    received = b""
    with contextlib.suppress(OSError):
        while len(received) < size and (more := connection.recv(size - len(received))):
            received += more
    return received


def _bursts(connection: socket.socket) -> None:
    buffer = memoryview(bytearray(_CHUNK))
    while len(head := _receive(connection, _LENGTH.size)) == _LENGTH.size:
        (left,) = _LENGTH.unpack(head)
        while left:
            arrived = connection.recv_into(buffer[: min(left, _CHUNK)])
            if not arrived:
                return
            left -= arrived
        connection.sendall(b"k")
