"""The matrix of p2p: measures the link between each two nodes, finds slow links and the suspects, and prints them.

A matrix is a list of rows: `matrix[a][b]` is measured from a to b; None: not measured.
"""

from __future__ import annotations

import heapq
import io
import math
import statistics
import textwrap
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch.distributed as dist

from launcher.files import run_files
from launcher.formatting import format_size
from workloads import bench, exchanges, results
from workloads.ranks import gather

if TYPE_CHECKING:
    from launcher import Env
    from launcher.config.schema import P2P


Values = Sequence[Sequence[float | None]]
Pair = tuple[int, int]

FEW = 8  # largest number of nodes at which one bad node is in so many pairs that it would shift their median


def tournament(players: int) -> list[list[Pair]]:
    """Returns rounds of pairs of the players 0 to `players` - 1. Each pair occurs once, and no player twice in a round.

    The circle method: one player stays, the others move on by one seat per round.
    """
    seats = list(range(players + players % 2))  # with an empty seat at the end if the number is odd
    rounds = []
    for _ in seats[1:] if players > 1 else []:
        half = len(seats) // 2
        met = zip(seats[:half], seats[: half - 1 : -1], strict=True)
        rounds.append([(min(a, b), max(a, b)) for a, b in met if max(a, b) < players])
        seats[1:] = [seats[-1], *seats[1:-1]]
    return rounds


def rounds_of(nodes: Sequence[Sequence[int]]) -> Iterator[list[Pair]]:
    """Yields rounds that together have all pairs of ranks. The pairs of one round share no node.

    The rounds of `tournament` are repeated for each pair of ranks on two nodes; at the end come pairs within nodes.
    """
    for met in tournament(len(nodes)):
        yield from _in_turns([list(product(nodes[a], nodes[b])) for a, b in met])
    yield from _in_turns([list(combinations(ranks, 2)) for ranks in nodes])


def _in_turns(pairs: Sequence[Sequence[Pair]]) -> Iterator[list[Pair]]:
    for turn in range(max(map(len, pairs), default=0)):
        yield [(min(theirs[turn]), max(theirs[turn])) for theirs in pairs if turn < len(theirs)]


@dataclass(frozen=True)
class Measured:
    nodes: Sequence[int]  # node rank of each rank; the matrices have one row and one column for each rank
    latency: Values  # matrix of latencies in seconds
    bandwidth: Values  # matrix of bandwidths in bytes/s

    def pairs(self) -> dict[Pair, tuple[float, float]]:
        """Returns latency and bandwidth of each measured pair, each from the worse of the pair's two directions."""
        found = {}
        for a, b in combinations(range(len(self.nodes)), 2):
            times = [value for value in (self.latency[a][b], self.latency[b][a]) if value is not None]
            speeds = [value for value in (self.bandwidth[a][b], self.bandwidth[b][a]) if value is not None]
            if times and speeds:
                found[a, b] = (max(times), min(speeds))
        return found

    def within(self, pair: Pair) -> bool:
        """Returns whether both ranks are on one node. Such pairs are compared only with each other."""
        return self.nodes[pair[0]] == self.nodes[pair[1]]


@dataclass(frozen=True)
class Usual:
    """The expected values of a pair."""

    latency: float  # seconds
    bandwidth: float  # bytes/s


@dataclass(frozen=True)
class Slow:
    """A slow pair."""

    pair: Pair  # indices of the two ranks' rows in the matrix
    latency: float  # measured latency in seconds
    bandwidth: float  # measured bandwidth in bytes/s
    measure: str  # the worse of the two, `latency` or `bandwidth`
    ratio: float  # speed by this measure divided by the expected speed, below 1
    against: str  # source of the expected value: median or baseline


@dataclass(frozen=True)
class Limits:
    """The limits beyond which a pair is slow."""

    bandwidth: float  # the pair is slow below this share of the expected bandwidth
    latency: float  # the pair is slow above this multiple of the expected latency

    def worst(self, latency: float, bandwidth: float, usual: Usual) -> tuple[float, str] | None:
        """Returns a slow pair's lower ratio of speed to the usual speed, and its measure; None: it is not slow."""
        slow = []
        if bandwidth < self.bandwidth * usual.bandwidth:
            slow.append((bandwidth / usual.bandwidth, "bandwidth"))
        if latency > self.latency * usual.latency:
            slow.append((usual.latency / latency, "latency"))
        return min(slow, default=None)


