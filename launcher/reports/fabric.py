"""The section about a benchmark of the interconnect: figures, tables, and the comparison with a baseline.

Rows of two runs that agree in all columns except those in MEASURED are the same measurement.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.formatting import clean, long_size, plural, si, si_unit, three_digits
from launcher.reports.collect import FabricResults, Row, RunData, block_of, mapping, positive
from launcher.reports.page import DASHES, CodeBlock, Figure, Section, Table, axis, change_text, colour, line, plain_text
from launcher.schedulers import registry

MEASURED = {"seconds", "algbw", "busbw", "bandwidth", "latency", "wrong", "checked", "missing", "iterations",
            "messages", "count"}  # fmt: skip
COLUMNS = ("group", "ranks", "dtype", "redop", "root", "place", "async", "window")  # distinguish curves of an operation


@dataclass(frozen=True)
class SizeCurve:
    op: str  # the operation or pattern (`all_reduce`)
    kind: str  # what distinguishes the curve from others of the same operation (`float16 in place`); may be empty
    sizes: tuple[int, ...]  # of messages in bytes, increasing
    values: tuple[float, ...]  # at each size


@dataclass(frozen=True)
class Difference:
    """The same measurement in a run and in its baseline."""

    what: str  # the operation, or the pair of hosts (`node1 → node2`)
    size: int | None  # of messages in bytes; None: not known
    measure: str  # `busbw` or `bandwidth` in bytes/s, `time` or `latency` in seconds
    now: float
    then: float  # in the baseline

    @property
    def speed(self) -> float:
        """The run's speed divided by the baseline's (for times, the inverse ratio): less than 1 is slower."""
        return self.then / self.now if MEASURES[self.measure][1] == "s" else self.now / self.then


def seconds_of(row: Row, part: str) -> float | None:
    """part: `median`, `min` or `p99`."""
    seconds = row.get("seconds")
    return positive(seconds.get(part)) if isinstance(seconds, Mapping) else None


def measured(row: Row, measure: str) -> float | None:
    """measure: a key of MEASURES."""
    return seconds_of(row, "median") if measure == "time" else positive(row.get(measure))


def operation(row: Row) -> str:
    return str(row.get("op") or row.get("pattern") or "?")


def lines(rows: Iterable[Row], measure: str) -> list[SizeCurve]:
    """Returns curves of a key of MEASURES over message size, one a combination of operation and COLUMNS."""
    rows = list(rows)
    kind = kinds(rows)
    found: dict[tuple[str, str], dict[int, float]] = {}
    for row in rows:
        value, size = measured(row, measure), positive(row.get("size"))
        if value is not None and size is not None:
            found.setdefault((operation(row), kind(row)), {})[int(size)] = value
    return [
        SizeCurve(op, kind, tuple(sorted(points)), tuple(points[size] for size in sorted(points)))
        for (op, kind), points in found.items()
    ]


def kinds(rows: Sequence[Row]) -> Callable[[Row], str]:
    """Returns what tells a row from others of its operation: the COLUMNS that vary (`float16 in place`)."""
    values: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        for column in COLUMNS:
            values.setdefault((column, operation(row)), set()).add(_word(column, row))
    several = {column for (column, _), each in values.items() if len(each) > 1}
    differing = [column for column in COLUMNS if column in several]
    if "group" in differing and "ranks" in differing:
        differing.remove("ranks")  # the group determines the ranks
    return lambda row: " ".join(word for column in differing if (word := _word(column, row)))


def differences(now: FabricResults, then: FabricResults) -> list[Difference]:
    """Returns the measurements that both the run (`now`) and the baseline (`then`) have, the most slowed down first."""
    before = {_identity(row): row for row in then.rows}
    found = []
    for row in now.rows:
        old = before.get(_identity(row))
        if old is None:
            continue
        size = row.get("size")
        for measure in ("busbw", "bandwidth", "latency"):
            found += _difference(_label(row), size, measure, row.get(measure), old.get(measure))
        if not any(positive(row.get(speed)) for speed in ("busbw", "bandwidth", "latency")):
            found += _difference(_label(row), size, "time", seconds_of(row, "median"), seconds_of(old, "median"))
    if now.matrix is not None and then.matrix is not None and block_of(now.matrix) == block_of(then.matrix) == 1:
        old_pairs = pairs(then.matrix)
        for (a, b), values in pairs(now.matrix).items():
            for measure, ours, theirs in zip(("bandwidth", "latency"), values, old_pairs.get((a, b), ()), strict=False):
                found += _difference(f"{a} → {b}", now.matrix.get("size"), measure, ours, theirs)
    return sorted(found, key=lambda each: each.speed)


def pairs(matrix: Mapping[str, Any]) -> dict[tuple[str, str], tuple[float | None, float | None]]:
    """Returns (bandwidth, latency) of each ordered pair of hosts, in bytes/s and seconds; None: not measured."""
    hosts = [str(host) for host in matrix["hosts"]]
    return {
        (a, b): (matrix["bandwidth"][i][j], matrix["latency"][i][j])
        for i, a in enumerate(hosts)
        for j, b in enumerate(hosts)
        if i != j
    }


def coarse(values: Sequence[Sequence[float | None]], most: int, worst: Any) -> list[list[float | None]]:
    """Returns a matrix, None not measured, shrunk to `most` rows: each cell the worst of a block of cells."""
    size = max(1, math.ceil(len(values) / most))
    if size == 1:
        return [list(row) for row in values]
    places = range(0, len(values), size)

    def cell(i: int, j: int) -> float | None:
        known = [each for row in values[i : i + size] for each in row[j : j + size] if each is not None]
        return worst(known) if known else None

    return [[cell(i, j) for j in places] for i in places]


def _difference(what: str, size: Any, measure: str, now: Any, then: Any) -> list[Difference]:
    ours, theirs = positive(now), positive(then)
    if ours is None or theirs is None:
        return []
    return [Difference(what, int(size) if positive(size) else None, measure, ours, theirs)]


def _identity(row: Row) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((key, str(value)) for key, value in row.items() if key not in MEASURED))


def _label(row: Row) -> str:
    named = (_word(column, row) for column in COLUMNS if column not in ("ranks", "window"))
    return " ".join([operation(row), *(word for word in named if word)])


def _word(column: str, row: Row) -> str:
    value = row.get(column)
    if value is None or value == "" or value is False:
        return ""
    if column == "async":
        return "async"
    if column == "place":
        return {"out": "out of place", "in": "in place"}.get(str(value), str(value))
    return f"{column} {value}" if column in ("root", "window") else str(value)


def size_word(row: Row) -> str:
    return long_size(positive(row.get("size")))


# -- Makes the plotly figures of benchmark results: curves over message size, bars, heat maps of pairs of hosts


MOST_LINES = 8  # lines in one figure; with more, each operation gets its own figures
MOST_TICKS = 7  # ticks of the axis of message sizes
FEW = 50  # below this ratio of the largest to the smallest value, powers of ten are too few ticks
MOST_CELLS = 128  # rows of a heat map; with more nodes, a cell stands for a block of nodes
NUMBERS_UP_TO = 8  # with at most so many nodes, cells show their numbers
# Title and unit of each measured quantity.
MEASURES = {
    "busbw": ("Bus bandwidth", "B/s"),
    "algbw": ("Algorithm bandwidth", "B/s"),
    "bandwidth": ("Bandwidth", "B/s"),
    "latency": ("Latency", "s"),
    "time": ("Time", "s"),
}

Found = Sequence[tuple[str, list[SizeCurve]]]  # name and lines of each run
Named = Sequence[tuple[str, FabricResults]]  # of each run; the first one decides the figures and the roofs


def fabric_figures(runs: Named) -> list[Figure]:
    """Returns all figures of runs of one benchmark: curves, or bars for a single size; then the heat maps."""
    if runs[0][1].workload == "p2p":
        wanted: tuple[str, ...] = ("bandwidth", "latency")
    else:
        wanted = ("busbw", "time") if len(runs) > 1 else ("busbw", "algbw", "time")
    curves = [curve for measure in wanted for curve in _curves(runs, measure)]
    order = list(dict.fromkeys(operation for operation, _ in curves))
    # If operations have separate figures, those of one operation are next to each other.
    figures = [figure for _, figure in sorted(curves, key=lambda curve: order.index(curve[0]))]
    if not figures:
        figures = [figure for measure in wanted if measure != "algbw" for figure in _bars(runs, measure)]
    for name, fabric in runs:
        figures += matrix_figures(fabric, name if len(runs) > 1 else "")
    return figures


def _curves(runs: Named, measure: str) -> list[tuple[str, Figure]]:
    # The list is empty if nothing was measured at two sizes
    found = [(name, lines(fabric.rows, measure)) for name, fabric in runs]
    if not any(len(line.sizes) > 1 for _, curves in found for line in curves):
        return []
    title, unit = MEASURES[measure]
    operations = list(dict.fromkeys(line.op for _, curves in found for line in curves))
    if len(operations) == 1 or sum(len(curves) for _, curves in found) <= MOST_LINES:
        return [("", _curve_figure(title, unit, found, runs[0][1]))]
    if measure == "algbw":  # busbw is that times a factor; the table has both
        return []
    return [
        (operation, _curve_figure(f"{operation}: {title.lower()}", unit, part, runs[0][1], height=240))
        for operation in operations
        for part in [[(name, [line for line in curves if line.op == operation]) for name, curves in found]]
    ]


def _curve_figure(title: str, unit: str, found: Found, first: FabricResults, height: int = 300) -> Figure:
    # Colours stand for runs; with one run, for operations
    several = len(found) > 1
    ops = list(dict.fromkeys(line.op for _, curves in found for line in curves))
    names = list(dict.fromkeys((line.op, line.kind) for _, curves in found for line in curves))
    kinds = list(dict.fromkeys(line.kind for _, curves in found for line in curves))
    sizes = sorted({size for _, curves in found for line in curves for size in line.sizes})
    traces: list[dict[str, Any]] = []
    for place, (run, curves) in enumerate(found):
        for each in curves:
            words_of = [run] * several + [each.op] * (len(ops) > 1 or not (each.kind or several)) + [each.kind]
            if several:
                shade, dash = place, names.index((each.op, each.kind))
            else:
                shade, dash = (ops.index(each.op), kinds.index(each.kind)) if len(ops) > 1 else (len(traces), 0)
            name, hover = " ".join(filter(None, words_of)), "%{y:.3s}" + unit
            traces.append(
                line(name, each.sizes, each.values, colour(shade), dash=DASHES[dash % len(DASHES)], hovertemplate=hover)
            )
    values = [value for trace in traces for value in trace["y"]]
    shown = len(traces) > 1
    if unit == "B/s":
        roofs = sorted(first.roofs().items(), key=lambda roof: -roof[1])
        for place, (name, speed) in enumerate(roofs):
            # One above and one below, at different ends: they may lie close together.
            texts = {
                "text": [f"roof: {name}", ""][:: (1, -1)[place % 2]], "textfont": {"color": "--muted", "size": 11},
                "textposition": ("top right", "bottom left")[place % 2], "hovertemplate": "%{y:.3s}" + unit,
            }  # fmt: skip
            traces.append(line(
                f"roof: {name}", [sizes[0], sizes[-1]], [speed, speed], "--muted", width=1.5,
                dash=("dash", "dot")[place % 2], mode="lines+text", showlegend=False, **texts,
            ))  # fmt: skip
    speeds = [*values, *(first.roofs().values() if unit == "B/s" else ())]
    layout = {
        "xaxis": axis("size", type="log", **_size_ticks(sizes)),
        "yaxis": axis(type="log", **_log_ticks(values, unit), range=_log_range(speeds)),
        "hovermode": "closest",
        "showlegend": shown,
    }
    single = "" if shown or traces[0]["name"] in title else f" ({traces[0]['name']})"
    legend = 24 + 18 * math.ceil(len(names) * len(found) / 2) if shown else 0
    return Figure(clean(title + single), traces, layout, height=height + legend)


def _log_range(values: Sequence[float]) -> list[float]:
    low, high = math.log10(min(values)), math.log10(max(values))
    room = max(high - low, 0.3)
    return [low - 0.06 * room, high + 0.12 * room]


def _log_ticks(values: Sequence[float], unit: str) -> dict[str, Any]:
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    factors = (1, 2, 5) if max(values) / min(values) < FEW else (1,)
    ticks = [factor * 10.0**power for power in range(low, high + 1) for factor in factors]
    return {"tickmode": "array", "tickvals": ticks, "ticktext": [si(tick, unit) for tick in ticks]}


def _size_ticks(sizes: Sequence[int]) -> dict[str, Any]:
    chosen = list(sizes[:: math.ceil(len(sizes) / MOST_TICKS)])
    return {"tickmode": "array", "tickvals": chosen, "ticktext": [long_size(size) for size in chosen]}


def _bars(runs: Named, measure: str) -> list[Figure]:
    title, unit = MEASURES[measure]
    traces: list[dict[str, Any]] = []
    labels: list[str] = []
    for place, (name, fabric) in enumerate(runs):
        rows = [row for row in fabric.rows if measured(row, measure) is not None]
        kind, sizes = kinds(rows), len({row.get("size") for row in rows}) > 1
        names = [" ".join(filter(None, [operation(row), kind(row), size_word(row) if sizes else ""])) for row in rows]
        labels += names
        traces.append({
            "type": "bar", "orientation": "h", "name": plain_text(name), "y": [plain_text(each) for each in names],
            "x": [measured(row, measure) for row in rows], "marker": {"color": colour(place)},
            "hovertemplate": "%{x:.3s}" + unit + "<extra></extra>",
        })  # fmt: skip
    if not labels:
        return []
    layout = {
        "xaxis": axis(tickformat="~s", ticksuffix=unit, nticks=6, rangemode="tozero"),
        "yaxis": axis(type="category", autorange="reversed", showgrid=False),
        "showlegend": len(runs) > 1,
        "hovermode": "closest",
        "margin": {"t": 26, "l": 8, "r": 12, "b": 8},
    }  # fmt: skip
    height = 100 + 26 * len(dict.fromkeys(labels)) * len(runs)
    return [Figure(title, traces, layout, height=min(900, height))]


def matrix_figures(fabric: FabricResults, run: str = "") -> list[Figure]:
    """Returns heat maps of all pairs of hosts, worse cells darker."""
    matrix = fabric.matrix
    if matrix is None:
        return []
    hosts = [str(host) for host in matrix["hosts"]]
    block = block_of(matrix) * max(1, math.ceil(len(matrix["latency"]) / MOST_CELLS))
    names = [hosts[place] if block == 1 else f"{hosts[place]} …" for place in range(0, len(hosts), block)]
    measures = [name for name in ("bandwidth", "latency") if {cell for row in matrix[name] for cell in row} - {None}]
    return [_heat_map(matrix, names, block, measure, run) for measure in measures]


def _heat_map(matrix: Any, names: list[str], block: int, measure: str, run: str) -> Figure:
    title, unit = MEASURES[measure]
    fast = measure == "bandwidth"
    values = coarse(matrix[measure], MOST_CELLS, min if fast else max)
    known = [cell for row in values for cell in row if cell is not None]
    middle = statistics.median(known)
    labels = [plain_text(name) for name in names]
    small = len(names) <= NUMBERS_UP_TO
    # The range is never narrow, so that nearly equal links look equal.
    if fast:
        least, most = min(*known, middle / 2), 1.05 * max(known)
    else:
        least, most = 0.95 * min(known), max(*known, 2 * middle)
    heat: dict[str, Any] = {
        "type": "heatmap", "x": labels, "y": labels,
        "z": [[cell and float(f"{cell:.4g}") for cell in row] for row in values],
        "zmin": least, "zmax": most, "colorscale": [[0, "--heat-bad"], [0.5, "--heat-mid"], [1, "--heat-good"]],
        "reversescale": not fast, "xgap": 2 if len(names) < 40 else 0, "ygap": 2 if len(names) < 40 else 0,
        "showscale": not small,
        "colorbar": {"thickness": 10, "outlinewidth": 0, "tickformat": "~s", "ticksuffix": unit, "len": 0.9},
        "hovertemplate": "%{y} → %{x}: %{z:.3s}" + unit + "<extra></extra>", "hoverongaps": False,
    }  # fmt: skip
    scale, scaled = si_unit(middle, unit)
    if small:  # the numbers fit into the cells
        heat["text"] = [["" if cell is None else three_digits(cell / scale) for cell in row] for row in values]
        heat["texttemplate"] = "%{text}"
        heat["textfont"] = {"size": 12}
    layout = {
        "xaxis": axis("to", type="category", showgrid=False),
        "yaxis": axis("from", type="category", autorange="reversed", showgrid=False),
        "showlegend": False,
    }
    sent = matrix.get("size" if fast else "latency_size")
    size = f" with {long_size(sent)}" if sent else ""
    heading = f"{run + ': ' if run else ''}{title} of pairs{size}" + (f", {scaled}" if small else "")
    caption = f"Each cell is the worst of {block} x {block} nodes." if block > 1 else ""
    return Figure(clean(heading), [heat], layout, caption, height=max(240, min(480, 110 + 44 * len(names))))


# -- Makes the section about a benchmark: conditions, figures, slow pairs, differences, all numbers


TOLERANCE = 0.2  # rows that differ from the baseline's speed by more than this fraction are marked
MOST_ROWS = 1000  # of each table
HEADS = ("operation", "group", "ranks", "size", "type", "redop", "place", "median", "min", "p99", "latency", "algbw",
         "busbw", "bandwidth", "of roof", "wrong", "not measured")  # fmt: skip
# The columns with what a row says, and its key there.
WORDS = {"group": "group", "ranks": "ranks", "type": "dtype", "redop": "redop", "place": "place",
         "not measured": "missing"}  # fmt: skip


def fabric_section(runs: Sequence[RunData], against: RunData | None = None) -> Section | None:
    """Returns the section about a benchmark, that of the first run with results; against: the baseline."""
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
            codes.append(CodeBlock("exclude the suspected nodes with", override))
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
    name = mapping(run.plan.get("cluster")).get("scheduler")
    return registry.scheduler(name).without(hosts, run.cluster_settings) if hosts and name in registry.names() else ""


def conditions(known: Mapping[str, Any]) -> str:
    """Returns a benchmark's conditions: `4 ranks on 2 nodes, gloo over eth0; 20 iterations after 5 of warm-up.`"""
    parts = [f"{plural(known.get('world_size', '?'), 'rank')} on {plural(known.get('nodes', '?'), 'node')}"]
    backend = str(known.get("backend", "?")) + (f" {known['backend_version']}" if known.get("backend_version") else "")
    parts.append(backend + (f" over {known['interface']}" if known.get("interface") else ""))
    parts += [str(known["device_name"])] if known.get("device_name") else []
    text = ", ".join(parts)
    return f"{text}; {known.get('iterations', '?')} iterations after {known.get('warmup', '?')} of warm-up."


