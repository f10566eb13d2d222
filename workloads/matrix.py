"""The matrix of p2p: measures the link between each two nodes, and finds slow links and the nodes that cause them.

All pairs are measured in rounds whose pairs share no node, so that no pair waits for another one's link. Slow pairs are
measured up to AGAIN more times, without the other pairs. The best values count, so that noise is not mistaken for a bad
link.
"""

from __future__ import annotations

import heapq
import io
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch.distributed as dist

from launcher.files import run_files
from launcher.formatting import format_size
from workloads import bench, links, pairs, results
from workloads.ranks import gather

if TYPE_CHECKING:
    from launcher import Env
    from launcher.config.schema import P2P

AGAIN = 3  # most times that slow pairs are measured again
TRIPS, WINDOWS = 20, 5  # most round trips, and most windows of messages, in one measurement of a pair
ROOM = 8 * 2**20  # bytes of message buffers on each rank
WRITTEN_ROWS = 256  # most rows of a matrix in results.json
WRITTEN_SLOW = 10_000  # most slow pairs there


@dataclass
class Measurements:
    """The measurements of one rank, or of all ranks merged."""

    latency: dict[links.Pair, float] = field(default_factory=dict)  # seconds, by source and destination rank
    bandwidth: dict[links.Pair, float] = field(default_factory=dict)  # bytes/s, by source and destination rank
    checked: int = 0  # number of received elements that were compared
    # number of wrong elements, by receiving and sending rank
    wrong: Counter[links.Pair] = field(default_factory=Counter)

    def add(self, other: Measurements) -> None:
        """Merges other measurements into these, and keeps the better values."""
        for key, latency in other.latency.items():
            self.latency[key] = min(latency, self.latency.get(key, latency))
        for key, bandwidth in other.bandwidth.items():
            self.bandwidth[key] = max(bandwidth, self.bandwidth.get(key, bandwidth))
        self.checked += other.checked
        self.wrong.update(other.wrong)


@dataclass(frozen=True)
class Sizes:
    """The sizes of messages."""

    small: int  # elements of a message for latency
    large: int  # elements of a message for bandwidth
    window: int  # number of large messages that are sent at once


@dataclass(frozen=True)
class Matrix:
    """A matrix, and the conclusions from it."""

    ranks: Sequence[int]  # the measured ranks; each has one row
    labels: Sequence[str]  # a unique name for each row: its host, or host and rank
    hosts: Sequence[str]  # host name of each row
    seen: links.Measured  # the measurements, by rows
    sizes: tuple[int, int]  # bytes of a message for latency, and for bandwidth
    slow: Sequence[links.Slow]  # the slow pairs of rows
    suspects: Sequence[int]  # node ranks of the nodes that are probably the cause
    rounds: int  # number of rounds in which all pairs were measured once
    checked: int  # number of received elements that were compared
    wrong: Mapping[links.Pair, int]  # number of wrong elements, by receiving and sending rank
    note: str = ""  # why nothing was compared with the baseline; empty: it was, or there is none

    @property
    def suspected(self) -> list[str]:
        """The suspects' host names; `HOST#NODE` if several nodes have this host name."""
        return [self.labels[list(self.seen.nodes).index(node)].partition(":")[0] for node in self.suspects]

    @property
    def exclude(self) -> str:
        """The suspects as a Slurm node list (`node[3,7]`); empty: there are none, or nodes share a host name."""
        unique = len(set(zip(self.hosts, self.seen.nodes, strict=True))) == len(set(self.hosts))
        return links.compress(self.suspected) if unique else ""

    def as_dict(self) -> dict[str, Any]:
        """Returns the matrix in JSON types, for results.json: bytes, seconds and bytes/s.

        `size` and `latency_size` are the bytes of a message for bandwidth and for latency; `hosts` are the `labels` of
        the rows, as are `a` and `b` of each slow pair; `median` is over the pairs between nodes. With more rows than
        WRITTEN_ROWS, a value is the worst of `block` x `block` pairs, and `write` writes them all; of more slow pairs
        than WRITTEN_SLOW, these are the slowest.
        """
        block = math.ceil(len(self.ranks) / WRITTEN_ROWS)
        slowest = heapq.nsmallest(WRITTEN_SLOW, self.slow, key=lambda each: each.ratio)
        between, within = links.usual(self.seen), links.usual(self.seen, within=True)
        return {
            "ranks": list(self.ranks),
            "hosts": list(self.labels),
            "size": self.sizes[1],
            "latency_size": self.sizes[0],
            "block": block,
            "latency": _blocks(self.seen.latency, block, np.fmax),
            "bandwidth": _blocks(self.seen.bandwidth, block, np.fmin),
            "median": None if between is None else vars(between),
            "median_within_nodes": None if within is None else vars(within),
            "slow": [
                {
                    "a": self.labels[slow.pair[0]],
                    "b": self.labels[slow.pair[1]],
                    "ranks": [self.ranks[end] for end in slow.pair],
                    "bandwidth": slow.bandwidth,
                    "latency": slow.latency,
                    "measure": slow.measure,
                    "ratio": slow.ratio,
                    "against": slow.against,
                }
                for slow in (slowest if len(self.slow) > WRITTEN_SLOW else self.slow)
            ],
            "slow_pairs": len(self.slow),
            "suspects": self.suspected,
            "exclude": self.exclude,
        }

    def write(self, folder: Path) -> None:
        """Writes all pairs to a file, if results.json has them in blocks: latency and bandwidth, float32 [2, n, n]."""
        if len(self.ranks) > WRITTEN_ROWS:
            file = io.BytesIO()
            np.save(file, np.array([self.seen.latency, self.seen.bandwidth], np.float32))
            run_files.replace(folder / results.MATRIX, file.getvalue(), sync=False)


