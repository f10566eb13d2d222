"""The points of a sweep as they are now, with one question to the scheduler for all of them.

| the point | is |
|---|---|
| was asked of this machine, and not started since | waiting |
| has never been handed over | waiting |
| the same, and it was cancelled, or its sweep | cancelled |
| has a job, or had one | as its run is (launcher/monitoring/state.py) |
| has a record that is damaged | damaged |
| has something that cannot be read now | unknown: it may run, and is not started again |
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.errors import DONE
from launcher.files.shared_files import is_transient
from launcher.monitoring.live import (
    DAMAGE,
    ENDS,
    PATIENCE,
    SCHEDULER_INTERVAL,
    Live,
    Seen,
    look,
    queries,
)
from launcher.monitoring.state import RunState
from launcher.runs import event_file
from launcher.runs.directory import Run
from launcher.runs.event_json import known
from launcher.runs.events import Cancelled, Ended, ProcessStarted, Submitted, Submitting, as_kind, every
from launcher.runs.journal import journal_events
from launcher.runs.sweep_directory import Point, Sweep, sweep_of
from launcher.schedulers.base import QueryError, SchedulerJob
from launcher.spec.plan import JobPlan

WAITING = "waiting"
DAMAGED = "damaged"  # its record cannot be read
# In the order of a point's life; those behind `done` are over as well.
STATES = (
    WAITING, *(
        state.value for state in (
            RunState.UNCONFIRMED, RunState.QUEUED, RunState.RUNNING, RunState.SUSPENDED, RunState.UNKNOWN,
            RunState.DONE, RunState.STOPPED, RunState.FAILED, RunState.CANCELLED, RunState.LOST,
        )
    ), DAMAGED,
)  # fmt: skip
LIVE = tuple(state.value for state in RunState if not state.over)


@dataclass(frozen=True)
class PointSeen:
    """One point as it is now.

    Attributes:
        point: the point.
        state: one of STATES.
        seen: its run; None where that would tell nothing more (waiting and done), or cannot be read.
    """

    point: Point
    state: str
    seen: Seen | None = None

    @property
    def live(self) -> bool:
        """Whether it has a job that is not over, as far as one can tell."""
        return self.state in LIVE

    @property
    def over(self) -> bool:
        return not self.live and self.state != WAITING


class SweepLive(Live):
    """Asks a scheduler for the ends of many jobs at once, and looks no more at points that are done."""

    def __init__(self, *, share: bool = False) -> None:
        super().__init__(share=share)
        self._ends: dict[tuple[str, str], tuple[float, dict[str, SchedulerJob] | QueryError]] = {}
        self.done: set[Path] = set()

    def ended(self, plan: JobPlan, job_id: str) -> SchedulerJob | None:
        if (plan.cluster.scheduler, queries(plan).key(job_id)) in self._remembered:
            return super().ended(plan, job_id)
        scheduler = queries(plan, PATIENCE)
        family = scheduler.family(job_id)
        asked, answer = self._ends.get((plan.cluster.scheduler, family), (float("-inf"), {}))
        key = scheduler.key(job_id)
        # What was asked before the job's end may call it running.
        told = not isinstance(answer, QueryError) and key in answer and answer[key].state in ENDS
        if not told and time.monotonic() - asked > SCHEDULER_INTERVAL:
            try:
                answer = scheduler.ended_family(family)
            except QueryError as error:
                answer = error
            self._ends[plan.cluster.scheduler, family] = (time.monotonic(), answer)
        if isinstance(answer, QueryError):
            raise answer
        return answer.get(key)


def look_at(
    sweep: Sweep, live: SweepLive | None = None, points: Collection[int] | None = None, *, cancelled: bool | None = None
) -> list[PointSeen]:
    """The points of a sweep as they are now.

    Args:
        sweep: the sweep.
        live: that of an earlier look, whose answers still count.
        points: only these; None: all.
        cancelled: whether points that have not begun are to stay so; None: as the sweep is marked.

    Raises:
        RunError: there is no such sweep.
    """
    live = live or SweepLive()
    asked = sweep.asked()
    cancelled = sweep.cancelled() if cancelled is None else cancelled
    wanted = [point for point in sweep.points() if points is None or point.index in points]
    return [_look_at(point, asked.get(point.index), cancelled, live) for point in wanted]


def not_begun(run: Run) -> str | None:
    """The state of a point that has never begun, or not since it was asked to; None: it has, or is no point."""
    sweep = sweep_of(run)
    if sweep is None:
        return None
    found = look_at(sweep, points=[int(run.path.name)])[0]
    return found.state if found.seen is None and found.state != RunState.DONE.value else None


def _look_at(point: Point, asked: float | None, cancelled: bool, live: SweepLive) -> PointSeen:
    try:
        return _seen(point, asked, cancelled, live)
    except DAMAGE as error:
        return PointSeen(point, RunState.UNKNOWN.value if is_transient(error) else DAMAGED)


def _seen(point: Point, asked: float | None, cancelled: bool, live: SweepLive) -> PointSeen:
    run = point.run
    if run.path in live.done or done(run):
        live.done.add(run.path)
        return PointSeen(point, RunState.DONE.value)
    events = journal_events(run)
    if not cancelled and _waits_here(run, asked, events):
        return PointSeen(point, WAITING)
    if not any(isinstance(event, (Submitting, ProcessStarted, Submitted)) for event in known(events)):
        ended = cancelled or bool(every(events, Cancelled))
        return PointSeen(point, RunState.CANCELLED.value if ended else WAITING)
    seen = look(run, live)
    return PointSeen(point, seen.state.value, seen)


def _waits_here(run: Run, asked: float | None, events: Iterable[Mapping[str, Any]]) -> bool:
    """Whether this machine is to run it, and has not begun since it was asked to."""
    if asked is None or any(event.time >= asked for event in every(events, ProcessStarted)):
        return False
    return not run.has("cancelled")


def done(run: Run) -> bool:
    """Whether the last attempt ended with 0. Its script's word is enough, and reading all events takes long.

    Raises:
        UnavailableError: nobody can tell now.
    """
    attempts = run.attempts()
    events = list(event_file.read(attempts[-1].events_file("script"))) if attempts else []
    ended = as_kind(events[-1], Ended) if events else None
    return ended is not None and ended.code == DONE


def counts(seen: Iterable[PointSeen]) -> dict[str, int]:
    """How many points there are in each state that there is, in the order of STATES. Pure."""
    states = [each.state for each in seen]
    return {state: states.count(state) for state in STATES if state in states}


def over(found: Mapping[str, int]) -> int:
    """How many of them are over. Pure."""
    return sum(found.get(state, 0) for state in STATES[STATES.index(RunState.DONE.value) :])


def summary(found: Mapping[str, int]) -> str:
    """`3/15 done, 2 running, 10 queued`. Pure."""
    rest = [f"{number} {state}" for state, number in reversed([*found.items()]) if state != RunState.DONE.value]
    return ", ".join([f"{found.get(RunState.DONE.value, 0)}/{sum(found.values())} done", *rest])