def rows_table(rows: Sequence[Row], roofs: Mapping[str, float], summary: str) -> Table:
    """Returns the table of all measurements without empty columns; roofs: upper limits in bytes/s, by name."""
    roof = roofs.get("socket") or roofs.get("memory")

    def cells(row: Row) -> dict[str, str]:
        words = {head: str(row.get(key) or "") for head, key in WORDS.items()}
        words |= {part: _measure(seconds_of(row, part), "s") for part in ("median", "min", "p99")}
        words |= {each: _measure(measured(row, each), MEASURES[each][1]) for each in MEASURES if each != "time"}
        speed = measured(row, "busbw") or measured(row, "bandwidth")
        return words | {
            "operation": operation(row), "size": size_word(row),
            "wrong": "" if row.get("wrong") is None else str(row["wrong"]),
            "place": words["place"] + (" async" if row.get("async") else ""),
            "of roof": f"{100 * speed / roof:.0f} %" if speed and roof else "",
        }  # fmt: skip

    shown = rows[:MOST_ROWS]
    found = [cells(row) for row in shown]
    kept = [head for head in HEADS if any(each[head] for each in found)]
    text = [tuple(each[head] for head in kept) for each in found]
    left = frozenset(at for at, head in enumerate(kept) if head == "operation" or (head in WORDS and head != "ranks"))
    marks = {number: "bad" for number, row in enumerate(shown) if row.get("wrong") or row.get("missing")}
    more = f" (the first {MOST_ROWS} of {len(rows)})" if len(rows) > MOST_ROWS else ""
    return Table(tuple(kept), text, left, marks, summary + more)


