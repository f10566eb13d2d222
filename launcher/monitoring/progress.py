"""Progress of a run: steps, rate, time left and last checkpoint, from its events. Pure, except for `saved_before`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from launcher.monitoring.state import RunState
from launcher.runs.events import Breakpoint, Progress, Saved, Started, every
from launcher.runs.health import at_breakpoints

if TYPE_CHECKING:
    from launcher.monitoring.run_status import RunStatus


@dataclass(frozen=True)
class RunProgress:
    """Progress of a run. A field is None if it is unknown or does not apply."""

    step: int | None = None  # step, steps: number of steps done, and total number of steps, as the program reports them
    steps: int | None = None
    percent: int | None = None  # percentage of steps done, rounded down; 100 only when all are done
    # steps per second of the later half of the attempt's steps, including the time of saves and evaluations
    rate: float | None = None
    needs: int | None = None  # seconds that the remaining steps will take at this rate
    # seconds since the last attempt started or, if the run is over, duration of that attempt
    elapsed: int | None = None
    left: int | None = None  # seconds left of the attempt's wall time
    saved: int | None = None  # number of steps done in the last checkpoint
    saved_ago: int | None = None  # seconds since the last checkpoint was written
    waits: tuple[Breakpoint, ...] = ()  # the ranks that wait at a breakpoint; `needs` is then unknown


def progress_of(seen: RunStatus, now: float, before: tuple[int, float] | None = None) -> RunProgress:
    """Returns the progress of a run at `now` (since the epoch).

    before: step and time of the newest checkpoint (`saved_before`), used if the last attempt has not saved any.
    """
    events, live = seen.history.events, not seen.state.over
    step, steps, percent = _steps(seen.progress)
    rate = _rate(events)
    waits: tuple[Breakpoint, ...] = ()
    if seen.plan.debugs and seen.state is RunState.RUNNING:
        waits = tuple(event for _, event in sorted(at_breakpoints(events).items()))
    needs, runs = None, seen.state is RunState.RUNNING and not waits
    if runs and rate and steps is not None and step is not None and seen.progress:
        needs = max(0, round((steps - step) / rate - (now - seen.progress.time)))
    elapsed = int((now if live else events[-1]["time"]) - events[0]["time"]) if events else None
    event = seen.history.last(Saved)
    saved = (event.step, event.time) if event else before
    return RunProgress(
        step, steps, percent, None if rate is None else round(rate, 4), needs,
        None if elapsed is None else max(0, elapsed), _left(seen, now, saved is not None),
        saved[0] if saved else None, max(0, int(now - saved[1])) if saved else None, waits,
    )  # fmt: skip


def _steps(progress: Progress | None) -> tuple[int | None, int | None, int | None]:
    if progress is None:
        return None, None, None
    step, steps = int(progress.step), int(progress.total)
    return (step, steps, min(100, 100 * step // steps)) if steps > 0 else (step, None, None)


def _rate(events: Sequence[Mapping[str, Any]]) -> float | None:
    return rate_of([(event.time, event.step) for event in every(events, Progress)])


def rate_of(seen: Sequence[tuple[float, float]]) -> float | None:
    """Returns how fast a number grows per second, from (time, number), oldest first; None: unknown, or not.

    Only the later half of the growth counts, as far as `seen` tells them apart: the first steps of a training take
    longer than all others.
    """
    if len(seen) < 2:
        return None
    now, done = seen[-1]
    half = (seen[0][1] + done) / 2
    began, first = next((each for each in reversed(seen[:-1]) if each[1] <= half), seen[0])
    return float((done - first) / (now - began)) if done > first and now > began else None


def _left(seen: RunStatus, now: float, saves: bool) -> int | None:
    """Returns the seconds left of the attempt's wall time.

    | the run | result |
    |---|---|
    | is not running | None |
    | is running, and its scheduler reports the time left | that time: the limit may have changed since the submission |
    | is running in a job | computed from the attempt's start and the plan's wall time |
    | is running without a scheduler, and saves checkpoints | computed in the same way |
    | is running without a scheduler, and saves none | None: nothing ends it when the wall time is over |
    """
    if seen.state is not RunState.RUNNING:
        return None
    if seen.left is not None:
        return seen.left
    started = seen.history.last(Started)
    if started is None or not (seen.plan.queued or saves):
        return None
    return max(0, int(started.time + seen.plan.time - now))


def saved_before(folder: str) -> tuple[int, float] | None:
    """Returns step and mtime (since the epoch) of a folder's newest checkpoint, by names alone; None: none is seen."""
    newest: tuple[int, float] | None = None
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                kind, _, digits = entry.name.partition("-")
                if kind == "step" and digits.isdecimal() and (newest is None or int(digits) > newest[0]):
                    newest = int(digits), entry.stat().st_mtime
    except OSError:
        return newest
    return newest