def measure(config: P2P, sizes: Sequence[int], before: Mapping[str, Any] | None, env: Env) -> Matrix:
    """Returns the measured links between all nodes, or all ranks. All ranks must call this function.

    sizes: sizes of messages in bytes; the smallest one is used for latency, the largest one for bandwidth.
    before: matrix of an earlier run, from `Matrix.as_dict`; None: there is none.
    """
    nodes: dict[int, list[int]] = {}
    for rank in range(env.world_size):
        nodes.setdefault(env.node_of(rank), []).append(rank)
    by_node = [ranks if config.matrix.value == "ranks" else ranks[:1] for ranks in nodes.values()]
    ranks = [rank for ranks in by_node for rank in ranks]
    all_hosts = gather(env.host, env)
    hosts = [all_hosts[rank] for rank in ranks]
    places = [env.node_of(rank) for rank in ranks]
    labels = _labels(ranks, hosts, places)
    values = bench.Values(bench.torch_dtype(config.dtype), env.device, config.seed)
    small, large = (max(1, size // values.dtype.itemsize) for size in (min(sizes), max(sizes)))
    counts = Sizes(small, large, config.window)
    in_bytes = (counts.small * values.dtype.itemsize, counts.large * values.dtype.itemsize)
    earlier, note = _earlier(before, labels, in_bytes)
    limits = links.Limits(config.slow, config.slow_latency)
    since = links.Limits(1 - config.tolerance, config.slow_latency)

    everything, rounds = Measurements(), list(links.rounds_of(by_node))
    wanted, slow, seen = rounds, [], None
    for _ in range(1 + AGAIN):
        mine = Measurements()
        for met in wanted:
            dist.barrier()
            for a, b in met:
                if env.rank in (a, b):
                    mine.add(between(a, b, counts, config, values, env))
        for theirs in gather(mine, env):
            everything.add(theirs)
        seen = links.Measured(places, _square(ranks, everything.latency), _square(ranks, everything.bandwidth))
        slow = [*links.slow_since(seen, earlier, since), *links.slow_pairs(seen, limits)]
        again = {(ranks[each.pair[0]], ranks[each.pair[1]]) for each in slow}
        wanted = [left for met in rounds if (left := [pair for pair in met if pair in again])]
        if not wanted:
            break
    assert seen is not None  # set in the loop
    return Matrix(
        ranks, labels, hosts, seen, in_bytes, slow, links.suspects(seen, slow), len(rounds), everything.checked,
        everything.wrong, note,
    )  # fmt: skip


def between(a: int, b: int, sizes: Sizes, config: P2P, values: bench.Values, env: Env) -> Measurements:
    """Returns the measured latency between ranks a and b, and the bandwidth in both directions. Only these call it."""
    seen = Measurements()
    peer = b if env.rank == a else a
    trips = pairs.Runs(min(config.iterations, TRIPS), config.warmup, more=False)
    windows = pairs.Runs(min(config.iterations, WINDOWS), min(config.warmup, 1), window=sizes.window, more=False)
    small = pairs.Pair(env.rank, a, b, sizes.small, values, "matrix", ROOM)
    timed = pairs.pingpong(small, trips)
    found = [timed]
    if timed.seconds:
        seen.latency[a, b] = seen.latency[b, a] = statistics.median(timed.seconds) / 2
    for source, to in ((a, b), (b, a)):
        large = pairs.Pair(env.rank, source, to, sizes.large, values, "matrix", ROOM)
        timed = pairs.bandwidth(large, windows)
        found.append(timed)
        if timed.seconds:
            seen.bandwidth[source, to] = sizes.window * large.size / statistics.median(timed.seconds)
    seen.checked = sum(timed.checked for timed in found)
    if wrong := sum(timed.wrong for timed in found):
        seen.wrong[env.rank, peer] += wrong
    return seen


def _labels(ranks: Sequence[int], hosts: Sequence[str], nodes: Sequence[int]) -> list[str]:
    shared = len(set(zip(hosts, nodes, strict=True))) > len(set(hosts))
    names = [f"{host}#{node}" if shared else host for host, node in zip(hosts, nodes, strict=True)]
    several = len(set(nodes)) < len(ranks)
    return [f"{name}:{rank}" if several else name for name, rank in zip(names, ranks, strict=True)]


def _blocks(values: links.Matrix, block: int, worst: np.ufunc) -> list[list[float | None]]:
    begins = range(0, len(values), block)
    cells = worst.reduceat(worst.reduceat(np.array(values, float), begins, axis=0), begins, axis=1)
    return [[None if math.isnan(cell) else cell for cell in row] for row in cells.tolist()]


def _square(ranks: Sequence[int], found: Mapping[links.Pair, float]) -> list[list[float | None]]:
    return [[found.get((a, b)) for b in ranks] for a in ranks]


def _earlier(
    before: Mapping[str, Any] | None, labels: Sequence[str], sizes: tuple[int, int]
) -> tuple[dict[links.Pair, links.Usual], str]:
    if before is None:
        return {}, ""
    if (before["latency_size"], before["size"]) != sizes:
        theirs = f"{format_size(before['latency_size'])} and {format_size(before['size'])}"
        return {}, f"the baseline's matrix has other sizes ({theirs}): not compared"
    row = {label: index for index, label in enumerate(labels)}
    theirs = before["hosts"]
    measured = links.Measured(range(len(theirs)), before["latency"], before["bandwidth"])
    found = {}
    for (a, b), (latency, bandwidth) in measured.pairs().items():
        if theirs[a] in row and theirs[b] in row:
            one, other = sorted((row[theirs[a]], row[theirs[b]]))
            found[one, other] = links.Usual(latency, bandwidth)
    return found, "" if found else "the baseline measured none of these links: not compared"


def faults(matrix: Matrix, all_hosts: Iterable[str]) -> list[str]:
    """Returns a text for each pair of ranks between which wrong elements arrived."""
    hosts = list(all_hosts)
    return [
        f"matrix: {count} wrong elements arrived on rank {to} on {hosts[to]} from rank {source} on {hosts[source]}"
        for (to, source), count in sorted(matrix.wrong.items())
    ]
