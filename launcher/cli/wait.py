"""`wait`: waits until a run is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.cli.options import EITHER, add_runs_dir, find_either

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


def configure(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="RUN", help=EITHER)
    parser.add_argument("-q", "--quiet", action="store_true", help="do not show the run's output")
    add_runs_dir(parser)


def run(arguments: Namespace) -> int:
    """Wait until RUN is over, and exit with its code: 0 if it is done, 75 if it can be resumed, 93 if a retry would
    fail too, else 1. Ctrl-C stops waiting."""
    # Lazily: neither --help nor completion needs it
    from launcher.runs.sweep_directory import Sweep, sweep_of

    found = find_either(arguments.name, arguments.runs_dir)
    if isinstance(found, Sweep):
        # Lazily: neither --help nor completion needs it
        from launcher.cli import sweep_follow

        return sweep_follow.follow_to_end(found)
    if sweep := sweep_of(found):
        # Lazily: neither --help nor completion needs it
        from launcher.cli import sweep_follow
        from launcher.monitoring.sweep import not_begun

        if not_begun(found):
            return sweep_follow.follow_to_end(sweep, [int(found.path.name)])
    # Lazily: neither --help nor completion needs it
    from launcher.cli.follow import follow_to_end

    return follow_to_end(found, foreground=False, output=not arguments.quiet)
