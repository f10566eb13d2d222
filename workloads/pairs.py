"""Transfers between two ranks, as the OSU micro-benchmarks define them: latency, and bandwidth of a window of messages.

Source: OSU Micro-Benchmarks, c/mpi/pt2pt/standard: osu_latency, osu_bw, osu_bibw. The clock is that of the first of the
two ranks, `a`. Other ranks have no part in it, and meanwhile wait in the collective that comes next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from workloads import bench

ROOM = 32 * 2**20  # bytes of the buffers that a rank has for messages on their way, as long as one message fits
BURST = 100  # round trips between two comparisons
MOST = 100_000  # iterations that a budget of time may come to
SMALL = 8 * 1024  # bytes up to which more iterations are made, as in OSU
MORE = 10  # times as many


@dataclass(frozen=True)
class Pair:
    """Two ranks and what they send each other.

    Attributes:
        rank: this one; a or b.
        a, b: the two.
        count: elements of a message.
        values: what makes them.
        key: what tells their values from those of other transfers.
        room: bytes of buffers that each may have.
    """

    rank: int
    a: int
    b: int
    count: int
    values: bench.Values
    key: str
    room: int = ROOM

    @property
    def peer(self) -> int:
        return self.b if self.rank == self.a else self.a

    @property
    def size(self) -> int:
        """Bytes of a message."""
        return self.count * self.values.dtype.itemsize

    def slots(self, messages: int) -> int:
        """How many messages have buffers of their own; the others use these again."""
        return max(1, min(messages, self.room // self.size))

    def messages(self, source: int, slots: int) -> list[Tensor]:
        """What `source` sends, [count] each."""
        return [self.values.make(self.count, self.key, source, slot) for slot in range(slots)]


@dataclass(frozen=True)
class Runs:
    """How often.

    Attributes:
        iterations: timed runs.
        warmup: runs before.
        budget: seconds for the timed runs, instead of their number.
        window: messages of a window.
        more: whether small messages get MORE iterations.
    """

    iterations: int
    warmup: int
    budget: float | None = None
    window: int = 1
    more: bool = True


@dataclass
class Timed:
    """What one rank found.

    Attributes:
        seconds: of each iteration, by the clock of rank a; on b none.
        checked: elements that were compared on this rank.
        wrong: how many of them were wrong.
    """

    seconds: list[float] = field(default_factory=list)
    checked: int = 0
    wrong: int = 0

    def clock(self, pair: Pair, run: Callable[[], None]) -> None:
        """Run it, and take its time on rank a."""
        if pair.rank == pair.a:
            self.seconds.append(bench.timed(pair.values.device, run))
        else:
            run()


class Inbox:
    """Buffers to receive into, and what should be in them."""

    def __init__(self, pair: Pair, slots: int) -> None:
        self._expected = pair.messages(pair.peer, slots)
        self.buffers = [pair.values.poison(pair.count) for _ in range(slots)]

    def poison(self) -> None:
        """So that what does not arrive is noticed."""
        for buffer in self.buffers:
            buffer.fill_(-1)

    def compare(self, timed: Timed, slots: int) -> None:
        """The first `slots` buffers with what they should hold."""
        for buffer, expected in zip(self.buffers[:slots], self._expected[:slots], strict=True):
            timed.checked += expected.numel()
            timed.wrong += bench.count_wrong(buffer, expected)


def pingpong(pair: Pair, runs: Runs) -> Timed:
    """Round trips: a message from a to b, and another one back. Every message is compared, after each burst of them."""
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
    """Windows of messages from a to b, each acknowledged by one small message; the first and the last are compared."""
    return _windows(pair, runs, both=False)


def bidirectional(pair: Pair, runs: Runs) -> Timed:
    """The same, with a window from b to a at the same time."""
    return _windows(pair, runs, both=True)


PATTERNS = {"pingpong": pingpong, "bandwidth": bandwidth, "bidirectional": bidirectional}


def _windows(pair: Pair, runs: Runs, *, both: bool) -> Timed:
    first, slots = pair.rank == pair.a, pair.slots(runs.window)
    outbox = pair.messages(pair.rank, slots) if first or both else []
    inbox = Inbox(pair, 0 if first and not both else slots)
    under_way = [
        dist.P2POp(operation, buffers[message % slots], pair.peer)
        for operation, buffers in ((dist.isend, outbox), (dist.irecv, inbox.buffers))
        if buffers
        for message in range(runs.window)
    ]
    acknowledgement = _token(pair)

    def window() -> None:
        for work in dist.batch_isend_irecv(under_way):
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
    """Runs before the clock starts, and the number of those that follow: a decides what a budget comes to."""
    device = pair.values.device
    took = [bench.timed(device, run) for _ in range(max(runs.warmup, 0 if runs.budget is None else 2))]
    if runs.budget is None:
        return runs.iterations * (MORE if pair.size <= SMALL and runs.more else 1)
    told = torch.zeros(1, dtype=torch.int64, device=device)
    if pair.rank == pair.a:
        told.fill_(max(1, min(MOST, int(runs.budget / took[-1]))))
        dist.send(told, pair.b)
    else:
        dist.recv(told, pair.a)
    return int(told)


def _meet(pair: Pair) -> None:
    """Both are there before either goes on."""
    token = _token(pair)
    if pair.rank == pair.a:
        dist.send(token, pair.b)
        dist.recv(token, pair.b)
    else:
        dist.recv(token, pair.a)
        dist.send(token, pair.a)


def _token(pair: Pair) -> Tensor:
    return torch.zeros(1, dtype=torch.uint8, device=pair.values.device)
