"""Decides how a run continues after an attempt that stopped early, and lets the scheduler continue it.

The job script runs `python -m launcher.job.requeue RUN_DIR [stop_requested]`, with the last word if the script itself
got a stop request. Exit codes: 0 the run continues in another start of the job or in another job, 10 in this script; 75
it stays stopped; 93 it is given up. The reason is printed, and written to the attempt's events.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from launcher import errors
from launcher.checkpoint import format as checkpoints
from launcher.config.schema import ResumeHow
from launcher.errors import LauncherError
from launcher.failures import text
from launcher.failures.codes import NextReason, StopReason
from launcher.files.shared_files import is_transient, retry_read, unwrap
from launcher.runs import saves
from launcher.runs.directory import Attempt, Run
from launcher.runs.event_writer import Events, current_attempt
from launcher.runs.events import Continues, Progress, Stays, Stop, Stopped, Submitted, Submitting, every, last
from launcher.runs.time_left import time_left
from launcher.schedulers import job_script, registry
from launcher.schedulers.queries import Ending, QueryError
from launcher.schedulers.scheduler import JOB_TIMEOUT, Requeues, ShowsPreemption
from launcher.schedulers.successor import submit_after
from launcher.spec.plan import JobPlan
from launcher.submission.dependencies import update_followers


class What(IntEnum):
    """What becomes of a run; the values are this program's exit codes."""

    ELSEWHERE = 0
    HERE = 10
    STAYS = errors.RESUME
    GIVEN_UP = errors.NO_RETRY


@dataclass(frozen=True)
class Decision:
    """What becomes of a run.

    Attributes:
        what: the exit code of this program.
        event: the event of it, with the reason.
    """

    what: What
    event: Continues | Stays


def continues(what: What, reason: NextReason, job: str | None = None) -> Decision:
    """Returns that a run continues; `job`: the id of the job in which it does, if known."""
    return Decision(what, Continues(what=what.name.lower(), reason=reason, job=job))


def stays(what: What, reason: NextReason, **details: Any) -> Decision:
    """Returns that a run stays stopped, or is given up; `details`: other fields of the event."""
    return Decision(what, Stays(what=what.name.lower(), reason=reason, **details))


def decide(plan: JobPlan, attempt: int, steps: Sequence[int], marker: str | None, ending: Ending | None) -> Decision:
    """Returns what becomes of a run. Pure; the first row that applies decides.

    | what is seen | the run |
    |---|---|
    | RUN/cancelled or RUN/stop | stays stopped, as its owner wants |
    | resume.how=never | stays stopped |
    | two attempts in a row without progress | is given up |
    | as many attempts as resume.max_attempts | is given up |
    | the scheduler ends the job, not for its wall time | stays stopped: a scheduler requeues what it preempts |
    | otherwise | continues |

    If anything that this depends on cannot be read now, the caller leaves the run stopped.

    Args:
        plan: the run.
        attempt: number of the attempt that stopped.
        steps: progress of the run at the end of each attempt so far, this one last; -1: nothing was saved.
        marker: `stop` or `cancelled`, if there is such a file.
        ending: why the scheduler ends the job; None: it does not.
    """
    if marker is not None:
        return stays(What.STAYS, NextReason.CANCELLED if marker == "cancelled" else NextReason.STOP_FILE)
    if plan.resume.how == ResumeHow.never.value:
        return stays(What.STAYS, NextReason.RESUME_NEVER)
    before = [-1, *steps[:-1]]
    if len(steps) > 1 and all(now <= then for now, then in zip(steps[-2:], before[-2:], strict=True)):
        where = {"saves_in": saves.describe_locations(plan)} if plan.own_code else {"step": max(steps[-1], 0)}
        return stays(What.GIVEN_UP, NextReason.NO_PROGRESS, limit=plan.time, **where)
    if attempt + 1 >= plan.resume.max_attempts:
        return stays(What.GIVEN_UP, NextReason.MAX_ATTEMPTS, attempts=attempt + 1)
    if ending is not None:
        return stays(
            What.STAYS, ending.reason, scheduler=ending.scheduler or None, state=ending.state or None
        )  # fmt: skip
    return continues(What.ELSEWHERE if plan.queued else What.HERE, NextReason.RESUMABLE)


