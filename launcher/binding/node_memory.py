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
    used: int | None = None  # bytes in use that the kernel cannot take back; None: unknown


def host_kills(root: Path = ROOT) -> int:
    """Returns how many processes the kernel has killed for lack of memory since boot (/proc/vmstat, Linux 4.13)."""
    return _kills(root / "proc/vmstat")


def of_cgroup(root: Path = ROOT) -> MemoryCgroup:
    """Returns the memory of the nearest cgroup with a memory limit, upwards from this process's own cgroup.

    Supports versions 2 and 1 (man 7 cgroups).

    root: directory with the `proc` and `sys` to read; tests replace it.
    """
    lines = _text(root / "proc/self/cgroup").splitlines()
    for line in lines:
        _, controllers, path = ([*line.split(":", 2), "", ""])[:3]
        if "memory" in controllers.split(","):
            return _read(root / "sys/fs/cgroup/memory", path, _VERSION_1)
    for line in lines:
        if line.startswith("0::"):
            return _read(root / "sys/fs/cgroup", line[3:], _VERSION_2)
    return MemoryCgroup(None, None, 0)


def free(root: Path = ROOT) -> int | None:
    """Returns the bytes that this node can still give this process, by its cgroup and MemAvailable; None: unknown."""
    cgroup, found = of_cgroup(root), list[int]()
    if cgroup.limit is not None and cgroup.used is not None:
        found.append(max(0, cgroup.limit - cgroup.used))
    if (available := _value(root / "proc/meminfo", "MemAvailable:")) is not None:
        found.append(available * 1024)
    return min(found, default=None)


# Names of files: limit, highest use, kills, use; and the entry of memory.stat with the file cache that can be dropped
_VERSION_1 = (
    "memory.limit_in_bytes", "memory.max_usage_in_bytes", "memory.oom_control", "memory.usage_in_bytes",
    "total_inactive_file",
)  # fmt: skip
_VERSION_2 = ("memory.max", "memory.peak", "memory.events", "memory.current", "inactive_file")


def _read(mount: Path, path: str, names: tuple[str, str, str, str, str]) -> MemoryCgroup:
    limit, peak, events, usage, cache = names
    folder = own = mount / path.lstrip("/")
    while True:
        bytes_ = _text(folder / limit).strip()
        if bytes_.isdecimal() and int(bytes_) < 1 << 60:  # version 1 has a huge number for no limit
            text = _text(folder / peak).strip()
            used = _text(folder / usage).strip()
            return MemoryCgroup(
                int(bytes_), int(text) if text.isdecimal() else None, _kills(own / events),
                int(used) - (_value(folder / "memory.stat", cache) or 0) if used.isdecimal() else None,
            )  # fmt: skip
        if folder in (mount, folder.parent):
            return MemoryCgroup(None, None, _kills(own / events))
        folder = folder.parent


def _kills(path: Path) -> int:
    return _value(path, "oom_kill") or 0


def _value(path: Path, key: str) -> int | None:
    for line in _text(path).splitlines():  # KEY NUMBER
        found, *rest = [*line.split(), ""]
        if found == key and rest and rest[0].isdecimal():
            return int(rest[0])
    return None


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text()
    return ""
