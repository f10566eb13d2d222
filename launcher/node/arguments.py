"""A program's arguments and what its file is: the login node asks the same as the rank. Without torch."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def words(given: str | Sequence[Any]) -> list[str]:
    """The program's arguments, each as text. Pure.

    Raises:
        ValueError: one is a list or nothing, or a text has an open quote.
    """
    if isinstance(given, str):
        return shlex.split(given)
    found = []
    for each in given:
        if not isinstance(each, (str, int, float)):
            raise ValueError(f"{each!r} is neither text nor a number")
        found.append(str(each).lower() if isinstance(each, bool) else str(each))
    return found


def runs_as_it_is(path: Path) -> bool:
    """Whether a file is a program itself, and not a script for an interpreter that is not named in it."""
    return path.suffix != ".py" and os.access(path, os.X_OK)
