"""`topology`: shows the cores, GPUs and network devices of a node, and which of them each rank gets."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from textwrap import wrap
from typing import TYPE_CHECKING

from launcher.binding import hardware, masks
from launcher.binding.masks import parse
from launcher.cli.find import find
from launcher.cli.text import print_unreadable
from launcher.cli.topology_picture import devices_of, pictures
from launcher.errors import ConfigError, RunError
from launcher.runs.health import bindings_event, latest_bindings

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Collection, Mapping

    from launcher.binding.node import Node


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
