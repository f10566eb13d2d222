"""Checkpoints of a training: saved in the background, published atomically, loaded at any number of ranks.

`Checkpointer` saves and loads. It may import worker, runs and the layers below them. Commands use `format` and
`retention`, which do not import torch. Importing this package does not load torch either; the first use of one of its
names does.

- `checkpointer`: `Checkpointer`, the public class: `save`, `load`, `wait`; which checkpoints `load` skips or refuses
- `resumable`: `Resumable`: what a training loop needs to be stopped and resumed, given once; default generators
- `saving`: the steps of one save, local and collective, from copies of the state to the published checkpoint
- `staging`: takes a rank's state, for a checkpoint or for memory: copies of its tensors, by a thread
- `loading`: reads one checkpoint into the tensors and objects of a state, on all ranks
- `format`: the format on disk: names of files and folders, manifest, checksums; verifies a checkpoint
- `folder`: the checkpoint folder: lists, publishes, quarantines and removes checkpoints; which of them are kept
- `files`: writes a checkpoint's files with checksums; reads them without executing anything; does a state fit them
- `reading`: reads with retries; tells a damaged file from one that cannot be read now
- `state`: splits a state into tensors by name and all other values; refuses tensors that differ between ranks
- `memory`: copies of the state in memory that outlives the ranks: making and loading them, on all ranks
- `copies`: the format of these copies; which of them are loaded
- `agreement`: collective calls of the ranks; an error on one rank is raised on all
- `storage`: our checkpoints for code that calls torch.distributed.checkpoint; folders that it wrote become our own
- `inspect`: lists tensors and shards, and extracts a state or a shard, also as safetensors, without a process group
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
