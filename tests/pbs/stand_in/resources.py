"""Resources: which there are, how their values are read, and the language of select, place and nodes.

Some faults are found by the command before it calls the server, so that no sequence number is lost over them
(OpenPBS 23.06.06, lib/Libecl): those that say `Resource_List.NAME` and are no unknown resource.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.pbs.stand_in import errors

LONG, SIZE, TIME, TEXT = "long", "size", "time", "text"
# server/resc_def_all and lib/Libattr/master_resc_def_all.xml, less what is of hardware that is gone.
TYPES = {
    "accelerator": TEXT, "accelerator_memory": SIZE, "accelerator_model": TEXT, "aoe": TEXT, "arch": TEXT,
    "cput": TIME, "eoe": TEXT, "file": SIZE, "hbmem": SIZE, "host": TEXT, "max_walltime": TIME, "mem": SIZE,
    "min_walltime": TIME, "mpiprocs": LONG, "naccelerators": LONG, "ncpus": LONG, "ngpus": LONG, "nice": LONG,
    "nodect": LONG, "nodes": TEXT, "ompthreads": LONG, "pcput": TIME, "pmem": SIZE, "pvmem": SIZE, "place": TEXT,
    "select": TEXT, "site": TEXT, "software": TEXT, "vmem": SIZE, "vnode": TEXT, "walltime": TIME,
}  # fmt: skip
OF_CHUNK = frozenset((
    "accelerator", "accelerator_memory", "accelerator_model", "aoe", "arch", "eoe", "hbmem", "host", "mem", "mpiprocs",
    "naccelerators", "ncpus", "ngpus", "ompthreads", "vmem", "vnode",
))  # fmt: skip
ADDED_UP = ("accelerator_memory", "hbmem", "mem", "mpiprocs", "naccelerators", "ncpus", "ngpus", "vmem")
PLACE = re.compile(r"(free|pack|scatter|vscatter)?(:?(excl|exclhost|shared))?(:?group=\w+)?")
UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40, "p": 50}


@dataclass(frozen=True)
class Chunk:
    """A part of a select statement that goes to one node; `items` in the order they were written."""

    items: Mapping[str, str]

    def number(self, resource: str) -> int:
        return int(self.items.get(resource, 0))

    @property
    def mem_kb(self) -> int:
        return size_in_bytes(self.items.get("mem", "0")) // 1024

    @property
    def lines(self) -> int:
        """Lines of the node file: mpiprocs, else one if there are CPUs."""
        return int(self.items.get("mpiprocs", 1 if self.number("ncpus") else 0))

    @property
    def threads(self) -> int:
        return int(self.items.get("ompthreads", self.number("ncpus")))


@dataclass(frozen=True)
class Request:
    """What a job asks for.

    Attributes:
        chunks: one entry per chunk, multiplied out.
        values: Resource_List as qstat shows it, in its order.
    """

    chunks: tuple[Chunk, ...]
    values: Mapping[str, str]

    @property
    def place(self) -> str:
        return self.values.get("place", "free").partition(":")[0]

    @property
    def walltime(self) -> int | None:
        return seconds(self.values["walltime"]) if "walltime" in self.values else None


# -- values


def seconds(text: str) -> int:
    """`1:00:00` or `3600`, as seconds; a fraction counts as one more.

    Raises:
        ValueError: it is no time.
    """
    if not re.fullmatch(r"(\d+:){0,2}\d+(\.\d+)?", text, re.ASCII):
        raise ValueError(text)
    whole, _, fraction = text.partition(".")
    total = 0
    for part in whole.split(":"):
        total = total * 60 + int(part)
    return total + bool(fraction.strip("0"))


def clock(total: int) -> str:
    """Seconds as PBS shows them: 01:00:00, 100:00:00."""
    return f"{total // 3600:02}:{total // 60 % 60:02}:{total % 60:02}"


def size_in_bytes(text: str) -> int:
    """`10mb`, `100`, `2gw` (words of 8 bytes), as bytes.

    Raises:
        ValueError: it is no size.
    """
    match = re.fullmatch(r"(\d+)([kmgtpKMGTP]?)([bwBW]?)", text, re.ASCII)
    if match is None:
        raise ValueError(text)
    return (int(match[1]) << UNITS[match[2].lower()]) * (8 if match[3].lower() == "w" else 1)


def amount(name: str, text: str) -> int:
    """A resource's value as a number, to compare it: seconds, bytes or a count."""
    return seconds(text) if TYPES[name] == TIME else size_in_bytes(text) if TYPES[name] == SIZE else int(text)


def added_sizes(sizes: Sequence[str]) -> str:
    """The sum, in the smallest unit that occurs: 20mb, 200b."""
    units = [re.sub(r"[^kmgtp]", "", size.lower()) for size in sizes]
    unit = min(units, key=lambda one: UNITS[one])
    return f"{sum(map(size_in_bytes, sizes)) >> UNITS[unit]}{unit}b"


