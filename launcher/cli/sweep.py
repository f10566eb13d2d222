"""`sweep`: shows the progress and the results of sweeps, restarts or cancels points, or limits how many run at once."""

from __future__ import annotations

import csv as csv_format
import io
import json
import sys
import textwrap
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.cli import output
from launcher.cli.output import cause_of_point, json_text, print_columns, program
from launcher.errors import ConfigError, near
from launcher.files.folder_checks import require_own
from launcher.files.retried_reads import Wrong
from launcher.formatting import cut, flat, format_time, plural, ranges
from launcher.monitoring import sweep_status
from launcher.monitoring.run_status import DamagedRun, JobMonitor, RunState, or_damaged
from launcher.monitoring.sweep_status import PointStatus, counts, live_pilots, point_statuses, summary
from launcher.paths import default_runs_dir
from launcher.plan import build
from launcher.runs import sweep_directory
from launcher.runs.directory import Run
from launcher.runs.events import Fault
from launcher.runs.history import elapsed
from launcher.runs.lookup import all_sweeps, find_sweep
from launcher.runs.sweep_directory import Journal, SearchRecord, SearchSettings, Sweep, SweepManifest, differing, label
from launcher.search.progress import chooses_more, described, look, rung_lines, rungs_of
from launcher.units import parse_ranges

if TYPE_CHECKING:
    from launcher.plan.plan import JobPlan
    from launcher.sweeps.submit import SubmittedPilots

RECENT = 20  # sweeps, and points of one, that are shown without --all
# Points in these states are counted, but get no line of their own.
WITHOUT_LINE = (sweep_status.WAITING, RunState.QUEUED.value, RunState.DONE.value, RunState.PRUNED.value)


def run(arguments: Namespace) -> int:
    action, name = arguments.action, arguments.name
    if action == "status" and name is None:
        return overview(arguments.runs_dir, arguments.everything, arguments.as_json)
    if name is None:
        raise ConfigError(f"sweep {action} needs the SWEEP; `sweep status` lists them")
    if arguments.points and action in ("status", "results", "wait"):
        raise ConfigError(f"sweep {action} is about whole sweeps; of one point: `status {name}/{arguments.points[0]}`")
    sweep = find_sweep(name, arguments.runs_dir)
    if action == "status":
        return show_status(sweep, everything=arguments.everything, as_json=arguments.as_json)
    if action == "results":
        if arguments.csv is not None and arguments.as_json:
            raise ConfigError("--csv and --json exclude each other: use one of them")
        return show_results(
            sweep, sort=arguments.sort, reverse=arguments.reverse, csv=arguments.csv, as_json=arguments.as_json
        )
    if action == "wait":
        from launcher.cli.wait import follow_sweep

        return follow_sweep(sweep)
    require_own(sweep.path, f"{action} it")
    if action == "throttle":
        words = arguments.points
        if len(words) != 1 or not words[0].isdecimal() or int(words[0]) < 1:
            problem = f"{' '.join(words)!r} is not the number" if words else "give the number"
            raise ConfigError(f"sweep throttle SWEEP N: {problem} of points that may run at once, 1 or more")
        return _throttle(sweep, int(words[0]))
    points = numbers(arguments.points, sweep)
    return cancel(sweep, points) if action == "cancel" else _rerun(sweep, points, yes=arguments.yes)


def numbers(words: Sequence[str], sweep: Sweep) -> list[int] | None:
    """Converts `3` and `0-4,7` to point numbers without duplicates, or None; raises ConfigError, RunError."""
    if not words:
        return None
    count = len(sweep.manifest().points)
    try:
        points = parse_ranges(",".join(words))
    except ValueError as error:
        raise ConfigError(f"points: {error}") from None
    sweep_directory.require_known(points, sweep, count)
    return list(dict.fromkeys(points))


# -- `sweep status`: shows the progress of a sweep, and its points that are running or have failed


