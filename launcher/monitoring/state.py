"""What a run is doing: its own record first, the scheduler as a witness. Pure.

| the record says | the scheduler says | the run is |
|---|---|---|
| last attempt ended with 0 | (not asked) | done |
| last attempt ended with another code | job alive again | queued, running or suspended, as the scheduler says |
| | job in a state that is not known here | unknown: it may be alive again |
| last attempt ended with 75 | no job | stopped (cancelled, if that was asked for) |
| last attempt ended with another code | no job | failed (cancelled, if that was asked for) |
| last attempt ended with a signal's code | job cancelled | cancelled |
| an attempt has begun and not ended | job running, suspended or pending | running, suspended or queued |
| | no answer, or a state that is not known here | unknown |
| the same, and its agents wrote an exit code | job over, or no such job | as if it had ended with that code |
| the same, and they wrote none | job ended badly or cancelled | cancelled if asked for or said, else failed |
| | job done or gone, or no such job | cancelled if asked for, stopped if it was told to end, else lost |
| no attempt yet | job pending | queued |
| | job ended badly or cancelled | cancelled if asked for or said, else failed |
| | job done or gone, or no such job | cancelled if asked for, else lost |
| | no answer, or a state that is not known here | unknown |
| submitting, and no job id | (not asked) | unconfirmed |

What cannot be read now tells nothing: the run is unknown then (launcher/monitoring/live.py,
launcher/monitoring/sweep.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from launcher import errors
from launcher.runs.event_json import known
from launcher.runs.events import (
    E_,
    CancelFailed,
    Cancelled,
    Ended,
    Fault,
    ProcessStarted,
    SetupFailed,
    Started,
    StopRequested,
    Submitted,
    Submitting,
    first_fault,
    last,
)
from launcher.schedulers.base import JobState


class RunState(Enum):
    """State of a run."""

    UNCONFIRMED = "unconfirmed"  # it was being submitted, and nobody knows whether the scheduler took it
    QUEUED = "queued"
    RUNNING = "running"
    SUSPENDED = "suspended"  # the scheduler has stopped its processes, and will continue them
    DONE = "done"
    STOPPED = "stopped"  # it ended early and can be resumed
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"  # its job is gone without a word
    UNKNOWN = "unknown"  # the scheduler does not answer or has a new state for it, or its record cannot be read now

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
        """What those who waited for the run exit with, if its last attempt has no word on it."""
        return {RunState.DONE: errors.DONE, RunState.STOPPED: errors.RESUME}.get(self, errors.FAILED)


@dataclass(frozen=True)
class Story:
    """What the record tells of a run: the last job, whether it was to be cancelled, and the last attempt's events."""

    job_id: str | None
    cancelled: bool
    attempt: int | None
    events: tuple[Mapping[str, Any], ...]
    waiting: tuple[str, ...] = ()  # jobs of a chain that are to follow the last job
    submitted: float = 0.0  # when it was last handed over, in seconds since the epoch
    exit_code: int | None = None  # what the last attempt's agents wrote down, if its script could not record its end

    def last(self, kind: type[E_]) -> E_ | None:
        """The latest event of this kind."""
        return last(self.events, kind)

    @property
    def moved(self) -> float:
        """When the run's own record last told of something, in seconds since the epoch."""
        return max(self.submitted, float(self.events[-1].get("time", 0.0)) if self.events else 0.0)

    @property
    def ended(self) -> int | None:
        """Exit code of the last attempt, if it has ended."""
        event = self.last(Ended)
        return None if event is None else event.code

    @property
    def code(self) -> int | None:
        """The same, or what its agents wrote down before their script was killed."""
        return self.exit_code if self.ended is None else self.ended

    @property
    def fault(self) -> Fault | SetupFailed | None:
        """The first fault of the last attempt."""
        return first_fault(self.events)


def tell(
    journal: Sequence[Mapping[str, Any]],
    attempt: int | None,
    events: Sequence[Mapping[str, Any]],
    exit_code: int | None = None,
) -> Story:
    """The story in a journal, and in the last attempt's events and exit code."""
    submitted, wanted, times = None, False, [0.0]
    for event in known(journal):
        submitted = event if isinstance(event, Submitted) else submitted
        if isinstance(event, (Cancelled, CancelFailed, Submitted)):
            wanted = isinstance(event, Cancelled)  # else it was resumed since, or the scheduler did not take it
        if isinstance(event, (Submitting, Submitted, ProcessStarted)):
            times.append(event.time)
    jobs = _jobs(submitted, events)
    return Story(jobs[0] if jobs else None, wanted, attempt, tuple(events), tuple(jobs[1:]), max(times), exit_code)


def _jobs(submitted: Submitted | None, events: Sequence[Mapping[str, Any]]) -> list[str]:
    """The job that runs the run, or is to do so next, and those of its chain that follow it.

    | the last attempt's job | the current job |
    |---|---|
    | is the one submitted last, or one of its chain | is that one; if it has stopped, the next of the chain |
    | is another, and began after the last submission | is that one: whoever submitted it was killed before it said so |
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


def run_state(story: Story, job: JobState | None, *, answered: bool = True) -> RunState:
    """The state, by the table above.

    Args:
        story: what the record tells.
        job: the scheduler's word on the last job; None: it knows no such job.
        answered: whether the scheduler answered at all.
    """
    if story.ended == errors.DONE:
        return RunState.DONE
    if story.job_id is None and story.attempt is None:
        return RunState.UNCONFIRMED
    if answered and job is not None and job.live:
        return _LIVE[job]
    if answered and job is JobState.UNKNOWN:
        return RunState.UNKNOWN
    code = story.ended
    if code is None:
        if not answered:
            return RunState.UNKNOWN
        code = story.exit_code
        if code == errors.DONE:
            return RunState.DONE
    if story.cancelled or (job is JobState.CANCELLED and (code is None or code > 128)):
        return RunState.CANCELLED
    if code is not None:
        return RunState.STOPPED if code == errors.RESUME else RunState.FAILED
    if job is JobState.FAILED:
        return RunState.FAILED
    return RunState.LOST if story.last(StopRequested) is None else RunState.STOPPED
