"""A node as binding sees it: cores, accelerators, network devices. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from launcher.formatting import plural


@dataclass(frozen=True)
class Core:
    """A core.

    Attributes:
        cpus: the CPUs of Linux that are its hardware threads, sorted.
        numa: its NUMA node.
        socket: its package.
        cache: the lowest CPU of those that share its last level of cache.
    """

    cpus: tuple[int, ...]
    numa: int = 0
    socket: int = 0
    cache: int = 0


@dataclass(frozen=True)
class Gpu:
    """An accelerator, or a part of one that counts as a device.

    Attributes:
        address: on the PCI bus (`0000:c1:00.0`).
        numa: the NUMA node that it is nearest to; None: the system does not tell.
        vendor: nvidia, amd or intel.
        model: its name, where the driver's files have it.
        uuid: as the driver has it; empty: unknown.
        tile: the number of a part that is a device of its own; None: it is a whole one.
    """

    address: str
    numa: int | None = None
    vendor: str = "nvidia"
    model: str = ""
    uuid: str = ""
    tile: int | None = None

    @property
    def name(self) -> str:
        """`0000:c1:00.0`, with `.1` behind it for a part."""
        return self.address if self.tile is None else f"{self.address}.{self.tile}"


@dataclass(frozen=True)
class Nic:
    """A network device.

    Attributes:
        name: `mlx5_0`, or that of the interface where it has no other.
        interface: the network interface on the same PCI device; empty: none.
        address: on the PCI bus.
        numa: the NUMA node that it is nearest to; None: the system does not tell.
        speed: Gb/s; 0: unknown.
    """

    name: str
    interface: str = ""
    address: str = ""
    numa: int | None = None
    speed: int = 0


@dataclass(frozen=True)
class Node:
    """What is known of a node.

    Attributes:
        cores: all that are online, with all their CPUs, sorted by their first CPU.
        gpus: in the order in which their runtime numbers them; those that this process may not open are left out.
        nics: with a link, by name.
        distances: of NUMA nodes, by pair; as the firmware has them (10: itself).
        unknown: what could not be told, in words.
    """

    cores: tuple[Core, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    nics: tuple[Nic, ...] = ()
    distances: Mapping[tuple[int, int], int] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """What nodes of one type have in common: `1 socket, 4 NUMA nodes, 64 cores of 2 threads, 8 amd GPUs`."""
        threads = sorted({len(core.cpus) for core in self.cores})
        count = [
            plural(len({core.socket for core in self.cores}), "socket"),
            plural(len({core.numa for core in self.cores}), "NUMA node"),
            plural(len(self.cores), "core") + (f" of {threads[-1]} threads" if threads and threads[-1] > 1 else ""),
        ]
        if self.gpus:
            first = self.gpus[0]
            count.append(plural(len(self.gpus), f"{first.model or first.vendor} GPU"))
        return ", ".join(count)

    def distance(self, one: int, other: int) -> int:
        """Between two NUMA nodes; where the firmware has none, those of one socket are nearer than others."""
        if one == other:
            return 10
        if (known := self.distances.get((one, other))) is not None:
            return known
        sockets = {core.numa: core.socket for core in self.cores}
        return 12 if sockets.get(one) == sockets.get(other) else 32
