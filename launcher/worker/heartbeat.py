"""Signs of life of forked ranks, in memory that their agent shares with them: no file, no lock, no system call.

The memory begins with what the agent shows to all of its ranks. Then each rank has a place: its signs of life, its
pace, and its part in the agreement on stops (see `stop_memory`).
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

INTERVAL = 1.0  # seconds between two beats of a rank that waits
_SLOT = struct.Struct("=qqqq")  # how it takes a stop, last step, beats, how far it has joined
_PACE = struct.Struct("@dq")  # seconds that a step takes it, steps of which that was measured
_AGENT = stop_memory.AGENT
_SIZE = _SLOT.size + _PACE.size + stop_memory.RANK
_NAME = "launcher-pulse"
_IGNORES, _LISTENS, _GIVES_UP = 0, 1, 2
_ABSENT, _ARRIVED, _JOINED = 0, 1, 2


@dataclass(frozen=True)
class Sign:
    """What one rank has told.

    Attributes:
        listens: it looks for a stop at its step boundaries, so it is given the time to save and to leave by itself.
        step: steps done, as it counts them over the whole run; -1 before the first.
        beats: how often it has told a step, or that it is alive.
        gives_up: its error is final; to start again would not help.
        arrived: it waits for the other ranks, to make the process group with them.
        joined: all ranks have come to that point.
    """

    listens: bool
    step: int
    beats: int
    gives_up: bool = False
    arrived: bool = False
    joined: bool = False


class Slot:
    """One rank's place; it alone writes there, and a torn read harms nobody.

    Attributes:
        stop: its part in the agreement on stops.
        agent: what its agent shows of that agreement to all of its ranks.
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
        """From now on this rank leaves by itself when it is told to stop."""
        self._listens = _LISTENS
        self._write()

    def arrive(self) -> None:
        """This rank waits for the others, to make the process group with them."""
        self._joining = _ARRIVED
        self._write()

    def join(self) -> None:
        """All ranks have come to that point."""
        self._joining = _JOINED
        self._write()

    def give_up(self) -> None:
        """This rank is about to fail, and would fail again."""
        self._listens = _GIVES_UP
        self._write()

    def beat(self, step: int | None = None) -> None:
        """Tells that this rank is alive, and how many steps of the run are done."""
        self._step = self._step if step is None else step
        self._beats += 1
        self._write()

    def progress(self, step: int) -> None:
        """Notes how many steps of the run are done, where nothing else tells it at each of them."""
        if self._listens != _LISTENS:
            self.beat(int(step))  # some count in parts of an epoch

    def pace(self, seconds: float, steps: int) -> None:
        """Tells how long a step takes this rank without waiting, as measured lately, and in how many steps so far."""
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
        """Forgets what earlier ranks have told.

        Args:
            world_size: ranks of all agents, which agree on stops through their agents; 0: they do not.
        """
        self._agent = AgentWords(self._memory)
        self._agent.clear(world_size)
        self._stops = [Slot(self._memory, index).stop for index in range(self._ranks)]

    def slot(self, index: int) -> Slot:
        """For the rank with this place among the agent's own, in its own process."""
        return Slot(self._memory, index)

    def share(self) -> int:
        """The file of all slots, for a rank that becomes another program; see `mine`."""
        return self._file.fileno()

    def signs(self) -> list[Sign]:
        """What each rank has told, in order."""
        told = (_SLOT.unpack_from(self._memory, _AGENT + index * _SIZE) for index in range(self._ranks))
        return [
            Sign(how == _LISTENS, step, beats, how == _GIVES_UP, joining >= _ARRIVED, joining == _JOINED)
            for how, step, beats, joining in told
        ]

    def show(self, proposal: Proposal | None, committed: int) -> None:
        """Shows the ranks the newest proposal of a stop, and the number of the last one that was committed."""
        self._agent.show(proposal, committed)

    def stops(self) -> list[RankState]:
        """What each rank says about stops, in order."""
        return [words.read() for words in self._stops]

    def paces(self) -> list[tuple[float, int]]:
        """(seconds of a step, steps measured) of each rank, in order; (0, 0): it has told none."""
        return [_PACE.unpack_from(self._memory, _AGENT + index * _SIZE + _SLOT.size) for index in range(self._ranks)]


_mine: Slot | None = None


def take(slot: Slot) -> None:
    """In a forked rank: this is its place."""
    global _mine
    _mine = slot


def mine() -> Slot | None:
    """This rank's place; None where no agent watches.

    A program that took the place of a rank finds it by LAUNCHER_PULSE (PID:FILE:PLACE). What it starts in turn inherits
    the variable, but is another process, or does not have the file.
    """
    global _mine
    if _mine is None and (told := os.environ.get("LAUNCHER_PULSE")):
        with contextlib.suppress(ValueError, OSError):
            pid, file, place = map(int, told.split(":"))
            if pid == os.getpid() and memory_file.is_named(file, _NAME):
                _mine = Slot(mmap.mmap(file, 0), place)
    return _mine


@contextlib.contextmanager
def alive() -> Iterator[None]:
    """For work between two steps that may take longer than a step (a save that is waited for): this rank lives."""
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