def overview(runs_dir: Path | None, everything: bool, as_json: bool) -> int:
    folder = runs_dir or default_runs_dir()
    found = all_sweeps(folder)
    shown = found if everything else found[:RECENT]
    live = JobMonitor()
    seen = [(each, or_damaged(Run(each.path), partial(_counts, each, live))) for each in shown]
    if as_json:
        print(json_text([
            {"sweep": each.id, **({"cause": number.message} if isinstance(number, DamagedRun) else {"counts": number}),
             "directory": str(each.path)} for each, number in seen
        ]))  # fmt: skip
        return 0
    if not found:
        print(f"no sweeps in {folder}")
        return 0
    print_columns([
        ("SWEEP", "POINTS"),
        *((each.id, f"unreadable: {number.message}" if isinstance(number, DamagedRun) else summary(number))
          for each, number in seen),
    ])  # fmt: skip
    if len(shown) < len(found):
        print(f"... and {len(found) - len(shown)} older; --all shows them")
    return 0


def _counts(sweep: Sweep, live: JobMonitor) -> dict[str, int]:
    return counts(point_statuses(sweep, live))


def show_status(sweep: Sweep, *, everything: bool = False, as_json: bool = False) -> int:
    monitor, manifest = JobMonitor(), sweep.manifest()
    seen = point_statuses(sweep, monitor)
    keys = differing(manifest.points)
    search = look(sweep) if manifest.search else None
    if as_json:
        points = [row(each) for each in seen]
        values: dict[str, Any] = {"sweep": sweep.id, "directory": str(sweep.path), "parallelism": manifest.parallelism}
        if search:
            found, best = search[1], search[1].best
            of_best = best and {"point": best.number, "value": best.value}
            values["search"] = {**vars(found), "best": of_best, "rungs": [vars(each) for each in found.rungs]}
        print(json_text({**values, "counts": counts(seen), "points": points}))
        return 0
    print(f"{sweep.id}: {summary(counts(seen))}")
    for line in described(*search) if search else ():
        print(line)
    with_line = [each for each in seen if each.state not in WITHOUT_LINE]
    listed = seen if everything else sorted(with_line, key=lambda each: (not each.over, each.point.index))
    shown = listed if everything else listed[:RECENT]
    if shown:
        print()
        print(*points_table(shown, keys), sep="\n")
    if len(shown) < len(listed):
        print(f"... and {len(listed) - len(shown)} more; --all shows all points")
    if search and all(each.over for each in seen) and chooses_more(sweep) and not live_pilots(sweep, monitor):
        print(f"\n{output.no_pilot(sweep)}")
    again = [each for each in with_line if each.over]
    cancelled = [each.point.index for each in again if each.state == RunState.CANCELLED.value]
    if again:
        named = f" {ranges(cancelled)}" if len(cancelled) == len(again) else ""
        print(f"\nnext  {program()} sweep rerun {sweep.id}{named}")
    return 0


def row(each: PointStatus) -> dict[str, Any]:
    seen, first = each.seen, each.seen.history.fault if each.seen else None
    progress, events = (seen.progress, seen.history.events) if seen else (None, ())
    return {
        "point": each.point.index,
        "run": each.point.run.id,
        "overrides": list(each.point.overrides),
        "state": each.state,
        "job": seen.history.job_id if seen else None,
        "attempt": seen.history.attempt if seen else None,
        "step": progress.step if progress else None,
        "steps": progress.total if progress else None,
        "elapsed": elapsed(events, time.time(), over=each.over),
        "cause": cause_of_point(each),
        "rank": first.rank if isinstance(first, Fault) else None,
        "host": (first.host or None) if first else None,
        "directory": str(each.point.run.path),
    }


def points_table(shown: Sequence[PointStatus], keys: Sequence[str]) -> list[str]:
    """Returns the lines of a table of points, cut at the terminal's width; empty: there are no points."""
    if not shown:
        return []
    rows = [("POINT", "STATE", "STEP", "ELAPSED", "VALUES")]
    found = [row(each) for each in shown]
    for each, values in zip(shown, found, strict=True):
        rows.append((
            str(each.point.index), each.state,
            "-" if values["step"] is None else f"{values['step']}" + (f"/{values['steps']}" if values["steps"] else ""),
            "-" if values["elapsed"] is None else format_time(values["elapsed"]),
            label(each.point.overrides, keys) or "-",
        ))  # fmt: skip
    lines, indent = [], max(len(number) for number, *_ in rows) + 2
    causes = (None, *(values["cause"] for values in found))
    for line, cause in zip(output.table(rows), causes, strict=True):
        lines += [cut(line, output.terminal_width()), *(indented(cause, indent) if cause else ())]
    return lines


