"""Objects with a `state_dict` and a `load_state_dict` in a state: models, optimizers, data loaders.

The protocol is torch.distributed.checkpoint's `Stateful`, which torch 2.4 has only privately.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from launcher.checkpoint.state import Path, merge


@runtime_checkable
class Stateful(Protocol):
    """An object with a state of its own."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


def expanded(state: Mapping[Any, Any]) -> tuple[dict[Any, Any], dict[Path, Stateful]]:
    """The state with each object replaced by its state_dict, and the objects by the keys from the root to each."""
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
    """Loads each object's state.

    Args:
        objects: see `expanded`.
        state: the expanded state, whose tensors have been filled.
        values: the loaded values that are no tensors.
    """
    for path, item in objects.items():
        own: Any = state
        loaded: Any = values
        for key in path:
            own = own[key]
            loaded = loaded.get(key, {}) if isinstance(loaded, Mapping) else {}
        item.load_state_dict(merge(own, loaded))
