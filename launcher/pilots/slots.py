"""The slots of a pilot: the part of a node that each point gets."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from launcher.binding import devices, masks, nvidia, sysfs, wanted
from launcher.binding.devices import DeviceError
from launcher.binding.masks import RankDevices
from launcher.errors import NO_RETRY, LauncherError, RunError
from launcher.formatting import long_size, plural
from launcher.pilots.journal import JournalReader
from launcher.runs.claims import Claims, Manager
from launcher.runs.directory import Attempt
from launcher.runs.events import PartEnded
from launcher.runs.output import read

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

    Args:
        slot: index of the slot on the node, from 0.
        per_slot: number of GPUs that a point asks for.
        there: number of the pilot's GPUs on the node.
    """
    return tuple(dict.fromkeys((slot * per_slot + place) % there for place in range(per_slot))) if there else ()


def mask(environ: Mapping[str, str], places: Sequence[int], name: str) -> dict[str, str]:
    """Returns the variable `name` with the value that makes only some of the visible GPUs visible.

    Args:
        environ: the slot manager's environment; if the variable is not set there, all GPUs are visible.
        places: indices of the slot's GPUs among the visible ones.
        name: CUDA_VISIBLE_DEVICES, or another variable of this kind.

    Raises:
        TooFewGpus: an index is beyond the visible GPUs.
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

    Args:
        count: number of slots.
        environ: environment of this process.
        gpus_per_point: number of GPUs that a point asks for.
        gpus: number of GPUs that the pilot has asked for on this node.
        cpus: number of CPUs that a point asks for.

    Raises:
        TooFewGpus: fewer GPUs are visible than the pilot has asked for.
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
    names = devices.MASKS.get(vendor, ("CUDA_VISIBLE_DEVICES",))
    return next((name for name in reversed(names) if name in environ), names[-1])


# -- What the first node of a group knows of the others: exit codes and output of their parts of points, lost nodes
# A point that needs several nodes has a part on each: a process of that node's slot manager.


MOST = 1 << 26  # about so many bytes of output one call copies for one node


class Parts:
    """What the journals of a group's other nodes say about their parts of points; nothing if the group is one node."""

    def __init__(self, folder: Claims, group: Group, silence: float) -> None:
        """
        Args:
            folder: the sweep's claims, and the journals of its slot managers.
            group: the group of which this node is the first.
            silence: seconds without a heartbeat after which a node is lost.
        """
        self._group = group
        self._readers = {place: JournalReader(folder, each, silence) for place, each in group.followers.items()}
        self._codes: dict[tuple[int, int], dict[int, int]] = {}  # by point and attempt: exit codes by place
        self._copied: dict[Path, int] = {}

    def look(self, now: float) -> None:
        """Reads new events of the other nodes' journals: exit codes of parts, and heartbeats.

        Args:
            now: monotonic seconds.
        """
        for place, reader in self._readers.items():
            for event in reader.look(now):
                if isinstance(event, PartEnded):
                    self._codes.setdefault((event.point, event.attempt), {})[place] = event.code

    @property
    def lost(self) -> tuple[str, ...]:
        """Host names of the nodes with a slot manager that is gone."""
        return tuple(self._group.hosts[place] for place, reader in self._readers.items() if reader.gone)

    def ended(self, point: int, attempt: Attempt) -> bool:
        """Returns whether the parts of an attempt of point `point` on all other nodes have ended."""
        return len(self._codes.get((point, attempt.number), ())) == len(self._readers)

    def failed(self, point: int, attempt: Attempt) -> bool:
        """Returns whether a part of an attempt of point `point` on another node has ended with a nonzero exit code."""
        return any(self._codes.get((point, attempt.number), {}).values())

    def forget(self, point: int, attempt: Attempt) -> None:
        """Drops the exit codes and the output positions of an attempt of point `point` that is over."""
        self._codes.pop((point, attempt.number), None)
        for place in self._readers:
            self._copied.pop(printed_on(attempt, place), None)

    def copy_output(self, attempt: Attempt, output: Path, *, ended: bool = False) -> None:
        """Appends the lines that other nodes' parts of an attempt have printed since the last call.

        Args:
            attempt: the point's attempt.
            output: the point's output file, to which they are appended.
            ended: whether this is the last call. Of more than MOST bytes only the last ones are appended then, below a
                line that says so. What cannot be read or written now is left for the next call.
        """
        for place in self._readers:
            path = printed_on(attempt, place)
            begin = self._copied.get(path, 0)
            with contextlib.suppress(OSError, RunError), open(output, "ab", buffering=0, opener=_private) as file:
                if ended and (missing := os.stat(path).st_size - MOST - begin) > 0:
                    begin += missing
                    words = f"{long_size(missing)} of the output of {self._group.hosts[place]} is missing here"
                    file.write(os.fsencode(f"launcher: {words}: all of it is in {path}\n"))
                first = begin
                for text in read(path, begin, None, last=ended):
                    begin += (written := file.write(text))
                    if written < len(text) or begin >= first + MOST:
                        break
            self._copied[path] = begin


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


# -- A group: the nodes of a pilot that run points together, where a point needs several nodes


@dataclass(frozen=True)
class Group:
    """As many nodes as a point needs. The slot manager of the first one claims points, and the others follow it."""

    leader: Manager  # the slot manager of the first node
    hosts: tuple[str, ...]  # host names of the group's nodes, by node rank
    place: int  # index of this node in `hosts`; the first node leads

    @property
    def host(self) -> str:
        """Host name of this node."""
        return self.hosts[self.place]

    @property
    def followers(self) -> dict[int, Manager]:
        """The slot managers of the nodes other than the first, by the node's index in `hosts`."""
        first = self.leader.node
        return {place: dataclasses.replace(self.leader, node=first + place) for place in range(1, len(self.hosts))}


def group_of(mine: Manager, hosts: Sequence[str], size: int) -> Group | None:
    """Returns the group of a node. None: the node is one of the last, which are fewer than a point needs.

    Args:
        mine: the slot manager of the node.
        hosts: host names of all nodes of the round, by node rank.
        size: number of nodes that a point needs.
    """
    first = mine.node - mine.node % size
    its = tuple(hosts[first : first + size])
    return Group(dataclasses.replace(mine, node=first), its, mine.node - first) if len(its) == size else None


def printed_on(attempt: Attempt, place: int) -> Path:
    """Returns the output file of an attempt on the node at index `place` of the group, other than the first.

    Each such node has its own file, since appends from several nodes to one file are not safe on NFS.
    """
    return attempt.path / "tasks" / f"{place}.out"
