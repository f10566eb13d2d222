"""`logs`: prints the output of a run, of all ranks or of one, and follows it (-f)."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from launcher.cli.progress import RunBars
from launcher.cli.screen import write_output
from launcher.errors import RunError, UnavailableError
from launcher.formatting import plural
from launcher.runs.directory import Run
from launcher.runs.lookup import find_either
from launcher.runs.output import LineCollapser, Part, Stream, read, start_of, start_of_last

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from launcher.runs.directory import Attempt


def run(arguments: Namespace) -> int:
    wanted = find_either(arguments.name, arguments.runs_dir)
    if not isinstance(wanted, Run):
        raise RunError(f"{wanted.id} is a sweep: name one of its points ({wanted.id}/0); `sweep status` lists them")
    ranks, attempt = arguments.rank, arguments.attempt
    _require(wanted, ranks, attempt)
    if len(ranks) == 1:
        return _show(wanted, OneRank(wanted, ranks[0], attempt), arguments)
    return _show(wanted, Stream(wanted, attempt=attempt, ranks=ranks), arguments)


def _show(run: Run, stream: Stream | OneRank, arguments: Namespace) -> int:
    if arguments.tail:
        stream.skip_to_last(arguments.tail)
    if not arguments.follow:
        nothing = True
        for text in stream.new(last=True):
            write_output(text)
            nothing = False
        sys.stdout.flush()
        if nothing:
            _say_if_not_started(run)
        return 0
    pace = PollPace(time.monotonic())
    is_over: Callable[[], bool] | None = None
    last_mark: object = None
    bars, states = RunBars(sys.stdout), stream.states
    while True:
        printed = False
        for text in stream.new():
            bars.clear()
            write_output(text)
            printed = True
        printed, states = printed or stream.states != states, stream.states
        bars.show(states)
        sys.stdout.flush()
        now, mark = time.monotonic(), _attempt_mark(run)
        if printed or mark != last_mark:
            pace.active(now)
        if mark != last_mark or pace.due(now):
            last_mark = mark
            pace.queried(now)
            is_over = is_over or _is_over(run)  # after the first output, since it imports the scheduler's client
            if is_over():
                bars.clear()
                for text in stream.new(last=True):
                    write_output(text)
                sys.stdout.flush()
                _say_if_not_started(run)
                return 0
        time.sleep(pace.pause(now))


def _say_if_not_started(run: Run) -> None:
    if not run.attempts():
        print(f"launcher: {run.id} has not started, so it has printed nothing: see `why {run.id}`", file=sys.stderr)


class PollPace:
    """Decides when to read a run's files and when to query its state, while its output is followed.

    | the run | its files are read every | its state is queried |
    |---|---|---|
    | prints | 0.1 s | not at all |
    | has been quiet for a while | 2 s | after 2 s, 3 s, ... and then every 60 s |

    The start and the end of an attempt are seen in the files. All times (`now`) are seconds of one clock of the caller.
    """

    MIN_PAUSE, MAX_PAUSE = 0.1, 2.0  # seconds between two reads of the files
    MIN_QUERY, MAX_QUERY = 2.0, 60.0  # seconds between two queries of the state
    BACKOFF = 1.5

    def __init__(self, now: float) -> None:
        self._active = self._queried = now
        self._interval = self.MIN_QUERY

    def active(self, now: float) -> None:
        """Records that the run has printed something, or that an attempt has started or ended."""
        self._active, self._interval = now, self.MIN_QUERY

    def due(self, now: float) -> bool:
        """Returns whether the run's state must be queried now."""
        return now - max(self._active, self._queried) >= self._interval

    def queried(self, now: float) -> None:
        """Records that the run's state was queried at the time `now`."""
        self._queried, self._interval = now, min(self._interval * self.BACKOFF, self.MAX_QUERY)

    def pause(self, now: float) -> float:
        """Returns the seconds until the next read: a tenth of the time since the last activity."""
        return min(max((now - self._active) / 10, self.MIN_PAUSE), self.MAX_PAUSE)