def further(ends: Sequence[tuple[int, int]]) -> list[int]:
    """Returns the progress of the run at the end of each attempt, for `decide`. Pure.

    That is its step; for a program a number that grows with every further step or save.

    Args:
        ends: for each attempt: steps, and when the newest file was written (-1: unknown, or not looked for).
    """
    if all(saved < 0 for _, saved in ends):
        return [step for step, _ in ends]
    found: list[int] = []
    best, newest = -1, -1
    for step, saved in ends:
        found.append((found[-1] if found else -1) + (step > best or saved > newest))
        best, newest = max(best, step), max(newest, saved)
    return found


def main(run_dir: str, stop_requested: bool) -> int:
    """Decides, and acts on it; returns the exit code.

    Args:
        run_dir: the run directory.
        stop_requested: whether the job script got a stop request.
    """
    attempt = current_attempt()
    assert attempt is not None, "only a job script of the launcher starts this"
    run, events = attempt.run, Events(attempt, "requeue")
    try:
        found = _continue(attempt, events, stop_requested)
    except (LauncherError, OSError) as error:
        if not is_transient(error):
            raise
        # It may have been cancelled, or have more progress than can be seen: it is neither continued nor given up.
        found = stays(What.STAYS, NextReason.UNREADABLE, error=str(error))
    events(found.event)
    why = text.of_next(found.event)
    lines = {
        What.ELSEWHERE: f"continues: {why}", What.HERE: "continues", What.STAYS: f"stays stopped: {why}",
        What.GIVEN_UP: f"is given up: {why}",
    }  # fmt: skip
    print(f"launcher: {run.id} {lines[found.what]}", file=sys.stderr)
    if found.event.reason in (NextReason.UNREADABLE, NextReason.NOT_SUBMITTED):
        print(f"launcher: `launcher resume {run.id}` continues it", file=sys.stderr)
    return found.what


def _continue(attempt: Attempt, events: Events, stop_requested: bool) -> Decision:
    """Decides what becomes of the run; if it continues elsewhere, requeues or resubmits its job.

    Raises:
        UnavailableError, OSError: something that the decision needs cannot be read now.
    """
    run = attempt.run
    plan = run.own_plan()
    saved = unwrap(retry_read(lambda: saves.newest(plan), plan.checkpoint.dir)) if plan.own_code else None
    preempted = _preempted(plan, attempt)
    events(Stopped(step=_reached(plan, attempt), saved=-1 if saved is None else saved, preempted=preempted))
    stopped = [event for each in run.attempts() for event in every(each.events(), Stopped)]
    steps = further([(event.step, event.saved) for event in stopped if event.step is not None])  # else it is unknown
    marker = next(filter(run.has, ("cancelled", "stop")), None)
    found = decide(plan, attempt.number, steps, marker, _ending(plan, stop_requested))
    if found.what is What.ELSEWHERE:
        try:
            return _continue_elsewhere(plan, attempt)
        except LauncherError as error:
            return stays(What.STAYS, NextReason.NOT_SUBMITTED, error=str(error))
    return found


def _preempted(plan: JobPlan, attempt: Attempt) -> bool:
    """Returns whether the scheduler shows that it has begun to preempt this job since the attempt began.

    Once a job has left within its partition's GraceTime, Slurm no longer shows that it was being preempted.
    """
    scheduler = registry.scheduler(plan.cluster.scheduler)
    if not isinstance(scheduler, ShowsPreemption):
        return False
    begun = min((float(event["time"]) for event in attempt.events()), default=0.0)
    try:
        return (scheduler.preempted(os.environ["LAUNCHER_JOB_ID"]) or 0.0) >= int(begun)
    except QueryError:
        return False


