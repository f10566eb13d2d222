"""Changes a sweep that was submitted: cancels points, restarts points, sets how many run at once.

The functions that change a sweep hold the submitter's lock, so that no other command submits points meanwhile.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from launcher import io_bounds
from launcher.environment import secrets as secret
from launcher.errors import LauncherError, RunError, program
from launcher.formatting import ranges
from launcher.job.wait_for_others import submit_released
from launcher.monitoring import run_status, sweep_status
from launcher.monitoring.run_status import DamagedRun, JobMonitor, RunState, RunStatus, or_damaged
from launcher.monitoring.sweep_status import STARTED, PointStatus, live_arrays, live_jobs, live_pilots, point_statuses
from launcher.plan.plan import JobPlan
from launcher.runs.directory import Run
from launcher.runs.events import CancelFailed
from launcher.runs.lease_and_locks import only_submitter
from launcher.runs.sweep_directory import Packing, Sweep
from launcher.schedulers import registry
from launcher.schedulers.base import AnswerLost, QueryError, parts
from launcher.schedulers.job_cache import JobSnapshot
from launcher.submission.dependencies import is_kept, update_followers
from launcher.sweeps.prepare import shares

if TYPE_CHECKING:
    from launcher.sweeps.submit import SubmittedSweep

MOST_FAILURES = 3  # requests in a row that a scheduler may fail before it is not asked again
ONLY_NAMED = (RunState.CANCELLED.value, RunState.PRUNED.value)  # states of points that only the user restarts by number


def cancel(sweep: Sweep, points: Collection[int] | None = None, *, kill: bool = False) -> dict[int, str]:
    """Cancels points (None: all); returns the states before of those that were not over; QueryError names the others.

    kill: whether points that run on this machine without a scheduler are killed instead of asked to stop.
    Raises OSError: not all can be marked, for example on a full disk. Their jobs are cancelled nonetheless.
    """
    before, points = sweep.cancelled(), None if points is None else set(points)
    unmarked: list[OSError] = []
    if points is None:
        with _collected(unmarked):
            sweep.mark_cancelled(True)  # first, because the process that starts points on this machine reads it
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(only_submitter(sweep.path))
            if points is None:  # again: a command that submitted meanwhile has removed it
                with _collected(unmarked):
                    sweep.mark_cancelled(True)
            if (packing := sweep.packing()) is None:
                found = _cancel(sweep, points, kill, unmarked)
            else:
                found = _cancel_in_pilots(sweep, points, packing, unmarked)
        except LauncherError:
            if points is None:
                sweep.mark_cancelled(before)
            raise
        jobs = [each.seen for each in found if each.seen] if packing is None else []
        if packing is not None and points is None:
            jobs = _cancel_pilots(sweep, kill, unmarked)
    release_followers([each.point.run.path for each in found] + ([sweep.path] if points is None else []), jobs)
    if unmarked:
        raise unmarked[0]
    return {each.point.index: each.state for each in found}


@contextlib.contextmanager
def _collected(errors: list[OSError]) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if isinstance(error, LauncherError):
            raise
        errors.append(error)


def _cancel_run(monitor: JobMonitor, run: Run, kill: bool, unmarked: list[OSError]) -> None:
    with _collected(unmarked):
        monitor.cancel(run, kill=kill)


def release_followers(homes: Iterable[Path], cancelled: Iterable[RunStatus]) -> None:
    """Submits again what waits for runs that were cancelled before they started, behind what is left; prints errors.

    cancelled: the runs whose jobs were cancelled, as they were before: those, or the pilots of a sweep.
    """
    before = [
        each.reply for each in cancelled
        if each.plan.queued
        and not registry.queue(each.plan.cluster.scheduler).frees_dependents
        and (each.state is RunState.QUEUED or each.history.waiting)
    ]  # fmt: skip
    if before:
        for problem in update_followers(*homes, release=partial(_release, before[0])):
            print(f"launcher: what waits was not released: {problem}", file=sys.stderr)


def _release(before: JobSnapshot, run: Run, plan: JobPlan, job: str, jobs: Sequence[str]) -> None:
    sweep = Sweep(run.path)
    if not sweep.recorded():
        submit_released(run, plan, job, jobs, before, partial(_release, before))
        return
    from launcher.submission.resume import secrets_again
    from launcher.sweeps.submit import resubmit

    with only_submitter(sweep.path):
        statuses = point_statuses(sweep)
        held = [array for array in live_arrays(statuses, sweep.submissions())[0] if array.pending == len(array.points)]
        if sweep.cancelled() or job not in [array.job for array in held]:  # another command has released it
            gone = _never_started(statuses, registry.queue(plan.cluster.scheduler).array_of, job)
            if gone and not (held or sweep.cancelled() or is_kept(plan, job)):
                do = f"`{program()} sweep rerun {sweep.id}` submits them again"
                raise QueryError(f"jobs of its points {ranges(gone)} were deleted with what they waited for: {do}")
            return
        # All at once, since they share sweep.parallelism
        submitted = resubmit(sweep, [point for array in held for point in array.points], secrets_again)
        requests, old = _Requests(), {each.point.index: each.seen.history.job_id for each in statuses if each.seen}
        for array in held:
            again = [point for point in array.points if point not in submitted.not_accepted]
            whole = len(again) == len(array.points)
            requests.cancel(array.plan, {point: array.job if whole else str(old[point]) for point in again})
        if left := [*submitted.not_accepted, *requests.failed]:
            reason = next((str(error) for error in requests.failed.values()), submitted.limit)
            raise QueryError(f"jobs of its points {ranges(sorted(left))} stay held: {reason}")


def _never_started(statuses: Iterable[PointStatus], array_of: Callable[[str], str], job: str) -> list[int]:
    ends = (RunState.FAILED.value, RunState.LOST.value)
    over = [(each.point.index, each.seen.history) for each in statuses if each.state in ends and each.seen]
    return [index for index, history in over if history.attempt is None and array_of(history.job_id or "") == job]


def _cancel_in_pilots(
    sweep: Sweep, points: Collection[int] | None, packing: Packing, unmarked: list[OSError]
) -> list[PointStatus]:
    """Cancels points of a packed sweep (None: all, once it is marked), but no pilot; needs the submitter's lock."""
    monitor = JobMonitor()
    seen = [each for each in point_statuses(sweep, monitor, points, cancelled=False) if not each.over]
    claims = monitor.claims.of(sweep, packing)
    for each in seen:
        if points is not None or claims.log(each.point.index).begun:  # for others, the sweep's mark is enough
            with _collected(unmarked):
                each.point.run.journal(run_status.cancelled(), sync=False)
            with _collected(unmarked):
                run_status.cancel_point(each.point.run)
    return seen


