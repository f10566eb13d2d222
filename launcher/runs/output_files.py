"""The output of a run's jobs and ranks: finds the files, follows them, shows rewritten lines once.

A program that writes `10%\r20%\r30%\n` overwrites one line twice. Each text in front of a `\r` is a state of the
line, and replaces the state before it. (A terminal would still show the end of a longer earlier state; progress bars
pad their lines, so that makes no difference.)
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from launcher import io_bounds
from launcher.errors import UnavailableError, explain, is_transient
from launcher.failures.known_errors import without_torchs_prefix
from launcher.fast_dataclasses import Struct
from launcher.files import safe_io
from launcher.files.retried_reads import retry_read, unwrap
from launcher.runs.directory import Attempt, Run
from launcher.runs.events import Started, first

LONGEST_STATE = 1 << 12  # bytes that are kept of a state: more than a line of any terminal has
END = re.compile(rb"(\r?\n|\r(?!\n))")
_RANK = re.compile(rb"\[\d+\] ")  # agents' prefix of a rank's lines and states


class LineCollapser:
    """Takes output in pieces and returns its completed lines, each reduced to its last state.

    The open line of each rank (by its prefix `[3] `) is kept apart, so that their progress bars do not mix.
    """

    def __init__(self) -> None:
        self._states: dict[bytes, bytes] = {}  # by the rank's prefix: the state of its open line

    def add(self, text: bytes) -> bytes:
        """Returns the lines that `text` completes, and the unchanged rest of `text` after its last line end."""
        if not self._states and b"\r" not in text:
            return text
        *parts, rest = END.split(text)
        lines = [
            line for written, end in zip(parts[::2], parts[1::2], strict=True) for line in self._ended(written, end)
        ]
        if rest:
            self._states.pop(_prefix(rest), None)
        return b"".join([*lines, rest])

    def _ended(self, written: bytes, end: bytes) -> list[bytes]:
        prefix = _prefix(written)
        state = self._states.pop(prefix, b"")
        if end != b"\r":
            return [(written if len(written) > len(prefix) else state or written) + b"\n"]
        shown = written[:LONGEST_STATE] if len(written) > len(prefix) else state
        if shown[len(prefix) :].strip():  # an empty state: the bar was erased
            self._states[prefix] = shown
        return []

    @property
    def states(self) -> list[bytes]:
        """The last states of lines that have no line break yet; the most recently changed one is at the end."""
        return list(self._states.values())

    def end(self) -> bytes:
        """Returns `states` as lines, and clears them. Call it at the end of the output."""
        lines = b"".join(state + b"\n" for state in self._states.values())
        self._states.clear()
        return lines


def _prefix(written: bytes) -> bytes:
    match = _RANK.match(written)
    return match[0] if match else b""


def last_state(line: str) -> str:
    """Returns the last state of a completed line that is not empty: what a terminal shows of the line."""
    return next((state for state in reversed(line.split("\r")) if state), "")


# -- Finds the output of a run's attempts, and reads it in pieces, by rank, or while it grows
#
# An agent copies the output of its ranks to its own stdout, and prefixes the lines of rank 3 with `[3] `. The scheduler
# writes the stdout of all agents to one file per job. The lines in this file are in order of time, to within 0.1 s, the
# interval at which agents read the output of their ranks. Attempts of one job share its file; the field `output` of the
# script's event `started` is the offset in bytes at which the output of an attempt begins.


BLOCK = 1 << 18  # bytes of one read
TAIL = 64 * 1024  # bytes that are read from the end of an output or a log
_RANK_FILE = re.compile(r"rank-(\d+)(?:\.round-(\d+))?\.(\w+)")
EVERY_LINE = re.compile(rb"[^\n]*\n|[^\n]+\Z")


class Part(Struct):
    """The output of one attempt, or of a job that started no attempt: a range of bytes in a file."""

    path: Path  # the file, which may still grow. begin, end: offsets in bytes; an end of None is the end of the file
    begin: int = 0
    end: int | None = None
    attempt: int | None = None  # number of the attempt; None: the job started no attempt
    job: str | None = None  # id of the job; None: unknown
    began: float = 0.0  # when the attempt started; without an attempt, the mtime of the file

    @property
    def heading(self) -> str:
        """The line that `logs` prints above this output: `--- attempt 1, job 17, 12:03 ---`, in local time."""
        job = "" if self.job is None or self.job.startswith("local-") else f"job {self.job.partition('.')[0]}"
        same_day = time.localtime(self.began)[:3] == time.localtime()[:3]
        moment = time.strftime("%H:%M" if same_day else "%Y-%m-%d %H:%M", time.localtime(self.began))
        attempt = "" if self.attempt is None else f"attempt {self.attempt}"
        return f"--- {', '.join(word for word in (attempt, job, moment) if word)} ---"


def start_of(attempt: Attempt) -> Started | None:
    """Returns where the output of an attempt begins; None: its script has not written the event yet."""
    return first(attempt.written_by("script"), Started)


def file_names(job: str | None) -> list[str]:
    """Returns the names that a job's output file may have: Slurm's and local, PBS's, array elements' of PBS and SGE."""
    found = re.fullmatch(r"(\d+)(.*)_(\d+)", job or "")
    elements = [f"{found[1]}[{found[3]}]{found[2]}.OU", f"output-{found[1]}_{int(found[3]) + 1}.log"] if found else []
    return [f"output-{job}.log", f"{job}.OU", *elements]


def tail(path: Path, begin: int = 0, end: int | None = None, most: int = TAIL) -> list[str]:
    """Returns the last lines, in at most so many bytes, of a file or range (end=None: its end); [] if unreadable."""
    try:
        data, start = safe_io.read_range(path, begin, end, most)
    except OSError:
        return []
    lines = [without_torchs_prefix(last_state(line)) for line in data.decode(errors="replace").split("\n")]
    return lines[1 if start > begin else 0 : -1 if lines and not lines[-1] else None]


def rank_files(attempt: Attempt, rank: int | str = "*") -> list[tuple[int, int, str, Path]]:
    """Returns (rank, round, kind, path) of the files of ranks: `rank-3.out`, `rank-3.round-1.err`, `rank-3.stacks`."""
    paths = ((_RANK_FILE.fullmatch(path.name), path) for path in attempt.logs.glob(f"rank-{rank}.*"))
    return sorted((int(match[1]), int(match[2] or 0), match[3], path) for match, path in paths if match)


def rank_logs(attempt: Attempt, rank: int, kinds: Sequence[str] = ("out", "err")) -> list[Path]:
    """Returns the existing log files of a rank in its last round: `out` is standard output, `err` standard error."""
    found: dict[int, dict[str, Path]] = {}
    for _, number, kind, path in rank_files(attempt, rank):
        if kind in kinds:
            found.setdefault(number, {})[kind] = path
    newest = found[max(found)] if found else {}
    return [newest[kind] for kind in kinds if kind in newest]


def parts_of(starts: Mapping[int, Started], files: Sequence[tuple[Path, float]]) -> list[Part]:
    """Divides output files, with their mtimes (seconds since the epoch), among the attempts, oldest first."""
    of_file: dict[Path, list[Part]] = {path: [] for path, _ in files}
    names = {path.name: path for path, _ in files}
    for number, start in sorted(starts.items()):
        path = next((names[name] for name in file_names(start.job) if name in names), None)
        if path is None:
            continue
        before = of_file[path]
        begin = start.output if before else 0  # output before the first attempt belongs to it
        if before:
            before[-1] = replace(before[-1], end=begin)
        before.append(Part(path, begin, None, number, start.job, start.time))
    for path, written in files:
        if not of_file[path]:
            job = path.stem.removeprefix("output-") if path.suffix == ".log" else path.stem
            of_file[path].append(Part(path, job=job, began=written))
    return sorted((part for parts in of_file.values() for part in parts), key=lambda part: part.began)


def lines_of(ranks: Iterable[int]) -> re.Pattern[bytes]:
    """Returns a pattern for the lines of these ranks in the agents' output; states of progress bars match as well."""
    numbers = "|".join(map(str, ranks))
    return re.compile(rb"(?:\A|(?<=[\r\n]))\[(?:" + numbers.encode() + rb")\] [^\r\n]*(?:\r?\n|\r|\Z)")


