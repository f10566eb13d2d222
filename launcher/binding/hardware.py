"""The hardware of a node: read from sysfs, or asked of NVIDIA's driver.

Devices that this process may not open (those of other jobs, which a cgroup or a container hides) are left out, as CUDA
and ROCm do: device numbers are the same.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from launcher.failures.codes import Unbound
from launcher.fast_dataclasses import Struct
from launcher.formatting import plural
from launcher.units import parse_ranges

CPUS = "/sys/devices/system/cpu"
INTEL, DISPLAY = "0x8086", "0x0380"  # vendor and class of Intel's data-centre GPUs; its other GPUs have another class
ALIKE = "PCI_BUS_ID"  # value of CUDA_DEVICE_ORDER: device numbers follow the bus even if models differ


NVIDIA_GPUS, NVIDIA_SLICES = "/proc/driver/nvidia/gpus", "/proc/driver/nvidia/capabilities"
DEVICE_FILES = ("nvidia[0-9]*", "kfd", "dri/renderD*", "dxg")  # in /dev, of accelerators


class Core(Struct):
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
    uuid: str = ""  # that the driver reports; empty: unknown
    tile: int | None = None  # index of the tile that counts as a device; None: this is a whole accelerator

    @property
    def name(self) -> str:
        return self.address if self.tile is None else f"{self.address}.{self.tile}"


class Nic(Struct):
    name: str  # name of the device (`mlx5_0`), or of its interface if the device has no name
    interface: str = ""  # the network interface on the same PCI device; empty: none
    address: str = ""  # PCI address
    numa: int | None = None  # the nearest NUMA node; None: unknown
    speed: int = 0  # speed in Gb/s; 0: unknown


def no_topology(path: str) -> Unbound:
    return Unbound(f"{path} does not show which CPUs are of one core")


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
        """A summary that is equal for nodes of the same type: `1 socket, 4 NUMA nodes, 64 cores, 8 amd GPUs`."""
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
        """Returns the distance between two NUMA nodes, as the firmware reports it or a guess."""
        if one == other:
            return 10
        if (known := self.distances.get((one, other))) is not None:
            return known
        sockets = {core.numa: core.socket for core in self.cores}
        return 12 if sockets.get(one) == sockets.get(other) else 32


def read(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> Node:
    """Returns the hardware of the node with this file system; environ decides how CUDA orders GPUs, and Intel tiles."""
    files = _Files(root)
    cores, unbound = _cores(files)
    gpus = _nvidia(files) or _amd(files) or _intel(files, environ)
    models = sorted({gpu.model for gpu in gpus})
    if len(models) > 1 and gpus[0].vendor == "nvidia" and environ.get("CUDA_DEVICE_ORDER") != ALIKE:
        which = f"GPUs of different models ({', '.join(models)}), which CUDA numbers by their speed"
        unbound = unbound or Unbound(f"{which}: set CUDA_DEVICE_ORDER=PCI_BUS_ID")
    return Node(cores, tuple(gpus), _nics(files), _distances(files), unbound)


def device_files() -> list[Path]:
    return [path for pattern in DEVICE_FILES for path in Path("/dev").glob(pattern)]


def is_uncounted(node: Node) -> bool:
    """Returns whether a process without a mask may see more accelerators than `read` has found on this machine."""
    # Slices of MIG are devices, too. A driver makes its files at the first use, or shows its devices nowhere else.
    if node.gpus:
        return any(Path(NVIDIA_SLICES).glob("gpu*/mig/gi*"))
    return bool(device_files()) or any(Path(NVIDIA_GPUS).glob("*"))


class _Files:
    # Paths are strings: pathlib would take most of the time

    def __init__(self, root: Path) -> None:
        self.root = str(root).rstrip("/")

    def text(self, path: str) -> str:
        try:
            with open(f"{self.root}{path}") as file:
                return file.read().strip()
        except (OSError, UnicodeDecodeError):
            return ""

    def names(self, path: str) -> list[str]:
        try:
            with os.scandir(f"{self.root}{path}") as entries:
                return sorted(entry.name for entry in entries)
        except OSError:
            return []

    def cpus(self, path: str) -> tuple[int, ...]:
        try:
            return tuple(sorted(parse_ranges(self.text(path))))
        except ValueError:
            return ()

    def number(self, path: str) -> int | None:
        try:
            return int(self.text(path))
        except ValueError:
            return None

    def value(self, path: str, key: str) -> int | None:
        """Returns the number in a line `KEY NUMBER` of a file; None: it is not there."""
        for line in self.text(path).splitlines():
            found, *rest = [*line.split(), ""]
            if found == key and rest and rest[0].isdecimal():
                return int(rest[0])
        return None

    def target(self, path: str) -> str:
        """Returns the name, without directories, of the file that a link points to; empty: that file does not exist."""
        try:
            return os.path.basename(os.path.realpath(f"{self.root}{path}", strict=True))
        except OSError:
            return ""

    def may_open(self, path: str) -> bool:
        """Returns whether this process may open a device. The kernel checks the device cgroup, too."""
        return os.access(f"{self.root}{path}", os.R_OK | os.W_OK)

    def numa(self, address: str) -> int | None:
        """Returns the nearest NUMA node of a PCI device; None: the firmware does not report it."""
        numa = self.number(f"/sys/bus/pci/devices/{address}/numa_node")
        return None if numa is None or numa < 0 else numa


def _cores(files: _Files) -> tuple[tuple[Core, ...], Unbound | None]:
    # Reads each list of CPUs once
    online = files.cpus(f"{CPUS}/online")
    if not online:
        return (), no_topology(CPUS)
    numa = {
        each: number
        for name in files.names("/sys/devices/system/node")
        if (number := _number(name, "node")) is not None
        for each in files.cpus(f"/sys/devices/system/node/{name}/cpulist")
    }
    known = frozenset(online)
    sockets: dict[int, int] = {}
    caches: dict[int, int] = {}
    found: dict[int, Core] = {}
    for first in online:
        if first in found:
            continue
        folder = f"{CPUS}/cpu{first}"
        about = f"{folder}/topology"  # with the names of new kernels, and of old ones
        siblings = files.cpus(f"{about}/core_cpus_list") or files.cpus(f"{about}/thread_siblings_list")
        if first not in siblings:
            return (), no_topology(about)
        if first not in sockets:
            package = files.cpus(f"{about}/package_cpus_list") or files.cpus(f"{about}/core_siblings_list")
            sockets |= dict.fromkeys(package or siblings, files.number(f"{about}/physical_package_id") or 0)
        if first not in caches:
            shared = files.cpus(f"{folder}/cache/index3/shared_cpu_list") or siblings
            caches |= dict.fromkeys(shared, shared[0])
        cpus = tuple(each for each in siblings if each in known)
        core = Core(cpus, numa.get(first, 0), sockets.get(first, 0), caches.get(first, first))
        found |= dict.fromkeys(cpus, core)
    return tuple(dict.fromkeys(found[each] for each in online)), None


def _number(name: str, prefix: str) -> int | None:
    rest = name.removeprefix(prefix)
    return int(rest) if name.startswith(prefix) and rest.isdecimal() else None


def _distances(files: _Files) -> dict[tuple[int, int], int]:
    # A NUMA node's file has one number for each NUMA node that is online, in their order
    folder = "/sys/devices/system/node"
    nodes = sorted(number for name in files.names(folder) if (number := _number(name, "node")) is not None)
    found: dict[tuple[int, int], int] = {}
    for one in nodes:
        row = files.text(f"{folder}/node{one}/distance").split()
        if len(row) == len(nodes) and all(each.isdecimal() for each in row):
            found |= {(one, other): int(each) for other, each in zip(nodes, row, strict=True)}
    return found


def _nvidia(files: _Files) -> list[Gpu]:
    found = []
    for address in sorted(files.names(NVIDIA_GPUS), key=_place):
        lines = files.text(f"{NVIDIA_GPUS}/{address}/information").splitlines()
        about = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        minor = about.get("Device Minor", "")
        if files.may_open(f"/dev/nvidia{minor}"):
            found.append(Gpu(
                address.lower(), files.numa(address), "nvidia", about.get("Model", ""), about.get("GPU UUID", "")
            ))  # fmt: skip
    return found


def _amd(files: _Files) -> list[Gpu]:
    found = []
    folder = "/sys/class/kfd/kfd/topology/nodes"
    for number in sorted(int(name) for name in files.names(folder) if name.isdecimal()):
        about = dict(re.findall(r"^(\w+) (\d+)$", files.text(f"{folder}/{number}/properties"), re.MULTILINE))
        place, minor = about.get("location_id"), about.get("drm_render_minor")
        if int(about.get("simd_count", 0)) == 0 or place is None or not files.may_open(f"/dev/dri/renderD{minor}"):
            continue  # a CPU, or a GPU of another job
        bus = int(place)
        address = f"{int(about.get('domain', 0)):04x}:{bus >> 8 & 0xFF:02x}:{bus >> 3 & 0x1F:02x}.{bus & 7}"
        uuid = f"GPU-{int(about['unique_id']):016x}" if int(about.get("unique_id", 0)) else ""
        found.append(Gpu(address, files.numa(address), "amd", uuid=uuid))
    return found


def _intel(files: _Files, environ: Mapping[str, str]) -> list[Gpu]:
    # Each tile is a device, unless ZE_FLAT_DEVICE_HIERARCHY=COMPOSITE
    found = []
    for card in files.names("/sys/class/drm"):
        folder = f"/sys/class/drm/{card}"
        if _number(card, "card") is None or files.text(f"{folder}/device/vendor") != INTEL:
            continue
        nodes = [name for name in files.names(f"{folder}/device/drm") if name.startswith("renderD")]
        address = files.target(f"{folder}/device")
        if not files.text(f"{folder}/device/class").startswith(DISPLAY) or not address:
            continue
        if not nodes or not files.may_open(f"/dev/dri/{nodes[0]}"):
            continue
        tiles = [name for name in files.names(f"{folder}/gt") if _number(name, "gt") is not None]  # of the driver i915
        tiles = tiles or [name for name in files.names(f"{folder}/device") if _number(name, "tile") is not None]  # xe
        parts = range(len(tiles)) if len(tiles) > 1 else ()
        if environ.get("ZE_FLAT_DEVICE_HIERARCHY", "FLAT") == "COMPOSITE" or not parts:
            found.append(Gpu(address, files.numa(address), "intel"))
        else:
            found += [Gpu(address, files.numa(address), "intel", tile=tile) for tile in parts]
    return sorted(found, key=lambda gpu: (_place(gpu.address), gpu.tile or 0))


def _place(address: str) -> tuple[int, ...]:
    parts = re.split("[:.]", address)
    return tuple(int(part, 16) for part in parts) if all(re.fullmatch("[0-9a-fA-F]+", part) for part in parts) else ()


def _nics(files: _Files) -> tuple[Nic, ...]:
    # InfiniBand and RoCE devices have their device's name, others that of their interface
    interfaces = {}
    for name in files.names("/sys/class/net"):
        address = files.target(f"/sys/class/net/{name}/device")
        if address and files.text(f"/sys/class/net/{name}/operstate") == "up":  # no bridge, no loopback
            speed = files.number(f"/sys/class/net/{name}/speed") or 0
            interfaces[name] = Nic(name, name, address, files.numa(address), max(0, speed) // 1000)
    found = []
    for name in files.names("/sys/class/infiniband"):
        port = f"/sys/class/infiniband/{name}/ports/1"
        if "ACTIVE" not in files.text(f"{port}/state"):
            continue
        address = files.target(f"/sys/class/infiniband/{name}/device")
        interface = next((each.name for each in interfaces.values() if each.address == address), "")
        interfaces.pop(interface, None)
        rate = re.match(r"\d+", files.text(f"{port}/rate"))
        found.append(Nic(name, interface, address, files.numa(address), int(rate[0]) if rate else 0))
    return tuple(sorted([*found, *interfaces.values()], key=lambda nic: _natural(nic.name)))


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.findall(r"\d+|\D+", name)]


# -- Queries NVIDIA's management library. It creates no CUDA context and starts no thread


def parent_of_slice(uuid: str) -> str | None:
    """Returns the PCI address of the GPU with this MIG slice; None: nvidia-ml-py is not installed, or a query fails."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        slice_ = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        whole = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(slice_)
        about = pynvml.nvmlDeviceGetPciInfo(whole)
        return f"{about.domain:04x}:{about.bus:02x}:{about.device:02x}.0"
    except pynvml.NVMLError:
        return None
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


