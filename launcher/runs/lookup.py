"""Finds runs and sweeps by an id, a unique prefix, `latest`, a path, or SWEEP/POINT; opens only folders that match."""

from __future__ import annotations

import bisect
import os
from collections.abc import Iterator
from pathlib import Path

from launcher.errors import NoRunError, near
from launcher.files.retried_reads import ABSENT, NO_FILE, Unavailable, exists, retry_read, unwrap
from launcher.paths import default_runs_dir
from launcher.runs.directory import Run
from launcher.runs.sweep_directory import PILOT, Sweep, require_known

COMPARED = 1000  # ids before and behind one that was mistyped that are compared with it: each takes 0.1 ms
RECORDS = {"run": "record.json", "sweep": "sweep.json"}  # the file that makes a folder a run or a sweep


def all_runs(runs_dir: Path) -> list[Run]:
    """Returns all runs in `runs_dir`, newest first, without the points of sweeps; also what is unreadable now."""
    return [Run(Path(path)) for path in newest(runs_dir) if may_have(path, RECORDS["run"])]


def all_sweeps(runs_dir: Path) -> list[Sweep]:
    return [Sweep(Path(path)) for path in newest(runs_dir) if may_have(path, RECORDS["sweep"])]


def may_have(folder: str, name: str) -> bool:
    """Returns whether a folder may have this file: True on a transient error, False if permission is denied."""
    found = exists(f"{folder}/{name}")
    return found.is_transient if isinstance(found, Unavailable) else unwrap(found)


def newest(folder: Path) -> list[str]:
    """Returns the real paths of the folders in `folder`, and of links to folders, last changed first; opens none."""
    found = []
    base = os.path.realpath(folder)
    for name, entry in _folders(folder):
        try:
            path = os.path.realpath(entry.path) if entry.is_symlink() else f"{base}/{name}"
            found.append((entry.stat().st_ctime, path))
        except OSError as error:
            if error.errno not in ABSENT | NO_FILE:  # ABSENT: it was just removed; NO_FILE: it is a circular link
                found.append((float("inf"), entry.path))
    return [path for _, path in sorted(found, reverse=True)]


def names(folder: Path) -> list[str]:
    """Returns the names of the folders in `folder`, and of links to folders, but no hidden ones; opens none."""
    return [name for name, _ in _folders(folder)]


def _folders(folder: Path) -> Iterator[tuple[str, os.DirEntry[str]]]:
    for entry in unwrap(retry_read(lambda: list(os.scandir(folder)), folder)) or ():
        if entry.name == "latest" or entry.name.startswith("."):
            continue
        try:
            is_folder = entry.is_dir()
        except OSError as error:
            is_folder = error.errno not in ABSENT | NO_FILE  # ABSENT: just removed; NO_FILE: a circular link
        if is_folder:
            yield entry.name, entry


def find(name: str, runs_dir: Path | None) -> Run:
    """Returns the run of this id, prefix, path, SWEEP/POINT or `latest`; raises NoRunError for none or several.

    runs_dir: folder of runs; None, as for the functions below: the default one.
    """
    return _point(name, runs_dir) or Run(_folder(name, runs_dir, "run"))


def find_sweep(name: str, runs_dir: Path | None) -> Sweep:
    """Returns the sweep that a user names (id, prefix, `latest`, path); raises NoRunError for none or several."""
    return Sweep(_folder(name, runs_dir, "sweep"))


def find_either(name: str, runs_dir: Path | None) -> Run | Sweep:
    """Finds a run, point or sweep by id, unique prefix, `latest`, directory or SWEEP/POINT; raises NoRunError."""
    if (point := _point(name, runs_dir)) is not None:
        return point
    folder = _folder(name, runs_dir, "run", "sweep")
    return Run(folder) if _has(folder, "run") else Sweep(folder)


def _point(name: str, runs_dir: Path | None) -> Run | None:
    sweep, slash, point = name.rpartition("/")
    if not slash or not point.isdecimal() or os.path.exists(os.path.expanduser(name)):
        return None
    found = find_sweep(sweep, runs_dir)
    require_known([int(point)], found, len(found.manifest().points))
    return found.run(int(point))


def _folder(name: str, runs_dir: Path | None, *kinds: str) -> Path:
    # Returns the directory of the run or sweep that a user names
    runs_dir, kind = runs_dir or default_runs_dir(), kinds[0]
    if "/" in name:
        path = Path(os.path.expanduser(name)).resolve()
        if _has(path, *kinds):
            return path
        if "/" in name[:-1] or not name.strip("./"):
            why = f"is not a {kind}: it has no {RECORDS[kind]}" if os.path.isdir(path) else "does not exist"
            why += "" if name[0] in "/~." else "; a point of a sweep is SWEEP/NUMBER"
            raise NoRunError(f"{path} {why}")
        name = name[:-1]  # shells complete a sweep to `SWEEP/`
    path = runs_dir / name
    if _has(path, *kinds):
        return path.resolve()
    if kinds == ("run",) and _has(path, "sweep"):
        sweep = path.resolve().name
        which = f"{name} is {sweep}, a sweep" if name == "latest" else f"{name} is a sweep"
        raise NoRunError(f"{which}: name one of its points ({sweep}/0), or see `launcher sweep --help`")
    if name == "latest":
        if kind == "sweep" and _has(path, "run"):  # the link leads to a run that was submitted since
            for folder in newest(runs_dir):
                if may_have(folder, RECORDS[kind]):
                    return Path(folder)
        raise NoRunError(f"there is no latest {kind} in {runs_dir}")
    there = names(runs_dir)
    matches = sorted(
        each for each in there
        if each.startswith(name) and any(may_have(f"{runs_dir}/{each}", RECORDS[kind]) for kind in kinds)
    )  # fmt: skip
    if len(kinds) > 1:  # a sweep's pilots are its own
        matches = [each for each in matches if each.rpartition(PILOT)[0] not in matches]
    if len(matches) == 1:
        return (runs_dir / matches[0]).resolve()
    if matches:
        raise NoRunError(f"{name!r} fits {len(matches)} {'s and '.join(kinds)}s: {', '.join(matches[:5])}")
    if kinds == ("sweep",) and _has(path, "run"):
        raise NoRunError(f"{name} is a run, and no sweep: see `launcher status {name}`")
    no_sweep = ", and no sweep" if len(kinds) > 1 else ""
    there.sort()
    place = bisect.bisect(there, name)
    similar = near(name, [*there[max(0, place - COMPARED) : place + COMPARED], "latest"])
    raise NoRunError(
        f"no {kind} {name!r} in {runs_dir}{no_sweep}.{similar} What was submitted with another LAUNCHER_RUNS_DIR is "
        "not there"
    )


def _has(folder: Path, *kinds: str) -> bool:
    return any(unwrap(exists(folder / RECORDS[kind])) for kind in kinds)
