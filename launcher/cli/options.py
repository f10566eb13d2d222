"""Options and arguments that several sub-commands share."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from pathlib import Path

    from launcher.runs import Run

RUN = "id, unique beginning of one, `latest`, or directory"


def add_runs_dir(parser: ArgumentParser) -> None:
    """--runs-dir, as a Path or None."""
    parser.add_argument(
        "--runs-dir",
        type=folder,
        metavar="DIR",
        help="where run directories are (default: $LAUNCHER_RUNS_DIR, else the per-user data folder)",
    )


def folder(text: str) -> Path:
    """An option's value as a Path."""
    from pathlib import Path  # not for --help

    return Path(text)


def find(name: str, runs_dir: Path | None) -> Run:
    """The run meant by `name`; see `runs.find`."""
    from launcher import runs  # not for --help
    from launcher.paths import default_runs_dir

    return runs.find(name, runs_dir or default_runs_dir())