# -- The memory of this node: what limits this process, what is free, and how often the kernel killed for lack of it


ROOT = Path("/")


class MemoryCgroup(Struct):
    limit: int | None  # in bytes; None: no limit
    peak: int | None  # highest use in bytes; None: the kernel does not report it
    kills: int  # processes of this process's own cgroup that the kernel has killed for lack of memory


# Names of a cgroup's files, and the entry of memory.stat with the file cache that can be dropped, by version
_VERSION_1 = {
    "limit": "memory.limit_in_bytes", "peak": "memory.max_usage_in_bytes", "events": "memory.oom_control",
    "usage": "memory.usage_in_bytes", "cache": "total_inactive_file",
}  # fmt: skip
_VERSION_2 = {
    "limit": "memory.max", "peak": "memory.peak", "events": "memory.events", "usage": "memory.current",
    "cache": "inactive_file",
}  # fmt: skip


def host_kills(root: Path = ROOT) -> int:
    """Returns how many processes the kernel has killed for lack of memory since boot (/proc/vmstat, Linux 4.13)."""
    return _Files(root).value("/proc/vmstat", "oom_kill") or 0


def memory_cgroup(root: Path = ROOT) -> MemoryCgroup:
    """Returns the memory of the nearest cgroup with a memory limit, upwards from this process's own cgroup."""
    files = _Files(root)
    folders, names = _cgroups(files)
    kills = (files.value(f"{folders[0]}/{names['events']}", "oom_kill") or 0) if folders else 0
    for folder in folders:
        limit = files.number(f"{folder}/{names['limit']}")  # `max`: no limit
        if limit is not None and 0 <= limit < 1 << 60:  # version 1 has a huge number for no limit
            return MemoryCgroup(limit, files.number(f"{folder}/{names['peak']}"), kills)
    return MemoryCgroup(None, None, kills)


