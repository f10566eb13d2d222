"""Loads schedulers, task starters and function executors by name; finds those of this machine and of this shell.

With the schedulers without a queue: `local` (this machine) and `allocation` (the allocation of this shell).
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.config.scheduler_table import OURS, SCHEDULERS, entry_points_of, load, loading, names
from launcher.config.schema import SchedulerSettings
from launcher.errors import ConfigError, near
from launcher.failures.codes import NextReason
from launcher.schedulers.base import Allocation, Ending, JobVariables, Queue, Scheduler
from launcher.schedulers.job_environment import Scrubbed, scrubbed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from launcher.plan.plan import JobPlan
    from launcher.schedulers.functions import FunctionExecutor
    from launcher.schedulers.tasks import TaskRequest


# Functions that start tasks on a job's nodes without srun, by their name in a plan.
STARTERS = {
    "pbsdsh": "launcher.schedulers.pbs.task_starters:run_pbsdsh",
    "mpiexec": "launcher.schedulers.pbs.task_starters:run_mpiexec",
    "qrsh": "launcher.schedulers.sge.qrsh:run",
}
# submitit executors for functions (submitit.AutoExecutor), by their `cluster` name in submitit.
FUNCTIONS = {
    "pbs": "launcher.schedulers.pbs.executor:PBSExecutor",
    "sge": "launcher.schedulers.sge.executor:SGEExecutor",
}


def starter(name: str) -> Callable[[TaskRequest], int]:
    """Returns a function of STARTERS, which starts tasks and returns their exit status; raises ConfigError."""
    if name not in STARTERS:
        raise ConfigError(f"{name} starts no tasks. Known: {', '.join(STARTERS)}")
    found: Callable[[TaskRequest], int] = load(STARTERS[name])
    return found


def function_executor(name: str) -> type[FunctionExecutor]:
    found: type[FunctionExecutor] = load(FUNCTIONS[name])
    return found


@cache
def scheduler(name: str) -> Scheduler:
    """Returns the scheduler of this name; raises ConfigError: there is none, or its package cannot be imported."""
    found: Scheduler
    if name in OURS:
        found = load(OURS[name].scheduler)()
        return found
    place = entry_points_of(SCHEDULERS).get(name)
    if place is None:
        raise ConfigError(
            f"cluster.scheduler={name}: there is no such scheduler.{near(name, names())} Known: {', '.join(names())}",
            key="cluster.scheduler",
        )
    with loading(name, place):
        found = load(place)()
    return found


def queue(name: str) -> Queue:
    found = scheduler(name)
    if not isinstance(found, Queue):
        raise ConfigError(f"cluster.scheduler={name}: it starts jobs at once, and has no queue")
    return found


def job_environment(environ: Mapping[str, str], plan: JobPlan) -> Scrubbed:
    """Returns the environment that a new job of this plan inherits from `environ`; see `Scheduler.job_environment`."""
    return scheduler(plan.cluster.scheduler).job_environment(environ, plan)


def schedulers(wanted: Iterable[str] | None = None) -> list[Scheduler]:
    """Returns the schedulers of these names (default: all) that exist and can be loaded."""
    found = []
    for name in names() if wanted is None else wanted:
        with contextlib.suppress(ConfigError):  # which is reported when somebody selects the scheduler
            found.append(scheduler(name))
    return found


def starting_steps(starter: str | None) -> Scheduler | None:
    """Returns the scheduler whose steps start with this command of a run's tasks (in an allocation, another one)."""
    if starter is None or starter in STARTERS:
        return None

    def in_turn() -> Iterator[str]:  # an import takes 10 to 20 ms, and entry points a look into each installed package
        yield from OURS
        yield from entry_points_of(SCHEDULERS)

    loaded = (each for name in in_turn() for each in schedulers([name]))
    return next((each for each in loaded if each.step_starter == starter), None)


def queues_here(others: Iterable[str] = ()) -> dict[str, Queue]:
    """Returns by name the schedulers with a queue, and these others, whose commands are on this machine."""
    # Those of OURS whose command is not on PATH are not even imported, which takes 10 to 20 ms
    may_be_here = (name for name, place in OURS.items() if place.command and shutil.which(place.command))
    wanted = dict.fromkeys((*may_be_here, *others))
    return {each.name: each for each in schedulers(wanted) if isinstance(each, Queue) and each.here()}


# -- The allocation in which this shell runs (cluster=allocation)


def with_allocations() -> list[Scheduler]:
    """Returns the schedulers whose allocations can be used, in the order in which `allocation` tries them."""
    return [each for each in schedulers() if each.allocation_variables]


def allocation(environ: Mapping[str, str]) -> Allocation | None:
    """Returns the interactive job that the environment describes, or None; raises ConfigError as `read_nodes`."""
    for each in with_allocations():
        if all(map(environ.get, each.allocation_variables)):
            return each.allocation(environ)
    return None


def read_nodes(environ: Mapping[str, str], variable: str) -> str:
    """Returns the text of the node file whose path a variable has; raises ConfigError if it cannot be read."""
    try:
        return Path(environ[variable]).read_text()
    except OSError as error:
        raise ConfigError(
            f"cluster=allocation: the list of the allocation's nodes cannot be read ({variable}={environ[variable]}: "
            f"{error.strerror}): start the launcher on the job's first node"
        ) from None


def require_room(held: Allocation, plan: JobPlan) -> None:
    """Raises ConfigError if the allocation has fewer nodes, or CPUs (for which srun may wait silently), than needed."""
    if plan.nodes > held.nodes:
        raise ConfigError(
            f"{plan.nodes_key}={plan.nodes}: the allocation that this shell is in holds {held.nodes}: "
            f"use {plan.nodes_key}={held.nodes}"
        )
    wanted = plan.nodes if plan.min_nodes == plan.nodes else held.nodes  # an elastic run takes all nodes
    if len(held.cpus) < wanted:
        return
    cpus = sorted(held.cpus, reverse=True)[wanted - 1]
    if plan.cpus_per_node > cpus:
        on = "node" if wanted == 1 else "nodes"
        raise ConfigError(
            f"procs_per_node={plan.procs_per_node} with cpus_per_proc={plan.cpus_per_proc} are "
            f"{plan.cpus_per_node} CPUs on each of {wanted} {on}, and the allocation that this shell is in has {cpus}: "
            f"use less of both, or get one with salloc --ntasks-per-node=1 --cpus-per-task={plan.cpus_per_node}"
        )


def nodes(environ: Mapping[str, str]) -> int:
    """Returns the default of the key `nodes`: the allocation's number, or 1, which `Scheduler.held` reports."""
    held = None
    with contextlib.suppress(ConfigError):
        held = allocation(environ)
    return held.nodes if held else 1


# -- The two schedulers without a queue: a job is a process group of this machine


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
        return scrubbed(environ, schedulers=False)  # srun needs the variables of this allocation

    def held(self, environ: Mapping[str, str]) -> Allocation:
        found = allocation(environ)
        if found is None:
            kinds = with_allocations()
            ways = ", ".join(f"{each.interactive} ({' and '.join(each.allocation_variables)})" for each in kinds)
            raise ConfigError(
                "cluster=allocation: this shell is in no allocation. Commands that get one, with the variables that "
                f"it sets: {ways}. Or choose another cluster"
            )
        return found

    def ending(self, plan: JobPlan, *, stop_requested: bool, left: float) -> Ending | None:
        if left <= plan.resume.lead:
            return Ending(NextReason.TIME_LIMIT)  # the run cannot continue after the end of the allocation
        return super().ending(plan, stop_requested=stop_requested, left=left)
