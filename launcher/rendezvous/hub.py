"""The leader's connections: every other agent is connected to the leader, and to no other agent."""

from __future__ import annotations

import contextlib
import errno
import resource
import selectors
import socket
import time
from collections.abc import Collection, Iterable
from itertools import islice
from typing import Any

from launcher.failures.codes import FaultCode
from launcher.files.os_errors import explain
from launcher.log_line import log_line
from launcher.rendezvous.channel import Channel, ChannelError, Message, encode
from launcher.runs import events
from launcher.runs.events import Fault

HANDSHAKE = 5.0  # seconds in which a new connection has to authenticate, and to send `hello`
PENDING = (
    1024  # most connections before their `hello`, and a quarter of the open files; at one more the oldest is closed
)
PAUSE = 0.1  # seconds without accepting when this process has no file descriptor left

Event = tuple[int, dict[str, Any] | None]  # index of a member, and its message; None: the member has disconnected


def refused(fault: Fault) -> dict[str, Any]:
    """Returns the leader's message to an agent that cannot take part because of `fault`."""
    return {"type": "refused", "fault": events.values(fault)}


class Hub:
    """Accepts the agents' connections for the whole attempt, and sends and receives messages.

    An agent identifies itself by the member index in its first message, `hello`.

    channels: the connections of the connected members, by member index.
    """

    def __init__(
        self, listener: socket.socket, secret: bytes, *, members: Collection[int], wake: int | None = None
    ) -> None:
        """members: the valid member indices; an agent with another index is refused.
        wake: a file descriptor that ends a `poll` when it becomes readable (on signals).
        """
        listener.setblocking(False)
        self._listener, self._secret, self._members = listener, secret, frozenset(members)
        self.channels: dict[int, Channel] = {}
        self._indices: dict[Channel, int] = {}
        self._pending: dict[Channel, float] = {}  # connections before their `hello`, with their deadlines, in order
        self._shortage_said = False
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._accepts_from: float | None = None
        self._gone: list[int] = []  # members found disconnected by `send`, for the next `poll`
        if wake is not None:
            self._selector.register(wake, selectors.EVENT_READ)

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def descriptors(self) -> list[int]:
        """Returns the hub's file descriptors, which a forked rank has to close."""
        return [self._listener.fileno(), *(channel.fileno() for channel in (*self._indices, *self._pending))]

    def poll(self, timeout: float) -> list[Event]:
        """Accepts connections, and returns messages and disconnects of members.

        Waits at most `timeout` seconds. Returns none if the time is up, or if something else ended the wait.
        """
        now = time.monotonic()
        if self._accepts_from is not None and now >= self._accepts_from:
            self._accepts_from = None
            self._selector.register(self._listener, selectors.EVENT_READ)
        while self._pending and now >= next(iter(self._pending.values())):
            self._drop(next(iter(self._pending)))
        events: list[Event] = [(index, None) for index in self._gone]
        self._gone = []
        for key, mask in self._selector.select(0 if events else self._wait(timeout, now)):
            if key.fileobj is self._listener:
                self._accept()
            elif isinstance(key.fileobj, Channel):
                events += self._serve(key.fileobj, mask)
        return events

    def _wait(self, timeout: float, now: float) -> float:
        due = [] if self._accepts_from is None else [self._accepts_from]
        due += islice(self._pending.values(), 1)
        return max(0.0, min(timeout, *(when - now for when in due))) if due else timeout

    def send(self, index: int, message: Message | bytes) -> None:
        """Sends a message to member `index`, if connected. If that fails, the next `poll` returns the disconnect."""
        channel = self.channels.get(index)
        if channel is None:
            return
        try:
            channel.send(message)
        except ChannelError:
            self._drop(channel)
            self._gone.append(index)
            return
        if channel.unsent:
            self._selector.modify(channel, selectors.EVENT_READ | selectors.EVENT_WRITE)

    def broadcast(self, indices: Iterable[int], message: Message) -> None:
        """Sends a message to the members with these indices, as `send` does, but encodes it only once."""
        text = encode(message)
        for index in indices:
            self.send(index, text)

    def drain(self, indices: Collection[int], timeout: float) -> None:
        """Waits until these members have closed their connections, for at most `timeout` seconds.

        Unsent messages are sent meanwhile, and received ones are dropped.
        """
        give_up = time.monotonic() + timeout
        while any(index in self.channels for index in indices) and (left := give_up - time.monotonic()) > 0:
            self.poll(left)

    def release(self, index: int) -> Channel:
        """Returns the connection of member `index`, closes all others, and accepts no more."""
        channel = self.channels.pop(index)
        del self._indices[channel]
        self.close()
        return channel

    def close(self) -> None:
        for channel in (*self._indices, *self._pending):
            with contextlib.suppress(ChannelError):
                channel.flush()
            channel.close()
        self._listener.close()
        self._selector.close()

    def _accept(self) -> None:
        for _ in range(64):
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._selector.unregister(self._listener)  # it stays readable: do not spin
                    self._accepts_from = time.monotonic() + PAUSE
                    if not self._shortage_said:
                        log_line(f"the leader cannot accept agents now: {explain(error) or error}")
                    self._shortage_said = True
                return
            try:
                channel = Channel(connection, self._secret, server=True)
            except (ChannelError, OSError):  # gone already
                connection.close()
                continue
            self._pending[channel] = time.monotonic() + HANDSHAKE
            self._selector.register(channel, selectors.EVENT_READ)
            if len(self._pending) > min(PENDING, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4):
                self._drop(next(iter(self._pending)))

    def _serve(self, channel: Channel, mask: int) -> list[Event]:
        if channel not in self._indices and channel not in self._pending:
            return []  # closed while an earlier event was handled: the member has reconnected
        try:
            if mask & selectors.EVENT_WRITE:
                channel.flush()
            messages = channel.receive() if mask & selectors.EVENT_READ else []
        except ChannelError:
            index = self._drop(channel)
            return [] if index is None else [(index, None)]
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if channel.unsent else 0)
        self._selector.modify(channel, wanted)
        if channel in self._pending:
            if not messages:
                return []
            index = messages[0].get("index")
            if messages[0].get("type") != "hello" or type(index) is not int:
                self._drop(channel)
                return []
            if index not in self._members:
                with contextlib.suppress(ChannelError):
                    channel.send(refused(Fault(code=FaultCode.NOT_A_MEMBER, node=index)))
                self._drop(channel)
                return []
            del self._pending[channel]
            events: list[Event] = []
            if index in self.channels:  # its old connection broke without an end-of-file
                self._drop(self.channels[index])
                events = [(index, None)]
            self.channels[index], self._indices[channel] = channel, index
            return events + [(index, message) for message in messages]
        return [(self._indices[channel], message) for message in messages]

    def _drop(self, channel: Channel) -> int | None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(channel)
        channel.close()
        self._pending.pop(channel, None)
        index = self._indices.pop(channel, None)
        if index is not None:
            del self.channels[index]
        return index
