"""A slot manager: the rank of a pilot that runs points on its node, as many at once as the node has slots.

For each free slot it claims the next point (launcher/runs/point_claims.py; there is no server), and forks the point's
process, so that torch is loaded already. If a slot manager is killed, the kernel kills its points with it, and another
slot manager takes them over.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from launcher import errors, processes
from launcher.agent.attempt import THREADS
from launcher.agent.leader_connection import Signals
from launcher.agent.supervisor import StopChecker
from launcher.agent.workers import preload
from launcher.errors import LauncherError, UnavailableError, is_transient
from launcher.failures.codes import StopReason
from launcher.files.retried_reads import IN_A_JOB, Ok, exists
from launcher.formatting import log_line, plural, ranges
from launcher.pilots import point_fork
from launcher.pilots.point_fork import Slot, slots_of_node
from launcher.processes import Process, namespace
from launcher.runs import event_files, point_claims
from launcher.runs import events as kinds
from launcher.runs.directory import Attempt, Events, current_attempt
from launcher.runs.lease_and_locks import HolderWatch
from launcher.runs.point_claims import Claims, EntryKind, Manager, PointLog, SeenManager, State
from launcher.runs.sweep_directory import Packing, SearchRecord, Sweep, TrialState
from launcher.schedulers.topology import hosts_in
from launcher.worker import heartbeat
from launcher.worker.devices import OWN_CORES

if TYPE_CHECKING:
    from launcher import Env
    from launcher.config.schema import Function
    from launcher.search.search import SearchPoints


T = TypeVar("T")
TICK = 0.2  # seconds between two turns of the loop; child exits and signals start the next one earlier
LOOK = 1.0  # seconds between two checks for stop requests and cancelled points
PAUSE = 10.0  # seconds without starting points after one could not be started
IDLE = 60.0  # seconds that a manager without a point waits at least for one to be freed
REPEAT = 15.0  # seconds beyond launch.grace after which a point that was asked to stop is killed


@dataclass
class Running:
    """A point that this slot manager has claimed, and runs in a process."""

    point: int  # index of the point in the sweep
    entry: int  # index in the point's log of the entry that will record the point's end
    slot: Slot  # the slot that the point occupies
    before: PointLog  # the point's log before the claim
    attempt: Attempt
    cancelled: bool = False  # whether the user cancelled it
    stopping: bool = False  # whether it was asked to stop because all points stop
    pruned: bool = False
    kill_at: float | None = None  # monotonic time at which to kill the process; None: it was not asked to stop


def main(config: Function, env: Env | None) -> dict[str, Any]:
    """Runs points as a pilot's rank, until no point is left. For the metrics that it returns see `SlotManager.run`.

    config: `kwargs` has the sweep's directory (`sweep`) and the index of the pilot in the sweep (`pilot`).
    Raises SystemExit: with 75 (resume), if unfinished points have to continue in another attempt of the pilot.
    """
    attempt, sweep = current_attempt(), Sweep(Path(config.kwargs["sweep"]))
    assert attempt is not None, "an agent has started this"
    plan = attempt.run.plan()
    with contextlib.suppress(Exception):  # errors are left to the points
        point = sweep.run(0).plan()
        os.environ.update(threads_of_points(os.environ, plan.cpus_per_proc, point.cpus_per_proc))
        preload(point.workload.entry)
    manifest = sweep.manifest()  # that of many points takes a while to read
    packing = manifest.packing
    assert packing is not None, "the sweep is packed"
    mine = manager_of(config.kwargs["pilot"], attempt, os.environ)
    slots = slots_of_node(
        packing.slots, os.environ, gpus_per_point=packing.gpus_per_point, gpus=plan.gpus_per_node,
        cpus=packing.cpus_per_point,
    )  # fmt: skip
    signals = Signals()
    signals.install()
    processes.raise_limit()
    try:
        host = (hosts_in(os.environ) or [socket.gethostname()])[mine.node]
        return SlotManager(sweep, len(manifest.points), packing, attempt, mine, host, os.environ, signals).run(slots)
    finally:
        signals.ignore()


def threads_of_points(environ: Mapping[str, str], of_pilot: int, of_point: int) -> dict[str, str]:
    """Returns OMP_NUM_THREADS for points, if the pilot's job or agent has set it for all slots; a user's value stays.

    of_pilot, of_point: cpus_per_proc of both.
    """
    given = environ.get(THREADS)
    return {THREADS: str(of_point)} if given and given in (str(of_pilot), environ.get(OWN_CORES)) else {}


def manager_of(pilot: int, attempt: Attempt, environ: Mapping[str, str]) -> Manager:
    """Returns the id of the slot manager that this rank (by round and node rank) of a pilot is."""
    return Manager(pilot, attempt.number, int(environ.get("LAUNCHER_ROUND", 0)), int(environ.get("GROUP_RANK", 0)))


class SlotManager:
    """The slot manager of a node: claims points, runs them and records their ends."""

    def __init__(
        self, sweep: Sweep, points: int, packing: Packing, attempt: Attempt, mine: Manager, host: str,
        environ: Mapping[str, str], signals: Signals, start: Callable[[Attempt, Slot, str], int] = point_fork.start,
    ) -> None:  # fmt: skip
        self._starts = start
        plan = attempt.run.plan()
        self._sweep, self._plan, self._attempt, self._packing = sweep, plan, attempt, packing
        self._leads, self._mine, self._host = environ.get("RANK", "0") == "0", mine, host
        self._claims = Claims(sweep.path, packing.retries)
        self._running: dict[int, Running] = {}  # by process id
        self._search = _search_of(sweep, lambda: self._beat(time.monotonic()))
        count = self._search.count() if self._search else points
        self._free_points = FreePoints(self._claims, count, mine, host, packing.lease)
        # The file that asks all slot managers of this attempt of the pilot to stop their points
        self._stops = sweep.path / point_claims.MANAGERS / f".{mine.pilot}-{mine.attempt}.stops"
        self._checker = StopChecker(plan, environ, first=self._leads, now=time.monotonic())
        self._stopping: StopReason | None = None
        self._cancelled = self._left_out = False
        self._outcomes: list[tuple[int, EntryKind]] = []
        self._signals = signals
        self._next_look = self._next_prune = self._next_start = 0.0
        self._events, self._reported = Events(attempt, "rank-0"), -1
        self._free: list[Slot] = []
        self._pulse = heartbeat.mine()
        self._next_beat, self._beaten = 0.0, time.monotonic()

    def run(self, slots: Sequence[Slot]) -> dict[str, Any]:
        """Claims points and runs them in these slots until no point is left that this slot manager may claim.

        Returns `points`, the number of attempts of points that ended here, and `done`, how many of these succeeded.
        Raises SystemExit: with 75 (resume), if unfinished points have to continue in another attempt of the pilot.
        """
        self._begin(len(slots))
        self._free = [*slots][::-1]
        try:
            self._loop()
            self._report(self._free_points.ended)
        finally:
            for pid in self._running:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._note(kinds.ManagerEnded())
        if self._stopping is not None:
            if self._leads:
                Events(self._attempt, "stop")(kinds.Stop(reason=self._stopping, rank=0, host=self._host))
            sys.exit(errors.RESUME)
        done = sum(kind is EntryKind.DONE for _, kind in self._outcomes)
        return {"points": len(self._outcomes), "done": done}

    def _loop(self) -> None:
        idle_since: float | None = None
        while True:
            now = time.monotonic()
            self._reap()
            self._beat(now)
            self._prune(now)
            asked = self._stopping is None and (self._signals.ends() or self._signals.warns())
            if asked or now >= self._next_look:
                self._next_look = now + LOOK
                self._look(now)
            leaves = self._stopping is not None or self._cancelled or self._left_out
            if not leaves:
                self._fill()
            if self._running:
                idle_since = None
            elif leaves:
                return
            elif self._is_over() or (
                idle_since is not None and now - idle_since > IDLE and not self._free_points.waits
            ):
                if self._may_leave():
                    return
                idle_since = None
            elif idle_since is None:
                idle_since = now
            self._wait()

    def _is_over(self) -> bool:
        with contextlib.suppress(OSError, UnavailableError):
            self._free_points.look()
            return self._free_points.over and not self._grows()
        return False

    def _may_leave(self) -> bool:
        # Returns whether still no point is free, so that it may end.
        # Whoever frees points does that first, and then checks for a manager that is not idle. So one of both sees the
        # free points.
        self._claims.note(self._mine, kinds.ManagerIdle())
        with contextlib.suppress(OSError, UnavailableError):
            self._free_points.look(now=True)
            return not self._free_points.free and not self._grows(now=True)
        return False

    # -- points

    def _fill(self) -> None:
        while self._free and time.monotonic() >= self._next_start:
            try:
                claimed = self._claim()
            except (OSError, UnavailableError) as error:
                if not is_transient(error):
                    raise
                return  # retried at the next turn of the loop
            if claimed is None:
                return
            self._start(*claimed)

    def _claim(self) -> tuple[int, PointLog] | None:
        # Returns a claimed point (see `FreePoints.claim`). If none is free, the search, if any, adds one first.
        claimed = self._free_points.claim()
        if claimed is None and self._grows():
            self._free_points.look(now=True)
            claimed = self._free_points.claim()
        return claimed

    def _grows(self, *, now: bool = False) -> bool:
        # Lets the search, if any, choose another point; returns whether it did. now: see `SearchPoints.more`
        if self._search is None or not self._search.more(now=now):
            return False
        self._free_points.count = self._search.count()
        return True

    def _start(self, point: int, before: PointLog) -> None:
        # If that fails, no point is started for PAUSE seconds
        slot, most = self._free.pop(), self._plan.resume.max_attempts
        try:
            run = self._sweep.run(point) if self._search is None else self._search.made(point)
            if run.has("cancelled"):
                self._not_started(point, before, slot, EntryKind.CANCELLED)
                return
            if before.state is State.HELD and before.interrupted >= most:
                why = f"its pilot or node was lost again, after {plural(most, 'attempt')} (resume.max_attempts)"
                ended = point_fork.begin(run).events_file("script")
                for event in (kinds.Fault(host=self._host, message=why), kinds.Ended(code=errors.NO_RETRY)):
                    event_files.append(ended, event)
                self._not_started(point, before, slot, EntryKind.FATAL)
                return
            attempt = point_fork.begin(run)
            self._note(kinds.PointBegan(point=point, slot=slot.number, attempt=attempt.number))
            pid = self._starts(attempt, slot, self._host)
        except (OSError, LauncherError) as error:
            again = is_transient(error) and before.interrupted + 1 < most  # no process is left, say; else a full disk
            log_line(f"point {point} cannot be started: {error}")
            self._not_started(point, before, slot, EntryKind.RELEASED if again else EntryKind.FAILED)
            self._free_points.not_started.add(point)
            self._next_start = time.monotonic() + PAUSE
            return
        self._running[pid] = Running(point, before.next + 1, slot, before, attempt)

    def _not_started(self, point: int, before: PointLog, slot: Slot, kind: EntryKind) -> None:
        self._tell_search(point, before, kind)
        self._retried(lambda: self._claims.add(point, before.next + 1, kind, self._mine))
        self._note(kinds.PointEnded(point=point, slot=slot.number, code=errors.FAILED, kind=kind.value))
        self._free.append(slot)

    def _reap(self) -> None:
        for pid in list(self._running):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self._end(self._running.pop(pid), os.waitstatus_to_exitcode(status))

    def _end(self, each: Running, code: int) -> None:
        run = self._sweep.run(each.point)
        if code < 0:
            with contextlib.suppress(OSError, LauncherError):
                point_fork.close(each.attempt, -code, self._host, asked=each.stopping or each.kill_at is not None)
        kind = outcome(
            code, stopping=each.stopping, cancelled=each.cancelled, pruned=each.pruned,
            stopped=_marked(run.path / "stop"), spent=each.before.interrupted + 1 >= self._plan.resume.max_attempts,
        )  # fmt: skip
        self._tell_search(each.point, each.before, kind)
        if not self._retried(lambda: self._claims.add(each.point, each.entry, kind, self._mine)):
            log_line(f"another pilot or node has taken over point {each.point}: its end here does not count")
        self._free.append(each.slot)
        self._free_points.changed()
        self._outcomes.append((each.point, kind))
        self._note(kinds.PointEnded(point=each.point, slot=each.slot.number, code=code, kind=kind.value))
        if kind is EntryKind.FAILED and point_claims.left_out(self._outcomes, self._free_points.others_done):
            self._left_out = True
            failed = tuple(point for point, kind in self._outcomes if kind is EntryKind.FAILED)
            last = failed[-point_claims.SEVERAL :]
            self._note(kinds.NodeLeftOut(points=last))
            log_line(f"{self._host} runs no more points: {ranges(sorted(last))} failed here, others elsewhere did not")

    def _tell_search(self, point: int, before: PointLog, kind: EntryKind) -> None:
        # Reports the end of a point to the search, unless it will be retried. Call it before writing the point's log:
        # the search ignores a second report of the same point.
        if self._search is None:
            return
        failed = kind is EntryKind.FATAL or (
            kind is EntryKind.FAILED and len(before.failed_on) >= self._packing.retries
        )
        outcome = {EntryKind.DONE: TrialState.COMPLETE, EntryKind.PRUNED: TrialState.PRUNED}.get(
            kind, TrialState.FAIL if failed else None
        )
        if outcome is None:
            return
        search = self._search
        try:
            self._retried(lambda: search.ended(point, outcome))
        except (OSError, UnavailableError) as error:
            log_line(f"the search did not record the end of point {point}: {error}")

    def _retried(self, call: Callable[[], T]) -> T:
        give_up = time.monotonic() + IN_A_JOB
        while True:
            try:
                return call()
            except (OSError, UnavailableError) as error:
                if not is_transient(error) or time.monotonic() >= give_up:
                    raise
            self._beat(time.monotonic())
            time.sleep(LOOK)

    # -- heartbeats, stops

    def _begin(self, slots: int) -> None:
        if self._pulse is not None:
            self._pulse.listen()
        if why := processes.unsafe_to_fork():
            log_line(f"this pilot {why}: points may take long to start")
        process, job = Process.of(os.getpid()), os.environ.get("LAUNCHER_JOB_ID", "")
        self._claims.note(self._mine, kinds.ManagerBegan(
            host=self._host, job=job, slots=slots, pid=process.pid, start=process.start, namespace=namespace()
        ))  # fmt: skip

    def _note(self, event: kinds.Event) -> None:
        with contextlib.suppress(OSError):  # the journal only describes what the claims decide
            self._claims.note(self._mine, event)

    def _beat(self, now: float) -> None:
        # Points are killed if no heartbeat could be written for half a lease, since others may soon take them over
        if self._pulse is not None:
            self._pulse.beat()
        lease = self._packing.lease
        late = now - self._beaten > lease / 2
        if now >= self._next_beat:
            self._next_beat = now + point_claims.heartbeat_seconds(lease)
            with contextlib.suppress(OSError):
                self._claims.beat(self._mine)
                self._beaten = time.monotonic()
            for each in self._running.values():  # else another run could take its checkpoint folder (lease_and_locks)
                with contextlib.suppress(OSError):
                    os.utime(each.attempt.run.path / point_fork.LEASE)
        if not late:
            return
        self._beaten = now
        if self._running:
            log_line("no heartbeat could be written for too long: points are killed, as other nodes may run them now")
        for pid, each in self._running.items():
            each.stopping = True
            os.kill(pid, signal.SIGKILL)

    def _wait(self) -> None:
        # Until a child process ends or a signal arrives, for at most TICK
        processes.use_large_pages()  # not earlier: now the first points run already
        poll = select.poll()
        poll.register(self._signals.wake, select.POLLIN)
        poll.poll(TICK * 1000)
        self._signals.clear()

    def _look(self, now: float) -> None:
        # Polls for stop requests and cancelled points; asks points to stop, and kills those that did not in time
        self._report(self._free_points.ended)
        if self._stopping is None and (reason := self._reason(now)) is not None:
            self._stopping = reason
            with contextlib.suppress(OSError):
                self._stops.touch(mode=0o600)
        self._cancelled = self._cancelled or _marked(self._sweep.path / "cancelled")
        for pid, each in self._running.items():
            each.cancelled = each.cancelled or self._cancelled or _marked(each.attempt.run.path / "cancelled")
            if (each.pruned or each.cancelled or self._stopping is not None) and each.kill_at is None:
                each.stopping = self._stopping is not None
                each.kill_at = now + self._plan.launch.grace + REPEAT
                os.kill(pid, signal.SIGTERM)
            elif each.kill_at is not None and now >= each.kill_at:
                os.kill(pid, signal.SIGKILL)

    def _report(self, ended: int) -> None:
        # Does not use the reporter of a rank, which the forked points would inherit
        if self._leads and ended != self._reported:
            self._reported = ended
            self._events(kinds.Progress(step=ended, total=0 if self._search else self._free_points.count))

    def _prune(self, now: float) -> None:
        if self._search is None or now < self._next_prune:
            return
        for each in self._running.values():
            with contextlib.suppress(OSError, UnavailableError):
                if each.kill_at is None and self._search.to_prune(each.point):
                    each.pruned, self._next_look = True, now
        self._next_prune = now + 10 * (time.monotonic() - now)

    def _reason(self, now: float) -> StopReason | None:
        if self._signals.ends():
            return StopReason.SIGNAL
        if self._signals.warns():
            return StopReason.WARNING_SIGNAL
        if (reason := self._checker.reason(now)) is not None:
            return reason
        return StopReason.TIME_LIMIT if _marked(self._stops) else None


def _search_of(sweep: Sweep, waiting: Callable[[], None]) -> SearchPoints | None:
    # `waiting`: see `SearchPoints`
    if not SearchRecord(sweep.path).exists():
        return None
    from launcher.search.search import SearchPoints

    return SearchPoints(sweep, waiting)


def _marked(path: Path) -> bool:
    return exists(path, retry_seconds=0) == Ok(True)


# -- Decides from a point's exit code what its log says next: done, failed, released for a retry, ...


def outcome(
    code: int, *, stopping: bool = False, cancelled: bool = False, stopped: bool = False, pruned: bool = False,
    spent: bool = False,
) -> EntryKind:  # fmt: skip
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
        return EntryKind.DONE
    if cancelled:
        return EntryKind.CANCELLED
    if pruned:
        return EntryKind.PRUNED
    if code == errors.NO_RETRY:
        return EntryKind.FATAL
    if code == errors.RESUME and stopped:
        return EntryKind.STOPPED
    if code == errors.RESUME or stopping:
        return EntryKind.FATAL if spent else EntryKind.RELEASED
    return EntryKind.FAILED


# -- What a slot manager reads from the claims and heartbeats of all: which points are free, which managers are dead


SOONEST, LATEST = 0.2, 5.0  # seconds between two polls of the claims of others


class FreePoints:
    """Finds the points that a slot manager may claim.

    count: number of points of the sweep; a search (Optuna) adds points while it runs.
    logs, others_done, waits: as of the last `look`; whether another node has completed a point; whether a manager may
        die, or be dead, whose points this one has to take over.
    """

    def __init__(
        self, folder: Claims, count: int, mine: Manager, host: str, lease: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._claims, self.count, self._mine, self._host, self._clock = folder, count, mine, host, clock
        self._lease = lease
        self._watches: dict[Manager, HolderWatch] = {}  # of the heartbeats of others
        self._others: dict[Manager, SeenManager] = {}
        self._free: deque[int] = deque()
        self._next_look = self._looked = self._pause = 0.0
        self._stale = True
        self.not_started: set[int] = set()  # that this manager could not start
        self.logs: dict[int, PointLog] = {}
        self.others_done = self.waits = False

    @property
    def over(self) -> bool:
        return self.ended >= self.count

    @property
    def ended(self) -> int:
        return sum(log.state.over for log in self.logs.values())

    def claim(self) -> tuple[int, PointLog] | None:
        """Claims a point for this manager; returns its index and its log before; None: none may be claimed now.

        Raises OSError, UnavailableError: the claims cannot be read or written now.
        """
        while True:
            if not self._free or self._stale:
                self.look()
                self._stale = False  # also if a look is not due yet
            if not self._free:
                return None
            point = self._free.popleft()
            log = self.logs.get(point, PointLog())
            if self._claims.add(point, log.next, EntryKind.CLAIMED, self._mine):
                return point, log
            self._stale = True  # another manager was faster: read the claims of all before the next try

    def changed(self) -> None:
        """Makes the next `look` due soon. Call it when a point of this manager has ended: it may be the last one."""
        self._pause, self._next_look = 0.0, min(self._next_look, self._looked + SOONEST)

    @property
    def free(self) -> bool:
        return bool(self._free)

    def look(self, *, now: bool = False) -> None:
        """Reads the claims and heartbeats of all slot managers, if that is due (or `now`)."""
        began = self._clock()
        if began < self._next_look and not now:
            return
        self.logs = self._claims.logs()
        dead, live, awaited = self._look_at_managers(began)
        managers = sorted({*live, self._mine})
        held = {point for point, log in self.logs.items() if log.state is State.HELD and log.owner in dead}
        self.waits = any(log.state is State.HELD and log.owner in awaited for log in self.logs.values())
        hosts = {**{each: other.host for each, other in self._others.items()}, self._mine: self._host}
        self.others_done = any(
            log.state is State.DONE and log.last is not None and hosts.get(log.last, self._host) != self._host
            for log in self.logs.values()
        )
        before = list(self._free)
        self._free = deque(point_claims.next_points(
            self.logs, self.count, self._mine, part=(managers.index(self._mine), len(managers)), hosts=hosts,
            live={hosts[each] for each in managers}, taken_over=held,
            not_started=self.not_started,
        ))  # fmt: skip
        self._looked = self._clock()
        took = self._looked - began
        self._pause = SOONEST if list(self._free) != before else min(LATEST, 2 * self._pause + SOONEST)
        self._next_look = began + max(self._pause, 10 * took)

    def _look_at_managers(self, now: float) -> tuple[set[Manager], set[Manager], set[Manager]]:
        dead, live, awaited = set[Manager](), set[Manager](), set[Manager]()
        owners = {log.owner for log in self.logs.values() if log.owner is not None}  # one may have no journal
        for each in owners.union(self._claims.managers()) - {self._mine}:
            other = self._others.get(each)
            if other is None or not other.ended:
                other = self._others[each] = self._claims.seen(each)
            watch = self._watches.setdefault(each, HolderWatch())
            if (sign := self._claims.sign(each)) is None:
                watch.forget()
            else:
                watch.look(each, sign, now)
            seen = each, self._mine, other.alive(), watch.unchanged, self._lease
            if point_claims.may_take_over(*seen):
                dead.add(each)
            else:
                live.add(each)
                if not point_claims.may_leave(*seen):
                    awaited.add(each)
        return dead, live, awaited
