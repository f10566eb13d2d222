"""Callbacks for the Trainer of Lightning and the Trainer of Hugging Face's transformers.

Each module has a `LauncherCallback`, and `last_checkpoint()` to resume from. Outside of a run both do nothing. They may
import `launcher.worker` and what is below it. Nothing else in launcher imports them, Lightning or transformers.

- `lightning`: callback for Lightning's Trainer; extra `launcher[lightning]`
- `transformers`: callback for transformers' Trainer; extra `launcher[transformers]`
- `values`: what both share: metrics from a trainer's values, whether to exit at a step
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["checkpoint_dir"]


def checkpoint_dir(otherwise: str | os.PathLike[str] = "checkpoints") -> Path:
    """Returns the directory for this run's checkpoints, the same in every attempt; outside of a run `otherwise`."""
    return Path(os.environ.get("LAUNCHER_CHECKPOINT_DIR") or otherwise)


def missing(package: str, error: ImportError) -> ImportError:
    """Returns the error for a package that is not installed, with the command that installs it.

    Args:
        package: `lightning` or `transformers`.
        error: the error of its import.
    """
    return ImportError(
        f"launcher.integrations.{package} needs the package {package}: pip install 'launcher[{package}]' ({error})"
    )
