"""Detects progress of the user's own program or function by the mtimes of its checkpoint files, without reading them.

Besides the steps that the program reports with `launcher.progress`, a newer file counts as progress. Considered are all
files below LAUNCHER_CHECKPOINT_DIR, and:

| `workload.checkpoint` | further files |
|---|---|
| empty | files in the job's working folder with an extension in ENDINGS |
| a path or a pattern (`out/*.pt`) | each matching file, and all files below a matching folder |
"""

from __future__ import annotations

import glob
import os
import time
from collections.abc import Iterator
from pathlib import Path

from launcher.files.shared_files import is_transient
from launcher.spec.plan import JobPlan

SCAN_TIMEOUT = 3.0  # seconds for one scan; less than launch.heartbeat, after which a silent agent counts as lost
ENDINGS = (".pt", ".pth", ".ckpt", ".safetensors", ".distcp")


def newest(plan: JobPlan) -> int:
    """Returns the mtime of the newest checkpoint file of a program, in nanoseconds since the epoch; -1: no file.

    Files that are not reached within SCAN_TIMEOUT seconds are ignored.

    Raises:
        OSError: a file or folder cannot be read now, so it is unknown whether something was saved.
    """
    give_up, found = time.monotonic() + SCAN_TIMEOUT, -1
    for path in _files(plan):
        changed = _changed(path)
        found = found if changed is None else max(found, changed)
        if time.monotonic() > give_up:
            break
    return found


def describe_locations(plan: JobPlan) -> str:
    """Returns the places where checkpoint files are looked for, as text for messages."""
    named = plan.workload.params.get("checkpoint")
    where = named or f"{'*' + ', *'.join(ENDINGS)} in {plan.workdir}"
    return f"{plan.checkpoint.dir}, {where}"


def _files(plan: JobPlan) -> Iterator[Path]:
    yield from _below(Path(plan.checkpoint.dir))
    named = plan.workload.params.get("checkpoint")
    if named is None:
        try:
            entries = [Path(entry.path) for entry in os.scandir(plan.workdir)]
        except OSError as error:
            _raise_if_transient(error)
            return
        yield from (path for path in entries if path.suffix in ENDINGS)
        return
    pattern = os.path.join(plan.workdir, os.path.expanduser(named))
    for match in [pattern, *glob.glob(pattern, recursive=True)]:  # noqa: PTH207  the pattern may be absolute
        path = Path(match)
        yield path
        yield from _below(path)


def _below(folder: Path) -> Iterator[Path]:
    for path, _, names in os.walk(folder, onerror=_raise_if_transient):
        yield from (Path(path, name) for name in names)


def _changed(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns if not path.is_dir() else None
    except OSError as error:  # it was just replaced
        _raise_if_transient(error)
        return None


def _raise_if_transient(error: OSError) -> None:
    if is_transient(error):
        raise error
