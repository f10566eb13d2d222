"""`status`: shows the states of runs and sweeps. If there can be none, `status_view` is not imported, to save time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.cli.commands import remote_profiles
from launcher.errors import ConfigError
from launcher.paths import default_runs_dir
from launcher.runs import lookup
from launcher.schedulers.registry import queues_here

if TYPE_CHECKING:
    from argparse import Namespace


def run(arguments: Namespace) -> int:
    folder = arguments.runs_dir or default_runs_dir()
    if arguments.watch and arguments.as_json:
        raise ConfigError("--json does not go with --watch: call `status --json` repeatedly")
    apart = not arguments.names and arguments.runs_dir is None and bool(remote_profiles())
    if not arguments.names and not apart and lookup.is_empty(folder) and not queues_here():
        print("[]" if arguments.as_json else f"no runs in {folder}")
        return 0
    from launcher.cli.status_view import show

    return show(arguments, folder, apart=apart)
