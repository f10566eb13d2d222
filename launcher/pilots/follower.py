"""The slot manager of a node that is not the first one of its group. It runs this node's part of the group's points.

It follows the journal of the first node's slot manager, and starts an agent for each attempt of a point that begins
there. This agent and those on the other nodes join a rendezvous as in any run. Stop requests and failures reach them
over the rendezvous connections.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher import errors
from launcher.agent.signals import Signals
from launcher.files.shared_files import Ok, exists
from launcher.log_line import log_line
from launcher.pilots import point_fork
from launcher.pilots.journal import JournalReader, JournalWriter
from launcher.pilots.slots import Group, Slot
from launcher.runs.claims import Claims, Manager
from launcher.runs.directory import Attempt
from launcher.runs.events import Event, PartEnded, PointBegan, PointEnded
from launcher.runs.sweep_directory import Packing, Sweep

TICK = 0.2  # seconds between two polls of the journal
ENDS = 15.0  # seconds after the end of a point after which its part here is killed


@dataclass
class Part:
    """This node's part of an attempt of a point: a running process."""

    began: PointBegan  # the event in the first node's journal that asked for this part
    kill_at: float | None = None  # monotonic time at which to kill the process; None: the point has not ended


class Follower:
    """The slot manager of a node that is not the first of its group: runs the node's part of each point."""

    def __init__(
        self, sweep: Sweep, packing: Packing, mine: Manager, group: Group, signals: Signals, stops: Path,
        start: Callable[[Attempt, Slot, Group], int] = point_fork.start,
    ) -> None:  # fmt: skip
        """
        Args:
            sweep: the sweep.
            packing: how the sweep's points share pilots.
            mine: this slot manager.
            group: the group of this node.
            signals: the signals of this process.
            stops: the file whose presence asks all slot managers of the pilot's attempt to stop their points.
            start: starts this node's part of a point, and returns its process id; tests replace it.
        """
        folder = Claims(sweep.path, packing.retries)
        self._sweep, self._group, self._signals, self._stops, self._starts = sweep, group, signals, stops, start
        self._journal = JournalWriter(folder, mine, packing.lease, signals)
        self._leader = JournalReader(folder, group.leader, packing.lease / 2)
        self._running: dict[int, Part] = {}  # by process id
        self._wanted: dict[int, PointBegan] = {}  # by slot
        self._started: set[tuple[int, int | None]] = set()
        self._stop_marked = False

    def run(self, slots: Sequence[Slot]) -> None:
        """Runs this node's part of each point until the slot manager of the group's first node is gone.

        Exits with code 75 (resume) if the pilot is being stopped, so that the points continue in another attempt.

        Args:
            slots: the slots of this node.
        """
        self._journal.begin(self._group.host, slots=0)
        try:
            while not self._leader.gone:
                self._turn(slots, time.monotonic())
                self._journal.wait(TICK)
        finally:
            self._journal.end(self._running)
        if self._stopping() or exists(self._stops, retry_seconds=0) == Ok(True):
            sys.exit(errors.RESUME)

    def _stopping(self) -> bool:
        return (self._signals.ends() or self._signals.warns()) is not None

    def _turn(self, slots: Sequence[Slot], now: float) -> None:
        if self._journal.beat(now):
            self._kill(self._running)
        if self._stopping() and not self._stop_marked:
            with contextlib.suppress(OSError):
                self._stops.touch(mode=0o600)
                self._stop_marked = True
        self._reap()
        for event in self._leader.look(now):
            self._read(event)
        self._end_parts(now)
        busy = {part.began.slot for part in self._running.values()}
        for number, began in self._wanted.items():
            if number not in busy and (began.point, began.attempt) not in self._started:
                self._start(slots[number], began)

    def _read(self, event: Event) -> None:
        if isinstance(event, PointBegan):
            self._wanted[event.slot] = event
        elif isinstance(event, PointEnded):
            self._wanted.pop(event.slot, None)

    def _start(self, slot: Slot, began: PointBegan) -> None:
        assert began.attempt is not None, "a slot manager of this version has written it"
        self._started.add((began.point, began.attempt))
        try:
            pid = self._starts(Attempt(self._sweep.run(began.point), began.attempt), slot, self._group)
        except OSError as error:  # no process is left
            log_line(f"point {began.point} cannot be started: {error}")
            self._ended(began, errors.RESUME)
            return
        self._running[pid] = Part(began)

    def _reap(self) -> None:
        for pid in list(self._running):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self._ended(self._running.pop(pid).began, os.waitstatus_to_exitcode(status))

    def _ended(self, began: PointBegan, code: int) -> None:
        self._journal.note(PartEnded(point=began.point, attempt=began.attempt or 0, code=code))

    def _end_parts(self, now: float) -> None:
        for pid, part in self._running.items():
            wanted = self._wanted.get(part.began.slot)
            if wanted == part.began:
                continue
            part.kill_at = part.kill_at or now + ENDS
            if wanted is not None or now >= part.kill_at:
                self._kill([pid])

    @staticmethod
    def _kill(pids: Sequence[int] | dict[int, Part]) -> None:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
