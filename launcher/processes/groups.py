"""A process group that outlives whoever started it, recognised again by its start time (Linux, /proc)."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Process:
    """The leader of a process group.

    Attributes:
        pid: its id, which is the group's too.
        start: its start time in clock ticks since boot: another process with this id has another one.
        host: where it runs.
    """

    pid: int
    start: int
    host: str

    @classmethod
    def of(cls, pid: int) -> Process:
        """The process with this id, which must be there."""
        state = _state(pid)
        return cls(pid, state[1] if state else 0, socket.gethostname())

    @classmethod
    def started(cls, journal: Sequence[Mapping[str, Any]]) -> Process | None:
        """The one that a run's journal tells of last."""
        entry = next((entry for entry in reversed(journal) if entry["event"] == "process"), None)
        return None if entry is None else cls(entry["pid"], entry["start"], entry["host"])

    def here(self) -> bool:
        """Whether it belongs to this machine: of another one nothing can be told."""
        return self.host == socket.gethostname()

    def alive(self) -> bool:
        """Whether it runs on this machine (a zombie does not)."""
        state = _state(self.pid) if self.here() else None
        return state is not None and state[0] != "Z" and state[1] == self.start

    def signal(self, number: signal.Signals) -> None:
        """Signals the whole group if the process is still the one meant."""
        if self.alive():
            os.killpg(self.pid, number)


def _state(pid: int) -> tuple[str, int] | None:
    """State letter and start time (man 5 proc, /proc/PID/stat, fields 3 and 22)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return fields[0], int(fields[19])
