"""Checkpoints of a training: saved in the background, published atomically, loaded at any number of ranks.

`Checkpointer` saves and loads. `format` and `retention` work without torch; commands use them. It may import worker,
runs and what is below them. Importing this package loads nothing: torch is loaded when one of the names is used.

- `checkpointer`: the public class: `save`, `load`, `wait`; what is passed over when loading, and what `strict` refuses
- `saving`: the steps of one save, local and collective, until it is published
- `staging`: copies of the state that training cannot change while they are written
- `loading`: reads a checkpoint into the tensors of a state, on all ranks
- `format`: names, manifest and checksums of checkpoints on disk; verification
- `retention`: from which checkpoint a run resumes, and which ones are kept; lineages
- `folder`: rank 0's view of the checkpoint folder: lists, publishes, removes
- `files`: the files of a checkpoint: written with checksums, read without executing anything
- `reading`: reads with retries: right, wrong, or unavailable now
- `state`: a state, split into tensors by name and all other values
- `stateful`: objects with `state_dict` and `load_state_dict` in a state
- `replicas`: refuses tensors of one name that differ between ranks
- `agreement`: collective calls of the ranks; an error on one rank is raised on all
- `storage`: reader and writer for torch.distributed.checkpoint's own functions
- `adopting`: a folder of torch.distributed.checkpoint becomes one of our checkpoints
- `inspect`: lists, extracts and exports checkpoints without a process group
- `safetensors`: writes safetensors files
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
