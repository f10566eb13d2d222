"""Decides whether a run continues after an attempt that stopped early, and requeues or resubmits its job if so.

The job script runs `python -m launcher.job.requeue RUN_DIR [stop_requested]`; it adds `stop_requested` if it got a stop
request itself. The reason is printed, and written to the attempt's events.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any

from launcher import errors
from launcher.checkpoint import format as checkpoints
from launcher.config.schema import ResumeHow
from launcher.errors import LauncherError, SubmissionError, is_transient
from launcher.failures import messages
from launcher.failures.codes import NextReason, StopReason
from launcher.files.retried_reads import Ok, retry_read
from launcher.plan.plan import JobPlan
from launcher.runs import events as kinds
from launcher.runs import lease_and_locks, user_checkpoints
from launcher.runs.directory import Attempt, Events, Run, current_attempt
from launcher.runs.history import journal_events
from launcher.runs.job_file import time_left
from launcher.schedulers import registry
from launcher.schedulers.base import JOB_TIMEOUT, AnswerLost, Ending, QueryError, Scheduler
from launcher.schedulers.run_command import SubmissionRefused, submit_behind
from launcher.submission import race, render
from launcher.submission.dependencies import update_followers


class What(IntEnum):
    """Whether and where a run continues. The values are the exit codes of this program."""

    ELSEWHERE = 0  # in another start of the job, or in another job
    HERE = 10  # in this job script
    STAYS = errors.RESUME  # stopped
    GIVEN_UP = errors.NO_RETRY


def continues(what: What, reason: NextReason, job: str | None = None) -> kinds.Continues:
    return kinds.Continues(what=what.name.lower(), reason=reason, job=job)


def stays(what: What, reason: NextReason, **details: Any) -> kinds.Stays:
    return kinds.Stays(what=what.name.lower(), reason=reason, **details)


def decide(
    plan: JobPlan, attempt: int, steps: Sequence[int], marker: str | None, ending: Ending | None,
    following: int | None = None,
) -> kinds.Continues | kinds.Stays:  # fmt: skip
    """Returns whether a run continues after an attempt that stopped early. The first row that applies decides.

    | condition | the run |
    |---|---|
    | RUN/cancelled or RUN/stop exists | stays stopped, as its owner wants |
    | resume.how=never | stays stopped |
    | two attempts in a row without progress, not counting preempted ones | is given up |
    | the scheduler ends the job, not for its wall time | stays stopped: a scheduler requeues what it preempts; of a |
    | | chain, the next job starts nonetheless, if one follows |
    | it has had resume.max_attempts attempts; of a chain, no job follows | is given up |
    | otherwise | continues |

    If an input cannot be read now, the caller leaves the run stopped and does not call this. following: number of jobs
    of the chain that wait for this one: a job that was requeued has had several attempts; None: no chain, or not known.
    """
    if marker is not None:
        return stays(What.STAYS, NextReason.CANCELLED if marker == "cancelled" else NextReason.STOP_FILE)
    if plan.resume.how == ResumeHow.never.value:
        return stays(What.STAYS, NextReason.RESUME_NEVER)
    before = [-1, *steps[:-1]]
    if len(steps) > 1 and all(now <= then for now, then in zip(steps[-2:], before[-2:], strict=True)):
        where = (
            {"saves_in": user_checkpoints.describe_locations(plan)} if plan.own_code else {"step": max(steps[-1], 0)}
        )
        return stays(What.GIVEN_UP, NextReason.NO_PROGRESS, limit=plan.time, **where)
    if ending is not None and not following:
        return stays(What.STAYS, ending.reason, scheduler=ending.scheduler or None, state=ending.state or None)
    if following == 0 or (following is None and attempt + 1 >= plan.resume.max_attempts):
        return stays(What.GIVEN_UP, NextReason.MAX_ATTEMPTS, attempts=attempt + 1 if following is None else None)
    return continues(What.ELSEWHERE if plan.queued else What.HERE, NextReason.RESUMABLE)


def counted(stopped: Sequence[kinds.Stopped]) -> list[int]:
    """Returns the progress of the run at the end of each stopped attempt that counts, in order, for `decide`.

    A preempted attempt does not count, nor one with unknown progress. If the last one does not count, none does: it
    shows nothing new about the run.
    """
    if not stopped or stopped[-1].preempted or stopped[-1].step is None:
        return []
    return further([(each.step, each.saved) for each in stopped if each.step is not None and not each.preempted])


def further(ends: Sequence[tuple[int, int]]) -> list[int]:
    """Returns the progress at the end of each attempt, of (last step, time of the newest file or -1): the step, or with
    save times the number of attempts that reached a further step or saved something.
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
    attempt = current_attempt()
    assert attempt is not None, "only a job script of the launcher starts this"
    run, events = attempt.run, Events(attempt, "requeue")
    try:
        found = _continue(attempt, events, stop_requested)
    except lease_and_locks.LeaseLost as error:
        print(f"launcher: {error}", file=sys.stderr)
        return What.ELSEWHERE
    except (LauncherError, OSError) as error:
        if not is_transient(error):
            raise
        # The run may have been cancelled, or have saved progress that cannot be read: do not continue it or give it up.
        found = stays(What.STAYS, NextReason.UNREADABLE, error=str(error))
    events(found)
    what, why = What[found.what.upper()], messages.of_next(found)
    lines = {
        What.ELSEWHERE: f"continues: {why}", What.HERE: "continues", What.STAYS: f"is stopped: {why}",
        What.GIVEN_UP: f"has failed: {why}",
    }  # fmt: skip
    print(f"launcher: {run.id} {lines[what]}", file=sys.stderr)
    if found.reason in (NextReason.UNREADABLE, NextReason.NOT_SUBMITTED):
        print(f"launcher: `launcher resume {run.id}` continues it", file=sys.stderr)
    return what


