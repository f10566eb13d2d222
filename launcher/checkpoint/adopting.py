"""Makes a folder that torch.distributed.checkpoint has written one of our checkpoints; executes nothing in it."""

from __future__ import annotations

import re
import stat
from pathlib import Path

import torch

from launcher import __version__
from launcher.checkpoint import files, reading
from launcher.checkpoint import format as checkpoints
from launcher.checkpoint.folder import Folder, Retention, fsync_folder
from launcher.checkpoint.format import DCP, MANIFEST, METADATA_FILE, CheckpointError, Manifest

_RANK = re.compile(r"__(\d+)_\d+\.distcp")


def adopt(path: Path, step: int) -> Path:
    """Adds checksums and a manifest to a folder of torch.distributed.checkpoint, and renames it to `step-...`.

    The result then counts as the newest checkpoint in its parent folder.

    step: steps of the run that were done when it was written.
    Raises CheckpointError: the folder is not a complete checkpoint of torch.distributed.checkpoint, is one of our
        checkpoints already, others can write to it, or the parent folder has a checkpoint of this step.
    Raises Unavailable: the folder cannot be read now.
    """
    folder = Folder(path.parent, 0, Retention(), 0.0)
    folder.require_private(path)
    names = reading.entries(path)
    if MANIFEST in names:
        raise CheckpointError(f"{path} has a {MANIFEST}: it is one of our checkpoints already")
    if METADATA_FILE not in names:
        raise CheckpointError(
            f"{path} has no {METADATA_FILE}: torch.distributed.checkpoint did not write it, or not all"
        )
    target = path.parent / checkpoints.name_of(step)
    if target != path and target.name in reading.entries(path.parent):
        raise CheckpointError(f"{target} is there already: give another STEP")
    needed = files.needed_bytes(files.read_metadata(path))
    for name, least in needed.items():
        if "/" in name or reading.size_of_file(path / name) < least:
            raise CheckpointError(f"{path / name} does not match {METADATA_FILE}: it is cut short, or elsewhere")
    written = {}
    for name in names:
        if not stat.S_ISREG((path / name).lstat().st_mode):
            raise CheckpointError(f"{path / name} is not a file: move it elsewhere")
        written[name] = checkpoints.file_of(path / name)
    ranks = [int(match[1]) for name in needed if (match := _RANK.fullmatch(name))]
    manifest = folder.describe(
        Manifest(
            step=step, kind=DCP, world_size=1 + max(ranks, default=0), attempt=0, identity={}, extra={}, metrics={},
            files=written, torch=torch.__version__, launcher=__version__,
        )
    )  # fmt: skip
    unfinished = path / f"{MANIFEST}.tmp"
    unfinished.unlink(missing_ok=True)
    with files.hashed_file(unfinished, {}) as stream:
        stream.write(manifest.text().encode())
    unfinished.rename(path / MANIFEST)
    fsync_folder(path)
    if target != path:
        path.rename(target)
        fsync_folder(target.parent)
    return target
