"""Workloads that fail for lack of memory, disk space, a file or time, without torch; faults.py has others."""

from __future__ import annotations

import os
import resource
import signal
import time
from pathlib import Path
from typing import Any


def _last(env: Any) -> bool:
    return bool(env.rank == env.world_size - 1)


def _wait() -> dict[str, Any]:
    time.sleep(600)
    return {}


def raises(config: Any, env: Any) -> dict[str, Any]:
    print(f"rank {env.rank} is about to compute", flush=True)
    if _last(env):
        raise ValueError("the loss is a banana")
    return _wait()


def takes_memory(config: Any, env: Any) -> dict[str, Any]:
    """Takes memory on the last rank until the rank is killed, but at most 3 GiB."""
    if _last(env):
        taken = []
        for _ in range(48):
            taken.append(b"x" * (64 << 20))
            time.sleep(0.1)
    return _wait()


def may_not_take_memory(config: Any, env: Any) -> dict[str, Any]:
    """Raises MemoryError on the last rank, by a limit of its address space (RLIMIT_AS)."""
    if _last(env):
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20),) * 2)
        bytearray(1 << 30)
    return _wait()


def fills_a_disk(config: Any, env: Any) -> dict[str, Any]:
    if _last(env):
        with open("/dev/full", "w") as file:
            file.write("x" * 100)
    return _wait()


def misses_a_file(config: Any, env: Any) -> dict[str, Any]:
    return {"bytes": Path("/data/imagenet/train.tar").stat().st_size}


def ignores_every_stop(config: Any, env: Any) -> dict[str, Any]:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    print("asleep", flush=True)
    return _wait()


def sleeps(config: Any, env: Any) -> dict[str, Any]:
    print("asleep", flush=True)
    return _wait()