def _continue(attempt: Attempt, events: Events, stop_requested: bool) -> kinds.Continues | kinds.Stays:
    # Writes the event Stopped before. There is little time, and each of thousands of nodes may have an event file: only
    # those are read that have the answer
    run = attempt.run
    plan = run.plan()
    stopped = [event for each in run.attempts() for event in kinds.every(each.written_by("requeue"), kinds.Stopped)]
    saved = _saved(plan, attempt, stopped) if plan.own_code else -1
    step = None if saved is None else _reached(plan, attempt)
    stopped.append(kinds.Stopped(step=step, saved=-1 if saved is None else saved, preempted=_preempted(plan, attempt)))
    events(stopped[-1])
    marker = next(filter(run.has, ("cancelled", "stop")), None)
    following = _following(run) if plan.resume.how == ResumeHow.chain.value else None
    found = decide(plan, attempt.number, counted(stopped), marker, _ending(plan, stop_requested), following)
    lease_and_locks.require()  # at the last moment: the job with this id may be running again, for another attempt
    if found.what == What.ELSEWHERE.name.lower():
        try:
            return _continue_elsewhere(plan, attempt)
        except LauncherError as error:
            return stays(What.STAYS, NextReason.NOT_SUBMITTED, error=str(error))
    return found


def _following(run: Run) -> int | None:
    submitted, job = kinds.last(journal_events(run), kinds.Submitted), os.environ.get("LAUNCHER_JOB_ID", "")
    jobs = () if submitted is None else (submitted.job, *submitted.chain)
    return len(jobs) - 1 - jobs.index(job) if job in jobs else None  # a command may not have written it yet


def _began(attempt: Attempt) -> float:
    started = kinds.first(attempt.written_by("script"), kinds.Started)
    return 0.0 if started is None else started.time


def _preempted(plan: JobPlan, attempt: Attempt) -> bool:
    # Whether the scheduler shows that it has begun to preempt this job since the attempt started; False: unknown. Slurm
    # no longer shows the preemption of a job that has exited within its partition's GraceTime
    scheduler = registry.scheduler(plan.cluster.scheduler)
    try:
        begun = scheduler.preempted(os.environ.get("LAUNCHER_JOB_ID", ""))
    except QueryError:
        return False
    return begun is not None and begun >= int(_began(attempt))


def _saved(plan: JobPlan, attempt: Attempt, before: Sequence[kinds.Stopped]) -> int | None:
    began = _began(attempt)
    enough = max([int(began * 1e9), *(each.saved for each in before)]) if began else math.inf
    seconds = min(user_checkpoints.SCAN_TIMEOUT, max(_seconds_left() / 2, 3.0))
    found = retry_read(
        lambda: user_checkpoints.newest(plan, enough, seconds), plan.checkpoint.dir, retry_seconds=seconds
    )
    return found.value if isinstance(found, Ok) else None


