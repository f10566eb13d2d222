"""An index of the runs and sweeps that may be live, so that `status` need not read those that are over.

    RUNS_DIR/.live/ID          empty; the run or sweep ID may be live; mtime: the time of its last submission
    RUNS_DIR/.live/.whole      the index is complete: every live run or sweep of RUNS_DIR has its file
    RUNS_DIR/.live/.ID.counts  of a sweep that is over: the number of its points in each state

A submitter makes the file before it submits. A command removes the file when it finds that the run is over and no
submission can follow. A superfluous file only costs reading one run that is over. So a file is kept in case of doubt,
and no lock is needed:

| what happens | why the index stays right |
|---|---|
| a run is resumed while another command sees it as over | the file is younger than SETTLED, and is kept |
| a job's script submits the next job of its run | that is a submission, which makes the file |
| RUNS_DIR/.live is deleted | there is no `.whole`, so all records are read, once |
| a submitter is killed before it submits | one superfluous file |
| the index cannot be written | all records are read, every time |

For a point of a sweep, the index has the sweep. An index that is a symbolic link, or not the user's own, is not used:
a user who can write to RUNS_DIR could otherwise make this user create or remove files elsewhere
(launcher/files/folder_checks.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from launcher.files import folder_checks, safe_io
from launcher.paths import default_runs_dir

FOLDER, WHOLE = ".live", ".whole"
SETTLED = 600.0  # seconds after which a submission is certain to be complete, even if the machines' clocks differ


def add(path: Path) -> None:
    """Adds a run or sweep that is about to be submitted to the index of its folder, and of the default folder."""
    for folder in _folders(path):
        add_to(folder, path.name)


def _folders(path: Path) -> list[Path]:
    folders = [path.parent]
    with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: the user has no home folder
        index = default_runs_dir()
        if index != path.parent and (index / path.name).resolve() == path.resolve():
            folders.append(index)
    return folders


def add_to(runs_dir: Path, name: str) -> None:
    """Adds a run or sweep to the index. On an error `status` shows it while it is one of the newest."""
    file = runs_dir / FOLDER / name
    for _ in range(3):  # another command may remove it meanwhile
        with contextlib.suppress(OSError):
            file.parent.mkdir(mode=0o700, exist_ok=True)
            if not folder_checks.is_own(file.parent):
                return
            _counts(runs_dir, name).unlink(missing_ok=True)
            file.touch(mode=0o600)
            if file.exists():
                return


def remove(runs_dir: Path, name: str, *, done: bool = False) -> None:
    """Removes a run or sweep that is over; unless `done`, not if younger than SETTLED. Errors are ignored."""
    file = runs_dir / FOLDER / name
    aside = file.with_name(f".{name}.{os.getpid()}")
    if not folder_checks.is_own(file.parent):
        return
    with contextlib.suppress(OSError):
        _counts(runs_dir, name).unlink(missing_ok=True)
        if not done and time.time() - file.stat().st_mtime < SETTLED:
            return
        file.rename(aside)  # so that the time that is checked is that of the file that is removed
        if not done and time.time() - aside.stat().st_mtime < SETTLED:
            file.touch(mode=0o600)
        aside.unlink()


def discard(path: Path) -> None:
    """Removes a run that was not submitted after all; undoes `add`."""
    for folder in (each / FOLDER for each in _folders(path)):
        with contextlib.suppress(OSError):
            if folder_checks.is_own(folder):
                (folder / path.name).unlink(missing_ok=True)
                folder.rmdir()  # fails unless it was the first run


def _counts(runs_dir: Path, name: str) -> Path:
    # Not in the sweep's directory: commands sort sweeps by the time at which their directory last changed
    return runs_dir / FOLDER / f".{name}.counts"


def write_counts(runs_dir: Path, name: str, number: Mapping[str, int]) -> None:
    """Writes the number of points in each state of a sweep of `runs_dir` that is over. Errors are ignored."""
    with contextlib.suppress(OSError):
        if folder_checks.is_own(runs_dir / FOLDER):
            safe_io.write(_counts(runs_dir, name), json.dumps(number), sync=False)


def read_counts(runs_dir: Path, name: str) -> dict[str, int] | None:
    """Returns the number of points in each state that `write_counts` wrote; None: there is no valid file."""
    try:
        number = safe_io.parse_json(safe_io.read_whole(_counts(runs_dir, name)))
    except (OSError, ValueError):
        return None
    sound = isinstance(number, dict) and number and all(isinstance(each, int) for each in number.values())
    return number if sound else None


def possibly_live(runs_dir: Path) -> set[str] | None:
    """Returns the names of the runs and sweeps that may be live; None: the index is incomplete, so any may be live."""
    if not folder_checks.is_own(runs_dir / FOLDER):
        return None
    try:
        names = {entry.name for entry in os.scandir(runs_dir / FOLDER)}
    except OSError:
        return None
    return {name for name in names if not name.startswith(".")} if WHOLE in names else None


def rebuild(runs_dir: Path, live: Iterable[str], done: Collection[str]) -> None:
    """Completes the index with `live`, without `done`, once all runs of the folder were read; ignores errors."""
    with contextlib.suppress(OSError):
        folder = runs_dir / FOLDER
        folder.mkdir(mode=0o700, exist_ok=True)
        if not folder_checks.is_own(folder):
            return
        for name in {entry.name for entry in os.scandir(folder)}.intersection(done):
            remove(runs_dir, name, done=True)
        for name in live:
            file = folder / name
            if not file.exists():
                file.touch(mode=0o600)
                os.utime(file, (0, 0))  # older than SETTLED
        (folder / WHOLE).touch(mode=0o600)