def differences_table(run: RunData, against: RunData) -> Table:
    """Returns the table of the measurements that a run and its baseline share, those beyond `tolerance` marked."""
    assert run.fabric is not None and against.fabric is not None
    tolerance = run.config.get("tolerance")
    limit = float(tolerance) if isinstance(tolerance, int | float) else TOLERANCE
    found = differences(run.fabric, against.fabric)[:MOST_ROWS]
    rows, marks = [], {}
    for number, each in enumerate(found):
        unit = MEASURES[each.measure][1]
        then, now, change = si(each.then, unit), si(each.now, unit), change_text(each.now, each.then)
        rows.append((each.what, long_size(each.size) if each.size else "", each.measure, then, now, change))
        if not 1 - limit <= each.speed <= 1 / (1 - limit):
            marks[number] = "bad" if each.speed < 1 else "good"
    slower = sum(mark == "bad" for mark in marks.values())
    summary = f"{run.id} against {against.id}: {slower} of {len(found)} slower by more than {limit:.0%}"
    return Table(("what", "size", "measure", against.id, run.id, "change"), rows, frozenset({0, 2}), marks, summary)


def slow_table(matrix: Mapping[str, Any]) -> Table:
    rows = [
        (
            f"{each.get('a', '?')} - {each.get('b', '?')}", si(each.get("bandwidth"), "B/s"),
            si(each.get("latency"), "s"), f"{each['ratio']:.2f}" if each.get("ratio") else "-",
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


def _measure(value: float | None, unit: str) -> str:
    return "" if value is None else si(value, unit)
