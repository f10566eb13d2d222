"""Reads one checkpoint into the tensors and objects of a state, on all ranks.

| object | what it gets from a checkpoint |
|---|---|
| a module | its own tensors are filled; the checkpoint must have just these, of the same types and shapes |
| any other | what its state_dict returned at the save, even if it has less now, as a fresh optimizer has |

For the latter, tensors are made after the checkpoint's metadata, so that no optimizer must do a step first (LBFGS needs
a closure for that, and parameters without a gradient have no state). Where an object has the same tensor already, this
one is filled: it may be a DTensor, and needs no more memory.

The protocol is `Stateful` of torch.distributed.checkpoint, which is private in torch 2.4.
"""

from __future__ import annotations

import random
import sys
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from launcher.checkpoint import files
from launcher.checkpoint.agreement import Peers
from launcher.checkpoint.format import (
    MEMORY,
    CheckpointError,
    Manifest,
)
from launcher.checkpoint.state import (
    Content,
    Keys,
    Kind,
    dotted,
    fill_all,
    found_in,
    is_named,
    local_part,
    named_part,
    nested,
)
from launcher.torch_compat import DTensor, with_local

ABSENT = "not in the checkpoint"


@runtime_checkable
class Stateful(Protocol):
    """An object that returns its state, and can load it again."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


class Generator:
    """The state of a generator of random numbers: torch's, Python's or numpy's."""

    def __init__(self, of: Any) -> None:
        self._of = of

    def state_dict(self) -> dict[str, Any]:
        if isinstance(self._of, torch.Generator):
            return {"state": self._of.get_state()}
        return {"state": self._of.getstate() if isinstance(self._of, random.Random) else self._of.bit_generator.state}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        state = state_dict["state"]
        if isinstance(self._of, torch.Generator):
            self._of.set_state(state)
        elif isinstance(self._of, random.Random):
            self._of.setstate(state)
        else:
            self._of.bit_generator.state = state


def stateful(value: Any) -> Stateful | None:
    """Returns the object with a value's state, out of DDP's and torch.compile's wrappers; None: a plain value."""
    numpy = sys.modules.get("numpy")
    if isinstance(value, torch.Generator | random.Random) or (numpy and isinstance(value, numpy.random.Generator)):
        return Generator(value)
    if isinstance(value, DistributedDataParallel):
        return stateful(value.module)
    if isinstance(value, Mapping | Tensor | type) or not isinstance(value, Stateful):
        return None
    return stateful(value._orig_mod) if hasattr(value, "_orig_mod") else value


def objects_in(state: Mapping[Any, Any], path: Keys = ()) -> dict[Keys, Stateful]:
    """Returns the objects in a state, by the keys from the root to each; does not call them."""
    found: dict[Keys, Stateful] = {}
    for key, item in state.items():
        place = (*path, key)
        if isinstance(item, Mapping):
            found |= objects_in(item, place)
        elif (one := stateful(item)) is not None:
            found[place] = one
    return found


def expanded(state: Mapping[Any, Any]) -> tuple[dict[Any, Any], dict[Keys, Stateful]]:
    """Replaces each object in a state by its state_dict; returns the new state, and the objects (`objects_in`)."""
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
    """The state that a checkpoint is loaded into: chooses the tensors to fill, and gives objects their state."""

    def __init__(self, state: Mapping[Any, Any], only: Sequence[str] = ()) -> None:
        self._state, objects = expanded(state)
        content = Content.of(self._state)
        self.tensors = {name: tensor for name, tensor in content.tensors.items() if is_named(name, only)}
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

    def to_fill(
        self, saved: Mapping[str, Kind], paths: Mapping[str, Keys], everyone: Collection[str]
    ) -> dict[str, Tensor]:
        """Returns the tensors to fill, by name. saved: type and shape of the checkpoint's tensors, by name."""
        own = self.tensors
        chosen = {name: tensor for name, tensor in own.items() if self._owner(self.paths[name]) is None}
        for name, (dtype, shape) in saved.items():
            path = paths[name]
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
            elif mine is not None or name not in everyone:
                chosen[name] = torch.empty(shape, dtype=dtype)
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
    return torch.empty(shape, dtype=dtype)


def _counts(groups: list[int]) -> str:
    return " and ".join(map(str, groups)) or "no"


# -- Reading, on all ranks


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


class Opened:
    """A checkpoint while it is read, in steps: `open`, `require_fit`, `read`, `restore`; `open` sets the fields.

    rank_state: None: another number of ranks saved the checkpoint.
    """

    def __init__(
        self,
        path: Path,
        manifest: Manifest,
        wanted: LoadTarget,
        everyone: Collection[str],
        peers: Peers,
        timeout: float,
    ) -> None:
        self._path, self._manifest, self._wanted, self._peers = path, manifest, wanted, peers
        self._everyone = everyone  # names of the tensors of all ranks' states
        self._timeout = timeout
        self._contents = files.Contents({}, {}, {}, {})
        self._saved: dict[str, Kind] = {}  # of what is wanted, by name: type and shape,
        self._paths: dict[str, Keys] = {}  # and keys from the root of the state
        self.tensors: dict[str, torch.Tensor] = {}
        self.rank_state: dict[str, Any] | None = None

    def open(self) -> None:
        """Reads all but the tensors of a sharded checkpoint, chooses those to fill; raises Damaged or CannotRead."""
        if self._manifest.world_size == self._peers.world_size:
            self.rank_state = files.rank_state_of(self._path, self._manifest, self._peers.rank, self._timeout)
        self._choose(files.read_contents(self._path, self._manifest, self._timeout))

    def _choose(self, contents: files.Contents) -> None:
        self._contents = contents
        self._paths = {name: path for name, path in contents.paths.items() if is_named(name, self._wanted.only)}
        self._saved = {name: contents.kinds[name] for name in self._paths}
        self.tensors = self._wanted.to_fill(self._saved, self._paths, self._everyone)

    def loaded(self, passed_over: Sequence[str]) -> Loaded:
        """Returns what `Checkpointer.load` returns, after `open`."""
        manifest, values = self._manifest, named_part(self._contents.values, self._wanted.only)
        return Loaded(
            manifest.step, None if manifest.kind == MEMORY else self._path, manifest.extra, manifest.metrics,
            self.rank_state, manifest.world_size, values, tuple(passed_over),
        )  # fmt: skip

    def require_fit(self, everyone: Collection[str]) -> None:
        """Raises Misfit, which lists all that would not be restored.

        everyone: names of the tensors that all ranks fill, and the top-level keys of all ranks' states.
        """
        only = self._wanted.only
        roots = {name: str(path[0]) for name, path in self._paths.items()}
        roots |= {str(key): str(key) for key in named_part(self._contents.values, only)}
        pickled = [name for name in self._contents.pickled if is_named(name, only)]
        files.refuse(
            self._path,
            [
                *files.misfits(self._saved, self.tensors, roots, everyone),
                *self._wanted.misfits(self._contents.values, self._paths),
                *(f"{name}: {files.PICKLED}" for name in pickled),
            ],
        )

    def read(self) -> list[str]:
        """Fills the tensors, after `require_fit`; returns []; raises Damaged (they don't match) or CannotRead."""
        if self._contents.metadata is not None:
            files.load_tensors(self._path, self._contents.metadata, self.tensors, self._timeout)
        elif self._contents.tensors is not None:
            fill_all(self.tensors, self._contents.tensors)
        return []

    def restore(self) -> None:
        """Gives the objects of the state theirs, after `read`; raises CheckpointError if one does not take it."""
        self._wanted.restore(nested(self.tensors, self._paths, self._contents.values, self._contents.lists))
