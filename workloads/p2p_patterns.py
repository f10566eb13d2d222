"""The transfers of p2p: between two ranks, and the patterns of all ranks.

Source: OSU Micro-Benchmarks, c/mpi/pt2pt/standard: osu_latency, osu_bw, osu_bibw. The first of the two ranks, `a`,
measures the time. The other ranks of the run wait in the next collective.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from workloads import measurement

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
    values: measurement.Values  # makes the messages
    key: str  # makes the messages different from those of other transfers
    room: int = ROOM  # bytes of the message buffers of each rank

    @property
    def peer(self) -> int:
        return self.b if self.rank == self.a else self.a

    @property
    def size(self) -> int:
        return self.count * self.values.dtype.itemsize

    def slots(self, messages: int) -> int:
        """Returns how many of `messages` messages have a buffer of their own; the others reuse these buffers."""
        return max(1, min(messages, self.room // self.size))

    def messages(self, source: int, slots: int) -> list[Tensor]:
        return [self.values.make(self.count, self.key, source, slot) for slot in range(slots)]


@dataclass(frozen=True)
class Runs:
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
        if pair.rank == pair.a:
            self.seconds.append(measurement.timed(pair.values.device, run))
        else:
            run()


class Inbox:
    """Buffers to receive into, and their expected content."""

    def __init__(self, pair: Pair, slots: int) -> None:
        self._expected = pair.messages(pair.peer, slots)
        self.buffers = [pair.values.poison(pair.count) for _ in range(slots)]

    def poison(self) -> None:
        """Overwrites the buffers, so that `compare` notices a missing message."""
        for buffer in self.buffers:
            buffer.fill_(-1)

    def compare(self, timed: Timed, slots: int) -> None:
        for buffer, expected in zip(self.buffers[:slots], self._expected[:slots], strict=True):
            timed.checked += expected.numel()
            timed.wrong += measurement.count_wrong(buffer, expected)


def pingpong(pair: Pair, runs: Runs) -> Timed:
    """Measures round trips: a message from a to b, and one back. All messages are compared, after each burst."""
    slots = pair.slots(BURST)
    outbox, inbox = pair.messages(pair.rank, slots), Inbox(pair, slots)

    def trip(slot: int) -> None:
        _round_trip(pair, outbox[slot], inbox.buffers[slot])

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


def windows(pair: Pair, runs: Runs, *, both: bool) -> Timed:
    """Measures windows of messages from a to b, or in both directions at the same time; an end acknowledges each.

    Compares the first window and the last one.
    """
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


PATTERNS: dict[str, Callable[[Pair, Runs], Timed]] = {
    "pingpong": pingpong, "bandwidth": partial(windows, both=False), "bidirectional": partial(windows, both=True),
}  # fmt: skip


def _warm_up(pair: Pair, runs: Runs, run: Callable[[], None]) -> int:
    device = pair.values.device
    took = [measurement.timed(device, run) for _ in range(max(runs.warmup, 0 if runs.budget is None else 2))]
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
    _round_trip(pair, token, token)


def _round_trip(pair: Pair, given: Tensor, received: Tensor) -> None:
    if pair.rank == pair.a:
        dist.send(given, pair.b)
        dist.recv(received, pair.b)
    else:
        dist.recv(received, pair.a)
        dist.send(given, pair.a)


def _token(pair: Pair) -> Tensor:
    return torch.zeros(1, dtype=torch.uint8, device=pair.values.device)


# -- The transfer patterns of all ranks: which rank sends what to which rank, and what it should receive


AT_ONCE = 8  # most peers of one rank at the same time; limits the size of its buffers


@dataclass(frozen=True)
class Receipt:
    """A message that this rank receives."""

    peer: int  # the rank that sends it
    buffer: Tensor  # buffer to receive it into, [count]
    expected: Tensor  # expected content of the buffer, [count]


@dataclass(frozen=True)
class Exchange:
    """The transfers of one rank that run at the same time. A pattern yields as many on all ranks, to start together."""

    run: Callable[[Exchange], object]  # sends and receives
    sends: list[tuple[int, Tensor]] = field(default_factory=list)  # receiving ranks, and the data
    receipts: list[Receipt] = field(default_factory=list)  # what this rank receives; compared after `run`


Ends = Callable[[Exchange], object]


@dataclass(frozen=True)
class Case:
    """One run of a pattern on this rank. The data of a message depends on sender, receiver and run."""

    rank: int  # this rank
    world_size: int  # number of ranks
    count: int  # elements of a message
    values: measurement.Values  # makes the data
    iteration: int  # index of the run

    def message(self, source: int, destination: int) -> Tensor:
        """Returns the data that rank `source` sends to rank `destination`, [count]."""
        return self.values.make(self.count, source, destination, self.iteration)

    def receipt(self, source: int, expected: Tensor | None = None) -> Receipt:
        wanted = self.message(source, self.rank) if expected is None else expected
        return Receipt(source, self.values.poison(self.count), wanted)


def _star(case: Case, at_once: int, ends: tuple[Ends, Ends], *, back: bool = True) -> Iterator[Exchange]:
    # Rank 0 with `at_once` other ranks at a time, to them and back; the two ends run what `ends` has
    for first in range(1, case.world_size, at_once):
        peers = range(first, min(first + at_once, case.world_size))
        if case.rank == 0:
            sends = [(peer, case.message(0, peer)) for peer in peers]
            yield Exchange(ends[0], sends, [case.receipt(peer) for peer in peers] if back else [])
        elif case.rank in peers:
            yield Exchange(ends[1], [(0, case.message(case.rank, 0))] if back else [], [case.receipt(0)])
        else:
            yield Exchange(ends[1])


def send(case: Case) -> Iterator[Exchange]:
    """Rank 0 with one other rank after the other, to it and back, by send and recv."""
    return _star(case, 1, (_blocking_first, _blocking_second))


def isend(case: Case) -> Iterator[Exchange]:
    """Rank 0 with AT_ONCE other ranks at a time, to them and back, by isend and irecv."""
    return _star(case, AT_ONCE, (_sends_first, _receives_first))


def fanout(case: Case) -> Iterator[Exchange]:
    """Rank 0 to AT_ONCE other ranks at a time, by isend and irecv, and nothing back."""
    return _star(case, AT_ONCE, (_sends_first, _receives_first), back=False)


def batched(case: Case) -> Iterator[Exchange]:
    """Every rank to every other rank, AT_ONCE peers at a time, by batch_isend_irecv."""
    for first in range(1, case.world_size, AT_ONCE):
        shifts = range(first, min(first + AT_ONCE, case.world_size))
        to = [(case.rank + shift) % case.world_size for shift in shifts]
        of = [(case.rank - shift) % case.world_size for shift in shifts]
        yield Exchange(
            _batch, [(peer, case.message(case.rank, peer)) for peer in to], [case.receipt(peer) for peer in of]
        )


def ring(case: Case) -> Iterator[Exchange]:
    """Each rank to the next, all at once, what it received before, until all messages are back at their senders."""
    after, before = (case.rank + 1) % case.world_size, (case.rank - 1) % case.world_size
    carried = case.message(case.rank, case.rank)
    for hop in range(1, case.world_size + 1):
        origin = (case.rank - hop) % case.world_size
        receipt = case.receipt(before, case.message(origin, origin))
        yield Exchange(_batch, [(after, carried)], [receipt])
        carried = receipt.buffer


def _blocking_first(exchange: Exchange) -> None:
    _send(exchange)
    _receive(exchange)


def _blocking_second(exchange: Exchange) -> None:
    _receive(exchange)
    _send(exchange)


def _send(exchange: Exchange) -> None:
    for peer, data in exchange.sends:
        dist.send(data, peer)


def _receive(exchange: Exchange) -> None:
    for receipt in exchange.receipts:
        dist.recv(receipt.buffer, receipt.peer)


# The two ends of a pair start their operations in matching order: NCCL runs those of a pair one after the other.
def _sends_first(exchange: Exchange) -> None:
    sent = [dist.isend(data, peer) for peer, data in exchange.sends]
    _wait([*sent, *(dist.irecv(receipt.buffer, receipt.peer) for receipt in exchange.receipts)])


def _receives_first(exchange: Exchange) -> None:
    received = [dist.irecv(receipt.buffer, receipt.peer) for receipt in exchange.receipts]
    _wait([*received, *(dist.isend(data, peer) for peer, data in exchange.sends)])


def _batch(exchange: Exchange) -> None:
    work = [dist.P2POp(dist.isend, data, peer) for peer, data in exchange.sends]
    work += [dist.P2POp(dist.irecv, receipt.buffer, receipt.peer) for receipt in exchange.receipts]
    _wait(list(dist.batch_isend_irecv(work)))


def _wait(works: list[dist.Work | None]) -> None:
    for work in works:
        if work is not None:
            work.wait()


EXCHANGES: dict[str, Callable[[Case], Iterator[Exchange]]] = {
    "send": send,
    "isend": isend,
    "batched": batched,
    "ring": ring,
    "fanout": fanout,
}
