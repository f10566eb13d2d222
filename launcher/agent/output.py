"""The output of ranks: names of its files, and what is copied from them to the agent's own output."""

from __future__ import annotations

import contextlib
import os
import re
import select
import stat
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from launcher import bounds
from launcher.formatting import long_size


def log_name(rank: int | str, round_number: int, kind: str) -> str:
    """Returns a file name such as `rank-3.out`, or `rank-3.round-1.out` for rounds after round 0."""
    return f"rank-{rank}.round-{round_number}.{kind}" if round_number else f"rank-{rank}.{kind}"


# -- Copies the output files of ranks to the agent's output: whole lines, each with `[rank]` before it
#
# A line that is rewritten with carriage returns, such as a progress bar, is copied at most every STALE seconds, ended
# by a carriage return, and its last state as a line; launcher/runs/output.py reads that.


READ = 1 << 16  # bytes that are read of one file before the others have their turn
MOST = 1 << 22  # about so many bytes are copied by one call of `forward`
TAIL = 1 << 16  # bytes at the end of a file that are copied even if there is no time for those before them
STALE = 1.0  # seconds after which an unfinished line is copied as it is (a prompt, a progress bar that stands still)
PIPE = 4096  # bytes that a writable pipe accepts at once (PIPE_BUF, man 7 pipe)
WAITS = 0.02  # most seconds for which one call of `forward` waits for slow readers
ENDS = 2.0  # most seconds for which `finish` waits until the readers have taken the last lines
# The end of a line, or of one state of a rewritten line. A \r as the very last byte may be the start of \r\n.
_END = re.compile(rb"(\r\n|\n|\r(?!\n|\Z))")


@dataclass
class _Source:
    # The output or the error file of one rank

    descriptor: int
    path: Path
    prefix: bytes  # text to put in front of each line
    offset: int = 0  # number of bytes that have been read
    partial: bytes = b""  # the text after the last line end or carriage return
    since: float = field(default=0.0)  # monotonic time at which the file last grew
    rewritten: bool = False  # whether the unfinished line is rewritten with carriage returns
    state: bytes = b""  # the last complete state of the rewritten line
    shown: bytes = b""  # the state that was copied last
    shown_at: float = float("-inf")  # the monotonic time at which it was copied

    def read(self) -> bytes:
        """Returns the next bytes of the file; empty: there are none, or they cannot be read now."""
        data = b""
        with contextlib.suppress(OSError):  # the next call repeats it
            data = os.pread(self.descriptor, READ, self.offset)
        self.offset += len(data)
        return data

    def left(self) -> int:
        """Returns how many bytes of the file have not been read; READ if that is not known now."""
        try:
            return os.fstat(self.descriptor).st_size - self.offset
        except OSError:
            return READ

    def copy_of(self, data: bytes) -> bytes:
        """Returns the lines that end within `data`, the next bytes of the file, with prefixes."""
        if self.rewritten or b"\r" in data or self.partial.endswith(b"\r"):
            return self.prefixed(self.lines(data))
        lines, end, rest = data.rpartition(b"\n")  # without a progress bar, ten times as fast
        if not end:
            self.partial += data
            return b""
        lines, self.partial = self.partial + lines, rest
        return self.prefix + lines.replace(b"\n", b"\n" + self.prefix) + b"\n"

    def prefixed(self, lines: list[bytes]) -> bytes:
        return b"".join(self.prefix + line + b"\n" for line in lines)

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
        return self.partial.rstrip(b"\r") or self.state

    def last_lines(self) -> bytes:
        """Returns the last lines of the file, and before them how much of it is left out."""
        lines = []
        if (missing := self.left() - TAIL) > 0:
            lines = [self.now] * bool(self.now)
            words = f"launcher: {long_size(missing)} of this rank's output is missing here: all of it is in {self.path}"
            lines.append(os.fsencode(words))
            self.offset, self.partial, self.rewritten, self.state = self.offset + missing, b"", False, b""
            _, _, whole = (data := self.read()).partition(b"\n")
            lines += self.lines(whole or data)
        return self.prefixed([*lines, *self.lines(self.read()), *[self.now] * bool(self.now)])


