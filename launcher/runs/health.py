"""What the events of a run tell of its nodes: their health, and the bindings of ranks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from launcher.binding import masks
from launcher.binding.hardware import Node
from launcher.failures.codes import Unbound
from launcher.failures.messages import first_of, of_preflight, of_unused_gpus
from launcher.fast_dataclasses import replace
from launcher.formatting import ranges
from launcher.runs import events
from launcher.runs.events import Bound, BoundRank, GpusUnused, Preflighted, every


def bindings_event(
    host: str, node: Node, allowed: Collection[int], found: Sequence[masks.RankBinding], *, first_rank: int = 0,
    round_number: int = 0, unbound: Unbound | None = None,
) -> Bound:  # fmt: skip
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


def latest_bindings(entries: Iterable[Mapping[str, Any]]) -> list[Bound]:
    """Returns the `Bound` events of an attempt's last round, one per agent, in the order of their ranks."""
    found = events.every(entries, Bound)
    last = max((each.round for each in found), default=0)
    return sorted((each for each in found if each.round == last and each.ranks), key=lambda each: each.ranks[0].rank)


def differing_bindings(bindings: Sequence[Bound]) -> str:
    """Returns text such as `the nodes differ: TYPE on a, b; TYPE on c`; empty if all nodes are of the same type."""
    hosts: dict[str, list[str]] = {}
    for each in bindings:
        hosts.setdefault(each.node, []).append(each.host)
    if len(hosts) < 2:
        return ""
    most = sorted(hosts.items(), key=lambda each: -len(each[1]))
    parts = [f"{node or 'unknown'} on {', '.join(names[:4])}{' and more' if names[4:] else ''}" for node, names in most]
    return f"the nodes differ: {'; '.join(parts)}"


# -- Describes preflight results, and GPUs that are not used


def remarks(events: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns lines about the events of an attempt: its preflights, and GPUs that are not used."""
    lines = [line for event in every(events, Preflighted) for line in of_preflight(event)]
    return lines + unused_gpu_lines(events)


def unused_gpu_lines(events: Iterable[Mapping[str, Any]]) -> list[str]:
    """Returns the line that some ranks have opened no GPU, with the ranks of all nodes; none if all have."""
    if not (found := unused_gpus(events)):
        return []
    hosts, ranks = first_of([each.host for each in found]), tuple(rank for each in found for rank in each.ranks)
    return [of_unused_gpus(replace(found[0], host=hosts, ranks=ranks, seconds=min(each.seconds for each in found)))]


def unused_gpus(events: Iterable[Mapping[str, Any]]) -> list[GpusUnused]:
    """Returns the last event of each host and its ranks that says that they have opened no GPU."""
    newest = {(each.host, each.ranks): each for each in every(events, GpusUnused)}
    return [each for each in newest.values() if not each.opened]
