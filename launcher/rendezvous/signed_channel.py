"""Authenticated connections between agents: a channel, and the leader's hub, which serves those of all others.

Both ends prove that they know the secret, without sending it, before any message is read:

    server -> client   MAGIC, nonce S (32 bytes)
    client -> server   nonce C (32 bytes), HMAC-SHA256(secret, "client" S C)
    server -> client   HMAC-SHA256(secret, "server" S C)

This is challenge and response as in ISO/IEC 9798-4. Each proof contains both nonces and the role, so that it can be
neither replayed nor reflected. After it each direction is a sequence of frames: the length of the text (4 bytes,
big-endian), a MAC (16 bytes), and the text, which is a JSON object. The MAC of frame n is the first 16 bytes of
HMAC-SHA256(key, n text), where key = HMAC-SHA256(secret, direction S C). So a man in the middle can neither alter,
replay, drop nor reorder messages unnoticed. Messages are not encrypted.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import json
import resource
import secrets
import select
import selectors
import socket
import struct
import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from itertools import islice
from typing import Any, TypeAlias

from launcher import io_bounds
from launcher.errors import explain
from launcher.failures.codes import FaultCode
from launcher.formatting import log_line
from launcher.runs import events
from launcher.runs.events import Fault

Message: TypeAlias = Mapping[str, Any]

MAGIC = b"launcher/1\n"
NONCE = PROOF = 32  # bytes
MAC = 16  # bytes
_PARTS = 64  # parts of messages that are sent at once
_LENGTH = struct.Struct(">I")
_READ = 1 << 18  # bytes read at once
_READS = 16  # reads per call of `receive`: a fast sender must not starve the other connections


class ChannelError(ConnectionError):
    """The connection is unusable: the other end is not authenticated, broke the protocol, or closed the connection."""


def proof(secret: bytes, role: bytes, nonces: bytes) -> bytes:
    return hmac.new(secret, role + nonces, hashlib.sha256).digest()


def encode(message: Message) -> bytes:
    """Returns a message as JSON in UTF-8. `Channel.send` accepts it, so that a broadcast encodes a message once."""
    return json.dumps(message, separators=(",", ":")).encode()


def wait_for(timeout: float, *descriptors: int, write: bool = False) -> set[int]:
    """Waits until descriptors are readable (write: the last one also until it is writable), and returns these."""
    poll = select.poll()  # select(2) takes no descriptors above 1023
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    if write:
        poll.register(descriptors[-1], select.POLLIN | select.POLLOUT)
    return {descriptor for descriptor, _ in poll.poll(timeout * 1000)}


class Channel:
    """One end of a connection. It never blocks: its owner waits (select) until the socket is readable or writable."""

    def __init__(self, connection: socket.socket, secret: bytes, *, server: bool) -> None:
        # The channel makes the connection non-blocking, and closes it. server: this end has accepted it
        connection.setblocking(False)
        with contextlib.suppress(OSError):  # tests use Unix sockets
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket, self._secret, self._server = connection, secret, server
        self.peer, self.local = connection.getpeername()[:1], connection.getsockname()[:1]
        self.open = False  # whether both ends are authenticated
        self._in = bytearray()
        self._out: deque[memoryview] = deque()  # a text that is sent to many is kept once
        self._nonce = secrets.token_bytes(NONCE)
        self._nonces = b""
        self._sent = self._received = 0
        self._keys = {"send": b"", "receive": b""}
        if server:
            self._send(MAGIC + self._nonce)

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def unsent(self) -> int:
        return sum(map(len, self._out))

    def send(self, message: Message | bytes) -> None:
        """Sends a message or its encoded text; `flush` sends the rest. Raises ChannelError, ValueError (too long)."""
        if not self.open:
            raise ChannelError("the other end is not authenticated yet")
        text = message if isinstance(message, bytes) else encode(message)
        if len(text) > io_bounds.MESSAGE_BYTES:
            raise ValueError(f"a message of {len(text)} bytes is over the limit of {io_bounds.MESSAGE_BYTES}")
        mac = proof(self._keys["send"], self._sent.to_bytes(8, "big"), text)[:MAC]
        self._sent += 1
        self._send(_LENGTH.pack(len(text)) + mac, text)

    def _send(self, *parts: bytes) -> None:
        self._out.extend(map(memoryview, parts))
        self.flush()

    def flush(self) -> None:
        """Sends as many of the unsent bytes as the socket takes. Raises ChannelError: the connection is broken."""
        try:
            while self._out:
                sent = self._socket.sendmsg([*islice(self._out, _PARTS)])
                while self._out and sent >= len(self._out[0]):
                    sent -= len(self._out.popleft())
                if sent:
                    self._out[0] = self._out[0][sent:]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            raise ChannelError(error.strerror or str(error)) from None

    def receive(self) -> list[dict[str, Any]]:
        closed = ""
        try:
            for _ in range(_READS):
                data = self._socket.recv(_READ)
                if not data:
                    closed = "the other end has closed the connection"
                    break
                self._in += data
                if len(data) < _READ or (not self.open and len(self._in) > _READ):
                    break
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            closed = error.strerror or str(error)
        if not self.open:
            self._authenticate()
        messages = self._messages() if self.open else []
        if closed and not messages:
            raise ChannelError(closed)
        return messages

    def finish(self) -> None:
        """Shuts down the sending direction, so that the other end closes; raises ChannelError."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            raise ChannelError(error.strerror or str(error)) from None

    def close(self) -> None:
        self._socket.close()

    def _authenticate(self) -> None:
        if not self._server and not self._nonces:
            if not MAGIC.startswith(bytes(self._in[: len(MAGIC)])):
                raise ChannelError("another service")
            if len(self._in) < len(MAGIC) + NONCE:
                return
            self._nonces = self._take(len(MAGIC) + NONCE)[len(MAGIC) :] + self._nonce
            self._send(self._nonce + proof(self._secret, b"client", self._nonces))
        if len(self._in) < PROOF + NONCE * self._server:
            return
        if self._server:
            self._nonces = self._nonce + self._take(NONCE)
        ours, theirs = (b"server", b"client") if self._server else (b"client", b"server")
        if not hmac.compare_digest(self._take(PROOF), proof(self._secret, theirs, self._nonces)):
            raise ChannelError("the other end does not know the attempt's secret")
        self._keys = {
            "send": proof(self._secret, b"to " + theirs, self._nonces),
            "receive": proof(self._secret, b"to " + ours, self._nonces),
        }
        self.open = True
        if self._server:
            self._send(proof(self._secret, b"server", self._nonces))

    def _take(self, size: int) -> bytes:
        data = bytes(self._in[:size])
        del self._in[:size]
        return data

    def _messages(self) -> list[dict[str, Any]]:
        messages = []
        start, head = 0, _LENGTH.size + MAC
        data = self._in
        while len(data) - start >= head:
            (length,) = _LENGTH.unpack_from(data, start)
            if length > io_bounds.MESSAGE_BYTES:
                raise ChannelError(f"a message of {length} bytes is over the limit of {io_bounds.MESSAGE_BYTES}")
            if len(data) - start < head + length:
                break
            theirs = bytes(data[start + _LENGTH.size : start + head])
            text = bytes(data[start + head : start + head + length])
            start += head + length
            mine = proof(self._keys["receive"], self._received.to_bytes(8, "big"), text)[:MAC]
            if not hmac.compare_digest(theirs, mine):
                raise ChannelError("a message was altered on its way")
            self._received += 1
            try:
                message = json.loads(text)
            except (ValueError, RecursionError):
                raise ChannelError("a message is not JSON") from None
            if not isinstance(message, dict):
                raise ChannelError("a message is not a JSON object")
            messages.append(message)
        del data[:start]
        return messages


