"""The figures of a report, for plotly, and the words for its numbers.

A colour that starts with `--` is a custom property of the page's style sheet, so that it follows light and dark mode.
See https://plotly.com/javascript/reference/ for the keys.
"""

from __future__ import annotations

import html
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from launcher.formatting import clean, exact_time, long_size, si, si_unit, three_digits
from launcher.formatting import number as number_text
from launcher.reports import collect
from launcher.reports.collect import Curve, FabricResults, SizeCurve, Timeline

SERIES = 8  # number of colours in page.css
DASHES = ("solid", "dot", "dash", "dashdot")
DASHED = ("solid", "dotted", "dashed", "dashed and dotted")  # DASHES as text
FEW = 40  # at most so many points of a line have marks
MOST_MARKED = 8  # with more lines in a figure, none has marks
POINTS = 20_000  # about so many points are shown of all curves of a figure together
MOST_MARKS = 300  # about so many moments of one kind are shown in a timeline
LEAST_SHOWN = 0.002  # a kind of span is left out if each of its spans is shorter than this fraction of the whole time
SPANS = {"queued": "--queued", "starting": "--starting", "restarting": "--restarting", "running": "--running"}
MARKS = {
    "checkpoint": ("circle-open", "--ink"),
    "stop": ("square", "--warn"),
    "fault": ("x", "--bad"),
    "restart": ("triangle-right", "--series-5"),
    "resized": ("diamond", "--series-5"),
    "warning": ("triangle-up", "--warn"),
}


@dataclass(frozen=True)
class Figure:
    """A chart that plotly draws in the page."""

    title: str  # may be empty
    traces: Sequence[Mapping[str, Any]]  # plotly's `data`: a dict for each set of points
    layout: Mapping[str, Any]  # plotly's `layout`, without the height
    caption: str = ""  # below the chart
    height: int = 320  # in CSS pixels
    wide: bool = False  # whether the chart takes the full width of the page


def line(name: str, x: Sequence[Any], y: Sequence[Any], shade: str, **more: Any) -> dict[str, Any]:
    """Returns plotly's trace of a line, with marks at its points if they are few; `more` adds or replaces keys."""
    dash, width = more.pop("dash", "solid"), more.pop("width", 2)
    return {
        "type": "scatter", "mode": "lines+markers" if len(x) <= FEW else "lines", "name": plain_text(name),
        "x": x, "y": y, "line": {"color": shade, "width": width, "dash": dash}, "marker": {"size": 5}, **more,
    }  # fmt: skip


def colour(place: int) -> str:
    """Returns the colour of series number `place`, from 0; colours repeat after SERIES."""
    return f"--series-{place % SERIES + 1}"


def axis(title: str = "", **more: Any) -> dict[str, Any]:
    return {"title": {"text": title}, **more} if title else more


def value_text(anything: Any) -> str:
    """Returns a value of a config or of a result as text; `-` for None."""
    if anything is None:
        return "-"
    if isinstance(anything, bool):
        return str(anything).lower()
    return number_text(anything) if isinstance(anything, float) else str(anything)


def span_text(seconds: float) -> str:
    """Returns a duration as text: `0.4s`, `12s`, `3m20s`, `5h2m1s`."""
    return exact_time(round(seconds)) if seconds >= 9.95 else f"{max(0.0, seconds):.1f}s"


def plain_text(text: Any) -> str:
    """Returns text with HTML escaped, because plotly interprets some HTML in names, ticks and hover texts."""
    return html.escape(clean(str(text)), quote=False)


