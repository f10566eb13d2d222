"""Decides the state of a run: from its own files first, then from the state of its job in the scheduler.

| the run's files | the scheduler | the run is |
|---|---|---|
| last attempt ended with 0 | (not queried) | done |
| last attempt ended with another code, after its search pruned it | (not queried) | pruned |
| last attempt ended with another code | has a live job | queued, running or suspended, like the job |
| | has the job in an unknown state | unknown: another attempt may have started |
| last attempt ended with 75 | no job | stopped (cancelled, if the user cancelled the run) |
| last attempt ended with another code | no job | failed (cancelled, if the user cancelled the run) |
| last attempt ended with a signal's code | job cancelled | cancelled |
| an attempt has started and not ended | job running, suspended or pending | running, suspended or queued |
| | no reply, or an unknown state | unknown |
| the same, and its agents wrote an exit code | job over, or no such job | as if the attempt had ended with that code |
| the same, without an exit code | job failed or cancelled | cancelled if the run or the job was, else failed |
| | job done or gone, or no such job | cancelled if the user did so, stopped after a stop request, else lost |
| no attempt yet | job pending | queued |
| | job failed or cancelled | cancelled if the run or the job was, else failed |
| | job done or gone, or no such job | cancelled if the user cancelled the run, else lost |
| | no reply, or an unknown state | unknown |
| the user is to submit it (submit=false) | has no such job | unsubmitted |
| a submission was started, and no job id is recorded | (not queried) | unconfirmed |
| a submission has led to no job, and the user cancelled the run | (not queried) | cancelled |

A run whose files cannot be read now is unknown (launcher/monitoring/run_status.py, launcher/monitoring/sweep.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from launcher import errors
from launcher.runs.events import StopRequested
from launcher.runs.history import RunHistory
from launcher.schedulers.base import JobState, state_text


class RunState(Enum):
    """State of a run."""

    UNCONFIRMED = "unconfirmed"  # the submission was interrupted, so it is not known whether there is a job
    UNSUBMITTED = "unsubmitted"  # the user is to submit it by hand (submit=false), and the scheduler has no such job
    QUEUED = "queued"
    RUNNING = "running"
    SUSPENDED = "suspended"  # the scheduler has stopped its processes, and will continue them
    DONE = "done"
    PRUNED = "pruned"  # the search of its sweep ended it early, because other points have a better objective
    STOPPED = "stopped"  # it ended early and can be resumed
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"  # its job is gone, and nothing records why
    UNKNOWN = "unknown"  # the scheduler does not respond or reports a new state, or the files cannot be read now

    @property
    def over(self) -> bool:
        return self not in (
            RunState.UNCONFIRMED,
            RunState.UNSUBMITTED,
            RunState.QUEUED,
            RunState.RUNNING,
            RunState.SUSPENDED,
            RunState.UNKNOWN,
        )

    @property
    def exit_code(self) -> int:
        """Exit code of a command (`wait`, `run`) that waited for a run that ended in this state."""
        return {RunState.DONE: errors.DONE, RunState.PRUNED: errors.DONE, RunState.STOPPED: errors.RESUME}.get(
            self, errors.FAILED
        )


@dataclass(frozen=True)
class JobStatus:
    """State of a run's job."""

    # state of the job; None: there is no job, or its state is not known. raw_state, reason: state and reason as the
    # scheduler prints them (`PENDING`, `Resources`); empty: not known
    state: JobState | None = None
    raw_state: str = ""
    reason: str = ""
    problem: str = ""  # why the state is not known; empty: it is known, or there is no job
    # number of the signal that ended the job; None: none did, or the scheduler does not report it
    signal: int | None = None

    @property
    def text(self) -> str:
        """State and reason for display (`PENDING (Resources)`), or why the state is not known; empty: no job."""
        return self.problem or state_text(self.raw_state, self.reason)


_LIVE = {
    JobState.PENDING: RunState.QUEUED,
    JobState.RUNNING: RunState.RUNNING,
    JobState.SUSPENDED: RunState.SUSPENDED,
}


def run_state(history: RunHistory, job: JobState | None, *, answered: bool = True) -> RunState:
    """Returns the state of a run with this job (None: unknown to the scheduler), by the module's table."""
    if history.ended == errors.DONE:
        return RunState.DONE
    if history.pruned is not None and history.ended is not None:
        return RunState.PRUNED
    if history.job_id is None and history.by_hand:
        return RunState.UNSUBMITTED
    if history.job_id is None and history.attempt is None:
        return RunState.CANCELLED if history.cancelled and not history.may_have_job else RunState.UNCONFIRMED
    if answered and job is not None and job.live:
        return _LIVE[job]
    if answered and job is JobState.UNKNOWN:
        return RunState.UNKNOWN
    code = history.ended
    if code is None:
        if not answered:
            return RunState.UNKNOWN
        code = history.exit_code
        if code == errors.DONE:
            return RunState.DONE
    if history.cancelled or (job is JobState.CANCELLED and (code is None or code > 128)):
        return RunState.CANCELLED
    if code is not None:
        return RunState.STOPPED if code == errors.RESUME else RunState.FAILED
    if job is JobState.FAILED:
        return RunState.FAILED
    return RunState.LOST if history.last(StopRequested) is None else RunState.STOPPED
