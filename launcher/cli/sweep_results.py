"""`sweep results`, `sweep wait` and `sweep logs`: follows a sweep, and shows what its points gave."""

from __future__ import annotations

import csv as csv_format
import io
import json
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.cli.follow import wait_until_readable, with_signals
from launcher.cli.progress import Rate, of_sweep, on_terminal, shown
from launcher.cli.sweep_status import WIDTH, indented, row, why
from launcher.cli.text import cut, print_columns, program
from launcher.errors import DONE, FAILED, INTERRUPTED, RESUME, ConfigError, UnavailableError, near
from launcher.formatting import plural, ranges
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
from launcher.runs.lease import is_being_submitted
from launcher.runs.sweep_directory import (
    Journal,
    SearchRecord,
    SearchSettings,
    Sweep,
    SweepManifest,
    differing,
    label,
    values_of,
)
from launcher.schedulers.query_cache import interval
from launcher.search.progress import rung_lines, rungs_of
from launcher.spec import build
from launcher.sweeps import control

MIN_POLL_INTERVAL = 0.2  # seconds; at first, and while points run on this machine
MAX_POLL_INTERVAL = 10.0  # seconds
IDLE_TIME = 5.0  # seconds without a change; then it is checked whether a process still starts the waiting points
MAX_STARTERS = 3  # processes started for waiting points, one after another, without a point changing its state


def follow_to_end(sweep: Sweep, points: Collection[int] | None = None, foreground: bool = False) -> int:
    """Follows a sweep to its end, and returns the command's exit code.

    foreground: whether the sweep belongs to this terminal. If so, Ctrl-C cancels it; else Ctrl-C ends this command.
    Returns 0 if all points are done or pruned, 75 if all others are stopped and can be resumed, 130 if interrupted,
    else 1.
    """

    def cancel(kill: bool) -> None:
        control.cancel(sweep, points, kill=kill)

    result = with_signals(sweep.id, lambda *_: _follow(sweep, points), foreground, cancel)
    if result is None:
        return INTERRUPTED
    seen, interrupted = result
    code = sweep_exit_code(seen)
    record = SearchRecord(sweep.path)
    if record.exists() and (stopped := record.journal().stopped):
        print(f"{sweep.id}: the search has ended: {stopped}", file=sys.stderr)
        code = FAILED
    if on_terminal(sys.stdout):  # elsewhere the last progress line is the same
        print(f"{sweep.id}: {summary(counts(seen))}")
    return INTERRUPTED if interrupted else code


def sweep_exit_code(seen: Sequence[PointStatus]) -> int:
    """Returns the exit code of a command that has waited until these points were over.

    | the points | code |
    |---|---|
    | all done or pruned | 0 |
    | all done, pruned or stopped | 75 |
    | otherwise | 1 |
    """
    states = {each.state for each in seen} - {RunState.DONE.value, RunState.PRUNED.value}
    return FAILED if states - {RunState.STOPPED.value} else RESUME if states else DONE


def ended_line(
    before: Mapping[int, PointStatus], now: Sequence[PointStatus], keys: Sequence[str], objective: Sequence[str] = ()
) -> Iterator[str]:
    """Yields a line, with the metrics of the objective, for each point that has ended since the poll before."""
    for each in now:
        last = before.get(each.point.index)
        if each.over and (last is None or not last.over):
            values = label(each.point.overrides, keys)
            named = f"point {each.point.index}" + (f" ({values})" if values else "")
            more = score_text(each, objective) if each.state == RunState.DONE.value else why(each)
            yield f"{named} {'is done' if each.state == 'done' else each.state}" + (f": {more}" if more else "")


def score_text(each: PointStatus, objective: Sequence[str]) -> str:
    """Formats the metrics of a point that are named in `objective`: `accuracy 0.97, loss 0.1`."""
    metrics = flat(each.point.run.result() or {}) if objective else {}
    return ", ".join(f"{name} {text(metrics[name])}" for name in objective if name in metrics)


