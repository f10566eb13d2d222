"""The transfer patterns of all ranks: which rank sends what to which rank, and what it should receive."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch.distributed as dist
from torch import Tensor

from workloads import bench

AT_ONCE = 8  # most peers of one rank at the same time; limits the size of its buffers


@dataclass(frozen=True)
class Receipt:
    """A message that this rank receives."""

    peer: int  # the rank that sends it
    buffer: Tensor  # buffer to receive it into, [count]
    expected: Tensor  # expected content of the buffer, [count]


@dataclass(frozen=True)
class Exchange:
    """The transfers of one rank that run at the same time.

    A pattern yields the same number of exchanges on all ranks, so that they can start each one together.
    """

    run: Callable[[Exchange], object]  # sends and receives
    # for each message that this rank sends, the receiving rank and the data
    sends: list[tuple[int, Tensor]] = field(default_factory=list)
    # the messages that this rank receives; they are compared after `run`
    receipts: list[Receipt] = field(default_factory=list)


@dataclass(frozen=True)
class Case:
    """One run of a pattern on this rank. The data of a message depends on sender, receiver and run."""

    rank: int  # this rank
    world_size: int  # number of ranks
    count: int  # elements of a message
    values: bench.Values  # makes the data
    iteration: int  # index of the run

    def message(self, source: int, destination: int) -> Tensor:
        """Returns the data that rank `source` sends to rank `destination`, [count]."""
        return self.values.make(self.count, source, destination, self.iteration)

    def receipt(self, source: int, expected: Tensor | None = None) -> Receipt:
        wanted = self.message(source, self.rank) if expected is None else expected
        return Receipt(source, self.values.poison(self.count), wanted)


def send(case: Case) -> Iterator[Exchange]:
    """Yields the exchanges of `send`: rank 0 with one other rank after the other, to it and back, by send and recv."""
    for peer in range(1, case.world_size):
        if case.rank == 0:
            yield Exchange(_blocking_first, [(peer, case.message(0, peer))], [case.receipt(peer)])
        elif case.rank == peer:
            yield Exchange(_blocking_second, [(0, case.message(peer, 0))], [case.receipt(0)])
        else:
            yield Exchange(_idle)


def isend(case: Case) -> Iterator[Exchange]:
    """Yields the exchanges of `isend`: rank 0 with AT_ONCE other ranks at a time, to them and back, by isend and
    irecv."""
    for first in range(1, case.world_size, AT_ONCE):
        together = range(first, min(first + AT_ONCE, case.world_size))
        if case.rank == 0:
            sends = [(peer, case.message(0, peer)) for peer in together]
            yield Exchange(_sends_first, sends, [case.receipt(peer) for peer in together])
        elif case.rank in together:
            yield Exchange(_receives_first, [(0, case.message(case.rank, 0))], [case.receipt(0)])
        else:
            yield Exchange(_idle)


def fanout(case: Case) -> Iterator[Exchange]:
    """Yields the exchanges of `fanout`: rank 0 to AT_ONCE other ranks at a time, by isend and irecv, and nothing
    back."""
    for first in range(1, case.world_size, AT_ONCE):
        together = range(first, min(first + AT_ONCE, case.world_size))
        if case.rank == 0:
            yield Exchange(_sends_first, [(peer, case.message(0, peer)) for peer in together])
        elif case.rank in together:
            yield Exchange(_receives_first, [], [case.receipt(0)])
        else:
            yield Exchange(_idle)


def batched(case: Case) -> Iterator[Exchange]:
    """Yields the exchanges of `batched`: every rank to every other rank, AT_ONCE peers at a time, by
    batch_isend_irecv."""
    for first in range(1, case.world_size, AT_ONCE):
        shifts = range(first, min(first + AT_ONCE, case.world_size))
        to = [(case.rank + shift) % case.world_size for shift in shifts]
        of = [(case.rank - shift) % case.world_size for shift in shifts]
        yield Exchange(
            _batch, [(peer, case.message(case.rank, peer)) for peer in to], [case.receipt(peer) for peer in of]
        )


def ring(case: Case) -> Iterator[Exchange]:
    """Yields the exchanges of `ring`: each rank to the next, all at once. In each exchange a rank sends what it
    received in the one before, until every message is back at its first sender."""
    after, before = (case.rank + 1) % case.world_size, (case.rank - 1) % case.world_size
    carried = case.message(case.rank, case.rank)
    for hop in range(1, case.world_size + 1):
        origin = (case.rank - hop) % case.world_size
        receipt = case.receipt(before, case.message(origin, origin))
        yield Exchange(_batch, [(after, carried)], [receipt])
        carried = receipt.buffer


def _idle(exchange: Exchange) -> None:
    """Does nothing: this rank does not take part in the exchange."""


def _blocking_first(exchange: Exchange) -> None:
    _blocking_send(exchange)
    _blocking_receive(exchange)


def _blocking_second(exchange: Exchange) -> None:
    _blocking_receive(exchange)
    _blocking_send(exchange)


def _blocking_send(exchange: Exchange) -> None:
    for peer, data in exchange.sends:
        dist.send(data, peer)


def _blocking_receive(exchange: Exchange) -> None:
    for receipt in exchange.receipts:
        dist.recv(receipt.buffer, receipt.peer)


# The two ends of a pair start their operations in matching order: NCCL runs those of a pair one after the other.
def _sends_first(exchange: Exchange) -> None:
    _wait([*_start_sends(exchange), *_start_receives(exchange)])


def _receives_first(exchange: Exchange) -> None:
    _wait([*_start_receives(exchange), *_start_sends(exchange)])


def _start_sends(exchange: Exchange) -> list[dist.Work | None]:
    return [dist.isend(data, peer) for peer, data in exchange.sends]


def _start_receives(exchange: Exchange) -> list[dist.Work | None]:
    return [dist.irecv(receipt.buffer, receipt.peer) for receipt in exchange.receipts]


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
