"""Reads the memory use of ranks and the kernel's counts of out-of-memory kills: a killed process reports neither.

The agent reads at the start of a round and after a failure: a few small files of /proc and /sys, some 0.1 ms.
"""

from __future__ import annotations

import contextlib
import resource
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


class Watch:
    """Reads memory use, and counts the out-of-memory kills since this object was made.

    root: directory with the `proc` and `sys` to read; tests replace it.
    """

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self._kills, self._host_kills = memory_cgroup(root).kills, host_kills(root)

    def read(self) -> dict[str, int]:
        """Returns memory use in bytes and counts of out-of-memory kills. Values that are zero or unknown are missing.

        | key | value |
        |---|---|
        | `largest` | highest resident memory of any one ended child process (getrusage, RUSAGE_CHILDREN) |
        | `limit`, `peak` | limit and highest memory use of the cgroup that limits this process |
        | `kills` | out-of-memory kills in this process's own cgroup since this object was made |
        | `host_kills` | out-of-memory kills on the whole host since this object was made |
        """
        now = memory_cgroup(self._root)
        values = {
            "largest": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024,
            "limit": now.limit,
            "peak": now.peak,
            "kills": now.kills - self._kills,
            "host_kills": host_kills(self._root) - self._host_kills,
        }
        return {name: value for name, value in values.items() if value}


def host_kills(root: Path = ROOT) -> int:
    """Returns how many processes the kernel has killed for lack of memory since boot (/proc/vmstat, Linux 4.13)."""
    return _kills(root / "proc/vmstat")


def memory_cgroup(root: Path = ROOT) -> MemoryCgroup:
    """Returns the memory of the nearest cgroup with a memory limit, upwards from this process's own cgroup.

    Supports versions 2 and 1 (man 7 cgroups).

    root: directory with the `proc` and `sys` to read; tests replace it.
    """
    lines = _text(root / "proc/self/cgroup").splitlines()
    for line in lines:
        _, controllers, path = ([*line.split(":", 2), "", ""])[:3]
        if "memory" in controllers.split(","):
            names = "memory.limit_in_bytes", "memory.max_usage_in_bytes", "memory.oom_control"
            return _read(root / "sys/fs/cgroup/memory", path, *names)
    for line in lines:
        if line.startswith("0::"):
            return _read(root / "sys/fs/cgroup", line[3:], "memory.max", "memory.peak", "memory.events")
    return MemoryCgroup(None, None, 0)


def _read(mount: Path, path: str, limit: str, peak: str, events: str) -> MemoryCgroup:
    folder = own = mount / path.lstrip("/")
    while True:
        bytes_ = _text(folder / limit).strip()
        if bytes_.isdecimal() and int(bytes_) < 1 << 60:  # version 1 has a huge number for no limit
            text = _text(folder / peak).strip()
            return MemoryCgroup(int(bytes_), int(text) if text.isdecimal() else None, _kills(own / events))
        if folder in (mount, folder.parent):
            return MemoryCgroup(None, None, _kills(own / events))
        folder = folder.parent


def _kills(path: Path) -> int:
    for line in _text(path).splitlines():
        key, _, value = line.partition(" ")
        if key == "oom_kill" and value.strip().isdecimal():
            return int(value)
    return 0


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text()
    return ""
