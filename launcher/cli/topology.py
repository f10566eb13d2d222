"""`topology`: the hardware of this node or of a run's nodes, and which part of it each rank gets, as tables."""

from __future__ import annotations

import os
import socket
import textwrap
from argparse import Namespace
from collections.abc import Collection, Mapping, Sequence
from itertools import zip_longest

from launcher.binding import hardware, masks
from launcher.binding.hardware import Node
from launcher.cli.output import print_unreadable, table, terminal_width
from launcher.errors import ConfigError, RunError
from launcher.failures.codes import Unbound
from launcher.formatting import name_ranks
from launcher.runs.events import Bound, BoundRank
from launcher.runs.history import bindings_event, differing_bindings, latest_bindings
from launcher.runs.lookup import find
from launcher.units import parse_ranges

_HOSTS = 6  # hosts, and first ranks of hosts, that are named
_CELL = 32  # characters of a cell in the table of NUMA nodes, after which it is wrapped


def run(arguments: Namespace) -> int:
    if arguments.name is None:
        node, allowed = hardware.read(), os.sched_getaffinity(0)
        print("\n".join(_bound(socket.gethostname(), node, allowed, os.environ, arguments.ranks, arguments.bind)))
        return 0
    if arguments.ranks is not None or arguments.bind != "auto":
        raise ConfigError("--ranks and --bind are about ranks on this node: leave them out, or RUN")
    found = find(arguments.name, arguments.runs_dir)
    for attempt in reversed(found.attempts()):
        if bindings := latest_bindings(attempt.latest_events(bindings=True)):
            print("\n".join(node_tables(bindings)))
            print_unreadable(found)
            return 0
    raise RunError(f"{found.id} has started no ranks yet")


def _bound(
    host: str, node: Node, allowed: Collection[int], environ: Mapping[str, str], wanted: int | None, how: str
) -> list[str]:
    bind = masks.parse(how)
    try:
        seen = len(masks.visible_gpus(node, environ))
        near = masks.of_ranks(node, environ, range(wanted or seen or 1), gpus=seen > 0)
        found = masks.bind(node, allowed, near, bind)
    except masks.BindingRefused as error:
        raise ConfigError(str(error)) from None
    except masks.DeviceError as error:
        found = masks.unbound(node, allowed, [masks.RankDevices()] * (wanted or 1), Unbound(str(error)))
    return node_tables([bindings_event(host, node, allowed, found.ranks, unbound=found.unbound)], devices_of(node))


def devices_of(node: Node) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, numa in [*((gpu.name, gpu.numa) for gpu in node.gpus), *((nic.name, nic.numa) for nic in node.nics)]:
        if numa is not None:
            found.setdefault(str(numa), []).append(name)
    return found


def node_tables(bindings: Sequence[Bound], devices: Mapping[str, Sequence[str]] | None = None) -> list[str]:
    """Shows the nodes of a run; equal ones once. devices: of each NUMA node; None: those that ranks use."""
    alike: dict[tuple[object, ...], list[Bound]] = {}
    for each in bindings:
        same = (each.node, each.allowed, each.unbound, tuple((rank.cpus, rank.gpu, rank.nic) for rank in each.ranks))
        alike.setdefault(same, []).append(each)
    lines = textwrap.wrap(note, terminal_width()) if (note := differing_bindings(bindings)) else []
    for group in alike.values():
        lines += ["", *_of_group(group, devices)] if lines else _of_group(group, devices)
    return lines


def _of_group(group: Sequence[Bound], devices: Mapping[str, Sequence[str]] | None) -> list[str]:
    first = group[0]
    names = list(dict.fromkeys(each.host for each in group))
    hosts = ", ".join(names[:_HOSTS]) + (f" and {len(names) - _HOSTS} more" if names[_HOSTS:] else "")
    lines = textwrap.wrap(
        f"{hosts}: {first.node or 'its hardware is not known'}", terminal_width(), subsequent_indent="  "
    )
    head = "  the job may use CPUs "
    cpus = _wrapped(first.allowed.split(","), terminal_width() - len(head))
    lines += [f"{'' if place else head:<{len(head)}}{line}" for place, line in enumerate(cpus)]
    if first.unbound is not None:
        lines += textwrap.wrap(f"  no rank is bound: {first.unbound.text}", terminal_width(), subsequent_indent="    ")
    if first.numas:
        lines += ["", *_of_numas(first.numas, _of_ranks(first) if devices is None else devices)]
    shared = len(group) > 1
    rows = [("RANK", "CORES", "CPUS", "NUMA", "GPU", "NIC")]
    for place, rank in enumerate(first.ranks):
        name = f"local {place}" if shared else str(rank.rank)
        rows.append((name, str(rank.cores or "-"), rank.cpus, rank.numa or "-", _gpu(rank), rank.nic or "-"))
    lines += ["", *table(rows, wraps=2, wrap=lambda text, room: _wrapped(text.split(","), room), indent=2)]
    if shared:
        firsts = [each.ranks[0].rank for each in group]
        more = f" and {len(firsts) - _HOSTS} more" if firsts[_HOSTS:] else ""
        lines.append(f"  local 0 is {name_ranks(firsts[:_HOSTS])}{more}")
    return lines


def _gpu(rank: BoundRank) -> str:
    far = rank.gpu_numa is not None and bool(rank.numa) and rank.gpu_numa not in parse_ranges(rank.numa)
    return f"{rank.gpu} (NUMA {rank.gpu_numa})" if rank.gpu and far else rank.gpu or "-"


def _of_numas(numas: Mapping[str, str], devices: Mapping[str, Sequence[str]]) -> list[str]:
    rows = [("NUMA", "CPUS", "GPUS AND NICS")]
    for numa, cpus in numas.items():
        cells = [numa], _wrapped(cpus.split(","), _CELL), _wrapped(devices.get(numa, ()), _CELL)
        rows += zip_longest(*cells, fillvalue="")
    return table(rows, indent=2)


def _of_ranks(bound: Bound) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for rank in bound.ranks:
        if rank.gpu is not None and rank.gpu_numa is not None:
            found.setdefault(str(rank.gpu_numa), []).append(rank.gpu)
    return found


def _wrapped(parts: Sequence[str], width: int) -> list[str]:
    # At commas, which end a line; a longer part is not split
    if len(whole := ",".join(parts)) <= width:
        return [whole]
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + len(part) + 2 <= width:
            lines[-1] += f",{part}"
        else:
            lines.append(part)
    return [*(f"{line}," for line in lines[:-1]), *lines[-1:]]
