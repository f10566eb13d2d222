"""The memory of this node: what limits this process, what is free, and how often the kernel killed for lack of it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")


@dataclass(frozen=True)
class MemoryCgroup:
    """Memory of the cgroup that limits this process."""

    limit: int | None  # memory limit in bytes; None: no limit
    peak: int | None  # highest memory use in bytes; None: the kernel does not report it
    # number of processes of this process's own cgroup that the kernel killed for lack of memory, since the cgroup was
    # created
    kills: int


@dataclass(frozen=True)
class _Files:
    # Names of a cgroup's files, and the entry of memory.stat with the file cache that can be dropped
    limit: str
    peak: str
    events: str
    usage: str
    cache: str


_VERSION_1 = _Files(
    "memory.limit_in_bytes", "memory.max_usage_in_bytes", "memory.oom_control", "memory.usage_in_bytes",
    "total_inactive_file",
)  # fmt: skip
_VERSION_2 = _Files("memory.max", "memory.peak", "memory.events", "memory.current", "inactive_file")


def host_kills(root: Path = ROOT) -> int:
    """Returns how many processes the kernel has killed for lack of memory since boot (/proc/vmstat, Linux 4.13)."""
    return _value(root / "proc/vmstat", "oom_kill") or 0


def of_cgroup(root: Path = ROOT) -> MemoryCgroup:
    """Returns the memory of the nearest cgroup with a memory limit, upwards from this process's own cgroup.

    root: directory with the `proc` and `sys` to read; tests replace it.
    """
    folders, files = _cgroups(root)
    kills = (_value(folders[0] / files.events, "oom_kill") or 0) if folders else 0
    for folder in folders:
        limit = _number(folder / files.limit)
        if limit is not None and limit < 1 << 60:  # version 1 has a huge number for no limit
            return MemoryCgroup(limit, _number(folder / files.peak), kills)
    return MemoryCgroup(None, None, kills)


def free(root: Path = ROOT) -> int | None:
    """Returns the bytes that this node can still give this process; None: unknown.

    The least of MemAvailable and, for its cgroup and each above it, the limit minus the usage without caches.
    """
    found = []
    folders, files = _cgroups(root)
    for folder in folders:
        limit, used = _number(folder / files.limit), _number(folder / files.usage)
        if limit is not None and used is not None:
            found.append(max(0, limit - used + (_value(folder / "memory.stat", files.cache) or 0)))
    if (available := _value(root / "proc/meminfo", "MemAvailable:")) is not None:
        found.append(available * 1024)
    return min(found, default=None)


def _cgroups(root: Path) -> tuple[list[Path], _Files]:
    # The folders of this process's cgroup and of those above it, of the version that counts memory (man 7 cgroups)
    lines = [[*line.split(":", 2), "", ""] for line in _text(root / "proc/self/cgroup").splitlines()]
    for mount, files, own in (
        ("sys/fs/cgroup/memory", _VERSION_1, (path for _, what, path, *_ in lines if "memory" in what.split(","))),
        ("sys/fs/cgroup", _VERSION_2, (path for _, what, path, *_ in lines if not what)),
    ):
        for path in own:
            parts = [part for part in path.split("/") if part not in ("", "..")]
            return [Path(root, mount, *parts[:depth]) for depth in range(len(parts), -1, -1)], files
    return [], _VERSION_2


def _value(path: Path, key: str) -> int | None:
    for line in _text(path).splitlines():  # KEY NUMBER
        found, *rest = [*line.split(), ""]
        if found == key and rest and rest[0].isdecimal():
            return int(rest[0])
    return None


def _number(path: Path) -> int | None:
    text = _text(path).strip()  # `max`: no limit
    return int(text) if text.isdecimal() else None


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text()
    return ""
