"""What a slot manager reads from the claims and heartbeats of all: which points are free, which managers are dead."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from launcher.processes.groups import Process
from launcher.runs import claims, event_file
from launcher.runs.claims import Claims, Heartbeats, Kind, Manager, PointLog, State
from launcher.runs.events import ManagerBegan, ManagerEnded, known

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
    logs: the log of each point that was ever claimed, by the point's index, as of the last `look`.
    others_done: whether another node has completed a point (state DONE), as of the last `look`.
    """

    def __init__(
        self, folder: Claims, count: int, mine: Manager, host: str, lease: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """lease: seconds without a heartbeat after which another manager is dead.
        clock: monotonic clock in seconds; tests replace it.
        """
        self._claims, self.count, self._mine, self._host, self._clock = folder, count, mine, host, clock
        self._beats = Heartbeats(lease)
        self._others: dict[Manager, Other] = {}
        self._free: deque[int] = deque()
        self._next_look = self._looked = self._pause = 0.0
        self._stale = True
        self._live: set[Manager] = set()
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
        """Claims a point for this manager.

        Returns the point's index in the sweep, and its log before the claim; None: no point may be claimed now.

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
        """Reads the claims and heartbeats of all slot managers, if that is due. Returns whether it has read them.

        now: read them even if that is not due.
        Raises UnavailableError: the claims cannot be read now.
        """
        began = self._clock()
        if began < self._next_look and not now:
            return False
        self.logs = self._claims.logs()
        dead, self._live = self._look_at_managers(began)
        managers = sorted({*self._live, self._mine})
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
