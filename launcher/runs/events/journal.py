"""Events of the journals of runs and sweeps: submissions and cancellations."""

from __future__ import annotations

from typing import ClassVar

from launcher.runs.event_json import Event


class Submitting(Event):
    """A job is about to be submitted.

    Attributes:
        token: token by which the scheduler can find the job.
        points: for an array, the points of the sweep that are its elements (`0-3,7`); None: a single job.
    """

    event: ClassVar[str] = "submitting"
    token: str
    points: str | None = None


class Submitted(Event):
    """The scheduler has accepted a job.

    Attributes:
        job: id of the job.
        chain: with resume.how=chain, ids of the jobs that follow it.
        token: token of the array; None: a single job.
    """

    event: ClassVar[str] = "submitted"
    job: str
    chain: tuple[str, ...] = ()
    token: str | None = None


class Refused(Event):
    """The submission of a job or an array has led to no job.

    Attributes:
        token: token of the job.
        error: message with which the scheduler refused the job; None: the submitter was killed before.
    """

    event: ClassVar[str] = "refused"
    token: str
    error: str | None = None


class ProcessStarted(Event):
    """The run's script was started without a scheduler; for the fields see `launcher.processes.groups.Process`."""

    event: ClassVar[str] = "process"
    pid: int
    start: int
    host: str


class Cancelled(Event):
    """The user cancelled the run: its job should end, and no other job may continue the run.

    Attributes:
        by: name of the user.
        host: name of the host on which the user's command ran.
    """

    event: ClassVar[str] = "cancelled"
    by: str = ""
    host: str = ""


class CancelFailed(Event):
    """A cancellation failed: the scheduler did not end the job, so the run is not cancelled.

    Attributes:
        error: the scheduler's message.
    """

    event: ClassVar[str] = "cancel_failed"
    error: str = ""


class Pruned(Event):
    """The search of the sweep has decided to end this point early, because other points have a better objective.

    Attributes:
        step: number of steps that the point had done; None: unknown.
    """

    event: ClassVar[str] = "pruned"
    step: int | None = None
