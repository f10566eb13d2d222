"""`wait`: waits until a run or sweep is over, and exits with its code; `sweep wait` does the same for a sweep."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Collection, Iterator, Mapping, Sequence

from launcher.cli.follow import follow_to_end, wait_until_readable, with_signals
from launcher.cli.progress import Rate, of_sweep, on_terminal, shown
from launcher.cli.text import cause_of_point, flat, metric_text, program
from launcher.errors import DONE, FAILED, INTERRUPTED, RESUME, UnavailableError
from launcher.formatting import ranges
from launcher.monitoring.state import RunState
from launcher.monitoring.sweep import (
    WAITING,
    PointStatus,
    SweepMonitor,
    counts,
    live_pilots,
    not_begun,
    over,
    point_statuses,
    summary,
)
from launcher.runs.lease import is_being_submitted
from launcher.runs.lookup import find_either
from launcher.runs.sweep_directory import SearchRecord, Sweep, differing, label, sweep_of
from launcher.schedulers.query_cache import interval
from launcher.sweeps import control

MIN_POLL_INTERVAL = 0.2  # seconds; at first, and while points run on this machine
MAX_POLL_INTERVAL = 10.0  # seconds
IDLE_TIME = 5.0  # seconds without a change; then it is checked whether a process still starts the waiting points
MAX_STARTERS = 3  # processes started for waiting points, one after another, without a point changing its state


def run(arguments: Namespace) -> int:
    found = find_either(arguments.name, arguments.runs_dir)
    if isinstance(found, Sweep):
        return follow_sweep(found)
    if (sweep := sweep_of(found)) and not_begun(found):
        return follow_sweep(sweep, [int(found.path.name)])
    return follow_to_end(found, foreground=False, output=not arguments.quiet)


def follow_sweep(sweep: Sweep, points: Collection[int] | None = None, foreground: bool = False) -> int:
    """Follows a sweep to its end, and returns the command's exit code.

    foreground: whether the sweep belongs to this terminal. If so, Ctrl-C cancels it; else Ctrl-C ends this command.
    Returns 0 if all points are done or pruned, 75 if all others are stopped and can be resumed, 130 if interrupted,
    else 1.
    """

    def cancel(kill: bool) -> None:
        control.cancel(sweep, points, kill=kill)

    result = with_signals(sweep.id, lambda *_: _follow(sweep, points), foreground, cancel)
    if result is None:
        return INTERRUPTED
    seen, interrupted = result
    code = sweep_exit_code(seen)
    record = SearchRecord(sweep.path)
    if record.exists() and (stopped := record.journal().stopped):
        print(f"{sweep.id}: the search has ended: {stopped}", file=sys.stderr)
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


def ended_line(
    before: Mapping[int, PointStatus], now: Sequence[PointStatus], keys: Sequence[str], objective: Sequence[str] = ()
) -> Iterator[str]:
    """Yields a line, with the metrics of the objective, for each point that has ended since the poll before."""
    for each in now:
        last = before.get(each.point.index)
        if each.over and (last is None or not last.over):
            values = label(each.point.overrides, keys)
            named = f"point {each.point.index}" + (f" ({values})" if values else "")
            more = score_text(each, objective) if each.state == RunState.DONE.value else cause_of_point(each)
            yield f"{named} {'is done' if each.state == 'done' else each.state}" + (f": {more}" if more else "")


def score_text(each: PointStatus, objective: Sequence[str]) -> str:
    """Formats the metrics of a point that are named in `objective`: `accuracy 0.97, loss 0.1`."""
    metrics = flat(each.point.run.result() or {}) if objective else {}
    return ", ".join(f"{name} {metric_text(metrics[name])}" for name in objective if name in metrics)


def _follow(sweep: Sweep, points: Collection[int] | None) -> list[PointStatus]:
    manifest = sweep.manifest()
    live = SweepMonitor(share=True)
    keys = list(SearchRecord(sweep.path).settings().space) if manifest.search else differing(manifest.points)
    before: dict[int, PointStatus] = {}
    numbers: dict[str, int] = {}
    polls, changed, starters = 0, time.monotonic(), 0

    def look() -> tuple[list[PointStatus], float]:
        began = time.monotonic()
        return point_statuses(sweep, live, points), time.monotonic() - began

    rate = Rate(float("inf"))  # over all the time: points may take hours, and end several at once
    with shown() as show:
        while True:
            seen, took = wait_until_readable(look)
            if not before:  # no line is printed for points that were over at the start
                before = {each.point.index: each for each in seen if each.over}
            for line in ended_line(before, seen, keys, manifest.objective):
                show.print(line)
            before = {each.point.index: each for each in seen}
            if counts(seen) != numbers:
                numbers, polls, changed, starters = counts(seen), 0, time.monotonic(), 0
                rate.add(time.monotonic(), over(numbers))
            # Of a search it is not known how many points there will be.
            text = summary(numbers) if manifest.search else of_sweep(summary(numbers), rate, len(seen))
            show.show(sweep.id, over(numbers), len(seen), text)
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
        return bool(live_pilots(sweep, SweepMonitor(share=True)))
    except UnavailableError:
        return True


def _without_pilots(sweep: Sweep) -> str:
    return f"no pilot runs, and points wait: see why, then\n  {program()} sweep rerun {sweep.id}"


def _start_waiting(sweep: Sweep, seen: Sequence[PointStatus], starters: int) -> str | None:
    # More than one such process does no harm: a lock lets only one of them work
    try:
        if is_being_submitted(sweep.path):  # a submitter is at work
            return None
        if sweep.manifest().packing is not None:
            return None if live_pilots(sweep, SweepMonitor(share=True)) else _without_pilots(sweep)
        asked = sweep.local_requests()
    except UnavailableError:  # not known now; the next call may know
        return None
    waiting = [each.point.index for each in seen if each.state == WAITING]
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