def usual(measured: Measured, within: bool = False) -> Usual | None:
    """Returns the medians over the pairs between nodes, or over the pairs `within` nodes; None: there are no pairs.

    With few nodes one bad node is in many of the pairs (in 2 of 3, in 3 of 6, ...), and would determine the median. So
    with up to FEW nodes the medians exclude the node that worsens them most. Of an even number of values, the better
    one of the middle two is the median.
    """
    pairs = {pair: values for pair, values in measured.pairs().items() if measured.within(pair) == within}
    if not pairs:
        return None
    left_out = [None, *set(measured.nodes)] if len(set(measured.nodes)) <= FEW else [None]
    latencies, bandwidths = [], []
    for node in left_out:
        rest = [
            values for (a, b), values in pairs.items() if node not in (measured.nodes[a], measured.nodes[b])
        ]  # fmt: skip
        if rest:
            latencies.append(statistics.median_low(latency for latency, _ in rest))
            bandwidths.append(statistics.median_high(bandwidth for _, bandwidth in rest))
    return Usual(min(latencies), max(bandwidths))


def slow_pairs(measured: Measured, limits: Limits) -> list[Slow]:
    """Returns the pairs that are slow compared with the median of their kind, the slowest first."""
    expected = {within: usual(measured, within) for within in (False, True)}
    return _slow(measured, limits, lambda pair: expected[measured.within(pair)], "median")


def slow_since(measured: Measured, before: Mapping[Pair, Usual], limits: Limits) -> list[Slow]:
    """Returns the pairs that are slow compared with an earlier run, the slowest first."""
    return _slow(measured, limits, before.get, "baseline")


def _slow(measured: Measured, limits: Limits, expected: Callable[[Pair], Usual | None], against: str) -> list[Slow]:
    found = []
    for pair, (latency, bandwidth) in measured.pairs().items():
        there = expected(pair)
        if there is not None and (worst := limits.worst(latency, bandwidth, there)):
            found.append(Slow(pair, latency, bandwidth, worst[1], worst[0], against))
    return sorted(found, key=lambda slow: (slow.ratio, slow.pair))


def suspects(measured: Measured, slow: Iterable[Slow]) -> list[int]:
    """Returns the nodes that are probably the cause of slow pairs, the most suspicious first.

    | a node's slow pairs | result |
    |---|---|
    | more than half of its pairs with nodes that are not suspects, and with at least two nodes | a suspect |
    | fewer | not a suspect: the link is slow |

    Suspects are found one at a time, first the node with the largest share of slow pairs. Its pairs no longer count for
    the other nodes.
    """
    nodes = measured.nodes
    pairs = {pair for pair in measured.pairs() if not measured.within(pair)}
    count = Counter(nodes[end] for pair in pairs for end in pair)
    bad: dict[int, dict[Pair, float]] = {}  # by node, its slow pairs with their ratios
    for each in slow:
        if each.pair in pairs:
            for end in each.pair:
                bad.setdefault(nodes[end], {})[each.pair] = each.ratio
    found: list[int] = []
    while True:
        shares = []
        for node, ratios in bad.items():
            partners = {nodes[end] for pair in ratios for end in pair} - {node}
            if len(partners) > 1 and 2 * len(ratios) > count[node]:
                shares.append((-len(ratios) / count[node], math.fsum(ratios.values()) / len(ratios), node))
        if not shares:
            return found
        worst = min(shares)[2]
        found.append(worst)
        for rank in (rank for rank, node in enumerate(nodes) if node == worst):
            for other, node in enumerate(nodes):
                pair = (min(rank, other), max(rank, other))
                if pair in pairs:
                    pairs.discard(pair)
                    count[node] -= 1
                    bad.get(node, {}).pop(pair, None)
        del bad[worst]


