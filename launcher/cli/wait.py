"""`wait`: follows a run or sweep until it is over: output, progress, and how it ended. Submissions do so, too."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import stat
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

from launcher.cli.output import cause_of_point, metric_text, no_pilot, outcome, program
from launcher.cli.progress_bars import Rate, of_training, on_terminal, shown, time_left, timed, wait_until_readable
from launcher.errors import DONE, FAILED, INTERRUPTED, RESUME, LauncherError, UnavailableError
from launcher.formatting import flat, ranges
from launcher.monitoring import sweep_status
from launcher.monitoring.run_status import JobMonitor, RunState, RunStatus, status_of
from launcher.monitoring.sweep_status import PointStatus, counts, not_begun, point_statuses, summary
from launcher.runs.directory import Run
from launcher.runs.events import Progress, every
from launcher.runs.lease_and_locks import is_being_submitted
from launcher.runs.lookup import find_either
from launcher.runs.output_files import Stream
from launcher.runs.sweep_directory import SearchRecord, Sweep, differing, label, sweep_of
from launcher.schedulers.job_cache import SHARE, interval
from launcher.search.progress import chooses_more
from launcher.submission.submit import print_notice

LOCAL_INTERVAL = 0.1  # seconds between two looks at a run on this machine
QUIET_INTERVAL = 15.0  # the same, while nothing changes
MIN_POLL_INTERVAL, MAX_POLL_INTERVAL = 0.2, 10.0  # seconds between two looks at a sweep
IDLE_TIME = 5.0  # seconds without a change; then it is checked whether a process still starts the waiting points
MAX_STARTERS = 3  # processes started for waiting points, one after another, without a point changing its state
# Errors of writing output: the terminal was closed, the reader of a pipe has exited, or the disk is full.
OUTPUT_GONE = frozenset({errno.EIO, errno.EPIPE, errno.ENXIO, errno.ENOSPC, errno.EDQUOT})
T = TypeVar("T")


def run(arguments: Namespace) -> int:
    found = find_either(arguments.name, arguments.runs_dir)
    if isinstance(found, Sweep):
        return follow_sweep(found)
    if (sweep := sweep_of(found)) and not_begun(found):
        code = follow_sweep(sweep, [int(found.path.name)])
        if code == INTERRUPTED or not_begun(found):
            return code
    return follow_to_end(found, foreground=False, output=not arguments.quiet)


def follow_to_end(
    run: Run, *, foreground: bool, output: bool = True, stream: Stream | None = None,
    start: Callable[[], object] | None = None,
) -> int:  # fmt: skip
    """Follows a run to its end, prints how it ended, and returns the exit code (launcher/errors.py).

    foreground: whether the run belongs to this terminal, see `with_signals`. start: starts the run; None: it has begun.
    stream: reads the output that is printed (with `output`); None: all output of the run.
    """
    started = start is None

    def cancel(kill: bool) -> None:
        if started:
            JobMonitor().cancel(run, kill=kill)

    def follow(shown: bool, signals: Sequence[int]) -> tuple[RunStatus, bool]:
        nonlocal started
        if not started and start is not None:
            start()
            started = True
            if signals:  # they came before the run could be cancelled
                cancel(False)
        return _follow_run(run, stream or Stream(run), foreground, output and shown)

    result = with_signals(run.id, follow, foreground, cancel)
    if result is None:
        return INTERRUPTED
    (seen, printed), interrupted = result
    text = wait_until_readable(lambda: outcome(seen, printed=printed))
    print(text, file=sys.stderr if seen.state is not RunState.DONE else sys.stdout)
    return INTERRUPTED if interrupted else seen.exit_code


def with_signals(
    name: str, follow: Callable[[bool, Sequence[int]], T], foreground: bool, cancel: Callable[[bool], object]
) -> tuple[T, bool] | None:
    """Calls `follow` with whether output can be printed, and the list of signals received so far.

    | event | the run belongs to this terminal | it does not |
    |---|---|---|
    | Ctrl-C, SIGTERM | it is cancelled, and followed to its end; the second time it is killed | following ends |
    | the window is closed (SIGHUP) | it is cancelled, and followed to its end | following ends |
    | the output cannot be written (`head` has exited, the disk is full) | the same | OSError |

    Returns the result of `follow`, and whether the run was interrupted; None: following ended, and the run continues.
    """
    try:
        with ctrl_c(foreground, cancel) as signals:
            try:
                return follow(True, signals), bool(signals)
            except OSError as error:
                if not foreground or error.filename is not None or error.errno not in OUTPUT_GONE:
                    raise
                _discard_output(f"the output cannot be written ({error.strerror}): stopping {name}")
                if not signals:
                    cancel(False)
                return follow(False, signals), True
    except KeyboardInterrupt:
        print_notice(f"{name} continues without this terminal")
        return None


def _discard_terminal_output() -> None:
    with open(os.devnull, "wb") as nowhere:
        for number in (1, 2):
            if stat.S_ISCHR(os.fstat(number).st_mode):
                os.dup2(nowhere.fileno(), number)


def _discard_output(message: str) -> None:
    # Redirects stderr, too, if it is the same file or cannot be written to
    with open(os.devnull, "wb") as nowhere:
        separate = not os.path.sameopenfile(1, 2)
        os.dup2(nowhere.fileno(), 1)
        try:
            if separate:
                os.write(2, f"launcher: {message}\n".encode())
        except OSError:
            separate = False
        if not separate:
            os.dup2(nowhere.fileno(), 2)


@contextlib.contextmanager
def ctrl_c(foreground: bool, cancel: Callable[[bool], object]) -> Iterator[list[int]]:
    """Handles Ctrl-C, SIGTERM and SIGHUP inside the `with` block; yields the list of signals received so far.

    With `foreground` a signal calls `cancel`, with True (kill it) from the second on; else it raises KeyboardInterrupt.
    """
    signals: list[int] = []

    def handle(number: int, _: object) -> None:
        if signals and number == signal.SIGHUP:  # closing a window may send it twice
            return
        signals.append(number)
        if not foreground:
            raise KeyboardInterrupt
        if number == signal.SIGHUP:
            _discard_terminal_output()
        first = len(signals) == 1
        print_notice("stopping; Ctrl-C again kills" if first else "killing")
        try:
            cancel(not first)
        except (LauncherError, OSError) as error:
            print_notice(str(error))

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield signals
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _follow_run(run: Run, stream: Stream, foreground: bool, output: bool) -> tuple[RunStatus, bool]:
    # Returns the last state, and whether the end of the output was printed
    live, rate = JobMonitor(share=True), Rate()
    polls, why, printed = 0, "", False
    with shown(every=None) as show:  # no progress lines where there is no terminal
        while True:
            seen, took = wait_until_readable(lambda: timed(lambda: status_of(run, live)))
            if (reason := _waits(seen)) and reason != why:
                why = reason
                print(f"{seen.state.value}: {why}", file=sys.stderr, flush=True)
            try:
                for text in stream.new(last=seen.state.over) if output else ():
                    show.print(text.decode(errors="replace").removesuffix("\n"))
                    printed = True
            except UnavailableError as error:
                printed = False
                print(f"launcher: output is missing here: {error}", file=sys.stderr, flush=True)
            show.show_run_bars(stream.states if output else ())
            for event in every(seen.history.events, Progress):
                rate.add(event.time, event.step)
            if (progress := seen.progress) is not None:
                show.show("step", progress.step, progress.total or None, of_training(progress, rate))
            if seen.state.over:
                return seen, printed
            # A job may be queued for hours, and a look at thousands of nodes takes seconds, so the interval grows.
            time.sleep(LOCAL_INTERVAL if foreground else interval(polls, took, 1.0, max(QUIET_INTERVAL, SHARE * took)))
            polls += 1


def _waits(seen: RunStatus) -> str:
    # Why a run that may never start, or whose state is not known, is waited for; empty: there is nothing to say
    if seen.state is RunState.QUEUED:
        return seen.job.text if seen.job.reason else ""
    unclear = seen.state in (RunState.UNKNOWN, RunState.UNCONFIRMED, RunState.UNSUBMITTED)
    return (seen.job.text or f"`{program()} why {seen.run.id}` says what to do") if unclear else ""


def follow_sweep(sweep: Sweep, points: Collection[int] | None = None, foreground: bool = False) -> int:
    """Follows a sweep to its end, and returns the command's exit code; foreground: see `with_signals`."""

    def cancel(kill: bool) -> None:
        from launcher.sweeps import control

        control.cancel(sweep, points, kill=kill)

    result = with_signals(sweep.id, lambda *_: _follow_points(sweep, points), foreground, cancel)
    if result is None:
        return INTERRUPTED
    seen, interrupted = result
    code = sweep_exit_code(seen)
    record = SearchRecord(sweep.path)
    if record.exists() and (stopped := wait_until_readable(record.journal).stopped):
        print(f"{sweep.id}: the search has ended: {stopped}", file=sys.stderr)
        code = FAILED
    elif points is None and all(each.over for each in seen) and wait_until_readable(lambda: chooses_more(sweep)):
        print(no_pilot(sweep), file=sys.stderr)
        code = FAILED
    if on_terminal(sys.stdout):  # elsewhere the last progress line is the same
        print(f"{sweep.id}: {summary(counts(seen))}")
    return INTERRUPTED if interrupted else code


