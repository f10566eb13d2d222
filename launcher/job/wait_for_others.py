"""Whether a run may begin that waits for others: `python -m launcher.job.wait_for_others RUN_DIR` in its script.

Exit codes: 0 it may, 10 another job of it waits, 75 it was told to stop or nobody can tell what became of the others,
93 what it waits for will not come about.

| the others (launcher/submission/dependencies.py) | here, or in an allocation that is held | in a job of a scheduler |
|---|---|---|
| start | it begins | it begins |
| wait | looks again, from 2 to 10 s later | another job of it is submitted, that waits for their present jobs |
| | | where that cannot be, it looks again, in its allocation |
| never | it ends | it ends |
"""

from __future__ import annotations

import os
import sys
import time

from launcher import errors
from launcher.config.schema import ResumeHow
from launcher.errors import LauncherError, RunError, UnavailableError
from launcher.failures.codes import FaultCode
from launcher.job.requeue import resubmit
from launcher.runs.directory import Attempt
from launcher.runs.event_writer import Events, current_attempt
from launcher.runs.events import ConditionsMet, Fault, Submitting, every
from launcher.runs.journal import journal_events
from launcher.schedulers.scheduler import JOB_TIMEOUT
from launcher.schedulers.successor import submit_behind
from launcher.spec.plan import JobPlan
from launcher.submission import dependencies
from launcher.submission.dependencies import Other, Word, decide, look_at, passed

ELSEWHERE = 10  # exit code
RECHECK_TIME = 60.0  # seconds for which an uncertain state is read again: shared file systems show changes late
FIRST, LONGEST = 2.0, 10.0  # seconds between two checks


def main() -> int:
    attempt = current_attempt()
    assert attempt is not None, "only a job script of the launcher starts this"
    try:
        return _wait(attempt)
    except UnavailableError as error:  # neither that it may begin nor that it never will
        print(f"launcher: {attempt.run.id} is not started now: {error}", file=sys.stderr)
        return errors.RESUME


def _wait(attempt: Attempt) -> int:
    run, plan, events = attempt.run, attempt.run.own_plan(), Events(attempt, "after")
    if passed(run):
        return errors.DONE
    tried, told, pause, begun = False, "", FIRST, time.monotonic()
    while True:
        if any(map(run.has, ("cancelled", "stop"))):
            return errors.RESUME
        word, why, others = _look(plan)
        doubtful = any(other.unsure for other in others) and time.monotonic() - begun < RECHECK_TIME
        if word is Word.START:
            events(ConditionsMet(others=tuple(other.awaited for other in others)))
            return errors.DONE
        if word is Word.NEVER and not doubtful:
            events(
                Fault(
                    cause=f"it was not started: {why}", code=FaultCode.CONDITION_FAILED, host=os.uname().nodename,
                    ends_with=errors.NO_RETRY,
                )
            )  # fmt: skip
            print(f"launcher: {run.id} is not started: {why}", file=sys.stderr)
            return errors.NO_RETRY
        if word is Word.WAIT and not doubtful and plan.queued and not tried:
            tried = True
            if job := _elsewhere(plan, attempt, others):
                print(f"launcher: {run.id} waits in job {job}: {why}", file=sys.stderr)
                return ELSEWHERE
        if why != told:
            print(f"launcher: {run.id} waits here: {why}", file=sys.stderr, flush=True)
        told = why
        time.sleep(pause)
        pause = min(pause * 1.5, LONGEST)


def _look(plan: JobPlan) -> tuple[Word, str, list[Other]]:
    """What to do now, and why; a record that is gone never comes about.

    Raises:
        UnavailableError: one cannot be read now.
    """
    try:
        others = look_at(plan.after)
    except UnavailableError:
        raise
    except RunError as error:
        return Word.NEVER, str(error), []
    return (*decide(others), others)


def _elsewhere(plan: JobPlan, attempt: Attempt, others: list[Other]) -> str | None:
    """Submits a job of this run that depends on the others' present jobs. Returns its id; None: the run waits here."""
    jobs = dependencies.jobs_of(others)
    if not jobs or plan.resume.how == ResumeHow.chain.value:  # jobs of a chain cannot submit, and follow each other
        return None
    number = len(every(journal_events(attempt.run), Submitting))
    try:
        return resubmit(
            plan, attempt.run, f"w{number}",
            lambda script, token, environment: submit_behind(plan, jobs, script, token, environment, JOB_TIMEOUT),
        )  # fmt: skip
    except LauncherError as error:
        print(f"launcher: no other job could be submitted to wait ({error})", file=sys.stderr)
        return None


if __name__ == "__main__":
    sys.exit(main())
