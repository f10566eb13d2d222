"""What `status` prints: the table of runs and sweeps, and details of runs that were named."""

from __future__ import annotations

import json
import shutil
import sys
import time
from typing import TYPE_CHECKING, Any

from launcher.cli.status_rows import ORPHANED, WIDTH, Rows, StatusFilter, brief, plain, runs_table, short_job
from launcher.cli.text import cause, cut, print_columns, print_unreadable, program
from launcher.errors import ConfigError, RunError
from launcher.formatting import format_time, one_line
from launcher.monitoring.run_status import JobMonitor
from launcher.runs.events import Ended, Met, Progress, Started, last
from launcher.runs.health import remarks, stragglers
from launcher.runs.sweep_directory import Sweep

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from launcher.cli.status_rows import View
    from launcher.monitoring.run_status import RunStatus

MOST_BREAKPOINTS = 4  # ranks at breakpoints that are named
LONGEST = 160  # characters of the last line of output
SILENCE = 300.0  # seconds without a heartbeat after which it is reported; the machines' clocks may differ


def show(arguments: Namespace, folder: Path, *, apart: bool = False) -> int:
    """Prints the runs in a folder that the arguments of `status` select; returns the exit code.

    apart: whether the runs of all clusters behind ssh are shown, too.
    Raises ConfigError (options contradict each other) or RunError (none of the named runs can be read).
    """
    names = arguments.names
    if names and (arguments.failed or arguments.since is not None):
        raise ConfigError("--failed and --since choose among all runs: leave the names out")
    rows = Rows(names, folder, arguments.everything, StatusFilter(arguments.failed, arguments.since), apart)
    if arguments.watch:
        from launcher.cli import watch

        return watch.show(rows)
    if len(rows.wanted) == 1 and isinstance(rows.wanted[0], Sweep):
        from launcher.cli import sweep_status

        return sweep_status.show(rows.wanted[0], everything=arguments.everything, as_json=arguments.as_json)
    view = rows.look()
    damaged = [row for row in view.rows if "unread" in row]
    if names and len(damaged) == len(view.rows):
        raise RunError("\n".join(row["cause"] for row in damaged))
    if arguments.as_json:
        for line in view.silent.values():
            print(line, file=sys.stderr)
        results = {each.run.id: each.run.result() for each in view.seen} if names else {}
        print(json.dumps([{**plain(row), "metrics": results.get(row["run"])} for row in view.rows], indent=1))
        return 0
    if not view.rows:
        print(f"no runs in {folder}" + (" that match" if rows.filter.filters else ""))
        for line in view.silent.values():
            print(line)
        return 0
    for line in runs_table(view.rows, _width()):
        print(line)
    for row in view.rows:
        if waits := breakpoints(row):
            print(f"\n{one_line(row['run'])}: {waits}")
    for each in view.seen if names else ():
        _print_details(each, heading=len(view.rows) > 1)
    for row in [*damaged, *(row for row in view.rows if row["state"] == ORPHANED)]:
        print(f"\n{one_line(row['run'])}: {row['cause']}")
    for number, line in enumerate([*unanswered(view), *view.silent.values()]):
        print(line if number else f"\n{line}")
    if view.older:
        print(f"... and {view.older} older; --all shows them")
    return 0


def breakpoints(row: Mapping[str, Any]) -> str:
    """Returns which ranks wait at a breakpoint, and the command that attaches to one; empty: none."""
    found = row.get("breakpoints") or []
    if not found:
        return ""
    shown = [
        f"rank {each['rank']} on {each['host']} waits in {each['where']} for {brief(each['seconds'])}"
        for each in found[:MOST_BREAKPOINTS]
    ]
    if len(found) > MOST_BREAKPOINTS:
        shown.append(f"{len(found) - MOST_BREAKPOINTS} more")
    attach = f"{program()} attach {row['run']} --debug" + (f" --rank {found[0]['rank']}" if len(found) > 1 else "")
    return f"at a breakpoint: {'; '.join(shown)}: `{attach}`"


def unanswered(view: View) -> Iterator[str]:
    """Yields a line or two for each scheduler that did not respond."""
    for scheduler, seen in view.unanswered.items():
        unknown = sum(each.unanswered == scheduler and each.state.value == "unknown" for each in view.seen)
        yield f"This is incomplete: {scheduler} does not answer ({seen.job.problem})."
        if unknown:
            known = any(each.unanswered == scheduler and each.before for each in view.seen)
            brackets = f"; the state of {brief(seen.age)} ago is in brackets" if known else ""
            yield f"{'1 state is' if unknown == 1 else f'{unknown} states are'} unknown{brackets}."


def _width() -> int:
    return shutil.get_terminal_size((WIDTH, 24)).columns


def _print_details(seen: RunStatus, *, heading: bool) -> None:
    if seen.history.attempt:
        print(f"\n{one_line(seen.run.id)}:" if heading else "")
        print_columns(_attempts(seen))
    if not seen.unanswered and (why := _remark(seen)):
        print(f"\n{one_line(f'{seen.run.id}: {why}')}")
    if last := _last_output(seen):
        print(f"\n{one_line(seen.run.id)}: {last}")
    if seen.plan.race:
        from launcher.diagnose.why import of_race

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
            f"its job shows no sign of life for {format_time(int(silent))}, although the scheduler says that it runs: "
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
