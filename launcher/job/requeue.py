"""How a run goes on after an attempt that stopped early: `python -m launcher.job.requeue RUN_DIR [TOLD]` in its script.

TOLD is given when the script itself was told to stop. Exit codes: 0 it goes on in another start of the job or in
another job, 10 in this script, 75 it stays stopped, 93 it is given up. Why is printed, and in the attempt's events.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from launcher import errors
from launcher.checkpoint import format as checkpoints
from launcher.config.schema import ResumeHow
from launcher.errors import LauncherError
from launcher.failures import text
from launcher.failures.codes import NextReason, StopReason
from launcher.files.shared_files import is_transient, retry_read, unwrap
from launcher.formatting import plural
from launcher.runs import saves
from launcher.runs.directory import Attempt, Run
from launcher.runs.event_writer import Events, current_attempt
from launcher.runs.events import Again, Progress, Stays, Stop, Stopped, Submitted, Submitting, every, last
from launcher.runs.time_left import time_left
from launcher.schedulers import job_script, registry
from launcher.schedulers.queries import Ending, QueryError
from launcher.schedulers.scheduler import JOB_TIMEOUT, Requeues, ShowsPreemption
from launcher.schedulers.successor import submit_after
from launcher.spec.plan import JobPlan
from launcher.submission.dependencies import update_followers


class What(IntEnum):
    """What becomes of the run; the values are this program's exit codes."""

    ELSEWHERE = 0
    HERE = 10
    STAYS = errors.RESUME
    GIVEN_UP = errors.NO_RETRY


@dataclass(frozen=True)
class Decision:
    """What becomes of a run.

    Attributes:
        what: it.
        reason: why, and how.
        why: the same for people.
        job, step, attempts, state: see `launcher.runs.events.Again` and `Stays`.
    """

    what: What
    reason: NextReason
    why: str
    job: str | None = None
    step: int | None = None
    attempts: int | None = None
    state: str | None = None

    @property
    def event(self) -> Again | Stays:
        """What is told of it."""
        name = self.what.name.lower()
        if self.what in (What.ELSEWHERE, What.HERE):
            return Again(what=name, why=self.why, reason=self.reason, job=self.job)
        return Stays(
            what=name, why=self.why, reason=self.reason, step=self.step, attempts=self.attempts, state=self.state
        )


def decide(plan: JobPlan, attempt: int, steps: Sequence[int], marker: str | None, ending: Ending | None) -> Decision:
    """What becomes of a run, and why. Pure.

    | what is seen | the run |
    |---|---|
    | RUN/cancelled or RUN/stop | stays stopped: its owner wants that |
    | resume.how=never | stays stopped |
    | two attempts in a row got no further | is given up |
    | as many attempts as resume.max_attempts | is given up |
    | the scheduler is ending the job, not for its wall time | stays: it requeues by itself what it preempts |
    | otherwise | goes on |

    Before that: what any of this is decided by and cannot be read now leaves the run stopped, and neither started
    again nor given up.

    Args:
        plan: the run.
        attempt: number of the one that stopped.
        steps: how far the run was at the end of each attempt so far, this one last; -1: nothing was saved.
        marker: `stop` or `cancelled`, if there is such a file.
        ending: why the scheduler is ending the job; None: it is not.
    """
    if marker == "cancelled":
        return Decision(What.STAYS, NextReason.CANCELLED, "it was cancelled")
    if marker is not None:
        return Decision(What.STAYS, NextReason.STOP_FILE, text.of_stop(StopReason.STOP_FILE))
    if plan.resume.how == ResumeHow.never.value:
        return Decision(What.STAYS, NextReason.RESUME_NEVER, "resume.how=never")
    before = [-1, *steps[:-1]]
    if len(steps) > 1 and all(now <= then for now, then in zip(steps[-2:], before[-2:], strict=True)):
        step = max(steps[-1], 0)
        why = (
            f"two attempts in a row got no further than step {step}: is time={plan.time}s too short for a start, a "
            "step and a save?"
        )
        if plan.own_code:
            why = (
                f"two attempts in a row told no step and saved nothing new ({saves.describe_locations(plan)}): is "
                f"time={plan.time}s too short for a start and a save, or does it save elsewhere (workload.checkpoint)?"
            )
        return Decision(What.GIVEN_UP, NextReason.NO_PROGRESS, why, step=None if plan.own_code else step)
    if attempt + 1 >= plan.resume.max_attempts:
        why = f"it has had {plural(attempt + 1, 'attempt')} (resume.max_attempts)"
        return Decision(What.GIVEN_UP, NextReason.MAX_ATTEMPTS, why, attempts=attempt + 1)
    if ending is not None:
        why = text.of_ending(ending.reason, ending.scheduler, ending.state)
        return Decision(What.STAYS, ending.reason, why, state=ending.state or None)
    return Decision(What.ELSEWHERE if plan.queued else What.HERE, NextReason.RESUMABLE, "it can be resumed")


