"""The hardware of a node: cores, accelerators and network devices. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from launcher.failures.codes import UnboundReason
from launcher.formatting import plural

CPUS = "/sys/devices/system/cpu"


@dataclass(frozen=True)
class Core:
    """A core.

    Attributes:
        cpus: its hardware threads, which Linux calls CPUs, sorted.
        numa: its NUMA node.
        socket: its package.
        cache: identifies its last level of cache: the lowest CPU that shares it.
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
        numa: the nearest NUMA node; None: unknown.
        vendor: nvidia, amd or intel.
        model: its name; empty: unknown.
        uuid: of the driver; empty: unknown.
        tile: the number of a part (tile) that counts as a device; None: it is a whole accelerator.
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
        name: `mlx5_0`; that of the interface if it has no other name.
        interface: the network interface on the same PCI device; empty: none.
        address: on the PCI bus.
        numa: the nearest NUMA node; None: unknown.
        speed: Gb/s; 0: unknown.
    """

    name: str
    interface: str = ""
    address: str = ""
    numa: int | None = None
    speed: int = 0


@dataclass(frozen=True)
class Unbound:
    """Why the ranks of a node are not bound to cores. `launcher.failures.text.of_unbound` describes it to people.

    Attributes:
        reason: code of the reason.
        path: for NO_TOPOLOGY, the folder in which the kernel shows too little.
        models: for MIXED_GPUS, those of the GPUs.
        ranks, cores: for FEW_CORES, their numbers.
        gpu: for GPU_NUMA, the PCI address of the GPU.
        error: for DEVICES, the message of the DeviceError.
    """

    OPEN: ClassVar[bool] = True
    reason: UnboundReason
    path: str = ""
    models: tuple[str, ...] = ()
    ranks: int = 0
    cores: int = 0
    gpu: str = ""
    error: str = ""


@dataclass(frozen=True)
class Node:
    """The hardware of a node, as far as it is known.

    Attributes:
        cores: all that are online, with all their CPUs, sorted by their first CPU.
        gpus: the accelerators that this process may open, in the order of their device numbers.
        nics: the network devices with a link, by name.
        distances: between NUMA nodes, by pair, as the firmware reports them (10: the same node).
        unbound: why no rank can be bound here; None: ranks can be.
    """

    cores: tuple[Core, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    nics: tuple[Nic, ...] = ()
    distances: Mapping[tuple[int, int], int] = field(default_factory=dict)
    unbound: Unbound | None = None

    @property
    def kind(self) -> str:
        """A text that is equal for nodes of one type: `1 socket, 4 NUMA nodes, 64 cores of 2 threads, 8 amd GPUs`."""
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
        """Returns the distance between two NUMA nodes. If the firmware reports none, those of one socket are nearer."""
        if one == other:
            return 10
        if (known := self.distances.get((one, other))) is not None:
            return known
        sockets = {core.numa: core.socket for core in self.cores}
        return 12 if sockets.get(one) == sockets.get(other) else 32
