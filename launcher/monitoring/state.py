"""Decides the state of a run, from its own files first, then from its job's state, and computes its progress.

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

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

from launcher import errors
from launcher.runs.events import Breakpoint, Continued, Progress, Restart, Saved, Started, StopRequested, every, known
from launcher.runs.history import RunHistory
from launcher.schedulers.base import JobState, state_text
from launcher.structs import Struct

if TYPE_CHECKING:
    from launcher.monitoring.run_status import RunStatus


class RunState(Enum):
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
        return self not in _NOT_OVER

    @property
    def exit_code(self) -> int:
        codes = {RunState.DONE: errors.DONE, RunState.PRUNED: errors.DONE, RunState.STOPPED: errors.RESUME}
        return codes.get(self, errors.FAILED)


class JobStatus(Struct):
    state: JobState | None = None  # None: there is no job, or its state is not known
    raw_state: str = ""  # as the scheduler prints it (`PENDING`); empty: not known
    reason: str = ""  # as the scheduler prints it (`Resources`); empty: not known
    problem: str = ""  # why the state is not known; empty: it is known, or there is no job
    signal: int | None = None  # that ended the job; None: none did, or the scheduler does not report it

    @property
    def text(self) -> str:
        """State and reason for display (`PENDING (Resources)`), or why the state is not known; empty: no job."""
        return self.problem or state_text(self.raw_state, self.reason)


_NOT_OVER = (
    RunState.UNCONFIRMED, RunState.UNSUBMITTED, RunState.QUEUED, RunState.RUNNING, RunState.SUSPENDED, RunState.UNKNOWN,
)  # fmt: skip
_LIVE = {JobState.PENDING: RunState.QUEUED, JobState.RUNNING: RunState.RUNNING, JobState.SUSPENDED: RunState.SUSPENDED}


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


# -- Progress: steps, rate, time left and last checkpoint, from the events


class RunProgress(Struct):
    """Progress of a run, with the keys of `status --json`. A field is None if it is unknown or does not apply."""

    step: int | None = None  # number of steps done, as the program reports it
    steps: int | None = None  # the same: the total
    percent: int | None = None  # percentage of steps done, rounded down; 100 only when all are done
    rate: float | None = None  # steps per second of the later half of the attempt's steps, with saves and evaluations
    needs: int | None = None  # seconds that the remaining steps will take at this rate
    elapsed: int | None = None  # seconds since the last attempt started or, if the run is over, its duration
    left: int | None = None  # seconds left of the attempt's wall time
    checkpoint: int | None = None  # number of steps done in the last checkpoint
    checkpoint_age: int | None = None  # seconds since the last checkpoint was written
    breakpoints: tuple[Breakpoint, ...] = ()  # the ranks that wait at a breakpoint; `needs` is then unknown


def progress_of(seen: RunStatus, now: float, before: tuple[int, float] | None = None) -> RunProgress:
    """Returns the progress at `now`; before: newest checkpoint (`saved_before`), if the last attempt has saved none."""
    events, live = seen.history.events, not seen.state.over
    step, steps, percent = _steps(seen.progress)
    rate = rate_of([(event.time, event.step) for event in every(events, Progress)])
    waits: tuple[Breakpoint, ...] = ()
    if seen.plan.debugs and seen.state is RunState.RUNNING:
        waits = tuple(event for _, event in sorted(at_breakpoints(events).items()))
    needs, runs = None, seen.state is RunState.RUNNING and not waits
    if runs and rate and steps is not None and step is not None and seen.progress:
        needs = max(0, round((steps - step) / rate - (now - seen.progress.time)))
    elapsed = int((now if live else events[-1]["time"]) - events[0]["time"]) if events else None
    event = seen.history.last(Saved)
    saved = (event.step, event.time) if event else before
    return RunProgress(
        step, steps, percent, None if rate is None else round(rate, 4), needs,
        None if elapsed is None else max(0, elapsed), _left(seen, now, saved is not None),
        saved[0] if saved else None, max(0, int(now - saved[1])) if saved else None, waits,
    )  # fmt: skip


def _steps(progress: Progress | None) -> tuple[int | None, int | None, int | None]:
    if progress is None:
        return None, None, None
    step, steps = int(progress.step), int(progress.total)
    return (step, steps, min(100, 100 * step // steps)) if steps > 0 else (step, None, None)


def rate_of(seen: Sequence[tuple[float, float]]) -> float | None:
    """Returns how fast a number grows per second, from (time, number), oldest first; None: unknown, or not.

    Only the later half of the growth counts: the first steps of a training take longer than all others.
    """
    if len(seen) < 2:
        return None
    now, done = seen[-1]
    half = (seen[0][1] + done) / 2
    began, first = next((each for each in reversed(seen[:-1]) if each[1] <= half), seen[0])
    return float((done - first) / (now - began)) if done > first and now > began else None


def _left(seen: RunStatus, now: float, saves: bool) -> int | None:
    # Returns the seconds left of the attempt's wall time; None: nothing ends the run when that is over
    if seen.state is not RunState.RUNNING:
        return None
    if seen.left is not None:  # the limit may have changed since the submission
        return seen.left
    started = seen.history.last(Started)
    if started is None or not (seen.plan.queued or saves):
        return None
    return max(0, int(started.time + seen.plan.time - now))


def wait_until_over(
    look: Callable[[], RunState], timeout: float | None, *, first: float, slowest: float, unavailable: type[Exception]
) -> RunState:
    """Polls a run's state until it is over, for at most `timeout` seconds (None: no limit); returns the last state.

    first, slowest: seconds between polls, at first and at most. unavailable: raised by `look` if nothing is known now.
    """
    until = time.monotonic() + (math.inf if timeout is None else timeout)
    pause = first
    while True:
        try:
            state = look()
        except unavailable:  # a later poll may know
            state = RunState.UNKNOWN
        left = until - time.monotonic()
        if state.over or left <= 0:
            return state
        time.sleep(min(pause, left))
        pause = min(pause * 1.2, slowest)


def at_breakpoints(events: Iterable[Mapping[str, Any]]) -> dict[int, Breakpoint]:
    """Returns, by rank, the `breakpoint` events of an attempt's ranks that wait at a breakpoint now."""
    found: dict[int, Breakpoint] = {}
    for event in known(events):
        if isinstance(event, Breakpoint):
            found[event.rank] = event
        elif isinstance(event, Continued):
            found.pop(event.rank, None)
        elif isinstance(event, Restart):  # the processes of the round before are gone
            found.clear()
    return found


def saved_before(folder: str) -> tuple[int, float] | None:
    """Returns step and mtime (since the epoch) of a folder's newest checkpoint, by names alone; None: none is seen."""
    newest: tuple[int, float] | None = None
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                kind, _, digits = entry.name.partition("-")
                if kind == "step" and digits.isdecimal() and (newest is None or int(digits) > newest[0]):
                    newest = int(digits), entry.stat().st_mtime
    except OSError:
        return newest
    return newest
