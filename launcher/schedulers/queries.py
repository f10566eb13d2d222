"""Job states, and the interface of queries and commands that every scheduler with a queue implements."""

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
    """A query of the scheduler failed, so the state of the queried jobs is unknown."""


class AnswerLost(QueryError):
    """The output of a scheduler command was lost, so it is unknown whether the command took effect."""


class QueryTimeout(AnswerLost):
    """The scheduler did not answer within the timeout."""


@dataclass(frozen=True)
class Ending:
    """Why a scheduler ends a job."""

    reason: NextReason  # TIME_LIMIT (of an allocation), STOP_REQUESTED, SCHEDULER_ENDS or PREEMPTED
    scheduler: str = ""  # title of the scheduler; empty unless the reason is SCHEDULER_ENDS or PREEMPTED
    state: str = ""  # job state as the scheduler shows it; empty unless the scheduler is named


class JobState(Enum):
    """State of one job, the same for all schedulers.

    GONE and UNKNOWN never count as success, because the outcome is not known. UNKNOWN means that the scheduler lists
    the job in a state that this code does not know, for instance one of a newer version. Such a job may still run, so
    UNKNOWN never counts as ended.
    """

    PENDING = "pending"
    RUNNING = "running"
    SUSPENDED = "suspended"  # started, and the scheduler has stopped its processes for now
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    GONE = "gone"  # ended, and the scheduler does not report the outcome
    UNKNOWN = "unknown"

    @property
    def live(self) -> bool:
        return self in (JobState.PENDING, JobState.RUNNING, JobState.SUSPENDED)


@dataclass(frozen=True)
class SchedulerJob:
    """One job in the output of a scheduler command."""

    id: str  # job id as the scheduler prints it
    state: JobState  # job state, the same for all schedulers
    raw_state: str  # job state as the scheduler prints it
    reason: str = ""  # pending reason as the scheduler prints it
    # comment of the job, which is the token in jobs of the launcher; None if the query does not return it
    comment: str | None = None
    time_left: int | None = None  # seconds of wall time left at the time of the query; None if unlimited or unknown
    # number of the signal that ended the job; None if no signal did, or the scheduler does not print it
    signal: int | None = None


def state_text(raw_state: str, reason: str) -> str:
    """Returns a job's state and reason for display: `PENDING (Resources)`."""
    return raw_state + (f" ({reason})" if reason else "")


@dataclass(frozen=True)
class JobOrigin:
    """Where a job or array came from: its script and token."""

    id: str  # job id as the scheduler's commands take it
    token: str  # unique text that the launcher stored with the job; empty if the job has none
    file: str  # path of the job script, or of another file in the same folder


class Queries(Protocol):
    """Queries and commands of a live scheduler.

    Every method that runs a command raises QueryError when the scheduler does not answer.
    """

    def jobs(self) -> dict[str, SchedulerJob]:
        """Returns all jobs of this user by `key`, with one command. Ended jobs may be missing."""

    def key(self, job_id: str) -> str:
        """Returns the key of a job in the results of `jobs`, `ended_all` and `ended_family`."""

    def ended(self, job_id: str) -> SchedulerJob | None:
        """Returns the record of an ended job, or None if the scheduler has no record of it."""

    def ended_all(self, job_ids: Sequence[str]) -> dict[str, SchedulerJob]:
        """Returns the records of ended jobs by `key`, with as few commands as possible.

        Jobs without a record are omitted.
        """

    def family(self, job_id: str) -> str:
        """Returns the group whose records `ended_family` queries at once: the job's array, or all jobs of the user."""

    def ended_family(self, family: str) -> dict[str, SchedulerJob]:
        """Returns the records of ended jobs by `key`, with one command. They include all records of the family."""

    def find(self, token: str, name: str) -> str | None:
        """Returns the id of the job that was submitted with this token and job name, or None if there is none."""

    def origins(self, numbers: Sequence[str]) -> dict[str, JobOrigin]:
        """Returns the script and token of this user's jobs and arrays, by job number (`17`).

        Unknown numbers are omitted.
        """

    def submit_behind(self, jobs: Sequence[str], script: str, token: str, environment: Mapping[str, str]) -> str:
        """Submits a script as a job that starts when all jobs in `jobs` have ended, with any outcome.

        Args:
            jobs: ids of the jobs to wait for.
            script: path of the job script.
            token: unique text that is stored with the new job, for `find`.
            environment: environment of the submission command.

        Returns:
            The id of the new job.

        Raises:
            Refused: the scheduler refused the job.
            NoAnswer: the reply was lost, so the job may exist.
        """

    def wait_for(self, job_id: str, jobs: Sequence[str]) -> None:
        """Replaces the dependencies of a pending job: it now starts when all jobs in `jobs` have ended."""

    def cancel(self, *job_ids: str) -> None:
        """Cancels jobs and elements of arrays; a job that has ended already is no error.

        Raises:
            QueryError: some jobs, of several, may have been cancelled.
        """

    def max_array_size(self, plan: JobPlan) -> int | None:
        """Returns the maximum size of a job array for this plan, or None if it is unlimited or unknown."""

    def throttle(self, job_id: str, most: int) -> None:
        """Lets at most `most` elements of a job array run at once."""


def parse_elements(text: str) -> list[int]:
    """Parses the numbers of array elements as Slurm and Grid Engine print them: `3`, `0-2,7`, `0-6:2`."""
    found: list[int] = []
    for part in re.finditer(r"(\d+)(?:-(\d+))?(?::(\d+))?", text):
        found += range(int(part[1]), int(part[2] or part[1]) + 1, int(part[3] or 1))
    return found


def parts(count: int, most: int | None) -> list[range]:
    """Splits the indices 0 to `count` - 1 into ranges of at most `most` indices; `most=None` gives one range."""
    step = most or count
    return [range(start, min(start + step, count)) for start in range(0, count, step)]
