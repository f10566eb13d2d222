"""What a slot manager knows of the others: which points are free, and whose owners are dead."""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from launcher.processes.groups import Process
from launcher.runs import claims, event_file
from launcher.runs.claims import Claims, Heartbeats, Kind, Manager, PointLog, State
from launcher.runs.event_json import known
from launcher.runs.events import GroupBroken, ManagerBegan, ManagerEnded, ManagerIdle

SOONEST, LATEST = 0.2, 5.0  # seconds between two looks at the claims of others


@dataclass(frozen=True)
class Other:
    """Another slot manager.

    Attributes:
        host: its node.
        process: on this machine; None: it is on another one, or in another namespace of process ids.
        ended: it has said so.
        leads: whether it claims points; the other nodes of a group follow the first one.
        leaving: it claims no more points.
    """

    host: str
    process: Process | None = None
    ended: bool = False
    leads: bool = True
    leaving: bool = False


class Board:
    """Finds the points that a slot manager may claim.

    Attributes:
        count: number of points; a search adds some.
        logs: of the points, as they were at the last look.
    """

    def __init__(
        self, folder: Claims, count: int, mine: Manager, host: str, lease: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """
        Args:
            folder: of the claims.
            count: number of points.
            mine: the slot manager.
            host: its node.
            lease: seconds without a heartbeat after which a manager is dead.
            clock: seconds; for tests.
        """
        self._claims, self.count, self._mine, self._host, self._clock = folder, count, mine, host, clock
        self._beats = Heartbeats(lease)
        self._others: dict[Manager, Other] = {}
        self._free: deque[int] = deque()
        self._next_look = self._looked = self._pause = 0.0
        self._stale = True
        self._live: set[Manager] = set()
        self.logs: dict[int, PointLog] = {}

    @property
    def over(self) -> bool:
        """Whether no point is left that anybody might run."""
        return sum(log.state.over for log in self.logs.values()) >= self.count

    @property
    def ended(self) -> int:
        """How many points are over."""
        return sum(log.state.over for log in self.logs.values())

    def others_done(self) -> bool:
        """Whether a point was done on another node."""
        return any(
            log.state is State.DONE and log.last is not None and self._hosts().get(log.last, self._host) != self._host
            for log in self.logs.values()
        )

    def pilot_goes_on(self) -> bool:
        """Whether another slot manager of this round of the pilot may still claim points, as of the last look."""
        mine = dataclasses.replace(self._mine, node=0)
        return any(dataclasses.replace(each, node=0) == mine and not self._others[each].leaving for each in self._live)

    def claim(self) -> tuple[int, PointLog] | None:
        """Claims a point; its number and what its log was before. None: there is none that this manager may claim now.

        Raises:
            OSError, UnavailableError: the file server does not answer.
        """
        while True:
            if not self._free or self._stale:
                if not self.look():
                    if not self._free:
                        return None
                    self._stale = False  # as good as it gets for now
                elif not self._free:
                    return None
            point = self._free.popleft()
            log = self.logs.get(point, PointLog())
            if self._claims.add(point, log.next, Kind.CLAIMED, self._mine):
                return point, log
            self._stale = True  # others are faster: their claims are to be known

    def changed(self) -> None:
        """This manager's own points have ended: a look at the claims may show that all are over."""
        self._pause, self._next_look = 0.0, min(self._next_look, self._looked + SOONEST)

    @property
    def free(self) -> bool:
        """Whether a point may be claimed, as far as is known."""
        return bool(self._free)

    def look(self, *, now: bool = False) -> bool:
        """Looks at the claims of all, unless it has just done so; whether it did.

        Args:
            now: in any case.

        Raises:
            UnavailableError: the folder cannot be read now.
        """
        began = self._clock()
        if began < self._next_look and not now:
            return False
        self.logs = self._claims.logs()
        dead, self._live = self._look_at_managers(began)
        managers = sorted({*self._live, self._mine})
        held = {point for point, log in self.logs.items() if log.state is State.HELD and log.owner in dead}
        hosts = self._hosts()
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
        """The managers that are dead, and those that may be alive and claim points."""
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
            elif other.leads:
                live.add(each)
        return dead, live

    def _read(self, manager: Manager) -> Other:
        began: ManagerBegan | None = None
        ended = leaving = False
        for event in known(event_file.first_and_last(self._claims.journal(manager))):
            began = event if isinstance(event, ManagerBegan) else began
            ended = ended or isinstance(event, ManagerEnded)
            leaving = isinstance(event, (GroupBroken, ManagerIdle, ManagerEnded))
        if began is None:
            return Other("?", ended=ended)
        return Other(began.host, claims.process_of(began), ended, began.slots > 0, leaving)
