"""Transfers between two ranks as in the OSU micro-benchmarks: latency, and bandwidth of a window of messages.

Source: OSU Micro-Benchmarks, c/mpi/pt2pt/standard: osu_latency, osu_bw, osu_bibw. The first of the two ranks, `a`,
measures the time. The other ranks of the run wait in the next collective.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from workloads import bench

ROOM = 32 * 2**20  # bytes of a rank's message buffers, unless one message is larger
BURST = 100  # round trips between two comparisons
MOST = 100_000  # most iterations with a time budget
SMALL = 8 * 1024  # bytes of a message up to which there are MORE times as many iterations, as in OSU
MORE = 10


@dataclass(frozen=True)
class Pair:
    """Two ranks, and the messages that they exchange."""

    rank: int  # this rank: a or b
    a: int  # the first rank, which measures the time
    b: int  # the second rank
    count: int  # elements of a message
    values: bench.Values  # makes the messages
    key: str  # makes the messages different from those of other transfers
    room: int = ROOM  # bytes of the message buffers of each rank

    @property
    def peer(self) -> int:
        return self.b if self.rank == self.a else self.a

    @property
    def size(self) -> int:
        """Bytes of a message."""
        return self.count * self.values.dtype.itemsize

    def slots(self, messages: int) -> int:
        """Returns how many of `messages` messages have a buffer of their own; the others reuse these buffers."""
        return max(1, min(messages, self.room // self.size))

    def messages(self, source: int, slots: int) -> list[Tensor]:
        """Returns `slots` messages of rank `source`, [count] each."""
        return [self.values.make(self.count, self.key, source, slot) for slot in range(slots)]


@dataclass(frozen=True)
class Runs:
    """The number of iterations."""

    iterations: int  # number of timed iterations
    warmup: int  # number of iterations before these
    budget: float | None = None  # seconds for the timed iterations, in place of their number; None: their number counts
    window: int = 1  # messages of a window
    more: bool = True  # whether small messages get MORE times as many iterations


@dataclass
class Timed:
    """The measurements of one rank."""

    seconds: list[float] = field(default_factory=list)  # time of each iteration on rank a; empty on rank b
    checked: int = 0  # number of elements compared on this rank
    wrong: int = 0  # number of wrong elements among these

    def clock(self, pair: Pair, run: Callable[[], None]) -> None:
        """Calls `run`; on rank a also records its time."""
        if pair.rank == pair.a:
            self.seconds.append(bench.timed(pair.values.device, run))
        else:
            run()


class Inbox:
    """Buffers to receive into, and their expected content."""

    def __init__(self, pair: Pair, slots: int) -> None:
        self._expected = pair.messages(pair.peer, slots)
        self.buffers = [pair.values.poison(pair.count) for _ in range(slots)]

    def poison(self) -> None:
        """Overwrites the buffers, so that a missing message is noticed."""
        for buffer in self.buffers:
            buffer.fill_(-1)

    def compare(self, timed: Timed, slots: int) -> None:
        """Compares the first `slots` buffers with their expected content."""
        for buffer, expected in zip(self.buffers[:slots], self._expected[:slots], strict=True):
            timed.checked += expected.numel()
            timed.wrong += bench.count_wrong(buffer, expected)


def pingpong(pair: Pair, runs: Runs) -> Timed:
    """Measures round trips: a message from a to b, and one back. All messages are compared, after each burst.

    Like `bandwidth` and `bidirectional`, returns this rank's measurements.
    """
    slots = pair.slots(BURST)
    outbox, inbox = pair.messages(pair.rank, slots), Inbox(pair, slots)

    def trip(slot: int) -> None:
        if pair.rank == pair.a:
            dist.send(outbox[slot], pair.b)
            dist.recv(inbox.buffers[slot], pair.b)
        else:
            dist.recv(inbox.buffers[slot], pair.a)
            dist.send(outbox[slot], pair.a)

    timed = Timed()
    left = _warm_up(pair, runs, lambda: trip(0))
    while left:
        burst = min(slots, left)
        inbox.poison()
        _meet(pair)
        for slot in range(burst):
            timed.clock(pair, partial(trip, slot))
        inbox.compare(timed, burst)
        left -= burst
    return timed


def bandwidth(pair: Pair, runs: Runs) -> Timed:
    """Measures windows of messages from a to b, each acknowledged by one small message. The first and the last window
    are compared."""
    return _windows(pair, runs, both=False)


def bidirectional(pair: Pair, runs: Runs) -> Timed:
    """Measures windows of messages in both directions at the same time; otherwise as `bandwidth`."""
    return _windows(pair, runs, both=True)


PATTERNS = {"pingpong": pingpong, "bandwidth": bandwidth, "bidirectional": bidirectional}


def _windows(pair: Pair, runs: Runs, *, both: bool) -> Timed:
    first, slots = pair.rank == pair.a, pair.slots(runs.window)
    outbox = pair.messages(pair.rank, slots) if first or both else []
    inbox = Inbox(pair, 0 if first and not both else slots)
    in_flight = [
        dist.P2POp(operation, buffers[message % slots], pair.peer)
        for operation, buffers in ((dist.isend, outbox), (dist.irecv, inbox.buffers))
        if buffers
        for message in range(runs.window)
    ]
    acknowledgement = _token(pair)

    def window() -> None:
        for work in dist.batch_isend_irecv(in_flight):
            work.wait()
        if first:
            dist.recv(acknowledgement, pair.b)
        else:
            dist.send(acknowledgement, pair.a)

    timed = Timed()
    iterations = _warm_up(pair, runs, window)
    for iteration in range(iterations):
        compared = iteration in (0, iterations - 1)
        if compared:
            inbox.poison()
            _meet(pair)
        timed.clock(pair, window)
        if compared:
            inbox.compare(timed, len(inbox.buffers))
    return timed


def _warm_up(pair: Pair, runs: Runs, run: Callable[[], None]) -> int:
    device = pair.values.device
    took = [bench.timed(device, run) for _ in range(max(runs.warmup, 0 if runs.budget is None else 2))]
    if runs.budget is None:
        return runs.iterations * (MORE if pair.size <= SMALL and runs.more else 1)
    count = torch.zeros(1, dtype=torch.int64, device=device)
    if pair.rank == pair.a:
        count.fill_(max(1, min(MOST, int(runs.budget / took[-1]))))
        dist.send(count, pair.b)
    else:
        dist.recv(count, pair.a)
    return int(count)


def _meet(pair: Pair) -> None:
    token = _token(pair)
    if pair.rank == pair.a:
        dist.send(token, pair.b)
        dist.recv(token, pair.b)
    else:
        dist.recv(token, pair.a)
        dist.send(token, pair.a)


def _token(pair: Pair) -> Tensor:
    return torch.zeros(1, dtype=torch.uint8, device=pair.values.device)
