"""How the slots of a node share its CPUs and GPUs. Pure, but for the look at the node."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from launcher.binding import devices, masks, nvidia, sysfs, wanted
from launcher.binding.devices import DeviceError
from launcher.binding.masks import RankDevices
from launcher.errors import NO_RETRY, LauncherError
from launcher.formatting import plural


class TooFewGpus(LauncherError):
    """The scheduler lets the pilot see fewer GPUs than it has asked for. A retry would fail, too."""

    exit_code = NO_RETRY


@dataclass(frozen=True)
class Slot:
    """What the points in a slot may use.

    Attributes:
        number: of the slot, from 0.
        cpus: CPUs; empty: all that the pilot may use there.
        variables: the variables that limit what its processes see.
    """

    number: int
    cpus: tuple[int, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)


def gpus_of(slot: int, per_slot: int, there: int) -> tuple[int, ...]:
    """The GPUs of a slot, by their places among those of the pilot. Slots share GPUs where there are fewer. Pure.

    Args:
        slot: its number.
        per_slot: GPUs that a point asks for.
        there: GPUs of the node.
    """
    return tuple(dict.fromkeys((slot * per_slot + place) % there for place in range(per_slot))) if there else ()


def mask(environ: Mapping[str, str], places: Sequence[int], name: str) -> dict[str, str]:
    """The variable that shows only the GPUs at these places of those that are shown now. Pure.

    Args:
        environ: of the slot manager; where the variable is not set, all are shown.
        places: of the slot's GPUs.
        name: of the variable.

    Raises:
        TooFewGpus: the variable shows fewer.
    """
    shown = environ.get(name)
    if shown is None:
        return {name: ",".join(map(str, places))}
    entries = [each.strip() for each in shown.split(",") if each.strip()]
    if len(entries) <= max(places):
        raise TooFewGpus(
            f"{name}={shown} shows {plural(len(entries), 'GPU')} on {socket.gethostname()}, and the pilot asked for "
            "more (sweep.gpus, else sweep.slots x gpus_per_node): ask for fewer, or see `launcher doctor`"
        )
    return {name: ",".join(entries[place] for place in places)}


def slots_of_node(count: int, environ: Mapping[str, str], *, gpus_per_point: int, gpus: int, cpus: int) -> list[Slot]:
    """The slots of this node.

    Args:
        count: number of slots.
        environ: of this process.
        gpus_per_point: GPUs that a point asks for.
        gpus: GPUs that the pilot has asked for on this node.
        cpus: CPUs that a point asks for.
    """
    node, allowed = sysfs.read(environ=environ), os.sched_getaffinity(0)
    places = [gpus_of(slot, gpus_per_point, gpus) for slot in range(count)]
    ranks = [RankDevices()] * count
    name = _mask_variable(node.gpus[0].vendor if node.gpus else "", environ)
    if gpus:
        try:
            shown = devices.visible_gpus(node, environ, nvidia.parent_of_slice)
            ranks = [RankDevices(shown[each[0]] if each and each[0] < len(shown) else None) for each in places]
        except DeviceError:
            pass  # the CPUs are divided regardless of where the GPUs are
    found = masks.bind(node, allowed, ranks, wanted.Wanted(wanted.AUTO), cpus_per_rank=cpus)
    return [
        Slot(
            number, found.ranks[number].cpus if found.bound else (),
            mask(environ, places[number], name) if gpus_per_point and gpus else {},
        )
        for number in range(count)
    ]  # fmt: skip


def _mask_variable(vendor: str, environ: Mapping[str, str]) -> str:
    """The variable that limits which GPUs a process sees: one that the scheduler has set, else the vendor's last."""
    names = devices.MASKS.get(vendor, ("CUDA_VISIBLE_DEVICES",))
    return next((name for name in reversed(names) if name in environ), names[-1])
