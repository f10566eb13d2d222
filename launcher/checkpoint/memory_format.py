"""Copies of states in the memory of agents: their format, and which of them are loaded.

An agent with n ranks has one file in memory, with room for 2 + 4n slots. A slot holds one copy of something:

| slots | content | written by |
|---|---|---|
| 0, 1 | replica: state that is the same on all ranks | the agent's first rank |
| 2+4p, 3+4p | own: rank_state, statistics, and shards of tensors, of rank p | that rank |
| 4+4p, 5+4p | peer: a copy of the `own` slot of a rank of another node | rank p, which has received it |

Copies go to the two slots of a pair in turn. A slot is a header, the bytes of the tensors, and an index (a dict, by
torch.save) with a CRC-32 for each block of what is before it. The header is erased first and written last: a slot that
is half written does not exist.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import mmap
import os
import struct
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from launcher.checkpoint.collectives import one_line
from launcher.checkpoint.format import Damaged
from launcher.checkpoint.state import bytes_of, local_part, offset_of
from launcher.checkpoint.storage import load_saved
from launcher.formatting import long_size

AREA = 1 << 46  # bytes of the file for each slot; pages that nobody writes take no memory
HEADER = 1 << 12  # bytes for the header of a slot
ALIGN = 64  # bytes; tensors start at multiples of it
BLOCK = 1 << 26  # bytes that share a checksum
MOST_SHARED = 1 << 37  # bytes of shards that are divided anew from memory rather than from disk
SHARE = 0.007  # of the time of a step: where no core is free a copy costs up to 1.4 times what is measured of it
MOST_FREE = 0.9  # share of a node's free memory that copies may take,
AUTO_FREE = 0.5  # and with checkpoint.memory=auto, which a training may have without knowing
_MAGIC = b"launcher"
_START = struct.Struct("<8sII")  # magic, length and CRC-32 of the header's JSON
WHOLE, SHARDS, SINGLE = "whole", "shards", "single"  # modes: how tensors are divided over ranks
REPLICA, OWN, PEER = "replica", "own", "peer"


@dataclass(frozen=True)
class Header:
    lineage: str  # digest of the checkpoint folder and the training's identity
    mode: str  # how tensors are divided: WHOLE (the same on all ranks), SHARDS (DTensors), SINGLE (a rank's own)
    layout: str  # digest of names, types and shapes of the tensors and, for WHOLE, of all other values
    round: int  # of the attempt, in which it was written
    step: int  # steps of the run that were done
    rank: int  # whose state it is
    world_size: int
    every: int = 1  # steps until the next copy
    size: int = 0  # bytes behind the header
    index: int = 0  # of these, bytes before the index
    crc32: int = 0  # of the index

    @property
    def age(self) -> tuple[int, int]:
        return self.round, self.step

    @property
    def about(self) -> list[Any]:
        """What the index repeats."""
        return [self.lineage, self.round, self.step, self.rank]

    def data(self) -> bytes:
        text = json.dumps(asdict(self)).encode()
        return (_START.pack(_MAGIC, len(text), zlib.crc32(text)) + text).ljust(HEADER, b"\0")

    @classmethod
    def of(cls, data: bytes) -> Header | None:
        """Returns the header in the first HEADER bytes of a slot; None: nothing complete is there; raises Damaged."""
        if not any(data):
            return None
        magic, size, crc32 = _START.unpack_from(data)
        text = data[_START.size : _START.size + size]
        if magic != _MAGIC or size > HEADER - _START.size or zlib.crc32(text) != crc32:
            raise Damaged("its header has changed since it was written")
        return cls(**json.loads(text))


class MemorySlot:
    def __init__(self, file: int, number: int) -> None:
        self._file, self._number = file, number
        self._memory = self._mapped(HEADER)

    def _mapped(self, size: int) -> Tensor:
        self._map = mmap.mmap(self._file, size, offset=self._number * AREA)
        return torch.frombuffer(self._map, dtype=torch.uint8)

    def free(self) -> None:
        """Empties the slot and frees its memory, including what an earlier process has written."""
        start = end = self._number * AREA
        with contextlib.suppress(OSError):  # there is no more data in the file
            while (data := os.lseek(self._file, end, os.SEEK_DATA)) < start + AREA:
                end = os.lseek(self._file, data, os.SEEK_HOLE)
        with contextlib.suppress(OSError):
            self._memory = self._mapped(max(HEADER, end - start))
        self.erase()
        self._map.madvise(mmap.MADV_REMOVE)

    def body(self, size: int) -> Tensor:
        if HEADER + size > AREA:
            raise ValueError(f"{size} bytes are more than a slot can hold ({AREA - HEADER})")
        if len(self._memory) < HEADER + size:  # a larger mapping of the same memory
            self._memory = self._mapped(HEADER + size + min(size, BLOCK))
        return self._memory[HEADER : HEADER + size]

    @property
    def head(self) -> Tensor:
        return self._memory[:HEADER]

    def header(self) -> Header | None:
        """Returns the header; None: the slot is empty, or was being written; raises Damaged."""
        return Header.of(bytes(bytes_of(self.head)))

    def write_header(self, data: bytes) -> None:
        bytes_of(self.head)[:] = data

    def erase(self) -> None:
        self.write_header(bytes(HEADER))

    def buffers(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns room for copies of the tensors (of DTensors: of this rank's shards), by name."""
        offsets, end = _offsets(tensors)
        body = self.body(end)
        return {name: _view(body, offsets[name], local_part(tensor)) for name, tensor in tensors.items()}

    def seal(self, header: Header, tensors: Mapping[str, Tensor], rest: Mapping[str, Any]) -> None:
        """Completes a slot: copies in the tensors that are not in its `buffers` yet, and adds index and header."""
        offsets, end = _offsets(tensors)
        for name, room in self.buffers(tensors).items():
            if room.data_ptr() != (tensor := local_part(tensors[name])).data_ptr():
                room.copy_(tensor)
        where = {
            name: (offsets[name], tensor.dtype, tuple(local_part(tensor).shape), tuple(tensor.shape), offset_of(tensor))
            for name, tensor in tensors.items()
        }
        blob = io.BytesIO()
        torch.save({**rest, "about": header.about, "where": where, "blocks": _checksums(self.body(end))}, blob)
        index = blob.getvalue()
        bytes_of(self.body(end + len(index))[end:])[:] = index
        self.write_header(replace(header, size=end + len(index), index=end, crc32=zlib.crc32(index)).data())


