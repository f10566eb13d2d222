"""The allocation in which this shell runs: its scheduler, its nodes, and the command that starts tasks on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.errors import ConfigError
from launcher.schedulers import registry
from launcher.schedulers.scheduler import HoldsAllocations

if TYPE_CHECKING:
    from launcher.spec.plan import JobPlan


@dataclass(frozen=True)
class Allocation:
    """An allocation.

    Attributes:
        nodes: how many it has.
        starter: the command that starts tasks on its nodes: `srun`, or one of registry.STARTERS.
        cpus: CPUs on each of its nodes; empty: unknown.
        job: the id of its job.
    """

    nodes: int
    starter: str
    cpus: tuple[int, ...] = ()
    job: str = ""


def known() -> list[HoldsAllocations]:
    """Returns the schedulers whose allocations can be used, in the order in which they are tried."""
    return [each for each in registry.schedulers() if isinstance(each, HoldsAllocations)]


def allocation(environ: Mapping[str, str]) -> Allocation | None:
    """Returns the allocation that the environment describes; None: there is none.

    Raises:
        ConfigError: the list of its nodes cannot be read.
    """
    for scheduler in known():
        if all(map(environ.get, scheduler.allocation_variables)):
            return scheduler.allocation(environ)
    return None


def read_nodes(environ: Mapping[str, str], variable: str) -> str:
    """Returns the text of the file with an allocation's nodes.

    Args:
        environ: of the shell.
        variable: has the path of the file.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        return Path(environ[variable]).read_text()
    except OSError as error:
        raise ConfigError(
            f"cluster=allocation: the list of the allocation's nodes cannot be read ({variable}={environ[variable]}: "
            f"{error.strerror}): start the launcher on the job's first node"
        ) from None


def require_room(held: Allocation, plan: JobPlan) -> None:
    """Checks that the allocation has the nodes and CPUs that a plan needs.

    srun must not be asked for more CPUs than there are: where the allocation has GPUs, it waits in Slurm 24.05 and
    later until the allocation ends, and prints nothing.

    Raises:
        ConfigError: the allocation has fewer nodes, or fewer CPUs on them.
    """
    if plan.nodes > held.nodes:
        raise ConfigError(
            f"nodes={plan.nodes}: the allocation that this shell is in holds {held.nodes}: use nodes={held.nodes}"
        )
    wanted = plan.nodes if plan.min_nodes == plan.nodes else held.nodes  # then srun takes them all
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
    """Returns the default of the key `nodes`: those of the allocation, or 1 without one, which is refused later."""
    try:
        held = allocation(environ)
    except ConfigError:
        held = None
    return held.nodes if held else 1
