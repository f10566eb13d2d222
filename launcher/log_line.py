"""Prints the launcher's own lines, `launcher: ...`, into the output of a job or a rank."""

from __future__ import annotations

import contextlib
import sys
from typing import TextIO


def log_line(text: str, stream: TextIO | None = None) -> None:
    """Prints the line `launcher: TEXT`. Errors of writing, such as a full disk, are ignored.

    text: the line, without `launcher: `.
    stream: the stream to print to; None: sys.stderr.
    """
    with contextlib.suppress(OSError):
        print(f"launcher: {text}", file=stream or sys.stderr, flush=True)
