"""Waits until the dependencies of a run are met. The job script runs `python -m launcher.job.wait_for_others RUN_DIR`.

| decision (launcher/submission/dependencies.py) | on this machine, or in an allocation | in a job of a scheduler |
|---|---|---|
| start | exits with 0: the run starts | the same |
| wait | polls every 2 to 10 s | submits another job of the run, which depends on the dependencies' present jobs, |
| | | and exits with 10; if that fails, polls |
| never | exits with 93: the condition can never be met | the same |

It exits with 75 if the run was stopped or cancelled, or if the state of a dependency cannot be read now.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

from launcher import errors
from launcher.config.schema import ResumeHow
from launcher.errors import LauncherError, RunError, UnavailableError
from launcher.failures.codes import FaultCode
from launcher.files import safe_io
from launcher.files.retried_reads import read_json, unwrap
from launcher.job.requeue import resubmit, tell_followers
from launcher.monitoring.run_status import JobMonitor, RunState, forget, queries, status_of
from launcher.plan.plan import JobPlan
from launcher.runs.directory import Attempt, Events, Run, current_attempt
from launcher.runs.events import Awaited, ConditionsMet, Fault, Submitting, every
from launcher.runs.history import RunHistory, journal_events
from launcher.runs.lease_and_locks import only_submitter
from launcher.schedulers.base import JOB_TIMEOUT, QueryError
from launcher.schedulers.job_cache import JobSnapshot
from launcher.submission.dependencies import (
    Dependency,
    Release,
    StartDecision,
    conditions_met,
    decide,
    is_kept,
    jobs_to_wait_for,
    read_dependencies,
    update_followers,
)

ELSEWHERE = 10  # exit code
RECHECK_TIME = 60.0  # seconds for which an uncertain state is read again: shared file systems show changes late
FIRST, LONGEST = 2.0, 10.0  # seconds between two polls
MET = "conditions-met"  # file in a sweep: when a point started last, what it waited for, and the states that it found


def main() -> int:
    attempt = current_attempt()
    assert attempt is not None, "only a job script of the launcher starts this"
    try:
        return _wait(attempt)
    except UnavailableError as error:  # whether it may start is unknown now
        print(f"launcher: {attempt.run.id} is not started now: {error}", file=sys.stderr)
        return errors.RESUME


def _wait(attempt: Attempt) -> int:
    run, plan, events = attempt.run, attempt.run.plan(), Events(attempt, "after")
    if conditions_met(run):
        return errors.DONE
    if others := _met_for_sweep(run, plan):
        events(ConditionsMet(others=others))
        return errors.DONE
    tried, printed, pause, begun = False, "", FIRST, time.monotonic()
    while True:
        if any(map(run.has, ("cancelled", "stop"))):
            return errors.RESUME
        decision, why, dependencies = _decide(plan)
        doubtful = any(dependency.uncertain for dependency in dependencies) and time.monotonic() - begun < RECHECK_TIME
        if decision is StartDecision.START:
            others = tuple(dependency.awaited for dependency in dependencies)
            events(ConditionsMet(others=others))
            if run.is_point:
                states = [[each.id, each.condition, each.state] for each in others]
                with contextlib.suppress(OSError):  # then the other points look for themselves
                    safe_io.write(
                        run.path.parent / MET, json.dumps({"time": time.time(), "after": plan.after, "others": states})
                    )
            return errors.DONE
        if decision is StartDecision.NEVER and not doubtful:
            fault = Fault(code=FaultCode.CONDITION_FAILED, host=os.uname().nodename, error=why)
            events(replace(fault, ends_with=errors.NO_RETRY))
            print(f"launcher: {run.id} is not started: {why}", file=sys.stderr)
            return errors.NO_RETRY
        if decision is StartDecision.WAIT and not doubtful and plan.queued and not tried:
            tried = True
            if job := _submit_waiting_job(plan, attempt, dependencies):
                print(f"launcher: {run.id} waits in job {job}: {why}", file=sys.stderr)
                return ELSEWHERE
        if why != printed:
            print(f"launcher: {run.id} waits here: {why}", file=sys.stderr, flush=True)
        printed = why
        time.sleep(pause)
        pause = min(pause * 1.5, LONGEST)


def _met_for_sweep(run: Run, plan: JobPlan) -> tuple[Awaited, ...]:
    # What another point of the sweep has found a moment ago: so that 10,000 points do not read 10,000 points each
    if not run.is_point:
        return ()
    try:
        found = unwrap(read_json(run.path.parent / MET))
        if not found or found["after"] != list(plan.after) or abs(time.time() - found["time"]) > RECHECK_TIME:
            return ()
        return tuple(Awaited(id=id_, condition=condition, state=state) for id_, condition, state in found["others"])
    except (RunError, ValueError, KeyError, TypeError):  # it is not what a point has written
        return ()


def _decide(plan: JobPlan) -> tuple[StartDecision, str, list[Dependency]]:
    # Returns whether the run may start (see `dependencies.decide`), the reason, and the dependencies.
    # If the record of a run that it depends on is gone, the decision is `NEVER`.
    try:
        dependencies = read_dependencies(plan.after)
    except UnavailableError:
        raise
    except RunError as error:
        return StartDecision.NEVER, str(error), []
    return (*decide(dependencies), dependencies)


def _submit_waiting_job(plan: JobPlan, attempt: Attempt, dependencies: list[Dependency]) -> str | None:
    # Returns the id of the new job; None: it could not be submitted
    jobs = jobs_to_wait_for(dependencies)
    # Jobs of a chain cannot submit, and follow each other; the job that has won a race is the only one that may run.
    if not jobs or plan.resume.how == ResumeHow.chain.value or plan.race:
        return None
    try:
        job = _submit_again(plan, attempt.run, jobs, JOB_TIMEOUT)
    except LauncherError as error:
        print(f"launcher: no other job could be submitted to wait ({error})", file=sys.stderr)
        return None
    tell_followers(attempt.run, job)
    return job


def _submit_again(plan: JobPlan, run: Run, jobs: list[str], timeout: float) -> str:
    return resubmit(plan, run, f"w{len(every(journal_events(run), Submitting))}", jobs, timeout)


def submit_released(
    run: Run, plan: JobPlan, job_id: str, jobs: Sequence[str], before: JobSnapshot, release: Release
) -> None:  # fmt: skip
    """Submits a waiting run again, behind `jobs`, and cancels its job, if it is there; QueryError, SubmissionError.

    before: the scheduler's jobs before anything was cancelled. release: see `update_followers`, for what waits for it.
    """
    with only_submitter(run.path):
        seen = status_of(run, JobMonitor())
        if seen.state is RunState.UNKNOWN:
            raise QueryError(f"its job {job_id} may stay held: {seen.job.problem}")
        kept = is_kept(plan, job_id)
        # With what it waited for, PBS has deleted it just now; a job that its owner has deleted does not come back
        by_hand = seen.state is RunState.CANCELLED or not _was_listed(before, plan, seen.history)
        waits = seen.state is RunState.QUEUED if kept else not (seen.history.cancelled or by_hand or run.attempts())
        if not waits or seen.history.job_id != job_id:
            return  # it was cancelled, or another command has released it
        job = _submit_again(plan, run, list(jobs), plan.cluster.submit_timeout)
        try:
            if kept:
                queries(plan).cancel(job_id)
        except QueryError as error:
            tell_followers(run, job)
            raise QueryError(f"it goes on in job {job}, but its job {job_id} stays held: {error}") from None
        finally:
            forget(plan)
    for problem in update_followers(run.path, release=release):
        print(f"launcher: what waits was not released: {problem}", file=sys.stderr)


def _was_listed(before: JobSnapshot, plan: JobPlan, history: RunHistory) -> bool:
    newer = before.began is None or history.submitted > before.began
    return newer or queries(plan).key(history.job_id or "") in before.jobs


if __name__ == "__main__":
    sys.exit(main())