def _follow(sweep: Sweep, points: Collection[int] | None) -> list[PointStatus]:
    manifest = sweep.manifest()
    live = SweepMonitor(share=True)
    keys = list(SearchRecord(sweep.path).settings().space) if manifest.search else differing(manifest.points)
    before: dict[int, PointStatus] = {}
    numbers: dict[str, int] = {}
    polls, changed, starters = 0, time.monotonic(), 0

    def look() -> tuple[list[PointStatus], float]:
        began = time.monotonic()
        return point_statuses(sweep, live, points), time.monotonic() - began

    rate = Rate(float("inf"))  # over all the time: points may take hours, and end several at once
    with shown() as show:
        while True:
            seen, took = wait_until_readable(look)
            if not before:  # no line is printed for points that were over at the start
                before = {each.point.index: each for each in seen if each.over}
            for line in ended_line(before, seen, keys, manifest.objective):
                show.print(line)
            before = {each.point.index: each for each in seen}
            if counts(seen) != numbers:
                numbers, polls, changed, starters = counts(seen), 0, time.monotonic(), 0
                rate.add(time.monotonic(), over(numbers))
            # Of a search it is not known how many points there will be.
            text = summary(numbers) if manifest.search else of_sweep(summary(numbers), rate, len(seen))
            show.show(sweep.id, over(numbers), len(seen), text)
            if all(each.over for each in seen):
                if not manifest.search or not _chooses(sweep):
                    return seen
                changed = time.monotonic()
            if time.monotonic() - changed > IDLE_TIME and not any(each.live for each in seen):
                if reason := _start_waiting(sweep, seen, starters):
                    show.print(reason)
                    return seen
                changed, starters = time.monotonic(), starters + 1
            here = any(each.seen is not None and each.live and not each.seen.plan.queued for each in seen)
            # The interval grows with the time that reading the points takes.
            time.sleep(interval(0 if here else polls, took, MIN_POLL_INTERVAL, MAX_POLL_INTERVAL))
            polls += 1


def _chooses(sweep: Sweep) -> bool:
    try:
        return bool(live_pilots(sweep, SweepMonitor(share=True)))
    except UnavailableError:
        return True


def _without_pilots(sweep: Sweep) -> str:
    return f"no pilot runs, and points wait: see why, then\n  {program()} sweep rerun {sweep.id}"


def _start_waiting(sweep: Sweep, seen: Sequence[PointStatus], starters: int) -> str | None:
    # More than one such process does no harm: a lock lets only one of them work
    try:
        if is_being_submitted(sweep.path):  # a submitter is at work
            return None
        if sweep.manifest().packing is not None:
            return None if live_pilots(sweep, SweepMonitor(share=True)) else _without_pilots(sweep)
        asked = sweep.local_requests()
    except UnavailableError:  # not known now; the next call may know
        return None
    waiting = [each.point.index for each in seen if each.state == WAITING]
    if here := [index for index in waiting if index in asked]:
        if starters >= MAX_STARTERS:
            return f"points {ranges(here)} do not start: see {sweep.path}/points.log"
        from launcher.sweeps.submit import start_local_runner

        start_local_runner(sweep)
        return None
    return (
        f"points {ranges(waiting)} were never submitted: repeat the command that makes the sweep, or\n"
        f"  {program()} sweep rerun {sweep.id}"
    )


# -- `sweep results`: prints the points of a sweep with their metrics, the best one first


FAILURES = 20  # failed points that are listed
LONGEST = 24  # characters of a value in the table


@dataclass(frozen=True)
class Order:
    """An order of points."""

    metric: str | None  # the metric by which points are sorted; None: they are sorted by number
    largest_first: bool = False  # whether the point with the largest value comes first


