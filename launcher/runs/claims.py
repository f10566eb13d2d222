"""Who runs which point of a packed sweep: a log for each point whose entries are hard links, without any server.

    SWEEP/claims/
      POINT.K               entry K of a point's log: a hard link to a mark; whoever makes the link has made the entry
      MANAGER.KIND          the marks of a slot manager, by which it is known who made an entry, and of which kind
    SWEEP/managers/
      MANAGER.jsonl         what a slot manager has done; its time is the manager's heartbeat

link(2) is atomic, on NFS as well: of several processes that want to make entry K one succeeds, and the others see that
they looked at an older state. Entries are never changed or removed, so a process that was believed dead and wakes up
can neither end a point that somebody else has taken over, nor take it back. A listing of the folder gives the state of
all points: an entry has the inode of its mark, so that no file of a point is opened.

Works without torch, hydra and submitit.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from launcher.errors import RunError
from launcher.files import run_files
from launcher.files.shared_files import list_names, read_text, retry_read, unwrap
from launcher.processes.groups import Process, namespace
from launcher.runs import event_file
from launcher.runs.event_json import Event
from launcher.runs.events import ManagerBegan

CLAIMS, MANAGERS = "claims", "managers"
HEARTBEAT = 15.0  # seconds between two heartbeats of a slot manager
LEASE = 90.0  # seconds without a heartbeat until its points are taken over; NFS shows times up to 60 s late
SEVERAL = 3  # points that fail on a node, one after the other, until the node is left out
_ENTRY = re.compile(r"(\d+)\.(\d+)")


class Kind(Enum):
    """What an entry of a point's log says."""

    CLAIMED = "claimed"  # a slot manager runs the point
    RELEASED = "released"  # it was stopped with its pilot, and goes on with whoever claims it next
    DONE = "done"
    FAILED = "failed"  # it may be retried
    FATAL = "fatal"  # a retry would fail too
    PRUNED = "pruned"
    STOPPED = "stopped"  # its owner wanted that (RUN/stop): it goes on when it is started again
    CANCELLED = "cancelled"
    AGAIN = "again"  # the user wants it started again


_MANAGER = r"\d+-\d+-\d+-\d+"
_JOURNAL = re.compile(rf"({_MANAGER})\.jsonl")
_MARK = re.compile(rf"({_MANAGER}|user)\.({'|'.join(each.value for each in Kind)})(?:\.\d+)?")


@dataclass(frozen=True, order=True)
class Manager:
    """A slot manager: the process that runs points on one node of a pilot.

    Attributes:
        pilot: number of the pilot.
        attempt: number of its attempt.
        round: number of the round in this attempt.
        node: node rank.
    """

    pilot: int
    attempt: int
    round: int
    node: int

    def __str__(self) -> str:
        return f"{self.pilot}-{self.attempt}-{self.round}-{self.node}"

    @classmethod
    def of(cls, text: str) -> Manager:
        """The inverse of `str`."""
        return cls(*map(int, text.split("-")))


@dataclass(frozen=True)
class Entry:
    """An entry of a point's log: what, and who made it (None: the user)."""

    kind: Kind
    manager: Manager | None = None


class State(Enum):
    """The state of a point in its log."""

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
    """What the log of a point says.

    Attributes:
        state: of the point.
        owner: who runs it, if it is held.
        next: number of the next entry.
        failed_on: the managers with which it has failed, since the user started it.
        begun: whether it was ever claimed.
        releases: how often it was stopped with its pilot.
        last: who made the last entry.
    """

    state: State = State.FREE
    owner: Manager | None = None
    next: int = 0
    failed_on: tuple[Manager, ...] = ()
    begun: bool = False
    releases: int = 0
    last: Manager | None = None


_ENDS = {
    Kind.DONE: State.DONE, Kind.FATAL: State.FAILED, Kind.PRUNED: State.PRUNED, Kind.STOPPED: State.STOPPED,
    Kind.CANCELLED: State.CANCELLED,
}  # fmt: skip


def fold(entries: Sequence[Entry], retries: int) -> PointLog:
    """What a log says. Pure.

    | the last entry | the point is |
    |---|---|
    | none, released, again | free |
    | claimed | held |
    | failed, and not more often than `retries` since it was started | free |
    | failed, more often | failed |
    | fatal | failed |
    | done, pruned, stopped, cancelled | that |
    """
    state, owner, failed, releases = State.FREE, None, [], 0
    for entry in entries:
        owner = None
        if entry.kind is Kind.CLAIMED:
            state, owner = State.HELD, entry.manager
        elif entry.kind is Kind.FAILED:
            failed += [entry.manager] if entry.manager else []
            state = State.FAILED if len(failed) > retries else State.FREE
        elif entry.kind in _ENDS:
            state = _ENDS[entry.kind]
        else:
            state = State.FREE
            releases += entry.kind is Kind.RELEASED
            if entry.kind is Kind.AGAIN:
                failed, releases = [], 0
    last = entries[-1].manager if entries else None
    return PointLog(state, owner, len(entries), tuple(failed), bool(entries), releases, last)


