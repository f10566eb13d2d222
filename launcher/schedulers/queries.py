"""The states of jobs, and the queries and commands that every scheduler with a queue has; no text of any of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from launcher.errors import LauncherError
from launcher.failures.codes import NextReason


class QueryError(LauncherError):
    """The scheduler could not be asked; what it would have said is unknown."""


class AnswerLost(QueryError):
    """Nobody heard whether the scheduler did what it was asked for."""


class QueryTimeout(AnswerLost):
    """The scheduler took longer than one is ready to wait."""


@dataclass(frozen=True)
class Ending:
    """Why a scheduler ends a job.

    Attributes:
        reason: one of TIME_LIMIT (of the allocation), STOP_REQUESTED, SCHEDULER_ENDS.
        scheduler: its name.
        state: that it shows of the job.
    """

    reason: NextReason
    scheduler: str = ""
    state: str = ""


class JobState(Enum):
    """State of one job. GONE and UNKNOWN are what nobody can tell, and never count as success.

    UNKNOWN is a job that its scheduler lists, in a state that has no name here: a later version's, for instance. It
    may yet run, so it never counts as over.
    """

    PENDING = "pending"
    RUNNING = "running"
    SUSPENDED = "suspended"  # it has begun, and the scheduler has stopped its processes for now
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    GONE = "gone"  # over, and the scheduler does not say how
    UNKNOWN = "unknown"

    @property
    def live(self) -> bool:
        return self in (JobState.PENDING, JobState.RUNNING, JobState.SUSPENDED)


@dataclass(frozen=True)
class SchedulerJob:
    """What a scheduler says of one job.

    Attributes:
        id, reason: as the scheduler has them.
        state, word: its state in our words, and in the scheduler's.
        comment: of its submission, which is a token in the launcher's jobs; None: this question does not tell it.
        left: seconds of wall time left when it was asked; None: it has no limit, or the scheduler does not say.
    """

    id: str
    state: JobState
    raw_state: str
    reason: str = ""
    comment: str | None = None
    time_left: int | None = None


@dataclass(frozen=True)
class JobOrigin:
    """Where a job or an array comes from.

    Attributes:
        id: as the scheduler wants it.
        token: what the launcher finds it by; empty: it has none.
        file: its script, or a file beside it.
    """

    id: str
    token: str
    file: str


class Queries(Protocol):
    """What is asked of a live scheduler. Everything raises QueryError when it does not answer."""

    def jobs(self) -> dict[str, SchedulerJob]:
        """All of this user's jobs, by `key`; one command. Those that are over may be left out."""

    def key(self, job_id: str) -> str:
        """What `jobs` calls the job with this id."""

    def ended(self, job_id: str) -> SchedulerJob | None:
        """What the scheduler remembers of a job that is over; None: nothing."""

    def ended_all(self, job_ids: Sequence[str]) -> dict[str, SchedulerJob]:
        """What it remembers of jobs that are over, by `key`, with as few commands as it can; without those that it
        has forgotten."""

    def family(self, job_id: str) -> str:
        """What jobs have in common whose ends one question tells: their array, say, or that they are this user's."""

    def ended_family(self, family: str) -> dict[str, SchedulerJob]:
        """What it remembers of jobs of that family that are over, by `key`; one command. Others may be among them."""

    def find(self, token: str, name: str) -> str | None:
        """The id of the job that was submitted with this token and name."""

    def origins(self, numbers: Sequence[str]) -> dict[str, JobOrigin]:
        """The script and token of this user's jobs and arrays with these numbers (17), by number; unknown ones are
        omitted."""

    def submit_behind(self, jobs: Sequence[str], script: str, token: str, environment: Mapping[str, str]) -> str:
        """Hands a run's script over for a job with this token that starts when all these have ended, however they
        did; its id. Raises Refused or NoAnswer."""

    def wait_for(self, job_id: str, jobs: Sequence[str]) -> None:
        """Has a job that has not begun start when all these have ended, instead of those that it waited for."""

    def cancel(self, job_id: str) -> None:
        """Asks the scheduler to end a job; one that has ended already is no error."""

    def max_array_size(self, queue: str | None) -> int | None:
        """Most elements of one array (in this PBS queue); None: no limit, or an unknown one."""

    def throttle(self, job_id: str, most: int) -> None:
        """Sets how many elements of an array may run at once."""


def parts(count: int, most: int | None) -> list[range]:
    """The indices of `count` elements, in arrays of at most `most`."""
    step = most or count
    return [range(start, min(start + step, count)) for start in range(0, count, step)]
