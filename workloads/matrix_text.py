"""Makes the printed lines about a matrix of links: heat map, slow pairs, suspects and how to exclude them."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import TYPE_CHECKING

from launcher.formatting import format_size
from workloads import bench, links
from workloads.heat import heat_map
from workloads.matrix import Matrix

if TYPE_CHECKING:
    from launcher.config.schema import P2P

NAMED = 10  # most slow pairs that are printed
WIDTH = 76  # characters of a line: 80 of a terminal, without the rank's prefix


def lines(matrix: Matrix, config: P2P, how_to_exclude: Callable[[str], str]) -> list[str]:
    """Returns the lines about a matrix, for a terminal of 80 columns.

    how_to_exclude: returns text on how the next run can exclude nodes (see launcher.worker.node_exclusion).
    """
    small, large = (format_size(size) for size in matrix.sizes)
    rows = "ranks" if config.matrix.value == "ranks" else "nodes"
    rounds = "1 round" if matrix.rounds == 1 else f"{matrix.rounds} rounds"
    found = [
        f"matrix: {len(matrix.ranks)} {rows} in {rounds}, latency of {small}, bandwidth of {config.window} x {large}"
    ]
    usual = {within: links.usual(matrix.seen, within) for within in (False, True)}
    words = ", ".join(
        f"{one.bandwidth / 1e9:.2f} GB/s {'within' if within else 'between'} nodes"
        for within, one in usual.items()
        if one
    )
    found += heat_map(matrix.labels, shares(matrix), {slow.pair for slow in matrix.slow}, f"the median ({words})")
    if one := usual[False]:
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
    """Returns the rows of the matrix with each bandwidth divided by the median of its kind, within or between nodes.

    None: not measured, or there is no median.
    """
    usual = {within: links.usual(matrix.seen, within) for within in (False, True)}
    rows: list[list[float | None]] = []
    for a, row in enumerate(matrix.seen.bandwidth):
        rows.append([])
        for b, value in enumerate(row):
            median = usual[matrix.seen.within((a, b))]
            rows[-1].append(None if value is None or median is None else value / median.bandwidth)
    return rows


def pair_in_words(pair: links.Pair, matrix: Matrix) -> str:
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


def _slow_in_words(slow: links.Slow) -> str:
    speed, time = f"{slow.bandwidth / 1e9:.2f} GB/s", f"{bench.microseconds(slow.latency)} us"
    if slow.measure == "bandwidth":
        return f"{speed}, {slow.ratio * 100:.0f} % of the {slow.against} ({time})"
    return f"{time}, {1 / slow.ratio:.1f} x the {slow.against} ({speed})"
