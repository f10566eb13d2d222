"""Heartbeats of ranks, in memory that they share with their agent: no disk, no lock, no system call.

The memory starts with what the agent writes for all of its ranks (`stop_memory.AgentWords`). Then each rank has a slot:
its heartbeat, its step time, and its state in the agreement on stops (`stop_memory.RankWords`).
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from launcher import processes
from launcher.worker import stop_agreement
from launcher.worker.stop_agreement import AgentWords, Proposal, RankState, RankWords

INTERVAL = 1.0  # seconds between two heartbeats during long work between two steps (`alive`)
_SLOT = struct.Struct("=qqqq")  # reaction to a stop request, last step, number of heartbeats, progress of joining
_PACE = struct.Struct("@dq")  # seconds of a step without waiting, number of steps measured
_AGENT = stop_agreement.AGENT
_SIZE = _SLOT.size + _PACE.size + stop_agreement.RANK
_NAME = "launcher-pulse"
_IGNORES, _LISTENS, _GIVES_UP = 0, 1, 2
_ABSENT, _ARRIVED, _JOINED = 0, 1, 2


@dataclass(frozen=True)
class Sign:
    """The heartbeat of one rank, as its agent reads it."""

    # whether the rank checks for stop requests at step boundaries. The agent then does not end it, but lets it save and
    # exit
    listens: bool
    step: int  # steps of the run that are done; -1 before the first
    beats: int  # number of heartbeats so far
    gives_up: bool = False  # whether the rank fails with an error that a restart would not help
    arrived: bool = False  # whether the rank is ready to make the process group, and waits for the others
    joined: bool = False  # whether the rank has seen that all ranks have arrived


class RankSlot:
    """One rank's slot, for use in its process. Only the rank writes to it; a torn read by the agent does no harm."""

    def __init__(self, memory: mmap.mmap, index: int) -> None:
        self._memory, self._offset = memory, _AGENT + index * _SIZE
        self.agent = AgentWords(memory)
        self.stop = RankWords(memory, self._offset + _SLOT.size + _PACE.size)
        self.stop.write(RankState())
        self._listens, self._step, self._beats, self._joining = _IGNORES, -1, 0, _ABSENT
        self._write()
        self.pace(0.0, 0)

    def listen(self) -> None:
        """Records that this rank checks for stop requests, saves and exits: the agent need not end it."""
        self._listens = _LISTENS
        self._write()

    def arrive(self) -> None:
        """Records that this rank is ready to make the process group, and waits for the others."""
        self._joining = _ARRIVED
        self._write()

    def join(self) -> None:
        """Records that all ranks have arrived."""
        self._joining = _JOINED
        self._write()

    def give_up(self) -> None:
        """Records that this rank is about to fail with an error that a restart would repeat."""
        self._listens = _GIVES_UP
        self._write()

    def beat(self, step: int | None = None) -> None:
        """Sends a heartbeat. step: steps of the run that are done; None: as many as at the last heartbeat."""
        self._step = self._step if step is None else step
        self._beats += 1
        self._write()

    def progress(self, step: int) -> None:
        """Sends a heartbeat with the steps done, unless the rank listens: then each step boundary calls `beat`."""
        if self._listens != _LISTENS:
            self.beat(int(step))  # some programs count in fractions of an epoch

    def pace(self, seconds: float, steps: int) -> None:
        """Records the seconds of a recent step of this rank, without those spent waiting for other ranks."""
        _PACE.pack_into(self._memory, self._offset + _SLOT.size, seconds, steps)

    def _write(self) -> None:
        _SLOT.pack_into(self._memory, self._offset, self._listens, self._step, self._beats, self._joining)


class Pulse:
    """In an agent: the shared memory with the slots of its ranks, made before they are forked."""

    def __init__(self, ranks: int) -> None:
        self._file = os.fdopen(processes.memory_file(_NAME), "r+b", buffering=0)  # a file, as a rank may exec a program
        self._file.truncate(_AGENT + ranks * _SIZE)
        self._memory = mmap.mmap(self._file.fileno(), _AGENT + ranks * _SIZE)
        self._ranks = ranks
        self.clear()

    def clear(self, world_size: int = 0) -> None:
        """Resets all slots, for so many ranks that agree on stops through their agents; 0: they do not."""
        self._agent = AgentWords(self._memory)
        self._agent.clear(world_size)
        self._stops = [RankSlot(self._memory, index).stop for index in range(self._ranks)]

    def slot(self, index: int) -> RankSlot:
        """Returns the slot of a rank. index: index of the rank among the agent's ranks."""
        return RankSlot(self._memory, index)

    def share(self) -> int:
        """Returns the descriptor of the shared memory, through which a program that a rank executes finds its slot."""
        return self._file.fileno()

    def signs(self) -> list[Sign]:
        """Returns the heartbeats of all ranks of the agent, in order."""
        slots = (_SLOT.unpack_from(self._memory, _AGENT + index * _SIZE) for index in range(self._ranks))
        return [
            Sign(how == _LISTENS, step, beats, how == _GIVES_UP, joining >= _ARRIVED, joining == _JOINED)
            for how, step, beats, joining in slots
        ]

    def show(self, proposal: Proposal | None, committed: int) -> None:
        """Shows the ranks the newest proposal to stop or save, and the number (0: none) of the last committed one."""
        self._agent.show(proposal, committed)

    def stops(self) -> list[RankState]:
        """Returns the state of each rank of the agent in the agreement on stops, in order."""
        return [words.read() for words in self._stops]

    def paces(self) -> list[tuple[float, int]]:
        """Returns (seconds of a step, steps measured) of each rank (`RankSlot.pace`), in order; (0, 0) if unknown."""
        return [_PACE.unpack_from(self._memory, _AGENT + index * _SIZE + _SLOT.size) for index in range(self._ranks)]


_mine: RankSlot | None = None


def take(slot: RankSlot) -> None:
    """In a forked rank: makes `slot` the one that `mine` returns."""
    global _mine
    _mine = slot


def mine() -> RankSlot | None:
    """Returns this rank's slot; None if no agent started this process.

    A program that a rank has executed finds its slot through LAUNCHER_PULSE (PID:FILE:PLACE: the process id, the
    descriptor of the shared memory, the index of the slot). Child processes inherit the variable but get None, since
    their process id differs or they lack the descriptor.
    """
    global _mine
    if _mine is None and (value := os.environ.get("LAUNCHER_PULSE")):
        with contextlib.suppress(ValueError, OSError):
            pid, file, place = map(int, value.split(":"))
            if pid == os.getpid() and processes.is_memory_file(file, _NAME):
                _mine = RankSlot(mmap.mmap(file, 0), place)
    return _mine


@contextlib.contextmanager
def alive() -> Iterator[None]:
    """Context manager: a thread sends heartbeats while the rank does long work between two steps, such as a save."""
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
