"""The heartbeats of ranks, in memory that they share with their agent: no disk, no lock, no system call.

The memory starts with what the agent writes for all of its ranks (`stop_agreement.AgentWords`). Then each rank has a
slot: its heartbeat, and its state in the agreement on stops (`stop_agreement.RankWords`).
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
from launcher.worker.stop_agreement import AGENT, RANK, AgentWords, RankState, RankWords

INTERVAL = 1.0  # seconds between two heartbeats during long work between two steps (`alive`)
_SLOT = struct.Struct("=qqqq")  # reaction to a stop request, last step, number of heartbeats, progress of joining
_SIZE = _SLOT.size + RANK
_NAME = "launcher-pulse"
_IGNORES, _LISTENS, _GIVES_UP, _CLOSED = 0, 1, 2, 3
_ABSENT, _ARRIVED, _JOINED = 0, 1, 2


@dataclass(frozen=True)
class Sign:
    listens: bool  # whether the rank checks for stop requests at step boundaries: the agent lets it save and exit
    step: int  # steps of the run that are done; -1 before the first
    beats: int  # number of heartbeats so far
    gives_up: bool = False  # whether the rank fails with an error that a restart would not help
    arrived: bool = False  # whether the rank is ready to make the process group, and waits for the others
    joined: bool = False  # whether the rank has seen that all ranks have arrived
    closed: bool = False  # whether its training is over: it can still resume, and has no more steps


class RankSlot:
    """One rank's slot, for use in its process. Only the rank writes to it; a torn read by the agent does no harm."""

    def __init__(self, memory: mmap.mmap, index: int) -> None:
        self._memory, self._offset = memory, AGENT + index * _SIZE
        self.agent = AgentWords(memory)
        self.stop = RankWords(memory, self._offset + _SLOT.size)
        self.stop.write(RankState())
        self._listens, self._step, self._beats, self._joining = _IGNORES, -1, 0, _ABSENT
        self._write()

    # Record what the fields of `Sign` say

    def listen(self) -> None:
        self._listens = _LISTENS
        self._write()

    def arrive(self) -> None:
        self._joining = _ARRIVED
        self._write()

    def join(self) -> None:
        self._joining = _JOINED
        self._write()

    def give_up(self) -> None:
        self._listens = _GIVES_UP
        self._write()

    def close(self) -> None:
        self._listens = _CLOSED
        self._write()

    def beat(self, step: int | None = None) -> None:
        """Sends a heartbeat. step: steps of the run that are done; None: as many as at the last heartbeat."""
        self._step = self._step if step is None else step
        self._beats += 1
        self._write()

    def progress(self, step: int) -> None:
        """Sends a heartbeat with the steps done, unless the rank listens: then each step boundary calls `beat`."""
        if self._listens not in (_LISTENS, _CLOSED):
            self.beat(int(step))  # some programs count in fractions of an epoch

    def _write(self) -> None:
        _SLOT.pack_into(self._memory, self._offset, self._listens, self._step, self._beats, self._joining)


class Pulse:
    """In an agent: the shared memory with the slots of its ranks, made before they are forked."""

    def __init__(self, ranks: int) -> None:
        self._file = os.fdopen(processes.memory_file(_NAME), "r+b", buffering=0)  # a file, as a rank may exec a program
        self._file.truncate(AGENT + ranks * _SIZE)
        self._memory = mmap.mmap(self._file.fileno(), AGENT + ranks * _SIZE)
        self._ranks, self.agent = ranks, AgentWords(self._memory)
        self.clear()

    def clear(self, world_size: int = 0) -> None:
        """Resets all slots, for so many ranks that agree on stops through their agents; 0: they do not."""
        self.agent.clear(world_size)
        self._stops = [self.slot(index).stop for index in range(self._ranks)]

    def slot(self, index: int) -> RankSlot:
        return RankSlot(self._memory, index)

    def share(self) -> int:
        """Returns the descriptor of the shared memory, through which a program that a rank executes finds its slot."""
        return self._file.fileno()

    def signs(self) -> list[Sign]:
        slots = (_SLOT.unpack_from(self._memory, AGENT + index * _SIZE) for index in range(self._ranks))
        return [
            Sign(
                how in (_LISTENS, _CLOSED), step, beats, how == _GIVES_UP, joining >= _ARRIVED, joining == _JOINED,
                how == _CLOSED,
            )
            for how, step, beats, joining in slots
        ]  # fmt: skip

    def stops(self) -> list[RankState]:
        return [words.read() for words in self._stops]


_mine: RankSlot | None = None


def take(slot: RankSlot) -> None:
    """Makes `slot` the one that `mine` returns."""
    global _mine
    _mine = slot


def mine() -> RankSlot | None:
    """Returns this rank's slot; None if no agent started this process."""
    global _mine
    if _mine is None and (found := processes.shared_file("LAUNCHER_PULSE", _NAME)) is not None:
        file, place = found
        with contextlib.suppress(ValueError, OSError):
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
