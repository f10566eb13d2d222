"""`topology`: the hardware of this node, and which part of it each rank gets.

The letter is the local rank that is bound to the CPU.

NUMA 3    48-63  0000000011111111  0000:07:00.0, mlx5_0
        176-191  0000000011111111
"""

from __future__ import annotations

import os
import socket
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from textwrap import wrap
from typing import TYPE_CHECKING

from launcher.binding import hardware, masks
from launcher.binding.masks import parse
from launcher.cli.find import find
from launcher.cli.text import print_unreadable, table
from launcher.errors import ConfigError, RunError
from launcher.formatting import name_ranks, ranges
from launcher.runs.events import Bound
from launcher.runs.health import bindings_event, differing_bindings, latest_bindings
from launcher.units import parse_ranges

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Collection

    from launcher.binding.hardware import Node


WIDTH = 79
RANKS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"  # by local rank
FREE, TAKEN, MANY = ".", "-", "*"
_SHOWN = 40  # CPUs in a line
_HOSTS = 6  # hosts that are named
_PARTS = 4  # most ranges of CPUs that have lines of their own in a NUMA node


def pictures(bindings: Sequence[Bound], devices: Mapping[str, Sequence[str]] | None = None) -> list[str]:
    """Returns the lines that show the nodes of a run, from the `bound` events in order of ranks; equal ones once.

    devices: names of GPUs and network devices, by NUMA node; None: those that ranks use.
    """
    alike: dict[tuple[object, ...], list[Bound]] = {}
    for each in bindings:
        same = (each.node, each.allowed, each.unbound, tuple((rank.cpus, rank.gpu, rank.nic) for rank in each.ranks))
        alike.setdefault(same, []).append(each)
    lines = textwrap.wrap(note, WIDTH) if (note := differing_bindings(bindings)) else []
    for group in alike.values():
        lines += ["", *_picture(group, devices)] if lines else _picture(group, devices)
    return lines


def _picture(group: Sequence[Bound], devices: Mapping[str, Sequence[str]] | None) -> list[str]:
    first = group[0]
    names = list(dict.fromkeys(each.host for each in group))
    hosts = ", ".join(names[:_HOSTS]) + (f" and {len(names) - _HOSTS} more" if names[_HOSTS:] else "")
    lines = textwrap.wrap(f"{hosts}: {first.node or 'its hardware is not known'}", WIDTH, subsequent_indent="  ")
    lines += textwrap.wrap(f"  the job may use CPUs {first.allowed}", WIDTH, subsequent_indent="    ")
    if first.unbound is not None:
        lines += textwrap.wrap(f"  no rank is bound: {first.unbound.words}", WIDTH, subsequent_indent="    ")
    lines += [*_map(first, _devices(first) if devices is None else devices), ""] if first.numas else [""]
    rows = [("rank", "cores", "CPUs", "NUMA", "GPU", "NIC")]
    shared = len(group) > 1
    for place, rank in enumerate(first.ranks):
        name = str(rank.rank) if not shared else f"local {place}"
        far = rank.gpu_numa is not None and bool(rank.numa) and rank.gpu_numa not in parse_ranges(rank.numa)
        gpu = f"{rank.gpu} (NUMA {rank.gpu_numa})" if rank.gpu and far else rank.gpu or "-"
        rows.append((name, str(rank.cores or "-"), rank.cpus, rank.numa or "-", gpu, rank.nic or "-"))
    of_rows = table(rows, wraps=2, wrap=lambda text, room: _wrapped(text.split(","), room), width=WIDTH, indent=2)
    lines += chain.from_iterable(of_rows)
    if shared:
        lines.append(f"  local 0 is {name_ranks(each.ranks[0].rank for each in group)}")
    return lines


def _map(bound: Bound, devices: Mapping[str, Sequence[str]]) -> list[str]:
    allowed = frozenset(parse_ranges(bound.allowed))
    owners: dict[int, list[int]] = {}
    for place, rank in enumerate(bound.ranks if bound.unbound is None else ()):
        for cpu in parse_ranges(rank.cpus):
            owners.setdefault(cpu, []).append(place)

    def letter(cpu: int) -> str:
        mine = owners.get(cpu, [])
        if len(mine) > 1:
            return MANY
        return RANKS[mine[0] % len(RANKS)] if mine else FREE if cpu in allowed else TAKEN

    lines, used = [], set()
    for numa, listed in (bound.numas or {}).items():
        rows = [
            (ranges(cpus) if len(cpus) < len(run) else label, "".join(map(letter, cpus)))
            for label, run in _runs(listed)
            for at in range(0, len(run), _SHOWN)
            if (cpus := run[at : at + _SHOWN])
        ]
        room = WIDTH - 24 - max(len(letters) for _, letters in rows)
        names = _wrapped(devices.get(numa, ()), room)
        for place in range(max(len(rows), len(names))):
            label, letters = rows[place] if place < len(rows) else ("", "")
            used |= set(letters)
            head = f"  NUMA {numa}" if not place else ""
            more = names[place] if place < len(names) else ""
            lines.append(f"{head:<10}{label:>10}  {letters:<{WIDTH - 24 - room}}  {more}".rstrip())
    meanings = {FREE: "of no rank", TAKEN: "not the job's", MANY: "of several ranks"}
    legend = ", ".join(f"{sign} {what}" for sign, what in meanings.items() if sign in used)
    return [*lines, *([f"{'':22}{legend}"] if legend else [])]


