"""The debugger's input and output in a rank: a Unix socket on its node, with JSON lines.

| the rank sends | meaning |
|---|---|
| `{"text": ...}` | show this text |
| `{"prompt": ...}` | ask the user for a line |
| `{"completions": [...]}` | the completions of a word |
| `{"runs": true}` | the rank has left the prompt and runs until its next breakpoint |
| `{"bye": REASON}` | the connection ends; the reason may be empty |

| the terminal sends | meaning |
|---|---|
| `{"line": ...}` | the line that the user typed |
| `{"complete": [word, line, begin, end]}` | a request for completions of the word at [begin, end) of the line |

The rank needs no thread for this: it reads and writes only while it is at a prompt. A terminal may disconnect and
reconnect: it then gets the current position and the output of the last command. A second terminal replaces the first.
The socket is in a folder of mode 0700, and accepts only this user (and root).
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import socket
import struct
import tempfile
from collections.abc import Callable
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

SCREEN = 1 << 16  # most characters of earlier output that are sent to a new terminal
SEND_TIMEOUT = 10.0  # seconds after which a terminal that reads nothing is disconnected
LONGEST = 1 << 20  # most bytes of one message from a terminal
_LONGEST_PATH = 90  # bytes; with the socket's name Linux allows 107 (man 7 unix)

Completer = Callable[[str, str, int, int], list[str]]  # (word, line, begin, end) -> completions of the word


class Console(io.TextIOBase):
    """The debugger's standard input and output, connected to a terminal through a Unix socket.

    path: path of the socket, named after this process's id.
    completer: function that completes a word for the terminal's Tab key.
    """

    def __init__(self, folder: Path) -> None:
        """folder: directory of mode 0700 on this node for the socket; see `private_folder`."""
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
        """Does nothing: `readline` sends the output. The text after the last line break is then the prompt."""

    def readline(self, size: int | None = -1, /) -> str:  # type: ignore[override]
        """Returns the next line that the user types. Waits for a terminal, and for another one if it disconnects."""
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
        """Sends the remaining output, as the rank continues.

        steps: whether the rank stops again after one step; otherwise the terminal is notified that it runs.
        """
        self._send(text=self._unsent)
        self._unsent = self._head = self._screen = ""
        if not steps:
            self._send(runs=True)

    def attended(self) -> bool:
        """Returns whether a terminal is connected."""
        if self._terminal is not None and wait([self._terminal], 0):
            self._receive(self._terminal)  # notices that it has disconnected
        return self._terminal is not None

    def close(self) -> None:
        """Does nothing, since Python's `exit()` closes standard input, and the console must stay open."""

    def end(self) -> None:
        """Disconnects the terminal, and accepts no further one."""
        self._hang_up("")
        self._listener.close()

    # -- the terminal

    def _next(self) -> dict[str, Any]:
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
            ready = wait(wanted)  # signal handlers run meanwhile; select(2) takes no descriptors above 1023
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
        # Accepts a new terminal instead of the current one, and sends it the position and the last output
        newcomer, _ = self._listener.accept()
        if not _ours(newcomer):
            newcomer.close()
            return
        self._hang_up("another terminal has taken over")
        newcomer.settimeout(SEND_TIMEOUT)
        self._terminal = newcomer
        self._send(text=self._screen if self._screen == self._head else self._head + self._screen)
        self._send(prompt=self._prompt)

    def _send(self, **message: Any) -> None:
        if self._terminal is not None and any(message.values()) | ("prompt" in message) | ("completions" in message):
            try:
                self._terminal.sendall(json.dumps(message).encode() + b"\n")
            except OSError:  # it has disconnected, or reads nothing
                self._terminal.close()
                self._terminal, self._received = None, b""

    def _hang_up(self, why: str) -> None:
        self._send(bye=why)
        if self._terminal is not None:
            self._terminal.close()
        self._terminal, self._received = None, b""


def private_folder() -> Path:
    """Makes a temporary folder of mode 0700 on this node. Returns the folder's path, short enough for a Unix socket."""
    folder = Path(tempfile.mkdtemp(prefix="launcher-"))
    if len(os.fsencode(folder)) <= _LONGEST_PATH:
        return folder
    folder.rmdir()
    return Path(tempfile.mkdtemp(prefix="launcher-", dir="/tmp"))


def _ours(peer: socket.socket) -> bool:
    # Returns whether the process at the other end belongs to this user or to root (man 7 unix, SO_PEERCRED)
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return struct.unpack("3i", credentials)[1] in (0, os.getuid())
