"""Which runs and sweeps of a folder may still be live, so that `status` need not read those that are over.

    RUNS_DIR/.live/ID       empty: ID was handed over at this file's time, and nobody has seen it over for good since
    RUNS_DIR/.live/.whole   everything that was live when this was made has its file
    SWEEP/.counts.json      of a sweep that is over: how many of its points came to what

Whoever hands a run over makes its file first; whoever sees it over for good removes the file. A file too many costs
one look at a run that is over. So whatever is doubtful keeps its file, and nothing here needs a lock:

| what happens | what keeps it right |
|---|---|
| a run is resumed while another command sees it over | the file is younger than SETTLED, and stays |
| a job's script submits the next job of its run | that is handing over, and makes the file again |
| the folder is deleted, or older than this index | there is no `.whole`: all records are looked at, once |
| a submitter is killed in between | a file too many |
| nothing can be written here | all records are looked at, every time |

A point of a sweep counts as its sweep. An index that is a link, or not the user's own, is not used: whoever may write
to a folder of runs could have files of the user's made or removed elsewhere (launcher/files/ownership.py).
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
COUNTS = ".counts.json"  # in a sweep that is over: how many of its points came to what
SETTLED = 600.0  # seconds after which nobody is handing over any more, and clocks of machines may differ


def add(path: Path) -> None:
    """The run or sweep in this directory is about to be handed over."""
    folders = [path.parent]
    with contextlib.suppress(OSError, RuntimeError):  # the latter where nobody's home is known
        (path / COUNTS).unlink(missing_ok=True)
        index = default_runs_dir()
        if index != path.parent and (index / path.name).resolve() == path.resolve():
            folders.append(index)
    for folder in folders:
        add_to(folder, path.name)


def add_to(runs_dir: Path, name: str) -> None:
    """Notes that `name` may be live; where that cannot be, it is found as long as it is among the newest."""
    file = runs_dir / FOLDER / name
    for _ in range(3):  # it may be removed meanwhile
        with contextlib.suppress(OSError):
            file.parent.mkdir(mode=0o700, exist_ok=True)
            if not ownership.is_own(file.parent):
                return
            file.touch(mode=0o600)
            if file.exists():
                return


def remove(runs_dir: Path, name: str, *, surely: bool = False) -> bool:
    """Notes that `name` is over for good, unless it may just be handed over again; whether it was noted.

    Args:
        runs_dir: the folder.
        name: of the run or sweep.
        surely: it cannot go on: the run is done.
    """
    file = runs_dir / FOLDER / name
    aside = file.with_name(f".{name}.{os.getpid()}")
    if not ownership.is_own(file.parent):
        return False
    try:
        if not surely and time.time() - file.stat().st_mtime < SETTLED:
            return False
        file.rename(aside)  # so that it is this one whose time is looked at
        young = not surely and time.time() - aside.stat().st_mtime < SETTLED
        if young:
            file.touch(mode=0o600)
        aside.unlink()
    except OSError:
        return False
    return not young


def take_back(path: Path) -> None:
    """The run that was about to be handed over is none: nothing of `add` is left."""
    folder = path.parent / FOLDER
    if not ownership.is_own(folder):
        return
    with contextlib.suppress(OSError):
        (folder / path.name).unlink(missing_ok=True)
        folder.rmdir()  # where it was the first one


def count(sweep: Path, number: Mapping[str, int]) -> None:
    """Keeps how many points of a sweep came to what; it is over for good."""
    with contextlib.suppress(OSError):
        run_files.write(sweep / COUNTS, json.dumps(number), sync=False)


def counted(sweep: Path) -> dict[str, int] | None:
    """What was kept of a sweep that was not handed over again since; None: nothing."""
    try:
        number = run_files.parse_json(run_files.read_whole(sweep / COUNTS))
    except (OSError, ValueError):
        return None
    sound = isinstance(number, dict) and number and all(isinstance(each, int) for each in number.values())
    return number if sound else None


def noted(runs_dir: Path) -> set[str] | None:
    """What may be live; None: it has never been looked at as a whole, so anything may."""
    if not ownership.is_own(runs_dir / FOLDER):
        return None
    try:
        names = {entry.name for entry in os.scandir(runs_dir / FOLDER)}
    except OSError:
        return None
    return {name for name in names if not name.startswith(".")} if WHOLE in names else None


def rebuild(runs_dir: Path, live: Iterable[str], done: Collection[str]) -> None:
    """Makes the index anew.

    Args:
        runs_dir: the folder, all of which was looked at.
        live: what may be live of it.
        done: what is done; of the rest what is noted stays so.
    """
    with contextlib.suppress(OSError):
        folder = runs_dir / FOLDER
        folder.mkdir(mode=0o700, exist_ok=True)
        if not ownership.is_own(folder):
            return
        for name in {entry.name for entry in os.scandir(folder)}.intersection(done):
            remove(runs_dir, name, surely=True)
        for name in live:
            file = folder / name
            if not file.exists():
                file.touch(mode=0o600)
                os.utime(file, (0, 0))  # handed over some time ago
        (folder / WHOLE).touch(mode=0o600)
