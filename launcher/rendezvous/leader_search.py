"""Finds the leader of an attempt among whatever listens on its candidate ports."""

from __future__ import annotations

import errno
import os
import selectors
import socket
import time
from collections.abc import Sequence

from launcher.rendezvous.channel import Channel, ChannelError, NotAuthenticated

STAGGER = 0.2  # seconds between two connection attempts while no answer has come
EXCHANGE = 5.0  # seconds to connect, and then for the handshake
NO_ANSWER = (
    "it did not answer in time; it listens on the address that its own host name stands for there "
    "(`getent hosts NAME`); see cluster.interface and cluster.port_range"
)


def find_leader(
    host: str, ports: Sequence[int], secret: bytes, deadline: float, *, wake: int | None = None
) -> Channel | str:
    """Returns an authenticated connection to the attempt's leader, or why it was not found this time.

    The reason is empty if the deadline passed before any port answered. The ports are tried STAGGER seconds apart and
    then in parallel, since another service may listen on one of them and send nothing.

    ports: candidate ports of the leader, in the order to try.
    deadline: monotonic time at which to give up.
    wake: a file descriptor that ends the search when it becomes readable (on signals).
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        return f"its name cannot be resolved ({error.strerror or error}); see cluster.host_suffix"
    addresses = list(dict.fromkeys((int(family), str(address[0])) for family, _, _, _, address in found))
    ways = [(family, (address, port)) for port in ports for family, address in addresses]
    search = _Search(secret, wake)
    try:
        return search.run(ways, deadline)
    finally:
        search.close()


class _Search:
    """Parallel connection attempts, each started STAGGER seconds after the one before."""

    def __init__(self, secret: bytes, wake: int | None) -> None:
        self._secret, self._wake = secret, wake
        self._selector = selectors.DefaultSelector()
        self._connecting: dict[socket.socket, tuple[int, float]] = {}  # port and deadline
        self._talking: dict[Channel, tuple[int, float]] = {}
        self._problems: dict[str, str] = {}
        if wake is not None:
            self._selector.register(wake, selectors.EVENT_READ)

    def run(self, ways: list[tuple[int, tuple[str, int]]], deadline: float) -> Channel | str:
        ways, next_start = ways[::-1], 0.0
        while ways or self._connecting or self._talking:
            now = time.monotonic()
            if now >= deadline:
                break
            if ways and (now >= next_start or not (self._connecting or self._talking)):
                self._start(*ways.pop())
                next_start = now + STAGGER
            waits = max(0.0, min(deadline, next_start if ways else deadline, self._first_given_up()) - now)
            for key, _ in self._selector.select(waits):
                if isinstance(key.fileobj, int):  # a signal
                    return "it was interrupted"
                if isinstance(key.fileobj, Channel):
                    if self._talk(key.fileobj):
                        return key.fileobj
                elif isinstance(key.fileobj, socket.socket):
                    self._connected(key.fileobj)
            self._give_up(time.monotonic())
        for kind in ("taken", "error", "refused"):
            if kind in self._problems:
                return self._problems[kind]
        return ""

    def close(self) -> None:
        for connection in self._connecting:
            connection.close()
        for channel in self._talking:
            channel.close()
        self._selector.close()

    def _first_given_up(self) -> float:
        return min((when for _, when in (*self._connecting.values(), *self._talking.values())), default=float("inf"))

    def _start(self, family: int, address: tuple[str, int]) -> None:
        try:
            connection = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            self._failed(error)
            return
        connection.setblocking(False)
        problem = connection.connect_ex(address)
        if problem not in (0, errno.EINPROGRESS):
            connection.close()
            self._failed(OSError(problem, os.strerror(problem)))
            return
        self._connecting[connection] = address[1], time.monotonic() + EXCHANGE
        self._selector.register(connection, selectors.EVENT_WRITE)

    def _connected(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        port, _ = self._connecting.pop(connection)
        if problem := connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            connection.close()
            self._failed(OSError(problem, os.strerror(problem)))
            return
        try:
            channel = Channel(connection, self._secret, server=False)
        except OSError as error:
            connection.close()
            self._failed(error)
            return
        self._talking[channel] = port, time.monotonic() + EXCHANGE
        self._selector.register(channel, selectors.EVENT_READ)

    def _talk(self, channel: Channel) -> bool:
        try:
            channel.receive()  # the leader sends no messages before `hello`
        except ChannelError as error:
            self._forget(channel)
            if isinstance(error, NotAuthenticated):
                return False
            self._failed(error)
            return False
        if channel.open:
            self._selector.unregister(channel)
            del self._talking[channel]
        return channel.open

    def _forget(self, channel: Channel) -> None:
        self._selector.unregister(channel)
        port, _ = self._talking.pop(channel)
        self._problems["taken"] = f"port {port} belongs to something else"
        channel.close()

    def _give_up(self, now: float) -> None:
        for channel in [each for each, (_, when) in self._talking.items() if now > when]:
            self._forget(channel)
        for connection in [each for each, (_, when) in self._connecting.items() if now > when]:
            self._selector.unregister(connection)
            del self._connecting[connection]
            connection.close()
            self._failed(TimeoutError(errno.ETIMEDOUT, "timed out"))

    def _failed(self, error: OSError) -> None:
        if isinstance(error, ConnectionRefusedError) or error.errno == errno.ECONNREFUSED:
            self._problems["refused"] = "nothing of this attempt listens there: its agent has not started, or has ended"
        else:
            text = f"{type(error).__name__}: {error}"
            self._problems["error"] = f"{text}; see cluster.interface and cluster.port_range"


class ConnectBackoff:
    """Backoff between an agent's attempts to connect to its leader."""

    def __init__(self, members: int) -> None:
        self._pause, self._members, self._soon = 0.01, members, time.monotonic() + 3.0

    def pause(self) -> float:
        """Returns the seconds until the next attempt: doubled each time from 0.01 s, up to a limit.

        For the first 3 s the limit is 0.03 s, or 0.001 s per agent if that is more (at most 1 s), since the leader of
        a new round appears soon. Afterwards the limit is 1 s.
        """
        longest = min(1.0, max(0.03, 0.001 * self._members)) if time.monotonic() < self._soon else 1.0
        pause, self._pause = min(self._pause, longest), min(2 * self._pause, longest)
        return pause