def further(ends: Sequence[tuple[int, int]]) -> list[int]:
    """How far the run was at the end of each attempt, for `decide`: its step, or for a program a number that grows
    whenever it told a further step or saved something. Pure.

    Args:
        ends: of each attempt: steps, and when the newest file was written (-1: unknown, or not looked for).
    """
    if all(saved < 0 for _, saved in ends):
        return [step for step, _ in ends]
    found: list[int] = []
    best, newest = -1, -1
    for step, saved in ends:
        found.append((found[-1] if found else -1) + (step > best or saved > newest))
        best, newest = max(best, step), max(newest, saved)
    return found


def main(run_dir: str, told: bool) -> int:
    attempt = current_attempt()
    assert attempt is not None, "only a job script of the launcher starts this"
    run, events = attempt.run, Events(attempt, "again")
    try:
        found = _what_becomes_of(attempt, events, told)
    except (LauncherError, OSError) as error:
        if not is_transient(error):
            raise
        # It may have been cancelled, or have got further than can be seen: neither is it started again nor given up.
        found = Decision(What.STAYS, NextReason.UNREADABLE, f"{error}; `launcher resume {run.id}` takes it up")
    events(found.event)
    words = {
        What.ELSEWHERE: f"goes on: {found.why}", What.HERE: "goes on", What.STAYS: f"stays stopped: {found.why}",
        What.GIVEN_UP: f"is given up: {found.why}",
    }  # fmt: skip
    print(f"launcher: {run.id} {words[found.what]}", file=sys.stderr)
    return found.what


def _what_becomes_of(attempt: Attempt, events: Events, told: bool) -> Decision:
    """What becomes of the run; where it goes on elsewhere, that has been done.

    Raises:
        UnavailableError, OSError: what the decision needs cannot be read now.
    """
    run = attempt.run
    plan = run.own_plan()
    saved = unwrap(retry_read(lambda: saves.newest(plan), plan.checkpoint.dir)) if plan.own_code else None
    preempted = _preempted(plan, attempt)
    events(Stopped(step=_reached(plan, attempt), saved=-1 if saved is None else saved, preempted=preempted))
    stopped = [event for each in run.attempts() for event in every(each.events(), Stopped)]
    steps = further([(event.step, event.saved) for event in stopped if event.step is not None])  # else nobody knows
    marker = next(filter(run.has, ("cancelled", "stop")), None)
    found = decide(plan, attempt.number, steps, marker, _ending(plan, told))
    if found.what is What.ELSEWHERE:
        try:
            return _go_on(plan, attempt)
        except LauncherError as error:
            why = f"it could not go on by itself: {error}; `launcher resume {run.id}` does it"
            return Decision(What.STAYS, NextReason.NOT_SUBMITTED, why)
    return found