def indented(text: str, spaces: int) -> list[str]:
    """Wraps a text into at most two lines, each indented by `spaces`; ` ...` marks a cut."""
    indent, room = " " * spaces, max(output.terminal_width(), spaces + 20)
    words = " ".join(text.split())
    return textwrap.wrap(words, room, initial_indent=indent, subsequent_indent=indent, max_lines=2, placeholder=" ...")


# -- `sweep results`: prints the points of a sweep with their metrics, the best one first


FAILURES = 20  # failed points that are listed


def show_results(
    sweep: Sweep, *, sort: str | None = None, reverse: bool = False, csv: str | None = None, as_json: bool = False
) -> int:
    seen, manifest = point_statuses(sweep), sweep.manifest()
    record = SearchRecord(sweep.path)
    search = (record.settings(), record.journal()) if manifest.search else None
    metrics = {each.point.index: flat(each.point.run.result() or {}) for each in seen if each.state == "done"}
    sorted_by, largest_first = order_of(sort, reverse, manifest, names_of(metrics))
    ranked = ranking(metrics, sorted_by, largest_first=largest_first)
    by_index = {each.point.index: each for each in seen}
    done = [by_index[index] for index in ranked]
    rest = [each for each in seen if each.point.index not in metrics]
    keys = differing(manifest.points)
    for index in (index for index, values in metrics.items() if not values):
        if isinstance(result := sweep.run(index).read_result(), Wrong):
            print(f"launcher: point {index}: {result.reason}", file=sys.stderr)
    if as_json:
        found = [
            {**row(each), "metrics": metrics.get(each.point.index, {}), **_reported(search, each.point.index)}
            for each in (*done, *rest)
        ]
        best = ranked[0] if ranked and sorted_by in metrics[ranked[0]] else None
        print(json_text({"sweep": sweep.id, "sorted_by": sorted_by, "best": best, "points": found}))
        return 0
    if csv is not None:
        _write_csv(csv, (*done, *rest), keys, metrics)
        return 0
    if done:
        _print_table(done, keys, metrics, sorted_by, manifest.objective)
    if search is not None and (rungs := rung_lines(rungs_of(search[0], search[1]))):
        print()
        print_columns(rungs)
    _print_others(sweep, seen, keys)
    _print_best(seen, metrics, ranked, sorted_by, keys)
    return 0


def _reported(search: tuple[SearchSettings, Journal] | None, point: int) -> dict[str, Any]:
    # Empty if the sweep is not a search, or the point has not started
    if search is None or point >= len(search[1].trials):
        return {}
    settings, journal = search
    trial, first = journal.trials[point], journal.min_steps or 1
    rungs = {first * settings.reduction_factor**number: value for number, value in trial.rungs.items()}
    return {"reports": trial.reports, "rungs": rungs}


def names_of(metrics: Mapping[int, Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for each in metrics.values() for name in each))


def order_of(sort: str | None, reverse: bool, manifest: SweepManifest, known: Sequence[str]) -> tuple[str | None, bool]:
    """Returns by which metric points are sorted (None: by number), and whether the largest is first.

    By the objective, the best first, or by another metric, the smallest first.
    """
    first = manifest.objective[0] if manifest.objective else None
    if sort is not None and sort not in known:
        hint = f"{near(sort, known)} Known: {', '.join(known)}" if known else " No point has returned any"
        raise ConfigError(f"--sort {sort}: no point has such a metric.{hint}")
    metric = first if sort is None else sort
    return metric, (metric == first and manifest.best_is == "max") != reverse


def ranking(metrics: Mapping[int, Mapping[str, Any]], metric: str | None, *, largest_first: bool) -> list[int]:
    """Returns the numbers of points by a metric; points without it, or with NaN, come last."""

    def place(index: int) -> tuple[bool, float]:
        return sweep_status.placed(metrics[index].get(metric or ""), largest_first=largest_first)

    return sorted(sorted(metrics), key=place)


