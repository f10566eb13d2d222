"""`prune`: lists and removes old runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher import maintenance
from launcher.cli.options import PRUNABLE
from launcher.errors import ConfigError
from launcher.formatting import plural, rough_size
from launcher.paths import default_runs_dir
from launcher.remote import clusters

if TYPE_CHECKING:
    from argparse import Namespace
    from pathlib import Path

_LINE = "{:>5}  {:9}  {}"  # lines are printed while runs are removed, so the last column may have any width


def run(arguments: Namespace) -> int:
    if arguments.older_than is None:
        raise ConfigError("say how old: `prune --older-than 30d` lists what would be removed")
    if arguments.cluster is not None and arguments.runs_dir is not None:
        raise ConfigError("--cluster and --runs-dir cannot be combined: --cluster is about the runs on that cluster")
    if arguments.cluster is not None:  # it is unknown: for one that is known, `remote` has run this command there
        clusters.named(arguments.cluster)
    folder: Path = arguments.runs_dir or default_runs_dir()
    before, states = arguments.older_than, tuple(arguments.state or PRUNABLE)
    freed, count = maintenance.finish(folder) if arguments.delete else 0, 0
    for old in maintenance.survey(folder):
        why = maintenance.reason_to_keep(old, before, states)
        size = maintenance.size_of(old.path) if why is None else 0
        if tried := why is None and arguments.delete:
            why = maintenance.remove(old, folder, before, states)
        if why is None:
            if not count:
                print(_LINE.format("SIZE", "STATE", "RUN"))
            freed, count = freed + size, count + 1
            print(_LINE.format(rough_size(size), ", ".join(sorted(old.states)), old.id), flush=True)
        elif tried or old.error or old.needed_by:
            print(f"{old.id} is kept: {why}", flush=True)
    total = f"{plural(count, 'run')}, {rough_size(freed)}"
    if arguments.delete:
        print(f"removed: {total}")
    else:
        print(f"{total}; --delete removes them, checkpoints included" if count else "nothing to remove")
    return 0
