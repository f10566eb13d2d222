"""The matrix of p2p: measures the link between each two nodes, finds slow links and the suspects, and prints them.

A matrix is a list of rows: `matrix[a][b]` is measured from a to b; None or NaN: not measured. That of 4,096 nodes has
16.8 million values, so rank 0 alone has it and looks at it, in arrays: objects would take gigabytes on each rank.
"""

from __future__ import annotations

import heapq
import io
import math
import statistics
import textwrap
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from launcher.files import safe_io
from launcher.formatting import format_size
from launcher.worker import process_group
from workloads import benchmark_results, measurement, p2p_patterns
from workloads.across_ranks import gather

if TYPE_CHECKING:
    from launcher import Env
    from launcher.config.schema import P2P


Array: TypeAlias = npt.NDArray[np.float64]
Values = Sequence[Sequence[float | None]] | Array
Pair = tuple[int, int]

FEW = 8  # largest number of nodes at which one bad node is in so many pairs that it would shift their median


def tournament(players: int) -> Iterator[list[Pair]]:
    """Yields rounds of pairs of the players 0 to `players` - 1. Each pair occurs once, and no player twice in a round.

    The circle method: one player stays, the others move on by one seat per round.
    """
    seats = list(range(players + players % 2))  # with an empty seat at the end if the number is odd
    for _ in seats[1:] if players > 1 else []:
        half = len(seats) // 2
        met = zip(seats[:half], seats[: half - 1 : -1], strict=True)
        yield [(min(a, b), max(a, b)) for a, b in met if max(a, b) < players]
        seats[1:] = [seats[-1], *seats[1:-1]]


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

    @property
    def within(self) -> npt.NDArray[np.bool_]:
        """Which pairs of ranks are on one node. They are compared only with each other."""
        nodes = np.asarray(self.nodes)
        return np.equal.outer(nodes, nodes)

    def pairs(self) -> tuple[Array, Array]:
        """Returns latency and bandwidth of each pair (a, b) with a < b, each from the worse of its two directions; NaN:
        it was not measured."""
        latency, bandwidth = np.asarray(self.latency, float), np.asarray(self.bandwidth, float)
        times, speeds = np.fmax(latency, latency.T), np.fmin(bandwidth, bandwidth.T)
        times[~np.triu(~np.isnan(speeds), 1)] = np.nan
        speeds[np.isnan(times)] = np.nan
        return times, speeds

    def between(self) -> Array:
        """Returns the latencies in `pairs` of those between nodes."""
        times, _ = self.pairs()
        times[self.within] = np.nan
        return times


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


