"""The states of jobs, and the queries and commands that every scheduler with a queue has; no text of any of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from launcher.errors import LauncherError
from launcher.failures.codes import NextReason

if TYPE_CHECKING:
    from launcher.spec.plan import JobPlan


class QueryError(LauncherError):
    """A query of the scheduler failed, so the state of its jobs is unknown."""


class AnswerLost(QueryError):
    """The answer of a command was lost, so it is unknown whether the scheduler did what it was asked for."""


class QueryTimeout(AnswerLost):
    """The scheduler did not answer within the timeout."""


@dataclass(frozen=True)
class Ending:
    """Why a scheduler ends a job.

    Attributes:
        reason: one of TIME_LIMIT (of the allocation), STOP_REQUESTED, SCHEDULER_ENDS.
        scheduler: its name.
        state: the state that it shows for the job.
    """

    reason: NextReason
    scheduler: str = ""
    state: str = ""


class JobState(Enum):
    """State of one job. GONE and UNKNOWN mean that the outcome is not known, and never count as success.

    UNKNOWN: the scheduler lists the job in a state that is not known here, for instance that of a later version. The
    job may still run, so it never counts as over.
    """

    PENDING = "pending"
    RUNNING = "running"
    SUSPENDED = "suspended"  # it has started, and the scheduler has suspended its processes
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    GONE = "gone"  # over, and the scheduler does not report the outcome
    UNKNOWN = "unknown"

    @property
    def live(self) -> bool:
        return self in (JobState.PENDING, JobState.RUNNING, JobState.SUSPENDED)


@dataclass(frozen=True)
class SchedulerJob:
    """One job in the output of a scheduler.

    Attributes:
        id, reason: as the scheduler prints them.
        state: common to all schedulers.
        raw_state: as the scheduler prints it.
        comment: of the submission, in jobs of the launcher a token; None: this query does not return it.
        time_left: seconds of wall time left at the time of the query; None: there is no limit, or it is not known.
        signal: number of the signal that ended it; None: none did, or the scheduler does not print it.
    """

    id: str
    state: JobState
    raw_state: str
    reason: str = ""
    comment: str | None = None
    time_left: int | None = None
    signal: int | None = None


def state_text(raw_state: str, reason: str) -> str:
    """Returns a job's state for people: `PENDING (Resources)`."""
    return raw_state + (f" ({reason})" if reason else "")


@dataclass(frozen=True)
class JobOrigin:
    """The script and token of a job or array.

    Attributes:
        id: as the commands of the scheduler take it.
        token: by which the launcher finds the job; empty: it has none.
        file: its script, or another file in the same folder.
    """

    id: str
    token: str
    file: str


class Queries(Protocol):
    """Queries and commands of a live scheduler. Every method raises QueryError when the scheduler does not answer."""

    def jobs(self) -> dict[str, SchedulerJob]:
        """Returns all jobs of this user by `key`, with one command. Jobs that are over may be missing."""

    def key(self, job_id: str) -> str:
        """Returns the key in `jobs` of the job with this id."""

    def ended(self, job_id: str) -> SchedulerJob | None:
        """Returns the record of a job that is over; None: the scheduler has none."""

    def ended_all(self, job_ids: Sequence[str]) -> dict[str, SchedulerJob]:
        """Returns the records of jobs that are over, by `key`, with as few commands as possible.

        Jobs without a record are missing.
        """

    def family(self, job_id: str) -> str:
        """Returns the group of jobs that `ended_family` queries for a job: its array, or all jobs of the user."""

    def ended_family(self, family: str) -> dict[str, SchedulerJob]:
        """Returns the records of jobs that are over, by `key`, with one command: at least those of a `family`."""

    def find(self, token: str, name: str) -> str | None:
        """Returns the id of the job that was submitted with this token and name; None: there is none."""

    def origins(self, numbers: Sequence[str]) -> dict[str, JobOrigin]:
        """Returns script and token of this user's jobs and arrays with these numbers (`17`), by number.

        Unknown ones are omitted.
        """

    def submit_behind(self, jobs: Sequence[str], script: str, token: str, environment: Mapping[str, str]) -> str:
        """Submits a script as a job with this token that starts when all these jobs have ended, with any outcome.

        Returns the id of the job. Raises Refused or NoAnswer."""

    def wait_for(self, job_id: str, jobs: Sequence[str]) -> None:
        """Replaces the dependencies of a job that has not started: it starts when all these jobs have ended."""

    def cancel(self, job_id: str) -> None:
        """Cancels a job; it is no error if the job has ended already."""

    def max_array_size(self, plan: JobPlan) -> int | None:
        """Returns the maximum size of an array of runs like this; None: there is no limit, or it is not known."""

    def throttle(self, job_id: str, most: int) -> None:
        """Sets the maximum number of elements of an array that run at once."""


def parse_elements(text: str) -> list[int]:
    """Parses the numbers of array elements as Slurm and Grid Engine print them: `3`, `0-2,7`, `0-6:2`. Pure."""
    found: list[int] = []
    for part in re.finditer(r"(\d+)(?:-(\d+))?(?::(\d+))?", text):
        found += range(int(part[1]), int(part[2] or part[1]) + 1, int(part[3] or 1))
    return found


def parts(count: int, most: int | None) -> list[range]:
    """Splits the indices of `count` elements into ranges of at most `most`; None: one range."""
    step = most or count
    return [range(start, min(start + step, count)) for start in range(0, count, step)]