def _preempted(plan: JobPlan, attempt: Attempt) -> bool:
    """Whether the scheduler has begun to preempt this job since the attempt began, as far as it shows.

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
    """How many steps of the run are safe; -1: none; None: nobody knows, since checkpoints cannot be read.

    A program that saves in its own way, and was not stopped by us, is believed what it has told of its progress.
    """
    if any(event.reason is StopReason.UNREADABLE for event in every(attempt.events(), Stop)):
        return None
    try:
        step = checkpoints.newest_step(Path(plan.checkpoint.dir))
    except checkpoints.Unavailable:
        return None
    if plan.own_code:
        told = [int(event.step) for event in every(attempt.events(), Progress)]
        return max([-1 if step is None else int(step), *told])
    if step is None:
        events = attempt.events()
        told_last = None if last(events, Stop) else last(events, Progress)
        return -1 if told_last is None else int(told_last.step)
    return int(step)


def _ending(plan: JobPlan, told: bool) -> Ending | None:
    """Why the scheduler is ending this job, unless it is for its wall time."""
    known_left = time_left(os.environ)
    left = math.inf if known_left is None else known_left.seconds
    return registry.scheduler(plan.cluster.scheduler).ending(plan, stop_requested=told, left=left)


def _go_on(plan: JobPlan, attempt: Attempt) -> Decision:
    """Has the scheduler start the run again, and says how.

    Raises:
        LauncherError: the scheduler did not take it.
    """
    how, scheduler = plan.resume.how, registry.scheduler(plan.cluster.scheduler)
    if how == ResumeHow.chain.value:
        return Decision(What.ELSEWHERE, NextReason.CHAIN, "the next job of its chain waits for this one to end")
    if isinstance(scheduler, Requeues) and how in (ResumeHow.auto.value, ResumeHow.requeue.value):
        try:
            job = os.environ["LAUNCHER_JOB_ID"]
            scheduler.requeue(job)
            return Decision(What.ELSEWHERE, NextReason.REQUEUED, "its job was requeued", job=job)
        except QueryError as error:
            if how == ResumeHow.requeue.value:
                raise
            print(f"launcher: not requeued ({error}): a new job is submitted", file=sys.stderr)
    job = _resubmit(plan, attempt)
    return Decision(What.ELSEWHERE, NextReason.RESUBMITTED, f"job {job} waits for this one to end", job=job)


def _resubmit(plan: JobPlan, attempt: Attempt) -> str:
    """Submits the run's script as a new job that starts when this one has ended; its id."""
    job = registry.queue(plan.cluster.scheduler).own_job(os.environ)
    return resubmit(
        plan, attempt.run, str(attempt.number + 1),
        lambda script, token, environment: submit_after(plan, job, script, token, environment, JOB_TIMEOUT),
    )  # fmt: skip


def resubmit(plan: JobPlan, run: Run, suffix: str, submit: Callable[[str, str, Mapping[str, str]], str]) -> str:
    """Submits the run's script as a new job, and tells those who wait for the run; its id.

    Args:
        plan: the run.
        run: its directory.
        suffix: tells the new job's token from those of the run's other jobs.
        submit: does it, with the script's path, the token and the environment.

    Raises:
        LauncherError: the scheduler did not take it.
    """
    script = run.path / "script.sh"
    if run.recorded():
        token = f"{run.record()['token']}-{suffix}"
    else:
        array = Run(run.path.parent)
        token = f"{array.record()['token']}-{run.path.name}-{suffix}"
    if not run.has("script.sh"):  # an element of an array goes on alone
        script = run.write_script(job_script.script(plan, token=token))
    environment = registry.queue(plan.cluster.scheduler).environment_within(plan, run)
    run.journal(Submitting(token=token))
    job_id = submit(str(script), token, environment)
    run.journal(Submitted(job=job_id))
    for problem in update_followers(run.path):
        print(f"launcher: it was not told of job {job_id}, and looks itself: {problem}", file=sys.stderr)
    return job_id


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], told="told" in sys.argv[2:]))
