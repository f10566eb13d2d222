"""The printed lines about the matrix of links: heat map, slow links, suspects, how to exclude them."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from launcher.formatting import format_size
from workloads import bench
from workloads.matrix import Matrix, Pair, Slow, usual

if TYPE_CHECKING:
    from launcher.config.schema import P2P


ROWS = 24  # most rows of a heat map
LABEL = 16  # most characters of a row's name
CELL = 5  # characters of a cell with a percentage

Shares = Sequence[Sequence[float | None]]


def heat_map(
    labels: Sequence[str], shares: Shares, slow: Collection[tuple[int, int]], of: str, width: int = 76
) -> list[str]:
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


def _mean(shares: Shares, row: int) -> float:
    values = [value for other in range(len(shares)) for value in (shares[row][other], shares[other][row])]
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else math.inf


# -- The other lines


NAMED = 10  # most slow pairs that are printed
WIDTH = 76  # characters of a line: 80 of a terminal, without the rank's prefix


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
