"""Callbacks for the Trainer of Lightning and the Trainer of Hugging Face's transformers.

Each module has a `LauncherCallback`, and `last_checkpoint()` to resume from. Outside of a run both do nothing. Nothing
else in launcher imports them, Lightning or transformers.

- `trainer_memory`: copies of their checkpoints in memory
- `lightning`: callback for Lightning's Trainer; extra `launcher[lightning]`
- `transformers`: callback for transformers' Trainer; extra `launcher[transformers]`
"""

from __future__ import annotations

import io
import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from launcher.checkpoint.collectives import Peers
from launcher.checkpoint.format import Damaged, RetryingFile, entries, retry, unless_removed
from launcher.files.safe_io import python_numbers
from launcher.runs.directory import current_attempt
from launcher.worker.stop import CHECKPOINT

__all__ = ["checkpoint_dir"]


def checkpoint_dir(otherwise: str | os.PathLike[str] = "checkpoints") -> Path:
    """Returns the directory for this run's checkpoints, the same in every attempt; outside of a run `otherwise`."""
    return Path(os.environ.get("LAUNCHER_CHECKPOINT_DIR") or otherwise)


def newest(folder: Path, names: str, last_files: Sequence[str], is_whole: Callable[[BinaryIO], bool]) -> Path | None:
    """Returns the checkpoint that was completed last, as rank 0 sees it; None: there is none. All ranks must call it.

    Raises CannotRead: not all that counts could be read for checkpoint.read_timeout seconds.
    names: pattern of their names. last_files: see `completed`. is_whole: whether the file that was written last is.
    """
    attempt = current_attempt()
    keys = CHECKPOINT if attempt is None else attempt.run.plan().checkpoint
    rank, ranks = 0, 1
    if attempt is not None:
        rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))

    def find() -> Path | None:
        found: dict[Path, tuple[int, Path]] = {}
        for name in entries(folder, keys.read_timeout, missing_ok=True):
            if re.fullmatch(names, name):
                path = folder / name
                look = partial(unless_removed, partial(completed, path, last_files), path)
                with suppress(Damaged):
                    found[path] = retry(look, path, keys.read_timeout)
        # The newest first: only of incomplete ones that are newer than all others it takes a while to be sure
        for path in sorted(found, key=lambda path: (found[path][0], len(path.name), path.name), reverse=True):
            with suppress(Damaged), RetryingFile(Path(os.path.realpath(found[path][1])), keys.read_timeout) as file:
                whole = is_whole(io.BufferedReader(file))
                if file.failure is not None:  # zipfile takes what it cannot read for the end of the file
                    raise file.failure
                if whole:
                    return path
        return None

    return Peers(rank, ranks, keys.timeout, own_group=False).on_first(find)


def completed(checkpoint: Path, last_files: Sequence[str]) -> tuple[int, Path]:
    """Returns when a checkpoint was completed (ns), or changed if it is incomplete; and its file that is written last.

    last_files: names of this file in a checkpoint that is a folder, of which one is there.
    """
    last = checkpoint
    with suppress(FileNotFoundError):
        if stat.S_ISDIR(os.stat(checkpoint).st_mode):
            inside = {each.name for each in checkpoint.iterdir()}
            last = checkpoint / next((name for name in last_files if name in inside), last_files[0])
        return os.stat(last).st_mtime_ns, last
    return os.lstat(checkpoint).st_mtime_ns, last


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
