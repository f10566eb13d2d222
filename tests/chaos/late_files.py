"""Simulates a network file system that shows changes late, and pilots on different nodes, for packed sweeps.

Processes that have called `install` see the folders of claims and of slot managers, and the sizes and times of files
there, as they were up to LATE_FILES seconds ago. This holds for their own changes, too, which is stricter than NFS.
Creating a file is never late: a hard link to an existing name fails, even if the process does not see the name yet.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

FOLDERS = ("claims", "managers")
_scandir, _stat, _readlink = os.scandir, os.stat, os.readlink
_seen: dict[tuple[str, str], tuple[float, Any]] = {}


def install() -> None:
    """Makes files late in this process and the processes that it forks."""
    os.scandir, os.stat, os.readlink = _list, _ask, _namespace  # type: ignore[assignment]


class _Listing:
    """A directory listing with the interface of os.scandir's result."""

    def __init__(self, entries: list[os.DirEntry[str]]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[os.DirEntry[str]]:
        return self._entries

    def __next__(self) -> os.DirEntry[str]:
        return next(self._entries)

    def __enter__(self) -> _Listing:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Does nothing, because nothing is open."""


def _list(path: Any = ".") -> Any:
    if not isinstance(path, str | os.PathLike) or os.path.basename(os.fspath(path)) not in FOLDERS:
        return _scandir(path)
    return _Listing(_late("list", os.fspath(path), lambda: list(_scandir(path))))


def _ask(path: Any, *arguments: Any, **options: Any) -> Any:
    inside = isinstance(path, str | os.PathLike) and os.path.basename(os.path.dirname(os.fspath(path))) in FOLDERS
    if not inside or not str(path).endswith(".jsonl"):
        return _stat(path, *arguments, **options)
    return _late("stat", os.fspath(path), lambda: _stat(path, *arguments, **options))


def _late(call: str, path: str, real: Callable[[], Any]) -> Any:
    now, known = time.monotonic(), _seen.get((call, path))
    if known is None or now - known[0] >= float(os.environ.get("LATE_FILES", "0")):
        known = _seen[call, path] = now, real()
    return known[1]


def _namespace(path: Any, *arguments: Any, **options: Any) -> Any:
    """Replaces os.readlink: each run has a pid namespace of its own, as if pilots were on different nodes."""
    real = _readlink(path, *arguments, **options)
    return f"{real} {os.environ.get('LAUNCHER_RUN_DIR', '')}" if path == "/proc/self/ns/pid" else real
