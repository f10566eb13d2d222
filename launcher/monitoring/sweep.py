"""The current states of a sweep's points, with one query to the scheduler for all of them.

| the point | its state |
|---|---|
| was requested to run on this machine, and has not started since | waiting |
| was never submitted, or was refused | waiting |
| was never submitted, and the point or the sweep was cancelled | cancelled |
| has or had a job | the state of its run (launcher/monitoring/state.py) |
| has a damaged record | damaged |
| has a record that cannot be read now | unknown: it may be running, so it is not restarted |
| belongs to a packed sweep | from its claims (launcher/monitoring/packed.py) |
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import count
from pathlib import Path
from typing import Any

from launcher.errors import DONE
from launcher.files.shared_files import is_transient
from launcher.monitoring import packed
from launcher.monitoring.run_status import (
    DAMAGE,
    ENDS,
    QUERY_TIMEOUT,
    SCHEDULER_INTERVAL,
    JobMonitor,
    RunStatus,
    queries,
    raised,
    status_of,
)
from launcher.monitoring.state import RunState
from launcher.runs import event_file
from launcher.runs.claims import State
from launcher.runs.directory import Run
from launcher.runs.events import Cancelled, Ended, ProcessStarted, as_kind, every
from launcher.runs.history import journal_events, may_have_job
from launcher.runs.sweep_directory import Point, Sweep, sweep_of
from launcher.schedulers.base import QueryError, SchedulerJob
from launcher.spec.plan import JobPlan

WAITING = "waiting"
DAMAGED = "damaged"
# In the order of a point's life; `done` and the states after it are final.
STATES = (
    WAITING, *(
        state.value for state in (
            RunState.UNCONFIRMED, RunState.UNSUBMITTED, RunState.QUEUED, RunState.RUNNING, RunState.SUSPENDED,
            RunState.UNKNOWN, RunState.DONE, RunState.PRUNED, RunState.STOPPED, RunState.FAILED, RunState.CANCELLED,
            RunState.LOST,
        )
    ), DAMAGED,
)  # fmt: skip
LIVE = tuple(state.value for state in RunState if not state.over)


@dataclass(frozen=True)
class PointStatus:
    """A point's current state."""

    point: Point
    state: str  # one of STATES
    # status of the point's run, or a function that reads the status; None: `state` says all
    found: RunStatus | Callable[[], RunStatus | None] | None = None

    @cached_property
    def seen(self) -> RunStatus | None:
        """Status of the point's run, read on first access; None: `state` says all, or the status cannot be read."""
        return self.found() if callable(self.found) else self.found

    @property
    def live(self) -> bool:
        """Whether the point's job may not be over yet."""
        return self.state in LIVE

    @property
    def over(self) -> bool:
        return not self.live and self.state != WAITING


class SweepMonitor(JobMonitor):
    """Queries schedulers about the points of sweeps.

    Unlike JobMonitor it queries how jobs ended for a whole array at once, and does not read points again that are done.
    """

    def __init__(self, *, share: bool = False) -> None:
        super().__init__(share=share)
        self._ends: dict[tuple[str, str], tuple[float, dict[str, SchedulerJob] | QueryError]] = {}
        self.done: set[Path] = set()

    def ended(self, plan: JobPlan, job_id: str) -> SchedulerJob | None:
        if (plan.cluster.scheduler, queries(plan).key(job_id)) in self._ended:
            return super().ended(plan, job_id)
        scheduler = queries(plan, QUERY_TIMEOUT)
        family = scheduler.family(job_id)
        queried, ends = self._ends.get((plan.cluster.scheduler, family), (float("-inf"), {}))
        key = scheduler.key(job_id)
        # A reply from before the job's end may call the job running.
        final = not isinstance(ends, QueryError) and key in ends and ends[key].state in ENDS
        if not final and time.monotonic() - queried > max(SCHEDULER_INTERVAL, plan.cluster.query_interval or 0):
            try:
                ends = scheduler.ended_family(family)
            except QueryError as error:
                ends = error
            self._ends[plan.cluster.scheduler, family] = (time.monotonic(), ends)
        return raised(ends).get(key)