def _cancel_pilots(sweep: Sweep, kill: bool, unmarked: list[OSError]) -> list[RunStatus]:
    monitor, requests = JobMonitor(), _Requests()
    live = live_pilots(sweep, monitor)
    for number, pilot in enumerate(live):
        requests.send(pilot.plan, [number], partial(_cancel_run, monitor, pilot.run, kill, unmarked))
    if requests.failed:
        names = ", ".join(live[number].run.id for number in requests.failed)
        reasons = "; ".join(dict.fromkeys(str(error) for error in requests.failed.values()))
        raise QueryError(
            f"the points of {sweep.id} are cancelled; its pilots' jobs ({names}) will see it and end: {reasons}"
        )
    return live


def _cancel(sweep: Sweep, points: Collection[int] | None, kill: bool, unmarked: list[OSError]) -> list[PointStatus]:
    live = JobMonitor()
    _recover_unconfirmed(sweep)
    statuses = point_statuses(sweep, live, cancelled=False)  # each point is marked as cancelled below
    chosen = {
        each.point.index: each for each in statuses if not each.over and (points is None or each.point.index in points)
    }
    # A point without a run directory cannot be marked; for it the mark of the sweep is enough.
    runs = {index: each.point.run for index, each in chosen.items() if each.point.run.recorded()}
    for run in runs.values():  # before their jobs end, because otherwise another attempt would be submitted
        with _collected(unmarked):
            run.journal(run_status.cancelled(), sync=False)
        with _collected(unmarked):
            run.mark("cancelled")
    arrays, alone = live_arrays(statuses, sweep.submissions())
    jobs: dict[int, str] = {each.point.index: each.seen.history.job_id or "" for each in statuses if each.seen}
    requests = _Requests()
    for started in (False, True):  # pending jobs first: one of them may start when another job ends
        for array in arrays:
            own = [index for index in array.points if index in chosen]
            if own and started == (array.pending < len(array.points)):
                whole = len(own) == len(array.points)
                requests.cancel(array.plan, {index: array.job if whole else jobs[index] for index in own})
        for each in alone:
            if each.point.index in chosen and started == (each.state in STARTED):
                assert each.seen is not None, "it may have a job of its own"
                request = partial(_cancel_run, live, each.point.run, kill, unmarked)
                requests.send(each.seen.plan, [each.point.index], request)
    for index, error in requests.failed.items():
        if index in runs and not isinstance(error, AnswerLost) and runs[index].has("cancelled"):
            runs[index].unmark("cancelled")
            with contextlib.suppress(OSError):
                runs[index].journal(CancelFailed(error=str(error)), sync=False)
    for index in runs.keys() - requests.failed.keys():
        if (point := chosen[index].seen) is not None:
            secret.forget(str(runs[index].path), point.plan.secrets_dir)
    if requests.failed:
        done = sorted(chosen.keys() - requests.failed.keys())
        rest = f"; cancelled: {ranges(done)}" if done else ""
        reasons = dict.fromkeys(str(error) for error in requests.failed.values())
        raise QueryError(f"points {ranges(sorted(requests.failed))} of {sweep.id}: {'; '.join(reasons)}{rest}")
    return list(chosen.values())


