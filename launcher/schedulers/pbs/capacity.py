"""PBS's nodes, queues and server attributes, one command each, and the smaller sizes that would fit now."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from launcher.formatting import format_size, plural
from launcher.schedulers.pbs.client import PBS, UNKNOWN_QUEUE, section
from launcher.schedulers.pbs.settings import GpuDirective, PBSSettings
from launcher.schedulers.pending import Option, may_offer_fewer_nodes
from launcher.spec.limits import NodeGroup
from launcher.spec.plan import JobPlan, settings_of
from launcher.units import parse_size

# -- Queries PBS's nodes, and the queue and server attributes that keep jobs pending: one command each; pure parsers


# Words in the state of a node that takes no jobs (pbs_node_attributes(7B)); other states are free, job-busy ...
BROKEN = ("down", "offline", "stale", "unknown", "unresolvable", "maintenance", "provisioning", "sleep")
LIMITS = (
    "max_run", "max_run_soft", "max_run_res", "max_queued", "max_queued_res", "max_user_run", "max_group_run",
    "max_running", "max_queuable", "max_user_res", "max_group_res",
)  # fmt: skip


@dataclass(frozen=True)
class PBSNode:
    """A vnode."""

    name: str  # name as PBS prints it
    state: str  # state as PBS prints it
    has: Mapping[str, int]  # total amount of each countable resource; memory in bytes
    free: Mapping[str, int]  # unassigned amount of each countable resource
    comment: str = ""  # comment as PBS prints it, which may say why the node takes no jobs
    queue: str = ""  # name of the only queue that may use the vnode; empty: all queues
    # resources with texts as values, which a chunk may require (`gpu_model=a100`)
    others: Mapping[str, str] = field(default_factory=dict)

    @property
    def broken(self) -> bool:
        return any(word in self.state for word in BROKEN)


@dataclass(frozen=True)
class QueueFacts:
    """Attributes of a queue or the server that can keep jobs pending."""

    name: str  # name of the queue or server
    started: bool  # whether jobs in the queue or server can start
    limits: Mapping[str, str]  # values of the attributes in LIMITS, as PBS prints them
    most: Mapping[str, str]  # values of resources_max, as PBS prints them


@dataclass
class ResourceQueries:
    """Queries of PBS for one pending job. Each method runs one command and raises QueryError if it fails."""

    pbs: PBS

    def nodes(self) -> list[PBSNode]:
        return parse_nodes(self.pbs.run("pbsnodes", "-a"))

    def queue(self, name: str) -> QueueFacts | None:
        """Returns the queue with this name, or None if it does not exist."""
        text = self.pbs.run("qstat", "-Q", "-f", "-F", "json", name, good=(0, UNKNOWN_QUEUE))
        found = section(text, "Queue")
        return next((queue_facts(each, values) for each, values in found.items()), None)

    def server(self) -> QueueFacts:
        found = section(self.pbs.run("qstat", "-B", "-f", "-F", "json"), "Server")
        name, values = next(iter(found.items()), ("", {}))
        return queue_facts(name, values)


def queue_facts(name: str, values: Mapping[str, Any]) -> QueueFacts:
    """Parses the attributes of a queue or server in `qstat -Qf` or `qstat -Bf`. Nested limits become one text."""
    limits = {key: _flat(values[key]) for key in LIMITS if key in values}
    for key, value in values.items():  # some versions print max_run_res.ncpus as a separate key
        if key.partition(".")[0] in LIMITS and key not in limits:
            limits[key] = _flat(value)
    most = values.get("resources_max") or {}
    return QueueFacts(
        name,
        started=values.get("started", "True") == "True",
        limits=limits,
        most={key: str(value) for key, value in most.items()},
    )


def _flat(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {each}" for key, each in value.items())
    return str(value)


def parse_nodes(text: str) -> list[PBSNode]:
    """Parses the output of `pbsnodes -a`: each node's name is followed by its indented attributes."""
    found: list[tuple[str, dict[str, str]]] = []
    for line in text.splitlines():
        if line and not line[0].isspace():
            found.append((line.strip(), {}))
        elif found and (match := re.match(r"\s+(\S+) = (.*)", line)):
            found[-1][1][match[1]] = match[2].strip()
    return [_node(name, values) for name, values in found]


