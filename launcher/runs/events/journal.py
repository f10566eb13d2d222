"""Events of the journals of runs and sweeps: submissions and cancellations."""

from __future__ import annotations

from typing import ClassVar

from launcher.runs.event_json import Event


class Submitting(Event):
    """A job is about to be submitted.

    Attributes:
        token: by which the scheduler can find the job.
        points: the points of a sweep that are the elements of this array (`0-3,7`).
    """

    event: ClassVar[str] = "submitting"
    token: str
    points: str | None = None


class Submitted(Event):
    """The scheduler has accepted a job.

    Attributes:
        job: id of the job.
        chain: ids of the jobs that follow it.
        token: token of the array; None for single jobs.
    """

    event: ClassVar[str] = "submitted"
    job: str
    chain: tuple[str, ...] = ()
    token: str | None = None


class Refused(Event):
    """The scheduler has refused an array.

    Attributes:
        token: token of the array.
        error: the scheduler's message; None: the submitter was killed, and there is no job.
    """

    event: ClassVar[str] = "refused"
    token: str
    error: str | None = None


class ProcessStarted(Event):
    """The run's script was started on this machine; see `launcher.processes.groups.Process`."""

    event: ClassVar[str] = "process"
    pid: int
    start: int
    host: str


class Cancelled(Event):
    """The run was cancelled: its job is to end, and no other one may continue it.

    Attributes:
        by: the user.
        host: where the command ran.
    """

    event: ClassVar[str] = "cancelled"
    by: str = ""
    host: str = ""


class CancelFailed(Event):
    """The scheduler did not end the job, so the run is not cancelled.

    Attributes:
        error: the scheduler's message.
    """

    event: ClassVar[str] = "cancel_failed"
    error: str = ""


class Pruned(Event):
    """The search of the point's sweep has decided to end it: others are ahead.

    Attributes:
        step: steps that it had done; None: unknown.
    """

    event: ClassVar[str] = "pruned"
    step: int | None = None
