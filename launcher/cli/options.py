"""Options and arguments that several sub-commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from launcher.paths import default_runs_dir

if TYPE_CHECKING:
    from launcher.runs import Run

_HELP = "Where run directories are (default: $LAUNCHER_RUNS_DIR, else the per-user data folder)."


def runs_dir_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """--runs-dir, as a Path."""
    return click.option("--runs-dir", type=click.Path(path_type=Path), help=_HELP)(function)


def find(name: str, runs_dir: Path | None) -> Run:
    """The run meant by `name`; see `runs.find`."""
    from launcher import runs  # not for --help

    return runs.find(name, runs_dir or default_runs_dir())