def index_of(body: Tensor, header: Header) -> dict[str, Any]:
    """Returns the index of a copy, without a look at its tensors; raises Damaged."""
    index = bytes(bytes_of(body[header.index :]))
    if zlib.crc32(index) != header.crc32:
        raise Damaged("its index has changed since it was written")
    try:
        found = load_saved(io.BytesIO(index))
    except Exception as error:
        raise Damaged(f"its index cannot be read: {one_line(error)}") from None
    if found["about"] != header.about:
        raise Damaged(f"its index is of another copy: {found['about']}")
    return dict(found)


def sound_index(body: Tensor, header: Header) -> dict[str, Any]:
    """Returns the index of a copy after comparing all checksums; raises Damaged."""
    index = index_of(body, header)
    if index["blocks"] != _checksums(body[: header.index]):
        raise Damaged("its tensors have changed since they were written")
    return index


def tensors_in(body: Tensor, index: Mapping[str, Any]) -> dict[str, Tensor]:
    """Returns the tensors of a copy, by name, as views of its body."""
    return {
        name: _view(body, offset, torch.empty(shape, dtype=dtype, device="meta"))
        for name, (offset, dtype, shape, _, _) in index["where"].items()
    }


def _offsets(tensors: Mapping[str, Tensor]) -> tuple[dict[str, int], int]:
    offsets, end = {}, 0
    for name, tensor in tensors.items():
        offsets[name] = end
        end += -(-local_part(tensor).nbytes // ALIGN) * ALIGN
    return offsets, end


def _view(body: Tensor, offset: int, like: Tensor) -> Tensor:
    return body[offset : offset + like.nbytes].view(like.dtype).view(like.shape)


def _checksums(body: Tensor) -> list[int]:
    return [zlib.crc32(bytes_of(piece)) for piece in body.split(BLOCK)] if len(body) else []


class Pair:
    """The slot `number` and the next one, which take copies of the same thing in turn."""

    def __init__(self, file: int, number: int) -> None:
        self.slots = (MemorySlot(file, number), MemorySlot(file, number + 1))
        self.last = int(age_of(self.slots[1]) > age_of(self.slots[0]))  # the slot that was written last

    @property
    def newest(self) -> MemorySlot:
        return self.slots[self.last]

    def turn(self) -> MemorySlot:
        """Returns the slot for the next copy, which is empty now."""
        self.last = 1 - self.last
        self.newest.erase()
        return self.newest

    def find(self, header: Header) -> MemorySlot:
        """Returns the slot with a copy; raises Damaged: it is not there."""
        for slot in self.slots:
            with contextlib.suppress(Damaged):
                if slot.header() == header:
                    return slot
        raise Damaged("its header has changed since it was written")

    def keep_only(self, age: tuple[int, int] | None, rank: int) -> None:
        """Erases all but one copy of this round and step, this rank's if there is one; the next goes to the other."""
        headers = {number: slot.header() for number, slot in enumerate(self.slots) if age_of(slot) == age}
        kept = min(headers, key=lambda number: (getattr(headers[number], "rank", -1) != rank, number), default=None)
        for number, slot in enumerate(self.slots):
            if number != kept:
                slot.erase()
        self.last = self.last if kept is None else kept


def age_of(slot: MemorySlot) -> tuple[int, int]:
    """Returns round and step of the copy in a slot; (-1, -1): there is none."""
    with contextlib.suppress(Damaged):
        if (header := slot.header()) is not None:
            return header.age
    return -1, -1


# -- Which copies are loaded


@dataclass(frozen=True)
class Held:
    """A copy in the memory of an agent that still runs."""

    holder: int  # rank that can read it
    kind: str  # replica, own or peer
    header: Header


@dataclass(frozen=True)
class Transfer:
    """A copy that one rank needs, unless it holds it already."""

    held: Held
    to: int  # rank
    kind: str  # replica or own: the pair that takes it
    sender: int  # its holder, or a rank that has received it in an earlier transfer

    @property
    def moves(self) -> bool:
        return self.sender != self.to or self.held.kind != self.kind


@dataclass(frozen=True)
class Source:
    """A step that can be loaded from memory, and the copies that make it up."""

    mode: str
    round: int
    step: int
    world_size: int  # number of ranks that had made the copies
    transfers: tuple[Transfer, ...]
    paired: bool  # whether the agent of no rank has the only copy of what is that rank's

    @property
    def moved(self) -> int:
        """Number of copies that one rank sends to another."""
        return sum(each.sender != each.to for each in self.transfers)


def choose(held: Sequence[Held], first_ranks: Sequence[int], least: int) -> Source | None:
    """Returns what to load from memory: of the newest round the highest step, if any is complete.

    A step counts if all copies of it have the same mode and number of ranks, and

    | mode | number of ranks | copies that must be there |
    |---|---|---|
    | whole | as before | a replica anywhere, and each rank's own; all with the same layout |
    | whole | another one | a replica anywhere; all with the same layout |
    | shards | as before | each rank's own |
    | shards | another one | each rank's own; all with the same layout, and not too many (MOST_SHARED) |
    | single | as before | each rank's own |
    | single | another one | it does not count |

    first_ranks: for each rank the first rank of its agent; the ranks of an agent share replicas.
    least: lowest step that counts: that of the newest checkpoint on disk + 1; 0: there is none.
    """
    now = len(first_ranks)
    steps: dict[tuple[int, int], list[Held]] = {}
    for each in held:
        if each.header.step >= least:
            steps.setdefault(each.header.age, []).append(each)
    for (number, step), there in sorted(steps.items(), reverse=True):
        replicas = {each.holder: each for each in there if each.kind == REPLICA}
        parts: dict[int, list[Held]] = {}
        for each in there:
            if each.kind != REPLICA:
                parts.setdefault(each.header.rank, []).append(each)
        if not _is_complete(there, parts, replicas, now):
            continue
        mode, before = there[0].header.mode, there[0].header.world_size
        size = sum(copies[0].header.size for copies in parts.values())
        if mode == SHARDS and before != now and least and size > MOST_SHARED:  # each rank would get all of it
            continue
        transfers = _spread(replicas, sorted(set(first_ranks))) if mode == WHOLE else []
        if before == now or mode != WHOLE:
            for rank, copies in sorted(parts.items()):
                best = min(copies, key=lambda each: (each.holder != rank, each.kind != OWN, each.holder))
                transfers.append(Transfer(best, rank, OWN, best.holder))
        agent = dict(enumerate(first_ranks)).get  # by rank
        paired = all(any(agent(each.holder) != agent(rank) for each in copies) for rank, copies in parts.items())
        return Source(mode, number, step, before, tuple(transfers), paired)
    return None


def _is_complete(there: Sequence[Held], parts: Collection[int], replicas: Collection[int], now: int) -> bool:
    if len({(each.header.mode, each.header.world_size) for each in there}) > 1:
        return False
    mode, before = there[0].header.mode, there[0].header.world_size
    alike = len({each.header.layout for each in there}) == 1
    if mode == WHOLE:
        return alike and bool(replicas) and (before != now or len(parts) == before)
    return len(parts) == before and (before == now or (mode == SHARDS and alike))


def _spread(replicas: Mapping[int, Held], agents: Sequence[int]) -> list[Transfer]:
    # Who has a replica by then sends it on: the time grows with the logarithm of the number of agents that lack it
    transfers = [Transfer(replicas[rank], rank, REPLICA, rank) for rank in agents if rank in replicas]
    first = len(transfers)
    for rank in agents:
        if rank not in replicas:
            sender = transfers[len(transfers) - first * 2 ** int(math.log2(len(transfers) / first))]
            transfers.append(Transfer(sender.held, rank, REPLICA, sender.to))
    return transfers


def interval(blocked: float, whole: float, step: float) -> int:
    """Returns the smallest number of steps between two copies that cost at most SHARE of the time.

    blocked, whole: seconds for which a copy blocks training, and until it is complete; step: of a step without copies.
    """
    return max(1, math.ceil(blocked / (SHARE * step)), math.ceil(whole / step)) if step > 0 else 1


@dataclass(frozen=True)
class Needs:
    """What a rank has to copy, and what its node has for it."""

    node: int  # index of its node
    leads: bool  # whether it is the first rank of its agent
    free: int | None  # bytes that the node can give; None: unknown
    held: int  # bytes that the agent's file has already; 0: the first rank tells them
    tensors: int  # bytes of its tensors, and of its rank_state
    rank_state: int
    pinned: int = 0  # bytes of pinned memory to which those tensors are copied first that are on a GPU
    sharded: bool = False  # whether a tensor is sharded
    difference: int = 0  # the sum over all ranks is 0 if none has other tensors than others under one name

    def own(self, mode: str) -> int:
        return self.rank_state + (0 if mode == WHOLE else self.tensors)


def missing(ranks: Sequence[Needs], mode: str, peer: int, share: float = MOST_FREE) -> str:
    """Returns why copies do not fit into some node's memory; empty: they fit. peer: see `needed`."""
    wanted, held = needed(ranks, mode, peer), dict.fromkeys((each.node for each in ranks), 0)
    for each in ranks:
        held[each.node] += each.held
    known = ((each.node, each.free) for each in ranks if each.free is not None)
    return next(filter(None, (shortage(wanted[node], free + held[node], share) for node, free in known)), "")


def needed(ranks: Sequence[Needs], mode: str, peer: int) -> dict[int, int]:
    """Returns the bytes of memory that each node needs for copies, and for what a save to disk copies beside them.

    | mode | two copies on each node of | once more for a save |
    |---|---|---|
    | whole | the tensors; each rank's rank_state, and that of its peer | a part of the tensors on each rank |
    | others | each rank's tensors and rank_state, and its peer's | each rank's tensors |

    Who copies tensors from a GPU also needs pinned memory for them.
    peer: a rank has copies of the rank that is so many before it; 0: of none.
    """
    found = dict.fromkeys((each.node for each in ranks), 0)
    for rank, each in enumerate(ranks):
        own = each.own(mode) + (ranks[rank - peer].own(mode) if peer else 0)
        saved = max(each.tensors, each.pinned)
        shared = 2 * each.tensors * each.leads + -(-saved // len(ranks)) if mode == WHOLE else saved
        found[each.node] += 2 * own + shared + each.pinned * (each.leads or mode != WHOLE)
    return found


def shortage(needed: int, free: int | None, share: float = MOST_FREE) -> str:
    """Returns why a node has no room for `needed` bytes of copies; empty: it has, or its free memory is unknown."""
    if free is None or needed <= free * share:
        return ""
    shown, most = round(100 * share), round(100 * MOST_FREE)
    fix = "raise mem" if shown == most else f"raise mem, or set checkpoint.memory=1, with which they may take {most} %"
    return f"they need {long_size(needed)} on a node, over {shown} % of the {long_size(free)} that are free: {fix}"
