"""The allocation that a shell is in already: whose it is, how many nodes it has, and what starts tasks on them.

| SLURM_JOB_ID | PBS_JOBID and PBS_NODEFILE | held by | tasks are started by |
|---|---|---|---|
| set | any | Slurm | srun |
| not set | both set | PBS | pbsdsh |
| not set | one is missing | nobody | |
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
    """The allocation that the environment tells of.

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
    """Compares what a plan asks for with what the allocation has.

    Of more CPUs than there are srun must not be asked: where the allocation has GPUs, Slurm 24.05 and later let it wait
    without a word until the allocation ends.

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
    """How many nodes a run gets by default; whether there is an allocation at all is asked later."""
    try:
        held = allocation(environ)
    except ConfigError:
        held = None
    return held.nodes if held else 1
