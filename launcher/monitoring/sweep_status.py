"""The current states of a sweep's points, with one query to the scheduler for all of them.

| the point | its state |
|---|---|
| was requested to run on this machine, and has not started since | waiting |
| was never submitted, or was refused | waiting |
| was never submitted, and the point or the sweep was cancelled | cancelled |
| has or had a job | the state of its run (launcher/monitoring/run_status.py) |
| has a damaged record | damaged |
| has a record that cannot be read now | unknown: it may be running, so it is not restarted |
| belongs to a packed sweep | from its claims (launcher/runs/point_claims.py) |
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import count, takewhile
from typing import Any

from launcher.errors import DONE
from launcher.monitoring import run_status
from launcher.monitoring.run_status import DamagedRun, JobMonitor, RunState, RunStatus, or_damaged
from launcher.plan.plan import JobPlan
from launcher.runs import events as kinds
from launcher.runs.directory import Run
from launcher.runs.history import journal_events, may_have_job
from launcher.runs.point_claims import State, SweepClaims
from launcher.runs.sweep_directory import Point, Submission, Sweep, element_id, sweep_of
from launcher.schedulers import registry

WAITING = "waiting"
DAMAGED = "damaged"
# In the order of a point's life; `done` and the states after it are final.
STATES = (WAITING, *(state.value for state in RunState), DAMAGED)
STARTED = (RunState.RUNNING.value, RunState.SUSPENDED.value)  # states of points whose job has started
LIVE = tuple(state.value for state in RunState if not state.over)
# What `status` shows besides, none of it over: a run that the user has cancelled, and a job without a run.
CANCELLING, ORPHANED = "cancelling", "orphaned"


@dataclass(frozen=True)
class PointStatus:
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
        return self.state in LIVE

    @property
    def over(self) -> bool:
        return not self.live and self.state != WAITING


def point_statuses(
    sweep: Sweep, live: JobMonitor | None = None, points: Collection[int] | None = None, *,
    cancelled: bool | None = None,
) -> list[PointStatus]:  # fmt: skip
    """Returns the current states of a sweep's points (None: of all), sorted by number; raises RunError.

    cancelled: whether points that have not started count as cancelled; None: if the sweep is marked as cancelled.
    """
    live = live or JobMonitor()
    points = None if points is None else set(points)
    cancelled = sweep.cancelled() if cancelled is None else cancelled
    manifest = sweep.manifest()
    wanted = [
        Point(index, overrides, sweep.run(index)) for index, overrides in enumerate(manifest.points)
        if points is None or index in points
    ]  # fmt: skip
    if manifest.packing is not None:
        claims = live.claims.of(sweep, manifest.packing)
        return [_packed(point, claims, cancelled, live) for point in wanted]
    requested = sweep.local_requests()
    states = [
        or_damaged(each.run, partial(_without_query, sweep, each.run, requested.get(each.index), cancelled, live))
        for each in wanted
    ]
    others = [each.run for each, state in zip(wanted, states, strict=True) if state is None]
    looked = iter(run_status.each_status(others, live))
    return [_status(point, state or next(looked)) for point, state in zip(wanted, states, strict=True)]


def _status(point: Point, found: str | RunStatus | DamagedRun) -> PointStatus:
    if isinstance(found, DamagedRun):
        return PointStatus(point, RunState.UNKNOWN.value if found.is_transient else DAMAGED)
    return PointStatus(point, found) if isinstance(found, str) else PointStatus(point, found.state.value, found)


def _packed(point: Point, claims: SweepClaims, cancelled: bool, live: JobMonitor) -> PointStatus:
    log = claims.log(point.index)
    if log.state is State.DONE:
        return PointStatus(point, RunState.DONE.value)
    if log.state.over:
        return PointStatus(point, log.state.value, partial(_of_record, point.run, live) if log.begun else None)
    if claims.runs(point.index):
        return PointStatus(point, RunState.RUNNING.value, partial(_of_record, point.run, live))
    return PointStatus(point, RunState.CANCELLED.value if cancelled else WAITING)


def _of_record(run: Run, live: JobMonitor) -> RunStatus | None:
    try:
        return run_status.status_of(run, live) if run.attempts() else None
    except run_status.DAMAGE:
        return None


@dataclass(frozen=True)
class LiveArray:
    job: str  # id of the array (of `live_jobs`, also of a job), in the form that scheduler commands take
    plan: JobPlan  # plan of one of the array's points
    points: tuple[int, ...]  # numbers of the array's points that are not over
    pending: int  # how many of these points have not started; of a single job, which has no throttle, 0


def live_arrays(
    seen: Sequence[PointStatus], submissions: Sequence[Submission]
) -> tuple[list[LiveArray], list[PointStatus]]:
    """Returns the job arrays here that are not over, and the points that are not over and belong to none of them."""
    by_job = {
        element_id(each.job, number): each for each in submissions if each.job for number in range(len(each.points))
    }
    members: dict[str, list[PointStatus]] = {}
    alone = []
    for each in seen:
        if not each.live or each.seen is None:
            continue
        submission = by_job.get(each.seen.history.job_id or "")
        if submission is None or not each.seen.plan.queued or each.seen.job.elsewhere:
            alone.append(each)
        else:
            members.setdefault(submission.token, []).append(each)
    return [_array(found) for found in members.values()], alone


def _array(members: Sequence[PointStatus]) -> LiveArray:
    first = members[0].seen
    assert first is not None and first.history.job_id is not None
    job = registry.queue(first.plan.cluster.scheduler).array_of(first.history.job_id)
    pending = sum(each.state not in STARTED for each in members)
    return LiveArray(job, first.plan, tuple(each.point.index for each in members), pending)


def live_jobs(seen: Sequence[PointStatus], submissions: Sequence[Submission]) -> list[LiveArray]:
    """Returns the job arrays, and the jobs of single points, that are not over; they share sweep.parallelism."""
    arrays, alone = live_arrays(seen, submissions)
    return arrays + [
        LiveArray(each.seen.history.job_id or "", each.seen.plan, (each.point.index,), 0)
        for each in alone
        if each.seen is not None and each.seen.plan.queued
    ]


def throttle_each(live: Sequence[LiveArray], shares: Sequence[int | None]) -> list[tuple[str, int]]:
    """Sets how many elements of each array may run at once; returns those arrays for which it matters; QueryError."""
    changed = [(array, share) for array, share in zip(live, shares, strict=True) if array.pending and share]
    for array, share in changed:
        run_status.queries(array.plan).throttle(array.job, share)
    return [(array.job, share) for array, share in changed]


def live_pilots(sweep: Sweep, live: JobMonitor) -> list[RunStatus]:
    """Returns the pilots of a packed sweep that are not over, by number; raises RunError."""
    pilots = takewhile(Run.recorded, map(sweep.pilot, count()))
    return [seen for seen in run_status.all_statuses(pilots, live) if not seen.state.over]


def not_begun(run: Run) -> str | None:
    """Returns the state of a point without an attempt since its last submission; None: it has one, or is no point.

    None as well for a point whose record cannot be read: who reads it says why.
    """
    sweep = sweep_of(run)
    if sweep is None:
        return None
    unread = (RunState.DONE.value, RunState.UNKNOWN.value, DAMAGED)
    found = point_statuses(sweep, points=[int(run.path.name)])  # none: a search's journal does not show the point yet
    return next((each.state for each in found if each.seen is None and each.state not in unread), None)


def _without_query(sweep: Sweep, run: Run, requested: float | None, cancelled: bool, live: JobMonitor) -> str | None:
    # Returns the state of a point that has no job or is done; None: it depends on its job
    if run.path in live.done or done(run):
        live.done.add(run.path)
        return RunState.DONE.value
    events = journal_events(run, sweep)
    started = max((event.time for event in kinds.every(events, kinds.ProcessStarted)), default=float("-inf"))
    cancelled = cancelled or run.has("cancelled")  # a rerun removes the mark, also where it is refused in the end
    if requested is not None and started < requested and not cancelled:
        return WAITING
    if may_have_job(events):
        return None
    return RunState.CANCELLED.value if cancelled else WAITING


def done(run: Run) -> bool:
    """Returns whether the last attempt of a run ended with exit code 0. Reads only the job script's events."""
    attempts = run.attempts()
    events = list(attempts[-1].written_by("script")) if attempts else []
    ended = kinds.as_kind(events[-1], kinds.Ended) if events else None
    return ended is not None and ended.code == DONE


def placed(value: Any, *, largest_first: bool) -> tuple[bool, float]:
    """Returns by what a point with this value of a metric is sorted; one without a number comes last."""
    if not isinstance(value, (int, float)) or value != value:
        return True, 0.0
    return False, -float(value) if largest_first else float(value)


def counts(seen: Iterable[PointStatus]) -> dict[str, int]:
    states = [each.state for each in seen]
    return {state: states.count(state) for state in STATES if state in states}


def over(found: Mapping[str, int]) -> int:
    return sum(found.get(state, 0) for state in STATES[STATES.index(RunState.DONE.value) :])


def summary(found: Mapping[str, int]) -> str:
    """Formats the number of points in each state (`counts`): `3/15 done, 2 running, 10 queued`."""
    rest = [f"{number} {state}" for state, number in reversed([*found.items()]) if state != RunState.DONE.value]
    return ", ".join([f"{found.get(RunState.DONE.value, 0)}/{sum(found.values())} done", *rest])
