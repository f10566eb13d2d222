"""`cancel`: cancels runs, sweeps, and jobs whose run directory is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher import maintenance
from launcher.cli.find import find_either
from launcher.errors import RunError
from launcher.files.ownership import require_own
from launcher.maintenance import Orphan
from launcher.monitoring.run_status import JobMonitor, status_of
from launcher.runs.directory import Run
from launcher.runs.sweep_directory import Sweep, sweep_of
from launcher.schedulers.base import QueryError

if TYPE_CHECKING:
    from argparse import Namespace
    from pathlib import Path


def run(arguments: Namespace) -> int:
    found = [_find(name, arguments.runs_dir) for name in arguments.names]
    for each in found:
        if not isinstance(each, Orphan):
            require_own(each.path, "cancel it")
    live = JobMonitor()
    for each in found:
        if isinstance(each, Orphan):
            maintenance.cancel_orphan(each)
            print(f"job {each.job}, whose run was in {each.folder}, is being cancelled", flush=True)
            continue
        sweep = each if isinstance(each, Sweep) else sweep_of(each)
        if sweep is not None:
            from launcher.cli import sweep_change

            sweep_change.cancel(sweep, None if sweep is each else [int(each.path.name)])
            continue
        assert not isinstance(each, Sweep)
        seen = status_of(each, live)
        if seen.state.over:
            print(f"{each.id} is over already: {seen.state.value}")
            continue
        live.cancel(each)
        print(f"{each.id} is being cancelled", flush=True)
        from launcher.sweeps.control import release_followers

        release_followers([each.path], [seen])
    return 0


def _find(name: str, runs_dir: Path | None) -> Run | Sweep | Orphan:
    try:
        return find_either(name, runs_dir)
    except RunError as error:
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