def _node(name: str, values: Mapping[str, str]) -> PBSNode:
    has, others = {}, {}
    for key, value in values.items():
        kind, _, resource = key.partition(".")
        if kind != "resources_available" or not resource:
            continue
        number = amount(resource, value)
        if number is None:
            others[resource] = value
        else:
            has[resource] = number
    taken = {key: amount(key, values.get(f"resources_assigned.{key}", "0")) or 0 for key in has}
    return PBSNode(
        name, values.get("state", ""), has, {key: max(number - taken[key], 0) for key, number in has.items()},
        values.get("comment", ""), values.get("queue", ""), others,
    )  # fmt: skip


def hosts_of(nodes: Sequence[PBSNode], plan: JobPlan, queue: str | None) -> list[NodeGroup]:
    """Returns the total resources of each host that a job may use, free or not.

    | resource | amount of the host |
    |---|---|
    | set in `cluster.chunk` | unlimited, because the value in the chunk replaces the plan's |
    | reported by vnodes as amounts | their sum: a chunk may use several vnodes of a host |
    | reported by a vnode as a text (`@host`: shared with another vnode) | unlimited: texts cannot be added |
    | any, if the vnodes report no resource (the host was never up) | unlimited: not known yet |
    | not reported | 0 |

    queue: name of the job's queue, whose nodes are returned; None: unknown, all nodes are returned.
    """
    settings = settings_of(plan, PBSSettings)
    hosts: dict[str, list[PBSNode]] = {}
    for node in nodes:
        if queue is None or node.queue in ("", queue):
            hosts.setdefault(node.others.get("host", node.name), []).append(node)

    def has(vnodes: Sequence[PBSNode], resource: str) -> int:
        text = any(resource in node.others for node in vnodes)
        if resource in settings.chunk or text or not any(node.has for node in vnodes):
            return sys.maxsize
        return sum(node.has.get(resource, 0) for node in vnodes)

    counts_gpus = settings.gpu_directive is GpuDirective.ngpus
    return [
        NodeGroup(1, has(vnodes, "ncpus"), has(vnodes, "mem"), has(vnodes, "ngpus") if counts_gpus else sys.maxsize)
        for vnodes in hosts.values()
    ]


def amount(resource: str, value: str) -> int | None:
    """Parses the value of a resource to a count, or a size in bytes; None if it is a text."""
    if value.isdecimal():
        return int(value)
    if re.fullmatch(r"0+[kmgtp]?[bw]?", value):
        return 0
    if re.fullmatch(r"\d+[kmgtp]?b", value) and (resource.endswith("mem") or value.endswith("b")):
        return parse_size(value)
    return None


def estimate(record: Mapping[str, Any]) -> float | None:
    """Returns a job's estimated start (since the epoch), or None; qstat prints a number or `Sat Nov 21 22:00:00`."""
    estimated = record.get("estimated")
    text = str(estimated.get("start_time", "") if isinstance(estimated, Mapping) else "")
    text = text or str(record.get("estimated.start_time", ""))
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text) or None
    try:
        return time.mktime(time.strptime(text, "%a %b %d %H:%M:%S %Y"))
    except ValueError:
        return None


# -- `why`: smaller sizes with which a pending run would fit on PBS's free nodes now
# PBS has no `sbatch --test-only`, so this is only a snapshot: other jobs may start first, or PBS may reserve the nodes
# for them.


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


def fitting(nodes: Sequence[PBSNode], chunk: Chunk) -> list[PBSNode]:
    """Returns the working nodes that have the chunk free. A resource that a node does not report counts as 0."""
    return [
        node for node in nodes
        if not node.broken
        and all(node.free.get(key, 0) >= wanted for key, wanted in chunk.amounts.items())
        and all(node.others.get(key, "").lower() == value.lower() for key, value in chunk.others.items())
    ]  # fmt: skip


def most_on_each(nodes: Sequence[PBSNode], chunk: Chunk, wanted: int, resource: str) -> int:
    """Returns how much of a resource each of `wanted` nodes has free, beside the chunk's others; 0: too few nodes."""
    rest = Chunk({key: value for key, value in chunk.amounts.items() if key != resource}, chunk.others)
    free = sorted((node.free.get(resource, 0) for node in fitting(nodes, rest)), reverse=True)
    return free[wanted - 1] if len(free) >= wanted else 0


def options(plan: JobPlan, nodes: Sequence[PBSNode], now: float, *, fixed_nodes: bool = False) -> tuple[Option, ...]:
    """Returns an option for the unchanged run, followed by smaller requests that would fit now.

    | the run | smaller requests |
    |---|---|
    | fits now | none: it is pending for another reason |
    | fits with less memory, fewer CPUs or GPUs on each node | the largest amount that is free |
    | fits on fewer nodes | that number of nodes, if min_nodes and the workload allow it |

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
