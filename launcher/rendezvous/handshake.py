"""A handshake in which both ends of a TCP connection prove that they know a secret, without sending it.

    server -> client   nonce S (32 bytes)
    client -> server   nonce C (32 bytes), HMAC-SHA256(secret, "client" S C)
    server -> client   HMAC-SHA256(secret, "server" S C)

This is challenge and response as in ISO/IEC 9798-4. Each proof contains both nonces and the role, so that it can be
neither replayed nor reflected. The secret is in a file of mode 0600 in the run directory. The connection is not
encrypted afterwards.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
import time

SIZE = 32  # bytes of a nonce and of a proof


class NotTrusted(Exception):
    """The other end does not know the secret, or does not speak this protocol."""


def proof(secret: bytes, role: bytes, nonces: bytes) -> bytes:
    """Returns the proof of one end: HMAC-SHA256(secret, role + nonces). Pure.

    Args:
        secret: the key.
        role: the end that sends the proof: b"client" or b"server".
        nonces: the server's nonce, followed by the client's.
    """
    return hmac.new(secret, role + nonces, hashlib.sha256).digest()


def as_server(connection: socket.socket, secret: bytes) -> None:
    """Does the handshake as the server. The connection's timeout limits the whole exchange.

    Raises:
        NotTrusted: the client does not know the secret. The client has received only the nonce.
        OSError: the connection broke, or timed out.
    """
    server, deadline = secrets.token_bytes(SIZE), _deadline_of(connection)
    connection.sendall(server)
    answer = receive_exactly(connection, 2 * SIZE, deadline)
    client, theirs = answer[:SIZE], answer[SIZE:]
    if not hmac.compare_digest(theirs, proof(secret, b"client", server + client)):
        raise NotTrusted("the other end does not know the secret")
    connection.sendall(proof(secret, b"server", server + client))


def as_client(connection: socket.socket, secret: bytes) -> None:
    """Does the handshake as the client. The connection's timeout limits the whole exchange.

    Raises:
        NotTrusted: the server does not know the secret.
        OSError: the connection broke, or timed out.
    """
    deadline = _deadline_of(connection)
    server, client = receive_exactly(connection, SIZE, deadline), secrets.token_bytes(SIZE)
    connection.sendall(client + proof(secret, b"client", server + client))
    if not hmac.compare_digest(receive_exactly(connection, SIZE, deadline), proof(secret, b"server", server + client)):
        raise NotTrusted("the other end does not know the secret")


def _deadline_of(connection: socket.socket) -> float | None:
    """Returns the monotonic time at which the connection's timeout, started now, passes; None: no timeout is set."""
    timeout = connection.gettimeout()
    return None if timeout is None else time.monotonic() + timeout


def receive_exactly(connection: socket.socket, size: int, deadline: float | None = None) -> bytes:
    """Waits for `size` bytes from the other end, and returns them.

    Args:
        connection: a blocking socket.
        size: number of bytes.
        deadline: monotonic time by which all bytes must have arrived, however slowly they trickle; None: no deadline.

    Raises:
        NotTrusted: the other end closed the connection before that.
        TimeoutError: the deadline has passed.
    """
    data = b""
    while len(data) < size:
        if deadline is not None:
            if (left := deadline - time.monotonic()) <= 0:
                raise TimeoutError("the other end takes too long")
            connection.settimeout(left)
        more = connection.recv(size - len(data))
        if not more:
            raise NotTrusted("the other end closed the connection")
        data += more
    return data
