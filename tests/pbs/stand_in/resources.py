"""Types of resources, the parsing of their values, and the syntax of select, place and nodes (OpenPBS 23.06.06).

qsub itself finds some errors before it calls the server, so that they use up no job number (lib/Libecl): those with the
text `Resource_List.NAME`, except unknown resources.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.pbs.stand_in import errors

LONG, SIZE, TIME, TEXT = "long", "size", "time", "text"
# From server/resc_def_all and lib/Libattr/master_resc_def_all.xml, without resources of obsolete hardware.
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
    """A chunk of a select statement: resources of one node; `items` has their values in the order of the statement."""

    items: Mapping[str, str]

    def number(self, resource: str) -> int:
        return int(self.items.get(resource, 0))

    @property
    def mem_kb(self) -> int:
        return size_in_bytes(self.items.get("mem", "0")) // 1024

    @property
    def lines(self) -> int:
        """The number of lines that the chunk has in the node file: mpiprocs, else one if it has CPUs."""
        return int(self.items.get("mpiprocs", 1 if self.number("ncpus") else 0))

    @property
    def threads(self) -> int:
        return int(self.items.get("ompthreads", self.number("ncpus")))


@dataclass(frozen=True)
class Request:
    """The resources that a job asks for.

    Attributes:
        chunks: the chunks; `2:ncpus=4` is two equal ones.
        values: the Resource_List that qstat shows, in its order.
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
    """Returns a time (`1:00:00` or `3600`) in seconds, rounded up.

    Raises:
        ValueError: the text is no time.
    """
    if not re.fullmatch(r"(\d+:){0,2}\d+(\.\d+)?", text, re.ASCII):
        raise ValueError(text)
    whole, _, fraction = text.partition(".")
    total = 0
    for part in whole.split(":"):
        total = total * 60 + int(part)
    return total + bool(fraction.strip("0"))


def clock(total: int) -> str:
    """Returns seconds as PBS shows them: 01:00:00, 100:00:00."""
    return f"{total // 3600:02}:{total // 60 % 60:02}:{total % 60:02}"


def size_in_bytes(text: str) -> int:
    """Returns a size (`10mb`, `100`, `2gw` in words of 8 bytes) in bytes.

    Raises:
        ValueError: the text is no size.
    """
    match = re.fullmatch(r"(\d+)([kmgtpKMGTP]?)([bwBW]?)", text, re.ASCII)
    if match is None:
        raise ValueError(text)
    return (int(match[1]) << UNITS[match[2].lower()]) * (8 if match[3].lower() == "w" else 1)


def amount(name: str, text: str) -> int:
    """Returns the value of a resource as a number, for comparisons: seconds, bytes or a count."""
    return seconds(text) if TYPES[name] == TIME else size_in_bytes(text) if TYPES[name] == SIZE else int(text)


def added_sizes(sizes: Sequence[str]) -> str:
    """Returns the sum of sizes, in the smallest unit that occurs among them: 20mb, 200b."""
    units = [re.sub(r"[^kmgtp]", "", size.lower()) for size in sizes]
    unit = min(units, key=lambda one: UNITS[one])
    return f"{sum(map(size_in_bytes, sizes)) >> UNITS[unit]}{unit}b"


def _canonical(name: str, text: str) -> str:
    kind = TYPES.get(name, TEXT)  # resources that a site has defined are texts
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


# -- checks of qsub


def resource_pairs(text: str) -> list[tuple[str, str]]:
    """Parses the value of -l, `a=1,b=2`, into (name, value) pairs (Libcmds/set_resource.c). A blank also ends a value.

    Raises:
        ValueError: a name is missing.
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
    """Checks that the values of resources have their types, as qsub does before it calls the server.

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


# -- checks of the server


def request(values: Mapping[str, str], known: frozenset[str]) -> Request:
    """Returns the chunks and the complete Resource_List of a job.

    Args:
        values: the resources that the job asks for.
        known: the names of all resources of the site.

    Raises:
        PbsError: the server refuses a resource, a value or their combination.
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
    """Converts a value of -l nodes to a select statement: `2:ppn=2` -> `2:ncpus=2:mpiprocs=2`.

    The rules are those of lib/Libattr/attr_node_func.c and server/nattr_get_set.c.
    """
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
