"""The table of `status`, which fits the terminal; a run's id is never cut, for it is what one copies. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from launcher.escapes import one_line
from launcher.formatting import brief

Row = Mapping[str, Any]
WIDTH = 80  # of a terminal that does not say, and of what is no terminal


def table(rows: Sequence[Row], width: int = WIDTH) -> list[str]:
    """Lines for these rows, a head first; columns that say nothing, or for which there is no room, are left out.

    Args:
        rows: what `status --json` prints.
        width: columns of the terminal. Only ids and states may be wider.
    """
    columns = {head: [one_line(cell(row)) for row in rows] for head, cell in COLUMNS.items()}
    shown = {head: cells for head, cells in columns.items() if head in KEPT or any(each != "-" for each in cells)}
    widths = {head: max(map(len, [head, *cells])) for head, cells in shown.items()}
    for head in GIVEN_UP:
        if sum(widths.values()) + 2 * (len(widths) - 1) <= width:
            break
        widths.pop(head, None)
    lines = [list(widths), *([shown[head][number] for head in widths] for number in range(len(rows)))]
    return [
        "  ".join(f"{cell:<{widths[head]}}" for head, cell in zip(widths, line, strict=True)).rstrip() for line in lines
    ]


def _state(row: Row) -> str:
    before = row.get("before")
    return f"{row['state']} ({before.partition(' ')[0].lower()})" if before else str(row["state"])


def _step(row: Row) -> str:
    """`1200 26%`; of work without an end the step alone."""
    if row["step"] is None:
        return "-"
    return f"{row['step']}" + ("" if row["percent"] is None else f" {row['percent']}%")


def _saved(row: Row) -> str:
    """`1200 3m`: the step, and how long ago."""
    return "-" if row["checkpoint"] is None else f"{row['checkpoint']} {brief(row['checkpoint_age'])}"


def short_job(job_id: str) -> str:
    """The id as one types it: without PBS's server, and without what all local ones have in common."""
    return re.sub(r"\.[^_]*", "", job_id).removeprefix("local-launcher-")[:10]


COLUMNS: Mapping[str, Callable[[Row], str]] = {
    "RUN": lambda row: str(row["run"]),
    "STATE": _state,
    "JOB": lambda row: short_job(row["job"] or "-"),
    "NODES": lambda row: str(row["nodes"] or "-"),
    "TRY": lambda row: str(row["attempt"] or "-"),
    "STEP": _step,
    "TIME": lambda row: brief(row["elapsed"]),
    "LEFT": lambda row: brief(row["left"]),
    "NEEDS": lambda row: brief(row["needs"]),
    "SAVED": _saved,
}
KEPT = ("RUN", "STATE")
GIVEN_UP = ("JOB", "NEEDS", "NODES", "TRY", "SAVED", "TIME", "LEFT", "STEP")  # the first of them first
