"""Decides which accelerator and which network device each rank of a node uses.

Pure, except for the function of the caller that finds the GPU of a MIG slice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from launcher.binding.masks import RankDevices
from launcher.binding.node import Gpu, Nic, Node, Unbound
from launcher.failures.codes import UnboundReason

# Variables that limit which devices a process sees, by vendor, in the order in which they are applied.
MASKS = {
    "nvidia": ("CUDA_VISIBLE_DEVICES",),
    "amd": ("ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
    "intel": ("ZE_AFFINITY_MASK",),
}
_NONE = ("", "-1", "NoDevFiles")


class DeviceError(Exception):
    """It is not known which devices a rank uses, or a variable or cluster.nics names a device that does not exist.

    unbound: what is wrong. Ranks that need the devices cannot be bound for this reason.
    """

    def __init__(self, unbound: Unbound) -> None:
        super().__init__(unbound)
        self.unbound = unbound


Parent = Callable[[str], "str | None"]  # from the UUID of a MIG slice to the PCI address of its GPU; None: unknown


def of_ranks(
    node: Node, environ: Mapping[str, str], ranks: Sequence[int], *, gpus: bool, most: int | None = None,
    pairs: Sequence[str] = (), parent: Parent = lambda uuid: None,
) -> list[RankDevices]:  # fmt: skip
    """Returns the devices of each of the given ranks.

    environ: environment variables of the agent, with those by which the scheduler limits visible devices.
    gpus: whether the ranks compute on accelerators.
    most: number of visible accelerators that the run uses, the first ones; None: all.
    pairs: `cluster.nics`: the network device of each accelerator of the node, or of each rank if the ranks use no
        accelerators.
    parent: returns the PCI address of the GPU of a MIG slice.
    Raises DeviceError: no accelerator is found; a variable names one that does not exist, or names one twice; or a
        network device of `pairs` does not exist.
    """
    shown = visible_gpus(node, environ, parent)[:most] if gpus else []
    if gpus and not shown:
        raise DeviceError(Unbound(UnboundReason.NO_GPU))
    named = {each: nic for nic in node.nics for each in (nic.name, nic.interface) if each}
    if missing := tuple(name for name in dict.fromkeys(pairs) if name not in named):
        nics = tuple(nic.name for nic in node.nics)
        raise DeviceError(Unbound(UnboundReason.NO_NIC, names=missing, nics=nics))
    found = []
    for rank in ranks:
        gpu = shown[rank % len(shown)] if shown else None
        place = rank if gpu is None else node.gpus.index(gpu)
        pair = pairs[place % len(pairs)] if pairs else ""
        found.append(RankDevices(gpu, named[pair] if pair else _nearest(node, gpu), pair))
    return found


def visible_gpus(node: Node, environ: Mapping[str, str], parent: Parent = lambda uuid: None) -> list[Gpu]:
    """Returns the accelerators that a process with these environment variables sees, by device index.

    Raises DeviceError: a variable names an accelerator that does not exist, or names one twice.
    """
    shown = list(node.gpus)
    for mask in MASKS.get(shown[0].vendor, ()) if shown else ():
        if (text := environ.get(mask)) is not None:
            shown = _masked(shown, mask, text, parent)
    return shown


def _masked(shown: Sequence[Gpu], mask: str, text: str, parent: Parent) -> list[Gpu]:
    found: list[Gpu] = []
    entries: list[str] = []
    names: dict[Gpu, str] = {}  # entry of each whole GPU; several entries may name parts of one GPU
    for entry in map(str.strip, text.split(",")):
        if entry in _NONE:
            break
        if entry in entries:
            raise DeviceError(Unbound(UnboundReason.ENTRY_TWICE, variable=mask, value=text, names=(entry,)))
        entries.append(entry)
        found += _of_entry(shown, mask, entry, parent)
        whole = not entry.startswith("MIG-") and "." not in entry
        if whole and (before := names.setdefault(found[-1], entry)) != entry:
            raise DeviceError(Unbound(UnboundReason.SAME_GPU, variable=mask, value=text, names=(before, entry)))
    return found


def _of_entry(shown: Sequence[Gpu], mask: str, entry: str, parent: Parent) -> list[Gpu]:
    if entry.isdecimal():
        if int(entry) < len(shown):
            return [shown[int(entry)]]
        raise DeviceError(Unbound(UnboundReason.GPU_NUMBER, variable=mask, names=(entry,), gpus=len(shown)))
    if match := re.fullmatch(r"(\d+)\.(\d+)", entry):
        cards = list(dict.fromkeys(gpu.address for gpu in shown))
        at = [gpu for gpu in shown if cards.index(gpu.address) == int(match[1]) and gpu.tile in (int(match[2]), None)]
    elif entry.startswith("MIG-GPU-"):  # MIG-GPU-UUID/INSTANCE/INSTANCE, of drivers before 470
        at = [gpu for gpu in shown if gpu.uuid and entry[4:].partition("/")[0] == gpu.uuid]
    elif entry.startswith("MIG-"):
        address = parent(entry)
        if address is None:
            raise DeviceError(Unbound(UnboundReason.MIG_SLICE, variable=mask, names=(entry,)))
        at = [gpu for gpu in shown if gpu.address == address]
    else:
        at = [gpu for gpu in shown if gpu.uuid.startswith(entry)]
    if len(at) != 1:
        raise DeviceError(Unbound(UnboundReason.NOT_VISIBLE, variable=mask, names=(entry,)))
    return at


def _nearest(node: Node, gpu: Gpu | None) -> Nic | None:
    # Accelerators of the same NUMA node get different network devices if there are several
    if gpu is None or gpu.numa is None:
        return None
    fastest = max((nic.speed for nic in node.nics), default=0)
    there = [nic for nic in node.nics if nic.numa == gpu.numa and nic.speed == fastest]
    on_same_numa = [each for each in node.gpus if each.numa == gpu.numa]
    return there[on_same_numa.index(gpu) * len(there) // len(on_same_numa)] if there else None
