"""Runs and sweeps by their names: an id, a unique prefix of one, `latest`, a path, SWEEP/POINT.

A runs_dir may have thousands of folders: only those whose names fit are opened.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from launcher.errors import RunError, near
from launcher.files.shared_files import ABSENT, NO_FILE, Unavailable, exists, retry_read, unwrap
from launcher.runs.directory import Run
from launcher.runs.sweep_directory import Sweep, require_known

RECORDS = {"run": "record.json", "sweep": "sweep.json"}  # the file by which a folder of each kind is known


def all_runs(runs_dir: Path) -> list[Run]:
    """All runs, newest first, without the points of sweeps."""
    return [Run(path) for path in folders_with(runs_dir, RECORDS["run"])]


def all_sweeps(runs_dir: Path) -> list[Sweep]:
    """All sweeps, newest first."""
    return [Sweep(path) for path in folders_with(runs_dir, RECORDS["sweep"])]


def folders_with(folder: Path, name: str) -> list[Path]:
    """The folders in `folder`, and those that it has links to, in which there is a file of this name; newest first.

    A folder of which nobody can tell now is among them: whoever opens it says so.
    """
    return [Path(path) for path in newest(folder) if may_have(path, name)]


def may_have(folder: str, name: str) -> bool:
    """Whether a folder has a file of this name, or nobody can tell now. One that we may not look into has none."""
    found = exists(f"{folder}/{name}")
    return found.is_transient if isinstance(found, Unavailable) else unwrap(found)


def newest(folder: Path) -> list[str]:
    """Paths of the folders in `folder`, and those that it has links to, newest change first; none is opened."""
    found = []
    base = os.path.realpath(folder)
    for name, entry in _folders(folder):
        try:
            path = os.path.realpath(entry.path) if entry.is_symlink() else f"{base}/{name}"
            found.append((entry.stat().st_ctime, path))
        except OSError as error:
            if error.errno not in ABSENT | NO_FILE:  # else it is being removed, or a link in a circle
                found.append((float("inf"), entry.path))
    return [path for _, path in sorted(found, reverse=True)]


def names(folder: Path) -> list[str]:
    """Names of the folders in `folder`, and of its links; none is opened."""
    return [name for name, _ in _folders(folder)]


def nothing_in(folder: Path) -> bool:
    """Whether there is no folder in `folder`, and no link to one."""
    return next(_folders(folder), None) is None


def _folders(folder: Path) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """
    Raises:
        UnavailableError: the folder cannot be read now.
    """
    for entry in unwrap(retry_read(lambda: list(os.scandir(folder)), folder)) or ():
        if entry.name == "latest" or entry.name.startswith("."):
            continue
        try:
            is_folder = entry.is_dir()
        except OSError as error:
            is_folder = error.errno not in ABSENT | NO_FILE  # of a link in a circle there is none
        if is_folder:
            yield entry.name, entry


def find(name: str, runs_dir: Path) -> Run:
    """The run meant by an id, a unique prefix of one, `latest`, the path of its directory, or SWEEP/POINT.

    Raises:
        RunError: none fits, or several do.
    """
    sweep, slash, point = name.rpartition("/")
    if slash and point.isdecimal() and not Path(name).expanduser().exists():
        found = find_sweep(sweep, runs_dir)
        require_known([int(point)], found, len(found.manifest().points))
        return found.run(int(point))
    return Run(find_folder(name, runs_dir, "run"))


def find_sweep(name: str, runs_dir: Path) -> Sweep:
    """The sweep meant by an id, a unique beginning of one, `latest`, or the path of its directory.

    Raises:
        RunError: none fits, or several do.
    """
    return Sweep(find_folder(name, runs_dir, "sweep"))


def find_folder(name: str, runs_dir: Path, what: str) -> Path:
    """The folder of a `run` or a `sweep`; see `find`."""
    record = RECORDS[what]
    if "/" in name:
        path = Path(name).expanduser().resolve()
        if _has(path, record):
            return path
        if "/" in name[:-1] or not name.strip("./"):
            raise RunError(f"{path} is not a {what}: it has no {record}")
        name = name[:-1]  # a sweep's points are completed behind `SWEEP/`
    if name == "latest":
        link = runs_dir / "latest"
        if not _has(link, record):
            newest_one = link.resolve()
            other = next((name for name, file in RECORDS.items() if name != what and _has(link, file)), None)
            if other is None:
                raise RunError(f"there is no latest {what} in {runs_dir}")
            instead = f"name one of its points ({newest_one.name}/0)" if other == "sweep" else "name a sweep"
            raise RunError(f"latest is {newest_one.name}, a {other}: {instead}")
        return link.resolve()
    if _has(runs_dir / name, record):
        return (runs_dir / name).resolve()
    if what == "run" and _has(runs_dir / name, RECORDS["sweep"]):
        raise RunError(f"{name} is a sweep: name one of its points ({name}/0), or see `launcher sweep --help`")
    there = names(runs_dir)  # only those whose names fit are opened, of however many there are
    matches = sorted(each for each in there if each.startswith(name) and may_have(f"{runs_dir}/{each}", record))
    if len(matches) == 1:
        return (runs_dir / matches[0]).resolve()
    if matches:
        raise RunError(f"{name!r} fits {len(matches)} {what}s: {', '.join(matches[:5])}")
    raise RunError(f"no {what} {name!r} in {runs_dir}.{near(name, there)}")


def _has(folder: Path, name: str) -> bool:
    return unwrap(exists(folder / name))
