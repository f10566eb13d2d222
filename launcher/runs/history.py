"""What the record of a run says of its last job and its last attempt, without a question to the scheduler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher import errors
from launcher.runs.directory import Run
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
    Submitted,
    Submitting,
    every,
    first_fault,
    last,
)
from launcher.runs.journal import journal_events


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


def read_history(run: Run) -> RunHistory:
    """The run's history, from its journal and the events of its last attempt."""
    attempts = run.attempts()
    last = attempts[-1] if attempts else None
    if last is None:
        return history_of(journal_events(run), None, ())
    events = last.latest_events()
    recorded = bool(every(events, Ended))
    return history_of(journal_events(run), last.number, events, None if recorded else last.exit_code())


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
