"""`wait`: waits until a run or sweep is over, and exits with its code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.cli import sweep_results
from launcher.cli.find import find_either
from launcher.cli.follow import follow_to_end
from launcher.monitoring.sweep import not_begun
from launcher.runs.sweep_directory import Sweep, sweep_of

if TYPE_CHECKING:
    from argparse import Namespace


def run(arguments: Namespace) -> int:
    found = find_either(arguments.name, arguments.runs_dir)
    if isinstance(found, Sweep):
        return sweep_results.follow_to_end(found)
    if (sweep := sweep_of(found)) and not_begun(found):
        return sweep_results.follow_to_end(sweep, [int(found.path.name)])
    return follow_to_end(found, foreground=False, output=not arguments.quiet)