def _canonical(name: str, text: str) -> str:
    kind = TYPES.get(name, TEXT)  # what a site has defined is a text
    if kind == LONG:
        if not re.fullmatch(r"[+-]?\d+" if name == "ngpus" else r"\d+", text, re.ASCII):
            raise ValueError(text)
        return str(int(text))
    if kind == TIME:
        return clock(seconds(text))
    if kind == SIZE:
        size_in_bytes(text)
        return text.lower() if text[-1:].lower() in ("b", "w") else f"{text.lower()}b"
    return text


# -- what qsub finds out by itself


def resource_pairs(text: str) -> list[tuple[str, str]]:
    """The value of one -l, `a=1,b=2` (Libcmds/set_resource.c); a blank ends a value as a comma does.

    Raises:
        ValueError: no name where one is due.
    """
    pairs = []
    while text:
        match = re.match(r"\s*([^=,\s]+)[^=,]*(?:=\s*(\"[^\"]*\"|'[^']*'|[^,\s]*)\s*)?", text)
        if match is None:
            raise ValueError(text)
        pairs.append((match[1], (match[2] or "").strip("\"'")))
        text = text[match.end() :]
        if text.startswith(","):
            text = text[1:]
            if not text:
                raise ValueError(text)
    return pairs


def check_values(values: Mapping[str, str]) -> None:
    """Refuse what cannot be read at all, before the server is called.

    Raises:
        PbsError: a value is not of its resource's type.
    """
    for name, text in values.items():
        try:
            if name == "select":
                _check_select(text)
            elif name == "place":
                if not text or not PLACE.fullmatch(text):
                    raise ValueError(text)
            elif name in TYPES and text:
                _canonical(name, text)
        except ValueError:
            raise errors.bad_value(f"Resource_List.{name}") from None


def _check_select(text: str) -> None:
    for part in text.split("+"):
        items = part.split(":")
        if re.fullmatch(r"\d+", items[0], re.ASCII):
            items = items[1:]
        if not part or not all(re.fullmatch(r"\w+=.+", item) for item in items):
            raise ValueError(text)


# -- what the server makes of it


def request(values: Mapping[str, str], known: frozenset[str]) -> Request:
    """The chunks and the whole Resource_List of a job that asks for `values`; `known` names all resources there are.

    Raises:
        PbsError: it cannot be asked for.
    """
    for name in values:
        if name not in known:
            raise errors.unknown_resource(f" Resource_List.{name}")
    asked = {name: _canonical(name, text) for name, text in values.items() if text}
    if "nodes" in asked:
        if "select" in asked or "place" in asked:
            raise errors.nodes_with_select()
        select, place = _select_of_nodes(asked["nodes"], known), "scatter"
    elif "select" in asked:
        for name in asked:
            if name in OF_CHUNK:
                raise errors.not_with_select(name)
        select, place = asked["select"], asked.get("place", "free")
    elif "place" in asked:
        raise errors.place_without_select()
    else:
        wide = {name: text for name, text in asked.items() if name in OF_CHUNK}
        select = "1:" + ":".join(f"{name}={text}" for name, text in sorted({"ncpus": "1", **wide}.items()))
        place = "pack"
    chunks = tuple(_chunks(select, known))
    total = {name: text for name, text in asked.items() if name not in OF_CHUNK}
    for name in ADDED_UP:
        if parts := [chunk.items[name] for chunk in chunks if name in chunk.items]:
            total[name] = added_sizes(parts) if TYPES[name] == SIZE else str(sum(map(int, parts)))
    total |= {"nodect": str(len(chunks)), "place": place, "select": select}
    return Request(chunks, dict(sorted(total.items())))


def _chunks(select: str, known: frozenset[str]) -> list[Chunk]:
    chunks = []
    for part in select.split("+"):
        items = part.split(":")
        count = 1
        if items[0].isdecimal():
            count = int(items.pop(0))
            if count == 0:
                raise errors.bad_value()
        found: dict[str, str] = {}
        for item in items:
            name, _, text = item.partition("=")
            if name not in known:
                raise errors.unknown_resource(f": {name}")
            if name not in OF_CHUNK and name in TYPES:
                raise errors.not_for_select(name)
            if name in found:
                raise errors.twice_in_chunk(name)
            try:
                found[name] = _canonical(name, text)
            except ValueError:
                raise errors.bad_value(f"select.{name}") from None
        chunks += [Chunk({**found, "ncpus": found.get("ncpus", "1")})] * count
    return chunks


def _select_of_nodes(nodes: str, known: frozenset[str]) -> str:
    """`2:ppn=2` as `2:ncpus=2:mpiprocs=2` (lib/Libattr/attr_node_func.c, server/nattr_get_set.c)."""
    made = []
    for part in nodes.split("+"):
        count, *items = part.split(":")
        if not count.isdecimal():
            raise errors.unknown_resource(f": {count}")
        if any(not re.fullmatch(r"ppn=\d+|ncpus=\d+", item, re.ASCII) for item in items):
            raise errors.bad_node_spec()
        cpus = next((item.partition("=")[2] for item in items), "1")
        processes = [f"mpiprocs={cpus}"] if any(item.startswith("ppn=") for item in items) else []
        made.append(":".join([count, f"ncpus={cpus}", *processes]))
    return "+".join(made)