def _print_table(
    done: Sequence[PointStatus], keys: Sequence[str], metrics: Mapping[int, Mapping[str, Any]], sorted_by: str | None,
    objective: Sequence[str],
) -> None:  # fmt: skip
    # The metrics of the objective, and as far as they fit the keys, then the metrics in which points differ
    values = {name: [each.get(name) for each in metrics.values()] for name in names_of(metrics)}
    first = [name for name in dict.fromkeys((sorted_by, *objective)) if name in values]
    varied = [
        name for name, found in values.items()
        if name not in first and not any(isinstance(value, (list, tuple)) for value in found)
        and (len(done) == 1 or len(set(map(repr, found))) > 1)
    ]  # fmt: skip
    heads = ["POINT", *keys, *first, *varied]
    rows = [[head.removeprefix("workload.") for head in heads]]
    for place, each in enumerate(done):
        own, found = sweep_directory.values_of(each.point.overrides, keys), metrics[each.point.index]
        best = " best" if place == 0 and sorted_by in found else ""
        cells = [cut(own.get(key, "-"), output.LONGEST_CELL) for key in keys]
        rows.append(
            [f"{each.point.index}{best}", *cells, *(output.metric_text(found.get(name)) for name in (*first, *varied))]
        )
    behind_keys = 1 + len(keys)
    fit = output.fitting(rows, [*range(1, behind_keys), *range(behind_keys + len(first), len(heads))])
    print_columns([[row[column] for column in fit] for row in rows])
    shown = {heads[column] for column in fit}
    if left := [name for name in (*keys, *values) if name not in shown]:
        print()
        print(*indented(f"left out, --csv has them: {', '.join(left)}", 0), sep="\n")


def _print_others(sweep: Sweep, seen: Sequence[PointStatus], keys: Sequence[str]) -> None:
    ended = [each for each in seen if each.over and each.state not in (RunState.DONE.value, RunState.PRUNED.value)]
    if ended:
        print()
    for each in ended[:FAILURES]:
        line = f"point {each.point.index} {each.state}: {label(each.point.overrides, keys)}".rstrip(": ")
        print(cut(line, output.terminal_width()))
        if cause := cause_of_point(each):
            print(*indented(cause, 2), sep="\n")
    if len(ended) > FAILURES:
        print(f"... and {len(ended) - FAILURES} more; `{program()} sweep status {sweep.id} --all` shows all")
    print(f"\n{sweep.id}: {summary(counts(seen))}")


def _print_best(
    seen: Sequence[PointStatus], metrics: Mapping[int, Mapping[str, Any]], ranked: Sequence[int], metric: str | None,
    keys: Sequence[str],
) -> None:  # fmt: skip
    if not ranked:
        return
    best = next(each.point for each in seen if each.point.index == ranked[0])
    if metric is None:
        print("no objective: `--sort METRIC` orders them; sweep.objective=METRIC sets one")
    elif metric not in metrics[best.index]:
        print(f"no point has the objective {metric!r} in its result: report it with launcher.report in the code")
    else:
        print(f"best  point {best.index}, {metric} {output.metric_text(metrics[best.index][metric])}: "
              f"{label(best.overrides, keys)}".rstrip(": "))  # fmt: skip
        print(f"run   {build.command(program(), best.overrides)}")


def csv_cell(value: Any) -> Any:
    """Returns a value as a CSV cell that no spreadsheet takes for a formula.

    Text that starts like a formula gets an apostrophe in front (https://owasp.org/www-community/attacks/CSV_Injection).
    """
    if not isinstance(value, str) or not value.startswith(("=", "+", "-", "@", "\t", "\r", "\n", "|", "%")):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def _write_csv(
    path: str, seen: Sequence[PointStatus], keys: Sequence[str], metrics: Mapping[int, Mapping[str, Any]]
) -> None:
    names = names_of(metrics)
    buffer = io.StringIO()
    writer = csv_format.writer(buffer, lineterminator="\n")
    writer.writerow(map(csv_cell, ["point", *keys, "state", *names, "cause", "rank", "host"]))
    for each in seen:
        own = sweep_directory.values_of(each.point.overrides, keys)
        found, columns = metrics.get(each.point.index, {}), row(each)
        values = [found.get(name, "") for name in names]
        writer.writerow(map(csv_cell, [
            each.point.index, *(own.get(key, "") for key in keys), each.state,
            *(json.dumps(value) if isinstance(value, (list, bool)) else value for value in values),
            *(columns[key] if columns[key] is not None else "" for key in ("cause", "rank", "host")),
        ]))  # fmt: skip
    if path == "-":
        sys.stdout.write(buffer.getvalue())
        return
    try:
        Path(path).write_text(buffer.getvalue(), errors="replace")
    except OSError as error:
        raise ConfigError(f"--csv {path}: the file cannot be written ({error.strerror})") from None
    print(f"{path}: {plural(len(seen), 'point')}")


