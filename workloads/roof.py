"""The upper limit for a benchmark on this hardware: the speed of a plain TCP stream, and of a copy in memory.

Neither uses the communication library. If a bus bandwidth is far below the socket's, the library or its settings limit
it; if it is close to it, the network does, and no setting will help.
"""

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

from launcher.formatting import plural
from launcher.rendezvous import interfaces
from launcher.worker import accelerator
from workloads.ranks import gather

if TYPE_CHECKING:
    from launcher import Env

T = TypeVar("T")

STREAM_SECONDS = 0.4  # for which the stream is filled
BURST_SECONDS = 0.02  # of one burst; the best burst counts
MOST_BYTES = 2**28  # of one burst
STEP_TIMEOUT = 1.0  # seconds for each step of the stream; a firewall is the usual cause of a timeout
COPY_SECONDS = 0.2  # for which copies are repeated
COPY_BYTES, COPY_BYTES_ON_GPU = 64 * 2**20, 512 * 2**20  # more than a cache can hold
_CHUNK = 2**20
_LENGTH = struct.Struct("!Q")


@dataclass(frozen=True)
class Roof:
    """The hardware's speed without a communication library; None: not measured, and `how` says why.

    Attributes:
        socket: bytes/s of one TCP stream, one way, between two nodes (two ranks if there is one node).
        memory: bytes/s of a copy within the memory of a rank's device, on the slowest rank. Each byte counts once,
            although it is read and written.
        how: both measurements in words.
    """

    socket: float | None
    memory: float | None
    how: str

    def lines(self) -> list[str]:
        """For a terminal: the two speeds in 10^9 bytes/s, and how they were measured."""
        speeds = (("socket", self.socket), ("memory", self.memory))
        shown = ", ".join(f"{name} " + (f"{speed / 1e9:.2f} GB/s" if speed else "unknown") for name, speed in speeds)
        return [f"roof: {shown}", *textwrap.wrap(self.how, 74, initial_indent="  ", subsequent_indent="  ")]


def measure(env: Env) -> Roof:
    """Measures the roof, in less than a second. All ranks must call it, and all get the same.

    The copy is made on all ranks at the same time, since they share a node's memory when they communicate, too.
    The stream is TCP on GPUs as well, and nothing else runs meanwhile.
    """
    gather(None, env)
    memory, memory_how = _copy_roof(env)
    socket_speed, socket_how = _socket_roof(env)
    return Roof(socket_speed, memory, f"{socket_how}; {memory_how}")


def ends(env: Env) -> tuple[int, int] | None:
    """The two ranks that the stream connects: the first ones of the first and the last node, or ranks 0 and 1 of one
    node; None if there is one rank only."""
    if env.world_size < 2:
        return None
    other = env.node_ranks.index(env.node_of(env.world_size - 1))
    return 0, other or 1


# Memory


def _copy_roof(env: Env) -> tuple[float | None, str]:
    on_gpu = env.device.type != "cpu"
    size = COPY_BYTES_ON_GPU if on_gpu else COPY_BYTES
    try:
        mine = copy_speed(env.device, size)
    except RuntimeError:  # out of memory, in torch's words on either device
        mine = None
    speeds = gather(mine, env)
    known = [speed for speed in speeds if speed is not None]
    what = f"copy of {size // 2**20} MiB " + ("on the GPU" if on_gpu else "in memory")
    if len(known) < len(speeds):
        return None, f"memory: not enough of it for a {what} on {plural(len(speeds) - len(known), 'rank')}"
    return min(known), f"memory: {what}" + (", all ranks at once, the slowest" if len(speeds) > 1 else "")


def copy_speed(device: torch.device, size: int) -> float:
    """Bytes/s of the best of some copies of `size` bytes within a device's memory.

    Raises:
        RuntimeError: there is not enough memory.
    """
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)  # written once before, so that no copy pays for new pages
    best, until = 0.0, time.perf_counter() + COPY_SECONDS
    while not best or time.perf_counter() < until:
        accelerator.synchronize(device)
        started = time.perf_counter()
        target.copy_(source)
        accelerator.synchronize(device)
        best = max(best, size / (time.perf_counter() - started))
    return best


# The stream


def _socket_roof(env: Env) -> tuple[float | None, str]:
    """Measures the stream. Every rank takes part in every gather, even after an error."""
    pair = ends(env)
    if pair is None:
        return None, "socket: one rank, so there is no link"
    sender, receiver = pair
    hosts = gather(env.host, env)
    way = f"from {hosts[sender]} to {hosts[receiver]}"
    if hosts[sender] == hosts[receiver]:
        way = f"from rank {sender} to rank {receiver} on {hosts[sender]}"

    interface = os.environ.get("GLOO_SOCKET_IFNAME")
    opened, problem = _attempt(lambda: interfaces.listen(interface)) if env.rank == receiver else (None, "")
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
    """The step's result, or its error: an error on one rank must not keep it from the next gather."""
    try:
        return step(), ""
    except OSError as error:
        return None, str(error) or type(error).__name__


def stream(address: tuple[str, int], token: bytes) -> float:
    """Connects, sends the token, and sends for STREAM_SECONDS in bursts that are acknowledged one by one; returns the
    bytes/s of the best. A burst begins with its length (8 bytes) and grows until it takes BURST_SECONDS.

    Raises:
        OSError: it cannot connect, or the other end accepted nothing for STEP_TIMEOUT seconds.
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
    """The receiving end of `stream`. Connections without the token are dropped.

    Raises:
        OSError: nobody with the token connected, or sent anything, within STEP_TIMEOUT seconds.
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
    """Receives `size` bytes; fewer if the connection ends."""
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
