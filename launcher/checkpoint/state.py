"""Splits a training's state into tensors by name and all other values, and puts both together again."""

from __future__ import annotations

import hashlib
import io
import json
import operator
import random
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from launcher import bounds, torch_compat
from launcher.checkpoint.format import are_metrics, spread
from launcher.files import run_files
from launcher.torch_compat import DTensor

Path: TypeAlias = tuple[Any, ...]  # keys of nested dicts from the root to a value
Kind: TypeAlias = tuple[torch.dtype, tuple[int, ...]]  # type and shape of a tensor


def has_tensors(value: Any) -> bool:
    """Returns whether a value is a tensor, or contains one in nested dicts, lists or tuples."""
    if isinstance(value, Tensor):
        return True
    if isinstance(value, Mapping):
        return any(map(has_tensors, value.values()))
    return isinstance(value, list | tuple) and any(map(has_tensors, value))


@dataclass(frozen=True)
class Content:
    """A state, split into tensors and other values."""

    # the tensors by dotted name (`model.layer.weight`), which torch.distributed.checkpoint also uses
    tensors: dict[str, Tensor]
    paths: dict[str, Path]  # for each of these names the keys from the root to the tensor
    values: dict[Any, Any]  # the state without its tensors, and without dicts and lists that contained only tensors
    # `list` or `tuple` for the path of each list with tensors, which is a dict by index in the others
    lists: dict[Path, str]

    @classmethod
    def of(cls, state: Mapping[Any, Any]) -> Content:
        """Returns a state split into tensors and other values, with a copy of everything except tensors.

        Raises TypeError: a tensor has no plain bytes (sparse, quantized), or only pickle could restore a value.
        Raises ValueError: two tensors have the same dotted name.
        """
        tensors: dict[str, Tensor] = {}
        paths: dict[str, Path] = {}
        lists: dict[Path, str] = {}
        values = _take_apart(state, (), tensors, paths, lists)
        return cls(tensors, paths, {} if values is _NOTHING else plain(values, "state"), lists)

    @property
    def sharded(self) -> bool:
        """Whether a tensor is sharded over ranks."""
        return any(isinstance(tensor, DTensor) for tensor in self.tensors.values())

    @property
    def size(self) -> int:
        """Bytes of all tensors, including all shards."""
        return sum(size_of(tensor) for tensor in self.tensors.values())

    def digest(self) -> str:
        """Returns a digest that is equal on ranks whose tensors have the same names, types and shapes."""
        lines = (f"{name} {tensor.dtype} {tuple(tensor.shape)}" for name, tensor in sorted(self.tensors.items()))
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()


_NOTHING = object()
# Types that torch.load(weights_only=True) restores as they were.
_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.Size, torch.dtype, torch.device)


def python_number(value: Any) -> Any:
    """Returns a numpy scalar (for example in a learning rate scheduler's state) as a Python number.

    Raises TypeError: the value is not a numpy scalar.
    """
    if type(value).__module__ == "numpy" and hasattr(value, "item") and getattr(value, "shape", None) == ():
        return value.item()
    raise TypeError(f"a {type(value).__module__}.{type(value).__qualname__} is not plain data")


def step_number(step: Any) -> int:
    """Returns a step as a manifest has it; raises TypeError or ValueError if it is no whole number from 0 on."""
    number = int(operator.index(step))
    if not 0 <= number < bounds.FIELD_INTEGERS:
        raise ValueError(f"step {number}: steps are whole numbers from 0 to {bounds.FIELD_INTEGERS - 1}")
    return number


