"""Processes on this machine that others can find again and signal; how to kill what a rank leaves behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Process:
    """The leader of a process group."""

    pid: int  # the process id, which is also the id of its group
    start: int  # the start time in clock ticks since boot: distinguishes it from a later process with the same id
    host: str  # name of the host where it runs

    @classmethod
    def of(cls, pid: int) -> Process:
        """Returns the process with this id on this machine; without such a process `start` is 0."""
        state = _state(pid)
        return cls(pid, state[1] if state else 0, socket.gethostname())

    def here(self) -> bool:
        """Returns whether the process was started on this machine."""
        return self.host == socket.gethostname()

    def alive(self) -> bool:
        """Returns whether the process runs on this machine, not as a zombie; raises OSError."""
        state = _state(self.pid) if self.here() else None
        return state is not None and state[0] != "Z" and state[1] == self.start

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the whole process group, if the process is alive on this machine."""
        if self.alive():
            os.killpg(self.pid, number)


def _state(pid: int) -> tuple[str, int] | None:
    # Returns a process's state letter and start time (man 5 proc, /proc/PID/stat, fields 3 and 22).
    # None: no process has this id, or it belongs to another user and /proc hides it.
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError, PermissionError):  # the last: another user's, with hidepid=1
        return None
    return fields[0], int(fields[19])


def namespace() -> str:
    """Returns a string that identifies this boot of this machine and the process-id namespace; empty: unknown."""
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


# -- Kills everything that a rank leaves behind: the agent adopts processes that lose their parent, and kills them


_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # prctl(2)
_LIBC = ctypes.CDLL(None)


def adopt() -> None:
    """Makes this process the new parent of its descendants that lose their parent (prctl: a child subreaper)."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent(parent: int) -> None:
    """Makes the kernel kill this process (a fork) when its parent ends; exits with 1 if it has."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def children() -> set[int]:
    """Returns the ids of this process's children ([] without CONFIG_PROC_CHILDREN); OSError: unreadable now."""
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
    """Kills and reaps all children but `keep`, and orphans that it adopts, in `timeout`; returns their ids."""
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
