"""Detects progress of the user's own program or function by the mtimes of its checkpoint files, without reading them.

Besides the steps that the program reports with `launcher.progress`, a newer file counts as progress. Considered are all
files below LAUNCHER_CHECKPOINT_DIR, and:

| `workload.checkpoint` | further files |
|---|---|
| empty | files in the job's working folder with an extension in ENDINGS |
| a path or a pattern (`out/*.pt`) | each matching file, and all files below a matching folder |
"""

from __future__ import annotations

import errno
import fnmatch
import glob
import heapq
import math
import os
import stat
import time
from collections.abc import Callable, Iterator
from itertools import chain

from launcher.errors import is_transient
from launcher.plan.plan import JobPlan
from launcher.runs.lease_and_locks import RUN_FILE

SCAN_TIMEOUT = 60.0  # seconds for one scan
EVERY = 100  # folders and entries of them that a scan looks at before it looks at the time
ENDINGS = (".pt", ".pth", ".ckpt", ".safetensors", ".distcp")


def newest(plan: JobPlan, enough: float = math.inf, seconds: float = SCAN_TIMEOUT) -> int:
    """Returns the mtime (ns since the epoch) of a program's newest checkpoint file; -1: no file.

    The first file that is newer than `enough` is taken for the newest. Folders that changed last are read first.
    Raises OSError: something cannot be read now, or was not reached in so many seconds.
    """
    found = -1
    for _, status in files(plan, seconds):
        found = max(found, status.st_mtime_ns)
        if found > enough:
            break
    return found


def describe_locations(plan: JobPlan) -> str:
    """Returns the places where checkpoint files are looked for, as text for messages."""
    where = plan.workload.params.get("checkpoint") or f"{'*' + ', *'.join(ENDINGS)} in {plan.workdir}"
    return f"{plan.checkpoint.dir}, {where}"


def files(plan: JobPlan, seconds: float = math.inf) -> Iterator[tuple[str, os.stat_result]]:
    """Yields path and status of a program's checkpoint files, folders that changed last first.

    Raises OSError: something cannot be read now, or was not reached in so many seconds.
    """
    limit, mark = _Limit(seconds), os.path.join(plan.checkpoint.dir, RUN_FILE)  # a mark is no progress
    for path, status in _files(plan, limit):
        if path != mark:
            yield path, status
        limit.check()


class _Limit:
    # It ends a scan also if that finds nothing but folders and files of other kinds

    def __init__(self, seconds: float) -> None:
        self._seconds, self._give_up, self._count = seconds, time.monotonic() + seconds, 0

    def count(self) -> None:
        self._count += 1
        if self._count % EVERY == 0:
            self.check()

    def check(self) -> None:
        if time.monotonic() >= self._give_up:
            raise TimeoutError(
                errno.ETIMEDOUT, f"it has more files and folders than could be looked at in {self._seconds:.0f} s"
            )


def _files(plan: JobPlan, limit: _Limit) -> Iterator[tuple[str, os.stat_result]]:
    yield from _below(plan.checkpoint.dir, limit)
    named = plan.workload.params.get("checkpoint")
    if named is None:
        for entry in _entries(plan.workdir, limit):
            if entry.name.endswith(ENDINGS) and (status := _status(entry.stat)) and not stat.S_ISDIR(status.st_mode):
                yield entry.path, status
        return
    pattern = os.path.expanduser(named)
    matches = _matches(plan.workdir, pattern, limit) if glob.has_magic(pattern) else ()
    for match in chain([os.path.join(plan.workdir, pattern)], matches):
        yield from _below(match, limit)


def _matches(folder: str, pattern: str, limit: _Limit) -> Iterator[str]:
    # Of a folder that a last `**` matches only the path is yielded, and not what is below. Links below `**` are left
    # out.
    parts = tuple(part for part in pattern.split("/") if part not in ("", "."))
    waiting = [("/" if os.path.isabs(pattern) else folder, parts)]
    while waiting:
        path, parts = waiting.pop()
        first, rest = parts[:1], parts[1:]
        if not first or parts == ("**",):
            yield path
        elif first == ("**",):
            waiting.append((path, rest))
            below = (each for each in _entries(path, limit) if not each.name.startswith(".") and _is_folder(each))
            waiting += [(each.path, parts) for each in below if rest[:1] != first]
        elif glob.has_magic(first[0]):
            hidden = first[0].startswith(".")
            waiting += [
                (each.path, rest)
                for each in _entries(path, limit)
                if fnmatch.fnmatchcase(each.name, first[0]) and (hidden or not each.name.startswith("."))
            ]
        else:
            waiting.append((os.path.join(path, first[0]), rest))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    status = _status(lambda: entry.stat(follow_symlinks=False))
    return status is not None and stat.S_ISDIR(status.st_mode)


def _below(path: str, limit: _Limit) -> Iterator[tuple[str, os.stat_result]]:
    if (status := _status(lambda: os.stat(path))) and not stat.S_ISDIR(status.st_mode):
        yield path, status
        return
    waiting = [(0, path)]  # the folder that changed last is first
    while waiting:
        _, folder = heapq.heappop(waiting)
        for entry in _entries(folder, limit):
            if (status := _status(entry.stat)) is None:
                continue
            if not stat.S_ISDIR(status.st_mode):
                yield entry.path, status
            elif not entry.is_symlink():
                heapq.heappush(waiting, (-status.st_mtime_ns, entry.path))


def _entries(folder: str, limit: _Limit) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            limit.count()
            for entry in entries:
                yield entry
                limit.count()
    except OSError as error:
        _raise_if_transient(error)


def _status(call: Callable[[], os.stat_result]) -> os.stat_result | None:
    try:
        return call()
    except OSError as error:  # it was just replaced
        _raise_if_transient(error)
        return None


def _raise_if_transient(error: OSError) -> None:
    if is_transient(error):
        raise error
