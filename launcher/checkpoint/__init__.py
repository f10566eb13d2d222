"""Checkpoints of a training: saved in the background, published atomically, loaded at any number of ranks.

`Checkpointer` saves and loads. `format` and `retention` work without torch; commands use them. It may import worker,
runs and what is below them. Importing this package loads nothing: torch is loaded when one of the names is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from launcher.checkpoint.checkpointer import Checkpointer, Loaded
    from launcher.checkpoint.state import merge

__all__ = ["Checkpointer", "Loaded", "merge"]
_MODULES = {"Checkpointer": "checkpointer", "Loaded": "checkpointer", "merge": "state"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(f"launcher.checkpoint.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
