"""`logs`: prints the output of a run, of all ranks or of one, and follows it (-f)."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path

from launcher.cli.progress_bars import RunBars, wait_until_readable
from launcher.errors import NoRunError, RunError
from launcher.formatting import plural, ranges, write_output
from launcher.runs.directory import Attempt, Run
from launcher.runs.lookup import find_either
from launcher.runs.output_files import Part, Stream, rank_files

QUIET, MAX_QUIET = 2.0, 60.0  # seconds without output after which the run's state is read, then less and less often
MIN_PAUSE, MAX_PAUSE = 0.1, 2.0  # seconds between two reads of the files


def run(arguments: Namespace) -> int:
    wanted = find_either(arguments.name, arguments.runs_dir)
    if not isinstance(wanted, Run):
        raise NoRunError(f"{wanted.id} is a sweep: name one of its points ({wanted.id}/0); `sweep status` lists them")
    ranks, attempt = arguments.rank, arguments.attempt
    if arguments.follow:
        size = wait_until_readable(lambda: wanted.plan().world_size) if ranks else 0
        _require_started(wanted, [rank for rank in ranks if rank >= size], attempt)  # others may have no files yet
    else:
        _require(wanted, ranks, attempt)
    if len(ranks) == 1:
        return _show(wanted, OneRank(wanted, ranks[0], attempt), arguments)
    return _show(wanted, Stream(wanted, attempt=attempt, ranks=ranks), arguments)


def _show(run: Run, stream: Stream, arguments: Namespace) -> int:
    if arguments.tail:
        stream.skip_to_last(arguments.tail)
    if not arguments.follow:
        _print_rest(run, stream)
        return 0
    from launcher.schedulers.job_cache import interval

    active = asked = time.monotonic()
    polls = asks = 0  # since the last output
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
        now, mark = time.monotonic(), wait_until_readable(lambda: _attempt_mark(run))
        if printed or mark != last_mark:
            active, polls, asks = now, 0, 0
        if mark != last_mark or (now - active >= QUIET and now - asked >= interval(asks, 0.0, QUIET, MAX_QUIET)):
            _require_started(run, (), arguments.attempt)  # of its ranks, some may have no files yet
            last_mark, asked, asks = mark, now, asks + 1
            is_over = is_over or _is_over(run)  # after the first output, since it imports the scheduler's client
            if wait_until_readable(is_over):
                bars.clear()
                wait_until_readable(lambda: _print_rest(run, stream))
                _require_started(run, arguments.rank, arguments.attempt)
                return 0
        time.sleep(interval(polls, 0.0, MIN_PAUSE, MAX_PAUSE))
        polls += 1


def _print_rest(run: Run, stream: Stream) -> None:
    nothing = True
    for text in stream.new(last=True):
        write_output(text)
        nothing = False
    sys.stdout.flush()
    if nothing and not run.attempts():
        print(f"launcher: {run.id} has not started, so it has printed nothing: see `why {run.id}`", file=sys.stderr)


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


def _require_started(run: Run, ranks: Sequence[int], attempt: int | None) -> None:
    # Waits for the file server; nothing is known of a run that has not started
    if (ranks or attempt is not None) and wait_until_readable(run.attempts):
        wait_until_readable(lambda: _require(run, ranks, attempt))


def _require(run: Run, ranks: Sequence[int], attempt: int | None) -> None:
    if attempt is None and not ranks:
        return
    attempts = {each.number: each for each in run.attempts()}
    if not attempts:
        raise RunError(f"{run.id} has not started yet")
    if attempt is not None and attempt not in attempts:
        raise RunError(f"{run.id} has no attempt {attempt}, only {ranges(attempts)}")
    if not ranks:
        return
    chosen = attempts if attempt is None else {attempt: attempts[attempt]}
    there = {number: {rank for rank, *_ in rank_files(each)} for number, each in chosen.items()}
    if missing := [rank for rank in ranks if not any(rank in found for found in there.values())]:
        last = max(there)
        count = plural(len(there[last]), "rank")
        raise RunError(f"{run.id} has no rank {missing[0]} in attempt {last}: it has {count}")


def files_of(attempt: Attempt, rank: int) -> list[Path]:
    """Returns the output files of one rank in an attempt, in the order of the rounds; stdout before stderr."""
    found = [each for each in rank_files(attempt, rank) if each[2] in ("out", "err")]
    return [path for _, _, _, path in sorted(found, key=lambda each: (each[1], each[2] == "err"))]


class OneRank(Stream):
    """Reads the output of one rank from the rank's own files, which are complete even if the agent was killed.

    The lines have no prefix `[RANK]`, and an attempt in which it printed nothing has no heading.
    """

    def __init__(self, run: Run, rank: int, attempt: int | None) -> None:
        super().__init__(run, attempt=attempt)
        self._rank = rank

    def parts(self) -> list[Part]:
        found = []
        for attempt in self._run.attempts():
            self._headed.add(attempt.number)
            for path in files_of(attempt, self._rank) if self._attempt in (None, attempt.number) else ():
                start = self._start(attempt)
                began = start.time if start else path.stat().st_mtime
                found.append(Part(path, attempt=attempt.number, job=start.job if start else None, began=began))
        return found
