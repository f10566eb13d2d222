"""What a scheduler can tell of its jobs and of its site. Each ability is a class, and who has it inherits it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from launcher.schedulers.scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Iterator

    from launcher.config.schema import Cluster
    from launcher.findings import Finding
    from launcher.schedulers.explanation import Explanation, Waiting
    from launcher.schedulers.notices import Form
    from launcher.schedulers.site import Site
    from launcher.spec.plan import JobPlan


class ExplainsPending(ABC):
    """It tells why a job waits."""

    @abstractmethod
    def explain(self, waiting: Waiting, timeout: float) -> Explanation:
        """Why a job waits.

        Args:
            waiting: the run, and its job.
            timeout: seconds that one question may take.

        Raises:
            QueryError: not even the job could be asked for.
        """


@dataclass(frozen=True)
class JobExecution:
    """One time that a job ran; a requeued one has several.

    Attributes:
        word: its state in the scheduler's words; empty: it tells none here.
        by: the user, or his id, who cancelled it; empty: nobody did.
        begin, end: `2026-11-21T20:00:00` in local time; anything else: unknown.
        used: most memory that it took, in bytes, as `RemembersJobs.memory` counts; None: it was not measured.
    """

    raw_state: str
    by: str = ""
    begin: str = ""
    end: str = ""
    used: int | None = None


class RemembersJobs(ABC):
    """It can remember jobs that are over."""

    @abstractmethod
    def history(self, job_id: str, timeout: float) -> list[JobExecution]:
        """All times that a job ran, oldest first; none where it remembers nothing, or does not answer.

        Args:
            job_id: of the job.
            timeout: seconds that one question may take.
        """

    def memory(self, plan: JobPlan) -> int | None:
        """Bytes that a job of this plan may take where `history` tells what one took; None: it asks for none. Pure."""
        return plan.mem


class WritesNotices(ABC):
    """It writes into the output of a job that it ends."""

    @abstractmethod
    def notices(self) -> tuple[Form, ...]:
        """The forms of what it writes, from the special to the general. Pure."""


class ChecksItself(Scheduler):
    """Its commands tell whether they are what they seem, and whether it is well.

    Attributes:
        command: by which jobs are submitted.
    """

    command: str

    @abstractmethod
    def found(self) -> str:
        """Its commands on this machine's PATH, or others of their names, and what showed whose they are; empty: none
        are there."""

    @abstractmethod
    def check(self, cluster: Cluster, timeout: float) -> Iterator[Finding]:
        """What its commands tell of it, and of a profile that is for it.

        Args:
            cluster: the profile.
            timeout: seconds that one question may take.
        """


class DescribesSite(ChecksItself):
    """It tells enough of its site for a profile."""

    @abstractmethod
    def survey(self, timeout: float) -> Site:
        """What it tells an ordinary user: a few commands.

        Args:
            timeout: seconds that one question may take.

        Raises:
            QueryError: it does not answer.
        """
