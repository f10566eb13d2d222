"""`wait`: until a run is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.cli.options import RUN, add_runs_dir, find

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


def configure(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="RUN", help=RUN)
    parser.add_argument("-q", "--quiet", action="store_true", help="do not show what the run prints")
    add_runs_dir(parser)


def run(arguments: Namespace) -> int:
    """Wait until RUN is over, and exit with its code: 0 if it is done, 75 if it can be resumed, 93 if a retry would
    fail too, else 1. Ctrl-C stops waiting."""
    from launcher.cli.follow import to_the_end  # not for --help

    return to_the_end(find(arguments.name, arguments.runs_dir), foreground=False, output=not arguments.quiet)
