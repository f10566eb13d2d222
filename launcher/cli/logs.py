"""`logs`: what a run printed."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from launcher.cli.options import RUN, add_runs_dir, find_either, whole_number
from launcher.cli.progress import StandingBars
from launcher.cli.screen import write_output
from launcher.errors import RunError
from launcher.formatting import plural
from launcher.runs.carriage_returns import Lines
from launcher.units import parse_ranges

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from launcher.runs.directory import Attempt, Run
    from launcher.runs.output import Stream


def configure(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="RUN", help=RUN)
    parser.add_argument(
        "-f", "--follow", action="store_true", help="go on until the run is over, from one attempt to the next"
    )
    parser.add_argument(
        "--rank", type=_ranks, default=(), metavar="N", help="only these ranks (3, 0-3,7); one alone: its own files"
    )
    parser.add_argument("--attempt", type=whole_number, metavar="N", help="only this attempt (default: all)")
    parser.add_argument("--tail", type=_positive, metavar="N", help="begin with the last N lines")
    add_runs_dir(parser)


def run(arguments: Namespace) -> int:
    """What the run printed: its ranks in the order of time, each line with its rank in front, attempt after attempt."""
    from launcher.runs.directory import Run
    from launcher.runs.output import Stream  # not for --help

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
        if nothing and not run.attempts():
            print(f"launcher: {run.id} has not started, so it has printed nothing: see `why {run.id}`", file=sys.stderr)
        return 0
    pace = Pace(time.monotonic())
    over: Callable[[], bool] | None = None
    before: object = None
    bars, states = StandingBars(sys.stdout), stream.states
    while True:
        heard = False
        for text in stream.new():
            bars.clear()
            write_output(text)
            heard = True
        heard, states = heard or stream.states != states, stream.states
        bars.show(states)
        sys.stdout.flush()
        now, signs = time.monotonic(), _signs(run)
        if heard or signs != before:
            pace.heard(now)
        if signs != before or pace.due(now):
            before = signs
            pace.asked(now)
            over = over or _over(run)  # after the first output: it loads what asks schedulers
            if over():
                bars.clear()
                for text in stream.new(last=True):
                    write_output(text)
                sys.stdout.flush()
                return 0
        time.sleep(pace.pause(now))


class Pace:
    """How often a run's files are read, and its state asked for, while it is followed.

    | the run | its files are read every | its state is asked for |
    |---|---|---|
    | prints | 0.1 s | not at all |
    | has been quiet for a while | 2 s | after 2 s, 3 s, ... and then every 60 s |

    A new attempt, or the end of one, is seen in the files.
    """

    READ, RARELY = 0.1, 2.0  # seconds between two looks at the files
    ASK, AT_LEAST = 2.0, 60.0  # seconds between two questions for the state
    SLOWER = 1.5

    def __init__(self, now: float) -> None:
        self._heard = self._asked = now
        self._ask = self.ASK

    def heard(self, now: float) -> None:
        """Something was printed, so the run lives."""
        self._heard, self._ask = now, self.ASK

    def due(self, now: float) -> bool:
        """Whether the state is to be asked for now."""
        return now - max(self._heard, self._asked) >= self._ask

    def asked(self, now: float) -> None:
        """It was."""
        self._asked, self._ask = now, min(self._ask * self.SLOWER, self.AT_LEAST)

    def pause(self, now: float) -> float:
        """Seconds until the files are to be read again: a tenth of the time for which nothing came."""
        return min(max((now - self._heard) / 10, self.READ), self.RARELY)


def _signs(run: Run) -> object:
    """What differs when an attempt begins or ends."""
    attempts = run.attempts()
    if not attempts:
        return None
    try:
        return attempts[-1].number, attempts[-1].events_file("script").stat().st_size
    except OSError:
        return attempts[-1].number, 0


def _over(run: Run) -> Callable[[], bool]:
    """A function that tells whether the run is over."""
    from launcher.monitoring.live import Live, look  # what asks schedulers; not for a run's output alone

    live = Live(share=True)
    return lambda: look(run, live).state.over


def _require(run: Run, ranks: Sequence[int], attempt: int | None) -> None:
    """
    Raises:
        RunError: the run has no such attempt, or no such rank in any attempt that is meant.
    """
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
    """What a rank of an attempt wrote itself, in the order of its rounds."""
    found = [*attempt.logs.glob(f"rank-{rank}.out"), *attempt.logs.glob(f"rank-{rank}.err")]
    found += [*attempt.logs.glob(f"rank-{rank}.round-*.out"), *attempt.logs.glob(f"rank-{rank}.round-*.err")]
    return sorted(found, key=lambda path: (_round(path), path.suffix != ".out"))


def _round(path: Path) -> int:
    _, found, rest = path.name.partition(".round-")
    return int(rest.partition(".")[0]) if found else 0


class OneRank:
    """What one rank wrote itself: all of it, whatever became of its agent; without its number in front of the lines."""

    def __init__(self, run: Run, rank: int, attempt: int | None) -> None:
        self._run, self._rank, self._attempt = run, rank, attempt
        self._read: dict[Path, int] = {}
        self._shown: int | None = None  # the attempt that the last line was of
        self._lines = Lines()
        self._from: Path | None = None  # the file that the last line was of

    @property
    def states(self) -> list[bytes]:
        """See `Stream.states`."""
        return self._lines.states

    def _files(self) -> list[tuple[Attempt, Path]]:
        attempts = [each for each in self._run.attempts() if self._attempt in (None, each.number)]
        return [(each, path) for each in attempts for path in files_of(each, self._rank)]

    def skip_to_last(self, count: int) -> None:
        """All but the last `count` lines is known."""
        from launcher.runs.output import start_of_last

        for attempt, path in reversed(self._files()):
            if count > 0:
                self._read[path], found = start_of_last(path, 0, None, count)
                count -= found
                self._shown = attempt.number
            else:
                self._read[path] = path.stat().st_size

    def new(self, last: bool = False) -> Iterator[bytes]:
        """See `Stream.new`."""
        from launcher.runs.output import Part, read, start_of

        for attempt, path in self._files():
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
        if last and (lines := self._lines.end()):
            yield lines


def _positive(text: str) -> int:
    if not text.isdecimal() or not int(text):
        from argparse import ArgumentTypeError

        raise ArgumentTypeError(f"{text!r} is not a whole number from 1 up")
    return int(text)


def _ranks(text: str) -> tuple[int, ...]:
    """Ranks in `3` or `0-3,7`."""
    from argparse import ArgumentTypeError

    try:
        return tuple(dict.fromkeys(parse_ranges(text)))
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None
