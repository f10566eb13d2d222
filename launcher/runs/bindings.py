"""Makes and reads the events (`Bound`) about the CPUs that ranks are bound to."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from launcher.binding import masks
from launcher.binding.node import Node, Unbound
from launcher.formatting import ranges
from launcher.runs import events
from launcher.runs.events import Bound, BoundRank


def event_of(
    host: str, node: Node, allowed: Collection[int], found: Sequence[masks.RankBinding], *, first_rank: int = 0,
    round_number: int = 0, unbound: Unbound | None = None,
) -> Bound:  # fmt: skip
    """Returns the event that records the CPU binding of one agent's ranks.

    allowed: CPUs that the job may use on the host.
    found: bindings of the agent's ranks, in the order of the ranks.
    first_rank: number of the agent's first rank in the job.
    unbound: why the ranks are not bound; None: they are bound.
    """
    numas: dict[str, list[int]] = {}
    for core in node.cores:
        numas.setdefault(str(core.numa), []).extend(core.cpus)
    return Bound(
        host=host, round=round_number, node=node.kind, allowed=ranges(sorted(allowed)), unbound=unbound,
        numas={numa: ranges(sorted(cpus)) for numa, cpus in sorted(numas.items(), key=lambda each: int(each[0]))},
        ranks=tuple(_rank(first_rank + place, bound) for place, bound in enumerate(found)),
    )  # fmt: skip


def _rank(rank: int, bound: masks.RankBinding) -> BoundRank:
    gpu, nic = bound.devices.gpu, bound.devices.nic
    return BoundRank(
        rank, ranges(bound.cpus), bound.cores, ranges(bound.numa), gpu.name if gpu else None,
        gpu.numa if gpu else None, nic.name if nic else None,
    )  # fmt: skip


def latest(entries: Iterable[Mapping[str, Any]]) -> list[Bound]:
    """Returns the `Bound` events of an attempt's last round, one per agent, in the order of their ranks."""
    found = events.every(entries, Bound)
    last = max((each.round for each in found), default=0)
    return sorted((each for each in found if each.round == last and each.ranks), key=lambda each: each.ranks[0].rank)


def differing(bindings: Sequence[Bound]) -> str:
    """Returns text such as `the nodes differ: TYPE on a, b; TYPE on c`; empty if all nodes are of the same type."""
    hosts: dict[str, list[str]] = {}
    for each in bindings:
        hosts.setdefault(each.node, []).append(each.host)
    if len(hosts) < 2:
        return ""
    most = sorted(hosts.items(), key=lambda each: -len(each[1]))
    parts = [f"{node or 'unknown'} on {', '.join(names[:4])}{' and more' if names[4:] else ''}" for node, names in most]
    return f"the nodes differ: {'; '.join(parts)}"
