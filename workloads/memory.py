"""Finds out how much memory a rank can still allocate. On a CPU, the kernel kills a rank that allocates too much."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from launcher import Env

Read = Callable[[str], str]  # returns the content of the file with this path; raises OSError


def available(env: Env) -> int | None:
    """Returns the bytes that this rank can allocate: on its GPU, or an equal share of its node's memory; None:
    unknown."""
    if env.device.type != "cpu":
        # Lazily: torch takes a second, and checks on the login node need none of it
        from launcher.worker import devices

        found = devices.memory(env.device)
        return None if found is None else found[0]
    whole = on_node(lambda path: Path(path).read_text())
    return None if whole is None else whole // env.local_world_size


def on_node(read: Read) -> int | None:
    """Returns the bytes that all processes of this process's cgroups can still allocate; None: unknown.

    The result is the minimum of MemAvailable and, for each cgroup of the process and each of its parents, the limit
    minus the usage without caches (proc(5); Linux: admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst).
    """
    found = []
    for line in _lines(read, "/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            found.append(int(line.split()[1]) * 1024)
    for line in _lines(read, "/proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            found += _free(read, "/sys/fs/cgroup", path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            files = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            found += _free(read, "/sys/fs/cgroup/memory", path, *files)
    return max(0, min(found)) if found else None


def _free(read: Read, root: str, path: str, limit: str, usage: str, cache: str) -> list[int]:
    free = []
    parts = [part for part in path.split("/") if part and part != ".."]
    for depth in range(len(parts), -1, -1):
        folder = "/".join([root, *parts[:depth]])
        most, used = _lines(read, f"{folder}/{limit}"), _lines(read, f"{folder}/{usage}")
        if most and used and most[0].isdecimal() and used[0].isdecimal():  # `max`: no limit
            pairs = (line.split() for line in _lines(read, f"{folder}/memory.stat"))
            cached = sum(int(value) for name, value in pairs if name == cache)
            free.append(int(most[0]) - int(used[0]) + cached)
    return free


def _lines(read: Read, path: str) -> list[str]:
    try:
        return read(path).splitlines()
    except OSError:
        return []