def point_statuses(
    sweep: Sweep,
    live: SweepMonitor | None = None,
    points: Collection[int] | None = None,
    *,
    cancelled: bool | None = None,
) -> list[PointStatus]:
    """Returns the current states of a sweep's points (None: of all), sorted by number; raises RunError.

    live: monitor of an earlier call, whose replies may still be fresh; None: a new one.
    cancelled: whether points that have not started count as cancelled; None: if the sweep is marked as cancelled.
    """
    live = live or SweepMonitor()
    points = None if points is None else set(points)
    cancelled = sweep.cancelled() if cancelled is None else cancelled
    manifest = sweep.manifest()
    wanted = [
        Point(index, overrides, sweep.run(index)) for index, overrides in enumerate(manifest.points)
        if points is None or index in points
    ]  # fmt: skip
    if manifest.packing is not None:
        board = live.boards.of(sweep, manifest.packing)
        return [_packed(point, board, cancelled, live) for point in wanted]
    requested = sweep.local_requests()
    return [_look_at(point, requested.get(point.index), cancelled, live) for point in wanted]


def _packed(point: Point, board: packed.ClaimsBoard, cancelled: bool, live: SweepMonitor) -> PointStatus:
    log = board.log(point.index)
    if log.state is State.DONE:
        return PointStatus(point, RunState.DONE.value)
    if log.state.over:
        return PointStatus(point, log.state.value, partial(_of_record, point.run, live) if log.begun else None)
    if board.runs(point.index):
        return PointStatus(point, RunState.RUNNING.value, partial(_of_record, point.run, live))
    return PointStatus(point, RunState.CANCELLED.value if cancelled else WAITING)


def _of_record(run: Run, live: SweepMonitor) -> RunStatus | None:
    try:
        return status_of(run, live) if run.attempts() else None
    except DAMAGE:
        return None


def live_pilots(sweep: Sweep, live: JobMonitor) -> list[RunStatus]:
    """Returns the pilots of a packed sweep that are not over, by number; raises RunError."""
    found: list[RunStatus] = []
    for number in count():
        run = sweep.pilot(number)
        if not run.recorded():
            break
        if not (seen := status_of(run, live)).state.over:
            found.append(seen)
    return found


def not_begun(run: Run) -> str | None:
    """Returns the state of a point that has not started since its last submission; None: it has, or is no point."""
    sweep = sweep_of(run)
    if sweep is None:
        return None
    found = point_statuses(sweep, points=[int(run.path.name)])[0]
    return found.state if found.seen is None and found.state != RunState.DONE.value else None


def _look_at(point: Point, requested: float | None, cancelled: bool, live: SweepMonitor) -> PointStatus:
    try:
        return _seen(point, requested, cancelled, live)
    except DAMAGE as error:
        return PointStatus(point, RunState.UNKNOWN.value if is_transient(error) else DAMAGED)


def _seen(point: Point, requested: float | None, cancelled: bool, live: SweepMonitor) -> PointStatus:
    run = point.run
    if run.path in live.done or done(run):
        live.done.add(run.path)
        return PointStatus(point, RunState.DONE.value)
    events = journal_events(run)
    if not cancelled and _waits_here(run, requested, events):
        return PointStatus(point, WAITING)
    if not may_have_job(events):
        ended = cancelled or bool(every(events, Cancelled))
        return PointStatus(point, RunState.CANCELLED.value if ended else WAITING)
    seen = status_of(run, live)
    return PointStatus(point, seen.state.value, seen)


def _waits_here(run: Run, requested: float | None, events: Iterable[Mapping[str, Any]]) -> bool:
    # Returns whether a point was requested to run on this machine, and was neither started nor cancelled since
    if requested is None or any(event.time >= requested for event in every(events, ProcessStarted)):
        return False
    return not run.has("cancelled")


def done(run: Run) -> bool:
    """Returns whether the last attempt of a run ended with exit code 0. Reads only the job script's events."""
    attempts = run.attempts()
    events = list(event_file.read(attempts[-1].events_file("script"))) if attempts else []
    ended = as_kind(events[-1], Ended) if events else None
    return ended is not None and ended.code == DONE


def counts(seen: Iterable[PointStatus]) -> dict[str, int]:
    """Returns the number of points in each state that occurs, in the order of STATES."""
    states = [each.state for each in seen]
    return {state: states.count(state) for state in STATES if state in states}


def over(found: Mapping[str, int]) -> int:
    """Returns how many points are over, from the number of points in each state (`counts`)."""
    return sum(found.get(state, 0) for state in STATES[STATES.index(RunState.DONE.value) :])


def summary(found: Mapping[str, int]) -> str:
    """Formats the number of points in each state (`counts`): `3/15 done, 2 running, 10 queued`."""
    rest = [f"{number} {state}" for state, number in reversed([*found.items()]) if state != RunState.DONE.value]
    return ", ".join([f"{found.get(RunState.DONE.value, 0)}/{sum(found.values())} done", *rest])
