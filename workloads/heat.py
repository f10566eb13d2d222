"""Formats a matrix of links as a heat map of characters for a terminal."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Collection, Sequence

ROWS = 24  # most rows of a heat map
LABEL = 16  # most characters of a row's name
CELL = 5  # characters of a cell with a percentage

Shares = Sequence[Sequence[float | None]]


def heat_map(
    labels: Sequence[str], shares: Shares, slow: Collection[tuple[int, int]], of: str, width: int = 76
) -> list[str]:
    """Returns the lines of a heat map, each at most `width` characters; the first ones are its legend.

    If there is room, cells are percentages, with a `!` for slow pairs. Otherwise a cell is one digit, tens of percent,
    and only the worst rows and columns are shown.

    shares: bandwidth from row to column, divided by the median; None: not measured.
    slow: pairs of rows (a, b) with a < b that are slow.
    of: text about what 100 % is.
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
