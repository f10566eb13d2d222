"""Smaller sizes at which a pending run would fit on the nodes that are free now. Pure. PBS has no `sbatch --test-only`.

This is the state of this moment: other jobs may start first, or the scheduler may reserve the nodes for them.
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
    """What one node must have free: amounts (memory in bytes), and resources with texts as values."""

    amounts: Mapping[str, int]
    others: Mapping[str, str]


def chunk_of(plan: JobPlan) -> Chunk:
    """Returns what a plan requests on each of its nodes."""
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
        elif key in ("mpiprocs", "ompthreads"):  # no resources of a node
            continue
        elif number is not None:
            amounts[key] = number
        else:
            others[key] = str(value)
    return Chunk(amounts, others)


def fitting(nodes: Sequence[Node], chunk: Chunk) -> list[Node]:
    """Returns the nodes on which the chunk is free. A resource that a node does not report counts as 0."""
    return [
        node for node in nodes
        if not node.broken
        and all(node.free.get(key, 0) >= wanted for key, wanted in chunk.amounts.items())
        and all(node.others.get(key, "").lower() == value.lower() for key, value in chunk.others.items())
    ]  # fmt: skip


def most_on_each(nodes: Sequence[Node], chunk: Chunk, wanted: int, resource: str) -> int:
    """Returns the largest amount of a resource that `wanted` nodes have free together with the rest of the chunk."""
    rest = Chunk({key: value for key, value in chunk.amounts.items() if key != resource}, chunk.others)
    free = sorted((node.free.get(resource, 0) for node in fitting(nodes, rest)), reverse=True)
    return free[wanted - 1] if len(free) >= wanted else 0


def options(plan: JobPlan, nodes: Sequence[Node], now: float, *, fixed_nodes: bool = False) -> tuple[Option, ...]:
    """Returns the run as it is, and smaller ones that would fit now, the smallest change first.

    | the run | suggested |
    |---|---|
    | fits now | nothing: it is pending for another reason |
    | fits on fewer nodes | as many nodes, if min_nodes and the workload allow it |
    | fits with fewer CPUs, GPUs or less memory on each node | the most that is free |

    Args:
        plan: the run's plan.
        nodes: of the site.
        now: seconds since the epoch, which is when an option that fits would start.
        fixed_nodes: the user has set min_nodes, so fewer are not offered.
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
        ):  # which counts more than the key
            found += _less(plan, resource, most, now)
    if may_offer_fewer_nodes(plan, free, fixed=fixed_nodes):
        note = f"{plural(free * plan.procs_per_node, 'rank')} instead of {plan.world_size}"
        found.append(Option((f"nodes={free}",), now, note))
    return (asked, *found)


def _less(plan: JobPlan, resource: str, most: int, now: float) -> list[Option]:
    """The key and value that make a node's chunk as small as that."""
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
