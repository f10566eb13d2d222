"""Trees of sysfs as nodes of known types have them, built from the files in nodes/, which have these keys:

- `source`: where the layout is published, and which parts of it are not
- `sockets`, `numa`: list of CPUs of each socket and of each NUMA node
- `siblings`: difference of the CPU numbers of a core's two hardware threads; 0: a core has one thread
- `cache`: number of cores that share a last-level cache
- `distances`: for each NUMA node, its distance to each NUMA node; may be absent
- `kept`: CPUs that the site reserves, and that no job may use
- `gpus`: lists of vendor, PCI address, NUMA node, model, and optionally number of tiles
- `nics`: lists of name, interface, PCI address, NUMA node, Gb/s
"""

from __future__ import annotations

import json
import os
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from launcher.binding import hardware
from launcher.binding.hardware import Node
from launcher.formatting import ranges
from launcher.units import parse_ranges

FOLDER = Path(__file__).parent / "nodes"
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))


def description(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return found


def allowed(about: dict[str, Any]) -> list[int]:
    """The CPUs that a job of its own gets there."""
    kept = parse_ranges(about["kept"]) if about["kept"] else ()
    return sorted({*parse_ranges(",".join(about["sockets"]))}.difference(kept))


@cache
def read(name: str) -> Node:
    """What is read of a node of this type, where no variable is set; built once, since a tree has a thousand files."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as root:
        return hardware.read(build(Path(root), description(name)), {})


def build(root: Path, about: dict[str, Any]) -> Path:
    """The tree under a folder."""
    _cpus(root, about)
    for number, gpu in enumerate(about.get("gpus", ())):
        _gpu(root, number, *gpu)
    for nic in about.get("nics", ()):
        _nic(root, *nic)
    return root


def _write(path: Path, text: object) -> None:
    os.makedirs(path.parent, exist_ok=True)
    path.write_text(f"{text}\n")


def _cpus(root: Path, about: dict[str, Any]) -> None:
    cpu = root / "sys/devices/system/cpu"
    _write(cpu / "online", ranges(sorted(parse_ranges(",".join(about["sockets"])))))
    apart = about["siblings"]
    for socket, listed in enumerate(about["sockets"]):
        mine = parse_ranges(listed)
        first = [each for each in mine if not apart or each - apart not in mine]
        for place, each in enumerate(first):
            threads = [each, each + apart] if apart else [each]
            group = first[place // about["cache"] * about["cache"] :][: about["cache"]]
            folder = cpu / f"cpu{each}"
            _write(folder / "topology/core_cpus_list", ranges(threads))
            _write(folder / "topology/package_cpus_list", listed)
            _write(folder / "topology/physical_package_id", socket)
            if each == group[0]:
                shared = sorted({*group, *(other + apart for other in group)})
                _write(folder / "cache/index3/shared_cpu_list", ranges(shared))
            else:  # links for files with the same text: most of a test's time goes into making files
                (folder / "cache").symlink_to(f"../cpu{group[0]}/cache")
            for other in threads[1:]:
                (cpu / f"cpu{other}").symlink_to(folder.name)
    for number, listed in enumerate(about["numa"]):
        folder = root / f"sys/devices/system/node/node{number}"
        _write(folder / "cpulist", listed)
        if about.get("distances"):
            _write(folder / "distance", " ".join(map(str, about["distances"][number])))


def _pci(root: Path, address: str, numa: int) -> Path:
    folder = root / f"sys/bus/pci/devices/{address}"
    _write(folder / "numa_node", numa)
    return folder


def _gpu(root: Path, number: int, vendor: str, address: str, numa: int, model: str = "", tiles: int = 1) -> None:
    folder = _pci(root, address, numa)
    if vendor == "nvidia":
        uuid = f"GPU-{number:08x}-0000-0000-0000-000000000000"
        text = f"Model: \t\t {model}\nIRQ:   \t\t 90\nGPU UUID: \t {uuid}\nDevice Minor: \t {number}"
        _write(root / f"proc/driver/nvidia/gpus/{address}/information", text)
        _write(root / f"dev/nvidia{number}", "")
    elif vendor == "amd":
        bus = int(address[5:7], 16)
        text = f"cpu_cores_count 0\nsimd_count 440\nlocation_id {bus << 8}\ndomain 0\n"
        text += f"drm_render_minor {128 + number}\nunique_id {1000 + number}"
        _write(root / f"sys/class/kfd/kfd/topology/nodes/{4 + number}/properties", text)
        _write(root / f"sys/class/kfd/kfd/topology/nodes/{number % 4}/properties", "cpu_cores_count 16\nsimd_count 0")
        _write(root / f"dev/dri/renderD{128 + number}", "")
    else:
        _write(folder / "vendor", "0x8086")
        _write(folder / "class", "0x038000")
        _write(folder / f"drm/renderD{128 + number}/uevent", "")
        _write(root / f"dev/dri/renderD{128 + number}", "")
        card = root / f"sys/class/drm/card{number}"
        for tile in range(tiles):
            _write(card / f"gt/gt{tile}/id", tile)
        (card / "device").symlink_to(folder)


def _nic(root: Path, name: str, interface: str, address: str, numa: int, speed: int) -> None:
    folder = _pci(root, address, numa)
    if name:
        port = root / f"sys/class/infiniband/{name}/ports/1"
        _write(port / "state", "4: ACTIVE")
        _write(port / "rate", f"{speed} Gb/sec (4X HDR)")
        (root / f"sys/class/infiniband/{name}/device").symlink_to(folder)
    if interface:
        _write(root / f"sys/class/net/{interface}/operstate", "up")
        _write(root / f"sys/class/net/{interface}/speed", speed * 1000)
        (root / f"sys/class/net/{interface}/device").symlink_to(folder)