def facts(values: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Returns facts for a manifest as they will be read again; `what`: `extra`, `identity` or `metrics`.

    Raises TypeError: they contain other types than JSON's, or metrics other types than numbers.
    Raises ValueError: they are too large, or nested too deeply.
    """
    try:
        # nested as in the manifest, where they are one level deeper
        found = json.loads(run_files.json_text({what: dict(values)}, bounds.FACTS_BYTES, python_number))[what]
    except TypeError as error:
        raise TypeError(f"{what} must be made of JSON types: {error}") from None
    except ValueError as error:
        raise ValueError(f"{what} could not be read again: {error}. Put what is large into the state") from None
    if what == "metrics" and not are_metrics(found):
        raise TypeError(f"metrics must be numbers by name: {_shown(found)}")
    return dict(found)


def _shown(found: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} is a {type(each).__name__}" for name, each in found.items() if not are_metrics({name: each})
    )


def plain(value: Any, what: str, path: str = "") -> Any:
    """Returns a copy of a value that torch.load(weights_only=True) can restore, with tensors in CPU memory.

    what, path: name of the whole state, and keys from its root to the value, for the error.
    Raises TypeError: only pickle could restore a value; the text contains its type, `what` and `path`.
    """
    if type(value) is int and not -bounds.JSON_INTEGERS < value < bounds.JSON_INTEGERS:
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
    try:
        return python_number(value)
    except TypeError:
        pass
    try:
        return _reread(value)
    except Exception as error:
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise TypeError(
            f"{what} contains what only pickle can restore: {path.lstrip('.') or 'it'} is a {kind}. Give tensors, "
            "numbers, text, lists, dicts, or objects with state_dict and load_state_dict "
            f"({' '.join(str(error).split())[:200]})"
        ) from None


def _plain_key(key: Any, what: str, path: str) -> Any:
    return key if type(key) is str else plain(key, what, f"a key of {path.lstrip('.') or 'it'}")


def _reread(value: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)


def _take_apart(
    value: Any, path: Path, tensors: dict[str, Tensor], paths: dict[str, Path], lists: dict[Path, str]
) -> Any:
    if isinstance(value, Tensor):
        name = dotted(path)
        if value.layout != torch.strided or value.is_quantized:
            raise TypeError(f"{name} is a {value.layout} tensor ({value.dtype}), which has no plain bytes to save")
        if name in tensors:
            raise ValueError(f"two tensors of the state have the name {name}: rename one of them")
        tensors[name], paths[name] = value.detach(), path
        return _NOTHING
    if isinstance(value, Mapping):
        items = [(_plain_key(key, "state", dotted(path)), item) for key, item in value.items()]  # keys go into `paths`
        parts = {key: _take_apart(item, (*path, key), tensors, paths, lists) for key, item in items}
        rest = {key: part for key, part in parts.items() if part is not _NOTHING}
        return rest if rest or not value else _NOTHING
    if has_tensors(value):  # a list or a tuple: as a dict by index, since its tensors are removed
        lists[path] = "tuple" if isinstance(value, tuple) else "list"
        return _take_apart(dict(enumerate(value)), path, tensors, paths, lists)
    return value


def merge(state: Any, values: Any) -> Any:
    """Returns a copy of `state` with the same tensors, and with all other values from `values`.

    state: nested dicts and lists with tensors; objects with a state of their own stay as they are.
    values: loaded values (`Loaded.values`). Values that `values` lacks stay as in `state`; those that only `values` has
        are added.
    """
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
    tensors: Mapping[str, Tensor],
    paths: Mapping[str, Path],
    values: Any = None,
    lists: Mapping[Path, str] | None = None,
) -> dict[Any, Any]:
    """Returns the state in the fields of a `Content`; without `lists`, lists that contained tensors are dicts."""
    tree: dict[Any, Any] = _copied(values) if values else {}
    for name, tensor in tensors.items():
        *above, last = paths[name]
        inner = tree
        for key in above:
            inner = inner.setdefault(key, {})
        inner[last] = tensor
    for path in sorted(lists or {}, key=len, reverse=True):  # the innermost first
        above = found_in(tree, path[:-1])
        if above is not None and path[-1] in above:
            items = (above[path[-1]][index] for index in range(len(above[path[-1]])))
            above[path[-1]] = tuple(items) if lists and lists[path] == "tuple" else list(items)
    return tree


def _copied(value: Any) -> Any:
    return {key: _copied(item) for key, item in value.items()} if isinstance(value, Mapping) else value


def found_in(tree: Any, path: Path) -> Any:
    """Returns the value at a path of nested dicts; None: there is none."""
    for key in path:
        if not isinstance(tree, Mapping) or key not in tree:
            return None
        tree = tree[key]
    return tree


# -- dotted names


def dotted(path: Path) -> str:
    """Returns the name of what is at a path: `model.layer.weight`."""
    return ".".join(map(str, path))


def is_named(name: str, keys: Sequence[str]) -> bool:
    """Returns whether a dotted name is one of the keys or below one; True without keys."""
    return not keys or any(name == key or name.startswith(f"{key}.") for key in keys)


def named_part(value: Any, keys: Sequence[str], path: Path = ()) -> Any:
    """Returns the part of nested values that the dotted names `keys` name; {}: they name nothing there.

    keys: see `is_named`.
    path: keys from the root to `value`.
    """
    if not keys or (path and is_named(dotted(path), keys)):
        return value
    parts: dict[Any, Any] = {}
    if isinstance(value, dict):
        parts = {key: named_part(item, keys, (*path, key)) for key, item in value.items()}
    named = {key: part for key, part in parts.items() if part is not _NOTHING}
    return named if named or not path else _NOTHING


def fill(target: Tensor, whole: Tensor) -> None:
    """Copies the whole tensor `whole` into `target`; if `target` is sharded, only this rank's shard."""
    if isinstance(target, DTensor):
        whole, target = torch_compat.local_part(whole, target), target.to_local()
    target.copy_(whole)


def size_of(tensor: Tensor) -> int:
    """Returns the bytes of a tensor, including all shards."""
    return tensor.numel() * tensor.element_size()


def owned(tensors: Mapping[str, Tensor], index: int, count: int) -> list[str]:
    """Returns the names of the tensors that this rank writes, wholly or its parts.

    Of the ranks that have the same part one writes it, so that all write about the same number of bytes. Each rank
    chooses by itself: the ranks with the same part of a DTensor are known from its mesh and placements.

    tensors: the tensors by name.
    index, count: index of this rank among those with the same tensors, and their number.
    """
    sizes: dict[Any, dict[str, int]] = {}
    for name, tensor in tensors.items():
        sharing: Any = None
        if isinstance(tensor, DTensor):
            sharing = tensor.device_mesh, copied_along(tensor)
        sizes.setdefault(sharing, {})[name] = size_of(tensor)
    mine = set()
    for sharing, some in sizes.items():
        here, holders = (index, count) if sharing is None else replica(*sharing)
        mine |= {name for name, owner in owners(some, holders).items() if owner == here}
    return [name for name in tensors if name in mine]


def copied_along(tensor: DTensor) -> tuple[bool, ...]:
    """Returns for each dimension of a DTensor's mesh whether ranks along it have the same part."""
    return tuple(each.is_replicate() or each.is_partial() for each in tensor.placements)  # a strided shard is no shard


def replica(mesh: DeviceMesh, copied: Sequence[bool]) -> tuple[int, int]:
    """Returns this rank's index among those with the same part of a DTensor (-1: outside of the mesh) and their number.

    mesh, copied: the DTensor's mesh, and `copied_along` of it.
    """
    here = mesh.get_coordinate()
    index, count = 0, 1
    for dim, copies in enumerate(copied):
        if copies:
            index, count = index * mesh.size(dim) + (here[dim] if here else 0), count * mesh.size(dim)
    return index if here else -1, count


def owners(sizes: Mapping[str, int], count: int) -> dict[str, int]:
    """Returns the index of the owner of each tensor, so that all have about the same number of bytes.

    sizes: bytes of each tensor, by name.
    """
    largest_first = sorted(sizes, key=lambda name: (-sizes[name], name))
    return dict(zip(largest_first, spread((sizes[name] for name in largest_first), count), strict=True))


def local_part(tensor: Tensor) -> Tensor:
    """Returns this rank's shard of a DTensor; any other tensor as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
