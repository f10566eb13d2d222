"""Which points are free, and what becomes of each: the claims and journals of all slot managers."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from launcher import errors
from launcher.agent.forks import unsafe_to_fork, use_large_pages
from launcher.agent.stop_requests import Signals
from launcher.formatting import log_line
from launcher.processes.groups import Process, namespace
from launcher.runs import claims, event_file
from launcher.runs.claims import Claims, Heartbeats, Kind, Manager, PointLog, State
from launcher.runs.events import Event, ManagerBegan, ManagerEnded, known
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
        self._claims, self._mine, self._lease, self._signals = folder, mine, lease, signals
        self._pulse = heartbeat.mine()
        self._next_beat, self._beaten = 0.0, time.monotonic()
        self._waited = False

    def begin(self, host: str, slots: int) -> None:
        """Starts the journal with the event ManagerBegan, the first heartbeat; raises OSError."""
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


# -- What a slot manager reads from the claims and heartbeats of all: which points are free, which managers are dead


SOONEST, LATEST = 0.2, 5.0  # seconds between two polls of the claims of others


@dataclass(frozen=True)
class Other:
    """Another slot manager."""

    host: str  # name of the slot manager's node
    # the manager's process; None: it runs on another machine, or in another process-id namespace
    process: Process | None = None
    ended: bool = False  # whether the manager's journal says that the manager has ended


class Board:
    """Finds the points that a slot manager may claim.

    count: number of points of the sweep; a search (Optuna) adds points while it runs.
    logs, others_done: as of the last `look`; whether another node has completed a point.
    """

    def __init__(
        self, folder: Claims, count: int, mine: Manager, host: str, lease: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._claims, self.count, self._mine, self._host, self._clock = folder, count, mine, host, clock
        self._beats = Heartbeats(lease)
        self._others: dict[Manager, Other] = {}
        self._free: deque[int] = deque()
        self._next_look = self._looked = self._pause = 0.0
        self._stale = True
        self.logs: dict[int, PointLog] = {}
        self.others_done = False

    @property
    def over(self) -> bool:
        """Whether every point has ended, so that no slot manager has anything left to claim."""
        return sum(log.state.over for log in self.logs.values()) >= self.count

    @property
    def ended(self) -> int:
        """Number of points that have ended: done, failed, pruned, stopped or cancelled."""
        return sum(log.state.over for log in self.logs.values())

    def claim(self) -> tuple[int, PointLog] | None:
        """Claims a point for this manager; returns its index and its log before; None: none may be claimed now.

        Raises OSError, UnavailableError: the claims cannot be read or written now.
        """
        while True:
            if not self._free or self._stale:
                if not self.look():
                    if not self._free:
                        return None
                    self._stale = False  # the next `look` is not due yet
                elif not self._free:
                    return None
            point = self._free.popleft()
            log = self.logs.get(point, PointLog())
            if self._claims.add(point, log.next, Kind.CLAIMED, self._mine):
                return point, log
            self._stale = True  # another manager was faster: read the claims of all before the next try

    def changed(self) -> None:
        """Makes the next `look` due soon. Call it when a point of this manager has ended: it may be the last one."""
        self._pause, self._next_look = 0.0, min(self._next_look, self._looked + SOONEST)

    @property
    def free(self) -> bool:
        """Whether there is a point that this manager may claim, as of the last `look`."""
        return bool(self._free)

    def look(self, *, now: bool = False) -> bool:
        """Reads the claims and heartbeats of all slot managers, if that is due (or `now`); returns whether it did."""
        began = self._clock()
        if began < self._next_look and not now:
            return False
        self.logs = self._claims.logs()
        dead, live = self._look_at_managers(began)
        managers = sorted({*live, self._mine})
        held = {point for point, log in self.logs.items() if log.state is State.HELD and log.owner in dead}
        hosts = self._hosts()
        self.others_done = any(
            log.state is State.DONE and log.last is not None and hosts.get(log.last, self._host) != self._host
            for log in self.logs.values()
        )
        before = list(self._free)
        self._free = deque(claims.next_points(
            self.logs, self.count, self._mine, part=(managers.index(self._mine), len(managers)), hosts=hosts,
            live={hosts[each] for each in managers}, taken_over=held,
        ))  # fmt: skip
        self._stale = False
        self._looked = self._clock()
        took = self._looked - began
        self._pause = SOONEST if list(self._free) != before else min(LATEST, 2 * self._pause + SOONEST)
        self._next_look = began + max(self._pause, 10 * took)
        return True

    def _hosts(self) -> dict[Manager, str]:
        return {**{each: other.host for each, other in self._others.items()}, self._mine: self._host}

    def _look_at_managers(self, now: float) -> tuple[set[Manager], set[Manager]]:
        dead, live = set[Manager](), set[Manager]()
        for each in self._claims.managers():
            if each == self._mine:
                continue
            other = self._others.get(each)
            if other is None or not other.ended:
                other = self._others[each] = self._read(each)
            gone = other.ended or (other.process is not None and not other.process.alive())
            sign = self._claims.sign(each)
            silent = sign is not None and self._beats.look(each, sign, now)  # one that cannot be seen now is not dead
            if claims.may_take_over(each, self._mine, silent=silent, gone=gone):
                dead.add(each)
            else:
                live.add(each)
        return dead, live

    def _read(self, manager: Manager) -> Other:
        began: ManagerBegan | None = None
        ended = False
        for event in known(event_file.first_and_last(self._claims.journal(manager))):
            began = event if isinstance(event, ManagerBegan) else began
            ended = ended or isinstance(event, ManagerEnded)
        if began is None:
            return Other("?", ended=ended)
        return Other(began.host, claims.process_of(began), ended)