def free_memory(root: Path = ROOT) -> int | None:
    """Returns the bytes that this node and the cgroups of this process can still give it; None: unknown."""
    found, files = [], _Files(root)
    folders, names = _cgroups(files)
    for folder in folders:
        limit, used = files.number(f"{folder}/{names['limit']}"), files.number(f"{folder}/{names['usage']}")
        if limit is not None and limit >= 0 and used is not None:
            found.append(max(0, limit - used + (files.value(f"{folder}/memory.stat", names["cache"]) or 0)))
    if (available := files.value("/proc/meminfo", "MemAvailable:")) is not None:
        found.append(available * 1024)
    return min(found, default=None)


def _cgroups(files: _Files) -> tuple[list[str], dict[str, str]]:
    # The folders of this process's cgroup and of those above it, of the version that counts memory (man 7 cgroups)
    lines = [[*line.split(":", 2), "", ""] for line in files.text("/proc/self/cgroup").splitlines()]
    for mount, names, own in (
        ("/sys/fs/cgroup/memory", _VERSION_1, (path for _, what, path, *_ in lines if "memory" in what.split(","))),
        ("/sys/fs/cgroup", _VERSION_2, (path for _, what, path, *_ in lines if not what)),
    ):
        for path in own:
            parts = [part for part in path.split("/") if part not in ("", "..")]
            return ["/".join([mount, *parts[:depth]]) for depth in range(len(parts), -1, -1)], names
    return [], _VERSION_2