class _Sink:
    # Keeps what its reader has not taken yet, or what a full disk does not take

    def __init__(self, descriptor: int, clock: Callable[[], float]) -> None:
        self._descriptor, self._clock = descriptor, clock
        self._left, self._broken = memoryview(b""), False
        self._file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        self._ready = select.poll()
        self._ready.register(descriptor, select.POLLOUT)
        self.taken = 0  # bytes that were written

    def drained(self, until: float) -> bool:
        """Writes what is left, and waits for a slow reader until the time `until`. Returns whether nothing is left."""
        while True:
            self._write()
            if not self._left or self._file or not self._ready.poll(max(0.0, until - self._clock()) * 1000):
                return not self._left

    def write(self, data: bytes) -> None:
        if not self._broken:
            self._left = memoryview(bytes(self._left) + data)
            self._write()

    def _write(self) -> None:
        try:
            while self._left and (self._file or self._ready.poll(0)):
                count = os.write(self._descriptor, self._left if self._file else self._left[:PIPE])
                self._left, self.taken = self._left[count:], self.taken + count
        except BrokenPipeError:  # drop it, since the ranks' files have everything
            self._broken, self._left = True, memoryview(b"")
        except OSError:  # the next call repeats it
            return


class Forwarder:
    """Copies ranks' output, each line as `[RANK] ...`, to the agent's own; no thread, a bounded amount a call."""

    def __init__(self, out: int = 1, err: int = 2, clock: Callable[[], float] = time.monotonic) -> None:
        # descriptors to write the ranks' stdout and stderr to
        self._sinks = (_Sink(out, clock), _Sink(err, clock))
        self._sources: deque[tuple[_Source, _Sink]] = deque()  # the next one to be read is the first
        self._clock = clock

    def add(self, rank: int, out: int, err: int, paths: Sequence[Path]) -> None:
        """Adds a rank's files, open for reading, to be copied from their start; `finish` closes the descriptors."""
        for descriptor, path, sink in zip((out, err), paths, self._sinks, strict=True):
            self._sources.append((_Source(descriptor, path, b"[%d] " % rank), sink))

    def forward(self) -> bool:
        """Copies about MOST bytes of new output, of each file in turn. Returns whether to call it again at once."""
        until, taken = self._clock() + WAITS, self._taken()
        copied = idle = 0  # bytes; files in a row that have no more now
        blocked = False
        while copied < MOST and idle < len(self._sources):
            source, sink = self._sources[0]
            self._sources.rotate(-1)
            count = 0
            if sink.drained(until):
                count = self._copy(source, sink, self._clock())
            else:
                blocked = True
            copied, idle = copied + count, 0 if count == READ else idle + 1
        return copied >= MOST or (blocked and self._taken() > taken)

    def finish(self, timeout: float = 5.0) -> None:
        """Copies the rest of the ranks' output, after the timeout its last lines only, and closes the ranks' files."""
        give_up = self._clock() + timeout
        while any(source.left() > 0 or not sink.drained(0.0) for source, sink in self._sources):
            if self._clock() >= give_up:
                break
            if not self.forward():
                time.sleep(WAITS)
        for source, sink in self._sources:
            sink.write(source.last_lines())
            os.close(source.descriptor)
        for sink in self._sinks:
            sink.drained(self._clock() + ENDS)
        self._sources.clear()

    def descriptors(self) -> list[int]:
        return [source.descriptor for source, _ in self._sources]

    def _taken(self) -> int:
        return sum(sink.taken for sink in self._sinks)

    def _copy(self, source: _Source, sink: _Sink, now: float) -> int:
        data = source.read()
        text = source.copy_of(data) if data else b""
        if data:
            source.since = now
        stale = not data and source.partial and not source.rewritten and now - source.since >= STALE
        if stale or len(source.partial) + len(source.prefix) + READ >= bounds.OUTPUT_LINE_BYTES:
            text, source.partial = text + source.prefixed([source.partial.rstrip(b"\r")]), b""
        if text:
            sink.write(text)
        if source.rewritten and source.now != source.shown and now - source.shown_at >= STALE:
            source.shown, source.shown_at = source.now, now
            sink.write(source.prefix + source.now + b"\r")
        return len(data)
