"""What several ranks hold under one name must be the same: only one of them writes it.

A tensor that is no DTensor is taken for a replica of those of that name on other ranks. Where it is not (tensor
parallelism by hand, experts, a sharded optimizer) all but one rank's would be lost, so ranks compare what they hold at
the first save of a process. Names that only some ranks have (stages of a pipeline) are fine.
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

_PIECE = 1 << 24  # elements of a tensor on a device that are hashed at once: the working memory is a few times that
_ODD = 0x9E3779B97F4A7C15 - (1 << 64)  # spreads the places of elements over 64 bits

# Running statistics of torch's normalisation layers (torch.nn.modules.batchnorm._NormBase): each rank has its own
# between two steps, and those of rank 0 count, as in DDP (broadcast_buffers).
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")

Offset = tuple[int, ...]


@dataclass(frozen=True)
class Table:
    """What a rank holds.

    Attributes:
        kinds: type and shape of each tensor, by name.
        parts: by name and place in the whole a hash of what this rank has of it; parts of which there is one only are
            left out.
    """

    kinds: dict[str, str]
    parts: dict[str, dict[Offset, int]]

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], copies: Mapping[str, Tensor], world_size: int) -> Table:
        """Hashes what other ranks may have as well; reads each tensor once.

        Args:
            tensors: by name.
            copies: of some of them, which may have changed since.
            world_size: ranks of the job.
        """
        kinds = {name: f"{tensor.dtype} {tuple(tensor.shape)}" for name, tensor in tensors.items()}
        parts = {}
        for name, tensor in tensors.items():
            if not _is_unique(tensor, world_size) and name.rpartition(".")[2] not in STATISTICS:
                parts[name] = {_offset(tensor): hash_of(local_part(copies.get(name, tensor)))}
        return cls(kinds, parts)

    def digest(self) -> str:
        """Equal on ranks that hold the same."""
        return hashlib.sha256(repr((sorted(self.kinds.items()), sorted(self.parts.items()))).encode()).hexdigest()


def _is_unique(tensor: Tensor, world_size: int) -> bool:
    """Whether no other rank can have the same part of it."""
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
    """Of the tensor's bytes; the same for the same bytes on the same kind of device.

    On CPUs CRC-32. Elsewhere a sum of all 32-bit words, each times an odd number that depends on its place, so that the
    tensor need not be copied. (torch.hash_tensor is no help: it is 0 for any tensor of an even number of equal values.)
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
    """Names under which ranks hold different things, in words. Pure.

    | ranks that have the name | |
    |---|---|
    | one of them only | fine: a stage of a pipeline |
    | several, the same type and shape, and equal parts at the same place | fine: a replica, or a part of a DTensor |
    | several, another type or shape | named, with what each has |
    | several, other bytes at the same place | named, with who has the same |
    """
    lines = []
    for name in dict.fromkeys(name for table in tables for name in table.kinds):
        kinds = _grouped({rank: table.kinds[name] for rank, table in enumerate(tables) if name in table.kinds})
        if len(kinds) > 1:
            lines.append(f"{name}: " + ", ".join(f"{kind} on {name_ranks(who)}" for kind, who in kinds.items()))
            continue
        parts = {rank: table.parts.get(name, {}) for rank, table in enumerate(tables)}
        for place in dict.fromkeys(place for known in parts.values() for place in known):
            held = {rank: known[place] for rank, known in parts.items() if place in known}
            if len(groups := _grouped(held)) > 1:
                lines.append(f"{name}: other values on each of " + " / ".join(map(name_ranks, groups.values())))
                break
    return lines


def refusal(lines: Sequence[str]) -> str:
    """The error for these conflicts, with what to do. Pure."""
    more = f"\n  and {len(lines) - 20} more" if len(lines) > 20 else ""
    return (
        "ranks hold different things under one name, and only one rank's would be saved:"
        + "".join(f"\n  {line}" for line in lines[:20])
        + more
        + "\nMake a divided tensor a DTensor; give what is a rank's own to rank_state, or a name of its own on each "
        'rank (f"expert{rank}"); make equal what should be equal. If any of them will do (the statistics of a batch '
        "norm of your own under DDP), set checkpoint.check_replicas=false"
    )


def merged_values(values: Sequence[Mapping[Any, Any]]) -> tuple[dict[Any, Any], list[str]]:
    """What is no tensor, of all ranks together; and where they differ, in words. Pure."""
    whole: dict[Any, Any] = {}
    lines: dict[str, list[int]] = {}

    def add(into: dict[Any, Any], new: Mapping[Any, Any], rank: int, path: str) -> None:
        for key, value in new.items():
            name = f"{path}{key}"
            if key not in into:
                into[key] = value
            elif isinstance(into[key], dict) and isinstance(value, Mapping):
                into[key] = dict(into[key])
                add(into[key], value, rank, f"{name}.")
            elif repr(into[key]) != repr(value):  # NaN is equal to itself here
                lines.setdefault(name, []).append(rank)

    for rank, each in enumerate(values):
        add(whole, each, rank, "")
    told = [f"{name}: another value on {name_ranks(ranks)} than on lower ones" for name, ranks in lines.items()]
    return whole, told


def _grouped(held: Mapping[int, Any]) -> dict[Any, list[int]]:
    groups: dict[Any, list[int]] = {}
    for rank, value in held.items():
        groups.setdefault(value, []).append(rank)
    return groups
