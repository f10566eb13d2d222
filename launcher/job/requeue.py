"""How a run goes on after an attempt that stopped early: `python -m launcher.job.requeue RUN_DIR [TOLD]` in its script.

TOLD is given when the script itself was told to stop. Exit codes: 0 it goes on in another start of the job or in
another job, 10 in this script, 75 it stays stopped, 93 it is given up. Why is printed, and in the attempt's events.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from pathlib import Path

from launcher import errors
from launcher.checkpoint import format as checkpoints
from launcher.config.schema import ResumeHow
from launcher.errors import LauncherError
from launcher.files.shared_files import known, passes, tried
from launcher.formatting import plural
from launcher.runs import saves
from launcher.runs.directory import Attempt, Run
from launcher.runs.event_writer import Events, current_attempt
from launcher.runs.time_left import time_left
from launcher.schedulers import registry
from launcher.schedulers.base import QueryError
from launcher.schedulers.scheduler import JOB_TIMEOUT, Requeues, ShowsPreemption
from launcher.schedulers.successor import submit_after
from launcher.spec.plan import JobPlan
from launcher.submission.dependencies import repoint


class What(IntEnum):
    """What becomes of the run; the values are this program's exit codes."""

    ELSEWHERE = 0
    HERE = 10
    STAYS = errors.RESUME
    GIVEN_UP = errors.NO_RETRY


