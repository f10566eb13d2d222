"""The hardware of a node: cores, accelerators and network devices."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from launcher.failures.codes import UnboundReason
from launcher.formatting import plural
from launcher.structs import Open, Struct

CPUS = "/sys/devices/system/cpu"


class Core(Struct):
    """A core."""

    cpus: tuple[int, ...]  # its hardware threads, which Linux calls CPUs, sorted
    numa: int = 0  # its NUMA node
    socket: int = 0  # its socket, which Linux calls package
    cache: int = 0  # its last-level cache, identified by the lowest CPU that shares it


class Gpu(Struct):
    """An accelerator, or a part of one that counts as a device."""

    address: str  # PCI address (`0000:c1:00.0`)
    numa: int | None = None  # the nearest NUMA node; None: unknown
    vendor: str = "nvidia"  # nvidia, amd or intel
    model: str = ""  # name of the model; empty: unknown
    uuid: str = ""  # UUID that the driver reports; empty: unknown
    tile: int | None = None  # index of the tile that counts as a device; None: this is a whole accelerator

    @property
    def name(self) -> str:
        """The PCI address, followed by `.TILE` for a tile: `0000:c1:00.0.1`."""
        return self.address if self.tile is None else f"{self.address}.{self.tile}"


class Nic(Struct):
    """A network device."""

    name: str  # name of the device (`mlx5_0`), or of its interface if the device has no name
    interface: str = ""  # the network interface on the same PCI device; empty: none
    address: str = ""  # PCI address
    numa: int | None = None  # the nearest NUMA node; None: unknown
    speed: int = 0  # speed in Gb/s; 0: unknown


class Unbound(Open):
    """Why the ranks of a node are not bound to cores. `launcher.failures.text.of_unbound` makes the text from it."""

    reason: UnboundReason  # code of the reason
    path: str = ""  # for NO_TOPOLOGY, the directory in which the kernel shows too little
    models: tuple[str, ...] = ()  # for MIXED_GPUS, the models of the node's GPUs
    ranks: int = 0  # for FEW_CORES, number of ranks on the node
    cores: int = 0  # for FEW_CORES, number of cores that the job may use on the node
    gpu: str = ""  # for GPU_NUMA, the PCI address of the GPU, followed by `.TILE` for a tile
    nics: tuple[str, ...] = ()  # for NO_NIC, the network devices of the node
    variable: str = ""  # for the reasons about a variable that limits the visible GPUs, its name
    value: str = ""  # for ENTRY_TWICE and SAME_GPU, the value of the variable
    names: tuple[str, ...] = ()  # the entries of the variable, or for NO_NIC of cluster.nics, that are wrong
    gpus: int = 0  # for GPU_NUMBER, the number of visible GPUs


class Node(Struct):
    """The hardware of a node, as far as it is known."""

    cores: tuple[Core, ...] = ()  # the cores that are online, with all their CPUs, sorted by their first CPU
    gpus: tuple[Gpu, ...] = ()  # the accelerators that this process may open, by device index
    nics: tuple[Nic, ...] = ()  # the network devices with a link, sorted by name
    # distance of each pair of NUMA nodes, as the firmware reports it (10: the same NUMA node)
    distances: Mapping[tuple[int, int], int] = MappingProxyType({})
    unbound: Unbound | None = None  # why no rank can be bound here; None: ranks can be bound

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
