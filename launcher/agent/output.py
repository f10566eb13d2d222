"""Copies the output files of ranks to the agent's output: whole lines, each with `[rank]` before it.

A line that is rewritten with carriage returns, such as a progress bar, is copied at most every STALE seconds, ended by
a carriage return, and its last state as a line; launcher/runs/carriage_returns.py reads that.
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

READ = 1 << 16  # most bytes that one call of `forward` reads from one file
LONGEST_LINE = 1 << 16  # bytes; longer lines are cut
STALE = 1.0  # seconds after which an unfinished line is copied as it is (a prompt, a progress bar that stands still)
PIPE = 4096  # bytes that a writable pipe accepts at once (PIPE_BUF, man 7 pipe)
WAITS = 0.05  # seconds between two attempts to write to a slow reader
# The end of a line, or of one state of a rewritten line. A \r as the very last byte may be the start of \r\n.
_END = re.compile(rb"(\r\n|\n|\r(?!\n|\Z))")


@dataclass
class _Source:
    """The output or the error file of one rank.

    Attributes:
        descriptor: descriptor of the file.
        prefix: text to put in front of each line.
        offset: number of bytes that have been read.
        partial: the text after the last line end or carriage return.
        since: monotonic time at which the file last grew.
        rewritten: whether the unfinished line is rewritten with carriage returns.
        state: the last complete state of the rewritten line.
        shown, shown_at: the state that was copied last, and the monotonic time at which it was copied.
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
        """Returns the lines that end within `data`, the next bytes of the file; of a rewritten line its last state."""
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
        """The present text of the unfinished line."""
        return self.partial.rstrip(b"\r") or self.state


class _Sink:
    """Writes to a file descriptor without waiting for its reader: keeps what the reader has not taken yet."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._left, self._broken = descriptor, b"", False
        self._file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        self._ready = select.poll()
        self._ready.register(descriptor, select.POLLOUT)

    def busy(self) -> bool:
        """Writes as much as possible. Returns whether data is left that the reader has not taken."""
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
        except OSError:  # the reader is gone, or the disk is full: drop it, since the ranks' files have everything
            self._broken, self._left = True, b""


class Forwarder:
    """Copies ranks' stdout and stderr files to the agent's stdout and stderr, a bounded amount in each call.

    Each line gets the prefix `[RANK] `. It starts no thread.
    """

    def __init__(self, out: int = 1, err: int = 2, clock: Callable[[], float] = time.monotonic) -> None:
        """
        Args:
            out, err: file descriptors to write the ranks' stdout and stderr to.
            clock: monotonic clock in seconds; tests replace it.
        """
        self._sinks = (_Sink(out), _Sink(err))
        self._sources: list[tuple[_Source, _Sink]] = []
        self._clock = clock

    def add(self, rank: int, out: int, err: int) -> None:
        """Adds a rank's files, to be copied from their start; `finish` closes the descriptors.

        Args:
            rank: global rank, for the prefix.
            out, err: file descriptors of the rank's stdout and stderr files, open for reading.
        """
        for descriptor, sink in zip((out, err), self._sinks, strict=True):
            self._sources.append((_Source(descriptor, b"[%d] " % rank), sink))

    def forward(self) -> bool:
        """Copies the ranks' new output, up to READ bytes of each file. Returns whether more is left."""
        more = [self._forward(source, sink, self._clock()) for source, sink in self._sources]
        return any(more)

    def finish(self, timeout: float = 5.0) -> None:
        """Copies the rest of the ranks' output, including unfinished lines, and closes the ranks' files.

        Args:
            timeout: most seconds to wait for a slow reader of the agent's output.
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
        """Returns the descriptors of all ranks' files."""
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
