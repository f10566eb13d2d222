"""Splits a state into tensors by name and all other values; refuses tensors that differ between ranks."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import io
import json
import operator
import random
import zlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from launcher import io_bounds, torch_compat
from launcher.checkpoint.format import are_metrics, spread
from launcher.files import safe_io
from launcher.formatting import name_ranks
from launcher.torch_compat import DTensor, compute_local_shape_and_global_offset

Keys: TypeAlias = tuple[Any, ...]  # keys of nested dicts from the root to a value
Kind: TypeAlias = tuple[torch.dtype, tuple[int, ...]]  # type and shape of a tensor


def has_tensors(value: Any) -> bool:
    """Returns whether a value is a tensor, or contains one in nested dicts, lists or tuples."""
    if isinstance(value, Tensor):
        return True
    if isinstance(value, Mapping):
        return any(map(has_tensors, value.values()))
    return isinstance(value, list | tuple) and any(map(has_tensors, value))


def size_of(value: Any) -> int:
    """Returns about how many bytes a value of `plain` takes in a file."""
    if isinstance(value, Tensor):
        return value.nbytes
    if isinstance(value, Mapping):
        return sum(size_of(key) + size_of(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return sum(map(size_of, value))
    return len(value) if isinstance(value, str | bytes) else 8


@dataclass
class Content:
    # the tensors by dotted name (`model.layer.weight`), which torch.distributed.checkpoint also uses
    tensors: dict[str, Tensor]
    paths: dict[str, Keys]  # for each of these names the keys from the root to the tensor
    values: dict[Any, Any]  # the state without its tensors, and without dicts and lists that contained only tensors
    # `list` or `tuple` for the path of each list with tensors, which is a dict by index in the others
    lists: dict[Keys, str]

    @classmethod
    def of(cls, state: Mapping[Any, Any]) -> Content:
        """Returns a state split into tensors and other values, with a copy of everything except tensors.

        Raises TypeError (no plain bytes, or only pickle could restore it) or ValueError (two tensors of one name).
        """
        content = cls({}, {}, {}, {})
        values = content._take_apart(state, ())
        content.values = {} if values is _NOTHING else plain(values, "state")
        return content

    def _take_apart(self, value: Any, path: Keys) -> Any:
        if isinstance(value, Tensor):
            name = dotted(path)
            if value.layout != torch.strided or value.is_quantized:
                raise TypeError(f"{name} is a {value.layout} tensor ({value.dtype}), which has no plain bytes to save")
            if value.numel() and any(size > 1 and not value.stride(dim) for dim, size in enumerate(value.shape)):
                raise TypeError(f"{name} is expanded: its elements share memory, and a load cannot fill it: clone() it")
            if name in self.tensors:
                raise ValueError(f"two tensors of the state have the name {name}: rename one of them")
            self.tensors[name], self.paths[name] = value.detach(), path
            return _NOTHING
        if type(value) is Counter:
            return value  # `plain` keeps the type
        if isinstance(value, Mapping):
            items = [(_plain_key(key, "state", dotted(path)), item) for key, item in value.items()]  # go into `paths`
            parts = {key: self._take_apart(item, (*path, key)) for key, item in items}
            rest = {key: part for key, part in parts.items() if part is not _NOTHING}
            return rest if rest or not value else _NOTHING
        if has_tensors(value):  # a list or a tuple: as a dict by index, since its tensors are removed
            self.lists[path] = "tuple" if isinstance(value, tuple) else "list"
            return self._take_apart(dict(enumerate(value)), path)
        return value

    @property
    def rest(self) -> dict[str, Any]:
        """All but the tensors, as it is saved."""
        return {"paths": self.paths, "values": self.values, "lists": self.lists}

    @property
    def sharded(self) -> bool:
        return any(isinstance(tensor, DTensor) for tensor in self.tensors.values())

    @property
    def size(self) -> int:
        """Bytes of all tensors, including all shards."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def digest(self) -> str:
        """Returns a digest that is equal on ranks whose tensors have the same names, types and shapes."""
        lines = (f"{name} {tensor.dtype} {tuple(tensor.shape)}" for name, tensor in sorted(self.tensors.items()))
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()


