"""Callbacks for the Trainer of Lightning and the Trainer of Hugging Face's transformers.

Each module has a `LauncherCallback`, and `last_checkpoint()` to resume from. Outside of a run both do nothing. Nothing
else in launcher imports them, Lightning or transformers.

- `memory`: copies of their checkpoints in memory
- `lightning`: callback for Lightning's Trainer; extra `launcher[lightning]`
- `transformers`: callback for transformers' Trainer; extra `launcher[transformers]`
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launcher.files.run_files import python_numbers

__all__ = ["checkpoint_dir"]


def checkpoint_dir(otherwise: str | os.PathLike[str] = "checkpoints") -> Path:
    """Returns the directory for this run's checkpoints, the same in every attempt; outside of a run `otherwise`."""
    return Path(os.environ.get("LAUNCHER_CHECKPOINT_DIR") or otherwise)


def missing(package: str, error: ImportError) -> ImportError:
    return ImportError(
        f"launcher.integrations.{package} needs the package {package}: pip install 'launcher[{package}]' ({error})"
    )


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Returns the numbers among `values` as floats, also those of numpy and tensors of one element."""
    return {name: float(each) for name, each in python_numbers(values).items() if isinstance(each, (int, float))}


def leaves(stop: str | None, step: int, total: int) -> bool:
    """Returns whether the rank must exit after this step, once it has saved: not after the last of all, since then only
    the trainer's cleanup is left, which another attempt would not do. total=0: unknown.
    """
    return stop is not None and not 0 < total <= step
