"""Checks that tensors of one name are the same on all ranks that have the name, since only one rank saves its tensor.

A tensor that is not a DTensor counts as a replica of the tensors of its name on other ranks. Where that is wrong
(manual tensor parallelism, experts, a sharded optimizer), the tensors of all ranks but one would be lost. So the ranks
compare their tensors at the first save of a process. Names that only some ranks have (pipeline stages) are fine.
"""

from __future__ import annotations

import ctypes
import hashlib
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from launcher.checkpoint.state import copied_along, local_part, replica
from launcher.formatting import name_ranks
from launcher.torch_compat import DTensor, compute_local_shape_and_global_offset

BUCKETS = 1 << 16  # of names; one sum for each is what ranks exchange to find out which tensors differ
LOOKED_AT = 32  # of the buckets with differences: from these, ranks send hashes of their tensors
_PIECE = 1 << 24  # 32-bit words that are hashed at once on a device; the working memory is a few times their size
_ODD = 0x9E3779B97F4A7C15 - (1 << 64)  # factor that spreads the positions of words over 64 bits

# Running statistics of torch's normalisation layers (torch.nn.modules.batchnorm._NormBase) differ between ranks from
# step to step. They are not compared, and any rank's may be saved; DDP, too, broadcasts them (broadcast_buffers).
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")

Offset = tuple[int, ...]


@dataclass(frozen=True)
class Table:
    """A rank's tensors, described so that ranks can compare them."""

    kinds: dict[str, str]  # type and shape of each tensor, by name
    # for each name a hash of this rank's part of the tensor, by the part's offset in the whole tensor. Parts that no
    # other rank can have are left out
    parts: dict[str, dict[Offset, int]]
    # for each DTensor in `parts` this rank's index among those with the same part, and their number
    places: dict[str, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], copies: Mapping[str, Tensor]) -> Table:
        """Returns the table of this rank's tensors, with hashes of the parts that other ranks may have as well.

        tensors: the tensors by name.
        copies: copies of some of the tensors, to hash in their place, since those tensors may have changed.
        """
        kinds = {name: f"{tensor.dtype} {tuple(tensor.shape)}" for name, tensor in tensors.items()}
        parts, places = {}, {}
        for name, tensor in tensors.items():
            if isinstance(tensor, DTensor):
                index, count = replica(tensor.device_mesh, copied_along(tensor))
                if index < 0 or count == 1:
                    continue
                places[name] = index, count
            if name.rpartition(".")[2] not in STATISTICS:
                parts[name] = {_offset(tensor): hash_of(local_part(copies.get(name, tensor)))}
        return cls(kinds, parts, places)

    def differences(self, index: int, count: int) -> dict[int, int]:
        """Returns a number for each bucket of names. Over all ranks these add up to 0 (modulo 1 << 64) if all that have
        a part have the same one, and else, but for chance, to something else. So ranks compare by one sum.

        Each of the n ranks with a part adds a hash of it with the rank's index, and subtracts one with the next index.

        index, count: index of this rank among those with the same whole tensors, and their number.
        """
        sums: dict[int, int] = {}
        for name, parts in self.parts.items():
            here, holders = self.places.get(name, (index, count))
            for part in parts.items():
                what = f"{name} {self.kinds[name]} {part}"
                change = _number(f"{what} {here}") - _number(f"{what} {(here + 1) % holders}")
                bucket = _number(name) % BUCKETS
                sums[bucket] = (sums.get(bucket, 0) + change) % (1 << 64)
        return sums

    def only(self, buckets: Collection[int], names: Collection[str]) -> Table:
        """Returns the part of the table with names that are in some buckets, or among `names`."""
        kinds = {name: kind for name, kind in self.kinds.items() if name in names or _number(name) % BUCKETS in buckets}
        return Table(kinds, {name: self.parts[name] for name in kinds if name in self.parts})


def _number(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def unequal(sums: Mapping[int, int], total: Callable[[Tensor], Tensor]) -> list[int]:
    """Returns the first buckets of names in which ranks have different parts, from `Table.differences` of each rank."""
    mine = torch.zeros(BUCKETS, dtype=torch.int64)
    for bucket, value in sums.items():
        mine[bucket] = value - (value >> 63 << 64)  # as a signed number
    return total(mine).nonzero().flatten().tolist()[:LOOKED_AT]


def _offset(tensor: Tensor) -> Offset:
    if not isinstance(tensor, DTensor):
        return (0,) * tensor.ndim
    return tuple(compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)[1])


