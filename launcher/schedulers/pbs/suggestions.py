"""`why`: smaller sizes with which a pending run would fit on PBS's free nodes now.

PBS has no `sbatch --test-only`, so this is only a snapshot: other jobs may start first, or PBS may reserve the nodes
for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from launcher.formatting import format_size, plural
from launcher.schedulers.explanation import Option, may_offer_fewer_nodes
from launcher.schedulers.pbs.resource_queries import Node, amount
from launcher.schedulers.pbs.settings import GpuDirective, PBSSettings
from launcher.spec.plan import JobPlan, settings_of


@dataclass(frozen=True)
class Chunk:
    """The resources that a run needs on each node."""

    amounts: Mapping[str, int]  # amount of each countable resource; memory in bytes
    others: Mapping[str, str]  # required value of each resource with texts as values


def chunk_of(plan: JobPlan) -> Chunk:
    """Returns the resources that a plan requests on each of its nodes."""
    amounts: dict[str, int] = {"ncpus": plan.cpus_per_node}
    settings = settings_of(plan, PBSSettings)
    if plan.gpus_per_node and settings.gpu_directive is GpuDirective.ngpus:
        amounts["ngpus"] = plan.gpus_per_node
    if plan.mem:
        amounts["mem"] = plan.mem
    others: dict[str, str] = {}
    for key, value in settings.chunk.items():
        number = amount(key, str(value))
        if value is None:
            amounts.pop(key, None)
        elif key in ("mpiprocs", "ompthreads"):  # not a resource of a node
            continue
        elif number is not None:
            amounts[key] = number
        else:
            others[key] = str(value)
    return Chunk(amounts, others)


def fitting(nodes: Sequence[Node], chunk: Chunk) -> list[Node]:
    """Returns the working nodes that have the chunk free. A resource that a node does not report counts as 0."""
    return [
        node for node in nodes
        if not node.broken
        and all(node.free.get(key, 0) >= wanted for key, wanted in chunk.amounts.items())
        and all(node.others.get(key, "").lower() == value.lower() for key, value in chunk.others.items())
    ]  # fmt: skip


def most_on_each(nodes: Sequence[Node], chunk: Chunk, wanted: int, resource: str) -> int:
    """Returns the largest amount of a resource that each of `wanted` nodes has free, with the chunk's other resources.

    Returns 0 if fewer nodes have the other resources free.
    """
    rest = Chunk({key: value for key, value in chunk.amounts.items() if key != resource}, chunk.others)
    free = sorted((node.free.get(resource, 0) for node in fitting(nodes, rest)), reverse=True)
    return free[wanted - 1] if len(free) >= wanted else 0


def options(plan: JobPlan, nodes: Sequence[Node], now: float, *, fixed_nodes: bool = False) -> tuple[Option, ...]:
    """Returns an option for the unchanged run, followed by smaller requests that would fit now.

    | the run | smaller requests |
    |---|---|
    | fits now | none: it is pending for another reason |
    | fits with less memory, fewer CPUs or GPUs on each node | the largest amount that is free |
    | fits on fewer nodes | that number of nodes, if min_nodes and the workload allow it |

    Args:
        plan: the run's plan.
        nodes: vnodes of the site.
        now: current time in seconds since the epoch, the estimated start of all options that fit.
        fixed_nodes: whether the user has set min_nodes, so that fewer nodes are not suggested.
    """
    chunk = chunk_of(plan)
    free = len(fitting(nodes, chunk))
    asked = Option((), now if free >= plan.nodes else None, f"{free} of {plan.nodes} nodes have room for it now")
    if free >= plan.nodes:
        return (asked,)
    found = []
    for resource in ("mem", "ncpus", "ngpus"):
        most = most_on_each(nodes, chunk, plan.nodes, resource)
        if (
            0 < most < chunk.amounts.get(resource, 0) and resource not in settings_of(plan, PBSSettings).chunk
        ):  # a resource in cluster.chunk overrides the config key
            found += _less(plan, resource, most, now)
    if may_offer_fewer_nodes(plan, free, fixed=fixed_nodes):
        note = f"{plural(free * plan.procs_per_node, 'rank')} instead of {plan.world_size}"
        found.append(Option((f"nodes={free}",), now, note))
    return (asked, *found)


def _less(plan: JobPlan, resource: str, most: int, now: float) -> list[Option]:
    if resource == "mem":
        mem = most // 1024**2 * 1024**2
        return [Option((f"mem={format_size(mem)}",), now, "less memory on each node")] if mem else []
    if resource == "ngpus":
        if plan.procs_per_node != plan.gpus_per_node:
            return []
        return [
            Option((f"gpus_per_node={most}",), now, f"{plural(plan.nodes * most, 'rank')} instead of {plan.world_size}")
        ]
    if (each := most // plan.procs_per_node) >= 1 and each < plan.cpus_per_proc:
        return [Option((f"cpus_per_proc={each}",), now, "slower, if the ranks use their CPUs")]
    if plan.gpus_per_node or not most or most >= plan.procs_per_node:
        return []
    return [Option((f"procs_per_node={most}", "cpus_per_proc=1"), now,
                   f"{plural(plan.nodes * most, 'rank')} instead of {plan.world_size}")]  # fmt: skip
