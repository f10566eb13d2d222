"""Which accelerator and which network device each rank of a node uses. Pure, but for the parent of a slice of MIG."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from launcher.binding.masks import Near
from launcher.binding.node import Gpu, Nic, Node
from launcher.formatting import plural

# The variables that limit what a process sees, in the order in which they are applied.
MASKS = {
    "nvidia": ("CUDA_VISIBLE_DEVICES",),
    "amd": ("ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
    "intel": ("ZE_AFFINITY_MASK",),
}
_NONE = ("", "-1", "NoDevFiles")


class Untold(Exception):
    """Which accelerator a rank uses cannot be told, or one that is named is not there."""


Parent = Callable[[str], "str | None"]  # the PCI address of the GPU that a slice of MIG, by its UUID, is of


def near(
    node: Node, environ: Mapping[str, str], ranks: Sequence[int], *, gpus: bool, most: int | None = None,
    pairs: Sequence[str] = (), parent: Parent = lambda uuid: None,
) -> list[Near]:  # fmt: skip
    """The devices of some ranks.

    Args:
        node: what it looks like.
        environ: of the agent, with the masks that its scheduler has set.
        ranks: their local ranks.
        gpus: they compute on accelerators.
        most: how many accelerators the run takes of those that it sees; None: all.
        pairs: `cluster.nics`, the network device of each accelerator (of each rank, without any), by number.
        parent: the address of the GPU that a slice of MIG is of; None: unknown.

    Raises:
        Untold: an accelerator, or a network device of `pairs`, is not there, is named twice, or cannot be told.
    """
    shown = visible(node, environ, parent)[:most] if gpus else []
    if gpus and not shown:
        raise Untold("no accelerator is found in /sys or /proc")
    named = {each: nic for nic in node.nics for each in (nic.name, nic.interface) if each}
    if missing := [name for name in dict.fromkeys(pairs) if name not in named]:
        there = ", ".join(nic.name for nic in node.nics) or "none"
        raise Untold(f"cluster.nics names {', '.join(missing)}, and there is {there}")
    found = []
    for rank in ranks:
        gpu = shown[rank % len(shown)] if shown else None
        place = rank if gpu is None else node.gpus.index(gpu)
        pair = pairs[place % len(pairs)] if pairs else ""
        found.append(Near(gpu, named[pair] if pair else _nearest(node, gpu), pair))
    return found


def visible(node: Node, environ: Mapping[str, str], parent: Parent = lambda uuid: None) -> list[Gpu]:
    """The accelerators that a process with these variables sees, in its order.

    Raises:
        Untold: a mask names one that is not there, or the same one twice.
    """
    shown = list(node.gpus)
    for mask in MASKS.get(shown[0].vendor, ()) if shown else ():
        if (text := environ.get(mask)) is not None:
            shown = _masked(shown, mask, text, parent)
    return shown


def _masked(shown: Sequence[Gpu], mask: str, text: str, parent: Parent) -> list[Gpu]:
    found: list[Gpu] = []
    entries: list[str] = []
    for entry in map(str.strip, text.split(",")):
        if entry in _NONE:
            break
        if entry in entries:
            raise Untold(f"{mask}={text} names {entry} twice")
        entries.append(entry)
        found += _of_entry(shown, mask, entry, parent)
    return found


def _of_entry(shown: Sequence[Gpu], mask: str, entry: str, parent: Parent) -> list[Gpu]:
    """What an entry of a mask stands for: a number, a UUID or its beginning, a slice of MIG, or `CARD.TILE`."""
    if entry.isdecimal():
        if int(entry) < len(shown):
            return [shown[int(entry)]]
        raise Untold(f"{mask} names GPU {entry}, and this process may use {plural(len(shown), 'GPU')} here")
    if match := re.fullmatch(r"(\d+)\.(\d+)", entry):
        cards = list(dict.fromkeys(gpu.address for gpu in shown))
        at = [gpu for gpu in shown if cards.index(gpu.address) == int(match[1]) and gpu.tile in (int(match[2]), None)]
    elif entry.startswith("MIG-GPU-"):  # MIG-GPU-UUID/INSTANCE/INSTANCE, of drivers before 470
        at = [gpu for gpu in shown if gpu.uuid and entry[4:].partition("/")[0] == gpu.uuid]
    elif entry.startswith("MIG-"):
        address = parent(entry)
        if address is None:
            raise Untold(f"{mask} names {entry}, and of which GPU that is NVIDIA's library alone could tell")
        at = [gpu for gpu in shown if gpu.address == address]
    else:
        at = [gpu for gpu in shown if gpu.uuid.startswith(entry)]
    if len(at) != 1:
        raise Untold(f"{mask} names {entry}, and no GPU here is that: it is gone, or not this job's")
    return at


def _nearest(node: Node, gpu: Gpu | None) -> Nic | None:
    """One of the fastest network devices on the accelerator's NUMA node, shared out in order; None: there is none."""
    if gpu is None or gpu.numa is None:
        return None
    fastest = max((nic.speed for nic in node.nics), default=0)
    there = [nic for nic in node.nics if nic.numa == gpu.numa and nic.speed == fastest]
    beside = [each for each in node.gpus if each.numa == gpu.numa]
    return there[beside.index(gpu) * len(there) // len(beside)] if there else None
