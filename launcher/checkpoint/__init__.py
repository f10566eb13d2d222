"""Checkpoints of a training: saved in the background, published atomically, loaded at any number of ranks.

It may import worker, runs and the layers below them. Commands use `format` and `folder`, which do not import torch.
Importing this package does not load torch either; the first use of one of its names does.

- `checkpointer`: `Checkpointer`, the public class: `save`, `load`, `wait`; which checkpoints `load` skips or refuses
- `resumable`: `Resumable`: what a training loop needs to be stopped and resumed, given once; default generators; the
  samples of each step (`GlobalBatchSampler`)
- `saving`: takes a rank's state; the steps of one save, local and collective, to the published checkpoint
- `loading`: what a checkpoint contains, and does it fit; reads it into the tensors and objects of a state; without a
  process group: lists tensors and shards, verifies, and extracts a state, also as safetensors
- `format`: the format on disk: names of files and folders, manifest, checksums; reads with retries
- `folder`: the checkpoint folder: lists, publishes, quarantines and removes checkpoints; which of them are kept
- `storage`: writes files with checksums, reads them without executing anything; files of torch.distributed.checkpoint
- `state`: splits a state into tensors by name and all other values; refuses tensors that differ between ranks
- `memory_copies`: copies of the state in memory that outlives the ranks: making and loading them, on all ranks
- `memory_format`: the format of these copies; which of them are loaded
- `collectives`: collective calls of the ranks; an error on one rank is raised on all
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
