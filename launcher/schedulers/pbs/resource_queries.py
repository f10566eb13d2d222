"""Queries PBS's nodes, and the queue and server attributes that keep jobs pending: one command each; pure parsers."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from launcher.schedulers.pbs.commands import PBS, UNKNOWN_QUEUE, section
from launcher.schedulers.pbs.settings import GpuDirective, PBSSettings
from launcher.spec.limits import NodeGroup
from launcher.spec.plan import JobPlan, settings_of
from launcher.units import parse_size

# Words in the state of a node that takes no jobs (pbs_node_attributes(7B)); other states are free, job-busy ...
BROKEN = ("down", "offline", "stale", "unknown", "unresolvable", "maintenance", "provisioning", "sleep")
LIMITS = (
    "max_run", "max_run_soft", "max_run_res", "max_queued", "max_queued_res", "max_user_run", "max_group_run",
    "max_running", "max_queuable", "max_user_res", "max_group_res",
)  # fmt: skip


@dataclass(frozen=True)
class Node:
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

    def nodes(self) -> list[Node]:
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


def parse_nodes(text: str) -> list[Node]:
    """Parses the output of `pbsnodes -a`: each node's name is followed by its indented attributes."""
    found: list[tuple[str, dict[str, str]]] = []
    for line in text.splitlines():
        if line and not line[0].isspace():
            found.append((line.strip(), {}))
        elif found and (match := re.match(r"\s+(\S+) = (.*)", line)):
            found[-1][1][match[1]] = match[2].strip()
    return [_node(name, values) for name, values in found]


def _node(name: str, values: Mapping[str, str]) -> Node:
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
    return Node(
        name, values.get("state", ""), has, {key: max(number - taken[key], 0) for key, number in has.items()},
        values.get("comment", ""), values.get("queue", ""), others,
    )  # fmt: skip


def hosts_of(nodes: Sequence[Node], plan: JobPlan, queue: str | None) -> list[NodeGroup]:
    """Returns the total resources of each host that a job may use, free or not.

    | resource | amount of the host |
    |---|---|
    | set in `cluster.chunk` | unlimited, because the value in the chunk replaces the plan's |
    | reported by vnodes as amounts | their sum: a chunk may use several vnodes of a host |
    | reported by a vnode as a text (`@host`: shared with another vnode) | unlimited: texts cannot be added |
    | any, if the vnodes report no resource (the host was never up) | unlimited: not known yet |
    | not reported | 0 |

    Args:
        nodes: vnodes of the site.
        plan: the run's plan.
        queue: name of the job's queue, whose nodes are returned; None: unknown, all nodes are returned.
    """
    settings = settings_of(plan, PBSSettings)
    hosts: dict[str, list[Node]] = {}
    for node in nodes:
        if queue is None or node.queue in ("", queue):
            hosts.setdefault(node.others.get("host", node.name), []).append(node)

    def has(vnodes: Sequence[Node], resource: str) -> int:
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
    """Returns a job's estimated start in seconds since the epoch, or None if PBS has not estimated it.

    qstat prints `estimated.start_time` as a number in JSON, or as `Sat Nov 21 22:00:00 2026`.
    """
    estimated = record.get("estimated")
    text = str(estimated.get("start_time", "") if isinstance(estimated, Mapping) else "")
    text = text or str(record.get("estimated.start_time", ""))
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text) or None
    try:
        return time.mktime(time.strptime(text, "%a %b %d %H:%M:%S %Y"))
    except ValueError:
        return None
