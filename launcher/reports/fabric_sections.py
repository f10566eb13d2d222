"""Makes the section about a benchmark: conditions, figures, slow pairs, differences, all numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from launcher.formatting import long_size, plural
from launcher.reports import words
from launcher.reports.collect import RunData
from launcher.reports.fabric import Row, differences, measured, median, operation, positive, size_word
from launcher.reports.fabric_figures import fabric_figures
from launcher.reports.parts import Code, Section, Table
from launcher.schedulers import registry

TOLERANCE = 0.2  # rows that differ from the baseline's speed by more than this fraction are marked
MOST_ROWS = 1000  # of each table


def fabric_section(runs: Sequence[RunData], against: RunData | None = None) -> Section | None:
    """Returns the section about a benchmark; None: no run has results.

    Args:
        runs: the runs. The first one with results decides the benchmark; runs of other benchmarks are left out.
        against: the baseline; None: nothing is compared.
    """
    known = [(run, run.fabric) for run in runs if run.fabric and (run.fabric.rows or run.fabric.matrix)]
    if not known:
        return None
    first, results = known[0]
    same = [(run, fabric) for run, fabric in known if fabric.workload == results.workload]
    tables: list[Table] = []
    if against is not None and any(run is against for run, _ in same):
        tables += [differences_table(run, against) for run, _ in same if run is not against]
    codes = []
    if results.matrix is not None:
        if slow := slow_table(results.matrix):
            tables.append(slow)
        if override := _exclude(first, str(results.matrix.get("exclude") or "")):
            codes.append(Code("exclude the suspected nodes with", override))
    of_run = f" of {first.id}" if len(same) > 1 else ""
    tables.append(rows_table(results.rows, results.roofs(), f"All numbers{of_run}"))
    note = conditions(results.conditions)
    if results.roof.get("how"):
        note += f" Roof: {results.roof['how']}."
    if not results.complete:
        note += f" Not complete{': ' + results.reason if results.reason else ''}."
    figures = fabric_figures([(run.id, fabric) for run, fabric in same])
    return Section("Fabric", note, codes, figures, [table for table in tables if table.rows])


def _exclude(run: RunData, hosts: str) -> str:
    cluster = run.plan.get("cluster")
    name = cluster.get("scheduler") if isinstance(cluster, Mapping) else None
    return registry.without(name, hosts, run.cluster_settings) if hosts and name in registry.names() else ""


def conditions(known: Mapping[str, Any]) -> str:
    """Returns a benchmark's conditions (`Fabric.conditions`) as text.

    For example `4 ranks on 2 nodes, gloo over eth0; 20 iterations after 5 of warm-up.`
    """
    parts = [f"{plural(known.get('world_size', '?'), 'rank')} on {plural(known.get('nodes', '?'), 'node')}"]
    backend = str(known.get("backend", "?")) + (f" {known['backend_version']}" if known.get("backend_version") else "")
    parts.append(backend + (f" over {known['interface']}" if known.get("interface") else ""))
    parts += [str(known[key]) for key in ("device_name",) if known.get(key)]
    text = ", ".join(parts)
    return f"{text}; {known.get('iterations', '?')} iterations after {known.get('warmup', '?')} of warm-up."


def rows_table(rows: Sequence[Row], roofs: Mapping[str, float], summary: str) -> Table:
    """Returns the table of all measurements, without empty columns.

    Args:
        rows: the measurements.
        roofs: the measured upper limits in bytes/s, by name; the column `of roof` is relative to one of them.
        summary: the text on which to click to open the table.
    """
    roof = roofs.get("socket") or roofs.get("memory")
    columns: list[tuple[str, Any]] = [
        ("operation", operation),
        ("group", lambda row: str(row.get("group") or "")),
        ("ranks", lambda row: str(row.get("ranks") or "")),
        ("size", size_word),
        ("type", lambda row: str(row.get("dtype") or "")),
        ("redop", lambda row: str(row.get("redop") or "")),
        ("place", lambda row: str(row.get("place") or "") + (" async" if row.get("async") else "")),
        ("median", lambda row: _or_empty(words.latency, median(row))),
        ("min", lambda row: _seconds(row, "min")),
        ("p99", lambda row: _seconds(row, "p99")),
        ("latency", lambda row: _or_empty(words.latency, measured(row, "latency"))),
        ("algbw", lambda row: _or_empty(words.rate, measured(row, "algbw"))),
        ("busbw", lambda row: _or_empty(words.rate, measured(row, "busbw"))),
        ("bandwidth", lambda row: _or_empty(words.rate, measured(row, "bandwidth"))),
        ("of roof", lambda row: _share(measured(row, "busbw") or measured(row, "bandwidth"), roof)),
        ("wrong", lambda row: "" if row.get("wrong") is None else str(row["wrong"])),
        ("not measured", lambda row: str(row.get("missing") or "")),
    ]  # fmt: skip
    shown = rows[:MOST_ROWS]
    cells = [[read(row) for row in shown] for _, read in columns]
    kept = [place for place, column in enumerate(cells) if any(column)]
    text = [tuple(cells[place][number] for place in kept) for number in range(len(shown))]
    left = frozenset(at for at, place in enumerate(kept) if place in (0, 1, 4, 5, 6, 16))
    marks = {number: "bad" for number, row in enumerate(shown) if row.get("wrong") or row.get("missing")}
    more = f" (the first {MOST_ROWS} of {len(rows)})" if len(rows) > MOST_ROWS else ""
    return Table(tuple(columns[place][0] for place in kept), text, left, marks, summary + more)


def differences_table(run: RunData, against: RunData) -> Table:
    """Returns the table of the measurements that a run and its baseline (`against`) have in common.

    Rows that differ by more than the run's config key `tolerance` (else TOLERANCE) are marked. Both runs must have
    results.
    """
    assert run.fabric is not None and against.fabric is not None
    tolerance = run.config.get("tolerance")
    limit = float(tolerance) if isinstance(tolerance, int | float) else TOLERANCE
    found = differences(run.fabric, against.fabric)[:MOST_ROWS]
    rows, marks = [], {}
    for number, each in enumerate(found):
        shown = words.latency if each.measure in ("time", "latency") else words.rate
        size = long_size(each.size) if each.size else ""
        rows.append(
            (each.what, size, each.measure, shown(each.then), shown(each.now), words.change(each.now, each.then))
        )
        if not 1 - limit <= each.speed <= 1 / (1 - limit):
            marks[number] = "bad" if each.speed < 1 else "good"
    slower = sum(mark == "bad" for mark in marks.values())
    summary = f"{run.id} against {against.id}: {slower} of {len(found)} slower by more than {limit:.0%}"
    return Table(("what", "size", "measure", against.id, run.id, "change"), rows, frozenset({0, 2}), marks, summary)


def slow_table(matrix: Mapping[str, Any]) -> Table:
    """Returns the table of the slow pairs of hosts in a matrix; it may have no rows."""
    rows = [
        (
            f"{each.get('a', '?')} - {each.get('b', '?')}", words.rate(each.get("bandwidth")),
            words.latency(each.get("latency")), f"{each['ratio']:.2f}" if each.get("ratio") else "-",
            str(each.get("against", "")),
        )
        for each in (matrix.get("slow") or ())[:MOST_ROWS]
    ]  # fmt: skip
    count = int(positive(matrix.get("slow_pairs")) or len(rows))
    summary = f"the {len(rows):,} slowest of {count:,} slow pairs" if count > len(rows) else ""
    return Table(
        ("slow pair", "bandwidth", "latency", "of normal", "against"), rows, frozenset({0, 4}),
        dict.fromkeys(range(len(rows)), "bad"), summary,
    )  # fmt: skip


def _or_empty(shown: Any, value: float | None) -> str:
    return "" if value is None else str(shown(value))


def _seconds(row: Row, part: str) -> str:
    seconds = row.get("seconds")
    return _or_empty(words.latency, positive(seconds.get(part)) if isinstance(seconds, Mapping) else None)


def _share(speed: float | None, roof: float | None) -> str:
    return f"{100 * speed / roof:.0f} %" if speed and roof else ""
