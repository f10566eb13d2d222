"""A process group that outlives the process that started it, identified by its leader's id and start time (Linux)."""

from __future__ import annotations

import os
import signal
import socket
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
        """Returns whether the process runs on this machine; False for a zombie, and if it is on another machine.

        Raises OSError: /proc cannot be read now.
        """
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