def _reached(plan: JobPlan, attempt: Attempt) -> int | None:
    # The run's newest saved step; -1: none; None: checkpoints cannot be read. Reported steps count as well for a user's
    # program, and in a run without checkpoints that got no stop request: it may save in a format of its own
    stops = [stop for writer in ("script", "stop") for stop in kinds.every(attempt.written_by(writer), kinds.Stop)]
    if any(stop.reason is StopReason.UNREADABLE for stop in stops):
        return None
    try:
        step = checkpoints.newest_step(Path(plan.checkpoint.dir))
    except checkpoints.CannotRead:
        return None
    if plan.own_code:
        reported = [int(event.step) for event in kinds.every(attempt.written_by("rank-0"), kinds.Progress)]
        return max([-1 if step is None else int(step), *reported])
    if step is None:
        events = attempt.latest_events()
        progress = None if kinds.last(events, kinds.Stop) else kinds.last(events, kinds.Progress)
        return -1 if progress is None else int(progress.step)
    return int(step)


def _ending(plan: JobPlan, stop_requested: bool) -> Ending | None:
    scheduler = registry.scheduler(plan.cluster.scheduler)
    return scheduler.ending(plan, stop_requested=stop_requested, left=_seconds_left())


def _seconds_left() -> float:
    known = time_left(os.environ)
    return math.inf if known is None else known.seconds


def _continue_elsewhere(plan: JobPlan, attempt: Attempt) -> kinds.Continues:
    # For `chain` the next job is queued already
    how, scheduler = plan.resume.how, registry.scheduler(plan.cluster.scheduler)
    if how == ResumeHow.chain.value:
        return continues(What.ELSEWHERE, NextReason.CHAIN)
    if plan.race:
        return continues(What.ELSEWHERE, NextReason.RESUBMITTED, _race_again(plan, attempt))
    if scheduler.requeues and how in (ResumeHow.auto.value, ResumeHow.requeue.value):
        try:
            return _requeue(scheduler)
        except QueryError as error:
            if how == ResumeHow.requeue.value or isinstance(error, AnswerLost):  # a lost one may continue
                raise
            print(f"launcher: not requeued ({error}): a new job is submitted", file=sys.stderr)
    before = registry.queue(plan.cluster.scheduler).own_job(os.environ)
    try:
        job = resubmit(plan, attempt.run, str(attempt.number + 1), [before], JOB_TIMEOUT)
    except SubmissionRefused as refused:
        if how != ResumeHow.resubmit.value or not (scheduler.requeues and refused.job_limit):
            raise
        try:
            again = _requeue(scheduler)
        except AnswerLost:
            raise
        except QueryError:
            raise refused from None
        print(f"launcher: no job is accepted beside this one, so it is requeued ({refused})", file=sys.stderr)
        return again
    tell_followers(attempt.run, job)
    return continues(What.ELSEWHERE, NextReason.RESUBMITTED, job)


def _requeue(scheduler: Scheduler) -> kinds.Continues:
    job = os.environ["LAUNCHER_JOB_ID"]
    scheduler.requeue(job)
    return continues(What.ELSEWHERE, NextReason.REQUEUED, job)


def _race_again(plan: JobPlan, attempt: Attempt) -> str:
    run, queue = attempt.run, registry.queue(plan.cluster.scheduler)
    before = queue.own_job(os.environ)

    def submit(each: JobPlan, token: str) -> str:
        script = render.write(run, each, token=token)
        environment = queue.environment_within(each, run)
        run.journal(kinds.Submitting(token=token))
        return submit_behind(each, [before], str(script), token, environment, JOB_TIMEOUT)

    token = f"{run.record()['token']}-{attempt.number + 1}"
    jobs = race.submit_all(plan, token, submit, lambda: False, SubmissionError)
    run.journal(kinds.Submitted(job=jobs[0], chain=tuple(jobs[1:]), race=True))
    tell_followers(run, jobs[0])
    return jobs[0]


def resubmit(plan: JobPlan, run: Run, suffix: str, behind: Sequence[str], timeout: float) -> str:
    """Submits the run's script again, behind these jobs; suffix: of the token."""
    script = run.path / "script.sh"
    token = f"{run.record()['token']}-{suffix}"
    if not run.has("script.sh"):  # an element of an array continues as a single job
        script = render.write(run, plan, token=token)
    environment = registry.queue(plan.cluster.scheduler).environment_within(plan, run)
    run.journal(kinds.Submitting(token=token))
    try:
        job_id = submit_behind(plan, behind, str(script), token, environment, timeout)
    except SubmissionRefused as refused:
        run.journal(kinds.Refused(token=token, error=str(refused)))
        raise
    run.journal(kinds.Submitted(job=job_id))
    return job_id


def tell_followers(run: Run, job_id: str) -> None:
    for problem in update_followers(run.path):
        print(f"launcher: a dependency was not updated to job {job_id}: {problem}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], stop_requested="stop_requested" in sys.argv[2:]))
