"""Sizes and checksums of a checkpoint's files, computed in the simplest way."""

from __future__ import annotations

import zlib
from pathlib import Path

from launcher.checkpoint import format as checkpoints
from launcher.checkpoint.format import Damaged, File


def file_of(path: Path) -> File:
    data, size = path.read_bytes(), checkpoints.BLOCK
    return File(len(data), tuple(zlib.crc32(data[offset : offset + size]) for offset in range(0, len(data), size)))


def changed(path: Path) -> list[str]:
    """What has changed in a checkpoint since it was written."""
    try:
        manifest = checkpoints.read(path)
        return checkpoints.wrong_sizes(path, manifest) or checkpoints.wrong_checksums(
            path, checkpoints.blocks(manifest)
        )
    except Damaged as error:
        return [str(error)]