def read(path: Path, begin: int, end: int | None, *, last: bool) -> Iterator[bytes]:
    """Yields bytes `begin` to `end` (None: the last) of a file in pieces of whole lines or states of lines.

    last: whether the file no longer grows, so that an incomplete last line is yielded too.
    Raises RunError: the path is not a regular file.
    """
    file = unwrap(retry_read(lambda: safe_io.open_regular(path), path, retry_seconds=0))
    if file is None:
        return
    with file:
        if begin > os.fstat(file.fileno()).st_size:
            return
        file.seek(begin)
        rest = b""
        while True:
            most = BLOCK if end is None else min(BLOCK, end - begin)
            try:
                block = file.read(most) if most > 0 else b""
            except OSError as error:
                raise UnavailableError(f"{path} cannot be read now: {error.strerror}") from None
            if not block:
                if rest and last:
                    yield rest
                return
            begin += len(block)
            whole = max(block.rfind(b"\n"), block.rfind(b"\r")) + 1
            if not whole and len(rest) + len(block) >= io_bounds.OUTPUT_LINE_BYTES:
                whole = len(block)
            if whole:
                yield rest + block[:whole]
                rest = block[whole:]
            else:
                rest += block


def start_of_last(
    path: Path, begin: int, end: int | None, count: int, wanted: re.Pattern[bytes] = EVERY_LINE
) -> tuple[int, int]:
    """Finds the last `count` lines of bytes `begin` to `end` of a file (None: its end), reading backwards.

    Returns the offset of the first of them, and how many were found; `begin` and 0: none, or the file is unreadable.
    """
    found, first = 0, begin
    try:
        with safe_io.open_regular(path) as file:
            size = file.seek(0, 2)
            position, tail = size if end is None else min(end, size), b""
            while position > begin:
                start = max(begin, position - BLOCK)
                file.seek(start)
                data = file.read(position - start) + tail
                position = start
                whole = 0 if start == begin else data.find(b"\n") + 1
                if start > begin and not whole and len(data) < io_bounds.OUTPUT_LINE_BYTES:
                    tail = data
                    continue
                lines = (match for match in wanted.finditer(data, whole) if not match[0].endswith(b"\r"))
                starts = [match.start() for match in lines]
                if found + len(starts) >= count:
                    return start + starts[len(starts) - (count - found)], count
                if starts:
                    first = start + starts[0]
                found, tail = found + len(starts), data[:whole]
    except OSError:
        return begin, 0
    return first, found


