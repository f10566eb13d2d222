"""Checksums of files, with the standard library alone and without hashlib.file_digest, which is new in Python 3.11."""

from __future__ import annotations

import hashlib
from pathlib import Path

PIECE = 1 << 20  # bytes read at once


def digest_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            digest.update(piece)
    return digest.hexdigest()