class _Requests:
    # A scheduler whose answer was lost, or that failed MOST_FAILURES times in a row, is not asked again: each request
    # would take its time.

    def __init__(self) -> None:
        self.failed: dict[int, LauncherError] = {}  # by point
        self._in_a_row: dict[str, int] = {}  # failures, by scheduler
        self._last: dict[str, LauncherError] = {}  # error of the last failure, by scheduler

    def cancel(self, plan: JobPlan, jobs: Mapping[int, str]) -> None:
        """Cancels the jobs of points with one command; where that fails, each by itself, to know which cannot be."""
        points, whole = list(jobs), len({*jobs.values()}) == 1
        try:
            for part in parts(len(points), None if whole else io_bounds.CANCELLED_JOBS):
                members = points[part.start : part.stop]
                ids = dict.fromkeys(jobs[index] for index in members)
                self.send(plan, members, partial(run_status.queries(plan).cancel, *ids))
                error = self.failed.get(members[0])
                if len(ids) > 1 and error is not None and not isinstance(error, AnswerLost):
                    for index in members:
                        self.failed.pop(index)
                        self.send(plan, [index], partial(run_status.queries(plan).cancel, jobs[index]))
        finally:
            run_status.forget(plan)

    def send(self, plan: JobPlan, points: Collection[int], request: Callable[[], None]) -> None:
        name = plan.cluster.scheduler
        if self._in_a_row.get(name, 0) >= MOST_FAILURES:
            self.failed.update(dict.fromkeys(points, QueryError(f"not asked: {self._last[name]}")))
            return
        try:
            request()
        except LauncherError as error:
            lost = isinstance(error, AnswerLost)
            self._in_a_row[name] = MOST_FAILURES if lost else self._in_a_row.get(name, 0) + 1
            self._last[name] = error
            self.failed.update(dict.fromkeys(points, error))
        else:
            self._in_a_row[name] = 0


