"""Handles objects with `state_dict` and `load_state_dict` in a state: models, optimizers, data loaders.

The protocol is `Stateful` of torch.distributed.checkpoint, which is private in torch 2.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from launcher.checkpoint.state import Path, merge


@runtime_checkable
class Stateful(Protocol):
    """An object that returns its state, and can load it again."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


def expanded(state: Mapping[Any, Any]) -> tuple[dict[Any, Any], dict[Path, Stateful]]:
    """Replaces each Stateful object in a state by its state_dict.

    Returns:
        The new state, and the objects by the keys from the root to each.
    """
    found: dict[Path, Stateful] = {}

    def expand(value: Any, path: Path) -> Any:
        if isinstance(value, Mapping):
            return {key: expand(item, (*path, key)) for key, item in value.items()}
        if not isinstance(value, Tensor | type) and isinstance(value, Stateful):
            found[path] = value
            return value.state_dict()
        return value

    return {key: expand(item, (key,)) for key, item in state.items()}, found


def restore(objects: Mapping[Path, Stateful], state: Mapping[Any, Any], values: Mapping[Any, Any]) -> None:
    """Calls load_state_dict of each object with its loaded state.

    Args:
        objects: the objects, as `expanded` returns them.
        state: the expanded state; its tensors have been filled already.
        values: the loaded values that are not tensors.
    """
    for path, item in objects.items():
        own: Any = state
        loaded: Any = values
        for key in path:
            own = own[key]
            loaded = loaded.get(key, {}) if isinstance(loaded, Mapping) else {}
        item.load_state_dict(merge(own, loaded))