_NOTHING = object()
# Types that torch.load(weights_only=True) restores as they were.
_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.Size, torch.dtype, torch.device)


def step_number(step: Any) -> int:
    """Returns a step as a manifest has it; raises TypeError or ValueError if it is no whole number from 0 on."""
    number = int(operator.index(step))
    if not 0 <= number < io_bounds.FIELD_INTEGERS:
        raise ValueError(f"step {number}: steps are whole numbers from 0 to {io_bounds.FIELD_INTEGERS - 1}")
    return number


def facts(values: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Returns facts for a manifest as they will be read again. what: `extra`, `identity` or `metrics`.

    Raises TypeError (not JSON's types; metrics: not numbers) or ValueError (too large, nested too deeply).
    """
    try:
        # nested as in the manifest, where they are one level deeper
        found = json.loads(safe_io.json_text({what: dict(values)}, io_bounds.FACTS_BYTES))[what]
    except TypeError as error:
        raise TypeError(f"{what} must be made of JSON types: {error}") from None
    except ValueError as error:
        raise ValueError(f"{what} could not be read again: {error}. Put what is large into the state") from None
    if what == "metrics" and not are_metrics(found):
        wrong = [f"{name} is a {type(each).__name__}" for name, each in found.items() if not are_metrics({name: each})]
        raise TypeError(f"metrics must be numbers by name: {', '.join(wrong)}")
    return dict(found)


def plain(value: Any, what: str, path: str = "") -> Any:
    """Returns a copy that torch.load(weights_only=True) can restore, with tensors in CPU memory; raises TypeError."""
    if type(value) is int and not -io_bounds.JSON_INTEGERS < value < io_bounds.JSON_INTEGERS:
        raise TypeError(f"{what} contains an integer of more than 300 digits: {path.lstrip('.')}")
    if type(value) in _PLAIN:
        return value
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if type(value) in (dict, OrderedDict):
        return type(value)(
            (_plain_key(key, what, path), plain(item, what, f"{path}.{key}")) for key, item in value.items()
        )
    if type(value) in (list, tuple):
        return type(value)(plain(item, what, f"{path}[{index}]") for index, item in enumerate(value))
    with contextlib.suppress(TypeError):
        return safe_io.python_number(value)
    buffer = io.BytesIO()
    try:
        torch.save(value, buffer)
        return torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)
    except Exception as error:
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise TypeError(
            f"{what} contains what only pickle can restore: {path.lstrip('.') or 'it'} is a {kind}. Give tensors, "
            "numbers, text, lists, dicts, or objects with state_dict and load_state_dict "
            f"({' '.join(str(error).split())[:200]})"
        ) from None


def _plain_key(key: Any, what: str, path: str) -> Any:
    return key if type(key) is str else plain(key, what, f"a key of {path.lstrip('.') or 'it'}")


def merge(state: Any, values: Any) -> Any:
    """Returns `state` with its tensors and objects, and all other values from `Loaded.values`, if there."""
    if isinstance(state, Mapping):
        if not isinstance(values, Mapping):
            return dict(state)
        merged = {key: merge(item, values[key]) if key in values else item for key, item in state.items()}
        return merged | {key: item for key, item in values.items() if key not in state}
    if isinstance(state, list | tuple) and isinstance(values, Mapping) and has_tensors(state):
        return type(state)(merge(item, values[index]) if index in values else item for index, item in enumerate(state))
    objects = ("load_state_dict", "bit_generator")  # the latter is of numpy's generators
    kept = isinstance(state, Tensor | torch.Generator | random.Random) or any(hasattr(state, name) for name in objects)
    return state if kept else values


def nested(
    tensors: Mapping[str, Tensor], paths: Mapping[str, Keys], values: Any, lists: Mapping[Keys, str]
) -> dict[Any, Any]:
    """Returns the state in the fields of a `Content`; lists of tensors that `lists` does not have are dicts."""
    tree: dict[Any, Any] = _copied(values)
    for name, tensor in tensors.items():
        *above, last = paths[name]
        inner = tree
        for key in above:
            inner = inner.setdefault(key, {})
        inner[last] = tensor
    for path in sorted(lists, key=len, reverse=True):  # the innermost first
        above = found_in(tree, path[:-1])
        if above is not None and path[-1] in above:
            items = (above[path[-1]][index] for index in range(len(above[path[-1]])))
            above[path[-1]] = tuple(items) if lists[path] == "tuple" else list(items)
    return tree


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping) and type(value) is not Counter:
        return {key: _copied(item) for key, item in value.items()}
    return value


def found_in(tree: Any, path: Keys) -> Any:
    """Returns the value at a path of nested dicts; None: there is none."""
    for key in path:
        if not isinstance(tree, Mapping) or key not in tree:
            return None
        tree = tree[key]
    return tree


# -- dotted names


def dotted(path: Keys) -> str:
    """Returns the name of what is at a path: `model.layer.weight`."""
    return ".".join(map(str, path))


def is_named(name: str, keys: Sequence[str]) -> bool:
    """Returns whether a dotted name is one of the keys or below one; True without keys."""
    return not keys or any(name == key or name.startswith(f"{key}.") for key in keys)


def named_part(value: Any, keys: Sequence[str], path: Keys = ()) -> Any:
    """Returns the part of nested values that dotted names (`is_named`) name; {}: nothing."""
    if not keys or (path and is_named(dotted(path), keys)):
        return value
    parts: dict[Any, Any] = {}
    if isinstance(value, dict):
        parts = {key: named_part(item, keys, (*path, key)) for key, item in value.items()}
    named = {key: part for key, part in parts.items() if part is not _NOTHING}
    return named if named or not path else _NOTHING


def fill_all(targets: Mapping[str, Tensor], wholes: Mapping[str, Tensor]) -> None:
    """Copies whole tensors into those of the same names; if these are sharded, only this rank's shards."""
    with torch.no_grad():
        for name, target in targets.items():
            if isinstance(target, DTensor):
                target.to_local().copy_(torch_compat.local_part(wholes[name], target))
            else:
                target.copy_(wholes[name])


def fill_overlap(target: Tensor, piece: Tensor, offset: tuple[int, ...]) -> int:
    """Copies what a piece at `offset` of a tensor has of `target`'s local part; returns the number of elements."""
    local, start = local_part(target), offset_of(target)
    lows = [max(a, b) for a, b in zip(start, offset, strict=True)]
    highs = [min(a + n, b + m) for a, n, b, m in zip(start, local.shape, offset, piece.shape, strict=True)]
    if any(low >= high for low, high in zip(lows, highs, strict=True)):
        return 0
    here = tuple(slice(low - a, high - a) for low, high, a in zip(lows, highs, start, strict=True))
    there = tuple(slice(low - b, high - b) for low, high, b in zip(lows, highs, offset, strict=True))
    local[here].copy_(piece[there])
    return int(local[here].numel())


def bytes_of(tensor: Tensor) -> memoryview:
    """Returns the bytes of a contiguous tensor in CPU memory, to be read and written."""
    size = tensor.nbytes
    return memoryview((ctypes.c_ubyte * size).from_address(tensor.data_ptr()) if size else bytearray()).cast("B")


def owned(tensors: Mapping[str, Tensor], index: int, count: int) -> list[str]:
    """Returns the names of the tensors that this rank (`index` of `count` with the same) writes, or its parts.

    Of the ranks that have the same part (for a DTensor by its mesh and placements) one writes it, so that all write
    about the same number of bytes.
    """
    sizes: dict[Any, dict[str, int]] = {}
    for name, tensor in tensors.items():
        sharing: Any = None
        if isinstance(tensor, DTensor):
            sharing = tensor.device_mesh, copied_along(tensor)
        sizes.setdefault(sharing, {})[name] = tensor.nbytes
    mine = set()
    for sharing, some in sizes.items():
        here, holders = (index, count) if sharing is None else replica(*sharing)
        largest_first = sorted(some, key=lambda name: (-some[name], name))
        owners = spread((some[name] for name in largest_first), holders)
        mine |= {name for name, owner in zip(largest_first, owners, strict=True) if owner == here}
    return [name for name in tensors if name in mine]


def copied_along(tensor: DTensor) -> tuple[bool, ...]:
    """Returns for each dimension of a DTensor's mesh whether ranks along it have the same part."""
    return tuple(each.is_replicate() or each.is_partial() for each in tensor.placements)  # a strided shard is no shard


def replica(mesh: DeviceMesh, copied: Sequence[bool]) -> tuple[int, int]:
    """Returns this rank's index among those with the same part (-1: outside of the mesh), and their number."""
    here = mesh.get_coordinate()
    index, count = 0, 1
    for dim, copies in enumerate(copied):
        if copies:
            index, count = index * mesh.size(dim) + (here[dim] if here else 0), count * mesh.size(dim)
    return index if here else -1, count


def local_part(tensor: Tensor) -> Tensor:
    """Returns this rank's shard of a DTensor; any other tensor as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


# -- Tensors of one name must be the same on all ranks that have it, since only one of them saves its tensor
#
# A tensor that is not a DTensor counts as a replica of the tensors of its name on other ranks. Where that is wrong
# (manual tensor parallelism, experts, a sharded optimizer), the tensors of all ranks but one would be lost. So the
# ranks compare their tensors at the first save of a process. Names that only some ranks have (pipeline stages) are
# fine.


BUCKETS = 1 << 16  # of names; one sum for each is what ranks exchange to find out which tensors differ
LOOKED_AT = 32  # of the buckets with differences: from these, ranks send hashes of their tensors
_PIECE = 1 << 22  # 32-bit words that are hashed at once on a device, beside a training that may have filled it
_ODD = 0x9E3779B97F4A7C15 - (1 << 64)  # factor that spreads the positions of words over 64 bits

# Running statistics of torch's normalisation layers (torch.nn.modules.batchnorm._NormBase) differ between ranks from
# step to step. They are not compared, and any rank's may be saved; DDP, too, broadcasts them (broadcast_buffers).
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")

Offset = tuple[int, ...]


def is_statistic(name: str) -> bool:
    """Returns whether a tensor is a running statistic of a normalisation layer."""
    return name.rpartition(".")[2] in STATISTICS


@dataclass(frozen=True)
class ReplicaTable:
    """A rank's tensors, described so that ranks can compare them."""

    kinds: dict[str, str]  # type and shape of each tensor, by name
    # for each name the offset of this rank's part in the whole tensor, and a hash of it. Parts that no other rank can
    # have are left out
    parts: dict[str, tuple[Offset, int]]
    # for each DTensor in `parts` this rank's index among those with the same part, and their number
    places: dict[str, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], copies: Mapping[str, Tensor]) -> ReplicaTable:
        """Returns the table of this rank's tensors, with hashes (of their copies) of what others may have too."""
        kinds = {name: f"{tensor.dtype} {tuple(tensor.shape)}" for name, tensor in tensors.items()}
        parts, places = {}, {}
        for name, tensor in tensors.items():
            if isinstance(tensor, DTensor):
                index, count = replica(tensor.device_mesh, copied_along(tensor))
                if index < 0 or count == 1:
                    continue
                places[name] = index, count
            if not is_statistic(name):
                parts[name] = offset_of(tensor), hash_of(local_part(copies.get(name, tensor)), tensor.device)
        return cls(kinds, parts, places)

    def differences(self, index: int, count: int) -> dict[int, int]:
        """Returns a number for each bucket of names; over all ranks they add up to 0 (modulo 1 << 64) if parts match.

        Each of the n ranks with a part adds a hash of it with the rank's index, and subtracts one with the next index.
        So ranks compare by one sum, but for chance. index, count: this rank among those with the same whole tensors.
        """
        sums: dict[int, int] = {}
        for name, part in self.parts.items():
            here, holders = self.places.get(name, (index, count))
            what = f"{name} {self.kinds[name]} {part}"
            change = _number(f"{what} {here}") - _number(f"{what} {(here + 1) % holders}")
            bucket = _number(name) % BUCKETS
            sums[bucket] = (sums.get(bucket, 0) + change) % (1 << 64)
        return sums

    def only(self, buckets: Collection[int], names: Collection[str]) -> ReplicaTable:
        """Returns the part of the table with names that are in some buckets, or among `names`."""
        kinds = {name: kind for name, kind in self.kinds.items() if name in names or _number(name) % BUCKETS in buckets}
        return ReplicaTable(kinds, {name: self.parts[name] for name in kinds if name in self.parts})


def _number(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def unequal_buckets(sums: Mapping[int, int], total: Callable[[Tensor], Tensor]) -> list[int]:
    """Returns the first buckets whose tensors differ between ranks; sums: what this rank's `differences` returned."""
    mine = torch.zeros(BUCKETS, dtype=torch.int64, device="cpu")
    for bucket, value in sums.items():
        mine[bucket] = value - (value >> 63 << 64)  # as a signed number
    return total(mine).nonzero().flatten().tolist()[:LOOKED_AT]


def offset_of(tensor: Tensor) -> Offset:
    """Returns where this rank's part of a tensor begins in the whole tensor, by dimension."""
    if not isinstance(tensor, DTensor):
        return (0,) * tensor.ndim
    return tuple(compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)[1])


def hash_of(tensor: Tensor, device: torch.device | None = None) -> int:
    """Returns a hash of a tensor's bytes; equal for equal bytes on devices of one type. device: of what it copies.

    On devices each 32-bit word is multiplied by an odd number that depends on its position, and all products are added,
    so that nothing is copied to the host. (torch.hash_tensor is 0 for an even number of equal values.)
    """
    data = tensor.detach().contiguous()
    if (device or data.device).type == "cpu":
        return zlib.crc32(bytes_of(data))
    words = data.view(torch.uint8).flatten() if data.ndim else data.reshape(1).view(torch.uint8)
    total = 0
    for start in range(0, len(words), 4 * _PIECE):
        part = words[start : start + 4 * _PIECE]
        piece = torch.nn.functional.pad(part, (0, -len(part) % 4)).view(torch.int32).to(torch.int64)
        places = torch.arange(start // 4, start // 4 + len(piece), device=piece.device).mul_(_ODD).bitwise_or_(1)
        total ^= int(piece.mul_(places).sum().item())
    return total


def replica_conflicts(tables: Sequence[ReplicaTable]) -> list[str]:
    """Returns a line for each name under which several ranks have different types, shapes, or bytes at one offset."""
    lines = []
    for name in dict.fromkeys(name for table in tables for name in table.kinds):
        kinds = _grouped({rank: table.kinds[name] for rank, table in enumerate(tables) if name in table.kinds})
        if len(kinds) > 1:
            lines.append(f"{name}: " + ", ".join(f"{kind} on {name_ranks(who)}" for kind, who in kinds.items()))
            continue
        parts = {rank: table.parts[name] for rank, table in enumerate(tables) if name in table.parts}
        for offset in dict.fromkeys(offset for offset, _ in parts.values()):
            groups = _grouped({rank: hashed for rank, (here, hashed) in parts.items() if here == offset})
            if len(groups) > 1:
                lines.append(f"{name}: other values on each of " + " / ".join(map(name_ranks, groups.values())))
                break
    return lines


def conflict_error(lines: Sequence[str]) -> str:
    """Returns the error text for lines of `conflicts` or `merged_values`, with what to do."""
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
    """Merges the values of groups of ranks that are not tensors; where they differ, the lowest rank's, with a line."""
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
