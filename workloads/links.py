"""Decides in which order links are measured, which links are slow, and which nodes are the cause.

Free of torch. A matrix is a list of rows: `matrix[a][b]` is measured from a to b; None: not measured.
"""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product

Matrix = Sequence[Sequence[float | None]]
Pair = tuple[int, int]

FEW = 8  # largest number of nodes at which one bad node is in so many pairs that it would shift their median


def tournament(players: int) -> list[list[Pair]]:
    """Returns rounds of pairs of the players 0 to `players` - 1. Each pair occurs once, and no player twice in a round.

    The circle method: one player stays, the others move on by one seat per round. An even number of players takes
    `players` - 1 rounds. With an odd number, one player pauses in each of `players` rounds.
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

    With one rank on each node these are the rounds of `tournament`. With more ranks, each of these rounds is repeated
    for each pair of ranks on the two nodes, and at the end come the pairs within each node.
    """
    for met in tournament(len(nodes)):
        yield from _in_turns([list(product(nodes[a], nodes[b])) for a, b in met])
    yield from _in_turns([list(combinations(ranks, 2)) for ranks in nodes])


def _in_turns(pairs: Sequence[Sequence[Pair]]) -> Iterator[list[Pair]]:
    for turn in range(max(map(len, pairs), default=0)):
        yield [(min(theirs[turn]), max(theirs[turn])) for theirs in pairs if turn < len(theirs)]


@dataclass(frozen=True)
class Measured:
    """Measurements between ranks."""

    nodes: Sequence[int]  # node rank of each rank; the matrices have one row and one column for each rank
    latency: Matrix  # matrix of latencies in seconds
    bandwidth: Matrix  # matrix of bandwidths in bytes/s

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
        """Returns whether both ranks of a pair are on one node. Such pairs are compared only with each other."""
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
        """Returns a slow pair's lower ratio of speed to the usual speed, and its measure (`latency` or `bandwidth`).

        None: the pair is not slow. Latencies are in seconds, bandwidths in bytes/s.
        """
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
    """Returns the pairs that are slow compared with the medians of their kind (within or between nodes), the slowest
    first."""
    expected = {within: usual(measured, within) for within in (False, True)}
    return _slow(measured, limits, lambda pair: expected[measured.within(pair)], "median")


def slow_since(measured: Measured, before: Mapping[Pair, Usual], limits: Limits) -> list[Slow]:
    """Returns the pairs that are slow compared with an earlier run, the slowest first.

    before: values of the earlier run; a pair without one is not compared.
    """
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


_NUMBERED = re.compile(r"(.*?)([0-9]+)([^0-9]*)", re.DOTALL)


def compress(hosts: Iterable[str]) -> str:
    """Returns host names as a Slurm node list (`node[3,7-9],login1`), without duplicates.

    The last number of a name is put into brackets. If numbers have leading zeros (`n08`, `n10`), those of each width
    have their own brackets.
    """
    numbered: dict[tuple[str, str], list[str]] = {}
    plain: list[str] = []
    for host in dict.fromkeys(hosts):
        if match := _NUMBERED.fullmatch(host):
            numbered.setdefault((match[1], match[3]), []).append(match[2])
        else:
            plain.append(host)
    texts = []
    for (before, after), digits in numbered.items():
        padded = any(text.startswith("0") and len(text) > 1 for text in digits)
        for width in sorted({len(text) for text in digits}) if padded else [1]:
            numbers = sorted(int(text) for text in digits if not padded or len(text) == width)
            ranges = ",".join(_ranges(numbers, width))
            texts.append(f"{before}[{ranges}]{after}" if len(numbers) > 1 else f"{before}{ranges}{after}")
    return ",".join([*texts, *plain])


def _ranges(numbers: Sequence[int], width: int) -> Iterator[str]:
    first = last = numbers[0]
    for number in [*numbers[1:], None]:
        if number == last + 1:
            last = number
            continue
        yield f"{first:0{width}}" if first == last else f"{first:0{width}}-{last:0{width}}"
        if number is not None:
            first = last = number