def timeline_figure(timeline: Timeline) -> Figure:
    """Returns the figure of a timeline: a row for each attempt, with bars for its spans and marks for its moments."""
    numbers = sorted({span.attempt for span in timeline.spans})
    traces: list[dict[str, Any]] = []
    begin, end = timeline.begin or 0.0, timeline.end or 0.0
    margin = max(0.5, 0.01 * (end - begin))
    for what, shade in SPANS.items():
        spans = [span for span in timeline.spans if span.what == what]
        if any(span.end - span.begin > LEAST_SHOWN * (end - begin) for span in spans):
            traces.append({
                "type": "bar", "orientation": "h", "name": what, "width": 0.5,
                "base": [clock(span.begin) for span in spans],
                "x": [round(1000 * (span.end - span.begin)) for span in spans],
                "y": [str(span.attempt) for span in spans],
                "marker": {"color": shade, "line": {"width": 0}},
                "customdata": [
                    plain_text(f"{what} for {span_text(span.end - span.begin)}{f': {span.text}' if span.text else ''}")
                    for span in spans
                ],
                "hovertemplate": "%{customdata}<extra></extra>",
            })  # fmt: skip
    for kind, (symbol, shade) in MARKS.items():
        moments = [moment for moment in timeline.moments if moment.kind == kind]
        moments = moments[:: max(1, len(moments) // MOST_MARKS)]
        if moments:
            traces.append({
                "type": "scatter", "mode": "markers", "name": kind,
                "x": [clock(moment.time) for moment in moments], "y": [str(moment.attempt) for moment in moments],
                "marker": {"symbol": symbol, "size": 9, "color": shade, "line": {"width": 1.5, "color": shade}},
                "customdata": [plain_text(moment.text) for moment in moments],
                "hovertemplate": "%{customdata}<extra></extra>",
            })  # fmt: skip
    layout = {
        "barmode": "overlay",
        "xaxis": axis(type="date", showgrid=True, nticks=5, tickangle=0,
                      range=[clock(begin - margin), clock(end + margin)]),
        "yaxis": axis("attempt", type="category", autorange="reversed", showgrid=False,
                      categoryorder="array", categoryarray=[str(number) for number in numbers]),
        "hovermode": "closest",
    }  # fmt: skip
    return Figure("", traces, layout, height=min(640, 130 + 34 * len(numbers)), wide=True)


def clock(time: float) -> str:
    """Returns seconds since the epoch as local time, in the form that plotly expects (`2026-01-31 12:00:00.000`)."""
    return datetime.fromtimestamp(time).isoformat(sep=" ", timespec="milliseconds")


# Groups of curves that share a figure: title, unit, and patterns of the metrics' keys (parts; short ones match whole).
GROUPS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("Loss", "", ("loss",)),
    ("Accuracy", "", ("accuracy",)),
    ("Throughput", "per second", ("_per_s",)),
    ("Learning rate", "", ("lr", "learning_rate")),
)
LOG_FROM = 30.0  # from this ratio of the largest to the smallest loss on, the axis is logarithmic
MOST_FIGURES = 12
IN_COLOUR = 8  # at most so many runs in a figure have a colour of their own
Named = Sequence[tuple[str, Sequence[Curve]]]  # name and curves of each run


def training_figures(runs: Named) -> tuple[list[Figure], str]:
    """Returns a figure for each group of metrics, at most MOST_FIGURES, and a sentence about the others (maybe empty).

    The first IN_COLOUR runs have a colour and a name, others are grey.
    """
    names = list(dict.fromkeys(curve.name for _, curves in runs for curve in curves if len(curve.steps) > 1))
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(_group(name), []).append(name)
    order = [title for title, _, _ in GROUPS]
    titles = sorted(groups, key=lambda title: order.index(title) if title in order else len(order))
    left = f"Without a figure: {', '.join(titles[MOST_FIGURES:])}." if len(titles) > MOST_FIGURES else ""
    return [_training_figure(title, groups[title], runs) for title in titles[:MOST_FIGURES]], left


def legend(runs: Named) -> list[tuple[str, str]]:
    """Returns (colour, name) of what all `training_figures` share; empty for one run, whose figures have it."""
    drawn = [(place, name) for place, (name, curves) in enumerate(runs) if any(len(each.steps) > 1 for each in curves)]
    return [(colour(place), name) for place, name in drawn if place < IN_COLOUR] if len(runs) > 1 else []


def _group(name: str) -> str:
    for title, _, parts in GROUPS:
        if any(name == part if len(part) < 4 else part in name for part in parts):
            return title
    return name


def _training_figure(title: str, names: Sequence[str], runs: Named) -> Figure:
    traces: list[dict[str, Any]] = []
    shown = [
        (place, run, curve)
        for place, (run, curves) in enumerate(runs)
        for curve in curves
        if curve.name in names and len(curve.steps) > 1
    ]
    values: list[float] = []
    for place, run, whole in shown:
        curve = collect.thin(whole, max(100, POINTS // len(shown)))
        number = names.index(curve.name)
        label = " ".join([run] * (len(runs) > 1) + [curve.name] * (len(names) > 1 or len(runs) == 1))
        shade, dash = (place, number) if len(runs) > 1 else (number, 0)
        if place >= IN_COLOUR:
            grey = {"width": 1, "mode": "lines", "opacity": 0.35, "showlegend": False, "hoverinfo": "skip"}
            traces.insert(0, line(label, curve.steps, curve.values, "--muted", **grey))
        else:
            more = {"mode": "lines"} if len(shown) > MOST_MARKED else {}
            dashes = DASHES[dash % len(DASHES)]
            traces.append(line(label, curve.steps, curve.values, colour(shade), dash=dashes, **more))
        values += curve.values
        if curve.repeated and len(runs) == 1 and title == "Loss":
            steps = [step for steps, _ in curve.repeated for step in (*steps, None)]
            again = [value for _, values in curve.repeated for value in (*values, None)]
            dotted = {"width": 1, "dash": "dot", "mode": "lines", "connectgaps": False}
            traces.append(line(f"{curve.name}, repeated", steps, again, "--muted", **dotted))
    log = title == "Loss" and min(values) > 0 and max(values) / min(values) >= LOG_FROM
    unit = next((unit for known, unit, _ in GROUPS if known == title), "")
    y = axis(unit, type="log" if log else "linear", tickformat="~g" if log else "~s" if title == "Throughput" else "")
    if log:
        y["dtick"] = 1 if max(values) / min(values) > 100 else "D2"
    elif title == "Throughput":
        y["rangemode"] = "tozero"
    own_legend = len(runs) == 1 and len(traces) > 1
    layout = {"xaxis": axis("step"), "yaxis": y, "hovermode": "x unified", "showlegend": own_legend}
    across = max(1, 64 // (8 + max(len(str(trace["name"])) for trace in traces)))  # names of the legend in a row
    rows = math.ceil(len(traces) / across) if own_legend else 0
    drawn = [f"{DASHED[place % len(DASHES)]}: {name}" for place, name in enumerate(names)]
    caption = clean(", ".join(drawn)) if len(runs) > 1 and len(names) > 1 else ""
    single = f" ({names[0]})" if len(names) == 1 and names[0].lower() not in title.lower() else ""
    return Figure(clean(title + single), traces, layout, caption, height=300 + 18 * rows)


# -- Makes the plotly figures of benchmark results: curves over message size, heat maps of pairs of hosts


MOST_LINES = 8  # lines in one figure; with more, each operation gets its own figures
MOST_TICKS = 7  # ticks of the axis of message sizes
FEW_TICKS = 50  # below this ratio of the largest to the smallest value, powers of ten are too few ticks
NUMBERS_UP_TO = 8  # with at most so many nodes, cells show their numbers


def fabric_figures(fabric: FabricResults) -> list[Figure]:
    """Returns all figures of a benchmark: curves over size, if there are several sizes; then the heat maps."""
    wanted = ("bandwidth", "latency") if fabric.workload == "p2p" else ("busbw", "algbw", "time")
    curves = [curve for measure in wanted for curve in _curves(fabric, measure)]
    order = list(dict.fromkeys(operation for operation, _ in curves))
    # If operations have separate figures, those of one operation are next to each other.
    curves.sort(key=lambda curve: order.index(curve[0]))
    return [*(figure for _, figure in curves), *matrix_figures(fabric)]


def _curves(fabric: FabricResults, measure: str) -> list[tuple[str, Figure]]:
    # The list is empty if nothing was measured at two sizes
    lines, roofs = collect.size_curves(fabric.rows, measure), fabric.roofs()
    if not any(len(line.sizes) > 1 for line in lines):
        return []
    title, unit = collect.MEASURES[measure]
    operations = list(dict.fromkeys(line.op for line in lines))
    if len(operations) == 1 or len(lines) <= MOST_LINES:
        return [("", _curve_figure(title, unit, lines, roofs))]
    if measure == "algbw":  # busbw is that times a factor; the table has both
        return []
    return [
        (name, _curve_figure(f"{name}: {title.lower()}", unit, [line for line in lines if line.op == name], roofs, 240))
        for name in operations
    ]


def _curve_figure(
    title: str, unit: str, lines: Sequence[SizeCurve], roofs: Mapping[str, float], height: int = 300
) -> Figure:
    # Colours stand for operations
    ops = list(dict.fromkeys(each.op for each in lines))
    kinds = list(dict.fromkeys(each.kind for each in lines))
    sizes = sorted({size for each in lines for size in each.sizes})
    traces: list[dict[str, Any]] = []
    for each in lines:
        words_of = [each.op] * (len(ops) > 1 or not each.kind) + [each.kind]
        shade, dash = (ops.index(each.op), kinds.index(each.kind)) if len(ops) > 1 else (len(traces), 0)
        name, hover = " ".join(filter(None, words_of)), "%{y:.3s}" + unit
        traces.append(
            line(name, each.sizes, each.values, colour(shade), dash=DASHES[dash % len(DASHES)], hovertemplate=hover)
        )
    values = [value for trace in traces for value in trace["y"]]
    shown = len(traces) > 1
    if unit == "B/s":
        for place, (name, speed) in enumerate(sorted(roofs.items(), key=lambda roof: -roof[1])):
            # One above and one below, at different ends: they may lie close together.
            texts = {
                "text": [f"roof: {name}", ""][:: (1, -1)[place % 2]], "textfont": {"color": "--muted", "size": 11},
                "textposition": ("top right", "bottom left")[place % 2], "hovertemplate": "%{y:.3s}" + unit,
            }  # fmt: skip
            traces.append(line(
                f"roof: {name}", [sizes[0], sizes[-1]], [speed, speed], "--muted", width=1.5,
                dash=("dash", "dot")[place % 2], mode="lines+text", showlegend=False, **texts,
            ))  # fmt: skip
    speeds = [*values, *(roofs.values() if unit == "B/s" else ())]
    layout = {
        "xaxis": axis("size", type="log", **_size_ticks(sizes)),
        "yaxis": axis(type="log", **_log_ticks(values, unit), range=_log_range(speeds)),
        "hovermode": "closest",
        "showlegend": shown,
    }
    single = "" if shown or traces[0]["name"] in title else f" ({traces[0]['name']})"
    legend = 24 + 18 * math.ceil(len(lines) / 2) if shown else 0
    return Figure(clean(title + single), traces, layout, height=height + legend)


def _log_range(values: Sequence[float]) -> list[float]:
    low, high = math.log10(min(values)), math.log10(max(values))
    room = max(high - low, 0.3)
    return [low - 0.06 * room, high + 0.12 * room]


def _log_ticks(values: Sequence[float], unit: str) -> dict[str, Any]:
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    factors = (1, 2, 5) if max(values) / min(values) < FEW_TICKS else (1,)
    ticks = [factor * 10.0**power for power in range(low, high + 1) for factor in factors]
    return {"tickmode": "array", "tickvals": ticks, "ticktext": [si(tick, unit) for tick in ticks]}


def _size_ticks(sizes: Sequence[int]) -> dict[str, Any]:
    chosen = list(sizes[:: math.ceil(len(sizes) / MOST_TICKS)])
    return {"tickmode": "array", "tickvals": chosen, "ticktext": [long_size(size) for size in chosen]}


def matrix_figures(fabric: FabricResults) -> list[Figure]:
    """Returns heat maps of all pairs of hosts, worse cells darker."""
    matrix = fabric.matrix
    if matrix is None:
        return []
    hosts = [str(host) for host in matrix["hosts"]]
    block = collect.block_of(matrix)
    names = [hosts[place] if block == 1 else f"{hosts[place]} …" for place in range(0, len(hosts), block)]
    measures = [name for name in ("bandwidth", "latency") if {cell for row in matrix[name] for cell in row} - {None}]
    return [_heat_map(matrix, names, block, measure) for measure in measures]


def _heat_map(matrix: Any, names: list[str], block: int, measure: str) -> Figure:
    title, unit = collect.MEASURES[measure]
    fast = measure == "bandwidth"
    values = matrix[measure]
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
    heading = f"{title} of pairs{size}" + (f", {scaled}" if small else "")
    caption = f"Each cell is the worst of {block} x {block} nodes." if block > 1 else ""
    return Figure(clean(heading), [heat], layout, caption, height=max(240, min(480, 110 + 44 * len(names))))
