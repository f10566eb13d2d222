"""Which slot manager runs which point of a packed sweep: one log per point, made of hard links, without a server.

    SWEEP/claims/
      POINT.K               entry K of a point's log: a hard link to a mark
      MANAGER.KIND          a mark: the file that a slot manager links to for each of its entries of this kind; marks of
                            the user's commands are called user.KIND
    SWEEP/managers/
      MANAGER.jsonl         journal of a slot manager; the file's mtime is the manager's heartbeat

A slot manager claims a point by adding the entry CLAIMED to the point's log. link(2) is atomic, on NFS as well: if
several processes try to make entry K, one succeeds, and the others get EEXIST and read the log again. Entries are never
changed or removed. So a process that was taken for dead and wakes up can neither end nor reclaim a point that another
manager has taken over. One listing of the folder gives the logs of all points, without opening a file: an entry has the
inode of its mark, and the mark's name says who made the entry and of which kind it is.

Works without torch, hydra and submitit.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import islice
from pathlib import Path

from launcher import io_bounds
from launcher.errors import RunError
from launcher.files import safe_io
from launcher.files.retried_reads import list_names, read_text, retry_read, unwrap
from launcher.processes import Process, namespace
from launcher.runs import event_files
from launcher.runs.events import Event, ManagerBegan, ManagerEnded, known
from launcher.runs.lease_and_locks import SILENCE, TIMEOUT, is_dead
from launcher.runs.sweep_directory import Packing, Sweep

CLAIMS, MANAGERS = "claims", "managers"
HEARTBEAT = 15.0  # seconds between two heartbeats of a slot manager
LEASE = 90.0  # seconds without a heartbeat until a manager's points are taken over; NFS shows times up to 60 s late
SEVERAL = 3  # points that fail on a node, one after the other, until the node gets no more points
_ENTRY = re.compile(r"([0-9]{1,9})\.([0-9]{1,9})")


class EntryKind(Enum):
    CLAIMED = "claimed"  # a slot manager runs the point
    RELEASED = "released"  # it was stopped because its pilot ended; any manager may claim it and resume it
    DONE = "done"
    FAILED = "failed"  # it may be retried
    FATAL = "fatal"  # a retry would fail too
    PRUNED = "pruned"
    STOPPED = "stopped"  # the user stopped it (RUN/stop); it is resumed only after AGAIN
    CANCELLED = "cancelled"
    AGAIN = "again"  # the user has asked to run it again (`sweep rerun`)


_MANAGER = "-".join(4 * ["[0-9]{1,9}"])
_JOURNAL = re.compile(rf"({_MANAGER})\.jsonl")
_MARK = re.compile(rf"({_MANAGER}|user)\.({'|'.join(each.value for each in EntryKind)})(?:\.\d+)?")


@dataclass(frozen=True, order=True)
class Manager:
    """A slot manager: the process that runs points on one node of a pilot."""

    pilot: int  # number of the pilot
    attempt: int  # number of the pilot's attempt
    round: int  # number of the rendezvous round in this attempt
    node: int  # node rank in this round

    def __str__(self) -> str:
        return f"{self.pilot}-{self.attempt}-{self.round}-{self.node}"

    @classmethod
    def of(cls, text: str) -> Manager:
        """Returns the manager that a text such as `0-1-0-3` (PILOT-ATTEMPT-ROUND-NODE) names; the inverse of `str`."""
        return cls(*map(int, text.split("-")))


@dataclass(frozen=True)
class LogEntry:
    """An entry of a point's log: its kind, and the slot manager that made it (None: a command of the user)."""

    kind: EntryKind
    manager: Manager | None = None


class State(Enum):
    """State of a point according to its log; see `fold`."""

    FREE = "free"
    HELD = "held"
    DONE = "done"
    FAILED = "failed"
    PRUNED = "pruned"
    STOPPED = "stopped"
    CANCELLED = "cancelled"

    @property
    def over(self) -> bool:
        return self not in (State.FREE, State.HELD)


