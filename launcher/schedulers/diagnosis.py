"""Optional capabilities of a scheduler for diagnosis: pending reasons, job history, notices, doctor checks, survey."""

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
            waiting: the pending run and its job.
            timeout: timeout of each query in seconds.

        Raises:
            QueryError: the query of the job itself failed.
        """


@dataclass(frozen=True)
class JobExecution:
    """One execution of a job; a requeued job has several."""

    raw_state: str  # state as the scheduler prints it; empty if not reported
    by: str = ""  # name or id of the user who cancelled the job; empty if it was not cancelled
    begin: str = ""  # start in local time (`2026-11-21T20:00:00`); any other text means unknown
    end: str = ""  # end, in the same form
    # peak memory in bytes, per task, node or job as in `RemembersJobs.memory`; None if not measured
    used: int | None = None


class RemembersJobs(ABC):
    """A scheduler that can keep records of ended jobs."""

    @abstractmethod
    def history(self, job_id: str, timeout: float) -> list[JobExecution]:
        """Returns all executions of a job, oldest first; [] without a record or an answer of the scheduler.

        Args:
            job_id: id of the job.
            timeout: timeout of each query in seconds.
        """

    def memory(self, plan: JobPlan) -> int | None:
        """Returns the requested memory in bytes that is comparable to `JobExecution.used`; None if not set.

        The default is the memory of one node. A scheduler that measures the whole job returns the sum of all nodes.
        """
        return plan.mem


class OpensOutput(ABC):
    """A scheduler that opens a job's output file before it starts the job script."""

    output_signal: int  # number of the signal with which the scheduler ends a job when it cannot open the output file


class WritesNotices(ABC):
    """A scheduler that writes a notice into the output of a job that it kills."""

    @abstractmethod
    def notices(self) -> tuple[Form, ...]:
        """Returns the patterns of the scheduler's notices, the most specific ones first."""


class ChecksItself(Scheduler):
    """A scheduler that `doctor` can check."""

    command: str  # name of the command that submits jobs

    @abstractmethod
    def found(self) -> str:
        """Returns text about the scheduler's commands on PATH, with the evidence for their scheduler; empty: none."""

    @abstractmethod
    def check(self, cluster: Cluster, timeout: float) -> Iterator[Finding]:
        """Yields findings about the live scheduler, and about a profile compared with it.

        Args:
            cluster: the profile.
            timeout: timeout of each query in seconds.
        """


class DescribesSite(ChecksItself):
    """A scheduler from whose queries `site init` can write a profile of the site."""

    @abstractmethod
    def survey(self, timeout: float) -> Site:
        """Collects the facts of the site that an ordinary user can query, with a few commands.

        Args:
            timeout: timeout of each query in seconds.

        Raises:
            QueryError: the scheduler does not answer.
        """