def _attempt_mark(run: Run) -> object:
    attempts = run.attempts()
    if not attempts:
        return None
    try:
        return attempts[-1].number, attempts[-1].events_file("script").stat().st_size
    except OSError:
        return attempts[-1].number, 0


def _is_over(run: Run) -> Callable[[], bool]:
    from launcher.monitoring.run_status import JobMonitor, status_of

    live = JobMonitor(share=True)
    return lambda: status_of(run, live).state.over


def _require(run: Run, ranks: Sequence[int], attempt: int | None) -> None:
    if attempt is None and not ranks:
        return
    attempts = {each.number: each for each in run.attempts()}
    if not attempts:
        raise RunError(f"{run.id} has not started yet")
    if attempt is not None and attempt not in attempts:
        raise RunError(f"{run.id} has no attempt {attempt}: its attempts are 0 to {max(attempts)}")
    for rank in ranks:
        if not any(files_of(each, rank) for number, each in attempts.items() if attempt in (None, number)):
            number = max(attempts) if attempt is None else attempt
            count = sum(".round-" not in path.name for path in attempts[number].logs.glob("rank-*.out"))
            raise RunError(f"{run.id} has no rank {rank} in attempt {number}: it has {plural(count, 'rank')}")


def files_of(attempt: Attempt, rank: int) -> list[Path]:
    """Returns the output files of one rank in an attempt, in the order of the rounds; stdout before stderr."""
    found = [*attempt.logs.glob(f"rank-{rank}.out"), *attempt.logs.glob(f"rank-{rank}.err")]
    found += [*attempt.logs.glob(f"rank-{rank}.round-*.out"), *attempt.logs.glob(f"rank-{rank}.round-*.err")]
    return sorted(found, key=lambda path: (_round(path), path.suffix != ".out"))


def _round(path: Path) -> int:
    _, found, rest = path.name.partition(".round-")
    return int(rest.partition(".")[0]) if found else 0


class OneRank:
    """Reads the output of one rank from the rank's own files, which are complete even if the agent was killed.

    The lines have no prefix `[RANK]`. It has those methods of `Stream` that `logs` uses; attempt=None: all attempts.
    """

    def __init__(self, run: Run, rank: int, attempt: int | None) -> None:
        self._run, self._rank, self._attempt = run, rank, attempt
        self._read: dict[Path, int] = {}
        self._shown: int | None = None  # attempt of the last line
        self._lines = LineCollapser()
        self._from: Path | None = None  # file of the last line

    @property
    def states(self) -> list[bytes]:
        """The run's unfinished lines, such as progress bars; see `Stream.states`."""
        return self._lines.states

    def _files(self) -> list[tuple[Attempt, Path]]:
        attempts = [each for each in self._run.attempts() if self._attempt in (None, each.number)]
        return [(each, path) for each in attempts for path in files_of(each, self._rank)]

    def skip_to_last(self, count: int) -> None:
        """Skips all but the last `count` lines."""
        for attempt, path in reversed(self._files()):
            if count > 0:
                self._read[path], found = start_of_last(path, 0, None, count)
                count -= found
                self._shown = attempt.number
            else:
                self._read[path] = path.stat().st_size

    def new(self, last: bool = False) -> Iterator[bytes]:
        """Yields the output since the last call; see `Stream.new`."""
        for attempt, path in self._files():
            try:
                yield from self._new(attempt, path, last)
            except UnavailableError:
                if last:
                    raise
        if last and (lines := self._lines.end()):
            yield lines

    def _new(self, attempt: Attempt, path: Path, last: bool) -> Iterator[bytes]:
        for text in read(path, self._read.get(path, 0), None, last=last):
            lines = b"" if self._from in (None, path) else self._lines.end()
            self._from = path
            if self._shown is not None and self._shown != attempt.number and (start := start_of(attempt)):
                part = Part(path, attempt=attempt.number, job=start.job, began=start.time)
                lines += part.heading.encode() + b"\n"
            self._shown = attempt.number
            self._read[path] = self._read.get(path, 0) + len(text)
            if lines := lines + self._lines.add(text):
                yield lines