# -- `sweep rerun`, `sweep cancel` and `sweep throttle`


def _rerun(sweep: Sweep, points: Sequence[int] | None, *, yes: bool) -> int:
    from launcher.submission.resume import secrets_again
    from launcher.sweeps import control

    def ask(chosen: Mapping[int, JobPlan]) -> None:
        if plans := [plan for plan in chosen.values() if plan.queued]:
            above = sweep.run(next(iter(chosen))).record().get("config", {}).get("confirm_above")
            output.confirm(plans, above, yes=yes)

    submitted = control.rerun(sweep, points, ask, secrets_again)
    if submitted is None:
        print(f"{sweep.id}: there is nothing to run again; points that were cancelled are run again if you name them")
        return 0
    for job, indices in submitted.jobs:
        print(f"job      {job}: {_points(indices)}")
    if submitted.pilots is not None:
        _print_pilots(sweep, submitted.pilots)
    else:
        if submitted.local:
            print(f"here     {_points(submitted.local)}")
        if submitted.not_accepted:
            print(f"left     {_points(submitted.not_accepted)}: {submitted.limit}")
            print(f"         later: {program()} sweep rerun {sweep.id}")
    print(f"next     {program()} sweep wait {sweep.id}")
    return 1 if submitted.is_partial else 0


def _print_pilots(sweep: Sweep, submitted: SubmittedPilots) -> None:
    for number, pilot in submitted.jobs.items():
        print(f"pilot    {sweep.pilot(number).id}: job {pilot.job_id}")
    if submitted.left and (packing := sweep.manifest().packing):
        print(f"left     {plural(submitted.left, 'pilot')}: {submitted.words}")
        print(f"         later: {program()} sweep throttle {sweep.id} {packing.pilots}")


def _points(points: Sequence[int]) -> str:
    text = ranges(sorted(points))
    if len(text) > 40:
        text = f"{text[:37].rpartition(',')[0]},..."
    return f"point {text}" if len(points) == 1 else f"{len(points)} points ({text})"


def cancel(sweep: Sweep, points: Sequence[int] | None) -> int:
    """Cancels the points with these numbers (None: all points) and prints which; returns 0."""
    from launcher.sweeps import control

    before = control.cancel(sweep, points)
    started = [index for index, state in before.items() if state != sweep_status.WAITING]
    waiting = [index for index, state in before.items() if state == sweep_status.WAITING]
    if waiting:
        print(f"{sweep.id}: {_points(waiting)} will not start")
    if started:
        print(f"{sweep.id}: {_points(started)} {'is' if len(started) == 1 else 'are'} being cancelled")
    if over := [index for index in points or () if index not in before]:
        print(f"{sweep.id}: {_points(over)} {'is' if len(over) == 1 else 'are'} over already")
    if not before and points is None:
        print(f"{sweep.id} is over already")
    return 0


def _throttle(sweep: Sweep, most: int) -> int:
    if sweep.manifest().packing is not None:
        from launcher.submission.resume import secrets_again
        from launcher.sweeps.submit import throttle_pilots

        submitted, stopping = throttle_pilots(sweep, most, secrets_again)
        print(f"{sweep.id}: {plural(most, 'pilot')}")
        _print_pilots(sweep, submitted)
        for name in stopping:
            print(f"stops    {name}: its points go on in others")
        if submitted.enough == 0:
            print("all its points are over: no pilot is submitted")
        elif submitted.enough is not None:
            print(f"{plural(submitted.enough, 'pilot')} can run all points that are left: no more is submitted")
        return 1 if submitted.left else 0
    from launcher.sweeps import control

    given = control.throttle(sweep, most)
    print(f"{sweep.id}: at most {plural(most, 'point')} at once")
    for job, part in given:
        print(f"  {part} of array {job}")
    if len(given) > most:
        print(f"  {len(given)} arrays wait, and each runs one point at least")
    return 0
