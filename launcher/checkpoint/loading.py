"""Reads one checkpoint into the tensors and objects of a state, on all ranks; or without ranks, to show or extract it.

| object | what it gets from a checkpoint |
|---|---|
| a module | its own tensors are filled; the checkpoint must have just these, of the same types and shapes |
| any other | what its state_dict returned at the save, even if it has less now, as a fresh optimizer has |

For the latter, tensors are made after the checkpoint's metadata, so that no optimizer must do a step first. Where an
object has the same tensor already, this one is filled: it may be a DTensor, and needs no more memory.
"""

from __future__ import annotations

import contextlib
import json
import random
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.nn.parallel import DistributedDataParallel

from launcher.checkpoint import format as checkpoints
from launcher.checkpoint import storage
from launcher.checkpoint.collectives import Peers
from launcher.checkpoint.format import CheckpointError, Damaged, Manifest, Misfit
from launcher.checkpoint.state import (
    Content,
    Keys,
    Kind,
    bytes_of,
    dotted,
    fill_all,
    found_in,
    is_named,
    local_part,
    named_part,
    nested,
)
from launcher.errors import near
from launcher.runs import events
from launcher.runs.directory import Events, current_attempt
from launcher.torch_compat import DTensor, with_local
from launcher.worker import shared_with_agent

ABSENT = "not in the checkpoint"
NOT_IN_STATE = "in the checkpoint, not in the state"
ADVICE = (
    "a load restores all that was saved: give the same names, and for a model or an optimizer made anew "
    'give the object itself ({"optimizer": optimizer}) instead of its state_dict(), which may lack tensors to fill; or '
    "name what is to be loaded: load(only=[...])\n"
)


@runtime_checkable
class Stateful(Protocol):  # as of torch.distributed.checkpoint, where it is private in torch 2.4
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


