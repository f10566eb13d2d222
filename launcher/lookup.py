"""Runs and sweeps by their names: an id, a unique beginning of one, `latest`, a path, SWEEP/POINT.

A runs_dir may have thousands of folders: only those whose names fit are opened.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from launcher.errors import RunError, near
from launcher.runs import Run


def all_runs(runs_dir: Path) -> list[Run]:
    """All runs, newest first, without the points of sweeps."""
    return [Run(path) for path in folders_with(runs_dir, "record.json")]


def folders_with(folder: Path, name: str) -> list[Path]:
    """The folders in `folder`, and those that it has links to, in which there is a file of this name; newest first."""
    return [Path(path) for path in newest(folder) if os.path.exists(f"{path}/{name}")]


def newest(folder: Path) -> list[str]:
    """Paths of the folders in `folder`, and those that it has links to, newest change first; none is opened."""
    found = []
    base = os.path.realpath(folder)
    for name, entry in _folders(folder):
        try:
            path = os.path.realpath(entry.path) if entry.is_symlink() else f"{base}/{name}"
            found.append((entry.stat().st_ctime, path))
        except OSError:  # it is being removed
            continue
    return [path for _, path in sorted(found, reverse=True)]


def names(folder: Path) -> list[str]:
    """Names of the folders in `folder`, and of its links; none is opened."""
    return [name for name, _ in _folders(folder)]


def nothing_in(folder: Path) -> bool:
    """Whether there is no folder in `folder`, and no link to one."""
    return next(_folders(folder), None) is None


def _folders(folder: Path) -> Iterator[tuple[str, os.DirEntry[str]]]:
    try:
        entries = os.scandir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    with entries:
        for entry in entries:
            if entry.name == "latest" or entry.name.startswith("."):
                continue
            with contextlib.suppress(OSError):  # a link in a circle
                if entry.is_dir():
                    yield entry.name, entry


def find(name: str, runs_dir: Path) -> Run:
    """The run meant by an id, a unique beginning of one, `latest`, the path of its directory, or SWEEP/POINT.

    Raises:
        RunError: none fits, or several do.
    """
    sweep, slash, point = name.rpartition("/")
    if slash and point.isdecimal() and not Path(name).expanduser().exists():
        from launcher import sweeps  # they are found in the same ways

        found = sweeps.find(sweep, runs_dir)
        sweeps.require_known([int(point)], found, len(found.manifest().points))
        return found.run(int(point))
    return Run(find_folder(name, runs_dir, "record.json", "run"))


def find_folder(name: str, runs_dir: Path, record: str, what: str) -> Path:
    """The folder of a run or a sweep, which has a file `record`; see `find`."""
    if "/" in name:
        path = Path(name).expanduser().resolve()
        if (path / record).exists():
            return path
        if "/" in name[:-1] or not name.strip("./"):
            raise RunError(f"{path} is not a {what}: it has no {record}")
        name = name[:-1]  # a sweep's points are completed behind `SWEEP/`
    if name == "latest":
        link = runs_dir / "latest"
        if not (link / record).exists():
            raise RunError(f"there is no latest {what} in {runs_dir}")
        return link.resolve()
    if (runs_dir / name / record).exists():
        return (runs_dir / name).resolve()
    if (runs_dir / name).is_dir() and what == "run" and (runs_dir / name / "sweep.json").exists():
        raise RunError(f"{name} is a sweep: name one of its points ({name}/0), or see `launcher sweep --help`")
    known = names(runs_dir)  # only those whose names fit are opened, of however many there are
    matches = sorted(each for each in known if each.startswith(name) and (runs_dir / each / record).exists())
    if len(matches) == 1:
        return (runs_dir / matches[0]).resolve()
    if matches:
        raise RunError(f"{name!r} fits {len(matches)} {what}s: {', '.join(matches[:5])}")
    raise RunError(f"no {what} {name!r} in {runs_dir}.{near(name, known)}")
