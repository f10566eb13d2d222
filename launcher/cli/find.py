"""Finds the runs and sweeps that a command line names. `runs_dir` None stands for the default folder of runs."""

from __future__ import annotations

from pathlib import Path

from launcher.errors import RunError, near
from launcher.files.shared_files import exists, unwrap
from launcher.paths import default_runs_dir
from launcher.runs import lookup, sweep_directory
from launcher.runs.directory import Run
from launcher.runs.sweep_directory import Sweep


def find(name: str, runs_dir: Path | None) -> Run:
    """Finds a run by id, unique prefix, `latest`, directory or SWEEP/POINT; see `lookup.find`."""
    return lookup.find(name, runs_dir or default_runs_dir())


def reference(run: Run) -> str:
    """Returns a name of the run for later commands: its id if the default folder has the run, else its directory."""
    try:
        return run.id if lookup.find(run.id, default_runs_dir()) == run else str(run.path)
    except RunError:
        return str(run.path)


def find_sweep(name: str, runs_dir: Path | None) -> Sweep:
    """Finds a sweep by id, unique prefix, `latest` or directory; see `lookup.find_sweep`."""
    return lookup.find_sweep(name, runs_dir or default_runs_dir())


def find_either(name: str, runs_dir: Path | None) -> Run | Sweep:
    """Finds a run, point or sweep by id, unique prefix, `latest`, directory or SWEEP/POINT; raises RunError."""
    folder = runs_dir or default_runs_dir()
    if "/" in name or name == "latest" or unwrap(exists(folder / name / "record.json")):
        try:
            return lookup.find(name, folder)
        except RunError as error:
            try:
                return lookup.find_sweep(name, folder)
            except RunError:
                raise error from None
    if unwrap(exists(folder / name / sweep_directory.RECORD)):
        return lookup.find_sweep(name, folder)
    there = lookup.names(folder)  # only directories with a matching name are opened: there may be thousands
    matches = sorted(
        each
        for each in there
        if each.startswith(name) and any(lookup.may_have(f"{folder}/{each}", file) for file in lookup.RECORDS.values())
    )
    if len(matches) == 1:
        return find_either(matches[0], folder)
    if matches:
        raise RunError(f"{name!r} fits {len(matches)} runs and sweeps: {', '.join(matches[:5])}")
    raise RunError(f"no run {name!r} in {folder}, and no sweep.{near(name, [*there, 'latest'])}")
