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
from workloads import names, patterns
from workloads.groups import check_ranks, members_of, parse_groups
from workloads.sizes import parse_seconds, parse_sizes

# Keys of workloads whose values are names, and the names there are.
NAMED = {
    "op": ("operation", names.OPERATIONS),
    "pattern": ("pattern", names.PATTERNS),
}
# Keys that take one name.
ONE_OF = {"dtype": names.DTYPES, "redop": names.REDOPS, "place": names.PLACES}
# Numbers of trainings; that none is less than 0 is seen before.
AT_LEAST_ONE = ("epochs", "micro_batch_size", "log_every", "threads")
ABOVE_ZERO = ("lr", "bucket_mb")


@dataclass(frozen=True)
class NodeGroup:
    """Nodes of one kind in a partition: how many, and what each has (memory in bytes, GPUs in the site's words too)."""

    nodes: int
    cpus: int
    mem: int
    gpus: int
    gpu_types: tuple[str, ...] = ()


def check_names(plan: JobPlan) -> None:
    """The names in the workload's keys, before a job waits hours in a queue to stumble over one.

    Raises:
        ConfigError: there is no such operation, pattern, group or type, or a size is none.
    """
    for key, value in plan.params.items():
        try:
            if key in ONE_OF:
                names.choose_one(key, value, ONE_OF[key])
            elif key in NAMED:
                names.choose(NAMED[key][0], value, NAMED[key][1])
            elif key == "sizes":
                parse_sizes(value)
            elif key == "groups":
                for kind in parse_groups(value):
                    check_ranks(kind, plan.world_size)
            elif key == "budget" and value is not None:
                parse_seconds(value)
        except ValueError as error:
            raise ConfigError(f"workload.{key}: {error}") from None


def check_sweep(plan: JobPlan) -> None:
    """The numbers of a benchmark of communication (p2p, collective), whose names have passed `check_names`.

    Raises:
        ConfigError: a size is more than a node's memory, nothing would be measured, a root does not exist, or the
            backend is known to lack what is asked for.
    """
    params = plan.params
    if "sizes" not in params:
        return
    if params["iterations"] < 1 or params.get("warmup", 0) < 0:
        raise ConfigError(
            f"workload.iterations={params['iterations']}, workload.warmup={params.get('warmup', 0)}: at least 1 "
            "iteration, and 0 to warm up"
        )
    if not 0 < params["tolerance"] < 1:
        raise ConfigError(
            f"tolerance={params['tolerance']:g}: it is the part of a speed that may be lost, more than 0 and less "
            "than 1 (0.2)"
        )
    largest = max(parse_sizes(params["sizes"]))
    on_host = plan.device == "cpu" or (plan.device == "auto" and plan.gpus_per_node == 0)
    if on_host and plan.mem is not None and largest * plan.procs_per_node > plan.mem:
        raise ConfigError(
            f"workload.sizes: {format_size(largest)} on each of procs_per_node={plan.procs_per_node} is more than "
            f"mem={format_size(plan.mem)}: use smaller sizes or more memory"
        )
    if "op" in params:
        _check_operations(plan)
    if "pattern" in params:
        try:
            patterns.check(params, [rank // plan.procs_per_node for rank in range(plan.world_size)])
        except ValueError as error:
            raise ConfigError(str(error)) from None


def _check_operations(plan: JobPlan) -> None:
    params = plan.params
    operations = names.choose("operation", params["op"], names.OPERATIONS)
    kinds = parse_groups(params["groups"])
    node_of = [rank // plan.procs_per_node for rank in range(plan.world_size)]
    for kind in kinds:
        smallest = min(len(ranks) for ranks in members_of(kind, node_of))
        if not 0 <= params["root"] < smallest:
            has, can = ("1 rank", "0") if smallest == 1 else (f"{smallest} ranks", f"0 to {smallest - 1}")
            raise ConfigError(
                f"workload.root={params['root']}: the smallest group of {kind} has {has}, so a root is {can}"
            )
    if names.chooses_all(params["op"]):  # what cannot be run is left out
        return
    backend = plan.backend
    if backend == "auto" and (plan.device == "cpu" or plan.gpus_per_node == 0):
        backend = "gloo"
    for operation in operations:
        if not names.places_of(operation, params["place"]):
            other = "in" if params["place"] == "out" else "out"
            raise ConfigError(
                f"workload.place={params['place']}: torch.distributed has {operation} only with place={other}: use "
                f"that, or both"
            )
        backends = names.backends_for(operation, params["dtype"], params["redop"])
        if backend != "auto" and backend not in backends:
            of = f" with redop={params['redop']}" if operation in names.REDUCING else ""
            raise ConfigError(
                f"workload.op={operation}: {backend} has no {operation} of {params['dtype']}{of}; "
                f"{', '.join(backends)} {'has' if len(backends) == 1 else 'have'} it (workload.backend)"
            )


def check_training(plan: JobPlan) -> None:
    """The numbers of a training, and whether each rank gets a sample of each batch.

    Raises:
        ConfigError: a number makes no sense, or the batch is smaller.
    """
    if not plan.entry.startswith("workloads."):  # a function of the user's own may mean something else by these keys
        return
    for key, value in plan.params.items():
        if key in AT_LEAST_ONE and value is not None and value < 1:
            raise ConfigError(f"workload.{key}={value}: it must be 1 or more")
        if key in ABOVE_ZERO and not 0 < value < float("inf"):
            raise ConfigError(f"workload.{key}={value:g}: it must be above 0")
    size = plan.params.get("batch_size")
    if isinstance(size, int) and size < plan.world_size:
        raise ConfigError(
            f"workload.batch_size={size} leaves some of the {plan.world_size} ranks without a sample: set it to "
            f"{plan.world_size} or more, or use fewer ranks (nodes, procs_per_node)"
        )


def check_limits(plan: JobPlan, limits: Limits) -> None:
    """A plan against the limits that its profile states.

    Raises:
        ConfigError: the plan asks for more, or the profile's own limits cannot be read.
    """
    where = f"the profile of cluster={plan.cluster}"
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
