"""`sweep status`: shows the progress of a sweep, and its points that are running or have failed."""

from __future__ import annotations

import json
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.cli.progress import bar
from launcher.cli.text import cause, cut, print_columns, program, table
from launcher.formatting import format_time, plural, ranges
from launcher.monitoring import packed
from launcher.monitoring.state import RunState
from launcher.monitoring.sweep import (
    WAITING,
    PointStatus,
    SweepMonitor,
    counts,
    live_pilots,
    over,
    point_statuses,
    summary,
)
from launcher.paths import default_runs_dir
from launcher.runs.events import Fault
from launcher.runs.lookup import all_sweeps
from launcher.runs.sweep_directory import Packing, Sweep, differing, label
from launcher.search.progress import SearchProgress, described, look

WIDTH = 80
RECENT = 20  # sweeps, and points of one, that are shown without --all
# Points in these states are counted, but get no line of their own.
WITHOUT_LINE = (WAITING, RunState.QUEUED.value, RunState.DONE.value, RunState.PRUNED.value)


def overview(runs_dir: Path | None, everything: bool, as_json: bool) -> int:
    """Prints a line for each sweep in a folder (None: the default one), all or the newest; returns 0."""
    folder = runs_dir or default_runs_dir()
    found = all_sweeps(folder)
    shown = found if everything else found[:RECENT]
    live = SweepMonitor()
    numbers = {each.id: counts(point_statuses(each, live)) for each in shown}
    if as_json:
        rows = [{"sweep": each.id, "counts": numbers[each.id], "directory": str(each.path)} for each in shown]
        print(json.dumps(rows, indent=1))
        return 0
    if not found:
        print(f"no sweeps in {folder}")
        return 0
    print_columns([("SWEEP", "POINTS"), *((name, summary(number)) for name, number in numbers.items())])
    if len(shown) < len(found):
        print(f"... and {len(found) - len(shown)} older; --all shows them")
    return 0


def show(sweep: Sweep, *, everything: bool = False, as_json: bool = False) -> int:
    """Prints a sweep: a bar, the number of points in each state, and lines for failed and running points; returns 0."""
    monitor, manifest = SweepMonitor(), sweep.manifest()
    seen = point_statuses(sweep, monitor)
    keys = differing(manifest.points)
    activity = None
    if manifest.packing is not None:
        board = monitor.boards.of(sweep, manifest.packing)
        activity = packed.activity_of(sweep, manifest.packing, board, len(manifest.points))
    search = look(sweep) if manifest.search else None
    if as_json:
        points = [row(each) for each in seen]
        values: dict[str, Any] = {"sweep": sweep.id, "directory": str(sweep.path), "parallelism": manifest.parallelism}
        values |= {"pilots": vars(activity)} if activity else {}
        values |= {"search": values_of(search[1])} if search else {}
        print(json.dumps({**values, "counts": counts(seen), "points": points}, indent=1))
        return 0
    _print_bar(counts(seen))
    print(f"{sweep.id}: {summary(counts(seen))}")
    if activity and activity.slots:
        print(_pilots_line(activity))
    for line in described(*search) if search else ():
        print(line)
    listed = seen if everything else _over_first([each for each in seen if each.state not in WITHOUT_LINE])
    shown = listed if everything else listed[:RECENT]
    if shown:
        print()
    for line in points_table(shown, keys):
        print(line)
    if len(shown) < len(listed):
        print(f"... and {len(listed) - len(shown)} more; --all shows all points")
    if manifest.packing is not None and search and not search[1].over and _stands_still(sweep, seen, monitor):
        print(f"\nno pilot runs, and more points may be chosen\n{_throttle(sweep, manifest.packing)}")
    again = [each for each in seen if each.over and each.state not in WITHOUT_LINE]
    cancelled = [each.point.index for each in again if each.state == RunState.CANCELLED.value]
    if again:
        named = f" {ranges(cancelled)}" if len(cancelled) == len(again) else ""
        print(f"\nnext  {program()} sweep rerun {sweep.id}{named}")
    return 0


