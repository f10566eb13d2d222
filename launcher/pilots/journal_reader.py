"""Follows the journal of another slot manager as it grows, and tells whether that slot manager is alive."""

from __future__ import annotations

from launcher.errors import LauncherError
from launcher.processes.groups import Process
from launcher.runs import claims, event_file
from launcher.runs.claims import Claims, Heartbeats, Manager
from launcher.runs.events import Event, ManagerBegan, ManagerEnded, known


class JournalReader:
    """Polls the journal of one slot manager.

    Attributes:
        gone: whether the slot manager has ended: by its journal, because its process on this machine is gone, or
            because it had no heartbeat for too long.
    """

    def __init__(self, folder: Claims, manager: Manager, silence: float) -> None:
        """
        Args:
            folder: the sweep's claims, and the journals of its slot managers.
            manager: the slot manager to follow.
            silence: seconds without a heartbeat after which the slot manager is gone.
        """
        self._claims, self._manager = folder, manager
        self._beats, self._offset = Heartbeats(silence), 0
        self._process: Process | None = None  # None: unknown, or on another machine
        self.gone = False

    def look(self, now: float) -> list[Event]:
        """Returns the events that the slot manager has written since the last call, and updates `gone`.

        Returns none, and leaves `gone` as it was, if the journal cannot be read now.

        Args:
            now: monotonic seconds.
        """
        try:
            entries, self._offset = event_file.read_on(
                self._claims.journal(self._manager), self._offset, retry_seconds=0
            )
        except (LauncherError, OSError):
            return []
        found = list(known(entries))
        silent = self._beats.look(self._manager, self._claims.sign(self._manager), now)
        for event in found:
            if isinstance(event, ManagerBegan):
                self._process = claims.process_of(event)
            self.gone = self.gone or isinstance(event, ManagerEnded)
        self.gone = self.gone or silent or (self._process is not None and not self._process.alive())
        return found