def show(
    sweep: Sweep, *, sort: str | None = None, reverse: bool = False, csv: str | None = None, as_json: bool = False
) -> int:
    """Prints the points of a sweep as a table, as JSON or as CSV (`-`: to stdout); returns 0.

    sort, reverse: see `order_of`. Raises ConfigError: no point has the metric, or the file cannot be written.
    """
    seen, manifest = point_statuses(sweep), sweep.manifest()
    record = SearchRecord(sweep.path)
    search = (record.settings(), record.journal()) if manifest.search else None
    metrics = {each.point.index: flat(each.point.run.result() or {}) for each in seen if each.state == "done"}
    order = order_of(sort, reverse, manifest, names_of(metrics.values()))
    ranked = ranking(metrics, order)
    by_index = {each.point.index: each for each in seen}
    done = [by_index[index] for index in ranked]
    rest = [each for each in seen if each.point.index not in metrics]
    keys = differing(manifest.points)
    if as_json:
        found = [
            {**row(each), "metrics": metrics.get(each.point.index, {}), **_reported(search, each.point.index)}
            for each in (*done, *rest)
        ]
        best = ranked[0] if ranked and order.metric in metrics[ranked[0]] else None
        print(json.dumps({"sweep": sweep.id, "sorted_by": order.metric, "best": best, "points": found}, indent=1))
        return 0
    if csv is not None:
        _write_csv(csv, (*done, *rest), keys, metrics)
        return 0
    if done:
        _print_table(done, keys, metrics, order, manifest)
    if search is not None and (rungs := rung_lines(rungs_of(search[0], search[1]))):
        print()
        print_columns(rungs)
    _print_others(sweep, seen, keys)
    _print_best(seen, metrics, ranked, order, keys)
    return 0


def _reported(search: tuple[SearchSettings, Journal] | None, point: int) -> dict[str, Any]:
    # Empty if the sweep is not a search, or the point has not started
    if search is None or point >= len(search[1].trials):
        return {}
    settings, journal = search
    trial, first = journal.trials[point], journal.min_steps or 1
    rungs = {first * settings.reduction_factor**number: value for number, value in trial.rungs.items()}
    return {"reports": trial.reports, "rungs": rungs}


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flattens nested metrics: the names become dotted, such as `test.accuracy`."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            found.update(flat(value, f"{prefix}{key}."))
        else:
            found[f"{prefix}{key}"] = value
    return found


def names_of(metrics: Sequence[Mapping[str, Any]] | Any) -> list[str]:
    """Returns the names of the metrics of all points, in the order in which they first appear."""
    return list(dict.fromkeys(name for each in metrics for name in each))


def order_of(sort: str | None, reverse: bool, manifest: SweepManifest, known: Sequence[str]) -> Order:
    """Returns the order of points: by the metric `sort`, else by the sweep's objective.

    | sort | order of points |
    |---|---|
    | None | by the objective, the best first; without an objective by number |
    | the objective | the best first |
    | another metric | the smallest first |

    Raises ConfigError: no point has such a metric.
    """
    first = manifest.objective[0] if manifest.objective else None
    if sort is None:
        return Order(first, (manifest.best_is == "max") != reverse)
    if sort not in known:
        hint = f"{near(sort, known)} Known: {', '.join(known)}" if known else " No point has any yet"
        raise ConfigError(f"--sort {sort}: no point has such a metric.{hint}")
    return Order(sort, (sort == first and manifest.best_is == "max") != reverse)


def ranking(metrics: Mapping[int, Mapping[str, Any]], order: Order) -> list[int]:
    """Returns the numbers of points in the given order; points without the metric, or with NaN, come last."""

    def place(index: int) -> tuple[bool, float, int]:
        value = metrics[index].get(order.metric or "")
        if not isinstance(value, (int, float)) or value != value:
            return True, 0.0, index
        return False, -float(value) if order.largest_first else float(value), index

    return sorted(metrics, key=place)


# -- the table


def columns(metrics: Mapping[int, Mapping[str, Any]], first: Sequence[str], room: int) -> tuple[list[str], list[str]]:
    """Chooses the metrics that the table shows: `first`, then those in which points differ, as far as they fit.

    If there is only one point, all its metrics may be shown. room: width of all columns, with two spaces before each.
    Returns the metrics that are shown, and those that are left out.
    """
    known = names_of(metrics.values())
    values = {name: [each.get(name) for each in metrics.values()] for name in known}
    plain = [name for name in known if not any(isinstance(value, (list, tuple)) for value in values[name])]
    varied = [name for name in plain if len(metrics) == 1 or len({repr(value) for value in values[name]}) > 1]
    shown: list[str] = []
    for name in dict.fromkeys((*(each for each in first if each in known), *varied)):
        width = 2 + max(len(name), *(len(text(value)) for value in values[name]))
        if name in first or width <= room:
            shown.append(name)
            room -= width
    return shown, [name for name in known if name not in shown]