def hash_of(tensor: Tensor) -> int:
    """Returns a hash of a tensor's bytes; equal for equal bytes on the same type of device.

    On the CPU the hash is CRC-32. On other devices each 32-bit word is multiplied by an odd number that depends on its
    position, and all products are added, so that the tensor need not be copied to the host. (torch.hash_tensor would
    not do: it is 0 for every tensor of an even number of equal values.)
    """
    data = tensor.detach().contiguous()
    if data.is_cpu:
        size = data.numel() * data.element_size()
        return zlib.crc32((ctypes.c_char * size).from_address(data.data_ptr())) if size else 0
    words = data.view(torch.uint8).flatten() if data.ndim else data.reshape(1).view(torch.uint8)
    words = torch.nn.functional.pad(words, (0, -len(words) % 4)).view(torch.int32)
    total = 0
    for start in range(0, len(words), _PIECE):
        piece = words[start : start + _PIECE].to(torch.int64)
        places = torch.arange(start, start + len(piece), device=piece.device).mul_(_ODD).bitwise_or_(1)
        total ^= int((piece * places).sum().item())
    return total


def conflicts(tables: Sequence[Table]) -> list[str]:
    """Returns a line for each name under which ranks have different tensors.

    | ranks that have the name | result |
    |---|---|
    | one | fine: a pipeline stage |
    | several, with the same type and shape, and equal parts at each offset | fine: a replica, or parts of a DTensor |
    | several, with different types or shapes | described, with the type and shape on each rank |
    | several, with different bytes at the same offset | described, with the groups of ranks that agree |
    """
    lines = []
    for name in dict.fromkeys(name for table in tables for name in table.kinds):
        kinds = _grouped({rank: table.kinds[name] for rank, table in enumerate(tables) if name in table.kinds})
        if len(kinds) > 1:
            lines.append(f"{name}: " + ", ".join(f"{kind} on {name_ranks(who)}" for kind, who in kinds.items()))
            continue
        parts = {rank: table.parts.get(name, {}) for rank, table in enumerate(tables)}
        for offset in dict.fromkeys(offset for known in parts.values() for offset in known):
            hashes = {rank: known[offset] for rank, known in parts.items() if offset in known}
            if len(groups := _grouped(hashes)) > 1:
                lines.append(f"{name}: other values on each of " + " / ".join(map(name_ranks, groups.values())))
                break
    return lines


def conflict_error(lines: Sequence[str]) -> str:
    """Returns the error text for names under which ranks have different tensors or values, with what to do.

    lines: a line for each such name, from `conflicts` or `merged_values`.
    """
    more = f"\n  and {len(lines) - 20} more" if len(lines) > 20 else ""
    return (
        "ranks hold different things under one name, and only one rank's would be saved:"
        + "".join(f"\n  {line}" for line in lines[:20])
        + more
        + "\nMake a divided tensor a DTensor; give what is a rank's own to rank_state, or a name of its own on each "
        'rank (f"expert{rank}"); make equal what should be equal. If any of them will do (the statistics of a batch '
        "norm of your own under DDP), set checkpoint.check_replicas=false"
    )


def merged_values(values: Mapping[int, Mapping[Any, Any]], groups: Sequence[int]) -> tuple[dict[Any, Any], list[str]]:
    """Merges the values of all ranks that are not tensors.

    values: the values of each group of ranks, in the order of their numbers.
    Returns the merged values, and a line for each name with different values, of which the lowest rank's is taken.
    """
    whole: dict[Any, Any] = {}
    lines: dict[str, list[int]] = {}

    def add(into: dict[Any, Any], new: Mapping[Any, Any], group: int, path: str) -> None:
        for key, value in new.items():
            name = f"{path}{key}"
            if key not in into:
                into[key] = value
            elif isinstance(into[key], dict) and isinstance(value, Mapping):
                into[key] = dict(into[key])
                add(into[key], value, group, f"{name}.")
            elif repr(into[key]) != repr(value):  # NaN is equal to itself here
                lines.setdefault(name, []).append(group)

    for group, each in values.items():
        add(whole, each, group, "")
    members = _grouped(dict(enumerate(groups)))
    ranks = {name: sorted(rank for group in who for rank in members[group]) for name, who in lines.items()}
    return whole, [f"{name}: another value on {name_ranks(who)} than on lower ones" for name, who in ranks.items()]


def _grouped(of_ranks: Mapping[int, Any]) -> dict[Any, list[int]]:
    groups: dict[Any, list[int]] = {}
    for rank, value in of_ranks.items():
        groups.setdefault(value, []).append(rank)
    return groups
