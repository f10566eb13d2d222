"""Shared by p2p and collective: test values, comparisons, bandwidths, timing by the slowest rank.

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
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, ParamSpec

import torch
import torch.distributed as dist
from torch import Tensor

from launcher.worker import devices
from workloads import benchmark_keys

if TYPE_CHECKING:
    from launcher import Env


_ONE = ("reduce", "broadcast", "send_recv")
_OTHERS = ("all_gather", "reduce_scatter", "all_to_all", "all_to_all_v", "gather", "scatter")


def bus_factor(operation: str, n: int) -> float | None:
    """Returns busbw / algbw of an operation on n ranks; None for a barrier, and for a single rank."""
    if operation == "barrier" or n < 2:
        return None
    return {"all_reduce": 2 * (n - 1) / n, **dict.fromkeys(_ONE, 1.0), **dict.fromkeys(_OTHERS, (n - 1) / n)}[operation]


def bandwidths(operation: str, n: int, size: int, seconds: float) -> tuple[float | None, float | None]:
    """Returns algbw and busbw, in bytes/s, of an operation that took `seconds`, by its size; None: not defined."""
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


# -- Test values, comparisons, timing by the slowest rank


P = ParamSpec("P")

_PERIOD = 2**30 - 1  # mask of a value's number: the values of a key repeat after 2**30


def torch_dtype(name: str) -> torch.dtype:
    """Returns the torch type that `workload.dtype` names. Raises ValueError: there is no such type."""
    return getattr(torch, benchmark_keys.choose_one("dtype", name, benchmark_keys.DTYPES))


@dataclass(frozen=True)
class Values:
    """Makes test data of whole numbers, different for every key: every rank can make what it should receive."""

    dtype: torch.dtype  # type of the data
    device: torch.device  # device of the data
    seed: int  # seed of the data, equal on all ranks

    def make(self, count: int, *key: object, start: int = 0, most: int | None = None) -> Tensor:
        """Returns the values at indices `start` to `start + count - 1` of the stream of a key, [count].

        The values are whole numbers from 0 to the largest 2^k - 1 that is at most `most` (None: `limit`).
        """
        mask = (1 << ((self.limit if most is None else most) + 1).bit_length() - 1) - 1
        mark = zlib.crc32(repr((self.seed, *key)).encode()) & _PERIOD
        # In place, with 32-bit arithmetic that wraps around: this takes most of the time of verifying large buffers.
        mixed = torch.arange(count, dtype=torch.int32, device=self.device)
        mixed.add_((start + mark) & _PERIOD).bitwise_and_(_PERIOD)
        mixed.mul_(-1640531535).bitwise_xor_(mixed >> 15)
        mixed.mul_(-2048144789).bitwise_xor_(mixed >> 13)
        return mixed.bitwise_xor_(mark).bitwise_and_(mask).to(self.dtype)

    @property
    def limit(self) -> int:
        """The largest whole number up to which the type represents all whole numbers exactly, at most 2**31 - 1."""
        exact = 2 / torch.finfo(self.dtype).eps if self.dtype.is_floating_point else torch.iinfo(self.dtype).max
        return int(min(exact, 2**31 - 1))

    def poison(self, count: int) -> Tensor:
        """Returns a buffer to receive into, [count], filled with -1, which `make` never returns."""
        return torch.full((count,), -1, dtype=self.dtype, device=self.device)


def count_wrong(got: Tensor, expected: Tensor) -> int:
    """Returns the number of elements that differ. NaN always differs."""
    return int((got != expected).sum())


def timed(device: torch.device, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> float:
    """Returns the seconds of a call, with the work that it queues on the device."""
    devices.synchronize(device)
    started = time.perf_counter()
    function(*args, **kwargs)
    devices.synchronize(device)
    return time.perf_counter() - started


def time_calls(call: Callable[[], object], meet: Callable[[], object], count: int) -> list[float]:
    """Calls `call` `count` times, each time after `meet` (a barrier); returns the seconds of each call.

    Uses this process's clock, so the operation must be done when the call returns. The loop does nothing else:
    benchmarks/fabric.py compares this function with a hand-written loop.
    """
    clock = time.perf_counter
    seconds = []
    for _ in range(count):
        meet()
        began = clock()
        done = call()
        seconds.append(clock() - began)
        del done  # freeing the result takes time, which is not the operation's
    return seconds


def time_on_device(
    call: Callable[[], object], meet: Callable[[], object], count: int, device: torch.device
) -> list[float]:
    """Calls `call` `count` times after one `meet` (a barrier); returns the seconds of each operation.

    Uses events on the device's current stream, so the operations, which the calls only queue, must run on that stream.
    """
    event_of = devices.module(device).Event
    events = [event_of(enable_timing=True) for _ in range(count + 1)]
    meet()
    devices.synchronize(device)
    events[0].record()
    for event in events[1:]:
        call()
        event.record()
    devices.synchronize(device)
    return [before.elapsed_time(after) / 1000 for before, after in pairwise(events)]


def slowest(seconds: Sequence[float], env: Env) -> list[float]:
    """Returns the seconds of each iteration on the rank where it took longest. All ranks must call it, with as many."""
    times = torch.tensor(seconds, dtype=torch.float64, device=env.device)
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    return [float(each) for each in times.tolist()]


def microseconds(seconds: float) -> str:
    """Returns a time in microseconds, such as `1234.5`; of a second and more without decimals."""
    value = seconds * 1e6
    return f"{value:.1f}" if value < 1e6 - 1 else f"{value:.0f}"