def text(value: Any) -> str:
    """Formats a value of a metric for the table."""
    return "-" if value is None else f"{value:.5g}" if isinstance(value, float) else cut(str(value), LONGEST)


def _print_table(
    done: Sequence[PointStatus], keys: Sequence[str], metrics: Mapping[int, Mapping[str, Any]], order: Order,
    manifest: SweepManifest,
) -> None:  # fmt: skip
    wanted = [*([order.metric] if order.metric else []), *manifest.objective]
    lines = [("POINT", *(key.removeprefix("workload.") for key in keys))]
    for place, each in enumerate(done):
        own, index = values_of(each.point.overrides, keys), each.point.index
        mark = " best" if place == 0 and order.metric in metrics[index] else ""
        lines.append((f"{index}{mark}", *(cut(own.get(key, "-"), LONGEST) for key in keys)))
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    least = sum(2 + max(len(name), 8) for name in wanted)
    while len(widths) > 1 and sum(widths) + 2 * len(widths) + least > WIDTH:
        widths.pop()
    omitted = list(keys)[len(widths) - 1 :]
    room = WIDTH - sum(widths) - 2 * (len(widths) - 1)
    shown, left = columns({each.point.index: metrics[each.point.index] for each in done}, wanted, room)
    body = [
        (*line[: len(widths)], *(text(metrics[each.point.index].get(name)) for name in shown))
        for line, each in zip(lines[1:], done, strict=True)
    ]
    print_columns([(*lines[0][: len(widths)], *shown), *body])
    if omitted or left:
        print()
        for line in indented(f"left out, --csv has them: {', '.join((*omitted, *left))}", 0):
            print(line)


def _print_others(sweep: Sweep, seen: Sequence[PointStatus], keys: Sequence[str]) -> None:
    ended = [each for each in seen if each.over and each.state not in (RunState.DONE.value, RunState.PRUNED.value)]
    if ended:
        print()
    for each in ended[:FAILURES]:
        print(cut(f"point {each.point.index} {each.state}: {label(each.point.overrides, keys)}".rstrip(": "), WIDTH))
        if cause := row(each)["cause"]:
            for line in indented(str(cause), 2):
                print(line)
    if len(ended) > FAILURES:
        print(f"... and {len(ended) - FAILURES} more; `{program()} sweep status {sweep.id} --all` shows all")
    print(f"\n{sweep.id}: {summary(counts(seen))}")


def _print_best(
    seen: Sequence[PointStatus], metrics: Mapping[int, Mapping[str, Any]], ranked: Sequence[int], order: Order,
    keys: Sequence[str],
) -> None:  # fmt: skip
    if not ranked:
        return
    best = next(each.point for each in seen if each.point.index == ranked[0])
    if order.metric is None:
        print("no objective: `--sort METRIC` orders them; sweep.objective=METRIC sets one")
    elif order.metric not in metrics[best.index]:
        print(f"no point has the objective {order.metric!r} among its metrics")
    else:
        print(f"best  point {best.index}, {order.metric} {text(metrics[best.index][order.metric])}: "
              f"{label(best.overrides, keys)}".rstrip(": "))  # fmt: skip
        print(f"run   {single_run(best.overrides)}")


def single_run(overrides: Sequence[str]) -> str:
    """Returns the command line that submits a single run with the overrides of a point."""
    return build.command(program(), overrides)


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
    names = names_of(metrics.values())
    buffer = io.StringIO()
    writer = csv_format.writer(buffer, lineterminator="\n")
    writer.writerow(map(csv_cell, ["point", *keys, "state", *names, "cause", "rank", "host"]))
    for each in seen:
        own, found, columns = values_of(each.point.overrides, keys), metrics.get(each.point.index, {}), row(each)
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