@dataclass(frozen=True)
class PointLog:
    state: State = State.FREE
    owner: Manager | None = None  # slot manager that runs the point; None: the point is not HELD
    next: int = 0  # number of the entry to add next
    failed_on: tuple[Manager, ...] = ()  # slot managers on which the point has failed since the user last started it
    begun: bool = False  # whether the log has any entry
    releases: int = 0  # number of RELEASED entries since the user last started the point
    lost: int = 0  # how many slot managers have ended while they ran it, in this time: others took it over
    last: Manager | None = None  # slot manager that made the last entry; None: the user, or there is no entry

    @property
    def interrupted(self) -> int:
        """How many attempts have ended early since the user last started the point, if its owner, if any, is dead."""
        return self.releases + self.lost + (self.state is State.HELD)


_ENDS = {
    EntryKind.FATAL: State.FAILED,
    **{kind: State(kind.value) for kind in (EntryKind.DONE, EntryKind.PRUNED, EntryKind.STOPPED, EntryKind.CANCELLED)},
}


def fold(entries: Sequence[LogEntry], retries: int) -> PointLog:
    """Returns the summary of a point's log, from its entries.

    | the last entry | state of the point |
    |---|---|
    | none, RELEASED, AGAIN | FREE |
    | CLAIMED | HELD |
    | FAILED, at most `retries` times since the first start or AGAIN | FREE: it is retried |
    | FAILED, more often | FAILED |
    | FATAL | FAILED |
    | DONE, PRUNED, STOPPED, CANCELLED | the state of that name |
    """
    state, owner, failed, releases, lost = State.FREE, None, [], 0, 0
    for entry in entries:
        owner = None
        if entry.kind is EntryKind.CLAIMED:
            lost += state is State.HELD
            state, owner = State.HELD, entry.manager
        elif entry.kind is EntryKind.FAILED:
            failed += [entry.manager] if entry.manager else []
            state = State.FAILED if len(failed) > retries else State.FREE
        elif entry.kind in _ENDS:
            state = _ENDS[entry.kind]
        else:
            state = State.FREE
            releases += entry.kind is EntryKind.RELEASED
            if entry.kind is EntryKind.AGAIN:
                failed, releases, lost = [], 0, 0
    last = entries[-1].manager if entries else None
    return PointLog(state, owner, len(entries), tuple(failed), bool(entries), releases, lost, last)


def may_take_over(owner: Manager, mine: Manager, alive: bool | None, unchanged: float, lease: float = LEASE) -> bool:
    """Returns whether slot manager `mine` may claim a point that `owner` holds.

    | the owner | may take over |
    |---|---|
    | is `mine` itself | no: it runs the point |
    | belongs to an earlier attempt of the same pilot | yes: a pilot's lease lets only one attempt run |
    | any other | if it is dead (`lease_and_locks.is_dead`): the kernel kills a point with its manager |

    alive: see `SeenManager.alive`. unchanged: seconds without a heartbeat, by the clock of this machine.
    """
    if owner == mine:
        return False
    earlier = owner.pilot == mine.pilot and owner.attempt < mine.attempt
    return is_dead(ours=earlier, alive=alive, unchanged=unchanged, timeout=lease)


def may_leave(owner: Manager, mine: Manager, alive: bool | None, unchanged: float, lease: float = LEASE) -> bool:
    """Returns whether slot manager `mine` need not wait for a point that `owner` holds, and that it may not take over.

    | the owner | need not wait |
    |---|---|
    | belongs to the same pilot | no: its job lasts as long as its other nodes, and goes on if it loses one |
    | belongs to another pilot, and has missed two heartbeats, unless it certainly runs | no: it may be dead |
    | belongs to another pilot otherwise | yes |
    """
    return owner.pilot != mine.pilot and (bool(alive) or unchanged <= 2 * heartbeat_seconds(lease))


