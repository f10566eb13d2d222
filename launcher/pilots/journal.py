"""The journal of a pilot: what became of each point."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterable

from launcher import errors
from launcher.agent.forks import unsafe_to_fork, use_large_pages
from launcher.agent.stop_requests import Signals
from launcher.log_line import log_line
from launcher.processes.groups import Process, namespace
from launcher.runs import claims
from launcher.runs.claims import Claims, Kind, Manager
from launcher.runs.events import Event, ManagerBegan, ManagerEnded
from launcher.worker import heartbeat

# -- Decides from a point's exit code what its log says next: done, failed, released for a retry,


def outcome(
    code: int, *, stopping: bool = False, cancelled: bool = False, stopped: bool = False, pruned: bool = False,
    spent: bool = False,
) -> Kind:  # fmt: skip
    """Returns the entry for a point's log after its attempt has ended. The first row that applies decides.

    | exit code | condition | entry |
    |---|---|---|
    | 0 | any | done |
    | any but 0 | the point, or the sweep, was cancelled | cancelled |
    | any but 0 | it was pruned | pruned |
    | 93 | any | fatal: a retry would fail too |
    | 75 | RUN/stop exists | stopped |
    | 75, or any if its slot manager has stopped it | it has had `resume.max_attempts` attempts | fatal |
    | 75, or any if its slot manager has stopped it | otherwise | released: it will be retried |
    | any other, or a signal | any | failed |

    code: exit code of the attempt; negative: the signal that killed it.
    stopping: whether its slot manager has stopped it together with all its other points.
    cancelled: whether the point or the sweep was cancelled.
    stopped: whether RUN/stop exists.
    pruned: whether the search has pruned the point.
    spent: whether the point has had `resume.max_attempts` attempts.
    """
    if code == errors.DONE:
        return Kind.DONE
    if cancelled:
        return Kind.CANCELLED
    if pruned:
        return Kind.PRUNED
    if code == errors.NO_RETRY:
        return Kind.FATAL
    if code == errors.RESUME and stopped:
        return Kind.STOPPED
    if code == errors.RESUME or stopping:
        return Kind.FATAL if spent else Kind.RELEASED
    return Kind.FAILED


# -- Writes the journal of a slot manager, and its heartbeats (the journal's mtime); waits for child exits and signals


class JournalWriter:
    """Writes the journal and the heartbeats of one slot manager, and waits for its next event."""

    def __init__(self, folder: Claims, mine: Manager, lease: float, signals: Signals) -> None:
        """folder: the sweep's claims, and the journals of its slot managers.
        lease: seconds without a heartbeat after which other slot managers take it for dead.
        """
        self._claims, self._mine, self._lease, self._signals = folder, mine, lease, signals
        self._pulse = heartbeat.mine()
        self._next_beat, self._beaten = 0.0, time.monotonic()
        self._waited = False

    def begin(self, host: str, slots: int) -> None:
        """Starts the journal with the event ManagerBegan, the first heartbeat.

        Raises OSError: the journal cannot be written.
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
