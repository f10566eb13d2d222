"""Types of nodes whose layout is public, one file each in `nodes/`: what a dry run can tell of nodes it cannot look at.

A file has: `source`; `sockets`, the lists of CPUs of each; `numa`, the same of each NUMA node; `siblings`, by how much
the numbers of a core's two threads differ (0: it has one); `cache`, how many cores share a last level of cache;
`distances`; `kept`, CPUs that the site keeps for itself, which a job's mask leaves out; `gpus` (vendor, PCI address,
NUMA node, model, tiles) and `nics` (name, interface, PCI address, NUMA node, Gb/s).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.binding.node import Core, Gpu, Nic, Node
from launcher.errors import ConfigError, near
from launcher.units import parse_ranges

FOLDER = Path(__file__).parent / "nodes"


@dataclass(frozen=True)
class NodeType:
    """A type of node.

    Attributes:
        name: of its file.
        source: where its layout is published, and what of it is not.
        node: its description.
        allowed: the CPUs that a job with the whole node may use.
    """

    name: str
    source: str
    node: Node
    allowed: tuple[int, ...]


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def require(name: str, key: str) -> None:
    """Raises ConfigError, which names `key`, unless there is such a type."""
    if name not in (known := names()):
        raise ConfigError(f"{key}={name}: there is no such type of node.{near(name, known)} Known: {', '.join(known)}")


def load(name: str) -> NodeType:
    """Returns the type of this name; FileNotFoundError: there is none."""
    return of(name, json.loads((FOLDER / f"{name}.json").read_text()))


def of(name: str, about: Mapping[str, Any]) -> NodeType:
    """Returns the type that a file describes. Pure."""
    node = Node(_cores(about), _gpus(about), _nics(about), _distances(about))
    everything = {cpu for core in node.cores for cpu in core.cpus}
    kept = parse_ranges(about["kept"]) if about["kept"] else ()
    return NodeType(name, about["source"], node, tuple(sorted(everything.difference(kept))))


def _cores(about: Mapping[str, Any]) -> tuple[Core, ...]:
    numas = {cpu: numa for numa, listed in enumerate(about["numa"]) if listed for cpu in parse_ranges(listed)}
    apart, found = about["siblings"], []
    for socket, listed in enumerate(about["sockets"]):
        mine = sorted(parse_ranges(listed))
        first = [cpu for cpu in mine if not apart or cpu - apart not in mine]
        for place, cpu in enumerate(first):
            cache = first[place // about["cache"] * about["cache"]]
            found.append(Core((cpu, cpu + apart) if apart else (cpu,), numas[cpu], socket, cache))
    return tuple(sorted(found, key=lambda core: core.cpus))


def _gpus(about: Mapping[str, Any]) -> tuple[Gpu, ...]:
    found = []
    for vendor, address, numa, model, *tiles in about["gpus"]:
        parts = range(tiles[0]) if tiles and tiles[0] > 1 else (None,)
        found += [Gpu(address, numa, vendor, model, tile=tile) for tile in parts]
    return tuple(found)


def _nics(about: Mapping[str, Any]) -> tuple[Nic, ...]:
    return tuple(Nic(name or interface, interface, address, numa, speed)
                 for name, interface, address, numa, speed in about["nics"])  # fmt: skip


def _distances(about: Mapping[str, Any]) -> dict[tuple[int, int], int]:
    rows = about.get("distances", ())
    return {(one, other): distance for one, row in enumerate(rows) for other, distance in enumerate(row)}
