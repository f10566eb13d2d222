"""Formats the table of a collective sweep for a terminal of 80 columns, line by line, to be printed live.

The columns are those of nccl-tests. Values that are equal in all rows of a table (type, redop, root) are in its title.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from workloads.names import REDUCING

Row = Mapping[str, Any]


def title(operation: str, kind: str, ranks: str, dtype: str, redop: str, root: int | None, async_op: bool) -> str:
    """Returns the title of a table: `all_reduce: world (4 ranks), float32, sum`.

    `kind` is the kind of the groups, and `ranks` the number of ranks, and of groups if there are several (`2 x 3`).
    `redop` and `root` are printed only if the operation has them.
    """
    words = [f"{operation}: {kind} ({ranks} {'rank' if ranks == '1' else 'ranks'})"]
    if operation != "barrier":
        words.append(dtype)
    if operation in REDUCING:
        words.append(redop)
    if root is not None:
        words.append(f"root {root}")
    return ", ".join(words + (["async"] if async_op else []))


def head() -> list[str]:
    """Returns two header lines: out-of-place and in-place, and below them the columns; speeds in 10^9 bytes/s."""
    columns = f"{'time(us)':>8} {'algbw':>5} {'busbw':>5} {'#wrong':>6}"
    return [f"{'':20} {'out-of-place, GB/s':^27} {'in-place, GB/s':^27}".rstrip(),
            f"{'size(B)':>10} {'count':>9} {columns} {columns}"]  # fmt: skip


def line(out: Row | None, in_place: Row | None) -> str:
    """Returns the line of one size.

    out: the row of the out-of-place operation; None: not measured.
    in_place: the row of the in-place operation; None: not measured.
    """
    row = out or in_place
    assert row is not None
    size = (row["size"], row["count"]) if row["size"] else ("-", "-")
    return f"{size[0]:>10} {size[1]:>9} {_cells(out)} {_cells(in_place)}".rstrip()


def _cells(row: Row | None) -> str:
    if row is None:
        return f"{'-':>8} {'-':>5} {'-':>5} {'-':>6}"
    wrong = "-" if row["wrong"] is None else row["wrong"]
    time = _microseconds(row["seconds"]["median"])
    return f"{time:>8} {_speed(row['algbw']):>5} {_speed(row['busbw']):>5} {wrong:>6}"


def _microseconds(seconds: float) -> str:
    value = seconds * 1e6
    return f"{value:.1f}" if value < 1e6 - 1 else f"{value:.0f}"


def _speed(value: float | None) -> str:
    if value is None:
        return "-"
    speed = value / 1e9
    for limit, digits in ((9.9995, 3), (99.995, 2), (999.95, 1)):
        if speed < limit:
            return f"{speed:.{digits}f}"
    return f"{speed:.0f}"


def summary(rows: Sequence[Row], roof: float | None, of: str) -> str:
    """Returns the last line of a table: `average busbw 0.431 GB/s; the best is 43 % of the socket's 2.4 GB/s`.

    With one row the line is `busbw is 43 % of the socket's 2.4 GB/s`; empty if no row has a busbw.

    roof: speed of the hardware in bytes/s; None: not measured.
    of: the hardware that `roof` is the speed of: socket or memory.
    """
    speeds = [row["busbw"] for row in rows if row.get("busbw")]
    if not speeds:
        return ""
    best, average = max(speeds), statistics.fmean(speeds)
    text = f"average busbw {average / 1e9:.3g} GB/s"
    if not roof:
        return text
    part = f"is {best / roof * 100:.0f} % of the {of}'s {roof / 1e9:.3g} GB/s"
    return f"busbw {part}" if len(speeds) == 1 else f"{text}; the best {part}"
