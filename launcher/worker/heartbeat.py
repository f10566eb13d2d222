"""Heartbeats of forked ranks, in memory that they share with their agent: no file, no lock, no system call.

The memory begins with the agent's words to all of its ranks. Then each rank has a slot: its heartbeat, its step time,
and its part in the agreement on stops (see `stop_memory`).
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from launcher.files import memory_file
from launcher.worker import stop_memory
from launcher.worker.stop_agreement import Proposal, RankState
from launcher.worker.stop_memory import AgentWords, RankWords

INTERVAL = 1.0  # seconds between two heartbeats of a rank that waits
_SLOT = struct.Struct("=qqqq")  # how it reacts to a stop, last step, heartbeats, how far it has joined
_PACE = struct.Struct("@dq")  # seconds of a step without waiting, number of steps measured
_AGENT = stop_memory.AGENT
_SIZE = _SLOT.size + _PACE.size + stop_memory.RANK
_NAME = "launcher-pulse"
_IGNORES, _LISTENS, _GIVES_UP = 0, 1, 2
_ABSENT, _ARRIVED, _JOINED = 0, 1, 2


@dataclass(frozen=True)
class Sign:
    """The heartbeat of one rank.

    Attributes:
        listens: whether it checks for a stop at step boundaries: then it gets the time to save and exit by itself.
        step: steps of the run that are done; -1 before the first.
        beats: number of heartbeats.
        gives_up: its error is final: a restart would not help.
        arrived: it waits for the other ranks to make the process group.
        joined: all ranks have arrived.
    """

    listens: bool
    step: int
    beats: int
    gives_up: bool = False
    arrived: bool = False
    joined: bool = False


class Slot:
    """One rank's slot. Only the rank writes to it, and a torn read does no harm.

    Attributes:
        stop: the rank's part in the agreement on stops.
        agent: the agent's part in it, for all of its ranks.
    """

    def __init__(self, memory: mmap.mmap, index: int) -> None:
        self._memory, self._offset = memory, _AGENT + index * _SIZE
        self.agent = AgentWords(memory)
        self.stop = RankWords(memory, self._offset + _SLOT.size + _PACE.size)
        self.stop.write(RankState())
        self._listens, self._step, self._beats, self._joining = _IGNORES, -1, 0, _ABSENT
        self._write()
        self.pace(0.0, 0)

    def listen(self) -> None:
        """From now on this rank exits by itself after a stop request."""
        self._listens = _LISTENS
        self._write()

    def arrive(self) -> None:
        """This rank waits for the others to make the process group."""
        self._joining = _ARRIVED
        self._write()

    def join(self) -> None:
        """All ranks have arrived."""
        self._joining = _JOINED
        self._write()

    def give_up(self) -> None:
        """This rank is about to fail, and a restart would fail too."""
        self._listens = _GIVES_UP
        self._write()

    def beat(self, step: int | None = None) -> None:
        """Sends a heartbeat, with the number of steps of the run that are done."""
        self._step = self._step if step is None else step
        self._beats += 1
        self._write()

    def progress(self, step: int) -> None:
        """Records the steps of the run that are done, unless `beat` is called at each step."""
        if self._listens != _LISTENS:
            self.beat(int(step))  # some programs count in fractions of an epoch

    def pace(self, seconds: float, steps: int) -> None:
        """Records the seconds of a step without waiting, as measured lately, and the number of steps measured."""
        _PACE.pack_into(self._memory, self._offset + _SLOT.size, seconds, steps)

    def _write(self) -> None:
        _SLOT.pack_into(self._memory, self._offset, self._listens, self._step, self._beats, self._joining)


class Pulse:
    """The slots of one agent's ranks, made before they are forked."""

    def __init__(self, ranks: int) -> None:
        self._file = os.fdopen(memory_file.make(_NAME), "r+b", buffering=0)  # a rank may become another program
        self._file.truncate(_AGENT + ranks * _SIZE)
        self._memory = mmap.mmap(self._file.fileno(), _AGENT + ranks * _SIZE)
        self._ranks = ranks
        self.clear()

    def clear(self, world_size: int = 0) -> None:
        """Resets all slots.

        Args:
            world_size: ranks of all agents, if they agree on stops through their agents; otherwise 0.
        """
        self._agent = AgentWords(self._memory)
        self._agent.clear(world_size)
        self._stops = [Slot(self._memory, index).stop for index in range(self._ranks)]

    def slot(self, index: int) -> Slot:
        """The slot for the rank with this place, for use in its process."""
        return Slot(self._memory, index)

    def share(self) -> int:
        """Returns the descriptor of the shared memory, which outlives a rank's exec of another program; see `mine`."""
        return self._file.fileno()

    def signs(self) -> list[Sign]:
        """The heartbeats of all ranks, in order."""
        slots = (_SLOT.unpack_from(self._memory, _AGENT + index * _SIZE) for index in range(self._ranks))
        return [
            Sign(how == _LISTENS, step, beats, how == _GIVES_UP, joining >= _ARRIVED, joining == _JOINED)
            for how, step, beats, joining in slots
        ]

    def show(self, proposal: Proposal | None, committed: int) -> None:
        """Shows the ranks the newest proposal of a stop, and the number of the last committed one."""
        self._agent.show(proposal, committed)

    def stops(self) -> list[RankState]:
        """The ranks' parts in the agreement on stops, in order."""
        return [words.read() for words in self._stops]

    def paces(self) -> list[tuple[float, int]]:
        """(seconds of a step, steps measured) of each rank, in order; (0, 0) if not measured."""
        return [_PACE.unpack_from(self._memory, _AGENT + index * _SIZE + _SLOT.size) for index in range(self._ranks)]


_mine: Slot | None = None


def take(slot: Slot) -> None:
    """In a forked rank: sets this process's slot."""
    global _mine
    _mine = slot


def mine() -> Slot | None:
    """This rank's slot; None if no agent started it.

    A program that a rank has executed finds it through LAUNCHER_PULSE (PID:FILE:PLACE). Its child processes inherit the
    variable, but have another process id, or lack the file.
    """
    global _mine
    if _mine is None and (value := os.environ.get("LAUNCHER_PULSE")):
        with contextlib.suppress(ValueError, OSError):
            pid, file, place = map(int, value.split(":"))
            if pid == os.getpid() and memory_file.is_named(file, _NAME):
                _mine = Slot(mmap.mmap(file, 0), place)
    return _mine


@contextlib.contextmanager
def alive() -> Iterator[None]:
    """Sends heartbeats during work between two steps that may take longer than a step (a save)."""
    slot, over = mine(), threading.Event()
    if slot is None:
        yield
        return

    def beat() -> None:
        while not over.wait(INTERVAL):
            slot.beat()

    thread = threading.Thread(target=beat, name="pulse", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
