"""What `status` prints: the table of runs and sweeps, and details of runs that were named.

`status --watch` updates the table; without a terminal, it prints a line whenever a run has changed.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import time
from typing import TYPE_CHECKING, Any

from launcher.cli import status_rows
from launcher.cli.cleanup import short_job
from launcher.cli.progress import on_terminal, still
from launcher.cli.text import WIDTH, cause, cut, print_columns, print_unreadable, program
from launcher.errors import ConfigError, RunError
from launcher.formatting import brief, format_time, one_line, raw
from launcher.monitoring.run_status import JobMonitor
from launcher.monitoring.sweep import summary
from launcher.runs.events import Ended, Met, Progress, Started, last
from launcher.runs.health import remarks, stragglers
from launcher.runs.sweep_directory import Sweep
from launcher.schedulers.query_cache import interval

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from rich.console import Console, RenderableType

    from launcher.monitoring.run_status import RunStatus

MOST_BREAKPOINTS = 4  # ranks at breakpoints that are named
LONGEST = 160  # characters of the last line of output
SILENCE = 300.0  # seconds without a heartbeat after which it is reported; the machines' clocks may differ
MIN_POLL_INTERVAL = 1.0  # seconds between two reads of the records; the scheduler is queried less often
UNCHANGED = 10  # reads without a change after which the interval grows
MILESTONE = 10  # percent of the steps after which a line is printed, without a terminal
COLOURS = {
    **dict.fromkeys(("running", "done"), "green"), **dict.fromkeys(("queued", "suspended"), "yellow"),
    **dict.fromkeys(("failed", "lost", "unreadable", "orphaned"), "red"),
}  # fmt: skip


def show(arguments: Namespace, folder: Path, *, apart: bool = False) -> int:
    """Prints the runs that the arguments of `status` select; apart: those of all clusters behind ssh, too."""
    names = arguments.names
    if names and (arguments.failed or arguments.since is not None):
        raise ConfigError("--failed and --since choose among all runs: leave the names out")
    wanted = status_rows.StatusFilter(arguments.failed, arguments.since)
    rows = status_rows.Rows(names, folder, arguments.everything, wanted, apart)
    if arguments.watch:
        return watch(rows)
    if len(rows.wanted) == 1 and isinstance(rows.wanted[0], Sweep):
        from launcher.cli.sweep import show_status

        return show_status(rows.wanted[0], everything=arguments.everything, as_json=arguments.as_json)
    view = rows.look()
    damaged = [row for row in view.rows if "unread" in row]
    if names and len(damaged) == len(view.rows):
        raise RunError("\n".join(row["cause"] for row in damaged))
    if arguments.as_json:
        for line in view.silent.values():
            print(line, file=sys.stderr)
        results = {each.run.id: each.run.result() for each in view.seen} if names else {}
        values = [{**status_rows.plain(row), "metrics": results.get(row["run"])} for row in view.rows]
        print(json.dumps(values, indent=1))
        return 0
    if not view.rows:
        print(f"no runs in {folder}" + (" that match" if rows.filter.filters else ""))
        for line in view.silent.values():
            print(line)
        return 0
    for line in status_rows.runs_table(view.rows, shutil.get_terminal_size((WIDTH, 24)).columns):
        print(line)
    for row in view.rows:
        if waits := breakpoints(row):
            print(f"\n{one_line(row['run'])}: {waits}")
    for each in view.seen if names else ():
        _print_details(each, heading=len(view.rows) > 1)
    for row in [*damaged, *(row for row in view.rows if row["state"] == status_rows.ORPHANED)]:
        print(f"\n{one_line(row['run'])}: {row['cause']}")
    for number, line in enumerate([*unanswered(view), *view.silent.values()]):
        print(line if number else f"\n{line}")
    if view.older:
        print(f"... and {view.older} older; --all shows them")
    return 0


def breakpoints(row: Mapping[str, Any]) -> str:
    found = row.get("breakpoints") or []
    if not found:
        return ""
    shown = [
        f"rank {each['rank']} on {each['host']} waits in {each['where']} for {brief(each['seconds'])}"
        for each in found[:MOST_BREAKPOINTS]
    ]
    shown += [f"{len(found) - MOST_BREAKPOINTS} more"] if len(found) > MOST_BREAKPOINTS else []
    attach = f"{program()} attach {row['run']} --debug" + (f" --rank {found[0]['rank']}" if len(found) > 1 else "")
    return f"at a breakpoint: {'; '.join(shown)}: `{attach}`"


def unanswered(view: status_rows.View) -> Iterator[str]:
    for scheduler, seen in view.unanswered.items():
        unknown = sum(each.unanswered == scheduler and each.state.value == "unknown" for each in view.seen)
        yield f"This is incomplete: {scheduler} does not answer ({seen.job.problem})."
        if unknown:
            known = any(each.unanswered == scheduler and each.before for each in view.seen)
            brackets = f"; the state of {brief(seen.age)} ago is in brackets" if known else ""
            yield f"{'1 state is' if unknown == 1 else f'{unknown} states are'} unknown{brackets}."


def _print_details(seen: RunStatus, *, heading: bool) -> None:
    if seen.history.attempt:
        print(f"\n{one_line(seen.run.id)}:" if heading else "")
        print_columns(_attempts(seen))
    if not seen.unanswered and (why := _remark(seen)):
        print(f"\n{one_line(f'{seen.run.id}: {why}')}")
    if last := _last_output(seen):
        print(f"\n{one_line(seen.run.id)}: {last}")
    if seen.plan.race:
        from launcher.cli.explain import of_race

        for line in of_race(seen, JobMonitor(share=True)):
            print(one_line(f"{seen.run.id}: {line}"))
    for line in _health(seen):
        print(one_line(f"{seen.run.id}: {line}"))
    print_unreadable(seen.run)


def _remark(seen: RunStatus) -> str | None:
    # None: no remark
    if seen.state.value == "running":
        silent = seen.run.lease_age()
        if silent is None or silent < SILENCE:
            return None
        return (
            f"no heartbeat of its job for {format_time(int(silent))}, although the scheduler says that it runs: "
            "has it lost its first node? Cancel it, then resume it"
        )
    if seen.state.value == "done":
        return None
    if seen.state.over:
        return cause(seen)
    before = cause(seen) if seen.state.value == "queued" and seen.history.attempt is not None else None
    return "; ".join(filter(None, (seen.job.text, f"before: {before}" if before else ""))) or None


def _last_output(seen: RunStatus) -> str:
    if seen.state.value != "running" or not (outputs := seen.run.outputs()):
        return ""
    from launcher.runs.output import tail

    line = next((each for each in reversed(tail(outputs[-1])) if each.strip()), "")
    if not line:
        return ""
    return f"its last output, {brief(time.time() - outputs[-1].stat().st_mtime)} ago: {cut(one_line(line), LONGEST)}"


def _health(seen: RunStatus) -> list[str]:
    attempts = seen.run.attempts()
    if not attempts:
        return []
    plan, over = seen.plan, seen.state.over
    slow = stragglers(attempts[-1].paces(), plan.train.straggler_factor, plan.train.straggler_time, over=over)
    return remarks(seen.history.events) + [each.words for each in slow if over or each.until is None]


def _attempts(seen: RunStatus) -> list[tuple[str, ...]]:
    from launcher.diagnose.findings import verdicts

    ends = {attempt.number: verdict for attempt, verdict, _ in verdicts(seen)}
    lines: list[tuple[str, ...]] = [("ATTEMPT", "JOB", "RANKS", "STEP", "ELAPSED", "ENDED")]
    for attempt in seen.run.attempts():
        events = attempt.latest_events()
        elapsed = events[-1]["time"] - events[0]["time"] if events else 0.0
        progress, ended, end = last(events, Progress), last(events, Ended), ends.get(attempt.number)
        words = f"{ended.code}" if ended else "-"
        if end is not None and end.cause is not None:
            words += f" {end.kind.value}: {end.cause}"
        met, started = last(events, Met), last(events, Started)
        lines.append((
            str(attempt.number), short_job(started.job if started else "-"), str(met.ranks if met else "-"),
            str(progress.step if progress else "-"), format_time(int(elapsed)), words,
        ))  # fmt: skip
    return lines


# -- `status --watch`


def watch(rows: status_rows.Rows) -> int:
    """Shows runs until all are over, or until Ctrl-C; returns 0. If no run was named, new runs are added."""
    with contextlib.suppress(KeyboardInterrupt):
        if on_terminal(sys.stdout):
            _live(rows)
        else:
            _plain(rows)
    return 0


def _views(rows: status_rows.Rows) -> Iterator[status_rows.View]:
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


def _plain(rows: status_rows.Rows) -> None:
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


def milestone(row: Mapping[str, Any]) -> tuple[Any, ...]:
    # When one of these values changes, a line is printed
    tenth = None if row["percent"] is None else row["percent"] // MILESTONE
    return status_rows.state(row), row["attempt"], tenth, tuple((row.get("points") or {}).items())


def line(row: Mapping[str, Any]) -> str:
    """Formats the line for a row: `12:03:07  run-1  running, attempt 1, step 1200/4000 (30%), 12m left, needs 40m`."""
    words = [summary(row["points"]) if row.get("points") else status_rows.state(row)]
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


def _live(rows: status_rows.Rows) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console(file=raw(sys.stdout), highlight=False)
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        for view in _views(rows):
            live.update(layout(view, console), refresh=True)


def layout(view: status_rows.View, console: Console) -> RenderableType:
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
        points, number = row.get("points"), f" #{row['attempt']}" if row["attempt"] else ""
        done, total = (points.get("done", 0), sum(points.values())) if points else (row["step"], row["steps"])
        cells: list[RenderableType] = [
            Text(one_line(row["run"])), Text(one_line(status_rows.state(row) + number), COLOURS.get(row["state"], "")),
            Text(_done(row, done, total) if wide else ""), _bar(done, total, wide),
            Text(brief(row["left"])), Text(brief(row["needs"])),
        ]  # fmt: skip
        table.add_row(*cells, *([Text(status_rows.COLUMNS["CHECKPOINT"](row))] if wide else []))
    lines = [f"... and {len(view.rows) - room} more, which do not fit"] if len(view.rows) > room else []
    for scheduler, seen in view.unanswered.items():
        known = any(row["unanswered"] == scheduler and row["before"] for row in view.rows)
        brackets = f"; the state of {brief(seen.age)} ago is in brackets" if known else ""
        lines.append(f"{scheduler} does not answer ({seen.job.problem}){brackets}")
    lines += view.silent.values()
    return Group(table, *(Text(one_line(each), "yellow") for each in lines))


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