def _recover_unconfirmed(sweep: Sweep) -> None:
    if any(each.job is None for each in sweep.submissions()):
        from launcher.sweeps.submit import recover

        recover(sweep, {})


def throttle(sweep: Sweep, most: int) -> list[tuple[str, int]]:
    """Sets how many points may run at once; returns each array that was changed, with its number; raises QueryError."""
    with only_submitter(sweep.path):
        sweep.write(dataclasses.replace(sweep.manifest(), parallelism=most))
        live = live_jobs(point_statuses(sweep), sweep.submissions())
        return sweep_status.throttle_each(live, shares(most, [len(each.points) for each in live]))


def points_to_restart(statuses: Sequence[PointStatus], points: Collection[int] | None) -> list[int]:
    """Returns the numbers of the points to restart: those that the user named or, by default, all that need it.

    | state of the point | restarted by default | may be named |
    |---|---|---|
    | failed, stopped, lost | yes | yes |
    | waiting: not submitted, or not yet started on this machine | yes | yes |
    | unconfirmed: submission looks for its job first | yes | yes |
    | cancelled, pruned | no | yes |
    | done | no | no |
    | queued, running, suspended, unknown | no | no |

    Raises RunError: the user named a point that may not be restarted.
    """
    points = None if points is None else set(points)
    fixed = (RunState.DONE.value, RunState.QUEUED.value, *STARTED, RunState.UNKNOWN.value)
    considered = [each for each in statuses if points is None or each.point.index in points]
    refused: dict[str, list[int]] = {}  # by state
    for each in considered if points is not None else ():
        if each.state in fixed:
            refused.setdefault(each.state, []).append(each.point.index)
    if refused:
        shown = ", ".join(f"{ranges(indices)} {state}" for state, indices in refused.items())
        raise RunError(f"nothing was submitted: only points that are over and not done can be restarted ({shown})")
    kept = (*fixed, *ONLY_NAMED) if points is None else fixed
    return [each.point.index for each in considered if each.state not in kept]


def rerun(
    sweep: Sweep, points: Collection[int] | None, confirm: Callable[[Mapping[int, JobPlan]], None] = lambda _: None,
    secrets: Callable[[Run], Mapping[str, str]] = lambda _: {},
) -> SubmittedSweep | None:  # fmt: skip
    """Restarts points of a sweep, as `points_to_restart` says; None: there are none; secrets: see `submit.resubmit`.

    confirm: called with their plans before the submission; raises an error if the user declines. Points whose records
    cannot be read are left out, and printed, unless they are named.
    """
    from launcher.sweeps.submit import resubmit

    with only_submitter(sweep.path):
        _recover_unconfirmed(sweep)
        chosen = points_to_restart(point_statuses(sweep), points)
        made = [index for index in chosen if sweep.run(index).recorded()]
        if missing := sorted({*chosen} - {*made}):
            why = f"points {ranges(missing)} have not been made: repeat the sweep's command with sweep.id={sweep.id}"
            if points is not None or not made:
                raise RunError(f"nothing was submitted: {why}")
            print(f"launcher: {why}", file=sys.stderr)
        found = {index: or_damaged(sweep.run(index), sweep.run(index).plan) for index in made}
        plans = {index: each for index, each in found.items() if not isinstance(each, DamagedRun)}
        for index, each in found.items():
            if isinstance(each, DamagedRun):
                if points is not None or not plans:
                    raise each.error()
                print(f"launcher: point {index} is left out: {each.message}", file=sys.stderr)
        if not plans:
            return None
        confirm(plans)
        left_out = tuple(sorted({*chosen} - {*plans}))
        return dataclasses.replace(resubmit(sweep, list(plans), secrets), left_out=left_out)
