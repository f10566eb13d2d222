"""Changes to a sweep that is under way: ending points, starting points again, how many run at once.

Each takes the submitter's lock, so that nobody hands points over meanwhile.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from launcher.environment import secrets as secret
from launcher.errors import LauncherError, RunError
from launcher.formatting import ranges
from launcher.monitoring.live import cancelled, forget, queries
from launcher.monitoring.state import RunState
from launcher.monitoring.sweep import PointStatus, SweepMonitor, point_statuses
from launcher.runs.directory import Run, only_submitter
from launcher.runs.events import CancelFailed
from launcher.runs.sweep_directory import Submission, Sweep, element_id
from launcher.schedulers import registry
from launcher.schedulers.queries import AnswerLost
from launcher.spec.plan import JobPlan
from launcher.sweeps.grouping import shares

if TYPE_CHECKING:
    from launcher.sweeps.submit import SubmittedSweep

BEGUN = (RunState.RUNNING.value, RunState.SUSPENDED.value)  # states of points that their array has started


@dataclass(frozen=True)
class LiveArray:
    """An array some of whose points are not over.

    Attributes:
        job: its id, as its scheduler wants it.
        plan: of one of its points.
        points: those that are not over.
        pending: how many of them have not begun.
    """

    job: str
    plan: JobPlan
    points: tuple[int, ...]
    pending: int


def live_arrays(
    seen: Sequence[PointStatus], submissions: Sequence[Submission]
) -> tuple[list[LiveArray], list[PointStatus]]:
    """The arrays that are not over, and points that are not over and whose jobs are their own. Pure."""
    by_job = {
        element_id(each.job, number): each for each in submissions if each.job for number in range(len(each.points))
    }
    members: dict[str, list[PointStatus]] = {}
    alone = []
    for each in seen:
        if not each.live or each.seen is None:
            continue
        submission = by_job.get(each.seen.history.job_id or "")
        if submission is None or not each.seen.plan.queued:
            alone.append(each)
        else:
            members.setdefault(submission.token, []).append(each)
    return [_array(found) for found in members.values()], alone


def _array(members: Sequence[PointStatus]) -> LiveArray:
    first = members[0].seen
    assert first is not None and first.history.job_id is not None
    job = registry.queue(first.plan.cluster.scheduler).array_of(first.history.job_id)
    pending = sum(each.state not in BEGUN for each in members)
    return LiveArray(job, first.plan, tuple(each.point.index for each in members), pending)


def cancel(sweep: Sweep, points: Collection[int] | None = None, *, kill: bool = False) -> dict[int, str]:
    """Ends points, and keeps those from beginning that have not begun.

    Args:
        sweep: the sweep.
        points: which; None: all of them.
        kill: at once, where they run on this machine.

    Returns:
        What each was before; those that were over already stay as they are.

    Raises:
        RunError: one runs on another machine.
        QueryError: a scheduler does not answer. Points whose end it was not asked for are what they were before.
    """
    before = sweep.cancelled()
    if points is None:
        sweep.mark_cancelled(True)  # first: whoever starts points on this machine looks for it
    try:
        with only_submitter(sweep.path):
            return _cancel(sweep, points, kill)
    except LauncherError:
        if points is None:
            sweep.mark_cancelled(before)
        raise


def _cancel(sweep: Sweep, points: Collection[int] | None, kill: bool) -> dict[int, str]:
    """See `cancel`; the lock is held."""
    live = SweepMonitor()
    _settle(sweep)
    seen = point_statuses(sweep, live, cancelled=False)  # each point gets a mark of its own
    meant = [each for each in seen if not each.over and (points is None or each.point.index in points)]
    wanted = {each.point.index: each for each in meant}
    # For one that has never been made the sweep's own mark is enough.
    runs = {index: each.point.run for index, each in wanted.items() if each.point.run.recorded()}
    for run in runs.values():  # first, or they would go on in another attempt
        run.journal(cancelled(), sync=False)
        run.mark("cancelled")
    asked: set[int] = set()
    try:
        arrays, alone = live_arrays(seen, sweep.submissions())
        jobs: dict[int, str] = {each.point.index: each.seen.history.job_id or "" for each in seen if each.seen}
        for begun in (False, True):  # those first that wait for another to end
            for array in arrays:
                if begun != (array.pending < len(array.points)):
                    continue
                own = [index for index in array.points if index in wanted]
                whole = len(own) == len(array.points)
                try:
                    for job, members in [(array.job, own)] if whole else [(jobs[index], [index]) for index in own]:
                        _end(array.plan, job, members, asked)
                finally:
                    forget(array.plan)
            for each in alone:
                if each.point.index in wanted and begun == (each.state in BEGUN):
                    asked.add(each.point.index)  # `cancel` of a run takes its own mark back
                    live.cancel(each.point.run, kill=kill)
    except LauncherError as error:
        for index in runs.keys() - asked:
            runs[index].unmark("cancelled")
            runs[index].journal(CancelFailed(error=str(error)), sync=False)
        raise
    for index, run in runs.items():
        if (point := wanted[index].seen) is not None:
            secret.forget(str(run.path), point.plan.secrets_dir)
    return {index: each.state for index, each in wanted.items()}


def _end(plan: JobPlan, job: str, members: Collection[int], asked: set[int]) -> None:
    """Asks for the end of a job, and adds its points to `asked` unless it is known that the request did not arrive."""
    try:
        queries(plan).cancel(job)
    except AnswerLost:
        asked.update(members)
        raise
    asked.update(members)


def _settle(sweep: Sweep) -> None:
    """Finds out what became of arrays whose submitter was killed before it knew; the lock is held."""
    if any(each.job is None for each in sweep.submissions()):
        # Lazily: submitit takes 45 ms, and whoever cancels needs none of it
        from launcher.sweeps.submit import recover

        recover(sweep, {})


def throttle(sweep: Sweep, most: int) -> list[tuple[str, int]]:
    """Sets how many points may run at once; what each array got. On this machine it is the manifest that counts.

    Raises:
        QueryError: a scheduler does not answer.
    """
    with only_submitter(sweep.path):
        sweep.write(dataclasses.replace(sweep.manifest(), parallelism=most))
        arrays, alone = live_arrays(point_statuses(sweep), sweep.submissions())
        queued = [each for each in alone if each.seen and each.seen.plan.queued]  # they cannot be kept back
        parts = shares(most, [len(array.points) for array in arrays] + [1] * len(queued))
        given = [(array, part) for array, part in zip(arrays, parts, strict=False) if array.pending and part]
        for array, part in given:
            queries(array.plan).throttle(array.job, part)
    return [(array.job, part) for array, part in given]


def again(seen: Sequence[PointStatus], wanted: Collection[int] | None) -> list[int]:
    """The points that are to be started again: the wanted ones, or all that are over and not done, or wait. Pure.

    | the point | is meant by default | may be named |
    |---|---|---|
    | failed, stopped, cancelled, lost | yes | yes |
    | waiting: never handed over, or its turn has not come | yes | yes |
    | unconfirmed: whoever submits it looks for its job first | yes | yes |
    | done | no | no |
    | queued, running, suspended, unknown | no | no |

    Raises:
        RunError: a wanted one may not be started again.
    """
    fixed = (RunState.DONE.value, RunState.QUEUED.value, *BEGUN, RunState.UNKNOWN.value)
    meant = [each for each in seen if wanted is None or each.point.index in wanted]
    refused = {each.point.index: each.state for each in meant if wanted is not None and each.state in fixed}
    if refused:
        states: Mapping[str, list[int]] = {state: [] for state in refused.values()}
        for index, state in refused.items():
            states[state].append(index)
        told = ", ".join(f"{ranges(indices)} {state}" for state, indices in states.items())
        raise RunError(f"nothing was submitted: only what is over and not done is started again ({told})")
    return [each.point.index for each in meant if each.state not in fixed]


def rerun(
    sweep: Sweep, wanted: Collection[int] | None, ask: Callable[[Sequence[int]], None] = lambda _: None,
    secrets: Callable[[Run], Mapping[str, str]] = lambda _: {},
) -> SubmittedSweep | None:  # fmt: skip
    """Starts points again, see `again`; None: there are none.

    Args:
        sweep: the sweep.
        wanted: these points; None: all that need it.
        ask: is called with the points before they are submitted, and raises if they are not to be.
        secrets: composes those that a point's config sets; see `launcher.sweeps.submit.resubmit`.

    Raises:
        RunError: a wanted one is done, or not over.
        SubmissionError: the scheduler refused, or did not answer.
    """
    # Lazily: submitit takes 45 ms, and whoever cancels needs none of it
    from launcher.sweeps.submit import resubmit

    with only_submitter(sweep.path):
        _settle(sweep)
        chosen = again(point_statuses(sweep), wanted)
        if missing := [index for index in chosen if not sweep.run(index).recorded()]:
            raise RunError(
                f"nothing was submitted: points {ranges(missing)} have not been made: repeat the command that makes "
                "the sweep, which completes it"
            )
        if not chosen:
            return None
        ask(chosen)
        return resubmit(sweep, chosen, secrets)
