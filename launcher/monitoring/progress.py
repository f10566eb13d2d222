"""How far a run is: steps, times and checkpoints, from what it has written. Pure, but for `saved_before`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from launcher.monitoring.state import RunState
from launcher.runs.events import Progress, Saved, Started, every

if TYPE_CHECKING:
    from launcher.monitoring.live import Seen


@dataclass(frozen=True)
class Standing:
    """How far a run is; what is not known, or does not apply, is None.

    Attributes:
        step, steps: steps done, and all there are, where the program tells.
        percent: of the steps; 100 only when all are done.
        rate: steps per second, over the whole attempt, saves and evaluations included.
        needs: seconds that the steps left will take at this rate.
        elapsed: seconds of the last attempt.
        left: seconds of its wall time that are left.
        saved: the step of the last checkpoint.
        saved_ago: seconds since it was written.
    """

    step: int | None = None
    steps: int | None = None
    percent: int | None = None
    rate: float | None = None
    needs: int | None = None
    elapsed: int | None = None
    left: int | None = None
    saved: int | None = None
    saved_ago: int | None = None


def standing(seen: Seen, now: float, before: tuple[int, float] | None = None) -> Standing:
    """How far the run is.

    Args:
        seen: the run.
        now: seconds since the epoch.
        before: step and time of the last checkpoint, if this attempt has not written one; see `saved_before`.
    """
    events, live = seen.story.events, not seen.state.over
    step, steps, percent = _steps(seen.progress)
    rate = _rate(events)
    needs = None
    if seen.state is RunState.RUNNING and rate and steps is not None and step is not None and seen.progress:
        needs = max(0, round((steps - step) / rate - (now - seen.progress.time)))
    elapsed = int((now if live else events[-1]["time"]) - events[0]["time"]) if events else None
    event = seen.story.last(Saved)
    saved = (event.step, event.time) if event else before
    return Standing(
        step, steps, percent, None if rate is None else round(rate, 4), needs,
        None if elapsed is None else max(0, elapsed), _left(seen, now, saved is not None),
        saved[0] if saved else None, max(0, int(now - saved[1])) if saved else None,
    )  # fmt: skip


def _steps(progress: Progress | None) -> tuple[int | None, int | None, int | None]:
    if progress is None:
        return None, None, None
    step, steps = int(progress.step), int(progress.total)
    return (step, steps, min(100, 100 * step // steps)) if steps > 0 else (step, None, None)


def _rate(events: Sequence[Mapping[str, Any]]) -> float | None:
    """Steps per second; None: there is no telling yet."""
    told = every(events, Progress)
    if len(told) < 2:
        return None
    first, last = told[0], told[-1]
    steps, seconds = last.step - first.step, last.time - first.time
    return float(steps / seconds) if steps > 0 and seconds > 0 else None


def _left(seen: Seen, now: float, trains: bool) -> int | None:
    """Seconds left of the attempt's wall time.

    | the run | what is left |
    |---|---|
    | does not run | nothing that could be told |
    | runs, and its scheduler tells what is left | that: the limit may have been changed since |
    | runs in a job | its start and its wall time |
    | runs here, and saves checkpoints | the same: only trainings end after their time there |
    """
    if seen.state is not RunState.RUNNING:
        return None
    if seen.left is not None:
        return seen.left
    started = seen.story.last(Started)
    if started is None or not (seen.plan.queued or trains):
        return None
    return max(0, int(started.time + seen.plan.time - now))


def saved_before(folder: str) -> tuple[int, float] | None:
    """Step and time of the newest checkpoint in a folder, by names and times alone; None: there is none."""
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
