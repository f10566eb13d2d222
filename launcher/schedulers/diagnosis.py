"""Optional capabilities for diagnosis: why a job is pending, job history, checks of a site. Schedulers inherit them."""

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
    """A scheduler that reports why a job is pending."""

    @abstractmethod
    def explain(self, waiting: Waiting, timeout: float) -> Explanation:
        """Returns why a job is pending.

        Args:
            waiting: the run, and its job.
            timeout: seconds for one query.

        Raises:
            QueryError: the query of the job itself failed.
        """


@dataclass(frozen=True)
class JobExecution:
    """One execution of a job; a requeued job has several.

    Attributes:
        raw_state: its state as the scheduler prints it; empty: not reported.
        by: the user, or his id, who cancelled it; empty: nobody did.
        begin, end: `2026-11-21T20:00:00` in local time; anything else: unknown.
        used: peak memory in bytes, as `RemembersJobs.memory` counts; None: it was not measured.
    """

    raw_state: str
    by: str = ""
    begin: str = ""
    end: str = ""
    used: int | None = None


class RemembersJobs(ABC):
    """A scheduler that can keep records of jobs that are over."""

    @abstractmethod
    def history(self, job_id: str, timeout: float) -> list[JobExecution]:
        """Returns all executions of a job, oldest first; none if there is no record, or the scheduler does not answer.

        Args:
            job_id: of the job.
            timeout: seconds for one query.
        """

    def memory(self, plan: JobPlan) -> int | None:
        """Returns the memory limit in bytes to which `JobExecution.used` compares; None: the plan has none. Pure."""
        return plan.mem


class OpensOutput(ABC):
    """A scheduler that opens the output file of a job before its script starts.

    Attributes:
        output_signal: number of the signal by which it ends the job if it cannot open that file.
    """

    output_signal: int


class WritesNotices(ABC):
    """A scheduler that writes a notice into the output of a job that it ends."""

    @abstractmethod
    def notices(self) -> tuple[Form, ...]:
        """Returns the patterns of its notices, from the special to the general. Pure."""


class ChecksItself(Scheduler):
    """A scheduler that `doctor` can check.

    Attributes:
        command: the command that submits jobs.
    """

    command: str

    @abstractmethod
    def found(self) -> str:
        """Returns which scheduler the commands on PATH belong to, with the evidence; empty: there are none."""

    @abstractmethod
    def check(self, cluster: Cluster, timeout: float) -> Iterator[Finding]:
        """Checks the live scheduler, and a profile against it.

        Args:
            cluster: the profile.
            timeout: seconds for one query.
        """


class DescribesSite(ChecksItself):
    """A scheduler from which a profile of its site can be written."""

    @abstractmethod
    def survey(self, timeout: float) -> Site:
        """Collects the facts of the site that an ordinary user can query, with a few commands.

        Args:
            timeout: seconds for one query.

        Raises:
            QueryError: the scheduler does not answer.
        """
