"""The allocation in which this shell runs: its nodes and CPUs, and the command that starts tasks on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.errors import ConfigError
from launcher.schedulers import registry
from launcher.schedulers.base import Scheduler

if TYPE_CHECKING:
    from launcher.spec.plan import JobPlan


@dataclass(frozen=True)
class Allocation:
    """The nodes of an interactive job."""

    nodes: int  # number of nodes
    starter: str  # command that starts tasks on the nodes: `srun`, or a key of registry.STARTERS
    cpus: tuple[int, ...] = ()  # number of allocated CPUs on each node; empty if unknown
    job: str = ""  # id of the interactive job


def known() -> list[Scheduler]:
    """Returns the schedulers whose allocations can be used, in the order in which `allocation` tries them."""
    return [each for each in registry.schedulers() if each.allocation_variables]


def allocation(environ: Mapping[str, str]) -> Allocation | None:
    """Returns the interactive job that the environment describes, or None; raises ConfigError as `read_nodes`."""
    for scheduler in known():
        if all(map(environ.get, scheduler.allocation_variables)):
            return scheduler.allocation(environ)
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
    """Raises ConfigError if the allocation has fewer nodes, or CPUs on them, than a plan needs.

    Without this check, srun in an allocation with GPUs (Slurm 24.05 and later) waits silently for the missing CPUs.
    """
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
    try:
        held = allocation(environ)
    except ConfigError:
        held = None
    return held.nodes if held else 1
