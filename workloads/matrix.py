"""The matrix of p2p: every link between nodes measured, slow ones named, and the nodes that explain them.

All pairs are measured in rounds that never share a node, so that no pair waits for another one's link. Those that look
slow are measured again, up to AGAIN times and with nobody else on the network but their like; the best values count, so
a moment's noise is not taken for a bad link.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from launcher.formatting import format_size
from workloads import bench, links, pairs
from workloads.ranks import gather

if TYPE_CHECKING:
    from launcher import Env
    from launcher.config.schema import P2P

AGAIN = 3  # how often slow pairs are measured again
TRIPS, WINDOWS = 20, 5  # most round trips and windows of one measurement of a pair
ROOM = 8 * 2**20  # bytes of buffers that a rank has for them


@dataclass
class Seen:
    """What one rank has measured: by (source, destination) latency in seconds and bandwidth in bytes/s, and what was
    wrong with what it received."""

    latency: dict[links.Pair, float] = field(default_factory=dict)
    bandwidth: dict[links.Pair, float] = field(default_factory=dict)
    checked: int = 0
    wrong: Counter[links.Pair] = field(default_factory=Counter)

    def add(self, other: Seen) -> None:
        """The better one of two measurements of the same counts."""
        for key, latency in other.latency.items():
            self.latency[key] = min(latency, self.latency.get(key, latency))
        for key, bandwidth in other.bandwidth.items():
            self.bandwidth[key] = max(bandwidth, self.bandwidth.get(key, bandwidth))
        self.checked += other.checked
        self.wrong.update(other.wrong)


@dataclass(frozen=True)
class Sizes:
    """Elements of a message for latencies and of one for bandwidths, and how many of these are sent at once."""

    small: int
    large: int
    window: int


@dataclass(frozen=True)
class Matrix:
    """A matrix, and what it tells.

    Attributes:
        ranks: those that were measured, one row each.
        labels: a name for each that no other has: its host, or host and rank.
        hosts: their hosts.
        seen: what was measured, by rows.
        sizes: of the messages in bytes: for latencies, and for bandwidths.
        slow: the slow pairs, by rows.
        suspects: nodes that explain them.
        rounds: in how many rounds all pairs were measured.
        checked, wrong: elements of messages that were compared, and those that were wrong, by (to, from) rank.
        note: why there is no comparison with the baseline, if one was asked for.
    """

    ranks: Sequence[int]
    labels: Sequence[str]
    hosts: Sequence[str]
    seen: links.Measured
    sizes: tuple[int, int]
    slow: Sequence[links.Slow]
    suspects: Sequence[int]
    rounds: int
    checked: int
    wrong: Mapping[links.Pair, int]
    note: str = ""

    @property
    def suspected(self) -> list[str]:
        """The suspects' hosts (where several simulated nodes have one name: their labels)."""
        return [self.labels[list(self.seen.nodes).index(node)].partition(":")[0] for node in self.suspects]

    @property
    def exclude(self) -> str:
        """The suspects as a list in Slurm's form; empty where names do not tell nodes apart."""
        told_apart = len(set(zip(self.hosts, self.seen.nodes, strict=True))) == len(set(self.hosts))
        return links.compress(self.suspected) if told_apart else ""

    def as_dict(self) -> dict[str, Any]:
        """For results.json."""
        between, within = links.usual(self.seen), links.usual(self.seen, within=True)
        return {
            "ranks": list(self.ranks),
            "hosts": list(self.labels),
            "size": self.sizes[1],
            "latency_size": self.sizes[0],
            "latency": [list(row) for row in self.seen.latency],
            "bandwidth": [list(row) for row in self.seen.bandwidth],
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
                for slow in self.slow
            ],
            "suspects": self.suspected,
            "exclude": self.exclude,
        }


def measure(config: P2P, sizes: Sequence[int], before: Mapping[str, Any] | None, env: Env) -> Matrix:
    """Measure the links between all nodes, or all ranks. All ranks must call it.

    Args:
        config: of the workload.
        sizes: bytes of messages; the least is taken for latencies, the largest for bandwidths.
        before: the matrix of an earlier run, as `Matrix.as_dict` makes it.
        env: this rank's place.
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

    everything, rounds = Seen(), list(links.rounds_of(by_node))
    wanted, slow, seen = rounds, [], None
    for _ in range(1 + AGAIN):
        mine = Seen()
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
    assert seen is not None  # the loop above runs
    return Matrix(
        ranks, labels, hosts, seen, in_bytes, slow, links.suspects(seen, slow), len(rounds), everything.checked,
        everything.wrong, note,
    )  # fmt: skip


def between(a: int, b: int, sizes: Sizes, config: P2P, values: bench.Values, env: Env) -> Seen:
    """Latency of a pair, and bandwidth in either direction; on its two ranks only."""
    seen = Seen()
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
    """Hosts; with the node's number where nodes share a name, and with the rank where they have several."""
    shared = len(set(zip(hosts, nodes, strict=True))) > len(set(hosts))
    names = [f"{host}#{node}" if shared else host for host, node in zip(hosts, nodes, strict=True)]
    several = len(set(nodes)) < len(ranks)
    return [f"{name}:{rank}" if several else name for name, rank in zip(names, ranks, strict=True)]


def _square(ranks: Sequence[int], found: Mapping[links.Pair, float]) -> list[list[float | None]]:
    return [[found.get((a, b)) for b in ranks] for a in ranks]


def _earlier(
    before: Mapping[str, Any] | None, labels: Sequence[str], sizes: tuple[int, int]
) -> tuple[dict[links.Pair, links.Usual], str]:
    """What an earlier run measured between the same hosts, by rows of this one; and why there is nothing."""
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
    """What was wrong, in words."""
    hosts = list(all_hosts)
    return [
        f"matrix: {count} wrong elements arrived on rank {to} on {hosts[to]} from rank {source} on {hosts[source]}"
        for (to, source), count in sorted(matrix.wrong.items())
    ]
