"""Callbacks for Lightning's Trainer and for the Trainer of Hugging Face.

Each has a `LauncherCallback`, and `last_checkpoint()` to resume from. Outside of a run both do nothing. They may import
`launcher.worker` and what is below it; nothing of launcher imports them, nor the packages that they are for.

- `lightning`: `Trainer(callbacks=[LauncherCallback()])` of Lightning; extra `launcher[lightning]`
- `transformers`: the same of transformers; extra `launcher[transformers]`
- `values`: what a trainer hands to its callbacks, as what a run records
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["checkpoint_dir"]


def checkpoint_dir(otherwise: str | os.PathLike[str] = "checkpoints") -> Path:
    """The folder for this run's checkpoints, the same in every attempt; outside of a run `otherwise`."""
    return Path(os.environ.get("LAUNCHER_CHECKPOINT_DIR") or otherwise)


def missing(package: str, error: ImportError) -> ImportError:
    """The error for a package that is not installed, with the command that installs it. Pure."""
    return ImportError(
        f"launcher.integrations.{package} needs the package {package}: pip install 'launcher[{package}]' ({error})"
    )
