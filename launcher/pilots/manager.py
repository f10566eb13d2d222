"""A slot manager: the rank of a pilot that runs points on its node, as many at once as the node has slots.

Each free slot takes the next point by a claim (launcher/runs/claims.py); the point's process is forked from here, where
torch is loaded. It works without anybody who hands out points: if it is killed, the kernel kills its points with it,
and another manager takes them over.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher import errors
from launcher.agent.forks import unsafe_to_fork
from launcher.agent.program_stop import StopChecker
from launcher.agent.signals import Signals
from launcher.errors import LauncherError, UnavailableError
from launcher.failures.codes import StopReason
from launcher.files.shared_files import IN_A_JOB, Ok, exists, is_transient
from launcher.log_line import log_line
from launcher.pilots import point_fork
from launcher.pilots.board import Board
from launcher.pilots.outcome import outcome
from launcher.pilots.slots import Slot, slots_of_node
from launcher.processes.groups import Process, namespace
from launcher.runs import claims
from launcher.runs.claims import Claims, Kind, Manager, PointLog
from launcher.runs.directory import Attempt, Run
from launcher.runs.event_writer import Events, current_attempt
from launcher.runs.events import (
    ManagerBegan,
    ManagerEnded,
    ManagerIdle,
    NodeLeftOut,
    PointBegan,
    PointEnded,
    Progress,
    Stop,
)
from launcher.runs.search_record import SearchRecord
from launcher.runs.sweep_directory import Sweep
from launcher.worker import heartbeat, preload

if TYPE_CHECKING:
    from launcher import Env
    from launcher.config.schema import Function
    from launcher.search.points import SearchPoints

TICK = 0.2  # seconds between two looks, unless a point ends
LOOK = 1.0  # seconds between two looks for stop requests and cancelled points
IDLE = 60.0  # seconds that a manager without a point waits for one to be freed
REPEAT = 15.0  # seconds beyond launch.grace after which a point that was asked to stop is killed


@dataclass
class Running:
    """A point that runs.

    Attributes:
        point: its number.
        entry: number of the next entry of its log.
        slot: where it runs.
        before: its log before it was claimed.
        cancelled, stopping, pruned: why it was asked to stop.
        kill_at: monotonic time at which it is killed.
    """

    point: int
    entry: int
    slot: Slot
    before: PointLog
    cancelled: bool = False
    stopping: bool = False
    pruned: bool = False
    kill_at: float | None = None


def main(config: Function, env: Env | None) -> dict[str, Any]:
    """Runs points until none is left.

    Args:
        config: with the sweep's directory and the pilot's number in `kwargs`.
        env: none; a pilot has no process group.
    """
    attempt, sweep = current_attempt(), Sweep(Path(config.kwargs["sweep"]))
    assert attempt is not None, "an agent has started this"
    _preload(sweep)
    signals = Signals()
    signals.install()
    try:
        return SlotManager(sweep, config.kwargs["pilot"], attempt, os.environ, signals).run()
    finally:
        signals.ignore()


def _preload(sweep: Sweep) -> None:
    """Imports what points share, as far as it is the launcher's own; a point shows its user what fails."""
    with contextlib.suppress(Exception):
        for name in preload.modules(sweep.run(0).plan().workload.entry):
            importlib.import_module(name)