def _stands_still(sweep: Sweep, seen: Sequence[PointStatus], monitor: SweepMonitor) -> bool:
    return all(each.over for each in seen) and not live_pilots(sweep, monitor)


def _throttle(sweep: Sweep, packing: Packing) -> str:
    return f"next  {program()} sweep throttle {sweep.id} {packing.pilots}"


def values_of(found: SearchProgress) -> dict[str, Any]:
    """Returns the progress of a search as `sweep status --json` prints it."""
    best = {"best": found.best and {"point": found.best.number, "value": found.best.value}}
    return {**vars(found), **best, "rungs": [vars(each) for each in found.rungs]}


def _pilots_line(activity: packed.PilotActivity) -> str:
    parts = [f"{activity.busy} of {plural(activity.slots, 'slot')} busy ({activity.share:.0%} of their time)"]
    if activity.rate:
        parts.append(f"{60 * activity.rate:.1f} points a minute")
    if activity.left:
        parts.append(f"all over in {format_time(int(activity.left))}")
    return ", ".join(parts)


def _over_first(seen: Sequence[PointStatus]) -> list[PointStatus]:
    return sorted(seen, key=lambda each: (not each.over, each.point.index))


def row(each: PointStatus) -> dict[str, Any]:
    """Returns a point as `sweep status --json` prints it."""
    seen, first = each.seen, each.seen.history.fault if each.seen else None
    progress = seen.progress if seen else None
    return {
        "point": each.point.index,
        "run": each.point.run.id,
        "overrides": list(each.point.overrides),
        "state": each.state,
        "job": seen.history.job_id if seen else None,
        "attempt": seen.history.attempt if seen else None,
        "step": progress.step if progress else None,
        "steps": progress.total if progress else None,
        "elapsed": _elapsed(each),
        "cause": why(each),
        "rank": first.rank if isinstance(first, Fault) else None,
        "host": (first.host or None) if first else None,
        "directory": str(each.point.run.path),
    }


def why(each: PointStatus) -> str | None:
    """Returns why a point ended without success (but by the user) or waits; None: not known, or running."""
    if each.seen is None or each.state == RunState.RUNNING.value:
        return None
    if each.state == RunState.CANCELLED.value and each.seen.history.cancelled:
        return None  # the user knows
    return cause(each.seen) if each.over else each.seen.job.text or None


def _elapsed(each: PointStatus) -> int | None:
    # Returns the seconds since a point's first event, up to its end if it is over; None: it has no events
    events = each.seen.history.events if each.seen else ()
    if not events:
        return None
    return int((events[-1]["time"] if each.over else time.time()) - events[0]["time"])


def points_table(shown: Sequence[PointStatus], keys: Sequence[str]) -> list[str]:
    """Returns the lines of a table of points, each at most WIDTH characters wide; empty: there are no points."""
    if not shown:
        return []
    rows = [("POINT", "STATE", "STEP", "ELAPSED", "VALUES")]
    for each in shown:
        values = row(each)
        rows.append((
            str(each.point.index), each.state,
            "-" if values["step"] is None else f"{values['step']}" + (f"/{values['steps']}" if values["steps"] else ""),
            "-" if values["elapsed"] is None else format_time(values["elapsed"]),
            label(each.point.overrides, keys) or "-",
        ))  # fmt: skip
    lines, indent = [], max(len(number) for number, *_ in rows) + 2
    for (line,), point in zip(table(rows), (None, *shown), strict=True):
        lines.append(cut(line, WIDTH))
        if point is not None and (cause := why(point)):
            lines += indented(cause, indent)
    return lines


def indented(text: str, spaces: int) -> list[str]:
    """Wraps a text into at most two lines of WIDTH characters, each indented by `spaces`; ` ...` marks a cut."""
    indent = " " * spaces
    words = " ".join(text.split())
    lines = textwrap.wrap(
        words, WIDTH, initial_indent=indent, subsequent_indent=indent, max_lines=2, placeholder=" ..."
    )
    return lines or []


def _print_bar(found: Mapping[str, int]) -> None:
    bar(sys.stdout, over(found), sum(found.values()))
