"""A real terminal (a pty) in which a command runs, for commands that ask."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path


class Terminal:
    """A command at a terminal of its own."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], cwd: Path) -> None:
        self._pid, self._master = pty.fork()
        if self._pid == 0:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # tests that run in the background may ignore Ctrl-C
            os.chdir(cwd)
            os.execvpe(command[0], list(command), {**environ, "TERM": "dumb"})
        self._shown = ""
        self._read = 0

    def expect(self, words: str, timeout: float = 60) -> str:
        """Waits until these words are shown, after those that were waited for before; returns all up to them."""
        deadline = time.monotonic() + timeout
        while (found := self._shown.find(words, self._read)) < 0:
            assert time.monotonic() < deadline, f"{words!r} within {timeout:g} s; it shows:\n{self._shown}"
            assert self._more(), f"it has ended without {words!r}; it shows:\n{self._shown}"
        before, self._read = self._shown[self._read : found], found + len(words)
        return before

    def type(self, text: str) -> None:
        """Types this; a line ends with a line break."""
        os.write(self._master, text.encode())

    def end(self) -> int:
        """Waits for the end of the command, and returns its exit code."""
        while self._more():
            pass
        _, status = os.waitpid(self._pid, 0)
        os.close(self._master)
        self._pid = 0
        return os.waitstatus_to_exitcode(status)

    def hang_up(self) -> None:
        """Closes the window."""
        if self._pid:
            os.close(self._master)
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGHUP)
            os.waitpid(self._pid, 0)
            self._pid = 0

    def _more(self) -> bool:
        ready, _, _ = select.select([self._master], [], [], 0.2)
        if not ready:
            return True
        try:
            data = os.read(self._master, 1 << 16)
        except OSError:  # EIO: nobody has the other end any more
            data = b""
        self._shown += data.decode(errors="replace").replace("\r", "")
        return bool(data)
