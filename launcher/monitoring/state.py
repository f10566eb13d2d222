"""The state of a run: from its own record first, with the scheduler as a witness. Pure.

| the record | the scheduler | the run is |
|---|---|---|
| last attempt ended with 0 | (not queried) | done |
| the same with another code, after its search pruned it | (not queried) | pruned |
| last attempt ended with another code | has a live job | queued, running or suspended, like the job |
| | has the job in an unknown state | unknown: another attempt may have begun |
| last attempt ended with 75 | no job | stopped (cancelled, if the user cancelled it) |
| last attempt ended with another code | no job | failed (cancelled, if the user cancelled it) |
| last attempt ended with a signal's code | job cancelled | cancelled |
| an attempt has begun and not ended | job running, suspended or pending | running, suspended or queued |
| | no reply, or an unknown state | unknown |
| the same, and its agents wrote an exit code | job over, or no such job | as if it had ended with that code |
| the same, without an exit code | job failed or cancelled | cancelled if the user or the job was, else failed |
| | job done or gone, or no such job | cancelled if the user cancelled it, stopped after a stop request, else lost |
| no attempt yet | job pending | queued |
| | job failed or cancelled | cancelled if the user or the job was, else failed |
| | job done or gone, or no such job | cancelled if the user cancelled it, else lost |
| | no reply, or an unknown state | unknown |
| submitting, and no job id | (not queried) | unconfirmed |

A run whose record cannot be read now is unknown (launcher/monitoring/run_status.py, launcher/monitoring/sweep.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from launcher import errors
from launcher.runs.event_json import E_, known
from launcher.runs.events import (
    CancelFailed,
    Cancelled,
    Ended,
    Fault,
    ProcessStarted,
    Pruned,
    SetupFailed,
    Started,
    StopRequested,
    Submitted,
    Submitting,
    first_fault,
    last,
)
from launcher.schedulers.queries import JobState


class RunState(Enum):
    """State of a run."""

    UNCONFIRMED = "unconfirmed"  # the submission was interrupted: the scheduler may have the job or not
    QUEUED = "queued"
    RUNNING = "running"
    SUSPENDED = "suspended"  # the scheduler has stopped its processes, and will continue them
    DONE = "done"
    PRUNED = "pruned"  # the search of its sweep has ended it, for others are ahead
    STOPPED = "stopped"  # it ended early and can be resumed
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"  # its job is gone, and nothing records why
    UNKNOWN = "unknown"  # the scheduler does not respond or reports a new state, or the record cannot be read now

    @property
    def over(self) -> bool:
        return self not in (
            RunState.UNCONFIRMED,
            RunState.QUEUED,
            RunState.RUNNING,
            RunState.SUSPENDED,
            RunState.UNKNOWN,
        )

    @property
    def exit_code(self) -> int:
        """The exit code of commands that waited for the run, if its last attempt recorded none."""
        return {RunState.DONE: errors.DONE, RunState.PRUNED: errors.DONE, RunState.STOPPED: errors.RESUME}.get(
            self, errors.FAILED
        )


@dataclass(frozen=True)
class RunHistory:
    """What a run's record says: the last job, whether the user cancelled it, and the last attempt's events."""

    job_id: str | None
    cancelled: bool
    attempt: int | None
    events: tuple[Mapping[str, Any], ...]
    waiting: tuple[str, ...] = ()  # jobs of a chain that will follow the last job
    submitted: float = 0.0  # time of the last submission, in seconds since the epoch
    exit_code: int | None = None  # recorded by the last attempt's agents, if its script did not record its end
    pruned: Pruned | None = None  # its search has ended it, and it has not been started since

    def last(self, kind: type[E_]) -> E_ | None:
        """The latest event of this kind."""
        return last(self.events, kind)

    @property
    def moved(self) -> float:
        """Time of the record's last entry, in seconds since the epoch."""
        return max(self.submitted, float(self.events[-1].get("time", 0.0)) if self.events else 0.0)

    @property
    def ended(self) -> int | None:
        """Exit code of the last attempt, if it has ended."""
        event = self.last(Ended)
        return None if event is None else event.code

    @property
    def code(self) -> int | None:
        """Exit code of the last attempt, recorded by its script, or else by its agents."""
        return self.exit_code if self.ended is None else self.ended

    @property
    def fault(self) -> Fault | SetupFailed | None:
        """The first fault of the last attempt."""
        return first_fault(self.events)


def history_of(
    journal: Sequence[Mapping[str, Any]],
    attempt: int | None,
    events: Sequence[Mapping[str, Any]],
    exit_code: int | None = None,
) -> RunHistory:
    """The history in a journal, and in the last attempt's events and exit code."""
    submitted, wanted, times = None, False, [0.0]
    pruned: Pruned | None = None
    for event in known(journal):
        if isinstance(event, (Pruned, Submitted)):
            pruned = event if isinstance(event, Pruned) else None
        submitted = event if isinstance(event, Submitted) else submitted
        if isinstance(event, (Cancelled, CancelFailed, Submitted)):
            wanted = isinstance(event, Cancelled)  # else it was resumed since, or the scheduler did not take it
        if isinstance(event, (Submitting, Submitted, ProcessStarted)):
            times.append(event.time)
    jobs = _jobs(submitted, events)
    started = last(events, Started)
    if pruned is not None and started is not None and started.time > pruned.time:  # it was started again
        pruned = None
    return RunHistory(
        jobs[0] if jobs else None, wanted, attempt, tuple(events), tuple(jobs[1:]), max(times), exit_code, pruned
    )


def _jobs(submitted: Submitted | None, events: Sequence[Mapping[str, Any]]) -> list[str]:
    """The job that runs the run, or is to do so next, and those of its chain that follow it.

    | the job of the last attempt | the current job |
    |---|---|
    | is the one submitted last, or one of its chain | is that one; if it has stopped, the next of the chain |
    | is another, and began after the last submission | is that one: its submitter was killed before it recorded it |
    | is another, and began before | is the one submitted last |
    """
    started, ended = last(events, Started), last(events, Ended)
    if submitted is None:
        return [started.job] if started else []
    jobs = [submitted.job, *submitted.chain]
    if started is None:
        return jobs
    if started.job not in jobs:
        return [started.job] if started.time > submitted.time else jobs
    here = jobs.index(started.job)
    stopped = ended is not None and ended.code == errors.RESUME and here + 1 < len(jobs)
    return jobs[here + stopped :]


_LIVE = {
    JobState.PENDING: RunState.QUEUED,
    JobState.RUNNING: RunState.RUNNING,
    JobState.SUSPENDED: RunState.SUSPENDED,
}


def run_state(history: RunHistory, job: JobState | None, *, answered: bool = True) -> RunState:
    """The state of a run, by the table above.

    Args:
        history: the run's record.
        job: the scheduler's state of the last job; None: the scheduler knows no such job.
        answered: whether the scheduler responded.
    """
    if history.ended == errors.DONE:
        return RunState.DONE
    if history.pruned is not None and history.ended is not None:
        return RunState.PRUNED
    if history.job_id is None and history.attempt is None:
        return RunState.UNCONFIRMED
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
