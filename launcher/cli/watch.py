"""`status --watch`: shows a table that is updated; without a terminal, prints a line whenever a run has changed."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from launcher.cli.progress import on_terminal, still
from launcher.cli.screen import raw
from launcher.cli.status_rows import Rows, View, brief, state
from launcher.formatting import one_line
from launcher.monitoring.sweep import summary
from launcher.schedulers.query_cache import interval

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

MIN_POLL_INTERVAL = 1.0  # seconds between two reads of the records; the scheduler is queried less often
UNCHANGED = 10  # reads without a change after which the interval grows
MILESTONE = 10  # percent of the steps after which a line is printed, without a terminal
COLOURS = {
    **dict.fromkeys(("running", "done"), "green"), **dict.fromkeys(("queued", "suspended"), "yellow"),
    **dict.fromkeys(("failed", "lost", "unreadable", "orphaned"), "red"),
}  # fmt: skip


def show(rows: Rows) -> int:
    """Shows runs until all are over, or until Ctrl-C; returns 0. If no run was named, new runs are added."""
    try:
        return _live(rows) if on_terminal(sys.stdout) else _plain(rows)
    except KeyboardInterrupt:
        return 0


def _views(rows: Rows) -> Iterator[View]:
    unchanged, before = 0, None
    while True:
        began = time.monotonic()
        view = rows.look()
        yield view
        if view.over:
            return
        now = [(row["run"], row["state"], row["attempt"], row["step"], row.get("points")) for row in view.rows]
        unchanged, before = (unchanged + 1 if now == before else 0), now
        time.sleep(interval(max(0, unchanged - UNCHANGED), time.monotonic() - began, MIN_POLL_INTERVAL))


# -- no terminal


def _plain(rows: Rows) -> int:
    before: dict[str, tuple[Any, ...]] = {}
    problems: set[str] = set()
    for view in _views(rows):
        for row in view.rows:
            now = milestone(row)
            if before.get(row["run"]) != now:
                before[row["run"]] = now
                print(line(row), flush=True)
        now_silent = {name: f"{name} does not answer ({seen.job.problem})" for name, seen in view.unanswered.items()}
        now_silent |= view.silent
        for name, text in now_silent.items():
            if name not in problems:
                print(text, flush=True)
        if problems - set(now_silent):
            print(f"{', '.join(sorted(problems - set(now_silent)))} answers again", flush=True)
        problems = set(now_silent)
    return 0


def milestone(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Returns the values that make `status --watch` print a line when one changes: state, attempt, progress, counts."""
    tenth = None if row["percent"] is None else row["percent"] // MILESTONE
    return state(row), row["attempt"], tenth, tuple((row.get("points") or {}).items())


def line(row: Mapping[str, Any]) -> str:
    """Formats the line for a row: `12:03:07  run-1  running, attempt 1, step 1200/4000 (30%), 12m left, needs 40m`."""
    words = [summary(row["points"]) if row.get("points") else state(row)]
    if row["attempt"]:
        words.append(f"attempt {row['attempt']}")
    if row["step"] is not None:
        total = f"/{row['steps']}" if row["steps"] else ""
        words.append(f"step {row['step']}{total}" + (f" ({row['percent']}%)" if row["percent"] is not None else ""))
    if row["left"] is not None:
        words.append(f"{brief(row['left'])} left")
    if row["needs"] is not None:
        words.append(f"needs {brief(row['needs'])}")
    why = None if row["state"] == "running" else row["cause"] or row["reason"]
    return one_line(f"{time.strftime('%H:%M:%S')}  {row['run']}  {', '.join(words)}" + (f": {why}" if why else ""))


# -- a terminal


def _live(rows: Rows) -> int:
    from rich.console import Console
    from rich.live import Live

    console = Console(file=raw(sys.stdout), highlight=False)
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        for view in _views(rows):
            live.update(layout(view, console), refresh=True)
    return 0


def layout(view: View, console: Console) -> RenderableType:
    """Returns a table of the runs with progress bars, cut to the height of the terminal."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    room = max(1, console.height - 4)
    wide = console.width >= 100
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for head in ("RUN", "STATE", "STEP" if wide else "", "", "TIME LEFT", "ETA", *(("CHECKPOINT",) if wide else ())):
        table.add_column(head, no_wrap=head in ("RUN", "TIME LEFT", "ETA", "CHECKPOINT", ""), overflow="fold")
    for row in view.rows[:room]:
        done, total = _amount(row)
        cells: list[RenderableType] = [
            Text(one_line(row["run"])), Text(one_line(_state(row)), COLOURS.get(row["state"], "")),
            Text(_done(row, done, total) if wide else ""), _bar(done, total, wide),
            Text(brief(row["left"])), Text(brief(row["needs"])),
        ]  # fmt: skip
        if wide:
            cells.append(
                Text("-" if row["checkpoint"] is None else f"{row['checkpoint']} {brief(row['checkpoint_age'])}")
            )
        table.add_row(*cells)
    lines = [f"... and {len(view.rows) - room} more, which do not fit"] if len(view.rows) > room else []
    for scheduler, seen in view.unanswered.items():
        known = any(row["unanswered"] == scheduler and row["before"] for row in view.rows)
        brackets = f"; the state of {brief(seen.age)} ago is in brackets" if known else ""
        lines.append(f"{scheduler} does not answer ({seen.job.problem}){brackets}")
    lines += view.silent.values()
    return Group(table, *(Text(one_line(each), "yellow") for each in lines))


def _state(row: Mapping[str, Any]) -> str:
    return state(row) + (f" #{row['attempt']}" if row["attempt"] else "")


def _amount(row: Mapping[str, Any]) -> tuple[int | None, int | None]:
    if points := row.get("points"):
        return points.get("done", 0), sum(points.values())
    return row["step"], row["steps"]


def _done(row: Mapping[str, Any], done: int | None, total: int | None) -> str:
    if done is None:
        return "-"
    rate = row["rate"]
    speed = "" if rate is None or row["needs"] is None else f" {rate:.3g}/s" if rate >= 1 else f" {1 / rate:.3g} s each"
    return f"{done}/{total}{speed}" if total else f"{done}{speed}"


def _bar(done: int | None, total: int | None, wide: bool) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    if done is None or not total:
        return Text("-")
    bar = Table.grid(padding=(0, 1, 0, 0))
    bar.add_row(still(done, total, 20 if wide else 10), f"{100 * done // total}%")
    return bar