def heartbeat_seconds(lease: float) -> float:
    return min(HEARTBEAT, lease / 6)


def next_points(
    logs: Mapping[int, PointLog], count: int, mine: Manager, *, part: tuple[int, int] = (0, 1),
    hosts: Mapping[Manager, str] | None = None, live: Collection[str] = (),
    taken_over: Collection[int] = (), not_started: Collection[int] = (),
) -> list[int]:  # fmt: skip
    """Returns the numbers of the points that a slot manager may claim, in the order in which it should try.

    | the point | order |
    |---|---|
    | was released or restarted, or its manager is dead | first: other runs may wait for it, and it has checkpoints |
    | has no entry in its log | second; each manager starts at another point, so that they seldom want the same |
    | has failed on other nodes | third |
    | has failed on this node, but not on every live node | not on this node |
    | has failed on every live node | last |
    | has ended SEVERAL managers, as it seems; is in `not_started` | last |

    logs: log of each point that has one, by the point's number.
    part: index of `mine` among the live managers, and the number of live managers.
    not_started: points that `mine` has claimed, and could not start.
    """
    hosts = hosts or {}
    here = hosts.get(mine, "")
    resumed, failed, last = list[int](), list[int](), list[int]()
    for point, log in logs.items():
        if point in taken_over:
            (last if log.lost + 1 >= SEVERAL else resumed).append(point)
        if log.state is not State.FREE or not log.begun:
            continue
        tried = {hosts.get(each, "?") for each in log.failed_on}
        if not tried:
            (last if log.lost >= SEVERAL or point in not_started else resumed).append(point)
        elif here not in tried:
            failed.append(point)
        elif not set(live) - tried:
            last.append(point)
    number, managers = part
    fresh = [
        point for first in range(managers) for point in range((number + first) % managers, count, managers)
        if point not in logs or not logs[point].begun
    ]  # fmt: skip
    return [*sorted(resumed), *fresh, *sorted(failed), *sorted(last)]


def left_out(outcomes: Sequence[tuple[int, EntryKind]], others_done: bool) -> bool:
    """Returns whether a node should run no more points, because the node itself seems to be bad.

    | the last SEVERAL points on this node | points on other nodes | left out |
    |---|---|---|
    | are different ones, and all failed | at least one is done | yes: the node is the cause |
    | are different ones, and all failed | none is done | no: the points may be the cause |
    | otherwise | any | no |

    outcomes: number and last entry of each point that ended on this node, in order of time.
    others_done: whether any point is done on another node.
    """
    counted = (
        each
        for each in reversed(outcomes)
        if each[1] in (EntryKind.DONE, EntryKind.FAILED, EntryKind.FATAL, EntryKind.PRUNED)
    )
    last = list(islice(counted, SEVERAL))
    failed = {point for point, kind in last if kind is EntryKind.FAILED}
    return others_done and len(failed) == SEVERAL


# -- the folder


@dataclass(frozen=True)
class SeenManager:
    host: str = "?"  # name of its node
    process: Process | None = None  # None: it runs on another machine or in another PID namespace, or is not known yet
    ended: bool = False  # whether its last event says so

    def alive(self) -> bool | None:
        """Returns whether it certainly runs, or has certainly ended; None: it is on another machine and may be dead."""
        if self.ended or self.process is None:
            return False if self.ended else None
        return self.process.alive()