class SlotManager:
    """Runs the points of one node."""

    def __init__(
        self, sweep: Sweep, pilot: int, attempt: Attempt, environ: Mapping[str, str], signals: Signals,
        start: Callable[[Run, Slot, str], int] = point_fork.start,
    ) -> None:  # fmt: skip
        """
        Args:
            sweep: the sweep.
            pilot: number of the pilot.
            attempt: of the pilot.
            environ: of this process.
            signals: that it gets.
            start: starts a point, and returns its process id; for tests.
        """
        self._starts = start
        plan, manifest = attempt.run.plan(), sweep.manifest()
        assert manifest.packing is not None, "the sweep is packed"
        self._sweep, self._plan, self._attempt, self._packing = sweep, plan, attempt, manifest.packing
        self._leads = environ.get("RANK", "0") == "0"
        node, round_ = int(environ.get("GROUP_RANK", 0)), int(environ.get("LAUNCHER_ROUND", 0))
        self._mine = Manager(pilot, attempt.number, round_, node)
        self._host = _host(environ, node)
        self._claims = Claims(sweep.path, manifest.packing.retries)
        self._board = Board(self._claims, len(manifest.points), self._mine, self._host, manifest.packing.lease)
        self._search = _search_of(sweep)
        self._board.count = self._search.count() if self._search else len(manifest.points)
        self._running: dict[int, Running] = {}  # by process id
        self._stops = sweep.path / claims.MANAGERS / f".{pilot}-{attempt.number}.stops"
        self._checker = StopChecker(plan, environ, first=self._leads, now=time.monotonic())
        self._stopping: StopReason | None = None
        self._cancelled = self._left_out = False
        self._outcomes: list[tuple[int, Kind]] = []
        self._signals = signals
        self._next_look = self._next_prune = self._next_beat = 0.0
        self._events, self._reported = Events(attempt, "rank-0"), -1
        self._beaten = time.monotonic()
        self._free: list[Slot] = []

    def run(self) -> dict[str, Any]:
        """Runs points; the metrics of this node. Leaves with 75 where points are to go on in another attempt."""
        slot = heartbeat.mine()
        if slot is not None:
            slot.listen()
        if why := unsafe_to_fork():
            log_line(f"this slot manager {why}: points may take long to start")
        process = Process.of(os.getpid())
        job = os.environ.get("LAUNCHER_JOB_ID", "")
        self._claims.note(self._mine, ManagerBegan(
            host=self._host, job=job, slots=self._packing.slots, pid=process.pid, start=process.start,
            namespace=namespace(),
        ))  # fmt: skip
        self._free = slots_of_node(
            self._packing.slots, os.environ, gpus_per_point=self._packing.gpus_per_point, gpus=self._plan.gpus_per_node,
            cpus=self._packing.cpus_per_point,
        )[::-1]  # fmt: skip
        try:
            self._loop(slot)
        finally:
            for pid in self._running:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(OSError):
                self._claims.note(self._mine, ManagerEnded())
        if self._stopping is not None:
            self._tell_stop(self._stopping)
            sys.exit(errors.RESUME)
        done = sum(kind is Kind.DONE for _, kind in self._outcomes)
        return {"points": len(self._outcomes), "done": done}

    def _loop(self, slot: heartbeat.Slot | None) -> None:
        idle_since: float | None = None
        while True:
            now = time.monotonic()
            if slot is not None:
                slot.beat()
            self._reap()
            self._beat(now)
            self._prune(now)
            asked = self._stopping is None and (self._signals.ends() or self._signals.warns())
            if asked or now >= self._next_look:
                self._next_look = now + LOOK
                self._look(now)
            accepting = self._stopping is None and not self._cancelled and not self._left_out
            if accepting:
                self._fill()
            if self._running:
                idle_since = None
            elif not accepting:
                return
            elif self._is_over() or (idle_since is not None and now - idle_since > IDLE):
                if self._may_leave():
                    return
                idle_since = None
            elif idle_since is None:
                idle_since = now
            self._wait(TICK)

    def _is_over(self) -> bool:
        with contextlib.suppress(OSError, UnavailableError):
            self._board.look()
            return self._board.over and (self._search is None or not self._search.more())
        return False

    def _may_leave(self) -> bool:
        """Whether there is nothing left to do here.

        Whoever frees points does so first, and then looks for a manager that is not idle: either sees the other.
        """
        self._claims.note(self._mine, ManagerIdle())
        try:
            self._board.look(now=True)
        except UnavailableError:
            return False
        return not self._board.free

    def _wait(self, timeout: float) -> None:
        """Waits until a child ends, or a signal arrives."""
        poll = select.poll()
        poll.register(self._signals.wake, select.POLLIN)
        poll.poll(timeout * 1000)
        self._signals.clear()

    # -- points

    def _fill(self) -> None:
        """Starts points in the free slots."""
        while self._free:
            try:
                claimed = self._claim()
            except (OSError, UnavailableError) as error:
                if not is_transient(error):
                    raise
                return  # at the next look the file server may answer
            if claimed is None:
                return
            self._start(*claimed)

    def _claim(self) -> tuple[int, PointLog] | None:
        """Claims a point, one that the search chooses if there is no other; None: there is none now."""
        claimed = self._board.claim()
        if claimed is None and self._search is not None and self._search.more():
            self._board.count = self._search.count()
            self._board.look(now=True)
            claimed = self._board.claim()
        return claimed

    def _start(self, point: int, before: PointLog) -> None:
        entry = before.next + 1
        run = self._sweep.run(point) if self._search is None else self._search.made(point)
        if run.has("cancelled"):
            self._claims.add(point, entry, Kind.CANCELLED, self._mine)
            return
        slot = self._free.pop()
        try:
            pid = self._starts(run, slot, self._host)
        except OSError as error:  # no process is left
            self._free.append(slot)
            log_line(f"point {point} cannot be started: {error}")
            self._claims.add(point, entry, Kind.RELEASED, self._mine)
            return
        self._running[pid] = Running(point, entry, slot, before)
        self._note(PointBegan(point=point, slot=slot.number))

    def _reap(self) -> None:
        for pid in list(self._running):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self._end(self._running.pop(pid), os.waitstatus_to_exitcode(status))

    def _end(self, each: Running, code: int) -> None:
        """Records how a point has ended."""
        run = self._sweep.run(each.point)
        if code < 0:
            with contextlib.suppress(OSError, LauncherError):
                point_fork.close(run, -code, self._host, asked=each.stopping or each.kill_at is not None)
        kind = outcome(
            code, stopping=each.stopping, cancelled=each.cancelled, stopped=_has(run, "stop"), pruned=each.pruned,
            spent=each.before.releases + 1 >= self._plan.resume.max_attempts,
        )  # fmt: skip
        self._tell_search(each, kind)
        if not self._claims.add(each.point, each.entry, kind, self._mine):
            log_line(f"point {each.point} was taken over by another slot manager: its end here does not count")
        self._free.append(each.slot)
        self._board.changed()
        self._outcomes.append((each.point, kind))
        self._note(PointEnded(point=each.point, slot=each.slot.number, code=code, kind=kind.value))
        if kind is Kind.FAILED and claims.left_out(self._outcomes, self._board.others_done()):
            self._left_out = True
            failed = tuple(point for point, kind in self._outcomes if kind is Kind.FAILED)
            self._note(NodeLeftOut(points=failed[-claims.SEVERAL :]))
            log_line(f"{self._host} is left out: points {failed[-claims.SEVERAL :]} failed here, others elsewhere not")

    def _tell_search(self, each: Running, kind: Kind) -> None:
        """Tells the search of an end that is final. It ignores a second one of a point, so this comes first."""
        if self._search is None:
            return
        # Lazily: Optuna takes a second, and sweeps without a search need none of it
        from launcher.search.search import Outcome

        failed = kind is Kind.FATAL or (kind is Kind.FAILED and len(each.before.failed_on) >= self._packing.retries)
        outcome = {Kind.DONE: Outcome.DONE, Kind.PRUNED: Outcome.PRUNED}.get(kind, Outcome.FAILED if failed else None)
        if outcome is None:
            return
        give_up = time.monotonic() + IN_A_JOB
        while True:
            try:
                self._search.ended(each.point, outcome)
                return
            except (OSError, UnavailableError) as error:
                if not is_transient(error) or time.monotonic() >= give_up:
                    log_line(f"the search did not record the end of point {each.point}: {error}")
                    return
            time.sleep(LOOK)

    # -- signs of life, stops

    def _beat(self, now: float) -> None:
        """A heartbeat. After half a lease without one the points are killed: others may take them over soon."""
        late = now - self._beaten > self._packing.lease / 2
        if now >= self._next_beat:
            self._next_beat = now + min(claims.HEARTBEAT, self._packing.lease / 6)
            with contextlib.suppress(OSError):
                self._claims.beat(self._mine)
                self._beaten = time.monotonic()
        if late and self._running:
            log_line("no heartbeat could be written for too long: points are killed, for others may take them over")
            for pid, each in self._running.items():
                each.stopping = True
                os.kill(pid, signal.SIGKILL)
            self._beaten = now

    def _look(self, now: float) -> None:
        """Looks for stop requests, and cancelled points."""
        self._report(self._board.ended)
        if self._stopping is None and (reason := self._reason(now)) is not None:
            self._stopping = reason
            with contextlib.suppress(OSError):
                self._stops.touch(mode=0o600)
        self._cancelled = self._cancelled or _marked(self._sweep.path / "cancelled")
        for pid, each in self._running.items():
            each.cancelled = each.cancelled or self._cancelled or _has(self._sweep.run(each.point), "cancelled")
            if (each.pruned or each.cancelled or self._stopping is not None) and each.kill_at is None:
                each.stopping = self._stopping is not None
                each.kill_at = now + self._plan.launch.grace + REPEAT
                os.kill(pid, signal.SIGTERM)
            elif each.kill_at is not None and now >= each.kill_at:
                os.kill(pid, signal.SIGKILL)

    def _report(self, ended: int) -> None:
        """Reports the progress of the sweep as that of the pilot; points would inherit the reporter of a rank."""
        if self._leads and ended != self._reported:
            self._reported = ended
            self._events(Progress(step=ended, total=0 if self._search else self._board.count))

    def _prune(self, now: float) -> None:
        """Asks the search which points are to be stopped: at each turn, unless reading their reports takes long."""
        if self._search is None or now < self._next_prune:
            return
        for each in self._running.values():
            if each.kill_at is None and self._is_pruned(each.point):
                each.pruned, self._next_look = True, now
        self._next_prune = now + 10 * (time.monotonic() - now)

    def _is_pruned(self, point: int) -> bool:
        """Whether the search prunes a point; if that cannot be told now, the next look tells."""
        with contextlib.suppress(OSError, UnavailableError):
            return self._search is not None and self._search.to_prune(point)
        return False

    def _reason(self, now: float) -> StopReason | None:
        """Why all points are to stop now; None: they are not."""
        if self._signals.ends():
            return StopReason.SIGNAL
        if self._signals.warns():
            return StopReason.WARNING_SIGNAL
        if (reason := self._checker.reason(now)) is not None:
            return reason
        return StopReason.TIME_LIMIT if _marked(self._stops) else None

    def _tell_stop(self, reason: StopReason) -> None:
        if self._leads:
            Events(self._attempt, "stop")(Stop(reason=reason, rank=0, host=self._host))

    def _note(self, event: Any) -> None:
        """The journal is for statistics: one that cannot be written ends nothing."""
        with contextlib.suppress(OSError):
            self._claims.note(self._mine, event)


def _host(environ: Mapping[str, str], node: int) -> str:
    """The name that the scheduler has for this node, as far as it is known."""
    hosts = environ.get("LAUNCHER_HOSTS", "").split(",")
    return hosts[node] if node < len(hosts) and hosts[node] else socket.gethostname()


def _search_of(sweep: Sweep) -> SearchPoints | None:
    """The search that chooses the points; None: they are a list."""
    if not SearchRecord(sweep.path).exists():
        return None
    # Lazily: Optuna takes a second, and sweeps without a search need none of it
    from launcher.search.points import SearchPoints

    return SearchPoints(sweep)


def _has(run: Run, name: str) -> bool:
    return _marked(run.path / name)


def _marked(path: Path) -> bool:
    """Whether a mark is there; one that cannot be read now is looked for at the next look."""
    return exists(path, retry_seconds=0) == Ok(True)
