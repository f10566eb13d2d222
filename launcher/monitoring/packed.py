"""States of the points of packed sweeps, from the claims of slot managers instead of a scheduler.

| state of the point's log (claims.State) | its slot manager | state of the point |
|---|---|---|
| HELD | alive | running |
| HELD | dead | waiting: another manager takes it over |
| FREE | any | waiting |
| DONE, FAILED, STOPPED, PRUNED, CANCELLED | any | the state of that name |
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.files.lease import is_dead
from launcher.files.shared_files import exists, retry_read, unwrap
from launcher.runs import claims, event_file
from launcher.runs.claims import Claims, EntryKind, Manager, PointLog, State
from launcher.runs.directory import Run
from launcher.runs.events import Event, ManagerBegan, PointBegan, PointEnded, known
from launcher.runs.sweep_directory import RECORD, Packing, Sweep
from launcher.schedulers.base import JobState
from launcher.structs import Struct, replace

SETTLED = 2.0  # seconds after which a further change of a folder certainly changes its mtime, however coarse that is
RECENT = 1 << 18  # bytes that are read at the end of a slot manager's journal, for rates


@dataclass(frozen=True)
class ClaimsBoard:
    """The present state of a packed sweep."""

    logs: Mapping[int, PointLog]  # log of each point that has one, by the point's number
    alive: frozenset[Manager]  # slot managers that are alive

    def log(self, point: int) -> PointLog:
        return self.logs.get(point, PointLog())

    def runs(self, point: int) -> bool:
        """Returns whether a slot manager that is alive runs the point."""
        log = self.log(point)
        return log.state is State.HELD and log.owner in self.alive


class _Listing(Struct):
    # As of one listing of the folder of claims

    logs: Mapping[int, PointLog]  # log of each point, by the point's number
    changed: object  # mtime of the folder
    seen: float  # when this mtime was first seen, in seconds of the monotonic clock
    listed: float  # when the folder was listed, in seconds of the monotonic clock


class Boards:
    """Reads the claims of packed sweeps; lists a folder of claims again only after it has changed."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[Path, _Listing] = {}
        self._packings: dict[Path, tuple[int, Packing | None]] = {}  # with the mtime (ns) of the sweep's record
        self._ended: set[tuple[Path, Manager]] = set()

    def of(self, sweep: Sweep, packing: Packing) -> ClaimsBoard:
        """Returns the present state of a packed sweep. Raises UnavailableError: the claims cannot be read now."""
        folder, now = sweep.path / claims.CLAIMS, self._clock()
        changed = unwrap(retry_read(lambda: folder.stat().st_mtime_ns, folder))
        reads, listing = Claims(sweep.path, packing.retries), self._known.get(sweep.path)
        if listing is None or listing.changed != changed:
            listing = _Listing(reads.logs(), changed, now, now)
        elif listing.listed - listing.seen < SETTLED:
            listing = _Listing(reads.logs(), changed, listing.seen, now)
        self._known[sweep.path] = listing
        alive = frozenset(each for each in reads.managers() if self._alive(sweep, reads, each, packing))
        return ClaimsBoard(listing.logs, alive)

    def packing(self, sweep: Sweep) -> Packing | None:
        """Returns how a sweep's points share pilots, without reading its record for each point; raises RunError."""
        record = sweep.path / RECORD
        changed = unwrap(retry_read(lambda: record.stat().st_mtime_ns, record)) or 0
        known = self._packings.get(sweep.path)
        if known is None or known[0] != changed:
            known = self._packings[sweep.path] = changed, sweep.manifest().packing
        return known[1]

    def _alive(self, sweep: Sweep, reads: Claims, manager: Manager, packing: Packing) -> bool:
        # Heartbeats are compared with this machine's clock
        if (sweep.path, manager) in self._ended:
            return False
        alive = reads.seen(manager).alive()
        if alive is False:
            self._ended.add((sweep.path, manager))
        sign = reads.sign(manager)
        unchanged = 0.0 if sign is None else time.time() - sign[0] / 1e9
        return not is_dead(ours=False, alive=alive, unchanged=unchanged, timeout=packing.lease)


def of_point(run: Run, boards: Boards) -> JobState | None:
    """Returns the state of a packed sweep's point as a job's; None: it is over, or has a job of its own; RunError."""
    sweep = Sweep(run.path.parent)
    packing = boards.packing(sweep)
    if packing is None:
        return None
    board, point = boards.of(sweep, packing), int(run.path.name)
    if board.log(point).state.over:
        return None
    return JobState.RUNNING if board.runs(point) else JobState.PENDING


def is_packed(run: Run) -> bool:
    """Returns whether a run is a point of a packed sweep, which pilots run."""
    return run.path.name.isdecimal() and unwrap(exists(run.path.parent / claims.CLAIMS))


def rerun(run: Run) -> str:
    """Returns the sub-command that restarts a point of a packed sweep (`sweep rerun ID 7`); empty for other runs."""
    return f"sweep rerun {run.path.parent.name} {run.path.name}" if is_packed(run) else ""


def cancel_point(run: Run) -> None:
    """Cancels a point of a packed sweep: if it runs, its slot manager sees the mark `cancelled`; raises OSError."""
    reads, point = Claims(run.path.parent, 0), int(run.path.name)
    log = reads.log(point)
    if log.state is not State.FREE or not reads.add(point, log.next, EntryKind.CANCELLED, None):
        run.mark("cancelled")


class PilotActivity(Struct):
    """Throughput of a packed sweep's pilots."""

    slots: int = 0  # number of slots of the slot managers that are alive
    busy: int = 0  # number of these slots that run a point now
    share: float = 0.0  # fraction of the slots' time in which they ran a point, in what is read of their journals
    rate: float = 0.0  # number of points that ended per second
    left: float | None = None  # seconds until all points are over, at this rate; None: unknown


def activity(board: ClaimsBoard, journals: Mapping[Manager, Iterable[Event]], count: int, now: float) -> PilotActivity:
    """Computes the throughput of pilots from the latest events of slot managers that are alive, oldest first."""
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
    return PilotActivity(slots, busy, busy_time / slot_time if slot_time else 0.0, rate, left / rate if rate else None)


def activity_of(sweep: Sweep, packing: Packing, board: ClaimsBoard, count: int) -> PilotActivity:
    """Returns the throughput of a sweep's pilots, from the journals of slot managers that are alive."""
    reads = Claims(sweep.path, packing.retries)
    journals = {}
    for each in board.alive:
        path = reads.journal(each)
        recent = list(known(event_file.read(path, RECENT)))
        if recent and not isinstance(recent[0], ManagerBegan):
            first = next(iter(known(event_file.first_and_last(path))), None)
            if isinstance(first, ManagerBegan):
                recent.insert(0, replace(first, time=recent[0].time))
        journals[each] = recent
    return activity(board, journals, count, time.time())
