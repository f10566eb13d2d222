"""The collective operations: for each, its buffers on a rank, its torch call, and its expected result.

The input of rank i starts at position i of one random stream r: x(i)[k] = r[k + i]. So the inputs of all ranks differ,
and computing a result takes one stream and n slices of it, not n streams. The values are so small, or so sparse, that
no order of additions or multiplications rounds or overflows.

| redop | r | result at k |
|---|---|---|
| sum | 0 to limit/n; if n is larger than the type's limit, 0 at most positions | r[k] + ... + r[k+n-1] |
| prod | 1 to 4, at most 3 of n neighbours not 1 | r[k] * ... * r[k+n-1] |
| min, max | 0 to limit | least or greatest of r[k] ... r[k+n-1] |

`limit` is the largest whole number up to which the type represents all whole numbers exactly.

avg: x(i) = base + d(i/2) for even i and base - d(i/2) for odd i (base for the last rank if n is odd), so the average
is base. NCCL multiplies floats by 1/n first, which rounds. So a float is right if it is nearest to base.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from launcher.torch_compat import all_gather_single, reduce_scatter_single
from workloads.benchmark_keys import REDUCING
from workloads.measurement import Values, count_wrong

REDOPS = {
    "sum": dist.ReduceOp.SUM,
    "prod": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "avg": dist.ReduceOp.AVG,
}
_COMBINE: dict[str, Callable[..., Tensor]] = {
    "sum": torch.add, "prod": torch.mul, "min": torch.minimum, "max": torch.maximum,
}  # fmt: skip
Key = tuple[object, ...]  # makes the data of one case different from that of others


def put_operands(values: Values, redop: str, key: Key, rank: int, n: int, start: int, count: int) -> Tensor:
    """Returns elements `start` to `start + count - 1` of the input of a rank (its index in its group), [count]."""
    if redop != "avg":
        return _stream(values, redop, key, n, start + rank, count)
    base = _base(values, key, n, start, count)
    if rank == n - 1 and n % 2:
        return base
    pairs = n // 2
    most = max(1, values.limit // (4 * pairs))
    apart = _sparse(values.make(count, *key, "apart", start=start + rank // 2, most=most),
                    start + rank // 2, -(-4 * pairs // values.limit), 0)  # fmt: skip
    return base - apart if rank % 2 else base + apart


def exact_result(values: Values, redop: str, key: Key, n: int, start: int, count: int) -> Tensor:
    """Returns elements `start` to `start + count - 1` of the result over n ranks, [count]."""
    if redop == "avg":
        return _base(values, key, n, start, count)
    stream, combine = _stream(values, redop, key, n, start, count + n - 1), _COMBINE[redop]
    result, done, width = None, 0, 1  # result: of `done` neighbours; stream: of `width`, so that 32,768 take 15 steps
    while width <= n:
        if n & width:
            more = stream[done : done + count]
            result, done = more if result is None else combine(result, more), done + width
        stream, width = combine(stream[:-width], stream[width:]), 2 * width
    assert result is not None, "there is a rank"
    return result


def wrong_elements(redop: str, got: Tensor, expected: Tensor) -> int:
    """Returns the number of wrong elements in an output. NaN is always wrong. redop: empty if it does not reduce."""
    if redop == "avg" and got.is_floating_point():
        return int((~((got - expected).abs() < 0.5)).sum())
    return count_wrong(got, expected)


def _base(values: Values, key: Key, n: int, start: int, count: int) -> Tensor:
    # At most 2**24, since torch divides integers as float32 where it divides them itself.
    return values.make(count, *key, "base", start=start, most=min(values.limit, 2**24) // (2 * n))


def _stream(values: Values, redop: str, key: Key, n: int, start: int, count: int) -> Tensor:
    if redop in ("min", "max"):
        return values.make(count, *key, start=start)
    if redop == "prod":
        return _sparse(values.make(count, *key, start=start, most=3) + 1, start, -(-n // 3), 1)
    most = max(1, values.limit // n)
    return _sparse(values.make(count, *key, start=start, most=most), start, -(-n // values.limit), 0)


def _sparse(stream: Tensor, start: int, every: int, otherwise: int) -> Tensor:
    # Returns the stream with `otherwise` at all positions that are no multiple of `every`
    if every == 1:
        return stream
    places = torch.arange(start, start + len(stream), device=stream.device)
    return torch.where(places % every == 0, stream, torch.full_like(stream, otherwise))


# -- The operations
#
# In the table, the n ranks of a group are 0 to n-1 (as torch.distributed's group ranks), `root` is one of them, and
# x(i) is the input of rank i. `count` is the number of elements of the operation's size; a block has count / n
# elements.
#
# | operation | input | output |
# |---|---|---|
# | all_reduce | x(i), count | reduction of all x, on every rank |
# | broadcast | x(root), count | x(root), on every rank |
# | reduce | x(i), count | reduction of all x, on the root |
# | all_gather | x(i), a block | all x in the order of ranks, on every rank |
# | gather | x(i), a block | all x in the order of ranks, on the root |
# | scatter | n blocks on the root | block i, on rank i |
# | reduce_scatter | x(i), n blocks | block i of the reduction of all x, on rank i |
# | all_to_all | x(i), n blocks | block i of every x in the order of ranks, on rank i |
# | all_to_all_v | x(i), count in uneven parts | part i of every x in the order of ranks, on rank i |
# | send_recv | x(i), count | x(i-1): each rank sends to the next and receives from the one before |
# | barrier | nothing | nothing: no rank returns before all have called it |
#
# Data is made and compared in pieces, so that verifying needs hardly any memory besides the buffers.


PIECE = 2**18  # elements that are made or compared at once
Call = Callable[[], object]
Work = Callable[..., Any]


@dataclass(frozen=True)
class Case:
    """One operation of one size on this rank."""

    group: dist.ProcessGroup  # process group
    ranks: tuple[int, ...]  # global ranks of the group
    me: int  # group rank of this rank
    root: int  # group rank of the root
    count: int  # number of elements of the operation (see the module's table)
    values: Values  # makes the data
    redop: str  # reduction: sum, prod, min, max or avg
    key: tuple[object, ...]  # makes the data different from those of other cases

    @property
    def n(self) -> int:
        return len(self.ranks)

    @property
    def block(self) -> int:
        return self.count // self.n

    @property
    def is_root(self) -> bool:
        return self.me == self.root

    def again(self, *key: object) -> Case:
        """Returns the same case with other data."""
        return replace(self, key=(*self.key, *key))

    def parts(self) -> list[int]:
        """Returns the sizes of the parts, 1, 2, ... n shares of `count`, that all_to_all_v moves, in elements.

        Part (i + j) % n goes from rank i to rank j, so that every rank sends and receives `count` elements in total.
        """
        shares = self.n * (self.n + 1) // 2
        smaller = [self.count * each // shares for each in range(1, self.n)]
        return [*smaller, self.count - sum(smaller)]


@dataclass(frozen=True)
class Piece:
    """Consecutive elements of an expected output."""

    source: int | None  # group rank of the input that has the elements; None: the reduction of all inputs has them
    offset: int  # index of the first element in this input or reduction
    length: int  # number of elements


@dataclass(frozen=True)
class Buffers:
    """The input and output of one operation on a rank. For an in-place operation they share memory."""

    data: Tensor  # the input
    out: Tensor  # the output


@dataclass(frozen=True)
class Operation:
    name: str
    takes: Callable[[Case], int]  # returns the number of input elements of this rank
    gives: Callable[[Case], list[Piece]]  # returns the expected output of this rank
    # returns a function that runs the operation once on these buffers; if True, by starting it and waiting for it
    bind: Callable[[Case, Buffers, bool], Call]
    # returns both buffers as parts of one tensor, for an in-place operation; None: they cannot be
    shared: Callable[[Case, Tensor], Buffers] | None = None
    one_buffer: bool = False  # whether torch.distributed takes one tensor for input and output

    @property
    def reduces(self) -> bool:
        return self.name in REDUCING

    @property
    def rooted(self) -> bool:
        return self.name in ("broadcast", "reduce", "gather", "scatter")

    def received(self, case: Case) -> int:
        return sum(piece.length for piece in self.gives(case))

    def elements(self, case: Case, place: str) -> tuple[int, int]:
        """Returns the number of elements in both of this rank's buffers together, and in the larger one."""
        takes, gives = (case.count, case.count) if self.one_buffer else (self.takes(case), self.received(case))
        return (max(takes, gives) if place == "in" else takes + gives), max(takes, gives)

    def allocate(self, case: Case, place: str) -> Buffers:
        """Returns uninitialised buffers for this rank. `place`: "in" (an in-place operation) or "out" (of place)."""
        values = case.values
        make = partial(torch.empty, dtype=values.dtype, device=values.device)
        if place == "out":
            return Buffers(make(self.takes(case)), make(self.received(case)))
        whole = make(self.elements(case, place)[0])
        return Buffers(whole, whole) if self.one_buffer or not self.shared else self.shared(case, whole)

    def fill(self, case: Case, buffers: Buffers) -> None:
        """Fills the input with this rank's data, and the output with -1, which no result has."""
        buffers.out.fill_(-1)
        mine = buffers.data[: self.takes(case)]
        for start, piece in _pieces(mine):
            piece.copy_(_element(case, None if self.reduces else case.me, start, len(piece), put_in=True))

    def check(self, case: Case, buffers: Buffers) -> tuple[int, int]:
        """Returns the number of wrong and of compared elements of this rank's output."""
        wrong = at = 0
        for due in self.gives(case):
            for start, got in _pieces(buffers.out[at : at + due.length]):
                expected = _element(case, due.source, due.offset + start, len(got))
                wrong += wrong_elements(case.redop if self.reduces else "", got, expected)
            at += due.length
        return wrong, at


