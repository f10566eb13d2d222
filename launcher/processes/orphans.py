"""Kills everything that a rank leaves behind: the agent adopts processes that lose their parent, and kills them."""

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
    """Makes this process the new parent of its descendants that lose their parent (prctl: a child subreaper)."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent(parent: int) -> None:
    """Makes the kernel kill this process when its parent ends. Call it in a fork.

    parent: the parent's process id. If the parent has ended already, this process exits with 1.
    """
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def children() -> set[int]:
    """Returns the process ids of this process's children; empty on a kernel without CONFIG_PROC_CHILDREN.

    Raises OSError: /proc cannot be read now (no file descriptor is left).
    """
    try:
        with os.scandir("/proc/self/task") as threads:
            tasks = [Path(entry.path, "children").read_text() for entry in threads]
    except FileNotFoundError:
        return set()
    return {int(pid) for text in tasks for pid in text.split()}


def _children_or_none() -> set[int]:
    with contextlib.suppress(OSError):
        return children()
    return set()


def kill(keep: Collection[int], timeout: float = 2.0) -> list[int]:
    """Kills and reaps all children of this process except `keep`, and the orphans that it then adopts.

    Returns the process ids of the killed ones, in order.

    timeout: seconds after which it gives up on processes that do not end (in uninterruptible sleep).
    """
    give_up, killed = time.monotonic() + timeout, set()
    while strangers := _children_or_none() - set(keep):
        killed |= strangers
        for pid in strangers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)
        for pid in strangers:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        if time.monotonic() > give_up:
            break
    return sorted(killed)
