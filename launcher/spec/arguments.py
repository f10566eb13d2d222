"""A program's arguments and what its file is: the login node asks the same as the rank. Without torch."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
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
    for number, each in enumerate(given, 1):
        if each is None:
            raise ValueError(f"argument {number} is null, which is no text: leave it out, or quote the word ('null')")
        if not isinstance(each, (str, int, float)):
            raise ValueError(f"argument {number}, {each!r}, is neither text nor a number")
        found.append(str(each).lower() if isinstance(each, bool) else str(each))
    return found


def options(flags: Mapping[str, Any]) -> list[str]:
    """Named arguments as a program's options. Pure.

    | value | words |
    |---|---|
    | `lr: 0.1` | `--lr 0.1` |
    | `b: 32` (a name of one letter) | `-b 32` |
    | `amp: true` | `--amp` |
    | `amp: false`, `amp: null` | none |
    | `sizes: [1, 2]` | `--sizes 1 2` |

    Raises:
        ValueError: a value is none of these.
    """
    found = []
    for name, value in flags.items():
        if value is None or value is False:
            continue
        found.append(f"{'-' if len(name) == 1 else '--'}{name}")
        if isinstance(value, Mapping):
            raise ValueError(f"{name} is a section: only workload.overrides has names with a dot in them")
        if value is not True:
            found += words(value if isinstance(value, list) else [value])
    return found


def with_options(arguments: Sequence[str], flags: Sequence[str]) -> list[str]:
    """Arguments with options behind them, where the last one of a name counts; in front of a `--` among them. Pure."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return [*arguments[:end], *flags, *arguments[end:]]


def runs_as_it_is(path: Path) -> bool:
    """Whether a file is a program itself, and not a script for an interpreter that is not named in it."""
    return path.suffix != ".py" and os.access(path, os.X_OK)
