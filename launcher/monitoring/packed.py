"""The points of packed sweeps: their states from the claims of slot managers, which are their scheduler.

| the log of a point | its slot manager | the point is |
|---|---|---|
| held | alive | running |
| held | dead | waiting: another one takes it over |
| free | | waiting |
| done, failed, stopped, pruned, cancelled | | that |
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.files.shared_files import exists, retry_read, unwrap
from launcher.runs import claims, event_file
from launcher.runs.claims import Claims, Kind, Manager, PointLog, State
from launcher.runs.directory import Run
from launcher.runs.event_json import Event, known
from launcher.runs.events import ManagerBegan, ManagerEnded, PointBegan, PointEnded
from launcher.runs.sweep_directory import Packing, Sweep
from launcher.schedulers.queries import JobState

SETTLED = 2.0  # seconds after which a change would have given a folder another time, whatever its file system counts in
RECENT = 1 << 18  # bytes at the end of a slot manager's journal, from which rates are computed


@dataclass(frozen=True)
class Board:
    """The logs of a sweep's points, and which slot managers are alive."""

    logs: Mapping[int, PointLog]
    alive: frozenset[Manager]

    def log(self, point: int) -> PointLog:
        return self.logs.get(point, PointLog())

    def runs(self, point: int) -> bool:
        """Whether a slot manager runs the point now."""
        log = self.log(point)
        return log.state is State.HELD and log.owner in self.alive


@dataclass(frozen=True)
class _Listing:
    """The logs of a sweep as they were listed.

    Attributes:
        logs: of its points.
        changed: the time of the folder.
        seen: monotonic time at which that time was seen first.
        listed: monotonic time of the listing.
    """

    logs: Mapping[int, PointLog]
    changed: object
    seen: float
    listed: float


class Boards:
    """Reads the claims of sweeps, not more often than they change."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """
        Args:
            clock: seconds; for tests.
        """
        self._clock = clock
        self._known: dict[Path, _Listing] = {}
        self._ended: set[tuple[Path, Manager]] = set()

    def of(self, sweep: Sweep, packing: Packing) -> Board:
        """The present state of a packed sweep.

        Raises:
            UnavailableError: it cannot be read now.
        """
        folder, now = sweep.path / claims.CLAIMS, self._clock()
        changed = unwrap(retry_read(lambda: folder.stat().st_mtime_ns, folder))
        reads, listing = Claims(sweep.path, packing.retries), self._known.get(sweep.path)
        if listing is None or listing.changed != changed:
            listing = _Listing(reads.logs(), changed, now, now)
        elif listing.listed - listing.seen < SETTLED:
            listing = _Listing(reads.logs(), changed, listing.seen, now)
        self._known[sweep.path] = listing
        alive = frozenset(each for each in reads.managers() if self._alive(sweep, reads, each, packing))
        return Board(listing.logs, alive)

    def _alive(self, sweep: Sweep, reads: Claims, manager: Manager, packing: Packing) -> bool:
        """Whether the heartbeats of a slot manager are recent, by this machine's clock."""
        if (sweep.path, manager) in self._ended:
            return False
        events = list(known(event_file.first_and_last(reads.journal(manager))))
        began = next((event for event in events if isinstance(event, ManagerBegan)), None)
        process = claims.process_of(began) if began else None
        if (process and not process.alive()) or any(isinstance(event, ManagerEnded) for event in events):
            self._ended.add((sweep.path, manager))
            return False
        sign = reads.sign(manager)
        return sign is None or time.time() - sign[0] / 1e9 < packing.lease


def of_point(run: Run, boards: Boards) -> JobState | None:
    """The state of a packed point, as a scheduler would tell it; None: it is over, or is no such point.

    Raises:
        UnavailableError, RunError: its sweep cannot be read now, or is damaged.
    """
    sweep = Sweep(run.path.parent)
    packing = sweep.manifest().packing
    if packing is None:
        return None
    board, point = boards.of(sweep, packing), int(run.path.name)
    if board.log(point).state.over:
        return None
    return JobState.RUNNING if board.runs(point) else JobState.PENDING


def is_packed(run: Run) -> bool:
    """Whether a run is a point that pilots run.

    Raises:
        UnavailableError: the sweep's directory cannot be read now.
    """
    return run.path.name.isdecimal() and unwrap(exists(run.path.parent / claims.CLAIMS))


def rerun(run: Run) -> str:
    """Returns the sub-command that starts a point in a pilot again; empty: the run is no such point.

    Raises:
        UnavailableError: the sweep's directory cannot be read now.
    """
    return f"sweep rerun {run.path.parent.name} {run.path.name}" if is_packed(run) else ""


def cancel_point(run: Run) -> None:
    """Cancels a point that pilots run. One that runs is stopped by its slot manager, which looks for the mark.

    Raises:
        UnavailableError: its log cannot be read now.
        OSError: nothing can be written there.
    """
    reads, point = Claims(run.path.parent, 0), int(run.path.name)
    log = reads.log(point)
    if log.state is not State.FREE or not reads.add(point, log.next, Kind.CANCELLED, None):
        run.mark("cancelled")


@dataclass(frozen=True)
class Activity:
    """What the pilots of a sweep do.

    Attributes:
        slots, busy: of the slot managers that are alive: all, and those that run a point.
        share: of the slots' time since they began, the part in which they ran a point (lately, of long sweeps).
        rate: points that ended per second.
        left: seconds until all points are over, at this rate; None: unknown.
    """

    slots: int = 0
    busy: int = 0
    share: float = 0.0
    rate: float = 0.0
    left: float | None = None


def activity(board: Board, journals: Mapping[Manager, Iterable[Event]], count: int, now: float) -> Activity:
    """What the pilots do, from the journals of the slot managers that are alive. Pure.

    Args:
        board: the present state.
        journals: their events, or the last of them, in order.
        count: number of points.
        now: seconds since the epoch.
    """
    slots, busy_time, slot_time, ended, since = 0, 0.0, 0.0, 0, now
    for events in journals.values():
        began: dict[int, float] = {}
        first: float | None = None
        own = 1
        for event in events:
            if isinstance(event, ManagerBegan):
                own = event.slots
            first = event.time if first is None else first
            if isinstance(event, PointBegan):
                began[event.slot] = event.time
            elif isinstance(event, PointEnded):
                busy_time += event.time - began.pop(event.slot, first)
                ended += 1
        if first is None:
            continue
        slots += own
        busy_time += sum(now - each for each in began.values())
        slot_time += own * (now - first)
        since = min(since, first)
    busy = sum(log.state is State.HELD and log.owner in board.alive for log in board.logs.values())
    rate = ended / (now - since) if ended and now > since else 0.0
    left = count - sum(log.state.over for log in board.logs.values())
    return Activity(slots, busy, busy_time / slot_time if slot_time else 0.0, rate, left / rate if rate else None)


def activity_of(sweep: Sweep, packing: Packing, board: Board, count: int) -> Activity:
    """`activity`, from the sweep's directory.

    Raises:
        UnavailableError: it cannot be read now.
    """
    reads = Claims(sweep.path, packing.retries)
    journals = {}
    for each in board.alive:
        path = reads.journal(each)
        recent = list(known(event_file.read(path, RECENT)))
        if recent and not isinstance(recent[0], ManagerBegan):
            first = next(iter(known(event_file.first_and_last(path))), None)
            if isinstance(first, ManagerBegan):
                first.time = recent[0].time
                recent.insert(0, first)
        journals[each] = recent
    return activity(board, journals, count, time.time())
