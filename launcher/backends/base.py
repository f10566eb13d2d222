"""What every backend answers, in words that no scheduler owns."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from launcher.errors import LauncherError


class QueryError(LauncherError):
    """The scheduler could not be asked; what it would have said is unknown."""


class JobState(Enum):
    """State of one job. UNKNOWN is what nobody can tell, and never counts as success."""

    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"

    @property
    def live(self) -> bool:
        return self in (JobState.PENDING, JobState.RUNNING)


@dataclass(frozen=True)
class SchedulerJob:
    """What a scheduler says of one job: the state in our words and in its own, why, and the comment we gave it."""

    id: str
    state: JobState
    word: str
    reason: str = ""
    comment: str = ""
