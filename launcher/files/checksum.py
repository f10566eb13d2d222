"""Checksums of files. Standard library only; hashlib.file_digest is Python 3.11's."""

from __future__ import annotations

import hashlib
from pathlib import Path

PIECE = 1 << 20  # bytes read at once


def digest_of(path: Path) -> str:
    """The sha256 of a file, in hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            digest.update(piece)
    return digest.hexdigest()