# -- Measuring
#
# All pairs are measured in rounds whose pairs share no node, so that no pair waits for another one's link. Slow pairs
# are measured up to AGAIN more times, without the other pairs. The best values count, so that noise is not mistaken for
# a bad link.


AGAIN = 3  # most times that slow pairs are measured again
TRIPS, WINDOWS = 20, 5  # most round trips, and most windows of messages, in one measurement of a pair
ROOM = 8 * 2**20  # bytes of message buffers on each rank
WRITTEN_ROWS = 256  # most rows of a matrix in results.json
WRITTEN_SLOW = 10_000  # most slow pairs there


@dataclass
class Measurements:
    """The measurements of one rank, or of all ranks merged."""

    latency: dict[Pair, float] = field(default_factory=dict)  # seconds, by source and destination rank
    bandwidth: dict[Pair, float] = field(default_factory=dict)  # bytes/s, by source and destination rank
    checked: int = 0  # number of received elements that were compared
    wrong: Counter[Pair] = field(default_factory=Counter)  # number of wrong elements, by receiving and sending rank

    def add(self, other: Measurements) -> None:
        """Adds other measurements, and keeps the better values."""
        for key, latency in other.latency.items():
            self.latency[key] = min(latency, self.latency.get(key, latency))
        for key, bandwidth in other.bandwidth.items():
            self.bandwidth[key] = max(bandwidth, self.bandwidth.get(key, bandwidth))
        self.checked += other.checked
        self.wrong.update(other.wrong)


@dataclass(frozen=True)
class Matrix:
    """A matrix, and the conclusions from it."""

    ranks: Sequence[int]  # the measured ranks; each has one row
    labels: Sequence[str]  # a unique name for each row: its host, or host and rank
    hosts: Sequence[str]  # host name of each row
    seen: Measured  # the measurements, by rows
    sizes: tuple[int, int]  # bytes of a message for latency, and for bandwidth
    slow: Sequence[Slow]  # the slow pairs of rows
    suspects: Sequence[int]  # node ranks of the nodes that are probably the cause
    rounds: int  # number of rounds in which all pairs were measured once
    checked: int  # number of received elements that were compared
    wrong: Mapping[Pair, int]  # number of wrong elements, by receiving and sending rank
    note: str = ""  # why nothing was compared with the baseline; empty: it was, or there is none

    @property
    def suspected(self) -> list[str]:
        """The suspects' host names; `HOST#NODE` if several nodes have this host name."""
        return [self.labels[list(self.seen.nodes).index(node)].partition(":")[0] for node in self.suspects]

    @property
    def exclude(self) -> str:
        """The suspects' host names, with commas; empty: there are none, or nodes share a host name."""
        unique = len(set(zip(self.hosts, self.seen.nodes, strict=True))) == len(set(self.hosts))
        return ",".join(self.suspected) if unique else ""

    def as_dict(self) -> dict[str, Any]:
        """Returns the matrix in JSON types, for results.json: bytes, seconds and bytes/s.

        `size` and `latency_size` are the bytes of a message for bandwidth and for latency; `hosts` are the `labels` of
        the rows, as are `a` and `b` of each slow pair; `median` is over the pairs between nodes. With more rows than
        WRITTEN_ROWS, a value is the worst of `block` x `block` pairs, and `write` writes them all; of more slow pairs
        than WRITTEN_SLOW, these are the slowest.
        """
        block = math.ceil(len(self.ranks) / WRITTEN_ROWS)
        slowest = heapq.nsmallest(WRITTEN_SLOW, self.slow, key=lambda each: each.ratio)
        between, within = usual(self.seen), usual(self.seen, within=True)
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
            "slow": [self._written(slow) for slow in (slowest if len(self.slow) > WRITTEN_SLOW else self.slow)],
            "slow_pairs": len(self.slow),
            "suspects": self.suspected,
            "exclude": self.exclude,
        }

    def _written(self, slow: Slow) -> dict[str, Any]:
        a, b = slow.pair
        values = {name: value for name, value in vars(slow).items() if name != "pair"}
        return {"a": self.labels[a], "b": self.labels[b], "ranks": [self.ranks[a], self.ranks[b]], **values}

    def write(self, folder: Path) -> None:
        """Writes all pairs to a file, if results.json has them in blocks: latency and bandwidth, float32 [2, n, n]."""
        if len(self.ranks) > WRITTEN_ROWS:
            file = io.BytesIO()
            np.save(file, np.array([self.seen.latency, self.seen.bandwidth], np.float32))
            run_files.replace(folder / results.MATRIX, file.getvalue(), sync=False)


