"""The interface of a scheduler: one class per scheduler, returned by `registry.scheduler(name)`.

An optional capability is a class that a scheduler inherits; callers check it with `isinstance`. No code outside of a
scheduler's folder compares its name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from launcher.failures.codes import NextReason
from launcher.schedulers.queries import Ending
from launcher.script.job_variables import JobVariables

if TYPE_CHECKING:
    from launcher.config.schema import Cluster
    from launcher.runs.directory import Run
    from launcher.schedulers.allocation import Allocation
    from launcher.schedulers.executor import RunExecutor
    from launcher.schedulers.job_environment import Scrubbed
    from launcher.schedulers.queries import Queries
    from launcher.spec.plan import JobPlan

JOB_TIMEOUT = 30.0  # seconds for one command within a job, which may be about to end


class Scheduler(ABC):
    """A scheduler.

    Attributes:
        name: as in cluster.scheduler.
        title: the name in messages.
        template: the template of its job scripts: a file of templates/, or the absolute path of another one.
        shell: the shell expressions by which a job script reads the id and index of its job.
        queued: jobs are submitted to it, and wait in its queue.
        on_this_machine: its jobs are processes of the machine where they are submitted.
        secrets_in_files: a job gets its environment and its secrets from files, which the executor writes.
    """

    name: str
    title: str
    template: str
    shell = JobVariables()
    queued = False
    on_this_machine = False
    secrets_in_files = False

    @abstractmethod
    def executor(self) -> type[RunExecutor]:
        """Returns the class that submits runs. It is imported here, because submitit takes 30 ms."""

    def starter(self, cluster: Cluster) -> str | None:
        """Returns the command that starts tasks on the nodes of a job (srun, or one of registry.STARTERS). Pure.

        None: the tasks are processes of the machine where the script runs.
        """
        return None

    def options(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Validates cluster.directives, and returns them as a plan stores them. Pure.

        Raises:
            ConfigError: one cannot be an option of a job.
        """
        return dict(values)

    def directives(self, plan: JobPlan, token: str, array: str | None, folder: str | None) -> list[str]:
        """Returns the options in the directive lines of a job script, with quoted values. Pure.

        Args:
            plan: the run.
            token: by which the job is found later.
            array: indices and throttle of an array (`0-14%4`).
            folder: of the job's output; None: the directory of the run.

        Raises:
            ConfigError: an extra option of the profile collides with a key of the launcher, or a value cannot be one.
        """
        return []

    @abstractmethod
    def job_environment(self, environ: Mapping[str, str], plan: JobPlan) -> Scrubbed:
        """Returns the environment for a new job of this plan. Pure."""

    def problem(self) -> str | None:
        """Returns why this machine cannot submit jobs, and what to do; None: it can."""
        return None

    def held(self, environ: Mapping[str, str]) -> Allocation | None:
        """Returns the allocation of this shell, for a scheduler that starts runs in one; None for the others.

        Raises:
            ConfigError: the shell is in no allocation.
        """
        return None

    def ending(self, plan: JobPlan, *, stop_requested: bool, left: float) -> Ending | None:
        """Returns why the scheduler is ending the current job, unless its wall time is over; None: it is not.

        Args:
            plan: of the job's run.
            stop_requested: the job's script got a signal to stop.
            left: seconds of wall time left; infinite: there is no limit, or it is not known.
        """
        return Ending(NextReason.STOP_REQUESTED) if stop_requested and left > 0 else None


class Queue(Scheduler):
    """A scheduler to which jobs are submitted, which wait in its queue.

    Attributes:
        no_requeue: why a user cannot requeue a running job, and what happens instead; empty: he can.
    """

    queued = True
    no_requeue = ""

    @abstractmethod
    def queries(self, timeout: float) -> Queries:
        """Returns the commands of the scheduler; `timeout` in seconds applies to each of them."""

    @abstractmethod
    def here(self) -> bool:
        """Whether the commands of the scheduler are on PATH."""

    @abstractmethod
    def server(self) -> tuple[str | None, ...]:
        """Returns what identifies the server of the scheduler: the path of its command, and the variables it reads."""

    @abstractmethod
    def array_of(self, job_id: str) -> str:
        """Returns the id of the array of an element, or the id itself for a plain job. Pure."""

    def can_be_waited_for(self, job_id: str) -> bool:
        """Whether another job can depend on this one. Some schedulers support no dependency on an element of an
        array. Pure."""
        return True

    @abstractmethod
    def compare(self, plan: JobPlan, environ: Mapping[str, str]) -> tuple[str, ...]:
        """Compares a plan with the live limits and nodes of the scheduler, and returns notes for the user.

        Raises:
            ConfigError: the job could never start there.
        """

    @abstractmethod
    def own_job(self, environ: Mapping[str, str]) -> str:
        """Returns the id of the current job, on which another job can depend. Pure."""

    @abstractmethod
    def environment_within(self, plan: JobPlan, run: Run) -> dict[str, str]:
        """Returns the environment in which a job of the run submits the next one. Writes the files that job needs."""


class HoldsAllocations(ABC):
    """A scheduler with interactive jobs: a run can start in the allocation of one (cluster=allocation).

    Attributes:
        interactive: a command that gets such an allocation.
        allocation_variables: the environment variables by which an allocation is recognised.
    """

    interactive: str
    allocation_variables: Collection[str]

    @abstractmethod
    def allocation(self, environ: Mapping[str, str]) -> Allocation:
        """Returns the allocation that an environment with all of `allocation_variables` describes.

        Raises:
            ConfigError: the list of its nodes cannot be read.
        """


class Requeues(ABC):
    """A scheduler where a user can requeue a running job, which keeps its id."""

    @abstractmethod
    def requeue(self, job_id: str) -> None:
        """Requeues the job.

        Raises:
            QueryError: the scheduler refuses, with its message, or does not answer.
        """


class ShowsPreemption(ABC):
    """A scheduler that reports the start of a preemption."""

    @abstractmethod
    def preempted(self, job_id: str) -> float | None:
        """Returns when the preemption of the job began, in seconds since the epoch; None: it has not.

        Raises:
            QueryError: the scheduler does not answer.
        """


class CountsJobs(ABC):
    """A scheduler that counts the jobs of a user by partition, queue and QOS."""

    @abstractmethod
    def count_jobs(self, timeout: float) -> Mapping[str, int]:
        """Returns how many jobs of this user wait or run, by the name of each partition, queue and QOS; "": of all.

        Elements of an array count one by one.

        Raises:
            QueryError: the scheduler does not answer within `timeout` seconds.
        """


class ExcludesNodes(ABC):
    """A scheduler that can exclude nodes from a job."""

    @abstractmethod
    def without(self, hosts: str, plan: JobPlan | None = None) -> str:
        """Returns the override, quoted for a shell, that excludes these nodes when a run is resumed. Pure.

        Args:
            hosts: the nodes (`node3,node7`, `node[3,7]`).
            plan: of the run, which may exclude other nodes already.
        """