class Claims:
    """Reads and extends the logs of a sweep's points, and the journals of its slot managers."""

    def __init__(self, sweep: Path, retries: int) -> None:
        self._folder, self._managers, self._retries = sweep / CLAIMS, sweep / MANAGERS, retries
        self._names: dict[int, LogEntry] = {}  # by inode
        self._made: set[Path] = set()  # marks that are known to exist
        self._added: set[Path] = set()  # entries that this object has made
        self._full: dict[str, int] = {}  # by the name of a mark: how many marks have as many links as a file may have

    @classmethod
    def create(cls, sweep: Path) -> None:
        """Makes the folders `claims` and `managers`; raises RunError if the file system has no hard links."""
        for name in (CLAIMS, MANAGERS):
            (sweep / name).mkdir(mode=0o700, exist_ok=True)
        one, two = sweep / MANAGERS / ".first", sweep / MANAGERS / ".second"
        one.touch(mode=0o600)
        try:
            two.unlink(missing_ok=True)
            safe_io.link(one, two)
        except OSError as error:
            if error.errno not in safe_io.WITHOUT_LINKS:
                raise
            raise RunError(
                f"{sweep} is on a file system without hard links ({error.strerror}), by which pilots share the points: "
                "set runs_dir to another one, or leave out sweep.slots and sweep.pack"
            ) from None
        finally:
            one.unlink(missing_ok=True)
            two.unlink(missing_ok=True)

    def logs(self) -> dict[int, PointLog]:
        return {point: fold(entries, self._retries) for point, entries in self.entries().items()}

    def log(self, point: int) -> PointLog:
        """Returns the summary of one point's log. It opens the point's entries instead of listing the folder."""
        entries: list[LogEntry] = []
        while entry := self._by_content(f"{point}.{len(entries)}"):
            entries.append(entry)
        return fold(entries, self._retries)

    def entries(self) -> dict[int, list[LogEntry]]:
        """Returns each point's log by the point's number. A log that grows meanwhile may lack its last entries."""
        listed = unwrap(retry_read(lambda: [(e.name, e.inode()) for e in os.scandir(self._folder)], self._folder)) or []
        found: dict[int, dict[int, tuple[str, int]]] = {}
        for name, inode in listed:
            if (match := _ENTRY.fullmatch(name)) and int(match[1]) < io_bounds.SWEEP_POINTS:
                found.setdefault(int(match[1]), {})[int(match[2])] = name, inode
            elif inode not in self._names and (match := _MARK.fullmatch(name)):
                self._names[inode] = _entry(match)
        logs = {}
        for point, numbered in found.items():
            log: list[LogEntry] = []
            while (each := numbered.get(len(log))) is not None:
                entry = self._names.get(each[1]) or self._by_content(each[0])
                if entry is None:
                    break
                log.append(entry)
            logs[point] = log
        return logs

    def add(self, point: int, number: int, kind: EntryKind, manager: Manager | None) -> bool:
        """Adds entry `number` to a point's log; False: it exists already. manager=None: a command of the user."""
        name = f"{'user' if manager is None else manager}.{kind.value}"
        path = self._folder / f"{point}.{number}"
        if path in self._added:  # on some file systems a listing may still lack an entry that was just made
            return False
        serial = self._full.get(name, 0)
        while True:
            mark = self._folder / (f"{name}.{serial}" if serial else name)
            if mark not in self._made:
                with contextlib.suppress(FileExistsError):
                    safe_io.create(mark, name.encode())  # the content is read by `_by_content`
                self._made.add(mark)
            try:
                made = safe_io.link(mark, path)
            except OSError as error:
                if error.errno != errno.EMLINK:
                    raise
            else:
                self._added.update([path] if made else ())
                return made
            serial += 1  # of this mark no more links are possible
            self._full[name] = serial

    def _by_content(self, name: str) -> LogEntry | None:
        # Needed on file systems whose listings do not report the shared inode of hard links
        match = _MARK.fullmatch((unwrap(read_text(self._folder / name)) or "").strip())
        return _entry(match) if match else None

    # -- the managers

    def journal(self, manager: Manager) -> Path:
        return self._managers / f"{manager}.jsonl"

    def note(self, manager: Manager, event: Event) -> None:
        """Appends an event to a slot manager's journal, which is a heartbeat too."""
        event_files.append(self.journal(manager), event)

    def beat(self, manager: Manager) -> None:
        os.utime(self.journal(manager))

    def sign(self, manager: Manager) -> tuple[int, int] | None:
        """Returns mtime (ns) and size of a slot manager's journal, 0 without one; None: they cannot be read now."""
        try:
            status = self.journal(manager).stat()
        except FileNotFoundError:  # it could not be made: the disk was full
            return 0, 0
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size

    def seen(self, manager: Manager) -> SeenManager:
        found = SeenManager()
        for event in known(event_files.first_and_last(self.journal(manager))):
            if isinstance(event, ManagerBegan):
                here = event.namespace and event.namespace == namespace()
                process = Process(event.pid, event.start, socket.gethostname()) if here else None
                found = replace(found, host=event.host, process=process)
            elif isinstance(event, ManagerEnded):
                found = replace(found, ended=True)
        return found

    def managers(self) -> list[Manager]:
        names = unwrap(list_names(str(self._managers))) or ()
        return sorted(Manager.of(match[1]) for match in map(_JOURNAL.fullmatch, names) if match)


