"""`status`: runs and their states."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

from launcher.cli.options import EITHER, add_runs_dir, find_either

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from pathlib import Path

    from launcher.live import Seen
    from launcher.runs import Run
    from launcher.sweeps import Sweep

RECENT = 20  # runs shown without --all
COLUMNS = (
    "run", "state", "job", "cluster", "nodes", "ranks", "attempt", "step", "steps", "elapsed", "reason", "cause",
    "directory",
)  # fmt: skip
SILENCE = 300.0  # seconds without a sign of life that are told; clocks of machines may differ


def configure(parser: ArgumentParser) -> None:
    parser.add_argument("names", metavar="RUN", nargs="*", help=EITHER)
    parser.add_argument("--all", action="store_true", dest="everything", help=f"all runs, not only the newest {RECENT}")
    parser.add_argument("--json", action="store_true", dest="as_json", help="for programs: a list of objects")
    add_runs_dir(parser)


def run(arguments: Namespace) -> int:
    """State of the newest runs and sweeps, or of the RUNs named, with one question to the scheduler for all."""
    from launcher.paths import default_runs_dir  # not for --help
    from launcher.sweeps import Sweep

    names, folder = arguments.names, arguments.runs_dir or default_runs_dir()
    found = [find_either(name, folder) for name in names] or _newest(folder)
    shown = found if arguments.everything or names else found[:RECENT]
    runs = [each for each in shown if not isinstance(each, Sweep)]
    sweeps = [each for each in shown if isinstance(each, Sweep)]
    if sweeps and names and not runs and len(sweeps) == 1:
        from launcher.cli import sweep_status

        return sweep_status.show(sweeps[0], everything=arguments.everything, as_json=arguments.as_json)
    seen = {each.run.path: each for each in _look_at(runs, strict=bool(names))}
    rows = {path: _row(each) for path, each in seen.items()} | _sweep_rows(sweeps)
    lines = [rows[each.path] for each in shown if each.path in rows]
    if arguments.as_json:
        import json

        print(json.dumps(lines, indent=1))
        return 0
    if not lines:
        print(f"no runs in {folder}")
        return 0
    _print_table(lines)
    for each in seen.values() if names else []:
        if each.story.attempt:
            from launcher.cli.text import print_columns

            print()
            print_columns(_attempts(each.run))
        if why := _remark(each):
            print(f"\n{each.run.id}: {why}")
        for line in _health(each):
            print(f"{each.run.id}: {line}")
    if len(shown) < len(found):
        print(f"... and {len(found) - len(shown)} older ones; --all shows them")
    return 0


def _newest(folder: Path) -> list[Run | Sweep]:
    """All runs and sweeps, newest first."""
    from launcher.runs import all_runs
    from launcher.sweeps import all_sweeps

    found: list[Run | Sweep] = [*all_runs(folder), *all_sweeps(folder)]
    return sorted(found, key=lambda each: each.path.stat().st_ctime, reverse=True)


def _sweep_rows(sweeps: list[Sweep]) -> dict[Path, dict[str, Any]]:
    """Sweeps like runs: `3/15 done` is their state."""
    if not sweeps:
        return {}
    from launcher.sweep_live import SweepLive, counts, look_at

    live, rows = SweepLive(), {}
    for each in sweeps:
        number = counts(look_at(each, live))
        failed = f", {number['failed']} failed" if "failed" in number else ""
        rows[each.path] = {
            **dict.fromkeys(COLUMNS), "run": each.id, "points": number, "directory": str(each.path),
            "state": f"{number.get('done', 0)}/{sum(number.values())} done{failed}",
        }  # fmt: skip
    return rows


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


def _health(seen: Seen) -> list[str]:
    """What the preflight of the last attempt has found, and ranks that are slower than the others."""
    from launcher.health import preflights, stragglers

    attempts = seen.run.attempts()
    if not attempts:
        return []
    plan, over = seen.plan, seen.state.over
    slow = stragglers(attempts[-1].paces(), plan.straggler_factor, plan.straggler_time, over=over)
    return preflights(seen.story.events) + [each.words for each in slow if over or each.until is None]


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
        "state": _state(seen),
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


def _state(seen: Seen) -> str:
    if seen.state.value != "unconfirmed" or not seen.run.is_point:
        return seen.state.value
    from launcher.sweep_live import not_begun

    return not_begun(seen.run) or seen.state.value


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
            str(row["nodes"] or "-"),
            "-" if row["step"] is None else f"{row['step']}/{row['steps']}",
            "-" if row["elapsed"] is None else format_time(row["elapsed"]),
        )
        for row in rows
    ]
    print_columns([heads, *lines])