def _pieces(tensor: Tensor) -> Iterator[tuple[int, Tensor]]:
    for start in range(0, len(tensor), PIECE):
        yield start, tensor[start : start + PIECE]


def _element(case: Case, source: int | None, start: int, count: int, *, put_in: bool = False) -> Tensor:
    # Of the input of the rank `source` or, if that is None, of a reduction: with `put_in` this rank's input, else its
    # result
    if source is not None:
        return case.values.make(count, *case.key, case.ranks[source], start=start)
    key = (*case.key, case.ranks)
    if put_in:
        return put_operands(case.values, case.redop, key, case.me, case.n, start, count)
    return exact_result(case.values, case.redop, key, case.n, start, count)


def _bound(function: Work, wait: bool, *arguments: object, **options: object) -> Call:
    # With `wait`, the call starts the operation asynchronously and waits for it
    call = partial(function, *arguments, **options)
    if not wait:
        return call
    start = partial(call, async_op=True)

    def start_and_wait() -> object:
        work = start()
        if work is not None:
            work.wait()
        return work

    return start_and_wait


def _whole(case: Case) -> int:
    return case.count


def _on_root_whole(case: Case) -> int:
    return case.count if case.is_root else 0


def _everyone(case: Case) -> list[Piece]:
    return [Piece(rank, 0, case.block) for rank in range(case.n)]


