"""An index of the runs and sweeps of a folder that may be live, so that `status` need not read all that are over.

    RUNS_DIR/.live/ID       empty; ID was submitted at this file's time, and may be live since
    RUNS_DIR/.live/.whole   when this was made, everything live had its file
    SWEEP/.counts.json      for a sweep that is over: the number of its points in each state

A submitter makes the file before it submits; a command that finds the run over for good removes it. A superfluous file
costs one look at a run that is over. So a file stays whenever there is doubt, and no lock is needed:

| what happens | why the index stays right |
|---|---|
| a run is resumed while another command sees it over | the file is younger than SETTLED, and stays |
| a job's script submits the next job of its run | that is a submission, and makes the file |
| the folder is deleted, or older than this index | there is no `.whole`: all records are read, once |
| a submitter is killed in between | one superfluous file |
| nothing can be written here | all records are read, every time |

A point of a sweep counts as its sweep. An index that is a link, or not the user's own, is not used: a user who can
write to the folder could otherwise make this user create or remove files elsewhere (launcher/files/ownership.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from launcher.files import ownership, run_files
from launcher.paths import default_runs_dir

FOLDER, WHOLE = ".live", ".whole"
COUNTS = ".counts.json"  # in a sweep that is over: the number of its points in each state
SETTLED = 600.0  # seconds after which a submission has ended, even if the machines' clocks differ


def add(path: Path) -> None:
    """Adds the run or sweep in this directory, which is about to be submitted."""
    folders = [path.parent]
    with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: the user has no home folder
        (path / COUNTS).unlink(missing_ok=True)
        index = default_runs_dir()
        if index != path.parent and (index / path.name).resolve() == path.resolve():
            folders.append(index)
    for folder in folders:
        add_to(folder, path.name)


def add_to(runs_dir: Path, name: str) -> None:
    """Makes the file of `name`. If that fails, `status` shows the run only while it is one of the newest."""
    file = runs_dir / FOLDER / name
    for _ in range(3):  # another command may remove it meanwhile
        with contextlib.suppress(OSError):
            file.parent.mkdir(mode=0o700, exist_ok=True)
            if not ownership.is_own(file.parent):
                return
            file.touch(mode=0o600)
            if file.exists():
                return


def remove(runs_dir: Path, name: str, *, done: bool = False) -> bool:
    """Removes the file of a run that is over for good, unless it may be submitted right now; returns whether it did.

    Args:
        runs_dir: the folder of the runs.
        name: name of the run or sweep.
        done: whether the run is done, so that no submission can follow.
    """
    file = runs_dir / FOLDER / name
    aside = file.with_name(f".{name}.{os.getpid()}")
    if not ownership.is_own(file.parent):
        return False
    try:
        if not done and time.time() - file.stat().st_mtime < SETTLED:
            return False
        file.rename(aside)  # so that the time is read of the file that is removed
        young = not done and time.time() - aside.stat().st_mtime < SETTLED
        if young:
            file.touch(mode=0o600)
        aside.unlink()
    except OSError:
        return False
    return not young


def discard(path: Path) -> None:
    """Undoes `add` for a run that was not submitted."""
    folder = path.parent / FOLDER
    if not ownership.is_own(folder):
        return
    with contextlib.suppress(OSError):
        (folder / path.name).unlink(missing_ok=True)
        folder.rmdir()  # fails unless it was the first run


def write_counts(sweep: Path, number: Mapping[str, int]) -> None:
    """Writes the number of points in each state, for a sweep that is over for good."""
    with contextlib.suppress(OSError):
        run_files.write(sweep / COUNTS, json.dumps(number), sync=False)


def read_counts(sweep: Path) -> dict[str, int] | None:
    """Returns what `write_counts` wrote, unless the sweep was submitted since; None: nothing valid."""
    try:
        number = run_files.parse_json(run_files.read_whole(sweep / COUNTS))
    except (OSError, ValueError):
        return None
    sound = isinstance(number, dict) and number and all(isinstance(each, int) for each in number.values())
    return number if sound else None


def possibly_live(runs_dir: Path) -> set[str] | None:
    """Returns the names of what may be live; None: the index is not complete, so anything may be live."""
    if not ownership.is_own(runs_dir / FOLDER):
        return None
    try:
        names = {entry.name for entry in os.scandir(runs_dir / FOLDER)}
    except OSError:
        return None
    return {name for name in names if not name.startswith(".")} if WHOLE in names else None


def rebuild(runs_dir: Path, live: Iterable[str], done: Collection[str]) -> None:
    """Completes the index after all runs of the folder were read.

    Args:
        runs_dir: the folder of the runs.
        live: names of what may be live.
        done: names of what is done. All other files stay.
    """
    with contextlib.suppress(OSError):
        folder = runs_dir / FOLDER
        folder.mkdir(mode=0o700, exist_ok=True)
        if not ownership.is_own(folder):
            return
        for name in {entry.name for entry in os.scandir(folder)}.intersection(done):
            remove(runs_dir, name, done=True)
        for name in live:
            file = folder / name
            if not file.exists():
                file.touch(mode=0o600)
                os.utime(file, (0, 0))  # older than SETTLED
        (folder / WHOLE).touch(mode=0o600)
