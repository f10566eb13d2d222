"""Checks that tensors of one name are the same on all ranks that have the name, since only one rank saves its tensor.

A tensor that is not a DTensor counts as a replica of the tensors of its name on other ranks. Where that is wrong
(manual tensor parallelism, experts, a sharded optimizer), the tensors of all ranks but one would be lost. So the ranks
compare their tensors at the first save of a process. Names that only some ranks have (pipeline stages) are fine.
"""

from __future__ import annotations

import ctypes
import hashlib
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from launcher.checkpoint.state import local_part
from launcher.formatting import name_ranks
from launcher.torch_compat import DTensor, compute_local_shape_and_global_offset

_PIECE = 1 << 24  # 32-bit words that are hashed at once on a device; the working memory is a few times their size
_ODD = 0x9E3779B97F4A7C15 - (1 << 64)  # factor that spreads the positions of words over 64 bits

# Running statistics of torch's normalisation layers (torch.nn.modules.batchnorm._NormBase) differ between ranks from
# step to step. They are not compared, and any rank's may be saved; DDP, too, broadcasts them (broadcast_buffers).
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")

Offset = tuple[int, ...]


@dataclass(frozen=True)
class Table:
    """A rank's tensors, described so that ranks can compare them.

    Attributes:
        kinds: type and shape of each tensor, by name.
        parts: for each name a hash of this rank's part of the tensor, by the part's offset in the whole tensor. Parts
            that no other rank can have are left out.
    """

    kinds: dict[str, str]
    parts: dict[str, dict[Offset, int]]

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], copies: Mapping[str, Tensor], world_size: int) -> Table:
        """Returns the table of this rank's tensors, with hashes of the parts that other ranks may have as well.

        Args:
            tensors: the tensors by name.
            copies: copies of some of the tensors, to hash in their place, since those tensors may have changed.
            world_size: number of ranks.
        """
        kinds = {name: f"{tensor.dtype} {tuple(tensor.shape)}" for name, tensor in tensors.items()}
        parts = {}
        for name, tensor in tensors.items():
            if not _is_unique(tensor, world_size) and name.rpartition(".")[2] not in STATISTICS:
                parts[name] = {_offset(tensor): hash_of(local_part(copies.get(name, tensor)))}
        return cls(kinds, parts)

    def digest(self) -> str:
        """Returns a hash of the table, to find out cheaply whether all ranks have equal tables."""
        return hashlib.sha256(repr((sorted(self.kinds.items()), sorted(self.parts.items()))).encode()).hexdigest()


def _is_unique(tensor: Tensor, world_size: int) -> bool:
    """Returns whether no other rank can have the same part of a tensor: it is sharded over all ranks."""
    return (
        isinstance(tensor, DTensor)
        and tensor.device_mesh.size() == world_size
        and all(placement.is_shard() for placement in tensor.placements)
    )


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
    """Returns a line for each name under which ranks have different tensors. Pure.

    | ranks that have the name | result |
    |---|---|
    | one | fine: a pipeline stage |
    | several, with the same type and shape, and equal parts at each offset | fine: a replica, or parts of a DTensor |
    | several, with different types or shapes | described, with the type and shape on each rank |
    | several, with different bytes at the same offset | described, with the groups of ranks that agree |

    Args:
        tables: the table of each rank, in order.
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
    """Returns the error text for names under which ranks have different tensors or values, with what to do. Pure.

    Args:
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
    """Merges the values of all ranks that are not tensors. Pure.

    Args:
        values: the values of each group of ranks, in the order of their numbers.
        groups: the group of each rank.

    Returns:
        The merged values, and a line for each name with different values, of which the lowest rank's is taken.
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