HANDSHAKE = 5.0  # seconds in which a new connection has to authenticate, and to send `hello`
PENDING = 1024  # most connections before their `hello` (and a quarter of the open files), before the oldest is closed
PAUSE = 0.1  # seconds to wait when this process has no file descriptor left for a connection

Event = tuple[int, dict[str, Any] | None]  # index of a member, and its message; None: the member has disconnected


def refused(fault: Fault) -> dict[str, Any]:
    return {"type": "refused", "fault": events.values(fault)}


class Hub:
    """Accepts the agents' connections for the whole attempt, and sends and receives messages."""

    def __init__(
        self, listener: socket.socket, secret: bytes, *, members: Collection[int], wake: int | None = None
    ) -> None:
        # members: the valid indices. wake: a descriptor that ends a `poll` when it becomes readable (on signals)
        listener.setblocking(False)
        self._listener, self._secret, self._members = listener, secret, frozenset(members)
        self.channels: dict[int, Channel] = {}  # by the member index in an agent's first message, `hello`
        self._indices: dict[Channel, int] = {}
        self._pending: dict[Channel, float] = {}  # connections before their `hello`, with their deadlines, in order
        self._shortage_said = False
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
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
        """Accepts connections, and returns messages and disconnects of members, if any in `timeout` seconds."""
        now = time.monotonic()
        while self._pending and now >= next(iter(self._pending.values())):
            self._drop(next(iter(self._pending)))
        events: list[Event] = [(index, None) for index in self._gone]
        self._gone = []
        wait = max(0.0, min([timeout, *(when - now for when in islice(self._pending.values(), 1))]))
        for key, mask in self._selector.select(0 if events else wait):
            if key.fileobj is self._listener:
                self._accept()
            elif isinstance(key.fileobj, Channel):
                events += self._serve(key.fileobj, mask)
        return events

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
        """Sends a message to these members, as `send` does, but encodes it only once."""
        text = encode(message)
        for index in indices:
            self.send(index, text)

    def drain(self, indices: Collection[int], timeout: float) -> None:
        """Sends, and drops what arrives, until these members have closed their connections or `timeout` seconds."""
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
                    if not self._shortage_said:
                        log_line(f"the leader cannot accept agents now: {explain(error) or error}")
                    self._shortage_said = True
                    time.sleep(PAUSE)  # the listener stays readable: do not spin
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
        events: list[Event] = []
        if channel in self._pending and messages:
            index = messages[0].get("index")
            known = messages[0].get("type") == "hello" and type(index) is int
            if not known or index not in self._members:
                if known:
                    with contextlib.suppress(ChannelError):
                        channel.send(refused(Fault(code=FaultCode.NOT_A_MEMBER, node=index)))
                self._drop(channel)
                return []
            del self._pending[channel]
            if index in self.channels:  # its old connection broke without an end-of-file
                self._drop(self.channels[index])
                events = [(index, None)]
            self.channels[index], self._indices[channel] = channel, index
        return events + [(self._indices[channel], message) for message in messages]

    def _drop(self, channel: Channel) -> int | None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(channel)
        channel.close()
        self._pending.pop(channel, None)
        index = self._indices.pop(channel, None)
        if index is not None:
            del self.channels[index]
        return index
