"""The command-line arguments of the user's program, for checks on the login node and for the ranks. Without torch."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.config.hydra_text import key_of, quoted, texts

LONGEST_NAME = 64  # characters of a run's name


def words(given: str | Sequence[Any]) -> list[str]:
    """Returns the arguments of a program as strings.

    Args:
        given: a list of values, or a string that is split like in a shell.

    Raises:
        ValueError: an argument is null or a list, or a quote in the string is not closed.
    """
    if isinstance(given, str):
        return shlex.split(given)
    found = []
    for number, each in enumerate(given, 1):
        if each is None:
            raise ValueError(f"argument {number} is null, which is not text: leave it out, or quote it ('null')")
        if not isinstance(each, (str, int, float)):
            raise ValueError(f"argument {number}, {each!r}, is neither text nor a number")
        found.append(str(each).lower() if isinstance(each, bool) else str(each))
    return found


def options(flags: Mapping[str, Any]) -> list[str]:
    """Returns named arguments as options of a program.

    | value | arguments |
    |---|---|
    | `lr: 0.1` | `--lr 0.1` |
    | `b: 32` (a name of one letter) | `-b 32` |
    | `amp: true` | `--amp` |
    | `amp: false`, `amp: null` | none |
    | `sizes: [1, 2]` | `--sizes 1 2` |

    Raises:
        ValueError: a value has another type.
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
    """Adds options to a program's arguments: before a `--`, else at the end, so they override earlier ones."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return [*arguments[:end], *flags, *arguments[end:]]


def name_of(script: str, *, module: bool = False) -> str:
    """Returns the name that a run of this script or module gets: `train` for dir/train.py and for pkg.train."""
    base = script.rpartition("." if module else "/")[2]
    stem = base if module else base.rpartition(".")[0] or base
    return re.sub(r"[^A-Za-z0-9_.+-]", "_", stem).lstrip("-+.")[:LONGEST_NAME] or "program"


def command(program: str, overrides: Sequence[str]) -> str:
    """Returns the command that submits a run with these overrides, for the shell and as one types it.

    It is `run SCRIPT KEY=VALUE ... -- ARGUMENT ...` if the overrides are those of `run`.

    Args:
        program: how the launcher is called.
        overrides: overrides as they are recorded.
    """
    # Lazily: 20 ms, and ranks need none of it
    from launcher.config.keys import as_typed

    typed = [as_typed(each) for each in overrides]
    given = {key_of(each): each.partition("=")[2] for each in typed}
    kind = "module" if "workload.module" in given else "script"
    script, behind = texts(given.get(f"workload.{kind}", "")), texts(given.get("workload.args", "[]"))
    if given.get("workload") != "program" or not script or behind is None or script[0].startswith("-"):
        return shlex.join([*program.split(), *typed])
    name = f"name={quoted(name_of(script[0], module=kind == 'module'))}"
    told = ("workload", f"workload.{kind}", "workload.args")
    kept = [each for each in typed if key_of(each) not in told and each != name]
    option = ["--module"] if kind == "module" else []
    return shlex.join([*program.split(), "run", *option, script[0], *kept, *(["--", *behind] if behind else [])])


def is_executable(path: Path) -> bool:
    """Returns whether a file can be executed without an interpreter: it has the x bit, and its name has no `.py`."""
    return path.suffix != ".py" and os.access(path, os.X_OK)