def measure(config: P2P, sizes: Sequence[int], before: Mapping[str, Any] | None, env: Env) -> Matrix:
    """Returns the measured links between all nodes, or all ranks. All ranks must call it.

    sizes: bytes; the smallest is used for latency, the largest for bandwidth. before: `as_dict` of an earlier run.
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
    in_bytes = (small * values.dtype.itemsize, large * values.dtype.itemsize)
    earlier, note = _earlier(before, labels, in_bytes)
    limits = Limits(config.slow, config.slow_latency)
    since = Limits(1 - config.tolerance, config.slow_latency)

    everything, rounds = Measurements(), list(rounds_of(by_node))
    wanted, slow, seen = rounds, [], None
    for _ in range(1 + AGAIN):
        mine = Measurements()
        for met in wanted:
            dist.barrier()
            for a, b in met:
                if env.rank in (a, b):
                    mine.add(between((a, b), (small, large), config, values, env))
        for theirs in gather(mine, env):
            everything.add(theirs)
        seen = Measured(places, _square(ranks, everything.latency), _square(ranks, everything.bandwidth))
        slow = [*slow_since(seen, earlier, since), *slow_pairs(seen, limits)]
        again = {(ranks[each.pair[0]], ranks[each.pair[1]]) for each in slow}
        wanted = [left for met in rounds if (left := [pair for pair in met if pair in again])]
        if not wanted:
            break
    assert seen is not None  # set in the loop
    return Matrix(
        ranks, labels, hosts, seen, in_bytes, slow, suspects(seen, slow), len(rounds), everything.checked,
        everything.wrong, note,
    )  # fmt: skip


def between(pair: Pair, counts: tuple[int, int], config: P2P, values: bench.Values, env: Env) -> Measurements:
    """Returns the latency between two ranks, which call it, and the bandwidth in both directions.

    counts: elements of a message for latency, and for bandwidth.
    """
    (a, b), (small, large), seen = pair, counts, Measurements()
    peer = b if env.rank == a else a
    trips = exchanges.Runs(min(config.iterations, TRIPS), config.warmup, more=False)
    windows = exchanges.Runs(min(config.iterations, WINDOWS), min(config.warmup, 1), window=config.window, more=False)
    timed = exchanges.pingpong(exchanges.Pair(env.rank, a, b, small, values, "matrix", ROOM), trips)
    found = [timed]
    if timed.seconds:
        seen.latency[a, b] = seen.latency[b, a] = statistics.median(timed.seconds) / 2
    for source, to in ((a, b), (b, a)):
        way = exchanges.Pair(env.rank, source, to, large, values, "matrix", ROOM)
        timed = exchanges.bandwidth(way, windows)
        found.append(timed)
        if timed.seconds:
            seen.bandwidth[source, to] = config.window * way.size / statistics.median(timed.seconds)
    seen.checked = sum(timed.checked for timed in found)
    if wrong := sum(timed.wrong for timed in found):
        seen.wrong[env.rank, peer] += wrong
    return seen


def _labels(ranks: Sequence[int], hosts: Sequence[str], nodes: Sequence[int]) -> list[str]:
    shared = len(set(zip(hosts, nodes, strict=True))) > len(set(hosts))
    names = [f"{host}#{node}" if shared else host for host, node in zip(hosts, nodes, strict=True)]
    several = len(set(nodes)) < len(ranks)
    return [f"{name}:{rank}" if several else name for name, rank in zip(names, ranks, strict=True)]


def _blocks(values: Values, block: int, worst: np.ufunc) -> list[list[float | None]]:
    begins = range(0, len(values), block)
    cells = worst.reduceat(worst.reduceat(np.array(values, float), begins, axis=0), begins, axis=1)
    return [[None if math.isnan(cell) else cell for cell in row] for row in cells.tolist()]


def _square(ranks: Sequence[int], found: Mapping[Pair, float]) -> list[list[float | None]]:
    return [[found.get((a, b)) for b in ranks] for a in ranks]


def _earlier(
    before: Mapping[str, Any] | None, labels: Sequence[str], sizes: tuple[int, int]
) -> tuple[dict[Pair, Usual], str]:
    if before is None:
        return {}, ""
    if (before["latency_size"], before["size"]) != sizes:
        theirs = f"{format_size(before['latency_size'])} and {format_size(before['size'])}"
        return {}, f"the baseline's matrix has other sizes ({theirs}): not compared"
    row = {label: index for index, label in enumerate(labels)}
    theirs = before["hosts"]
    measured = Measured(range(len(theirs)), before["latency"], before["bandwidth"])
    found = {}
    for (a, b), (latency, bandwidth) in measured.pairs().items():
        if theirs[a] in row and theirs[b] in row:
            one, other = sorted((row[theirs[a]], row[theirs[b]]))
            found[one, other] = Usual(latency, bandwidth)
    return found, "" if found else "the baseline measured none of these links: not compared"


def faults(matrix: Matrix, all_hosts: Iterable[str]) -> list[str]:
    hosts = list(all_hosts)
    return [
        f"matrix: {count} wrong elements arrived on rank {to} on {hosts[to]} from rank {source} on {hosts[source]}"
        for (to, source), count in sorted(matrix.wrong.items())
    ]


# -- The printed lines: heat map, slow links, suspects, how to exclude them


ROWS = 24  # most rows of a heat map
LABEL = 16  # most characters of a row's name
CELL = 5  # characters of a cell with a percentage
NAMED = 10  # most slow pairs that are printed
WIDTH = 76  # characters of a line: 80 of a terminal, without the rank's prefix


def heat_map(labels: Sequence[str], shares: Values, slow: Collection[Pair], of: str, width: int = WIDTH) -> list[str]:
    """Returns the lines of a heat map, each at most `width` characters; the first ones are its legend.

    If there is room, cells are percentages, with a `!` for slow pairs. Otherwise a cell is one digit, tens of percent,
    and only the worst rows and columns are shown. slow: pairs of rows (a, b) with a < b. of: what 100 % is.
    """
    size = len(labels)
    number = len(str(size - 1))
    names = [f"{index:>{number}} {_shortened(label)}" for index, label in enumerate(labels)]
    indent = max(map(len, names))
    if size <= ROWS and indent + CELL * size <= width:
        lines = textwrap.wrap(f"bandwidth, row to column, % of {of}; ! slow", width)
        lines.append(" " * indent + "".join(f"{index:>{CELL - 1}} " for index in range(size)))
        for a, name in enumerate(names):
            cells = [_percent(shares[a][b], (min(a, b), max(a, b)) in slow) for b in range(size)]
            lines.append(name.ljust(indent) + "".join(cells))
        return [line.rstrip() for line in lines]

    means = [_mean(shares, row) for row in range(size)]
    worst = sorted(range(size), key=lambda row: (means[row], row))
    rows, columns = sorted(worst[:ROWS]), sorted(worst[: width - indent - 1])
    lines = textwrap.wrap(f"bandwidth, row to column, tens of % of {of}; 9: 90 or more", width)
    if len(columns) < size:
        lines.append(f"columns: the worst {len(columns)} of {size}")
    lines += [f"{names[a].ljust(indent)} {''.join(_digit(shares[a][b]) for b in columns)}" for a in rows]
    if rest := worst[ROWS:]:
        among = [share for a in rest for b in rest if (share := shares[a][b]) is not None]
        lines.append(
            f"{len(rest)} more rows" + (f": nothing below {min(among) * 100:.0f} % among them" if among else "")
        )
    return lines


def _shortened(label: str) -> str:
    return label if len(label) <= LABEL else "~" + label[1 - LABEL :]


def _percent(share: float | None, slow: bool) -> str:
    if share is None:
        return f"{'-':>{CELL - 1}} "
    return f"{min(round(share * 100), 999):>{CELL - 1}}{'!' if slow else ' '}"


def _digit(share: float | None) -> str:
    return "-" if share is None else str(min(int(share * 10), 9))


def _mean(shares: Values, row: int) -> float:
    values = [value for other in range(len(shares)) for value in (shares[row][other], shares[other][row])]
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else math.inf


def lines(matrix: Matrix, config: P2P, how_to_exclude: Callable[[str], str]) -> list[str]:
    """Returns the lines about a matrix, for a terminal of 80 columns."""
    small, large = (format_size(size) for size in matrix.sizes)
    rows = "ranks" if config.matrix.value == "ranks" else "nodes"
    rounds = "1 round" if matrix.rounds == 1 else f"{matrix.rounds} rounds"
    found = [
        f"matrix: {len(matrix.ranks)} {rows} in {rounds}, latency of {small}, bandwidth of {config.window} x {large}"
    ]
    medians = {within: usual(matrix.seen, within) for within in (False, True)}
    words = ", ".join(
        f"{one.bandwidth / 1e9:.2f} GB/s {'within' if within else 'between'} nodes"
        for within, one in medians.items()
        if one
    )
    found += heat_map(matrix.labels, shares(matrix), {slow.pair for slow in matrix.slow}, f"the median ({words})")
    if one := medians[False]:
        times = {pair: latency for pair, (latency, _) in matrix.seen.pairs().items() if not matrix.seen.within(pair)}
        worst = max(times, key=lambda pair: times[pair])
        found.append(
            f"latency between nodes: median {bench.microseconds(one.latency)} us, most "
            f"{bench.microseconds(times[worst])} us ({pair_in_words(worst, matrix)})"
        )
    if matrix.note:
        found.append(matrix.note)
    return [*found, *_verdict(matrix, config, how_to_exclude)]


def shares(matrix: Matrix) -> list[list[float | None]]:
    """Returns each bandwidth divided by the median of its kind; None: not measured, or there is no median."""
    medians = {within: usual(matrix.seen, within) for within in (False, True)}
    rows: list[list[float | None]] = []
    for a, row in enumerate(matrix.seen.bandwidth):
        rows.append([])
        for b, value in enumerate(row):
            median = medians[matrix.seen.within((a, b))]
            rows[-1].append(None if value is None or median is None else value / median.bandwidth)
    return rows


def pair_in_words(pair: Pair, matrix: Matrix) -> str:
    return f"{matrix.labels[pair[0]]} - {matrix.labels[pair[1]]}"


def _verdict(matrix: Matrix, config: P2P, how_to_exclude: Callable[[str], str]) -> list[str]:
    if not matrix.slow:
        if len(matrix.seen.pairs()) == 1 and not config.baseline:
            return ["one pair: nothing to compare it with, but the baseline of an earlier run"]
        return [
            f"no slow pair (below {config.slow * 100:g} % of the median, or over {config.slow_latency:g} x its latency)"
        ]
    found = [f"slow: {pair_in_words(slow.pair, matrix)}: {_slow_in_words(slow)}" for slow in matrix.slow[:NAMED]]
    if more := len(matrix.slow) - NAMED:
        found += [f"slow: {more} more pairs, in results.json"] if more > 0 else []
    if not matrix.suspects:
        return [*found, "no node is slow with most of its partners: links are slow, and no node"]
    found.append(f"suspects: {', '.join(matrix.suspected)}")
    if how := how_to_exclude(matrix.exclude) if matrix.exclude else "":
        found += textwrap.wrap(
            f"without them: {how}", WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        )
    return found


def _slow_in_words(slow: Slow) -> str:
    speed, time = f"{slow.bandwidth / 1e9:.2f} GB/s", f"{bench.microseconds(slow.latency)} us"
    if slow.measure == "bandwidth":
        return f"{speed}, {slow.ratio * 100:.0f} % of the {slow.against} ({time})"
    return f"{time}, {1 / slow.ratio:.1f} x the {slow.against} ({speed})"
