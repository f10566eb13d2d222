"""A process group that outlives the process that started it, identified by its leader's id and start time (Linux)."""

from __future__ import annotations

import os
import signal
import socket
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Process:
    """The leader of a process group.

    Attributes:
        pid: the process id, which is also the group's.
        start: the start time in clock ticks since boot, which differs from that of a later process with the same id.
        host: the host where it runs.
    """

    pid: int
    start: int
    host: str

    @classmethod
    def of(cls, pid: int) -> Process:
        """The process with this id, on this machine."""
        state = _state(pid)
        return cls(pid, state[1] if state else 0, socket.gethostname())

    def here(self) -> bool:
        """Whether the process belongs to this machine; nothing is known about processes of other machines."""
        return self.host == socket.gethostname()

    def alive(self) -> bool:
        """Whether the process runs on this machine; False for a zombie."""
        state = _state(self.pid) if self.here() else None
        return state is not None and state[0] != "Z" and state[1] == self.start

    def signal(self, number: signal.Signals) -> None:
        """Signals the whole process group, if its leader is still the same process."""
        if self.alive():
            os.killpg(self.pid, number)


def _state(pid: int) -> tuple[str, int] | None:
    """A process's state letter and start time (man 5 proc, /proc/PID/stat, fields 3 and 22); None if there is none.

    Raises:
        OSError: /proc cannot be read now (EMFILE, ENOMEM), and a process that is not seen may live.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError, PermissionError):  # the last: another user's, with hidepid=1
        return None
    return fields[0], int(fields[19])


def namespace() -> str:
    """Identifies this machine until it boots anew, and the namespace of process ids in it; empty: unknown."""
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""