def sweep_exit_code(seen: Sequence[PointStatus]) -> int:
    """Returns the exit code of a command that has waited until these points were over.

    | the points | code |
    |---|---|
    | all done or pruned | 0 |
    | all done, pruned or stopped | 75 |
    | otherwise | 1 |
    """
    states = {each.state for each in seen} - {RunState.DONE.value, RunState.PRUNED.value}
    return FAILED if states - {RunState.STOPPED.value} else RESUME if states else DONE


def ended_lines(
    before: Mapping[int, PointStatus], now: Sequence[PointStatus], keys: Sequence[str], objective: Sequence[str] = ()
) -> list[str]:
    """Returns a line, with the metrics of the objective, for each point that has ended since the poll before."""
    lines = []
    for each in now:
        last = before.get(each.point.index)
        if each.over and (last is None or not last.over):
            values = label(each.point.overrides, keys)
            named = f"point {each.point.index}" + (f" ({values})" if values else "")
            more = score_text(each, objective) if each.state == RunState.DONE.value else cause_of_point(each)
            lines.append(f"{named} {'is done' if each.state == 'done' else each.state}" + (f": {more}" if more else ""))
    return lines


def score_text(each: PointStatus, objective: Sequence[str]) -> str:
    metrics = flat(each.point.run.result() or {}) if objective else {}
    return ", ".join(f"{name} {metric_text(metrics[name])}" for name in objective if name in metrics)