def _entry(match: re.Match[str]) -> LogEntry:
    return LogEntry(EntryKind(match[2]), None if match[1] == "user" else Manager.of(match[1]))


# -- What commands see of a packed sweep


SETTLED = 2.0  # seconds after which a further change of a folder certainly changes its mtime, however coarse that is


@dataclass(frozen=True)
class SweepClaims:
    logs: Mapping[int, PointLog]  # by a point's number; without those that have none
    alive: frozenset[Manager]  # slot managers that are alive

    def log(self, point: int) -> PointLog:
        return self.logs.get(point, PointLog())

    def runs(self, point: int) -> bool:
        log = self.log(point)
        return log.state is State.HELD and log.owner in self.alive


class ClaimsReader:
    """Reads the claims of packed sweeps; lists a folder of claims again only after it has changed."""

    def __init__(self) -> None:
        # By sweep: logs, mtime of the folder of claims, when this mtime was first seen, when the folder was listed
        self._known: dict[Path, tuple[Mapping[int, PointLog], object, float, float]] = {}
        self._ended: set[tuple[Path, Manager]] = set()

    def of(self, sweep: Sweep, packing: Packing) -> SweepClaims:
        """Returns the present state of a packed sweep. Raises UnavailableError: the claims cannot be read now."""
        folder, now = sweep.path / CLAIMS, time.monotonic()
        changed = unwrap(retry_read(lambda: folder.stat().st_mtime_ns, folder))
        reads = Claims(sweep.path, packing.retries)
        logs, before, seen, listed = self._known.get(sweep.path, ({}, object(), now, now))
        if before != changed:
            logs, seen, listed = reads.logs(), now, now
        elif listed - seen < SETTLED:
            logs, listed = reads.logs(), now
        self._known[sweep.path] = logs, changed, seen, listed
        alive = frozenset(each for each in reads.managers() if self._alive(sweep, reads, each, packing))
        return SweepClaims(logs, alive)

    def runs(self, sweep: Sweep, packing: Packing, point: int) -> bool | None:
        """Returns whether a point runs, from its own log and that of its slot manager alone; None: it is over."""
        reads = Claims(sweep.path, packing.retries)
        log = reads.log(point)
        if log.state.over:
            return None
        return log.state is State.HELD and log.owner is not None and self._alive(sweep, reads, log.owner, packing)

    def _alive(self, sweep: Sweep, reads: Claims, manager: Manager, packing: Packing) -> bool:
        if (sweep.path, manager) in self._ended:
            return False
        alive = reads.seen(manager).alive()
        if alive is False:
            self._ended.add((sweep.path, manager))
        sign = reads.sign(manager)
        unchanged = 0.0 if sign is None else time.time() - sign[0] / 1e9  # by this machine's clock
        timeout = packing.lease * SILENCE / TIMEOUT
        return not is_dead(ours=False, alive=alive, unchanged=unchanged, timeout=timeout)
