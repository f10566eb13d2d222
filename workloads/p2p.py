"""Send data between ranks in several patterns, and verify every value that arrives: the workload `p2p`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch.distributed as dist
from torch import Tensor

from workloads import bench, names
from workloads.ranks import WorkloadError, gather, introduce, name_ranks, say

if TYPE_CHECKING:
    from launcher.config import P2P
    from launcher.node import Env

AT_ONCE = 8  # most peers that one rank exchanges data with at the same time, which bounds its buffers
TABLE = bench.Table(("pattern", -8), ("messages", 8), ("bytes", 12), ("time(us)", 12), ("MB/s", 10), ("result", -6))


@dataclass(frozen=True)
class Receipt:
    """A buffer to receive into from a peer, and what should be in it afterwards."""

    peer: int
    buffer: Tensor
    expected: Tensor


@dataclass(frozen=True)
class Exchange:
    """What one rank does at once: `run` sends and receives, and then the receipts are compared.

    A pattern gives all ranks equally many of them, so that they can start each one together.
    """

    run: Callable[[Exchange], object]
    sends: list[tuple[int, Tensor]] = field(default_factory=list)  # (peer, data)
    receipts: list[Receipt] = field(default_factory=list)


@dataclass(frozen=True)
class Case:
    """One run of a pattern on this rank: messages of `count` elements, which depend on who sends what to whom when."""

    rank: int
    world_size: int
    count: int
    values: bench.Values
    iteration: int

    def message(self, source: int, destination: int) -> Tensor:
        """The data that `source` sends to `destination`, [count]."""
        return self.values.make(self.count, source, destination, self.iteration)

    def receipt(self, source: int, expected: Tensor | None = None) -> Receipt:
        wanted = self.message(source, self.rank) if expected is None else expected
        return Receipt(source, self.values.poison(self.count), wanted)


def send(case: Case) -> Iterator[Exchange]:
    """Rank 0 to every other rank and back, one after the other, by blocking send and recv."""
    for peer in range(1, case.world_size):
        if case.rank == 0:
            yield Exchange(_blocking_first, [(peer, case.message(0, peer))], [case.receipt(peer)])
        elif case.rank == peer:
            yield Exchange(_blocking_second, [(0, case.message(peer, 0))], [case.receipt(0)])
        else:
            yield Exchange(_idle)


def isend(case: Case) -> Iterator[Exchange]:
    """Rank 0 to several other ranks at once and back, by isend and irecv."""
    for first in range(1, case.world_size, AT_ONCE):
        together = range(first, min(first + AT_ONCE, case.world_size))
        if case.rank == 0:
            sends = [(peer, case.message(0, peer)) for peer in together]
            yield Exchange(_sends_first, sends, [case.receipt(peer) for peer in together])
        elif case.rank in together:
            yield Exchange(_receives_first, [(0, case.message(case.rank, 0))], [case.receipt(0)])
        else:
            yield Exchange(_idle)


def batched(case: Case) -> Iterator[Exchange]:
    """Every rank to every other rank by batch_isend_irecv, several peers at once."""
    for first in range(1, case.world_size, AT_ONCE):
        shifts = range(first, min(first + AT_ONCE, case.world_size))
        to = [(case.rank + shift) % case.world_size for shift in shifts]
        of = [(case.rank - shift) % case.world_size for shift in shifts]
        yield Exchange(
            _batch, [(peer, case.message(case.rank, peer)) for peer in to], [case.receipt(peer) for peer in of]
        )


def ring(case: Case) -> Iterator[Exchange]:
    """Each rank to the next, all at once, and what arrives is sent on until it is back where it came from."""
    after, before = (case.rank + 1) % case.world_size, (case.rank - 1) % case.world_size
    carried = case.message(case.rank, case.rank)
    for hop in range(1, case.world_size + 1):
        origin = (case.rank - hop) % case.world_size
        receipt = case.receipt(before, case.message(origin, origin))
        yield Exchange(_batch, [(after, carried)], [receipt])
        carried = receipt.buffer


def _idle(exchange: Exchange) -> None:
    """This rank has no part in it."""


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


PATTERNS: dict[str, Callable[[Case], Iterator[Exchange]]] = {
    "send": send,
    "isend": isend,
    "batched": batched,
    "ring": ring,
}


@dataclass(frozen=True)
class Outcome:
    """One pattern: messages of all ranks in one iteration, bytes of each, its seconds, and what was wrong."""

    pattern: str
    messages: int
    bytes: int
    seconds: float
    checked: int
    faults: tuple[str, ...]

    @property
    def mb_per_s(self) -> float:
        """All messages together, in units of 10^6 bytes."""
        return self.messages * self.bytes / self.seconds / 1e6

    def row(self) -> str:
        time, speed = bench.microseconds(self.seconds), f"{self.mb_per_s:.1f}"
        return TABLE.row(self.pattern, self.messages, self.bytes, time, speed, "WRONG" if self.faults else "ok")


def measure(config: P2P, pattern: str, env: Env) -> Outcome:
    """Run one pattern `iterations` times and verify everything that arrives. All ranks must call it."""
    values = bench.Values(bench.torch_dtype(config.dtype), env.device, config.seed)
    count = max(1, bench.parse_bytes(config.size) // values.dtype.itemsize)
    wrong: dict[int, int] = {}
    seconds: list[float] = []
    messages = checked = 0
    for iteration in range(config.iterations):
        for exchange in PATTERNS[pattern](Case(env.rank, env.world_size, count, values, iteration)):
            dist.barrier()
            seconds.append(bench.timed(env.device, exchange.run, exchange))
            messages += len(exchange.sends)
            for receipt in exchange.receipts:
                checked += count
                if bad := bench.count_wrong(receipt.buffer, receipt.expected):
                    wrong[receipt.peer] = wrong.get(receipt.peer, 0) + bad
    everyone = gather((env.host, messages, checked, wrong), env)
    hosts = [host for host, *_ in everyone]
    faults = tuple(
        f"{pattern}: {bad} wrong elements of {count} a message arrived on {name_ranks([rank], hosts)} "
        f"from {name_ranks([peer], hosts)}"
        for rank, (*_, theirs) in enumerate(everyone)
        for peer, bad in theirs.items()
    )
    return Outcome(
        pattern,
        sum(messages for _, messages, *_ in everyone) // config.iterations,
        count * values.dtype.itemsize,
        bench.slowest_median(seconds, config.iterations, env),
        sum(checked for _, _, checked, _ in everyone),
        faults,
    )


def main(config: P2P, env: Env) -> dict[str, float | int | str]:
    """Run and verify the chosen patterns; the metrics are `<pattern>/us` and `<pattern>/mb_per_s` for each, `patterns`,
    and `checked` (elements that were compared).

    Raises:
        WorkloadError: a received value was wrong (all patterns have run by then), there is only one rank, or the
            config makes no sense.
    """
    from launcher.node import progress

    try:
        chosen = names.choose("pattern", config.patterns, names.PATTERNS)
        bench.torch_dtype(config.dtype)
        bench.parse_bytes(config.size)
    except ValueError as error:
        raise WorkloadError(str(error)) from error
    bench.check_iterations(config.iterations)
    if env.world_size < 2:
        raise WorkloadError("p2p needs at least 2 ranks: set nodes=2 or procs_per_node=2")
    introduce(env)
    gather(None, env)
    if env.rank == 0:
        say(TABLE.head())
    outcomes = []
    for pattern in chosen:
        outcomes.append(measure(config, pattern, env))
        if env.rank == 0:
            say(outcomes[-1].row())
            progress(len(outcomes), len(chosen), pattern=pattern)
    if faults := [fault for outcome in outcomes for fault in outcome.faults]:
        raise WorkloadError("; ".join(faults))
    metrics: dict[str, float | int | str] = {}
    for outcome in outcomes:
        metrics[f"{outcome.pattern}/us"] = round(outcome.seconds * 1e6, 1)
        metrics[f"{outcome.pattern}/mb_per_s"] = round(outcome.mb_per_s, 1)
    return {**metrics, "patterns": len(outcomes), "checked": sum(outcome.checked for outcome in outcomes)}
