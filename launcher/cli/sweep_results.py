"""`sweep results`: prints the points of a sweep with their metrics, the best one first."""

from __future__ import annotations

import csv as csv_format
import io
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.cli.sweep_status import WIDTH, indented, row
from launcher.cli.text import cut, print_columns, program
from launcher.errors import ConfigError, near
from launcher.formatting import plural
from launcher.monitoring.state import RunState
from launcher.monitoring.sweep import PointStatus, counts, point_statuses, summary
from launcher.runs.search_record import Journal, SearchRecord, SearchSettings
from launcher.runs.sweep_directory import Manifest, Sweep, differing, label, values_of
from launcher.search.progress import rung_lines, rungs_of
from launcher.spec import build

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
    """Prints the points of a sweep as a table, as JSON or as CSV; returns 0.

    sort, reverse: see `order_of`.
    csv: path of the CSV file to write; `-`: stdout; None: no CSV.
    as_json: whether JSON is printed.
    Raises ConfigError: no point has the metric `sort`, or the file cannot be written.
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


def order_of(sort: str | None, reverse: bool, manifest: Manifest, known: Sequence[str]) -> Order:
    """Returns the order of points: by the metric `sort`, else by the sweep's objective.

    | sort | order of points |
    |---|---|
    | None | by the objective, the best first; without an objective by number |
    | the objective | the best first |
    | another metric | the smallest first |

    sort: a metric; None: see the table.
    reverse: whether the order is reversed.
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
    """Returns the numbers of points in the given order; points without the metric, or with NaN, come last.

    metrics: the metrics of each point, by the point's number.
    """

    def place(index: int) -> tuple[bool, float, int]:
        value = metrics[index].get(order.metric or "")
        if not isinstance(value, (int, float)) or value != value:
            return True, 0.0, index
        return False, -float(value) if order.largest_first else float(value), index

    return sorted(metrics, key=place)


# -- the table


def columns(metrics: Mapping[int, Mapping[str, Any]], first: Sequence[str], room: int) -> tuple[list[str], list[str]]:
    """Chooses the metrics that the table shows: `first`, then those in which points differ, as far as they fit.

    If there is only one point, all its metrics may be shown.

    metrics: the metrics of each point, by the point's number.
    first: metrics that are shown even if they do not fit.
    room: width of all columns in characters, with two spaces before each.
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
    manifest: Manifest,
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

    Text that starts like a formula gets an apostrophe in front
    (https://owasp.org/www-community/attacks/CSV_Injection). Numbers, such as `-0.5`, are unchanged.
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
