"""`status`: runs and their states."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

from launcher.cli.options import RUN, add_runs_dir, find

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from launcher.live import Seen
    from launcher.runs import Run

RECENT = 20  # runs shown without --all
SILENCE = 300.0  # seconds without a sign of life that are told; clocks of machines may differ


def configure(parser: ArgumentParser) -> None:
    parser.add_argument("names", metavar="RUN", nargs="*", help=RUN)
    parser.add_argument("--all", action="store_true", dest="everything", help=f"all runs, not only the newest {RECENT}")
    parser.add_argument("--json", action="store_true", dest="as_json", help="for programs: a list of objects")
    add_runs_dir(parser)


def run(arguments: Namespace) -> int:
    """State of the newest runs, or of the RUNs named, with one question to the scheduler for all."""
    from launcher.paths import default_runs_dir  # not for --help
    from launcher.runs import all_runs

    names, runs_dir = arguments.names, arguments.runs_dir
    folder = runs_dir or default_runs_dir()
    found = [find(name, runs_dir) for name in names] or all_runs(folder)
    shown = found if arguments.everything or names else found[:RECENT]
    seen = _look_at(shown, strict=bool(arguments.names))
    if arguments.as_json:
        import json

        print(json.dumps([_row(each) for each in seen], indent=1))
        return 0
    if not seen:
        print(f"no runs in {folder}")
        return 0
    _print_table([_row(each) for each in seen])
    for each in seen if names else []:
        if each.story.attempt:
            from launcher.cli.text import print_columns

            print()
            print_columns(_attempts(each.run))
        if why := _remark(each):
            print(f"\n{each.run.id}: {why}")
    if len(shown) < len(found):
        print(f"... and {len(found) - len(shown)} older ones; --all shows them")
    return 0


def _look_at(shown: list[Run], *, strict: bool) -> list[Seen]:
    if not shown:
        return []
    from launcher.live import look_at_all  # what can ask schedulers takes as long to load as all the rest

    return look_at_all(shown, strict=strict)


def _remark(seen: Seen) -> str | None:
    """What the table does not tell of a run.

    | the run is | what is said |
    |---|---|
    | done | nothing |
    | running | that its job shows no sign of life, when that is so |
    | queued, unknown, unconfirmed | the scheduler's word, if it has one |
    | over in another way | the cause |
    """
    if seen.state.value == "running":
        from launcher.units import format_time

        silent = seen.run.silent_for()
        if silent is None or silent < SILENCE:
            return None
        return (
            f"its job shows no sign of life for {format_time(int(silent))}, although the scheduler says that it runs: "
            "has it lost its first node? Cancel it, then resume it"
        )
    if seen.state.value == "done":
        return None
    return _cause(seen) if seen.state.over else seen.word or None


def _cause(seen: Seen) -> str | None:
    from launcher.cli.text import cause

    return cause(seen)


def _row(seen: Seen) -> dict[str, Any]:
    first, last = (seen.story.events[0], seen.story.events[-1]) if seen.story.events else (None, None)
    elapsed = None
    if first and last:
        elapsed = int((last["time"] if seen.state.over else time.time()) - first["time"])
    return {
        "run": seen.run.id,
        "state": seen.state.value,
        "job": seen.story.job_id,
        "cluster": seen.plan.cluster,
        "nodes": seen.plan.nodes,
        "ranks": seen.plan.world_size,
        "attempt": seen.story.attempt,
        "step": seen.progress and seen.progress["step"],
        "steps": seen.progress and seen.progress["total"],
        "elapsed": elapsed,
        "reason": seen.word or None,
        "cause": None if seen.state.value in ("done", "queued", "running") else _cause(seen),
        "directory": str(seen.run.path),
    }


def _short_job(job_id: str) -> str:
    """The id as one types it: without PBS's server, and without what all local ones have in common."""
    return re.sub(r"\.[^_]*", "", job_id).removeprefix("local-launcher-")[:10]


def _attempts(run: Run) -> list[tuple[str, ...]]:
    """A line for each attempt of a run that has had several."""
    from launcher.units import format_time

    lines: list[tuple[str, ...]] = [("ATTEMPT", "JOB", "RANKS", "STEP", "ELAPSED", "ENDED")]
    for attempt in run.attempts():
        events = attempt.events()
        last = {event["event"]: event for event in events}
        elapsed = events[-1]["time"] - events[0]["time"] if events else 0.0
        step, why = last.get("progress", {}).get("step", "-"), last.get("stop") or last.get("fault") or {}
        words = f"{last['ended']['code']}" if "ended" in last else "-"
        if words != "0" and "cause" in why:
            words += f": {why['cause']}"
        ranks = str(last["met"].get("ranks", "-")) if "met" in last else "-"
        job = _short_job(last.get("started", {}).get("job", "-"))
        lines.append((str(attempt.number), job, ranks, str(step), format_time(int(elapsed)), words))
    return lines


def _print_table(rows: list[dict[str, Any]]) -> None:
    """The run's id is never cut, for it is what one copies."""
    from launcher.cli.text import print_columns
    from launcher.units import format_time

    heads = ("RUN", "STATE", "JOB", "NODES", "STEP", "ELAPSED")
    lines = [
        (
            row["run"],
            row["state"],
            _short_job(row["job"] or "-"),
            str(row["nodes"]),
            "-" if row["step"] is None else f"{row['step']}/{row['steps']}",
            "-" if row["elapsed"] is None else format_time(row["elapsed"]),
        )
        for row in rows
    ]
    print_columns([heads, *lines])