def _reached(plan: JobPlan, attempt: Attempt) -> int | None:
    """Returns how many steps of the run are saved; -1: none; None: unknown, since checkpoints cannot be read.

    For a program that saves in a way of its own, and was not stopped by the launcher, its last reported step counts.
    """
    if any(event.reason is StopReason.UNREADABLE for event in every(attempt.events(), Stop)):
        return None
    try:
        step = checkpoints.newest_step(Path(plan.checkpoint.dir))
    except checkpoints.Unavailable:
        return None
    if plan.own_code:
        reported = [int(event.step) for event in every(attempt.events(), Progress)]
        return max([-1 if step is None else int(step), *reported])
    if step is None:
        events = attempt.events()
        progress = None if last(events, Stop) else last(events, Progress)
        return -1 if progress is None else int(progress.step)
    return int(step)


def _ending(plan: JobPlan, stop_requested: bool) -> Ending | None:
    """Returns why the scheduler ends this job, unless for its wall time; None: it does not."""
    known_left = time_left(os.environ)
    left = math.inf if known_left is None else known_left.seconds
    return registry.scheduler(plan.cluster.scheduler).ending(plan, stop_requested=stop_requested, left=left)


def _continue_elsewhere(plan: JobPlan, attempt: Attempt) -> Decision:
    """Lets the scheduler start the run once more, in the way that resume.how asks for.

    Raises:
        LauncherError: the scheduler refused.
    """
    how, scheduler = plan.resume.how, registry.scheduler(plan.cluster.scheduler)
    if how == ResumeHow.chain.value:
        return continues(What.ELSEWHERE, NextReason.CHAIN)
    if isinstance(scheduler, Requeues) and how in (ResumeHow.auto.value, ResumeHow.requeue.value):
        try:
            job = os.environ["LAUNCHER_JOB_ID"]
            scheduler.requeue(job)
            return continues(What.ELSEWHERE, NextReason.REQUEUED, job)
        except QueryError as error:
            if how == ResumeHow.requeue.value:
                raise
            print(f"launcher: not requeued ({error}): a new job is submitted", file=sys.stderr)
    job = _resubmit(plan, attempt)
    return continues(What.ELSEWHERE, NextReason.RESUBMITTED, job)


def _resubmit(plan: JobPlan, attempt: Attempt) -> str:
    """Submits the run's script as a new job that starts when this one has ended. Returns its id."""
    job = registry.queue(plan.cluster.scheduler).own_job(os.environ)
    return resubmit(
        plan, attempt.run, str(attempt.number + 1),
        lambda script, token, environment: submit_after(plan, job, script, token, environment, JOB_TIMEOUT),
    )  # fmt: skip


def resubmit(plan: JobPlan, run: Run, suffix: str, submit: Callable[[str, str, Mapping[str, str]], str]) -> str:
    """Submits the run's script as a new job, and updates the jobs that depend on the run. Returns the job's id.

    Args:
        plan: the run.
        run: its directory.
        suffix: distinguishes the new job's token from those of the run's other jobs.
        submit: submits the script with this path, token and environment.

    Raises:
        LauncherError: the scheduler refused.
    """
    script = run.path / "script.sh"
    if run.recorded():
        token = f"{run.record()['token']}-{suffix}"
    else:
        array = Run(run.path.parent)
        token = f"{array.record()['token']}-{run.path.name}-{suffix}"
    if not run.has("script.sh"):  # an element of an array continues as a single job
        script = run.write_script(job_script.script(plan, token=token))
    environment = registry.queue(plan.cluster.scheduler).environment_within(plan, run)
    run.journal(Submitting(token=token))
    job_id = submit(str(script), token, environment)
    run.journal(Submitted(job=job_id))
    for problem in update_followers(run.path):
        print(f"launcher: a dependency was not updated to job {job_id}: {problem}", file=sys.stderr)
    return job_id


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], stop_requested="stop_requested" in sys.argv[2:]))
