"""`wait`: until a run is over."""

from __future__ import annotations

from pathlib import Path

import click

from launcher.cli.follow import to_the_end
from launcher.cli.options import find, runs_dir_option


@click.command()
@click.argument("name", metavar="RUN")
@click.option("-q", "--quiet", is_flag=True, help="Do not show what the run prints.")
@runs_dir_option
def wait(name: str, quiet: bool, runs_dir: Path | None) -> int:
    """Wait until RUN is over, and exit with 0 if it is done, 75 if it can be resumed, else 1. Ctrl-C stops waiting."""
    return to_the_end(find(name, runs_dir), foreground=False, output=not quiet)
