"""Runs, times and verifies one pattern of p2p at one size, and makes a row of results.json from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from launcher.formatting import format_size, long_size
from workloads import bench, exchanges, keys, matrix, results, roof
from workloads.exchanges import AT_ONCE, EXCHANGES, Case
from workloads.keys import parse_seconds, parse_sizes
from workloads.ranks import gather, name_ranks

if TYPE_CHECKING:
    from launcher import Env
    from launcher.config.schema import P2P

TABLE = bench.Table(
    ("pattern", -13), ("size(B)", 11), ("time(us)", 11), ("lat(us)", 9), ("MB/s", 9), ("%roof", 5), ("#wrong", 6)
)


@dataclass(frozen=True)
class Measured:
    """The result of one pattern at one size."""

    row: results.Row  # the row of results.json
    faults: tuple[str, ...]  # texts about wrong results

    def line(self, top: float | None) -> str:
        """Returns the line of the printed table.

        top: the hardware's speed for this pattern in bytes/s; None: unknown.
        """
        row = self.row
        speed, latency = row["bandwidth"], row["latency"]
        return TABLE.row(
            row["pattern"], row["size"], bench.microseconds(row["seconds"]["median"]),
            "-" if latency is None else bench.microseconds(latency), f"{speed / 1e6:.2f}",
            "-" if top is None else f"{speed / top * 100:.0f}", row["wrong"],
        )  # fmt: skip


class Transfers:
    """Measures all patterns except the matrix. All ranks must call its methods together."""

    def __init__(self, config: P2P, env: Env) -> None:
        self.config, self.env = config, env
        self.values = bench.Values(bench.torch_dtype(config.dtype), env.device, config.seed)
        self.pair = keys.pair_of(config.pair, env.node_ranks)
        self.budget = None if config.budget is None else parse_seconds(config.budget)
        self.sizes = parse_sizes(config.sizes)
        self.hosts = gather(env.host, env)

    def counts(self) -> list[int]:
        """Returns the number of elements of a message for each size of the config: at least one, without duplicates."""
        return list(dict.fromkeys(max(1, size // self.values.dtype.itemsize) for size in self.sizes))

    def missing(self, pattern: str, count: int) -> str:
        """Returns a text if a rank lacks the memory for a pattern with messages of `count` elements; else ""."""
        size = count * self.values.dtype.itemsize
        if pattern in EXCHANGES:
            messages = min(AT_ONCE, self.env.world_size - 1)
        else:
            room = matrix.ROOM if pattern == keys.MATRIX else exchanges.ROOM
            messages = max(1, min(room // size, max(exchanges.BURST, self.config.window)))
        need = 3 * messages * size + 12 * count + size  # sent, received, expected; and to make and compare values
        there = [free for free in gather(roof.available_memory(self.env), self.env) if free is not None]
        if not there or need < min(there):
            return ""
        return f"{format_size(size)}: it needs {long_size(need)} a rank, and {long_size(min(there))} are free"

    def measure(self, pattern: str, count: int) -> Measured:
        """Measures one pattern with messages of `count` elements, and returns the result."""
        return self._pair(pattern, count) if pattern in exchanges.PATTERNS else self._exchange(pattern, count)

    def _pair(self, pattern: str, count: int) -> Measured:
        config, env = self.config, self.env
        a, b = self.pair
        timed = exchanges.Timed()
        if env.rank in self.pair:
            runs = exchanges.Runs(config.iterations, config.warmup, self.budget, config.window)
            timed = exchanges.PATTERNS[pattern](exchanges.Pair(env.rank, a, b, count, self.values, pattern), runs)
        everyone = gather(timed, env)
        seconds = everyone[a].seconds
        size, median = count * self.values.dtype.itemsize, bench.spread(seconds)["median"]
        messages = {"pingpong": 2, "bandwidth": config.window, "bidirectional": 2 * config.window}[pattern]
        latency = median / 2 if pattern == "pingpong" else None
        row = self._row(pattern, count, messages, seconds)
        row |= {"window": 1 if latency else config.window, "latency": latency, "bandwidth": messages * size / median}
        wrong = {(rank, b if rank == a else a): theirs.wrong for rank, theirs in enumerate(everyone) if theirs.wrong}
        return self._measured(row, sum(theirs.checked for theirs in everyone), wrong)

    def _exchange(self, pattern: str, count: int) -> Measured:
        config, env = self.config, self.env
        took: list[float] = []
        for run in range(max(config.warmup, 0 if self.budget is None else 2)):
            took.append(sum(self._run(pattern, count, run, {})[0]))
        iterations = config.iterations
        if self.budget is not None:
            iterations = gather(max(1, min(exchanges.MOST, int(self.budget / took[-1]))), env)[0]
        seconds: list[float] = []
        wrong: dict[int, int] = {}
        messages = checked = 0
        for iteration in range(iterations):
            times, sent, compared = self._run(pattern, count, config.warmup + iteration, wrong)
            seconds += times
            messages += sent
            checked += compared
        everyone = gather((messages, checked, wrong), env)
        slowest = torch.tensor(bench.slowest(seconds, env)).view(iterations, -1).sum(1).tolist()
        messages = sum(messages for messages, *_ in everyone) // iterations
        row = self._row(pattern, count, messages, slowest)
        size = count * self.values.dtype.itemsize
        row |= {"window": 1, "latency": None, "bandwidth": messages * size / row["seconds"]["median"]}
        found = {(rank, peer): bad for rank, (*_, theirs) in enumerate(everyone) for peer, bad in theirs.items()}
        return self._measured(row, sum(checked for _, checked, _ in everyone), found)

    def _run(self, pattern: str, count: int, run: int, wrong: dict[int, int]) -> tuple[list[float], int, int]:
        seconds, messages, checked = [], 0, 0
        for exchange in EXCHANGES[pattern](Case(self.env.rank, self.env.world_size, count, self.values, run)):
            dist.barrier()
            seconds.append(bench.timed(self.env.device, exchange.run, exchange))
            messages += len(exchange.sends)
            for receipt in exchange.receipts:
                checked += count
                if bad := bench.count_wrong(receipt.buffer, receipt.expected):
                    wrong[receipt.peer] = wrong.get(receipt.peer, 0) + bad
        return seconds, messages, checked

    def _row(self, pattern: str, count: int, messages: int, seconds: Sequence[float]) -> dict[str, Any]:
        return {
            "pattern": pattern, "size": count * self.values.dtype.itemsize, "count": count, "dtype": self.config.dtype,
            "ranks": list(self.pair) if pattern in exchanges.PATTERNS else self.env.world_size, "messages": messages,
            "iterations": len(seconds), "seconds": bench.spread(seconds),
        }  # fmt: skip

    def _measured(self, row: dict[str, Any], checked: int, wrong: dict[tuple[int, int], int]) -> Measured:
        # `wrong` has the wrong elements by receiving and sending rank
        faults = tuple(
            f"{row['pattern']}: {bad} wrong elements of {row['count']} a message arrived on "
            f"{name_ranks([to], self.hosts)} from {name_ranks([source], self.hosts)}"
            for (to, source), bad in wrong.items()
        )
        return Measured({**row, "wrong": sum(wrong.values()), "checked": checked}, faults)
