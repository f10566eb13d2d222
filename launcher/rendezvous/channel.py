"""Authenticated messages over one TCP connection: between two agents, and between `attach` and a rank's node.

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
import hashlib
import hmac
import json
import secrets
import socket
import struct
from collections import deque
from collections.abc import Mapping
from itertools import islice
from typing import Any, TypeAlias

from launcher import bounds

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


class NotAuthenticated(ChannelError):
    """The other end does not know the secret, or is not an agent."""


def proof(secret: bytes, role: bytes, nonces: bytes) -> bytes:
    """Returns HMAC-SHA256(secret, role + nonces); `nonces`: the server's, followed by the client's."""
    return hmac.new(secret, role + nonces, hashlib.sha256).digest()


def encode(message: Message) -> bytes:
    """Returns a message as JSON in UTF-8. `Channel.send` accepts it, so that a broadcast encodes a message once."""
    return json.dumps(message, separators=(",", ":")).encode()


class Channel:
    """One end of a connection. It never blocks: its owner waits (select) until the socket is readable or writable.

    open: whether both ends are authenticated.
    peer: (IP address,) of the other end, a tuple of one.
    local: (IP address,) of this end.
    """

    def __init__(self, connection: socket.socket, secret: bytes, *, server: bool) -> None:
        """connection: a connected socket. The channel makes it non-blocking, and closes it.
        server: whether this end has accepted the connection.
        """
        connection.setblocking(False)
        with contextlib.suppress(OSError):  # tests use Unix sockets
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket, self._secret, self._server = connection, secret, server
        self.peer, self.local = connection.getpeername()[:1], connection.getsockname()[:1]
        self.open = False
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
        """Number of bytes that are still to be sent."""
        return sum(map(len, self._out))

    def send(self, message: Message | bytes) -> None:
        """Sends a message, or the encoded text of one. Bytes that the socket does not take are sent by `flush`.

        Raises ChannelError: the connection is broken, or the other end is not authenticated yet.
        Raises ValueError: the message is too long.
        """
        if not self.open:
            raise ChannelError("the other end is not authenticated yet")
        text = message if isinstance(message, bytes) else encode(message)
        if len(text) > bounds.MESSAGE_BYTES:
            raise ValueError(f"a message of {len(text)} bytes is over the limit of {bounds.MESSAGE_BYTES}")
        key = self._keys["send"]
        mac = hmac.new(key, self._sent.to_bytes(8, "big") + text, hashlib.sha256).digest()[:MAC]
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
        """Returns the messages that have arrived since the last call. If more is left, the socket stays readable.

        Raises NotAuthenticated: the other end does not know the secret.
        Raises ChannelError: the other end has closed the connection, or broke the protocol.
        """
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
            raise ChannelError(closed) if self.open else NotAuthenticated(closed)
        return messages

    def finish(self) -> None:
        """Shuts down the sending direction. The other end reads end-of-file and closes the connection.

        Raises ChannelError: the connection is broken.
        """
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            raise ChannelError(error.strerror or str(error)) from None

    def close(self) -> None:
        self._socket.close()

    def _authenticate(self) -> None:
        if self._server:
            if len(self._in) < NONCE + PROOF:
                return
            self._nonces = self._nonce + bytes(self._in[:NONCE])
            theirs = bytes(self._in[NONCE : NONCE + PROOF])
            del self._in[: NONCE + PROOF]
            if not hmac.compare_digest(theirs, proof(self._secret, b"client", self._nonces)):
                raise NotAuthenticated("the other end does not know the attempt's secret")
            self._opened()
            self._send(proof(self._secret, b"server", self._nonces))
            return
        if not self._nonces:
            if not MAGIC.startswith(bytes(self._in[: len(MAGIC)])):
                raise NotAuthenticated("another service")
            if len(self._in) < len(MAGIC) + NONCE:
                return
            self._nonces = bytes(self._in[len(MAGIC) : len(MAGIC) + NONCE]) + self._nonce
            del self._in[: len(MAGIC) + NONCE]
            self._send(self._nonce + proof(self._secret, b"client", self._nonces))
        if len(self._in) >= PROOF:
            theirs = bytes(self._in[:PROOF])
            del self._in[:PROOF]
            if not hmac.compare_digest(theirs, proof(self._secret, b"server", self._nonces)):
                raise NotAuthenticated("the other end does not know the attempt's secret")
            self._opened()

    def _opened(self) -> None:
        ours, theirs = (b"to client", b"to server") if self._server else (b"to server", b"to client")
        self._keys = {
            "send": proof(self._secret, ours, self._nonces),
            "receive": proof(self._secret, theirs, self._nonces),
        }
        self.open = True

    def _messages(self) -> list[dict[str, Any]]:
        messages = []
        start, head = 0, _LENGTH.size + MAC
        data = self._in
        while len(data) - start >= head:
            (length,) = _LENGTH.unpack_from(data, start)
            if length > bounds.MESSAGE_BYTES:
                raise ChannelError(f"a message of {length} bytes is over the limit of {bounds.MESSAGE_BYTES}")
            if len(data) - start < head + length:
                break
            theirs = bytes(data[start + _LENGTH.size : start + head])
            text = bytes(data[start + head : start + head + length])
            start += head + length
            key = self._keys["receive"]
            mine = hmac.new(key, self._received.to_bytes(8, "big") + text, hashlib.sha256).digest()[:MAC]
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
