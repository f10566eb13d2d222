"""What ranks wrote to their files, on the agent's own output: whole lines, each with the rank's number before it.

Of a line that is written again and again with carriage returns, as a progress bar is, its state is shown once in STALE
seconds at most, with a carriage return behind it, and its last one as a line; launcher/runs/carriage_returns.py reads
that.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass, field

READ = 1 << 16  # bytes of one file that are taken in one call
LONGEST_LINE = 1 << 16  # bytes; what is longer is cut into several
STALE = 1.0  # seconds after which a line that has no end yet is shown as it is (a prompt, a progress bar that stands)
PIPE = 4096  # bytes that a pipe takes at once when it can be written to (PIPE_BUF, man 7 pipe)
WAITS = 0.05  # seconds between two attempts to write to a reader that is slow
_END = re.compile(rb"(\r\n|\n|\r(?!\n|\Z))")  # of a line, or of a state of one; what comes behind a last \r will tell


@dataclass
class _Source:
    """One file of one rank."""

    descriptor: int
    prefix: bytes
    offset: int = 0
    partial: bytes = b""
    since: float = field(default=0.0)  # when the partial line last grew
    rewritten: bool = False  # the line has states
    state: bytes = b""  # the last whole one
    shown: bytes = b""  # the one that was shown last
    shown_at: float = float("-inf")

    def lines(self, data: bytes) -> list[bytes]:
        """The lines that end in what was written next."""
        *parts, self.partial = _END.split(self.partial + data)
        found = []
        for text, end in zip(parts[::2], parts[1::2], strict=True):
            if end == b"\r":
                self.rewritten, self.state = True, text or self.state
                continue
            found.append(text or self.state)
            self.rewritten, self.state, self.shown = False, b"", b""
        return found

    @property
    def now(self) -> bytes:
        """What stands in the line that has not ended."""
        return self.partial.rstrip(b"\r") or self.state


class _Sink:
    """A descriptor that is written to without ever waiting for its reader."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._left, self._broken = descriptor, b"", False
        self._file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        self._ready = select.poll()
        self._ready.register(descriptor, select.POLLOUT)

    def busy(self) -> bool:
        """Whether its reader has not taken all that was given before."""
        self._write()
        return bool(self._left)

    def write(self, data: bytes) -> None:
        if not self._broken:
            self._left += data
            self._write()

    def _write(self) -> None:
        try:
            while self._left:
                if not self._file and not self._ready.poll(0):
                    return
                written = os.write(self._descriptor, self._left if self._file else self._left[:PIPE])
                self._left = self._left[written:]
        except BlockingIOError:
            return
        except OSError:  # nobody is there any more who reads it, or the disk is full: the files have it all
            self._broken, self._left = True, b""


class Forwarder:
    """Copies the output of ranks, a bounded amount in each call, without threads."""

    def __init__(self, out: int = 1, err: int = 2, clock: Callable[[], float] = time.monotonic) -> None:
        """
        Args:
            out, err: descriptors to copy to.
            clock: seconds, by any clock that does not jump.
        """
        self._sinks = (_Sink(out), _Sink(err))
        self._sources: list[tuple[_Source, _Sink]] = []
        self._clock = clock

    def add(self, rank: int, out: int, err: int) -> None:
        """Follows two files from their beginning; their descriptors are closed by `finish`."""
        for descriptor, sink in zip((out, err), self._sinks, strict=True):
            self._sources.append((_Source(descriptor, b"[%d] " % rank), sink))

    def forward(self) -> bool:
        """Copies what has been written since the last call; whether there is more."""
        more = [self._forward(source, sink, self._clock()) for source, sink in self._sources]
        return any(more)

    def finish(self, timeout: float = 5.0) -> None:
        """Copies all that is left, lines without an end as well, and closes the files.

        Args:
            timeout: seconds to wait for a reader that is slow.
        """
        give_up = self._clock() + timeout
        while (self.forward() or any(sink.busy() for sink in self._sinks)) and self._clock() < give_up:
            if any(sink.busy() for sink in self._sinks):
                time.sleep(WAITS)
        for source, sink in self._sources:
            if source.now:
                sink.write(source.prefix + source.now + b"\n")
            os.close(source.descriptor)
        self._sources.clear()

    def descriptors(self) -> list[int]:
        """Those of the files that are followed."""
        return [source.descriptor for source, _ in self._sources]

    def _forward(self, source: _Source, sink: _Sink, now: float) -> bool:
        if sink.busy():
            return False
        data = b""
        with contextlib.suppress(OSError):  # it is read again in the next call
            data = os.pread(source.descriptor, READ, source.offset)
        source.offset += len(data)
        lines = source.lines(data) if data else []
        if data:
            source.since = now
        stale = not data and source.partial and not source.rewritten and now - source.since >= STALE
        if len(source.partial) > LONGEST_LINE or stale:
            lines, source.partial = [*lines, source.partial.rstrip(b"\r")], b""
        sink.write(b"".join(source.prefix + line + b"\n" for line in lines))
        if source.rewritten and source.now != source.shown and now - source.shown_at >= STALE:
            source.shown, source.shown_at = source.now, now
            sink.write(source.prefix + source.now + b"\r")
        return len(data) == READ
