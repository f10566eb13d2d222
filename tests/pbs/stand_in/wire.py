"""Messages between the commands and the daemon: dicts encoded by marshal, which is fast to import."""

from __future__ import annotations

import marshal

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Any

    Message = dict[str, Any]


def pack(message: Message) -> bytes:
    """Returns a message as bytes: its length in four bytes, and the message."""
    body = marshal.dumps(message)
    return len(body).to_bytes(4, "big") + body


def receive(connection: socket.socket, head: bytes = b"") -> Message | None:
    """Receives the next message; None: the other side has closed the connection.

    Args:
        connection: the connection.
        head: the bytes of the message's length that were already read.
    """
    head += _read(connection, 4 - len(head))
    body = _read(connection, int.from_bytes(head, "big")) if len(head) == 4 else b""
    return marshal.loads(body) if body else None  # both sides are this code, so the data can be trusted


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (piece := connection.recv(size - len(data))):
        data += piece
    return data
