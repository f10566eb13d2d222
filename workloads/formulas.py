"""The bandwidths of collective operations, as nccl-tests defines them, and the spread of times.

algbw is the size of an operation divided by its time. busbw is algbw times a factor that depends on the operation and
on the number of ranks n, so that it can be compared with the speed of the hardware at any n. Source: nccl-tests,
doc/PERFORMANCE.md.

| operation | size | factor |
|---|---|---|
| all_reduce | bytes of one rank's buffer | 2(n-1)/n |
| reduce, broadcast, send_recv | bytes of one rank's buffer | 1 |
| all_gather, reduce_scatter, all_to_all, gather, scatter | n times the block of a rank | (n-1)/n |
| all_to_all_v | bytes that a rank sends, and as many as it receives | (n-1)/n |
| barrier | none | none: it has only a time |

In all_to_all_v, ranks keep parts of different sizes for themselves: an n-th of the buffer on average.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

_ONE = ("reduce", "broadcast", "send_recv")
_OTHERS = ("all_gather", "reduce_scatter", "all_to_all", "all_to_all_v", "gather", "scatter")


def bus_factor(operation: str, n: int) -> float | None:
    """Returns busbw / algbw of an operation on n ranks; None for a barrier, and for a single rank.

    Raises KeyError: there is no such operation.
    """
    if operation == "barrier" or n < 2:
        return None
    factors = {"all_reduce": 2 * (n - 1) / n, **dict.fromkeys(_ONE, 1.0), **dict.fromkeys(_OTHERS, (n - 1) / n)}
    return factors[operation]


def bandwidths(operation: str, n: int, size: int, seconds: float) -> tuple[float | None, float | None]:
    """Returns algbw and busbw, in bytes/s, of an operation on n ranks that took `seconds`.

    Each is None if it is not defined. `size`: size of the operation in bytes, as in the module's table.
    """
    if operation == "barrier" or seconds <= 0:
        return None, None
    algbw = size / seconds
    factor = bus_factor(operation, n)
    return algbw, None if factor is None else algbw * factor


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Returns min, median, p99 (99 % of the times are at most this long) and mean of one time or more, in seconds."""
    ordered = sorted(seconds)
    return {
        "min": ordered[0],
        "median": statistics.median(ordered),
        "p99": ordered[math.ceil(0.99 * len(ordered)) - 1],
        "mean": statistics.fmean(ordered),
    }