def _reduction(case: Case) -> list[Piece]:
    return [Piece(None, 0, case.count)]


def _on_root(pieces: Callable[[Case], list[Piece]]) -> Callable[[Case], list[Piece]]:
    return lambda case: pieces(case) if case.is_root else []


def _my_block(case: Case, whole: Tensor) -> Tensor:
    return whole[case.me * case.block : (case.me + 1) * case.block]


def _all_reduce(case: Case, buffers: Buffers, wait: bool) -> Call:
    return _bound(dist.all_reduce, wait, buffers.data, REDOPS[case.redop], case.group)


def _broadcast(case: Case, buffers: Buffers, wait: bool) -> Call:
    return _bound(dist.broadcast, wait, buffers.data, case.ranks[case.root], case.group)


def _reduce(case: Case, buffers: Buffers, wait: bool) -> Call:
    return _bound(dist.reduce, wait, buffers.data, case.ranks[case.root], REDOPS[case.redop], case.group)


def _all_gather(case: Case, buffers: Buffers, wait: bool) -> Call:
    return _bound(all_gather_single, wait, buffers.out, buffers.data, case.group)


def _reduce_scatter(case: Case, buffers: Buffers, wait: bool) -> Call:
    return _bound(reduce_scatter_single, wait, buffers.out, buffers.data, REDOPS[case.redop], case.group)