def may_take_over(owner: Manager, mine: Manager, *, silent: bool = False, gone: bool = False) -> bool:
    """Whether a point that this owner holds may be claimed by another manager. Pure.

    | the owner | |
    |---|---|
    | is this manager | no: it runs the point |
    | of an earlier attempt of the same pilot | yes: a pilot's lease lets only one attempt run |
    | ran on this machine, and its process is gone | yes: the kernel kills a point with its manager |
    | any other, without a heartbeat for LEASE | yes |
    | any other | no |

    Args:
        owner: who holds it.
        mine: who wants it.
        silent: whether the owner has shown no heartbeat for LEASE, by the clock of whoever asks.
        gone: whether its process ran on this machine, and is gone.
    """
    if owner == mine:
        return False
    return silent or gone or (owner.pilot == mine.pilot and owner.attempt < mine.attempt)


class Heartbeats:
    """Which managers are silent, by the changes of their heartbeats, since clocks of machines differ."""

    def __init__(self, lease: float = LEASE) -> None:
        self._lease = lease
        self._seen: dict[Manager, tuple[object, float]] = {}

    def look(self, manager: Manager, sign: object, now: float) -> bool:
        """Whether the manager is silent.

        Args:
            manager: whose heartbeat it is.
            sign: of its life, which changes with each heartbeat.
            now: monotonic seconds.
        """
        before = self._seen.get(manager)
        if before is None or before[0] != sign:
            self._seen[manager] = sign, now
            return False
        return now - before[1] >= self._lease


def next_points(
    logs: Mapping[int, PointLog], count: int, mine: Manager, *, part: tuple[int, int] = (0, 1),
    hosts: Mapping[Manager, str] | None = None, live: Collection[str] = (),
    taken_over: Collection[int] = (),
) -> list[int]:  # fmt: skip
    """The points that a manager may claim, the first one first. Pure.

    | the point | |
    |---|---|
    | was stopped, or its manager is dead | first: others may wait for it, and its checkpoints are of use |
    | has never begun | then, each manager from a place of its own, so that they seldom want the same |
    | has failed on other nodes | then |
    | has failed on this node, and a manager of another node is alive where it has not | not here |
    | has failed on this node, and there is none | last |

    Args:
        logs: of the points that have any.
        count: number of points.
        mine: the manager.
        part: its number among the managers, and their number.
        hosts: the hosts of managers.
        live: hosts of managers that are alive.
        taken_over: points that are held, and whose owners are dead.
    """
    hosts = hosts or {}
    here = hosts.get(mine, "")
    resumed, failed, last = [], [], []
    for point, log in logs.items():
        if point in taken_over:
            resumed.append(point)
        if log.state is not State.FREE or not log.begun:
            continue
        tried = {hosts.get(each, "?") for each in log.failed_on}
        if not tried:
            resumed.append(point)
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


def left_out(outcomes: Sequence[tuple[int, Kind]], others_done: bool) -> bool:
    """Whether a node is to run no more points. Pure.

    | the last SEVERAL points on this node | points on other nodes | |
    |---|---|---|
    | different ones, and all failed | one was done | yes: it is the node |
    | different ones, and all failed | none was done | no: it may be the points |
    | otherwise | | no |

    Args:
        outcomes: points that ended on this node, in order, and how.
        others_done: whether a point was done on another node.
    """
    last = [each for each in outcomes if each[1] in (Kind.DONE, Kind.FAILED, Kind.FATAL, Kind.PRUNED)][-SEVERAL:]
    failed = {point for point, kind in last if kind is Kind.FAILED}
    return others_done and len(failed) == SEVERAL


def process_of(began: ManagerBegan) -> Process | None:
    """The process of a slot manager; None: it runs on another machine, or in another namespace of process ids."""
    here = began.namespace and began.namespace == namespace()
    return Process(began.pid, began.start, socket.gethostname()) if here else None


# -- the folder


