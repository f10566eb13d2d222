"""The two schedulers without a queue: `local` (this machine) and `allocation` (the allocation of this shell).

A job is a process group of this machine. There are no commands, limits or pending reasons.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from launcher.config.schema import SchedulerSettings
from launcher.errors import ConfigError
from launcher.failures.codes import NextReason
from launcher.schedulers.base import Allocation, Ending, JobVariables, Scheduler, Scrubbed, scrubbed
from launcher.schedulers.registry import allocation, known

if TYPE_CHECKING:
    from launcher.plan.plan import JobPlan


@dataclass
class LocalSettings(SchedulerSettings):
    """The additional keys of a profile of this machine: none."""

    IGNORES_OTHERS = True


@dataclass
class AllocationSettings(SchedulerSettings):
    """The additional keys of a profile of an allocation."""

    IGNORES_OTHERS = True

    srun_args: list[str] = field(default_factory=list)  # extra arguments of srun, which starts the tasks on Slurm


STARTED_BY_HAND = "${LAUNCHER_JOB_ID:-${SLURM_JOB_ID:-}}"  # in an allocation of Slurm, say


class LocalScheduler(Scheduler):
    """Starts the job script and all tasks on this machine (cluster=local)."""

    name = "local"
    title = "this machine"
    template = "local.sh.j2"
    run_executor = "launcher.schedulers.executor:LocalExecutor"
    shell = JobVariables(job_id=STARTED_BY_HAND)
    on_this_machine = True

    def job_environment(self, environ: Mapping[str, str], plan: JobPlan) -> Scrubbed:
        return scrubbed(environ)


class AllocationScheduler(LocalScheduler):
    """Starts the job script on this machine, and its tasks on the nodes of this shell's allocation."""

    name = "allocation"
    title = "this allocation"
    template = "allocation.sh.j2"
    shell = JobVariables(
        job_id=STARTED_BY_HAND, time_left="launcher.schedulers.slurm.in_job:seconds_left", limited=False
    )
    on_this_machine = False

    def job_environment(self, environ: Mapping[str, str], plan: JobPlan) -> Scrubbed:
        """See `Scheduler.job_environment`. Keeps the variables of the scheduler of this allocation: srun needs them."""
        return scrubbed(environ, schedulers=False)

    def held(self, environ: Mapping[str, str]) -> Allocation:
        found = allocation(environ)
        if found is None:
            ways = ", ".join(f"{each.interactive} ({' and '.join(each.allocation_variables)})" for each in known())
            raise ConfigError(
                "cluster=allocation: this shell is in no allocation. Commands that get one, with the variables that "
                f"it sets: {ways}. Or use a cluster that is submitted to"
            )
        return found

    def ending(self, plan: JobPlan, *, stop_requested: bool, left: float) -> Ending | None:
        if left <= plan.resume.lead:
            return Ending(NextReason.TIME_LIMIT)  # the run cannot continue after the end of the allocation
        return super().ending(plan, stop_requested=stop_requested, left=left)