def _runs(listed: str) -> list[tuple[str, Sequence[int]]]:
    # A part is a range. If there are more than _PARTS ranges, the whole list is one part.
    parts = listed.split(",")
    if len(parts) <= _PARTS:
        return [(part, parse_ranges(part)) for part in parts]
    cpus = parse_ranges(listed)
    return [(f"{cpus[0]},{cpus[1]}..{cpus[-1]}", cpus)]


def _wrapped(parts: Sequence[str], width: int) -> list[str]:
    # A longer part is not split
    if len(whole := ",".join(parts)) <= width:
        return [whole]
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + 2 + len(part) <= width:
            lines[-1] += f",{part}"
        else:
            lines += [part]
    return [f"{line}," for line in lines[:-1]] + lines[-1:]


def _devices(bound: Bound) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for rank in bound.ranks:
        if rank.gpu is not None and rank.gpu_numa is not None:
            found.setdefault(str(rank.gpu_numa), []).append(rank.gpu)
    return found


def devices_of(gpus: Sequence[tuple[str, int | None]], nics: Sequence[tuple[str, int | None]]) -> dict[str, list[str]]:
    """Returns the names of devices by NUMA node. Devices without a NUMA node are left out."""
    found: dict[str, list[str]] = {}
    for name, numa in [*gpus, *nics]:
        if numa is not None:
            found.setdefault(str(numa), []).append(name)
    return found


# -- `topology`: shows the cores, GPUs and network devices of a node, and which of them each rank gets


def run(arguments: Namespace) -> int:
    if arguments.name is not None and arguments.node_type is not None:
        raise ConfigError("--node-type shows a type of node, and RUN the nodes of a run: leave out one of the two")
    if arguments.name is None:
        print("\n".join(_unbound(arguments.ranks, arguments.bind, arguments.node_type)))
        return 0
    found = find(arguments.name, arguments.runs_dir)
    for attempt in reversed(found.attempts()):
        if bindings := latest_bindings(attempt.latest_events()):
            print("\n".join(pictures(bindings)))
            print_unreadable(found)
            return 0
    raise RunError(f"{found.id} has started no ranks yet")


def _unbound(wanted: int | None, how: str, node_type: str | None) -> list[str]:
    if node_type is None:
        return _drawn(socket.gethostname(), hardware.read(), os.sched_getaffinity(0), os.environ, wanted, how)
    if node_type == "list":
        return [f"{name}  {hardware.load(name).node.kind}" for name in hardware.names()]
    hardware.require(node_type, "--node-type")
    about = hardware.load(node_type)
    gpus = tuple(replace(gpu, address=f"GPU {place}", tile=None) for place, gpu in enumerate(about.node.gpus))
    node = replace(about.node, gpus=gpus)  # the addresses differ from node to node
    return [*_drawn(node_type, node, about.allowed, {}, wanted, how), "", *wrap(f"Source: {about.source}", 79)]


def _drawn(
    host: str, node: Node, allowed: Collection[int], environ: Mapping[str, str], wanted: int | None, how: str
) -> list[str]:
    # Returns the lines that show a node with the CPUs that `wanted` ranks would be bound to; see `_unbound`
    bind = parse(how)
    try:
        seen = len(masks.visible_gpus(node, environ, hardware.parent_of_slice))
        near = masks.of_ranks(
            node, environ, range(wanted or seen or 1), gpus=seen > 0, parent=hardware.parent_of_slice
        )  # fmt: skip
        found = masks.bind(node, allowed, near, bind)
    except masks.DeviceError as error:
        found = masks.unbound(node, allowed, [masks.RankDevices()] * (wanted or 1), error.unbound)
    binding = bindings_event(host, node, allowed, found.ranks, unbound=found.unbound)
    names = devices_of([(gpu.name, gpu.numa) for gpu in node.gpus], [(nic.name, nic.numa) for nic in node.nics])
    return pictures([binding], names)
