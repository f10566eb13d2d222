"""The collective operations: for each, its input on a rank, how it is run, and what must come out by its definition.

In the definitions below, n ranks have numbers 0 to n-1 in their group, `root` is one of these numbers, and x(i) is what
rank i puts in. `count` is the number of elements of the largest buffer that a rank holds; a block is an n-th of it.

| operation | in | out |
|---|---|---|
| all_reduce | x(i), count | sum of all x, on every rank |
| broadcast | x(root), count | x(root), on every rank |
| reduce | x(i), count | sum of all x, on the root |
| all_gather | x(i), a block | all x in the order of ranks, on every rank |
| gather | x(i), a block | all x in the order of ranks, on the root |
| scatter | n blocks on the root | block i, on rank i |
| reduce_scatter | x(i), n blocks | block i of the sum of all x, on rank i |
| all_to_all | x(i), n blocks | block i of every x in the order of ranks, on rank i |
| barrier | nothing | nobody leaves before all have come |
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from workloads.bench import Values

LATE = 0.01  # seconds that one rank comes later to a barrier, so that leaving early shows


@dataclass(frozen=True)
class Case:
    """One run of an operation on this rank.

    `group` is the process group, `ranks` the global ranks in it, `me` and `root` numbers in it, `block` the elements
    of a block. `key` tells this run's data from every other run's.
    """

    group: dist.ProcessGroup
    ranks: tuple[int, ...]
    me: int
    root: int
    block: int
    values: Values
    key: tuple[object, ...]

    @property
    def n(self) -> int:
        return len(self.ranks)

    @property
    def count(self) -> int:
        return self.block * self.n

    def put_in(self, rank: int, blocks: int = 1) -> Tensor:
        """x(rank) of an operation that moves data, [blocks x block]."""
        return self.values.make(blocks * self.block, *self.key, self.ranks[rank])

    def summand(self, rank: int) -> Tensor:
        """x(rank) of an operation that sums, [count]."""
        return self.values.make(self.count, *self.key, self.ranks[rank], summands=self.n, summand=rank)

    def total(self) -> Tensor:
        """The sum of all x, [count]."""
        result = self.summand(0)
        for rank in range(1, self.n):
            result += self.summand(rank)
        return result

    def blocks(self, data: Tensor) -> list[Tensor]:
        return list(data.split(self.block))


@dataclass(frozen=True)
class Operation:
    """An operation: `make` gives a rank's (input, output) buffers, `run` runs it, `expected` is the right output.

    `run` leaves the output in the second buffer. `expected` is None where a rank gets nothing. An operation that has no
    data has `verify` instead: how much was wrong on this rank, or None if that cannot be known here.
    """

    name: str
    make: Callable[[Case], tuple[Tensor, Tensor]]
    run: Callable[[Case, Tensor, Tensor], object]
    expected: Callable[[Case], Tensor | None]
    verify: Callable[[Case], int | None] | None = None


def _in_place(case: Case) -> tuple[Tensor, Tensor]:
    data = case.summand(case.me)
    return data, data


def _broadcast_buffers(case: Case) -> tuple[Tensor, Tensor]:
    data = case.put_in(case.me, case.n) if case.me == case.root else case.values.poison(case.count)
    return data, data


def _spread(case: Case) -> tuple[Tensor, Tensor]:
    """A block in, n blocks out."""
    return case.put_in(case.me), case.values.poison(case.count)


def _all_gather(case: Case, data: Tensor, out: Tensor) -> None:
    dist.all_gather_single(out, data, group=case.group)


def _reduce_scatter(case: Case, data: Tensor, out: Tensor) -> None:
    dist.reduce_scatter_single(out, data, group=case.group)


def _gather(case: Case, data: Tensor, out: Tensor) -> None:
    blocks = case.blocks(out) if case.me == case.root else None
    dist.gather(data, blocks, dst=case.ranks[case.root], group=case.group)


def _scatter_buffers(case: Case) -> tuple[Tensor, Tensor]:
    data = case.put_in(case.root, case.n) if case.me == case.root else case.values.poison(0)
    return data, case.values.poison(case.block)


def _scatter(case: Case, data: Tensor, out: Tensor) -> None:
    blocks = case.blocks(data) if case.me == case.root else None
    dist.scatter(out, blocks, src=case.ranks[case.root], group=case.group)


def _everyone(case: Case) -> Tensor:
    return torch.cat([case.put_in(rank) for rank in range(case.n)])


def _counter() -> dist.Store | None:
    """The ranks' key-value store; there is none with MPI."""
    return dist.distributed_c10d._get_default_store()


def _arrive(case: Case) -> tuple[Tensor, Tensor]:
    """Count this rank as come, one rank later than the others."""
    if case.me == case.root:
        time.sleep(LATE)
    if store := _counter():
        store.add(f"barrier/{case.key}/{case.ranks}", 1)
    return case.values.poison(0), case.values.poison(0)


def _missing(case: Case) -> int | None:
    """How many ranks had not come when this one had left."""
    store = _counter()
    return case.n - store.add(f"barrier/{case.key}/{case.ranks}", 0) if store else None


ALL = (
    Operation(
        "all_reduce",
        _in_place,
        lambda case, data, out: dist.all_reduce(out, group=case.group),
        Case.total,
    ),
    Operation(
        "broadcast",
        _broadcast_buffers,
        lambda case, data, out: dist.broadcast(out, case.ranks[case.root], group=case.group),
        lambda case: case.put_in(case.root, case.n),
    ),
    Operation(
        "reduce",
        _in_place,
        lambda case, data, out: dist.reduce(out, case.ranks[case.root], group=case.group),
        lambda case: case.total() if case.me == case.root else None,
    ),
    Operation("all_gather", _spread, _all_gather, _everyone),
    Operation("gather", _spread, _gather, lambda case: _everyone(case) if case.me == case.root else None),
    Operation(
        "scatter",
        _scatter_buffers,
        _scatter,
        lambda case: case.blocks(case.put_in(case.root, case.n))[case.me],
    ),
    Operation(
        "reduce_scatter",
        lambda case: (case.summand(case.me), case.values.poison(case.block)),
        _reduce_scatter,
        lambda case: case.blocks(case.total())[case.me],
    ),
    Operation(
        "all_to_all",
        lambda case: (case.put_in(case.me, case.n), case.values.poison(case.count)),
        lambda case, data, out: dist.all_to_all_single(out, data, group=case.group),
        lambda case: torch.cat([case.blocks(case.put_in(rank, case.n))[case.me] for rank in range(case.n)]),
    ),
    Operation(
        "barrier",
        _arrive,
        lambda case, data, out: dist.barrier(group=case.group),
        lambda case: None,
        _missing,
    ),
)
BY_NAME = {operation.name: operation for operation in ALL}
