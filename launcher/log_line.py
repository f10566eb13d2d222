"""Writes the launcher's own lines into the output of a job or a rank."""

from __future__ import annotations

import contextlib
import sys
from typing import TextIO


def log_line(text: str, stream: TextIO | None = None) -> None:
    """Writes one line, `launcher: ...`; one that cannot be written (the disk is full) is lost.

    Args:
        text: of the line.
        stream: where to; None: sys.stderr.
    """
    with contextlib.suppress(OSError):
        print(f"launcher: {text}", file=stream or sys.stderr, flush=True)
