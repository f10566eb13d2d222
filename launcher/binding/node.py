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
        socket: its socket, which Linux calls package.
        cache: its last-level cache, identified by the lowest CPU that shares it.
    """

    cpus: tuple[int, ...]
    numa: int = 0
    socket: int = 0
    cache: int = 0


@dataclass(frozen=True)
class Gpu:
    """An accelerator, or a part of one that counts as a device.

    Attributes:
        address: PCI address (`0000:c1:00.0`).
        numa: the nearest NUMA node; None: unknown.
        vendor: nvidia, amd or intel.
        model: name of the model; empty: unknown.
        uuid: UUID that the driver reports; empty: unknown.
        tile: index of the tile that counts as a device; None: this is a whole accelerator.
    """

    address: str
    numa: int | None = None
    vendor: str = "nvidia"
    model: str = ""
    uuid: str = ""
    tile: int | None = None

    @property
    def name(self) -> str:
        """The PCI address, followed by `.TILE` for a tile: `0000:c1:00.0.1`."""
        return self.address if self.tile is None else f"{self.address}.{self.tile}"


@dataclass(frozen=True)
class Nic:
    """A network device.

    Attributes:
        name: name of the device (`mlx5_0`), or of its interface if the device has no name.
        interface: the network interface on the same PCI device; empty: none.
        address: PCI address.
        numa: the nearest NUMA node; None: unknown.
        speed: speed in Gb/s; 0: unknown.
    """

    name: str
    interface: str = ""
    address: str = ""
    numa: int | None = None
    speed: int = 0


@dataclass(frozen=True)
class Unbound:
    """Why the ranks of a node are not bound to cores. `launcher.failures.text.of_unbound` makes the text from it.

    Attributes:
        reason: code of the reason.
        path: for NO_TOPOLOGY, the directory in which the kernel shows too little.
        models: for MIXED_GPUS, the models of the node's GPUs.
        ranks: for FEW_CORES, number of ranks on the node.
        cores: for FEW_CORES, number of cores that the job may use on the node.
        gpu: for GPU_NUMA, the PCI address of the GPU, followed by `.TILE` for a tile.
        nics: for NO_NIC, the network devices of the node.
        variable: for the reasons about a variable that limits the visible GPUs, its name.
        value: for ENTRY_TWICE and SAME_GPU, the value of the variable.
        names: the entries of the variable, or for NO_NIC of cluster.nics, that are wrong.
        gpus: for GPU_NUMBER, the number of visible GPUs.
    """

    OPEN: ClassVar[bool] = True
    reason: UnboundReason
    path: str = ""
    models: tuple[str, ...] = ()
    ranks: int = 0
    cores: int = 0
    gpu: str = ""
    nics: tuple[str, ...] = ()
    variable: str = ""
    value: str = ""
    names: tuple[str, ...] = ()
    gpus: int = 0


@dataclass(frozen=True)
class Node:
    """The hardware of a node, as far as it is known.

    Attributes:
        cores: the cores that are online, with all their CPUs, sorted by their first CPU.
        gpus: the accelerators that this process may open, by device index.
        nics: the network devices with a link, sorted by name.
        distances: distance of each pair of NUMA nodes, as the firmware reports it (10: the same NUMA node).
        unbound: why no rank can be bound here; None: ranks can be bound.
    """

    cores: tuple[Core, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    nics: tuple[Nic, ...] = ()
    distances: Mapping[tuple[int, int], int] = field(default_factory=dict)
    unbound: Unbound | None = None

    @property
    def kind(self) -> str:
        """A summary that is equal for nodes of the same type: `1 socket, 4 NUMA nodes, 64 cores of 2 threads, 8 amd
        GPUs`."""
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
        """Returns the distance between two NUMA nodes. If the firmware reports none: 10 for the same NUMA node, 12 on
        the same socket, else 32."""
        if one == other:
            return 10
        if (known := self.distances.get((one, other))) is not None:
            return known
        sockets = {core.numa: core.socket for core in self.cores}
        return 12 if sockets.get(one) == sockets.get(other) else 32
