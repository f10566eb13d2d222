"""What the communication workloads share: test values, comparing, timing by the slowest rank, sizes, tables."""

from __future__ import annotations

import re
import statistics
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ParamSpec

import torch
import torch.distributed as dist
from torch import Tensor

from workloads import names
from workloads.ranks import WorkloadError

if TYPE_CHECKING:
    from launcher.node import Env

P = ParamSpec("P")

# The largest whole number up to which all whole numbers are exact in a type.
_EXACT = {
    torch.float64: 2**31 - 1,
    torch.float32: 2**24,
    torch.float16: 2**11,
    torch.bfloat16: 2**8,
    torch.int64: 2**31 - 1,
    torch.int32: 2**31 - 1,
    torch.int8: 2**7 - 1,
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)


def parse_bytes(text: str) -> int:
    """Bytes in `4`, `64K`, `1.5M` or `1GiB`; units are powers of 1024.

    Raises:
        ValueError: the text is no size, or one of zero bytes.
    """
    match = _SIZE.fullmatch(str(text).strip())
    size = int(float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " ")) if match else 0
    if size == 0:
        raise ValueError(f"{text!r} is not a size: write it as 512, 64K or 1M")
    return size


def torch_dtype(name: str) -> torch.dtype:
    """The torch type of a config's `dtype`.

    Raises:
        ValueError: there is no such type.
    """
    return getattr(torch, names.choose_one("dtype", name, names.DTYPES))


@dataclass(frozen=True)
class Values:
    """Makes whole-numbered test data, different for every key (source, destination, iteration, ...).

    All ranks can make the data of any other rank, and so know what they should receive.
    """

    dtype: torch.dtype
    device: torch.device
    seed: int

    def make(self, count: int, *key: object, summands: int = 1, summand: int = 0) -> Tensor:
        """`count` values for the key, [count].

        The sum of `summands` such tensors is exact in the type, if each is made with its own 0 <= `summand` <
        `summands`. Where there are more summands than the type can hold ones, only some are not zero at each place.
        """
        limit = _EXACT[self.dtype]
        top = max(1, limit // summands)
        start = zlib.crc32(repr((self.seed, *key)).encode())
        index = torch.arange(count, dtype=torch.int64, device=self.device)
        mixed = ((index + start) & 0x7FFFFFFF) * 0x9E3779B1 & 0x7FFFFFFF
        mixed = ((mixed ^ mixed >> 15) * 0x85EBCA6B & 0x7FFFFFFF) ^ start
        values = (mixed ^ mixed >> 13) % (top + 1)
        every = -(-summands // limit)
        if every > 1:
            values = torch.where((index + summand) % every == 0, values, 0)
        return values.to(self.dtype)

    def poison(self, count: int) -> Tensor:
        """A buffer to receive into, [count], filled with a value that `make` never gives."""
        return torch.full((count,), -1, dtype=self.dtype, device=self.device)


def count_wrong(got: Tensor, expected: Tensor) -> int:
    """How many elements differ; not-a-number is always wrong."""
    return int((got != expected).sum())


def timed(device: torch.device, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> float:
    """Seconds that one call takes on this rank, up to the end of what it started on the device."""
    _finish(device)
    started = time.perf_counter()
    function(*args, **kwargs)
    _finish(device)
    return time.perf_counter() - started


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def slowest_median(seconds: Sequence[float], iterations: int, env: Env) -> float:
    """Median over iterations of their time as the slowest rank sees it, in seconds. All ranks must call it.

    `seconds` are this rank's times, equally many for each iteration and one iteration after the other; an iteration
    takes the sum of its parts, each as long as on the rank that was slowest in it.
    """
    times = torch.tensor(seconds, dtype=torch.float64, device=env.device)
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    return statistics.median(times.view(iterations, -1).sum(1).tolist())


def check_iterations(iterations: int, warmup: int = 0) -> None:
    """
    Raises:
        WorkloadError: there would be nothing to time.
    """
    if iterations < 1 or warmup < 0:
        raise WorkloadError(
            f"workload.iterations={iterations} and workload.warmup={warmup}: at least 1 iteration, and 0 to warm up"
        )


class Table:
    """Lines of a table with fixed columns, made one at a time so that they can be printed as they come.

    `columns` are (title, width); a negative width aligns to the left. A text longer than its column is not cut.
    """

    def __init__(self, *columns: tuple[str, int]) -> None:
        self.columns = columns

    def head(self) -> str:
        return self.row(*(title for title, _ in self.columns))

    def row(self, *cells: object) -> str:
        texts = []
        for (_, width), cell in zip(self.columns, cells, strict=True):
            texts.append(str(cell).ljust(-width) if width < 0 else str(cell).rjust(width))
        return "  ".join(texts).rstrip()


def microseconds(seconds: float) -> str:
    """`1234.5`, as benchmarks of communication print times."""
    return f"{seconds * 1e6:.1f}"
