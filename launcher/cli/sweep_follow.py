"""Stays with a sweep until all its points are over: a line for each one's end, and a bar where there is a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence

from launcher.cli.follow import attend, readable
from launcher.cli.progress import Rate, of_sweep, on_terminal, shown
from launcher.cli.sweep_results import flat, text
from launcher.cli.sweep_status import why
from launcher.cli.text import program
from launcher.errors import DONE, FAILED, INTERRUPTED, RESUME, UnavailableError
from launcher.formatting import ranges
from launcher.monitoring.state import RunState
from launcher.monitoring.sweep import (
    WAITING,
    PointSeen,
    SweepLive,
    counts,
    look_at,
    over,
    summary,
)
from launcher.runs.directory import being_submitted
from launcher.runs.sweep_directory import Sweep, differing, label
from launcher.schedulers.query_cache import interval
from launcher.sweeps import control

POLL = 0.2  # seconds between two looks, at first and where points run on this machine
SLOWEST = 10.0
STEADY = 5.0  # seconds for which nothing has begun, before it is asked who is to begin points that wait
TRIES = 3  # times that somebody is sent to begin them


def to_the_end(sweep: Sweep, points: Collection[int] | None = None, foreground: bool = False) -> int:
    """Follows a sweep and returns the exit code for it.

    Args:
        sweep: the sweep.
        points: those that matter; None: all.
        foreground: the sweep belongs to this terminal: Ctrl-C cancels it. Otherwise Ctrl-C only stops following.

    Returns:
        0 if all are done, 75 if the others can be resumed, 130 if it was interrupted, else 1.
    """

    def cancel(kill: bool) -> None:
        control.cancel(sweep, points, kill=kill)

    attended = attend(sweep.id, lambda *_: _follow(sweep, points), foreground, cancel)
    if attended is None:
        return INTERRUPTED
    seen, interrupted = attended
    code = exit_code(seen)
    if on_terminal(sys.stdout):  # else the last line has said so
        print(f"{sweep.id}: {summary(counts(seen))}")
    return INTERRUPTED if interrupted else code


def exit_code(seen: Sequence[PointSeen]) -> int:
    """What a command that waited for these points exits with. Pure.

    | the points | code |
    |---|---|
    | all done | 0 |
    | all done or stopped | 75 |
    | otherwise | 1 |
    """
    states = {each.state for each in seen} - {RunState.DONE.value}
    return FAILED if states - {RunState.STOPPED.value} else RESUME if states else DONE


def ended(
    before: Mapping[int, PointSeen], now: Sequence[PointSeen], keys: Sequence[str], objective: Sequence[str] = ()
) -> Iterator[str]:
    """A line for each point that was not over before and is now, with the objective of one that is done."""
    for each in now:
        last = before.get(each.point.index)
        if each.over and (last is None or not last.over):
            values = label(each.point.overrides, keys)
            named = f"point {each.point.index}" + (f" ({values})" if values else "")
            told = scores(each, objective) if each.state == RunState.DONE.value else why(each)
            yield f"{named} {'is done' if each.state == 'done' else each.state}" + (f": {told}" if told else "")


def scores(each: PointSeen, objective: Sequence[str]) -> str:
    """`accuracy 0.97, loss 0.1`: those of these metrics that a point has."""
    metrics = flat(each.point.run.result() or {}) if objective else {}
    return ", ".join(f"{name} {text(metrics[name])}" for name in objective if name in metrics)


def _follow(sweep: Sweep, points: Collection[int] | None) -> list[PointSeen]:
    manifest = sweep.manifest()
    live, keys = SweepLive(share=True), differing(manifest.points)
    before: dict[int, PointSeen] = {}
    found: dict[str, int] = {}
    calm, changed, tries = 0, time.monotonic(), 0

    def look() -> tuple[list[PointSeen], float]:
        began = time.monotonic()
        return look_at(sweep, live, points), time.monotonic() - began

    rate = Rate(float("inf"))  # points may take hours, and come in bunches
    with shown() as show:
        while True:
            seen, took = readable(look)
            if not before:  # those that were over when we came are in the numbers
                before = {each.point.index: each for each in seen if each.over}
            for line in ended(before, seen, keys, manifest.objective):
                show.print(line)
            before = {each.point.index: each for each in seen}
            if counts(seen) != found:
                found, calm, changed, tries = counts(seen), 0, time.monotonic(), 0
                rate.add(time.monotonic(), over(found))
            show.show(sweep.id, over(found), len(seen), of_sweep(summary(found), rate, len(seen)))
            if all(each.over for each in seen):
                return seen
            if time.monotonic() - changed > STEADY and not any(each.live for each in seen):
                if told := _nobody_begins(sweep, seen, tries):
                    show.print(told)
                    return seen
                changed, tries = time.monotonic(), tries + 1
            here = any(each.seen is not None and each.live and not each.seen.plan.queued for each in seen)
            time.sleep(interval(0 if here else calm, took, POLL, SLOWEST))  # many points take long to look at
            calm += 1


def _nobody_begins(sweep: Sweep, seen: Sequence[PointSeen], tries: int) -> str | None:
    """Why points that wait will not begin, in words; None: somebody is at work, or is now, after so many tries.

    Whoever starts points on this machine may have been killed, so another one is sent; of several one works.
    """
    try:
        if being_submitted(sweep.path):  # submitters wait for each other
            return None
        asked = sweep.asked()
    except UnavailableError:  # then nobody can tell, and there is a next look
        return None
    waiting = [each.point.index for each in seen if each.state == WAITING]
    if here := [index for index in waiting if index in asked]:
        if tries >= TRIES:
            return f"points {ranges(here)} do not begin: see {sweep.path}/points.log"
        from launcher.sweeps.submit import start_here  # loads what submits

        start_here(sweep)
        return None
    return (
        f"points {ranges(waiting)} were never handed over: repeat the command that makes the sweep, or\n"
        f"  {program()} sweep rerun {sweep.id}"
    )