class Stream:
    """Reads the output of a run while it grows: attempt after attempt, with a heading between them."""

    def __init__(self, run: Run, *, attempt: int | None = None, ranks: Sequence[int] = ()) -> None:
        # attempt=None: all attempts; no ranks: the lines of all ranks and agents
        self._run, self._attempt = run, attempt
        self._wanted = lines_of(ranks) if ranks else None
        self._read: dict[Path, int] = {}
        self._starts: dict[int, Started] = {}
        self._headed: set[int | None] = set()  # attempts whose heading was yielded or is not needed
        self._shown: Part | None = None  # where the last yielded line came from
        self._lines = LineCollapser()

    @property
    def states(self) -> list[bytes]:
        """The last states of progress bars whose line is not complete; the most recently changed one is at the end."""
        return self._lines.states

    def parts(self) -> list[Part]:
        """Returns the output of each attempt that has any now, oldest first."""
        starts = {attempt.number: start for attempt in self._run.attempts() if (start := self._start(attempt))}
        files = []
        for path in self._run.outputs():
            with contextlib.suppress(FileNotFoundError):  # the scheduler is moving it
                files.append((path, path.stat().st_mtime))
        return [part for part in parts_of(starts, files) if self._attempt in (None, part.attempt)]

    def _start(self, attempt: Attempt) -> Started | None:
        if attempt.number not in self._starts and (start := start_of(attempt)):
            self._starts[attempt.number] = start
        return self._starts.get(attempt.number)

    def skip(self) -> None:
        for part in self.parts():
            self._read[part.path] = part.path.stat().st_size
            self._headed.add(part.attempt)
            self._shown = part

    def skip_to_last(self, count: int) -> None:
        """Skips the output that exists now, except for its last `count` lines."""
        begin: dict[Path, int] = {}
        parts = self.parts()
        for part in reversed(parts):
            if count > 0:
                begin[part.path], found = start_of_last(
                    part.path, part.begin, part.end, count, self._wanted or EVERY_LINE
                )
                count -= found
            else:
                begin.setdefault(part.path, part.end or part.path.stat().st_size)
                self._headed.add(part.attempt)
        self._read.update(begin)

    def new(self, last: bool = False) -> Iterator[bytes]:
        """Yields what was written since the last call, in whole lines, each reduced to its last state.

        last: whether the output no longer grows, so that an incomplete last line and `states` are yielded too, and a
            file or folder that cannot be read now raises UnavailableError.
        """
        try:
            parts = self.parts()
        except OSError as error:
            if not is_transient(error):
                raise
            if last:
                raise UnavailableError(explain(error) or str(error)) from None
            return
        for part in parts:
            if part.attempt is not None and part.attempt not in self._headed:
                yield from self._heading(part)
            try:
                yield from self._new(part, part is not parts[-1], last)
            except UnavailableError:
                if last:
                    raise
        if last and (lines := self._lines.end()):
            yield lines

    def _new(self, part: Part, later: bool, last: bool) -> Iterator[bytes]:
        # `later`: whether a later attempt has output
        begin = max(part.begin, self._read.get(part.path, 0))
        for text in read(part.path, begin, part.end, last=last or part.end is not None):
            self._read[part.path] = begin = begin + len(text)
            wanted = text if self._wanted is None else b"".join(self._wanted.findall(text))
            if wanted:
                yield from self._heading(part)
                lines = self._lines.add(wanted)
                if lines:
                    yield lines + b"\n" if later and not lines.endswith(b"\n") else lines

    def _heading(self, part: Part) -> Iterator[bytes]:
        # Files of one attempt, if there are several, share a heading
        before, self._shown = self._shown, part
        self._headed.add(part.attempt)
        if before is None or (before.path, before.attempt) == (part.path, part.attempt):
            return
        heading = f"{part.heading}\n" if part.attempt is None or before.attempt != part.attempt else ""
        if lines := self._lines.end() + heading.encode():
            yield lines
