"""Formats the table of `status`, as wide as the terminal. Run ids are never shortened, since users copy them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from launcher.escapes import one_line
from launcher.formatting import brief

Row = Mapping[str, Any]
WIDTH = 80  # where the terminal's width is not known


def table(rows: Sequence[Row], width: int = WIDTH) -> list[str]:
    """Returns the table's lines, the heading first. Columns that are empty, or that do not fit, are left out.

    rows: rows, as `status --json` prints them.
    width: width of the terminal in characters. Lines are longer only if ids and states are.
    """
    columns = {head: [one_line(cell(row)) for row in rows] for head, cell in COLUMNS.items()}
    shown = {head: cells for head, cells in columns.items() if head in ALWAYS or any(each != "-" for each in cells)}
    widths = {head: max(map(len, [head, *cells])) for head, cells in shown.items()}
    for head in DISPENSABLE:
        if sum(widths.values()) + 2 * (len(widths) - 1) <= width:
            break
        widths.pop(head, None)
    lines = [list(widths), *([shown[head][number] for head in widths] for number in range(len(rows)))]
    return [
        "  ".join(f"{cell:<{widths[head]}}" for head, cell in zip(widths, line, strict=True)).rstrip() for line in lines
    ]


def state(row: Row) -> str:
    """Formats the state, with brackets for its last known one (`unknown (running)`), or at a breakpoint."""
    before = row.get("before")
    more = before.partition(" ")[0].lower() if before else "breakpoint" if row.get("breakpoints") else ""
    return f"{row['state']} ({more})" if more else str(row["state"])


def _why(row: Row) -> str:
    if not row.get("kind"):
        return "-"
    return f"after {row['kind']}" if row["state"] == "queued" else str(row["kind"])


def _step(row: Row) -> str:
    if row["step"] is None:
        return "-"
    return f"{row['step']}" + ("" if row["percent"] is None else f" {row['percent']}%")


def _saved(row: Row) -> str:
    return "-" if row["checkpoint"] is None else f"{row['checkpoint']} {brief(row['checkpoint_age'])}"


def short_job(job_id: str) -> str:
    """Shortens a job id to 10 characters. PBS's server name and the prefix of local jobs are removed first."""
    return re.sub(r"\.[^_]*", "", job_id).removeprefix("local-launcher-")[:10]


COLUMNS: Mapping[str, Callable[[Row], str]] = {
    "RUN": lambda row: str(row["run"]),
    "STATE": state,
    "WHY": _why,
    "JOB": lambda row: short_job(row["job"] or "-"),
    "NODES": lambda row: str(row["nodes"] or "-"),
    "TRY": lambda row: str(row["attempt"] or "-"),
    "STEP": _step,
    "TIME": lambda row: brief(row["elapsed"]),
    "LEFT": lambda row: brief(row["left"]),
    "NEEDS": lambda row: brief(row["needs"]),
    "SAVED": _saved,
}
ALWAYS = ("RUN", "STATE")
DISPENSABLE = (
    "JOB",
    "NEEDS",
    "NODES",
    "TRY",
    "SAVED",
    "WHY",
    "TIME",
    "LEFT",
    "STEP",
)  # in the order in which they are dropped
