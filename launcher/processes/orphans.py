"""Nothing that a rank started outlives its round: what loses its parent becomes the agent's child, and is killed."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Collection
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # prctl(2)
_LIBC = ctypes.CDLL(None)


def adopt() -> None:
    """From now on descendants of this process that lose their parent become its children (Linux)."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent(parent: int) -> None:
    """In a fork: it is killed when its parent ends, for nobody would watch it any more.

    Args:
        parent: process id of the one that has forked it. If that is gone already, this process ends here.
    """
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def children() -> set[int]:
    """Process ids of this process's children; none on a kernel without CONFIG_PROC_CHILDREN.

    Raises:
        OSError: that cannot be told now (no descriptor is left).
    """
    try:
        with os.scandir("/proc/self/task") as threads:
            tasks = [Path(entry.path, "children").read_text() for entry in threads]
    except FileNotFoundError:
        return set()
    return {int(pid) for text in tasks for pid in text.split()}


def _children_if_known() -> set[int]:
    with contextlib.suppress(OSError):
        return children()
    return set()


def kill(keep: Collection[int], patience: float = 2.0) -> list[int]:
    """Kills all children but these, and those whose parents they were; returns their ids."""
    give_up, killed = time.monotonic() + patience, set()
    while strangers := _children_if_known() - set(keep):
        killed |= strangers
        for pid in strangers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)
        for pid in strangers:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        if time.monotonic() > give_up:  # in a state that even this signal does not end
            break
    return sorted(killed)