def _follow_points(sweep: Sweep, points: Collection[int] | None) -> list[PointStatus]:
    manifest = sweep.manifest()
    live = JobMonitor(share=True)
    keys = list(SearchRecord(sweep.path).settings().space) if manifest.search else differing(manifest.points)
    before: dict[int, PointStatus] = {}
    numbers: dict[str, int] = {}
    polls, changed, starters = 0, time.monotonic(), 0
    rate = Rate(float("inf"))  # over all the time: points may take hours, and end several at once
    with shown() as show:
        while True:
            seen, took = wait_until_readable(lambda: timed(lambda: point_statuses(sweep, live, points)))
            if not before:  # no line is printed for points that were over at the start
                before = {each.point.index: each for each in seen if each.over}
            for line in wait_until_readable(partial(ended_lines, before, seen, keys, manifest.objective)):
                show.print(line)
            before = {each.point.index: each for each in seen}
            if counts(seen) != numbers:
                numbers, polls, changed, starters = counts(seen), 0, time.monotonic(), 0
                rate.add(time.monotonic(), sweep_status.over(numbers))
            # Of a search it is not known how many points there will be.
            left = [] if manifest.search else time_left(rate, len(seen))
            show.show(sweep.id, sweep_status.over(numbers), len(seen), "  ".join([summary(numbers), *left]))
            if all(each.over for each in seen):
                if not manifest.search or not _chooses(sweep):
                    return seen
                changed = time.monotonic()
            if time.monotonic() - changed > IDLE_TIME and not any(each.live for each in seen):
                if reason := _start_waiting(sweep, seen, starters):
                    show.print(reason)
                    return seen
                changed, starters = time.monotonic(), starters + 1
            here = any(each.seen is not None and each.live and not each.seen.plan.queued for each in seen)
            # The interval grows with the time that reading the points takes.
            time.sleep(interval(0 if here else polls, took, MIN_POLL_INTERVAL, MAX_POLL_INTERVAL))
            polls += 1


def _chooses(sweep: Sweep) -> bool:
    try:
        return bool(sweep_status.live_pilots(sweep, JobMonitor(share=True)))
    except UnavailableError:
        return True


def _start_waiting(sweep: Sweep, seen: Sequence[PointStatus], starters: int) -> str | None:
    # More than one such process does no harm: a lock lets only one of them work
    try:
        if is_being_submitted(sweep.path):  # a submitter is at work
            return None
        if sweep.manifest().packing is not None:
            why = f"no pilot runs, and points wait: see why, then\n  {program()} sweep rerun {sweep.id}"
            return None if sweep_status.live_pilots(sweep, JobMonitor(share=True)) else why
        asked = sweep.local_requests()
    except UnavailableError:  # not known now; the next call may know
        return None
    waiting = [each.point.index for each in seen if each.state == sweep_status.WAITING]
    if here := [index for index in waiting if index in asked]:
        if starters >= MAX_STARTERS:
            return f"points {ranges(here)} do not start: see {sweep.path}/points.log"
        from launcher.sweeps.submit import start_local_runner

        start_local_runner(sweep)
        return None
    return (
        f"points {ranges(waiting)} were never submitted: repeat the command that makes the sweep, or\n"
        f"  {program()} sweep rerun {sweep.id}"
    )
