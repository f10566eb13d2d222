"""Messages between the commands and the daemon: dictionaries, by marshal, which costs a command no import."""

from __future__ import annotations

import marshal

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Any

    Message = dict[str, Any]


def pack(message: Message) -> bytes:
    """The message behind its length in four bytes."""
    body = marshal.dumps(message)
    return len(body).to_bytes(4, "big") + body


def receive(connection: socket.socket, head: bytes = b"") -> Message | None:
    """The next message; None when the other side is gone. `head` is what was read of its length already."""
    head += _read(connection, 4 - len(head))
    body = _read(connection, int.from_bytes(head, "big")) if len(head) == 4 else b""
    return marshal.loads(body) if body else None  # both sides are ours


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (piece := connection.recv(size - len(data))):
        data += piece
    return data
