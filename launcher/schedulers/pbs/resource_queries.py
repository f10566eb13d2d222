"""Queries about a pending job of PBS and the nodes that it could use: one command each, and pure parsers."""

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

# States in which a node takes no jobs (pbs_node_attributes(7B)); the others are free, job-busy, job-exclusive ...
BROKEN = ("down", "offline", "stale", "unknown", "unresolvable", "maintenance", "provisioning", "sleep")
LIMITS = (
    "max_run", "max_run_soft", "max_run_res", "max_queued", "max_queued_res", "max_user_run", "max_group_run",
    "max_running", "max_queuable", "max_user_res", "max_group_res",
)  # fmt: skip


@dataclass(frozen=True)
class Node:
    """A vnode.

    Attributes:
        name, state, comment: as PBS prints them; the comment may say why it takes no jobs.
        has: all amounts of its resources; memory in bytes.
        free: the amounts that are not assigned.
        queue: the queue to which it belongs; empty: any.
        others: resources with texts as values, which a chunk may require (`gpu_model=a100`).
    """

    name: str
    state: str
    has: Mapping[str, int]
    free: Mapping[str, int]
    comment: str = ""
    queue: str = ""
    others: Mapping[str, str] = field(default_factory=dict)

    @property
    def broken(self) -> bool:
        return any(word in self.state for word in BROKEN)


@dataclass(frozen=True)
class QueueFacts:
    """Attributes of a queue or the server that can keep jobs pending, as PBS prints them."""

    name: str
    started: bool
    limits: Mapping[str, str]
    most: Mapping[str, str]  # resources_max


@dataclass
class ResourceQueries:
    """Queries PBS. Methods raise QueryError if it does not answer."""

    pbs: PBS

    def nodes(self) -> list[Node]:
        return parse_nodes(self.pbs.run("pbsnodes", "-a"))

    def queue(self, name: str) -> QueueFacts | None:
        """Returns the queue; None: there is no such queue."""
        text = self.pbs.run("qstat", "-Q", "-f", "-F", "json", name, good=(0, UNKNOWN_QUEUE))
        found = section(text, "Queue")
        return next((queue_facts(each, values) for each, values in found.items()), None)

    def server(self) -> QueueFacts:
        found = section(self.pbs.run("qstat", "-B", "-f", "-F", "json"), "Server")
        name, values = next(iter(found.items()), ("", {}))
        return queue_facts(name, values)


def queue_facts(name: str, values: Mapping[str, Any]) -> QueueFacts:
    """Parses a queue or server of `qstat -Qf` or `qstat -Bf`. A limit of several parts becomes one text."""
    limits = {key: _flat(values[key]) for key in LIMITS if key in values}
    for key, value in values.items():  # max_run_res.ncpus as a key of its own in some versions
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
    """Parses `pbsnodes -a`: each name is followed by its attributes, which are indented."""
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
    """Returns the total resources of each host that a job may use, whatever runs there now. Pure.

    | a resource | amount of the host |
    |---|---|
    | the plan sets it in `cluster.chunk` | unlimited: the plan's own key does not apply |
    | vnodes of the host report amounts | their sum: a chunk may use several vnodes of a host |
    | vnodes report a text (`@host`: shared with another vnode) | unlimited: texts cannot be added |
    | vnodes report no resource at all (the host was never up) | unlimited: not known yet |
    | vnodes do not report it | 0 |

    Args:
        nodes: of the site.
        plan: the run.
        queue: of the job; None: unknown, or a routing queue. Nodes of other queues are left out.
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
    """Parses the value of a resource: a count, or a size in bytes; None: it is a text."""
    if value.isdecimal():
        return int(value)
    if re.fullmatch(r"0+[kmgtp]?[bw]?", value):
        return 0
    if re.fullmatch(r"\d+[kmgtp]?b", value) and (resource.endswith("mem") or value.endswith("b")):
        return parse_size(value)
    return None


def estimate(record: Mapping[str, Any]) -> float | None:
    """Returns `estimated.start_time` of a job in seconds since the epoch; None: the scheduler makes no estimates.

    qstat prints it as a number in JSON, and as `Sat Nov 21 22:00:00 2026` elsewhere.
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