def _gather(case: Case, buffers: Buffers, wait: bool) -> Call:
    blocks = list(buffers.out.split(case.block)) if case.is_root else None
    return _bound(dist.gather, wait, buffers.data, blocks, case.ranks[case.root], case.group)


def _scatter(case: Case, buffers: Buffers, wait: bool) -> Call:
    blocks = list(buffers.data.split(case.block)) if case.is_root else None
    return _bound(dist.scatter, wait, buffers.out, blocks, case.ranks[case.root], case.group)


def _all_to_all(case: Case, buffers: Buffers, wait: bool) -> Call:
    return _bound(dist.all_to_all_single, wait, buffers.out, buffers.data, group=case.group)


def _all_to_all_v(case: Case, buffers: Buffers, wait: bool) -> Call:
    parts = case.parts()
    mine = [*parts[case.me :], *parts[: case.me]]  # as many elements to each rank as from it
    return _bound(dist.all_to_all_single, wait, buffers.out, buffers.data, mine, mine, case.group)


def _parts_for_me(case: Case) -> list[Piece]:
    parts = case.parts()
    before = [0, *accumulate(parts * 2)]  # rank i begins with part i, and comes round
    return [
        Piece(source, before[source + case.me] - before[source], parts[(source + case.me) % case.n])
        for source in range(case.n)
    ]


def _send_recv(case: Case, buffers: Buffers, wait: bool) -> Call:
    # `wait` has no effect
    after, before = case.ranks[(case.me + 1) % case.n], case.ranks[case.me - 1]
    both = [
        dist.P2POp(dist.isend, buffers.data, after, case.group),
        dist.P2POp(dist.irecv, buffers.out, before, case.group),
    ]

    def exchange() -> object:
        works = dist.batch_isend_irecv(both)
        for work in works:
            work.wait()
        return works

    return exchange


def _barrier(case: Case, buffers: Buffers, wait: bool) -> Call:
    return _bound(dist.barrier, wait, group=case.group)


def _gather_shared(case: Case, whole: Tensor) -> Buffers:
    return Buffers(_my_block(case, whole), whole) if case.is_root else Buffers(whole, whole[:0])


def _scatter_shared(case: Case, whole: Tensor) -> Buffers:
    return Buffers(whole, _my_block(case, whole)) if case.is_root else Buffers(whole[:0], whole)


ALL = (
    Operation("all_reduce", _whole, _reduction, _all_reduce, one_buffer=True),
    Operation("broadcast", _on_root_whole, lambda case: [Piece(case.root, 0, case.count)], _broadcast, one_buffer=True),
    Operation("reduce", _whole, _on_root(_reduction), _reduce, one_buffer=True),
    Operation(
        "all_gather", lambda case: case.block, _everyone, _all_gather,
        lambda case, whole: Buffers(_my_block(case, whole), whole),
    ),
    Operation("gather", lambda case: case.block, _on_root(_everyone), _gather, _gather_shared),
    Operation(
        "scatter", _on_root_whole, lambda case: [Piece(case.root, case.me * case.block, case.block)], _scatter,
        _scatter_shared,
    ),
    Operation(
        "reduce_scatter",
        _whole,
        lambda case: [Piece(None, case.me * case.block, case.block)],
        _reduce_scatter,
        lambda case, whole: Buffers(whole, _my_block(case, whole)),
    ),
    Operation(
        "all_to_all",
        _whole,
        lambda case: [Piece(rank, case.me * case.block, case.block) for rank in range(case.n)],
        _all_to_all,
    ),
    Operation("all_to_all_v", _whole, _parts_for_me, _all_to_all_v),
    Operation("barrier", lambda case: 0, lambda case: [], _barrier),
    Operation("send_recv", _whole, lambda case: [Piece((case.me - 1) % case.n, 0, case.count)], _send_recv),
)  # fmt: skip
BY_NAME = {operation.name: operation for operation in ALL}
IN_BLOCKS = ("all_gather", "gather", "scatter", "reduce_scatter", "all_to_all")  # count is a multiple of n


def count_of(operation: str, size: int, itemsize: int, n: int) -> int:
    """Returns the elements of an operation of at most `size` bytes, but at least one element or block per rank."""
    count = max(1, size // itemsize)
    return max(1, count // n) * n if operation in IN_BLOCKS else count
