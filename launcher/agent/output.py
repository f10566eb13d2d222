"""Copies what ranks write to their files to the agent's output: whole lines, each with the rank's number before it.

A line that is rewritten with carriage returns, such as a progress bar, is copied at most once in STALE seconds, with a
carriage return behind it, and its last state as a line; launcher/runs/carriage_returns.py reads that.
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

READ = 1 << 16  # bytes that are read from one file in one call
LONGEST_LINE = 1 << 16  # bytes; longer lines are cut
STALE = 1.0  # seconds after which a line without an end is copied as it is (a prompt, a progress bar that stands still)
PIPE = 4096  # bytes that a writable pipe accepts at once (PIPE_BUF, man 7 pipe)
WAITS = 0.05  # seconds between two attempts to write to a reader that is slow
_END = re.compile(rb"(\r\n|\n|\r(?!\n|\Z))")  # of a line, or of a state of one; a \r at the very end is undecided


@dataclass
class _Source:
    """One file of one rank.

    Attributes:
        descriptor: descriptor of the file.
        prefix: text in front of each line.
        offset: bytes that have been read.
        partial: the last line, which has no end yet.
        since: when it last grew.
        rewritten: whether the line is rewritten with carriage returns.
        state: its last complete state.
        shown, shown_at: the state that was copied last, and when.
    """

    descriptor: int
    prefix: bytes
    offset: int = 0
    partial: bytes = b""
    since: float = field(default=0.0)
    rewritten: bool = False
    state: bytes = b""
    shown: bytes = b""
    shown_at: float = float("-inf")

    def lines(self, data: bytes) -> list[bytes]:
        """Returns the lines that end in these bytes, which follow the ones before."""
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
        """The present text of the line that has no end yet."""
        return self.partial.rstrip(b"\r") or self.state


class _Sink:
    """A descriptor to which data is written without waiting for its reader."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._left, self._broken = descriptor, b"", False
        self._file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        self._ready = select.poll()
        self._ready.register(descriptor, select.POLLOUT)

    def busy(self) -> bool:
        """Returns whether the reader has not taken all earlier data."""
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
        except OSError:  # the reader is gone, or the disk is full: the files have everything
            self._broken, self._left = True, b""


class Forwarder:
    """Copies the output of ranks, a bounded amount in each call, without threads."""

    def __init__(self, out: int = 1, err: int = 2, clock: Callable[[], float] = time.monotonic) -> None:
        """
        Args:
            out, err: descriptors to copy to.
            clock: returns seconds, monotonic.
        """
        self._sinks = (_Sink(out), _Sink(err))
        self._sources: list[tuple[_Source, _Sink]] = []
        self._clock = clock

    def add(self, rank: int, out: int, err: int) -> None:
        """Follows two files from their beginning; `finish` closes their descriptors."""
        for descriptor, sink in zip((out, err), self._sinks, strict=True):
            self._sources.append((_Source(descriptor, b"[%d] " % rank), sink))

    def forward(self) -> bool:
        """Copies what has been written since the last call, up to a bound. Returns whether there is more."""
        more = [self._forward(source, sink, self._clock()) for source, sink in self._sources]
        return any(more)

    def finish(self, timeout: float = 5.0) -> None:
        """Copies the rest, including lines without an end, and closes the files.

        Args:
            timeout: seconds to wait for a slow reader.
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
        """Returns the descriptors of the files."""
        return [source.descriptor for source, _ in self._sources]

    def _forward(self, source: _Source, sink: _Sink, now: float) -> bool:
        if sink.busy():
            return False
        data = b""
        with contextlib.suppress(OSError):  # the next call repeats it
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
