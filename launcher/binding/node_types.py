"""Loads node types: the hardware of nodes with a public layout, from which a dry run shows the binding of ranks.

Each type has a JSON file in `nodes/` with these keys:

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
    """A type of node."""

    name: str  # name of its file, without `.json`
    source: str  # where its layout is published, and which parts of it are not
    node: Node  # its hardware
    allowed: tuple[int, ...]  # the CPUs that a job with the whole node may use


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def require(name: str, key: str) -> None:
    """Checks that a node type of this name exists. `key` is the config key or option with the name, for the error.

    Raises ConfigError: there is no such type.
    """
    if name not in (known := names()):
        raise ConfigError(f"{key}={name}: there is no such type of node.{near(name, known)} Known: {', '.join(known)}")


def load(name: str) -> NodeType:
    """Returns the node type of this name. Raises FileNotFoundError: there is no such type."""
    return of(name, json.loads((FOLDER / f"{name}.json").read_text()))


def of(name: str, about: Mapping[str, Any]) -> NodeType:
    """Returns the node type `name` from `about`, the content of the type's JSON file."""
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
