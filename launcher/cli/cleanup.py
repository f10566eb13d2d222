"""`cancel`: cancels runs, sweeps, and jobs whose run directory is gone. `prune`: lists and removes old runs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from launcher import maintenance
from launcher.cli.commands import PRUNABLE
from launcher.errors import FAILED, ConfigError, LauncherError, RunError
from launcher.files.ownership import require_own
from launcher.formatting import plural, rough_size
from launcher.maintenance import Orphan
from launcher.monitoring.run_status import JobMonitor, status_of
from launcher.paths import default_runs_dir
from launcher.remote import clusters
from launcher.runs.directory import Run
from launcher.runs.lookup import find_either
from launcher.runs.sweep_directory import Sweep, sweep_of
from launcher.schedulers.base import QueryError

if TYPE_CHECKING:
    from argparse import Namespace
    from pathlib import Path

PRUNE_LINE = "{:>5}  {:12}  {}"  # lines are printed while runs are removed, so the last column may have any width


def cancel(arguments: Namespace) -> int:
    names, live, code = dict.fromkeys(arguments.names), JobMonitor(), 0
    for name in names:
        try:
            _cancel(name, arguments.runs_dir, live)
        except LauncherError as error:
            if len(names) == 1:
                raise
            print(f"launcher: {name} is not cancelled: {error}", file=sys.stderr, flush=True)
            code = FAILED
    return code


def _cancel(name: str, runs_dir: Path | None, live: JobMonitor) -> None:
    found = _find(name, runs_dir)
    if isinstance(found, Orphan):
        maintenance.cancel_orphan(found)
        print(f"job {found.job}, whose run was in {found.folder}, is being cancelled", flush=True)
        return
    require_own(found.path, "cancel it")
    sweep = found if isinstance(found, Sweep) else sweep_of(found)
    if sweep is not None:
        from launcher.cli.sweep import cancel as cancel_points

        cancel_points(sweep, None if sweep is found else [int(found.path.name)])
        return
    assert not isinstance(found, Sweep)
    seen = status_of(found, live)
    if seen.state.over:
        print(f"{found.id} is over already: {seen.state.value}")
        return
    live.cancel(found)
    print(f"{found.id} is being cancelled", flush=True)
    from launcher.sweeps.control import release_followers

    release_followers([found.path], [seen])


def _find(name: str, runs_dir: Path | None) -> Run | Sweep | Orphan:
    try:
        return find_either(name, runs_dir)
    except RunError as error:
        if (run := maintenance.run_of_job(name, runs_dir or default_runs_dir())) is not None:
            return run
        try:
            found = maintenance.look_for(name)
        except QueryError as problem:
            raise RunError(f"{error} Whether there is a job {name} is not known: {problem}") from None
        if found is None:
            raise
    if isinstance(found, maintenance.Orphan):
        return found
    if Sweep(found).recorded():
        raise RunError(f"job {name} belongs to sweep {found.name}: name the sweep, or a point ({found.name}/0)")
    return Run(found)


def prune(arguments: Namespace) -> int:
    if arguments.older_than is None:
        raise ConfigError("say how old: `prune --older-than 30d` lists what would be removed")
    if arguments.cluster is not None and arguments.runs_dir is not None:
        raise ConfigError("--cluster and --runs-dir cannot be combined: --cluster is about the runs on that cluster")
    if arguments.cluster is not None:  # it is unknown: for one that is known, `remote` has run this command there
        clusters.named(arguments.cluster)
    folder: Path = arguments.runs_dir or default_runs_dir()
    before, states = arguments.older_than, tuple(arguments.state or PRUNABLE)
    freed, count = maintenance.finish(folder) if arguments.delete else 0, 0
    live = JobMonitor()
    for old in maintenance.survey(folder, live):
        why = maintenance.reason_to_keep(old, before, states)
        size = maintenance.size_of(old.path, *old.pilots) if why is None else 0
        if tried := why is None and arguments.delete:
            why = maintenance.remove(old, folder, before, states, live)
        if why is None:
            if not count:
                print(PRUNE_LINE.format("SIZE", "STATE", "RUN"))
            freed, count = freed + size, count + 1
            print(PRUNE_LINE.format(rough_size(size), ", ".join(sorted(old.states)), old.id), flush=True)
        elif tried or old.error or old.needed_by:
            print(f"{old.id} is kept: {why}", flush=True)
    total = f"{plural(count, 'run')}, {rough_size(freed)}"
    if arguments.delete:
        print(f"removed: {total}")
    else:
        print(f"{total}; --delete removes them, checkpoints included" if count else "nothing to remove")
    return 0