class Generator:
    def __init__(self, get: Callable[[], Any], put: Callable[[Any], object]) -> None:
        self._get, self._put = get, put

    def state_dict(self) -> dict[str, Any]:
        return {"state": self._get()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._put(state_dict["state"])


def stateful(value: Any) -> Stateful | None:
    """Returns the object with a value's state, out of DDP's and torch.compile's wrappers; None: a plain value."""
    if isinstance(value, torch.Generator):
        return Generator(value.get_state, value.set_state)
    if isinstance(value, random.Random):
        return Generator(value.getstate, value.setstate)
    if (numpy := sys.modules.get("numpy")) and isinstance(value, numpy.random.Generator):
        source = value.bit_generator
        return Generator(lambda: _without_arrays(source.state), partial(setattr, source, "state"))
    if isinstance(value, DistributedDataParallel):
        return stateful(value.module)
    if isinstance(value, Mapping | Tensor | type) or not isinstance(value, Stateful):
        return None
    return stateful(value._orig_mod) if hasattr(value, "_orig_mod") else value


def _without_arrays(state: Any) -> Any:
    # What the states of numpy's bit generators have is restored from lists, too
    if isinstance(state, dict):
        return {key: _without_arrays(value) for key, value in state.items()}
    return state.tolist() if hasattr(state, "tolist") else state


def objects_in(state: Mapping[Any, Any], path: Keys = ()) -> dict[Keys, Stateful]:
    """Returns the objects in a state, by the keys from the root to each."""
    found: dict[Keys, Stateful] = {}
    for key, item in state.items():
        place = (*path, key)
        if isinstance(item, Mapping):
            found |= objects_in(item, place)
        elif (one := stateful(item)) is not None:
            found[place] = one
    return found


def expanded(state: Mapping[Any, Any]) -> tuple[dict[Any, Any], dict[Keys, Stateful]]:
    """Returns a state with the state_dict of each object in its place, and the objects (`objects_in`)."""
    found = objects_in(state)

    def expand(value: Any, path: Keys) -> Any:
        if path in found:
            return found[path].state_dict()
        return {key: expand(item, (*path, key)) for key, item in value.items()} if isinstance(value, Mapping) else value

    return expand(state, ()), found


def give(path: Keys, item: Stateful, state: dict[str, Any]) -> None:
    """Calls load_state_dict of the object at `path`; raises CheckpointError if it does not take the state."""
    try:
        if isinstance(item, nn.Module) and (own := _own_state(item, state)) is not None:
            item.load_state_dict(own, assign=True)
        else:
            item.load_state_dict(state)
    except Exception as error:
        raise CheckpointError(
            f"{dotted(path)} ({type(item).__name__}) does not take the state that was saved for it: "
            f"{type(error).__name__}: {error}"
        ) from error
    if isinstance(item, torch.optim.Optimizer):
        _keep_types(item, state)


def _own_state(module: nn.Module, state: Mapping[str, Any]) -> dict[str, Any] | None:
    # The state of a module whose tensors are filled already, made of the module's own parameters and buffers; None if
    # it is not, or something might replace them before they are assigned to the module. Without this, load_state_dict
    # copies each tensor to itself; with a DTensor that takes milliseconds for each shape.
    if (
        type(module).load_state_dict is not nn.Module.load_state_dict
        or torch.__future__.get_swap_module_params_on_conversion()
    ):
        return None
    for part in module.modules():
        hooks = [getattr(hook, "hook", hook) for hook in part._load_state_dict_pre_hooks.values()]
        code = [type(part)._load_from_state_dict.__module__, *(getattr(hook, "__module__", "") for hook in hooks)]
        if not all(name.startswith(("torch.nn.", "torch.distributed.")) for name in code):
            return None
    own: dict[str, Any] = {**dict(module.named_parameters(remove_duplicate=False))}
    own |= dict(module.named_buffers(remove_duplicate=False))
    for name, value in state.items():
        if isinstance(value, Tensor) and not (name in own and _is_same(own[name], value)):
            return None
    found = OrderedDict((name, own.get(name, value)) for name, value in state.items())
    found._metadata = getattr(state, "_metadata", None)  # type: ignore[attr-defined]
    return found


def _is_same(one: Tensor, other: Tensor) -> bool:
    here, there = local_part(one), local_part(other)
    return one.shape == other.shape and here.data_ptr() == there.data_ptr() and here.dtype == there.dtype


def _keep_types(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    # Gives an optimizer's tensors the types that were saved: torch casts them to those of the parameters, so that
    # float32 averages of bfloat16 parameters would lose bits.
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    for number, parameter in zip(numbers, parameters, strict=True):
        mine = optimizer.state.get(parameter, {})
        for name, saved in state["state"].get(number, {}).items():
            if isinstance(saved, Tensor) and isinstance(mine.get(name), Tensor) and mine[name].dtype != saved.dtype:
                mine[name] = saved.to(mine[name].device)


class LoadTarget:
    def __init__(
        self, state: Mapping[Any, Any], only: Sequence[str], accept: Callable[[Loaded], None],
        then: Callable[[Loaded], None],
    ) -> None:  # fmt: skip
        self.accept, self.then = accept, then  # as of `Checkpointer.load`
        self.everyone: Collection[str] = ()  # names of the tensors of all ranks' states
        self.passed_over: list[str] = []  # a line for each newer checkpoint that could not be used
        self.changed = False  # whether tensors of the state may have changed
        self._state, objects = expanded(state)
        content = Content.of(self._state)
        self.tensors = {name: tensor for name, tensor in content.tensors.items() if is_named(name, only)}
        if meta := next((name for name, tensor in self.tensors.items() if tensor.is_meta), None):
            raise TypeError(f"{meta} is on the meta device, and has no values to fill: call to_empty() before load")
        self.paths, self.roots, self.only = content.paths, {str(key) for key in state}, only
        self._objects = {path: item for path, item in objects.items() if is_named(dotted(path), only)}
        self._parameters = {
            path: [each for group in item.param_groups for each in group["params"]]
            for path, item in self._objects.items()
            if isinstance(item, torch.optim.Optimizer)
        }

    def _owner(self, path: Keys) -> Keys | None:
        owner = next((path[:end] for end in range(1, len(path) + 1) if path[:end] in self._objects), None)
        if owner is not None and isinstance(self._objects[owner], nn.Module):
            return owner if str(path[-1]).endswith("_extra_state") else None
        return owner

    def to_fill(self, kinds: Mapping[str, Kind], paths: Mapping[str, Keys]) -> dict[str, Tensor]:
        """Returns the tensors to fill, by name. paths: keys to the checkpoint's tensors that are wanted, by name."""
        own = self.tensors
        chosen = {name: tensor for name, tensor in own.items() if self._owner(self.paths[name]) is None}
        for name, path in paths.items():
            dtype, shape = kinds[name]
            owner = self._owner(path)
            if owner is None:
                continue
            mine = own.get(name)
            if mine is not None and (mine.dtype, tuple(mine.shape)) == (dtype, shape):
                chosen[name] = mine
                continue
            parameters = self._parameters.get(owner)
            index = path[len(owner) + 1] if parameters is not None and len(path) > len(owner) + 1 else None
            if parameters is not None and isinstance(index, int) and path[len(owner)] == "state":
                if index < len(parameters):  # else of another stage of a pipeline, or of nobody
                    chosen[name] = _like(parameters[index], dtype, shape)
            elif mine is not None or name not in self.everyone:
                chosen[name] = torch.empty(shape, dtype=dtype, device="cpu")
        return chosen

    def misfits(self, values: Mapping[Any, Any], paths: Mapping[str, Keys]) -> list[str]:
        """Returns a line for each name in `only` and each object that the checkpoint lacks, or that has other parts."""
        there = {path[:end] for path in paths.values() for end in range(1, len(path) + 1)}
        named = {dotted(path) for path in there}
        lines = [f"{name}: {ABSENT}" for name in self.only if name not in named and not named_part(values, [name])]
        for path, item in self._objects.items():
            if path not in there and found_in(values, path) is None and dotted(path) not in self.only:
                lines.append(f"{dotted(path)}: {ABSENT}")
            elif path in self._parameters:
                saved = found_in(values, (*path, "param_groups"))
                groups = list(saved.values() if isinstance(saved, Mapping) else saved or ())
                before = [len(group.get("params", ())) for group in groups]
                now = [len(group["params"]) for group in cast(torch.optim.Optimizer, item).param_groups]
                if before != now:
                    counts = f"groups of {_counts(before)} parameters in the checkpoint, of {_counts(now)} now"
                    lines.append(f"{dotted(path)}: {counts}")
        return lines

    def restore(self, saved: Mapping[Any, Any]) -> None:
        """Gives each object its part of the saved state; CheckpointError: one does not take it."""
        for path, item in self._objects.items():
            state, before = found_in(saved, path), found_in(self._state, path)
            if hasattr(before, "_metadata"):  # versions of a model's layers, which load_state_dict looks at
                state = OrderedDict(state)
                state._metadata = before._metadata  # type: ignore[attr-defined]
            give(path, item, state)


def _like(parameter: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    if shape and tuple(parameter.shape) == shape:
        if isinstance(parameter, DTensor) and parameter.dtype == dtype:
            return with_local(torch.empty_like(local_part(parameter)), parameter)
        return torch.empty_like(parameter.detach(), dtype=dtype)
    return torch.empty(shape, dtype=dtype, device="cpu")


def _counts(groups: list[int]) -> str:
    return " and ".join(map(str, groups)) or "no"


# -- what a checkpoint contains


@dataclass(frozen=True)
class Contents:
    """All of a checkpoint but what single ranks have, and the tensors in files of torch.distributed.checkpoint."""

    paths: Mapping[str, Keys]  # paths, values, lists: as in `state.Content`
    values: dict[Any, Any]
    lists: Mapping[Keys, str]
    kinds: Mapping[str, Kind]  # type and shape of each tensor, by name
    tensors: Mapping[str, Tensor] | None = None  # of a checkpoint in a single file; None: of another kind
    metadata: Metadata | None = None  # of the other kind

    def fill(self, path: Path, tensors: Mapping[str, Tensor], timeout: float = 0.0) -> None:
        """Fills tensors from the checkpoint in `path`; raises Damaged or CannotRead."""
        if self.metadata is not None:
            storage.load_tensors(path, self.metadata, tensors, timeout)
        elif self.tensors is not None:
            fill_all(tensors, self.tensors)


def read_contents(path: Path, manifest: Manifest, timeout: float = 0.0) -> Contents:
    """Reads a checkpoint, executing nothing in it; raises Damaged or CannotRead."""
    tensors = metadata = None
    try:
        if manifest.kind == checkpoints.SINGLE:
            rest = storage.load_file(path / checkpoints.STATE_FILE, timeout)
            tensors = rest["tensors"]
            kinds = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}
        else:
            metadata = storage.read_metadata(path, timeout)
            kinds = {
                name: (entry.properties.dtype, tuple(entry.size))
                for name, entry in metadata.state_dict_metadata.items()
                if isinstance(entry, TensorStorageMetadata)
            }
            rest = storage.load_file(path / checkpoints.VALUES_FILE, timeout)
        paths = {name: rest["paths"][name] for name in kinds}
        return Contents(paths, rest["values"], rest.get("lists", {}), kinds, tensors, metadata)
    except (KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"{path} holds no state: {error}") from None


def rank_state_of(path: Path, manifest: Manifest, rank: int, timeout: float = 0.0) -> dict[str, Any] | None:
    """Reads what a rank has saved for itself; None: nothing. Raises Damaged or CannotRead."""
    own, of_all = checkpoints.rank_file(rank), checkpoints.RANKS_FILE
    if own in manifest.files:
        return cast(dict[str, Any], storage.load_file(path / own, timeout))
    states = storage.load_file(path / of_all, timeout) if of_all in manifest.files else None
    return states[rank] if states else None


# -- does a checkpoint fit the state?


def refuse(path: Path, lines: list[str]) -> None:
    """Raises Misfit if there are lines about differences from the checkpoint; its text contains the first 20."""
    if lines:
        more = f"\n  and {len(lines) - 20} more" if len(lines) > 20 else ""
        shown = "".join(f"\n  {line}" for line in lines[:20])
        advice = ADVICE if any(line.endswith(NOT_IN_STATE) for line in lines) else ""
        raise Misfit(
            f"{path} does not fit what is trained now:{shown}{more}\n{advice}"
            "continue with the settings it was made with, or start another run (or set another checkpoint.dir)"
        )


# -- reading, on all ranks


@dataclass(frozen=True)
class Loaded:
    """What `Checkpointer.load` returns: all of a checkpoint but its tensors, which `load` has filled in place."""

    step: int  # steps of the run that were done when the checkpoint was saved
    path: Path | None  # folder of the checkpoint; None: copies in memory. extra, metrics: as given to `save`
    extra: dict[str, Any]
    metrics: dict[str, float]
    # this rank's `rank_state`, as given to `save`; None: another number of ranks saved the checkpoint
    rank_state: dict[str, Any] | None
    world_size: int  # number of ranks that saved the checkpoint
    values: dict[Any, Any]  # the state without its tensors; `merge(state, values)` puts both together
    # a line for each newer checkpoint that could not be used: its name, and what is wrong with it
    passed_over: tuple[str, ...] = ()
    on_disk: Manifest | None = None  # with copies in memory: the newest checkpoint, older than they are


class Opened:
    """A checkpoint while it is read, in steps: `open`, `require_fit`, `read`, `restore`."""

    def __init__(self, path: Path, manifest: Manifest, wanted: LoadTarget, peers: Peers, timeout: float) -> None:
        self._path, self._manifest, self._wanted, self._peers = path, manifest, wanted, peers
        self._timeout = timeout
        self._contents = Contents({}, {}, {}, {})
        self._paths: dict[str, Keys] = {}  # keys from the root of the state to each tensor that is wanted
        self.tensors: dict[str, torch.Tensor] = {}
        self.rank_state: dict[str, Any] | None = None  # None: another number of ranks saved the checkpoint

    def open(self) -> None:
        """Reads all but the tensors of a sharded checkpoint, chooses those to fill; raises Damaged or CannotRead."""
        if self._manifest.world_size == self._peers.world_size:
            self.rank_state = rank_state_of(self._path, self._manifest, self._peers.rank, self._timeout)
        self._choose(read_contents(self._path, self._manifest, self._timeout))

    def _choose(self, contents: Contents) -> None:
        self._contents = contents
        self._paths = {name: path for name, path in contents.paths.items() if is_named(name, self._wanted.only)}
        self.tensors = self._wanted.to_fill(contents.kinds, self._paths)

    def loaded(self) -> Loaded:
        manifest, values = self._manifest, named_part(self._contents.values, self._wanted.only)
        path = None if manifest.kind == checkpoints.MEMORY else self._path
        return Loaded(
            manifest.step, path, manifest.extra, manifest.metrics, self.rank_state, manifest.world_size, values,
            tuple(self._wanted.passed_over),
        )  # fmt: skip

    def require_fit(self, everyone: Collection[str]) -> None:
        """Raises Misfit, which lists all that would not be restored.

        everyone: names of the tensors that all ranks fill, and the top-level keys of all ranks' states.
        """
        values, only = self._contents.values, self._wanted.only
        roots = {name: str(path[0]) for name, path in self._paths.items()}
        roots |= {str(key): str(key) for key in named_part(values, only)}
        absent = [root for root in dict.fromkeys(roots.values()) if root not in everyone]
        absent += [name for name, root in roots.items() if root in everyone and name not in everyone]
        lines = [f"{name}: {NOT_IN_STATE}" for name in absent]
        for name, tensor in self.tensors.items():
            if name not in self._paths:
                lines.append(f"{name}: {ABSENT}")
                continue
            dtype, shape = self._contents.kinds[name]
            if dtype != tensor.dtype:
                lines.append(f"{name}: {dtype} in the checkpoint, {tensor.dtype} now")
            if shape != tuple(tensor.shape):
                lines.append(f"{name}: shape {shape} in the checkpoint, {tuple(tensor.shape)} now")
        lines += self._wanted.misfits(values, self._paths)
        refuse(self._path, lines)

    def read(self) -> list[str]:
        """Fills the tensors, after `require_fit`; returns []; raises Damaged (they don't match) or CannotRead."""
        self._contents.fill(self._path, self.tensors, self._timeout)
        return []

    def restore(self) -> None:
        """Gives the objects of the state theirs, after `read`; raises CheckpointError if one does not take it."""
        self._wanted.restore(nested(self.tensors, self._paths, self._contents.values, self._contents.lists))
        self._wanted.then(self.loaded())


# -- without a process group: lists the tensors of a checkpoint, verifies it, returns the whole state, and writes that
#
# `keys` are dotted names (`model.layer.weight`) to read, or prefixes of them (`model`); empty: everything.


# Types of safetensors, whose format (https://github.com/huggingface/safetensors#format) takes a few lines to write
_TYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2", "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint64": "U64",
    "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
_ALIGNMENT = 8  # bytes; alignment of the first tensor, so that the file can be mapped into memory


def entries(contents: Contents) -> list[dict[str, Any]]:
    """Returns the tensors of a checkpoint by name, with `dtype` (`float32`), `shape`, and `shards`, of which each has
    the `rank` that wrote it, its `offset` in the whole tensor, and its `shape`. Raises Damaged."""
    metadata, found = contents.metadata, []
    writers: dict[tuple[str, tuple[int, ...]], int] = {}
    for index, info in () if metadata is None else metadata.storage_data.items():
        if (rank := checkpoints.writer_of(info.relative_path)) is None:
            raise Damaged(f"the metadata names a file that no rank writes: {info.relative_path!r}")
        writers[index.fqn, tuple(index.offset or ())] = rank
    for name, (dtype, shape) in sorted(contents.kinds.items()):
        shards = [{"rank": 0, "offset": (0,) * len(shape), "shape": shape}]
        if metadata is not None:
            chunks = cast(TensorStorageMetadata, metadata.state_dict_metadata[name]).chunks
            shards = [
                {"rank": writers[name, tuple(chunk.offsets)], "offset": (*chunk.offsets,), "shape": (*chunk.sizes,)}
                for chunk in chunks
            ]
        found.append({"name": name, "dtype": _dtype(dtype), "shape": shape, "shards": shards})
    return found


def verify(path: Path) -> list[str]:
    """Returns what is wrong with a checkpoint; empty: it is sound. Reads all of it but the shards of tensors as a load
    does, and compares all checksums. Raises Misfit or CannotRead."""
    try:
        manifest = checkpoints.read(path)
        found = checkpoints.blocks(manifest)
        if problems := checkpoints.wrong_sizes(path, manifest) or checkpoints.wrong_checksums(path, found, 2):
            return problems
        metadata = read_contents(path, manifest).metadata
        needed: dict[str, int] = {}
        for info in () if metadata is None else metadata.storage_data.values():
            needed[info.relative_path] = max(needed.get(info.relative_path, 0), info.offset + info.length)
        sizes = {name: file.size for name, file in manifest.files.items()}
        problems = [
            f"{checkpoints.METADATA_FILE} asks for {least} bytes of {name}, which has {sizes.get(name, 0)}"
            for name, least in needed.items()
            if sizes.get(name, 0) < least
        ]
        for name in manifest.files:
            if name == checkpoints.RANKS_FILE or name.startswith("rank-"):
                storage.load_file(path / name)
    except Damaged as error:
        return [str(error)]
    return problems


def whole(path: Path, manifest: Manifest, keys: Sequence[str] = ()) -> dict[Any, Any]:
    """Returns the state as it was given to `save`, in CPU memory; lists of tensors become dicts by index.

    Raises Damaged (it has changed), CannotRead, or CheckpointError (there is nothing under one of the keys).
    """
    found = [block for block in checkpoints.blocks(manifest) if not block.name.startswith("rank-")]
    if problems := checkpoints.wrong_sizes(path, manifest) or checkpoints.wrong_checksums(path, found, threads=2):
        raise Damaged(f"{path} is damaged: {'; '.join(problems)}")
    contents = read_contents(path, manifest)
    wanted = {name: kind for name, kind in contents.kinds.items() if is_named(name, keys)}
    for key in keys:
        if not any(is_named(name, [key]) for name in wanted) and not named_part(contents.values, [key]):
            guess = near(key, sorted(contents.kinds))
            raise CheckpointError(f"{path.name} has no {key!r}.{guess} `checkpoint inspect` lists what it has")
    tensors = {name: torch.empty(shape, dtype=dtype, device="cpu") for name, (dtype, shape) in wanted.items()}
    contents.fill(path, tensors)
    return nested(tensors, contents.paths, named_part(contents.values, keys), {})


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def save_plain(path: Path, value: Any) -> None:
    """Writes a value by torch.save; raises like `new_file`."""
    with new_file(path):
        storage.save_file(path, value, {})


def save_safetensors(path: Path, state: Mapping[Any, Any], metadata: Mapping[str, str]) -> int:
    """Writes a state's tensors, by dotted name, and text for the header into a new safetensors file; returns their
    number. Raises CheckpointError: the format does not know a tensor's type; or like `new_file`."""
    tensors = Content.of(state).tensors
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    place = 0
    for name, tensor in tensors.items():
        kind = _TYPES.get(_dtype(tensor.dtype))
        if kind is None:
            raise CheckpointError(
                f"{name} is a {tensor.dtype}, which safetensors does not know: extract it as torch.save"
            )
        size = tensor.nbytes
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [place, place + size]}
        place += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with new_file(path), storage.hashed_file(path, {}) as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            stream.write(bytes_of(tensor))
    return len(tensors)


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[None]:
    """Context manager that writes a new private file; after an error no part of it is left. Raises CheckpointError."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, FileExistsError):  # another process has just made it
            path.unlink(missing_ok=True)
        if isinstance(error, OSError | RuntimeError):
            raise CheckpointError(f"{path} cannot be written: {error}") from None
        raise


def report_restored(rank: int, step: int, began: float, *, memory: bool, received: int = 0) -> None:
    """Records on rank 0 that a training continues after `step`; began: when its loading did, by perf_counter()."""
    seconds = round(time.perf_counter() - began, 4)
    # In a file of its own, which is read whole: of the file that has each save only the ends are
    Events(current_attempt() if rank == 0 else None, "restored")(events.Restored(
        step=step, memory=memory, redone=shared_with_agent.redone(step), seconds=seconds, received=received
    ))  # fmt: skip
