"""Writes the journal of a slot manager, and its heartbeats (the journal's mtime); waits for child exits and signals."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterable

from launcher.agent.forks import unsafe_to_fork, use_large_pages
from launcher.agent.signals import Signals
from launcher.log_line import log_line
from launcher.processes.groups import Process, namespace
from launcher.runs import claims
from launcher.runs.claims import Claims, Manager
from launcher.runs.events import Event, ManagerBegan, ManagerEnded
from launcher.worker import heartbeat


class JournalWriter:
    """Writes the journal and the heartbeats of one slot manager, and waits for its next event."""

    def __init__(self, folder: Claims, mine: Manager, lease: float, signals: Signals) -> None:
        """
        Args:
            folder: the sweep's claims, and the journals of its slot managers.
            mine: the slot manager.
            lease: seconds without a heartbeat after which other slot managers take it for dead.
            signals: the signals of this process.
        """
        self._claims, self._mine, self._lease, self._signals = folder, mine, lease, signals
        self._pulse = heartbeat.mine()
        self._next_beat, self._beaten = 0.0, time.monotonic()
        self._waited = False

    def begin(self, host: str, slots: int) -> None:
        """Starts the journal with the event ManagerBegan, the first heartbeat.

        Args:
            host: name of this node.
            slots: number of slots; 0: this slot manager claims no points.

        Raises:
            OSError: the journal cannot be written.
        """
        if self._pulse is not None:
            self._pulse.listen()
        if why := unsafe_to_fork():
            log_line(f"this slot manager {why}: points may take long to start")
        process, job = Process.of(os.getpid()), os.environ.get("LAUNCHER_JOB_ID", "")
        self._claims.note(self._mine, ManagerBegan(
            host=host, job=job, slots=slots, pid=process.pid, start=process.start, namespace=namespace()
        ))  # fmt: skip

    def note(self, event: Event) -> None:
        """Appends an event to the journal, if possible. A failed write is ignored."""
        with contextlib.suppress(OSError):
            self._claims.note(self._mine, event)

    def beat(self, now: float) -> bool:
        """Writes the heartbeat if it is due. Returns whether this slot manager must kill its points.

        It must kill them if no heartbeat could be written for half a lease, since others may soon take them over.

        Args:
            now: monotonic seconds.
        """
        if self._pulse is not None:
            self._pulse.beat()
        late = now - self._beaten > self._lease / 2
        if now >= self._next_beat:
            self._next_beat = now + min(claims.HEARTBEAT, self._lease / 6)
            with contextlib.suppress(OSError):
                self._claims.beat(self._mine)
                self._beaten = time.monotonic()
        if late:
            self._beaten = now
        return late

    def wait(self, timeout: float) -> None:
        """Waits until a child process ends or a signal arrives, for at most `timeout` seconds."""
        if not self._waited:  # it takes a quarter of a second: later, the first points run already
            use_large_pages()
        self._waited = True
        poll = select.poll()
        poll.register(self._signals.wake, select.POLLIN)
        poll.poll(timeout * 1000)
        self._signals.clear()

    def end(self, pids: Iterable[int]) -> None:
        """Kills the processes with these ids, and appends ManagerEnded to the journal."""
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.note(ManagerEnded())
