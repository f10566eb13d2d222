"""A plan against what the site allows, before the scheduler sees it. Pure.

Every refusal names the key, the limit, and what to write instead. A live partition or queue is compared by its
scheduler.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from launcher.config.schema import Limits
from launcher.errors import ConfigError
from launcher.formatting import format_size, format_time, plural
from launcher.spec.plan import JobPlan
from launcher.units import parse_memory, parse_time


@dataclass(frozen=True)
class NodeGroup:
    """Nodes of one kind in a partition: how many, and what each has (memory in bytes, GPUs in the site's words too)."""

    nodes: int
    cpus: int
    mem: int
    gpus: int
    gpu_types: tuple[str, ...] = ()


def check_limits(plan: JobPlan, limits: Limits) -> None:
    """A plan against the limits that its profile states.

    Raises:
        ConfigError: the plan asks for more, or the profile's own limits cannot be read.
    """
    where = f"the profile of cluster={plan.cluster.name}"
    _at_most("nodes", plan.nodes, limits.nodes, f"{where} allows {limits.nodes}", "cluster.limits.nodes")
    _at_most(
        "gpus_per_node", plan.gpus_per_node, limits.gpus_per_node, f"{where} has {limits.gpus_per_node} on a node",
        "cluster.limits.gpus_per_node",
    )  # fmt: skip
    if limits.cpus_per_node is not None and plan.cpus_per_node > limits.cpus_per_node:
        raise ConfigError(
            f"procs_per_node={plan.procs_per_node} x cpus_per_proc={plan.cpus_per_proc} is {plan.cpus_per_node} CPUs, "
            f"and {where} has {limits.cpus_per_node} on a node: lower one of the two"
        )
    try:
        mem = None if limits.mem_per_node is None else parse_memory(limits.mem_per_node)
        time = None if limits.time is None else parse_time(limits.time)
    except ValueError as error:
        raise ConfigError(f"cluster.limits of {where}: {error}") from None
    if mem is not None and plan.mem is not None and plan.mem > mem:
        raise ConfigError(f"mem={format_size(plan.mem)}: {where} has {format_size(mem)} on a node: ask for less")
    if time is not None and plan.time > time:
        raise ConfigError(
            f"time={format_time(plan.time)}: {where} allows {format_time(time)}: use time={format_time(time)} or less"
        )


def _at_most(key: str, value: int, limit: int | None, reason: str, source: str) -> None:
    if limit is not None and value > limit:
        raise ConfigError(f"{key}={value}: {reason} ({source}): use {key}={limit} or less")


def too_much_for(plan: JobPlan, groups: Sequence[NodeGroup], where: str) -> str | None:
    """Why these nodes could never hold the plan, whatever runs on them, with the fix; None when they could. Pure.

    Args:
        plan: what each of its nodes must have.
        groups: the nodes.
        where: what to call all of them together.
    """
    for key, wanted, best, fitting, fix in (
        (
            f"gpus_per_node={plan.gpus_per_node}", plan.gpus_per_node, max((g.gpus for g in groups), default=0),
            [g for g in groups if g.gpus >= plan.gpus_per_node], "gpus_per_node={best} or less",
        ),
        (
            f"procs_per_node={plan.procs_per_node} x cpus_per_proc={plan.cpus_per_proc} = {plan.cpus_per_node} CPUs",
            plan.cpus_per_node, max((g.cpus for g in groups), default=0),
            [g for g in groups if g.cpus >= plan.cpus_per_node], "fewer of either, {best} CPUs in all",
        ),
        (
            f"mem={format_size(plan.mem or 0)}", plan.mem or 0, max((g.mem for g in groups), default=0),
            [g for g in groups if g.mem >= (plan.mem or 0)], "mem={size} or less",
        ),
    ):  # fmt: skip
        count = sum(group.nodes for group in fitting)
        if wanted > best:
            return f"{key}: the nodes of {where} have at most {_shown(key, best)}: use " + fix.format(
                best=best, size=format_size(best)
            )
        if count < plan.nodes:
            few = plural(count, "node")
            return f"{key}: {where} has only {few} with that much, and nodes={plan.nodes}: use nodes={count}"
    return None


def _shown(key: str, value: int) -> str:
    return format_size(value) if key.startswith("mem=") else str(value)
