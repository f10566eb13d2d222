"""Two ends of a TCP connection prove to each other that they know a secret, which never crosses the network.

    server -> client   nonce S (32 bytes)
    client -> server   nonce C (32 bytes), HMAC-SHA256(secret, "client" S C)
    server -> client   HMAC-SHA256(secret, "server" S C)

(A challenge and response as in ISO/IEC 9798-4, with both nonces and the role in each proof, so that no answer can be
played back or reflected.) The secret is in a file of mode 0600 in the run directory. What follows is not encrypted.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
import time

SIZE = 32  # bytes of a nonce and of a proof


class Stranger(Exception):
    """The other end does not know the secret, or is no end of ours at all."""


def proof(secret: bytes, role: bytes, nonces: bytes) -> bytes:
    """What only one who knows the secret can say. Pure."""
    return hmac.new(secret, role + nonces, hashlib.sha256).digest()


def as_server(connection: socket.socket, secret: bytes) -> None:
    """Lets a client in. The connection's timeout is for the whole exchange.

    Raises:
        Stranger: it does not know the secret; it has been told nothing.
        OSError: the connection broke, or its timeout is over.
    """
    server, give_up = secrets.token_bytes(SIZE), _given_up(connection)
    connection.sendall(server)
    answer = exactly(connection, 2 * SIZE, give_up)
    client, theirs = answer[:SIZE], answer[SIZE:]
    if not hmac.compare_digest(theirs, proof(secret, b"client", server + client)):
        raise Stranger("the other end does not know the secret")
    connection.sendall(proof(secret, b"server", server + client))


def as_client(connection: socket.socket, secret: bytes) -> None:
    """Enters, if it is our server. The connection's timeout is for the whole exchange.

    Raises:
        Stranger, OSError: as for `as_server`.
    """
    give_up = _given_up(connection)
    server, client = exactly(connection, SIZE, give_up), secrets.token_bytes(SIZE)
    connection.sendall(client + proof(secret, b"client", server + client))
    if not hmac.compare_digest(exactly(connection, SIZE, give_up), proof(secret, b"server", server + client)):
        raise Stranger("the other end does not know the secret")


def _given_up(connection: socket.socket) -> float | None:
    """When the timeout of a connection is over, by the monotonic clock."""
    timeout = connection.gettimeout()
    return None if timeout is None else time.monotonic() + timeout


def exactly(connection: socket.socket, size: int, give_up: float | None = None) -> bytes:
    """So many bytes.

    Args:
        connection: where they come from.
        size: how many.
        give_up: when they must be there, by the monotonic clock; a byte now and then does not put that off.

    Raises:
        Stranger: it was closed before.
        TimeoutError: time is up.
    """
    data = b""
    while len(data) < size:
        if give_up is not None:
            if (left := give_up - time.monotonic()) <= 0:
                raise TimeoutError("the other end takes too long")
            connection.settimeout(left)
        more = connection.recv(size - len(data))
        if not more:
            raise Stranger("the other end has hung up")
        data += more
    return data
