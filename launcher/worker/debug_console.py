"""Where a rank's debugger reads and writes: a socket of its node, and lines of JSON on it.

| the rank says | meaning |
|---|---|
| `{"text": ...}` | show this |
| `{"prompt": ...}` | ask for a line |
| `{"completions": [...]}` | what the word could become |
| `{"runs": true}` | the rank goes on until its next breakpoint, if there is one |
| `{"bye": ...}` | why nothing more will come |

| the terminal says | meaning |
|---|---|
| `{"line": ...}` | what was typed |
| `{"complete": [word, line, begin, end]}` | what could the word become? It is at [begin, end) of the line |

The rank has no thread for it: it reads and writes only while it stands at a prompt. A terminal that leaves may come
back, and is shown again where the rank stands and what its last line has brought; one that comes second takes the place
of the first.
The socket is in a folder of mode 0700, and only this user (and root) is let in.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import select
import socket
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

SCREEN = 1 << 16  # characters that a terminal is shown when it comes
PATIENCE = 10.0  # seconds after which a terminal that takes nothing is given up
LONGEST = 1 << 20  # bytes of one message of a terminal
_LONGEST_PATH = 90  # bytes; with the socket's name Linux allows 107 (man 7 unix)

Completer = Callable[[str, str, int, int], list[str]]  # (word, line, begin, end) -> what the word could become


class Console(io.TextIOBase):
    """Standard input and output of a debugger. It is there as long as its process."""

    def __init__(self, folder: Path) -> None:
        """
        Args:
            folder: of mode 0700, on this node; see `private_folder`.
        """
        self.path = str(folder / str(os.getpid()))
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.path)
        self._listener.listen()
        self._terminal: socket.socket | None = None
        self._received = b""
        self._unsent, self._head, self._screen, self._prompt = "", "", "", ""
        self.completer: Completer = lambda *_: []

    # -- what the debugger calls

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self._unsent += text
        return len(text)

    def flush(self) -> None:
        """Nothing is sent before a line is wanted; what has no line break then is the prompt."""

    def readline(self, size: int | None = -1, /) -> str:  # type: ignore[override]
        """A line that a terminal sends. It waits for a terminal, and for another one when that leaves."""
        text, newline, self._prompt = self._unsent.rpartition("\n")
        self._unsent = ""
        self._head = self._head or text + newline
        self._screen = (self._screen + text + newline)[-SCREEN:]
        self._send(text=text + newline)
        self._send(prompt=self._prompt)
        while True:
            message = self._next()
            if "line" in message:
                self._screen = f"{self._prompt}{message['line']}\n"
                return f"{message['line']}\n"
            if "complete" in message:
                word, line, begin, end = message["complete"]
                self._send(completions=self.completer(str(word), str(line), int(begin), int(end)))

    def runs(self, *, steps: bool) -> None:
        """The rank goes on: to its next breakpoint, or by a step only."""
        self._send(text=self._unsent)
        self._unsent = self._head = self._screen = ""
        if not steps:
            self._send(runs=True)

    def attended(self) -> bool:
        """Whether a terminal is here."""
        if self._terminal is not None and select.select([self._terminal], [], [], 0)[0]:
            self._receive(self._terminal)  # it has left, or was typed at ahead
        return self._terminal is not None

    def close(self) -> None:
        """Does nothing: Python's own `exit()` closes what it takes for standard input."""

    def end(self) -> None:
        """Nobody can come any more."""
        self._hang_up("")
        self._listener.close()

    # -- the terminal

    def _next(self) -> dict[str, Any]:
        """The next message of whatever terminal."""
        while True:
            line, newline, rest = self._received.partition(b"\n")
            if newline:
                self._received = rest
                with contextlib.suppress(ValueError):
                    message = json.loads(line)
                    if isinstance(message, dict):
                        return message
                continue
            wanted = [self._listener, *([self._terminal] if self._terminal else [])]
            ready, _, _ = select.select(wanted, [], [])  # signal handlers run meanwhile (PEP 475)
            if self._listener in ready:
                self._welcome()
            elif self._terminal is not None:
                self._receive(self._terminal)

    def _receive(self, terminal: socket.socket) -> None:
        try:
            data = terminal.recv(1 << 16)
        except OSError:
            data = b""
        self._received += data
        if not data or len(self._received) > LONGEST:
            self._hang_up("")

    def _welcome(self) -> None:
        """Lets a terminal in, and shows it where the debugger stands."""
        newcomer, _ = self._listener.accept()
        if not _ours(newcomer):
            newcomer.close()
            return
        self._hang_up("another terminal has taken over")
        newcomer.settimeout(PATIENCE)
        self._terminal = newcomer
        self._send(text=self._screen if self._screen == self._head else self._head + self._screen)
        self._send(prompt=self._prompt)

    def _send(self, **message: Any) -> None:
        if self._terminal is not None and any(message.values()) | ("prompt" in message) | ("completions" in message):
            try:
                self._terminal.sendall(json.dumps(message).encode() + b"\n")
            except OSError:  # it has left, or takes nothing
                self._terminal.close()
                self._terminal, self._received = None, b""

    def _hang_up(self, why: str) -> None:
        self._send(bye=why)
        if self._terminal is not None:
            self._terminal.close()
        self._terminal, self._received = None, b""


def private_folder() -> Path:
    """A new folder of mode 0700 on this node, with a path that is short enough for that of a socket."""
    folder = Path(tempfile.mkdtemp(prefix="launcher-"))
    if len(os.fsencode(folder)) <= _LONGEST_PATH:
        return folder
    folder.rmdir()
    return Path(tempfile.mkdtemp(prefix="launcher-", dir="/tmp"))


def _ours(peer: socket.socket) -> bool:
    """Whether the process at the other end is this user's, or root's (man 7 unix, SO_PEERCRED)."""
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return struct.unpack("3i", credentials)[1] in (0, os.getuid())