def usual(measured: Measured, within: bool = False) -> Usual | None:
    """Returns the medians over the pairs between nodes, or over the pairs `within` nodes; None: there are no pairs.

    With few nodes one bad node is in many of the pairs (in 2 of 3, in 3 of 6, ...), and would determine the median. So
    with up to FEW nodes the medians exclude the node that worsens them most. Of an even number of values, the better
    one of the middle two is the median.
    """
    times, speeds = measured.pairs()
    there, nodes = ~np.isnan(times) & (measured.within == within), np.asarray(measured.nodes)
    left_out = [None, *set(measured.nodes)] if len(set(measured.nodes)) <= FEW else [None]
    latencies, bandwidths = [], []
    for node in left_out:
        rest = there if node is None else there & np.logical_and.outer(nodes != node, nodes != node)
        if count := np.count_nonzero(rest):
            latencies.append(float(np.partition(times[rest], (count - 1) // 2)[(count - 1) // 2]))
            bandwidths.append(float(np.partition(speeds[rest], count // 2)[count // 2]))
    return Usual(min(latencies), max(bandwidths)) if latencies else None


def _medians(measured: Measured) -> tuple[Array, Array]:
    # Latency and bandwidth with which each pair is compared; NaN: none of its kind was measured
    nothing = Usual(math.nan, math.nan)
    inner, outer = (usual(measured, within) or nothing for within in (True, False))
    within = measured.within
    return np.where(within, inner.latency, outer.latency), np.where(within, inner.bandwidth, outer.bandwidth)


def slow_pairs(measured: Measured, least: float, most: float, before: Measured | None = None) -> list[Slow]:
    """Returns the pairs that are slow compared with an earlier run or the median of their kind, the slowest first.

    A pair is slow below `least` times the expected bandwidth, or above `most` times the expected latency.
    """
    (times, speeds), against = measured.pairs(), "median" if before is None else "baseline"
    latency, bandwidth = _medians(measured) if before is None else before.pairs()
    below, above, found = speeds < least * bandwidth, times > most * latency, []
    for pair in zip(*(each.tolist() for each in np.nonzero(below | above)), strict=True):
        ratios = {
            "bandwidth": float(speeds[pair] / bandwidth[pair]) if below[pair] else math.inf,
            "latency": float(latency[pair] / times[pair]) if above[pair] else math.inf,
        }
        measure = min(ratios, key=ratios.__getitem__)
        found.append(Slow(pair, float(times[pair]), float(speeds[pair]), measure, ratios[measure], against))
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
    pairs = ~np.isnan(measured.between())
    pairs |= pairs.T
    count: Counter[int] = Counter()
    for node, ends in zip(nodes, pairs.sum(axis=1).tolist(), strict=True):
        count[node] += ends
    bad: dict[int, dict[Pair, float]] = {}  # by node, its slow pairs with their ratios
    for each in slow:
        if pairs[each.pair]:
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
            for other in np.flatnonzero(pairs[rank]).tolist():
                count[nodes[other]] -= 1
                bad.get(nodes[other], {}).pop((min(rank, other), max(rank, other)), None)
            pairs[rank] = pairs[:, rank] = False
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


@dataclass(frozen=True)
class Link:
    """What one rank has measured of the link to another one."""

    latency: float  # seconds; NaN on the higher rank
    bandwidth: float  # bytes/s to the other rank
    checked: int  # number of received elements that were compared
    wrong: int  # number of wrong elements among these


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
            safe_io.replace(folder / benchmark_results.MATRIX, file.getvalue(), sync=False)


def measure(config: P2P, sizes: Sequence[int], before: Mapping[str, Any] | None, env: Env) -> Matrix | None:
    """Returns on rank 0 the measured links between all nodes, or all ranks; None on others. All ranks must call it.

    sizes: bytes; the smallest is used for latency, the largest for bandwidth. before: `as_dict` of an earlier run, for
    rank 0 alone.
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
    values = measurement.Values(measurement.torch_dtype(config.dtype), env.device, config.seed)
    small, large = (max(1, size // values.dtype.itemsize) for size in (min(sizes), max(sizes)))
    in_bytes = (small * values.dtype.itemsize, large * values.dtype.itemsize)
    earlier = _earlier(before, labels, places, in_bytes) if env.rank == 0 else None

    count, row = len(ranks), {rank: index for index, rank in enumerate(ranks)}
    mine = np.full((2, count), np.nan)  # latency and bandwidth from this rank to each
    checked, wrong, rounds = 0, Counter[Pair](), 0
    slow, seen, wanted = list[Slow](), None, np.ones((count, count), bool)
    for turn in range(1 + AGAIN):
        for met in rounds_of(by_node):
            left = [(a, b) for a, b in met if wanted[row[a], row[b]]]
            rounds += turn == 0
            if left:
                dist.barrier()
            for a, b in left:
                if env.rank in (a, b):
                    link, peer = between((a, b), (small, large), config, values, env), b if env.rank == a else a
                    mine[0, row[peer]] = np.fmin(mine[0, row[peer]], link.latency)
                    mine[1, row[peer]] = np.fmax(mine[1, row[peer]], link.bandwidth)
                    checked += link.checked
                    if link.wrong:
                        wrong[env.rank, peer] += link.wrong
        found, again = _collected(mine, ranks, env), None
        if found is not None and earlier is not None:
            seen = Measured(places, np.fmin(found[0], found[0].T), found[1])
            most = config.slow_latency
            slow = [*slow_pairs(seen, 1 - config.tolerance, most, earlier[0]), *slow_pairs(seen, config.slow, most)]
            again = np.array([a * count + b for a, b in (each.pair for each in slow)], np.int64)
        again = process_group.broadcast(again)
        if not again.size:
            break
        wanted = np.zeros((count, count), bool)
        wanted.flat[again] = True
        wanted |= wanted.T
    everyone = process_group.gather((checked, dict(wrong)))
    if seen is None or earlier is None:
        return None
    return Matrix(
        ranks, labels, hosts, seen, in_bytes, slow, suspects(seen, slow), rounds, sum(each for each, _ in everyone),
        {pair: bad for _, theirs in everyone for pair, bad in theirs.items()}, earlier[1],
    )  # fmt: skip


def _collected(mine: Array, ranks: Sequence[int], env: Env) -> Array | None:
    # Returns on rank 0, which is the first of `ranks`, their rows, [2, n, n]. They come one after the other: a gather
    # needs room for what each rank of the run would send, measured or not.
    if env.rank != 0:
        if env.rank in ranks:
            dist.send(torch.from_numpy(mine).flatten().view(torch.uint8).to(env.device), 0)
        return None
    found = np.empty((2, len(ranks), len(ranks)))
    found[:, 0] = mine
    data = torch.empty(mine.nbytes, dtype=torch.uint8, device=env.device)
    for index, rank in enumerate(ranks[1:], 1):
        dist.recv(data, rank)
        found[:, index] = data.cpu().view(torch.float64).view(*mine.shape).numpy()
    return found


def between(pair: Pair, counts: tuple[int, int], config: P2P, values: measurement.Values, env: Env) -> Link:
    """Returns the link of two ranks, which both call it.

    counts: elements of a message for latency, and for bandwidth.
    """
    (a, b), (small, large) = pair, counts
    trips = p2p_patterns.Runs(min(config.iterations, TRIPS), config.warmup, more=False)
    few = min(config.iterations, WINDOWS)
    windows = p2p_patterns.Runs(few, min(config.warmup, 1), window=config.window, more=False)
    found = [p2p_patterns.pingpong(p2p_patterns.Pair(env.rank, a, b, small, values, "matrix", ROOM), trips)]
    latency = statistics.median(found[0].seconds) / 2 if found[0].seconds else math.nan
    bandwidth = math.nan
    for source, to in ((a, b), (b, a)):
        way = p2p_patterns.Pair(env.rank, source, to, large, values, "matrix", ROOM)
        timed = p2p_patterns.windows(way, windows, both=False)
        found.append(timed)
        if timed.seconds:
            bandwidth = config.window * way.size / statistics.median(timed.seconds)
    return Link(latency, bandwidth, sum(timed.checked for timed in found), sum(timed.wrong for timed in found))


def _labels(ranks: Sequence[int], hosts: Sequence[str], nodes: Sequence[int]) -> list[str]:
    shared = len(set(zip(hosts, nodes, strict=True))) > len(set(hosts))
    names = [f"{host}#{node}" if shared else host for host, node in zip(hosts, nodes, strict=True)]
    several = len(set(nodes)) < len(ranks)
    return [f"{name}:{rank}" if several else name for name, rank in zip(names, ranks, strict=True)]


def _blocks(values: Values, block: int, worst: np.ufunc) -> list[list[float | None]]:
    begins = range(0, len(values), block)
    cells = worst.reduceat(worst.reduceat(np.array(values, float), begins, axis=0), begins, axis=1)
    return [[None if math.isnan(cell) else cell for cell in row] for row in cells.tolist()]


def _earlier(
    before: Mapping[str, Any] | None, labels: Sequence[str], nodes: Sequence[int], sizes: tuple[int, int]
) -> tuple[Measured, str]:
    latency, bandwidth = np.full((2, len(labels), len(labels)), np.nan)
    found = Measured(nodes, latency, bandwidth)  # with the rows of this run
    if before is None:
        return found, ""
    if (before["latency_size"], before["size"]) != sizes:
        theirs = f"{format_size(before['latency_size'])} and {format_size(before['size'])}"
        return found, f"the baseline's matrix has other sizes ({theirs}): not compared"
    row = {label: index for index, label in enumerate(labels)}
    known = [(row[label], index) for index, label in enumerate(before["hosts"]) if label in row]
    if known:
        here, there = (np.ix_(side, side) for side in zip(*known, strict=True))
        latency[here], bandwidth[here] = (np.asarray(before[of], float)[there] for of in ("latency", "bandwidth"))
    none = np.isnan(found.pairs()[0]).all()
    return found, "the baseline measured none of these links: not compared" if none else ""


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
    size, shares = len(labels), np.asarray(shares, float)
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
        least = np.fmin.reduce(shares[np.ix_(rest, rest)], axis=None)
        among = "" if math.isnan(least) else f": nothing below {least * 100:.0f} % among them"
        lines.append(f"{len(rest)} more rows{among}")
    return lines


def _shortened(label: str) -> str:
    return label if len(label) <= LABEL else "~" + label[1 - LABEL :]


def _percent(share: float, slow: bool) -> str:
    if math.isnan(share):
        return f"{'-':>{CELL - 1}} "
    return f"{min(round(share * 100), 999):>{CELL - 1}}{'!' if slow else ' '}"


def _digit(share: float) -> str:
    return "-" if math.isnan(share) else str(min(int(share * 10), 9))


def _mean(shares: Array, row: int) -> float:
    values = np.concatenate([shares[row], shares[:, row]])
    known = values[~np.isnan(values)].tolist()
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
        times = matrix.seen.between()
        a, b = divmod(int(np.nanargmax(times)), len(times))
        found.append(
            f"latency between nodes: median {measurement.microseconds(one.latency)} us, most "
            f"{measurement.microseconds(times[a, b])} us ({pair_in_words((a, b), matrix)})"
        )
    if matrix.note:
        found.append(matrix.note)
    return [*found, *_verdict(matrix, config, how_to_exclude)]


def shares(matrix: Matrix) -> Array:
    """Returns each bandwidth divided by the median of its kind; NaN: not measured, or there is no median."""
    return np.asarray(matrix.seen.bandwidth, float) / _medians(matrix.seen)[1]


def pair_in_words(pair: Pair, matrix: Matrix) -> str:
    return f"{matrix.labels[pair[0]]} - {matrix.labels[pair[1]]}"


def _verdict(matrix: Matrix, config: P2P, how_to_exclude: Callable[[str], str]) -> list[str]:
    if not matrix.slow:
        if np.count_nonzero(~np.isnan(matrix.seen.pairs()[0])) == 1 and not config.baseline:
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
    speed, time = f"{slow.bandwidth / 1e9:.2f} GB/s", f"{measurement.microseconds(slow.latency)} us"
    if slow.measure == "bandwidth":
        return f"{speed}, {slow.ratio * 100:.0f} % of the {slow.against} ({time})"
    return f"{time}, {1 / slow.ratio:.1f} x the {slow.against} ({speed})"