def decide(
    plan: JobPlan, attempt: int, steps: Sequence[int], marker: str | None, ending: str | None
) -> tuple[What, str]:
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
        ending: why the scheduler is ending the job, in words; None: it is not.
    """
    if marker is not None:
        return What.STAYS, "it was cancelled" if marker == "cancelled" else "its stop file"
    if plan.resume_how == ResumeHow.never.value:
        return What.STAYS, "resume.how=never"
    before = [-1, *steps[:-1]]
    if len(steps) > 1 and all(now <= then for now, then in zip(steps[-2:], before[-2:], strict=True)):
        if plan.own_code:
            return What.GIVEN_UP, (
                f"two attempts in a row told no step and saved nothing new ({saves.described(plan)}): is "
                f"time={plan.time}s too short for a start and a save, or does it save elsewhere (workload.checkpoint)?"
            )
        return What.GIVEN_UP, (
            f"two attempts in a row got no further than step {max(steps[-1], 0)}: is time={plan.time}s too short for a "
            "start, a step and a save?"
        )
    if attempt + 1 >= plan.max_attempts:
        return What.GIVEN_UP, f"it has had {plural(attempt + 1, 'attempt')} (resume.max_attempts)"
    if ending is not None:
        return What.STAYS, ending
    return (What.ELSEWHERE if plan.queued else What.HERE), "it can be resumed"


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
        what, why = _what_becomes_of(attempt, events, told)
    except (LauncherError, OSError) as error:
        if not passes(error):
            raise
        # It may have been cancelled, or have got further than can be seen: neither is it started again nor given up.
        what, why = What.STAYS, f"{error}; `launcher resume {run.id}` takes it up"
    events("again" if what in (What.ELSEWHERE, What.HERE) else "stays", what=what.name.lower(), why=why)
    words = {
        What.ELSEWHERE: f"goes on: {why}", What.HERE: "goes on", What.STAYS: f"stays stopped: {why}",
        What.GIVEN_UP: f"is given up: {why}",
    }  # fmt: skip
    print(f"launcher: {run.id} {words[what]}", file=sys.stderr)
    return what


def _what_becomes_of(attempt: Attempt, events: Events, told: bool) -> tuple[What, str]:
    """What becomes of the run, and why; where it goes on elsewhere, that has been done.

    Raises:
        UnavailableError, OSError: what the decision needs cannot be read now.
    """
    run = attempt.run
    plan = run.own_plan()
    saved = known(tried(lambda: saves.newest(plan), plan.checkpoint_dir)) if plan.own_code else None
    preempted = _preempted(plan, attempt)
    events("stopped", step=_reached(plan, attempt), saved=-1 if saved is None else saved, preempted=preempted)
    stopped = [event for each in run.attempts() for event in each.events() if event["event"] == "stopped"]
    ends = [event for event in stopped if event["step"] is not None]  # of the others nobody knows
    steps = further([(event["step"], event.get("saved", -1)) for event in ends])
    marker = next(filter(run.has, ("cancelled", "stop")), None)
    what, why = decide(plan, attempt.number, steps, marker, _ending(plan, told))
    if what is What.ELSEWHERE:
        try:
            why = _go_on(plan, attempt)
        except LauncherError as error:
            return What.STAYS, f"it could not go on by itself: {error}; `launcher resume {run.id}` does it"
    return what, why


def _preempted(plan: JobPlan, attempt: Attempt) -> bool:
    """Whether the scheduler has begun to preempt this job since the attempt began, as far as it shows.

    Once a job has left within its partition's GraceTime, Slurm no longer shows that it was being preempted.
    """
    scheduler = registry.scheduler(plan.scheduler)
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
    if any(event["event"] == "stop" and event.get("code") == errors.UNAVAILABLE for event in attempt.events()):
        return None
    try:
        step = checkpoints.newest_step(Path(plan.checkpoint_dir))
    except checkpoints.Unavailable:
        return None
    if plan.own_code:
        told = [event["step"] for event in attempt.events() if event["event"] == "progress"]
        return max([-1 if step is None else int(step), *map(int, told)])
    if step is None:
        last = {event["event"]: event for event in attempt.events()}
        step = None if "stop" in last else last.get("progress", {}).get("step")
    return -1 if step is None else int(step)


def _ending(plan: JobPlan, told: bool) -> str | None:
    """Why the scheduler is ending this job, unless it is for its wall time."""
    known_left = time_left(os.environ)
    left = math.inf if known_left is None else known_left.seconds
    return registry.scheduler(plan.scheduler).ending(plan, told=told, left=left)


def _go_on(plan: JobPlan, attempt: Attempt) -> str:
    """Has the scheduler start the run again, and says how.

    Raises:
        LauncherError: the scheduler did not take it.
    """
    how, scheduler = plan.resume_how, registry.scheduler(plan.scheduler)
    if how == ResumeHow.chain.value:
        return "the next job of its chain waits for this one to end"
    if isinstance(scheduler, Requeues) and how in (ResumeHow.auto.value, ResumeHow.requeue.value):
        try:
            scheduler.requeue(os.environ["LAUNCHER_JOB_ID"])
            return "its job was requeued"
        except QueryError as error:
            if how == ResumeHow.requeue.value:
                raise
            print(f"launcher: not requeued ({error}): a new job is submitted", file=sys.stderr)
    return f"job {_resubmit(plan, attempt)} waits for this one to end"


def _resubmit(plan: JobPlan, attempt: Attempt) -> str:
    """Submits the run's script as a new job that starts when this one has ended; its id."""
    job = registry.queue(plan.scheduler).own_job(os.environ)
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
    from launcher.schedulers import job_script

    script = run.path / "script.sh"
    if run.recorded():
        token = f"{run.record()['token']}-{suffix}"
    else:
        array = Run(run.path.parent)
        token = f"{array.record()['token']}-{run.path.name}-{suffix}"
    if not run.has("script.sh"):  # an element of an array goes on alone
        script = run.write_script(job_script.script(plan, token=token))
    environment = registry.queue(plan.scheduler).environment_within(plan, run)
    run.journal("submitting", token=token)
    job_id = submit(str(script), token, environment)
    run.journal("submitted", job=job_id)
    for problem in repoint(run.path):
        print(f"launcher: it was not told of job {job_id}, and looks itself: {problem}", file=sys.stderr)
    return job_id


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], told="told" in sys.argv[2:]))
