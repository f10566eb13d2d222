"""Callbacks for other people's trainers: Lightning and the Trainer of Hugging Face.

| module | for | extra |
|---|---|---|
| `launcher.integrations.lightning` | `Trainer(callbacks=[LauncherCallback()])` of Lightning | `launcher[lightning]` |
| `launcher.integrations.transformers` | the same of transformers | `launcher[transformers]` |

Each has a `LauncherCallback`, and `last_checkpoint()` to go on from. Outside of a run both do nothing. They may import
`launcher.worker` and what is below it; nothing of the launcher imports them, nor the packages that they are for.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["checkpoint_dir"]


def checkpoint_dir(otherwise: str | os.PathLike[str] = "checkpoints") -> Path:
    """The folder for what this run saves, the same in every attempt; outside of a run `otherwise`."""
    return Path(os.environ.get("LAUNCHER_CHECKPOINT_DIR") or otherwise)


def missing(package: str, error: ImportError) -> ImportError:
    """The error for a package that is not here, with what to type. Pure."""
    return ImportError(
        f"launcher.integrations.{package} needs the package {package}: pip install 'launcher[{package}]' ({error})"
    )
