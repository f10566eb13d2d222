"""Makes the input of each rank in a reduction, and the exact result, for every type and any number of ranks.

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

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from workloads.bench import Values

REDOPS = {
    "sum": dist.ReduceOp.SUM,
    "prod": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "avg": dist.ReduceOp.AVG,
}
_COMBINE: dict[str, Callable[..., object]] = {
    "sum": torch.add, "prod": torch.mul, "min": torch.minimum, "max": torch.maximum,
}  # fmt: skip
Key = tuple[object, ...]  # makes the data of one case different from that of others


def put_in(values: Values, redop: str, key: Key, rank: int, n: int, start: int, count: int) -> Tensor:
    """Returns elements `start` to `start + count - 1` of a rank's input, [count].

    redop: reduction: sum, prod, min, max or avg.
    rank: the rank, as index in its group.
    start: index of the first element.
    """
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


def answer(values: Values, redop: str, key: Key, n: int, start: int, count: int) -> Tensor:
    """Returns elements `start` to `start + count - 1` of the result over n ranks, [count]. See `put_in` for the
    arguments."""
    if redop == "avg":
        return _base(values, key, n, start, count)
    stream = _stream(values, redop, key, n, start, count + n - 1)
    result = stream[:count].clone()
    combine = _COMBINE[redop]
    for rank in range(1, n):
        combine(result, stream[rank : rank + count], out=result)
    return result


def wrong(redop: str, got: Tensor, expected: Tensor) -> int:
    """Returns the number of wrong elements in an output. NaN is always wrong.

    redop: reduction; empty: the operation does not reduce.
    """
    if redop == "avg" and got.is_floating_point():
        return int((~((got - expected).abs() < 0.5)).sum())
    return int((got != expected).sum())


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
