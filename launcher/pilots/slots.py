"""The slots of a pilot: the part of a node that each point gets."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from launcher.binding import hardware, masks
from launcher.binding.masks import DeviceError, RankDevices
from launcher.errors import NO_RETRY, LauncherError
from launcher.formatting import plural

# -- Divides the CPUs and GPUs of a node among its slots. Pure, except that `slots_of_node` reads this node's hardware


class TooFewGpus(LauncherError):
    """The scheduler makes fewer GPUs visible to the pilot than it asked for. A retry would fail, too."""

    exit_code = NO_RETRY


@dataclass(frozen=True)
class Slot:
    """A share of a node in which one point runs at a time."""

    number: int  # index of the slot on its node, from 0
    cpus: tuple[int, ...] = ()  # ids of the CPUs that the point may use; empty: all CPUs of the pilot on this node
    # environment variables that limit the visible GPUs, such as CUDA_VISIBLE_DEVICES
    variables: Mapping[str, str] = field(default_factory=dict)


def gpus_of(slot: int, per_slot: int, there: int) -> tuple[int, ...]:
    """Returns which of the pilot's GPUs on this node a slot gets, as indices among these GPUs.

    If the slots ask for more GPUs than there are, several slots share a GPU. Without GPUs the result is empty.

    slot: index of the slot on the node, from 0.
    """
    return tuple(dict.fromkeys((slot * per_slot + place) % there for place in range(per_slot))) if there else ()


def mask(environ: Mapping[str, str], places: Sequence[int], name: str) -> dict[str, str]:
    """Returns the variable `name` with the value that makes only some of the visible GPUs visible.

    environ: the slot manager's environment; if the variable is not set there, all GPUs are visible.
    places: indices of the slot's GPUs among the visible ones.
    Raises TooFewGpus: an index is beyond the visible GPUs.
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
    """Returns the slots of this node, each with its CPUs and GPUs.

    gpus: number of GPUs that the pilot has asked for on this node.
    Raises TooFewGpus: fewer GPUs are visible than the pilot has asked for.
    """
    node, allowed = hardware.read(environ=environ), os.sched_getaffinity(0)
    places = [gpus_of(slot, gpus_per_point, gpus) for slot in range(count)]
    ranks = [RankDevices()] * count
    name = _mask_variable(node.gpus[0].vendor if node.gpus else "", environ)
    if gpus:
        try:
            shown = masks.visible_gpus(node, environ, hardware.parent_of_slice)
            ranks = [RankDevices(shown[each[0]] if each and each[0] < len(shown) else None) for each in places]
        except DeviceError:
            pass  # the CPUs are divided regardless of where the GPUs are
    found = masks.bind(node, allowed, ranks, masks.Wanted(masks.AUTO), cpus_per_rank=cpus)
    return [
        Slot(
            number, found.ranks[number].cpus if found.bound else (),
            mask(environ, places[number], name) if gpus_per_point and gpus else {},
        )
        for number in range(count)
    ]  # fmt: skip


def _mask_variable(vendor: str, environ: Mapping[str, str]) -> str:
    names = masks.MASKS.get(vendor, ("CUDA_VISIBLE_DEVICES",))
    return next((name for name in reversed(names) if name in environ), names[-1])
