"""The allocation in which this shell runs: its scheduler, its nodes, and the command that starts tasks on them.

| SLURM_JOB_ID | PBS_JOBID and PBS_NODEFILE | scheduler | tasks are started by |
|---|---|---|---|
| set | any | Slurm | srun |
| not set | both set | PBS | pbsdsh |
| not set | one is missing | no allocation | |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.errors import ConfigError
from launcher.schedulers.hostlist import expand_counts, hosts_of

if TYPE_CHECKING:
    from launcher.spec.plan import JobPlan


@dataclass(frozen=True)
class Allocation:
    """An allocation.

    Attributes:
        nodes: how many it has.
        starter: `srun` or `pbsdsh`.
        cpus: CPUs on each of its nodes; empty: unknown.
    """

    nodes: int
    starter: str
    cpus: tuple[int, ...] = ()


def allocation(environ: Mapping[str, str]) -> Allocation | None:
    """Returns the allocation that the environment describes; None: there is none.

    Raises:
        ConfigError: its node file cannot be read.
    """
    if "SLURM_JOB_ID" in environ:
        cpus = environ.get("SLURM_JOB_CPUS_PER_NODE")  # `16(x2),8`
        return Allocation(
            int(environ.get("SLURM_JOB_NUM_NODES", "1")), "srun", tuple(expand_counts(cpus)) if cpus else ()
        )
    if not environ.get("PBS_JOBID") or not (path := environ.get("PBS_NODEFILE")):
        return None
    try:
        return Allocation(len(hosts_of(Path(path).read_text())), "pbsdsh")
    except OSError as error:
        raise ConfigError(
            f"cluster=allocation: the node file of the PBS job cannot be read (PBS_NODEFILE={path}: "
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
    """Returns the default of `nodes`; a missing allocation is an error later."""
    try:
        held = allocation(environ)
    except ConfigError:
        held = None
    return held.nodes if held else 1
