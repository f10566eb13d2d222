"""What a scheduler is to the rest of the launcher: one class per scheduler, found by `registry.scheduler(name)`.

What not every scheduler can do is a class of its own, and `isinstance` tells who can. Nothing outside of a scheduler's
folder asks for its name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from launcher.config.schema import GpuDirective
from launcher.failures.codes import NextReason
from launcher.schedulers.queries import Ending
from launcher.script.job_shell import JobShell

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
        title: as people write it.
        template: what its scripts are made from: a file of templates/, or the whole path of another one.
        shell: what the script of a job knows of its job.
        queued: it takes jobs, which wait until there is room.
        on_this_machine: its jobs are processes of the machine where they are submitted.
        secrets_in_files: a job gets its environment and its secrets from files, which the executor writes.
    """

    name: str
    title: str
    template: str
    shell = JobShell()
    queued = False
    on_this_machine = False
    secrets_in_files = False

    @abstractmethod
    def executor(self) -> type[RunExecutor]:
        """What hands runs over. It is loaded when it is asked for: submitit takes 30 ms."""

    def starter(self, cluster: Cluster) -> str | None:
        """What starts tasks on the nodes of a job (srun, or one of registry.STARTERS); None: they are processes of
        the machine where its script runs. Pure."""
        return None

    def options(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The key cluster.directives, as a plan keeps it. Pure.

        Raises:
            ConfigError: one cannot be an option of a job.
        """
        return dict(values)

    def directives(self, plan: JobPlan, token: str, array: str | None, folder: str | None) -> list[str]:
        """The options of a plan's script, as they stand in its lines, each value quoted as they are read there. Pure.

        Args:
            plan: the run.
            token: what the job is found by later.
            array: indices and throttle of an array (`0-14%4`).
            folder: where what the job prints goes; None: the run's directory.

        Raises:
            ConfigError: an extra option of the profile collides with a key of the launcher, or a value cannot be one.
        """
        return []

    @abstractmethod
    def job_environment(self, environ: Mapping[str, str], plan: JobPlan) -> Scrubbed:
        """The environment for a new job of this plan. Pure."""

    def problem(self) -> str | None:
        """Why this machine cannot submit, and what to do; None: it can."""
        return None

    def held(self, environ: Mapping[str, str]) -> Allocation | None:
        """The allocation that the shell is in, where runs are started in one.

        Raises:
            ConfigError: it is in none.
        """
        return None

    def ending(self, plan: JobPlan, *, stop_requested: bool, left: float) -> Ending | None:
        """Why the scheduler is ending the job that we are in, unless it is for its wall time; None: it is not.

        Args:
            plan: of the job's run.
            stop_requested: the job's script got a signal to stop.
            left: seconds of wall time left; infinite: it has no limit, or nobody knows.
        """
        return Ending(NextReason.STOP_REQUESTED) if stop_requested and left > 0 else None


class Queue(Scheduler):
    """A scheduler that takes jobs, which wait until there is room.

    Attributes:
        keys: those of schema.OF_SOME_SCHEDULERS that it knows.
        instead: what to write for another scheduler's keys.
        gpu_directives: how it can be asked for GPUs (cluster.gpu_directive).
        no_requeue: why it does not start a user's running job again, and what happens instead; empty: it does.
    """

    queued = True
    keys: Collection[str] = ()
    instead: Mapping[str, str] = MappingProxyType({})
    gpu_directives: Collection[GpuDirective] = (GpuDirective.none,)
    no_requeue = ""

    @abstractmethod
    def queries(self, timeout: float) -> Queries:
        """Its commands, each of which may take this many seconds."""

    @abstractmethod
    def here(self) -> bool:
        """Whether its commands are on this machine's PATH."""

    @abstractmethod
    def server(self) -> tuple[str | None, ...]:
        """What tells the server that is asked here from others: the command, and the variables that it reads."""

    @abstractmethod
    def array_of(self, job_id: str) -> str:
        """The id of the array that an element belongs to; a plain job's own. Pure."""

    def can_be_waited_for(self, job_id: str) -> bool:
        """Whether another job can wait for this one's end; some can wait for no element of an array. Pure."""
        return True

    @abstractmethod
    def compare(self, plan: JobPlan, environ: Mapping[str, str]) -> tuple[str, ...]:
        """Compares a plan with what the scheduler has now; what the user should know.

        Raises:
            ConfigError: there is no room for it there.
        """

    @abstractmethod
    def own_job(self, environ: Mapping[str, str]) -> str:
        """The id of the job that we are in, which another one can wait for. Pure."""

    @abstractmethod
    def environment_within(self, plan: JobPlan, run: Run) -> dict[str, str]:
        """The environment in which a job of the run submits the next one; whatever that one needs is made."""


class Requeues(ABC):
    """A scheduler that starts a user's running job again, under the same id."""

    @abstractmethod
    def requeue(self, job_id: str) -> None:
        """Ends the job and starts it again.

        Raises:
            QueryError: the scheduler does not, in its words.
        """


class ShowsPreemption(ABC):
    """A scheduler that shows that it has begun to preempt a job."""

    @abstractmethod
    def preempted(self, job_id: str) -> float | None:
        """When it has begun to, in seconds since the epoch; None: it has not.

        Raises:
            QueryError: it does not answer.
        """


class ExcludesNodes(ABC):
    """A scheduler that starts a job elsewhere than on certain nodes."""

    @abstractmethod
    def without(self, hosts: str, excluded: str | None = None) -> str:
        """The override, quoted for a shell, with which a run is resumed without these nodes. Pure.

        Args:
            hosts: the nodes (`node3,node7`).
            excluded: those that the run does without already (cluster.exclude).
        """
