"""`topology`: cores, GPUs and network devices of this node, and which of them each rank gets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.cli.options import add_runs_dir, find, whole_number

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


def configure(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="RUN", nargs="?", help="its ranks, as they were bound in its last attempt")
    parser.add_argument(
        "--ranks", type=whole_number, metavar="N", help="ranks on this node (default: one per GPU, else one)"
    )
    parser.add_argument("--bind", default="auto", metavar="HOW", help="as launch.bind (default: auto)")
    add_runs_dir(parser)


def run(arguments: Namespace) -> int:
    """Draw this node: its NUMA nodes and CPUs, and which of them each rank would get; of a RUN, which its ranks got."""
    # Lazily: neither --help nor completion needs it
    from launcher.cli.topology_picture import pictures

    if arguments.name is None:
        print("\n".join(_here(arguments.ranks, arguments.bind)))
        return 0
    # Lazily: neither --help nor completion needs it
    from launcher.cli.text import print_unreadable
    from launcher.errors import RunError
    from launcher.runs.bindings import latest

    found = find(arguments.name, arguments.runs_dir)
    for attempt in reversed(found.attempts()):
        if bindings := latest(attempt.events()):
            print("\n".join(pictures(bindings)))
            print_unreadable(found)
            return 0
    raise RunError(f"{found.id} has started no ranks yet, so that none of them is bound")


def _here(wanted: int | None, how: str) -> list[str]:
    """This node, with so many ranks."""
    # Lazily: neither --help nor completion needs it
    import os
    import socket

    from launcher.binding import devices, masks, nvidia, sysfs
    from launcher.binding.wanted import NONE, Wanted, parse
    from launcher.cli.topology_picture import devices_of, pictures
    from launcher.runs.bindings import event_of

    node, allowed, bind = sysfs.read(), os.sched_getaffinity(0), parse(how)
    try:
        seen = len(devices.visible(node, os.environ, nvidia.parent_of_slice))
        near = devices.near(
            node, os.environ, range(wanted or seen or 1), gpus=seen > 0, parent=nvidia.parent_of_slice
        )  # fmt: skip
        found = masks.bind(node, allowed, near, bind)
        why_not = found.why_not
    except devices.Untold as error:
        found = masks.bind(node, allowed, [masks.Near()] * (wanted or 1), Wanted(NONE))
        why_not = str(error)
    told = event_of(socket.gethostname(), node, allowed, found.ranks, why_not=why_not)
    beside = devices_of([(gpu.name, gpu.numa) for gpu in node.gpus], [(nic.name, nic.numa) for nic in node.nics])
    return pictures([told], beside)