class Claims:
    """The logs of a sweep's points."""

    def __init__(self, sweep: Path, retries: int) -> None:
        """
        Args:
            sweep: the sweep's directory.
            retries: how often a point that has failed is retried.
        """
        self._folder, self._managers, self._retries = sweep / CLAIMS, sweep / MANAGERS, retries
        self._names: dict[int, Entry] = {}  # by inode
        self._made: set[Path] = set()  # marks that are known to exist
        self._added: set[Path] = set()  # the entries that this object has made
        self._full: dict[str, int] = {}  # by the name of a mark, how many of them have all the links that are possible

    @classmethod
    def create(cls, sweep: Path) -> None:
        """Makes the folders, and tries a hard link.

        Raises:
            RunError: the file system has no hard links.
            OSError: nothing can be written there.
        """
        for name in (CLAIMS, MANAGERS):
            (sweep / name).mkdir(mode=0o700, exist_ok=True)
        one, two = sweep / MANAGERS / ".first", sweep / MANAGERS / ".second"
        one.touch(mode=0o600)
        try:
            two.unlink(missing_ok=True)
            os.link(one, two)
        except OSError as error:
            if error.errno not in run_files.WITHOUT_LINKS:
                raise
            raise RunError(
                f"{sweep} is on a file system without hard links ({error.strerror}), by which pilots share the points: "
                "set runs_dir to another one, or leave out sweep.slots and sweep.pack"
            ) from None
        finally:
            one.unlink(missing_ok=True)
            two.unlink(missing_ok=True)

    def logs(self) -> dict[int, PointLog]:
        """What the logs say, of all points that have one.

        Raises:
            UnavailableError: the folder cannot be read now.
        """
        return {point: fold(entries, self._retries) for point, entries in self.entries().items()}

    def log(self, point: int) -> PointLog:
        """What the log of one point says.

        Raises:
            UnavailableError: an entry cannot be read now.
        """
        entries: list[Entry] = []
        while entry := self._by_content(f"{point}.{len(entries)}"):
            entries.append(entry)
        return fold(entries, self._retries)

    def entries(self) -> dict[int, list[Entry]]:
        """The logs. One that grows meanwhile may lack its end."""
        listed = unwrap(retry_read(lambda: [(e.name, e.inode()) for e in os.scandir(self._folder)], self._folder)) or []
        found: dict[int, dict[int, tuple[str, int]]] = {}
        for name, inode in listed:
            if match := _ENTRY.fullmatch(name):
                found.setdefault(int(match[1]), {})[int(match[2])] = name, inode
            elif inode not in self._names and (match := _MARK.fullmatch(name)):
                self._names[inode] = _entry(match)
        logs = {}
        for point, numbered in found.items():
            log: list[Entry] = []
            while (each := numbered.get(len(log))) is not None:
                entry = self._names.get(each[1]) or self._by_content(each[0])
                if entry is None:
                    break
                log.append(entry)
            logs[point] = log
        return logs

    def add(self, point: int, number: int, kind: Kind, manager: Manager | None) -> bool:
        """Makes an entry of a point's log; whether this call made it, rather than an earlier one or somebody else.

        Raises:
            OSError: the file system refuses.
        """
        name = f"{'user' if manager is None else manager}.{kind.value}"
        path = self._folder / f"{point}.{number}"
        if path in self._added:  # on some file systems a listing that is a moment old does not show it
            return False
        serial = self._full.get(name, 0)
        while True:
            mark = self._folder / (f"{name}.{serial}" if serial else name)
            if mark not in self._made:
                self._make(mark, name)
            try:
                os.link(mark, path)
                self._added.add(path)
                return True
            except FileExistsError:
                # Over NFS the answer to a link that succeeded may be lost: then it is this manager's.
                if manager is None or not os.path.samefile(mark, path):
                    return False
                self._added.add(path)
                return True
            except OSError as error:
                if error.errno != errno.EMLINK:
                    raise
            serial += 1  # of this mark no more links are possible
            self._full[name] = serial

    def _make(self, mark: Path, text: str) -> None:
        """Makes a mark, unless it is there; never one without its content, see `_by_content`."""
        temporary = mark.with_name(run_files.temporary_name(mark.name))
        run_files.write(temporary, text, sync=False)
        try:
            with contextlib.suppress(FileExistsError):
                os.link(temporary, mark)
        finally:
            temporary.unlink()
        self._made.add(mark)

    def _by_content(self, name: str) -> Entry | None:
        """The entry in a file, for file systems whose listings show no inodes of links; None: there is none."""
        match = _MARK.fullmatch((unwrap(read_text(self._folder / name)) or "").strip())
        return _entry(match) if match else None

    # -- the managers

    def journal(self, manager: Manager) -> Path:
        """The path of a manager's journal."""
        return self._managers / f"{manager}.jsonl"

    def note(self, manager: Manager, event: Event) -> None:
        """Appends to a manager's journal, which is a heartbeat as well.

        Raises:
            OSError: it cannot be written.
        """
        event_file.append(self.journal(manager), event)

    def beat(self, manager: Manager) -> None:
        """A heartbeat.

        Raises:
            OSError: the file server does not take it.
        """
        os.utime(self.journal(manager))

    def sign(self, manager: Manager) -> tuple[int, int] | None:
        """What changes with each heartbeat of a manager; None: it cannot be seen now."""
        try:
            status = self.journal(manager).stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size

    def managers(self) -> list[Manager]:
        """All slot managers that have ever begun, in order."""
        names = unwrap(list_names(str(self._managers))) or ()
        return sorted(Manager.of(match[1]) for match in map(_JOURNAL.fullmatch, names) if match)


def _entry(match: re.Match[str]) -> Entry:
    manager = None if match[1] == "user" else Manager.of(match[1])
    return Entry(Kind(match[2]), manager)
