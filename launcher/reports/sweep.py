"""Makes the page of a sweep: best point, table of all points, parallel coordinates, training curves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.formatting import plural
from launcher.redaction import public
from launcher.reports.collect import RunData, finite, redact_override
from launcher.reports.page import (
    CodeBlock,
    Figure,
    Named,
    Page,
    Section,
    Table,
    legend,
    line,
    plain_text,
    training_figures,
    value_text,
)
from launcher.reports.sections import PROGRAM, made
from launcher.runs.sweep_directory import SearchSettings, canonical, differing, label, values_of
from launcher.search.progress import SearchProgress, described, rung_lines
from launcher.spec import build

MOST_CURVES = 40  # only the best so many points have training curves
IN_COLOUR = 8  # only the best so many points have coloured curves
MOST_LINES = 1000  # of the parallel coordinates
FIRST_ROWS = 40  # rows of the table that is always open; a longer one with all rows is folded
MOST_METRICS = 8  # columns of the table, in addition to the objective
MOST_TICKS = 8  # of an axis
LOG_FROM = 50.0  # from this ratio of the largest to the smallest value on, an axis is logarithmic
SHADES = ((0.1, "--series-1", 0.9), (0.35, "--series-1", 0.45), (1.0, "--muted", 0.3))  # best fraction, colour, opacity


@dataclass(frozen=True)
class SweepPoint:
    """A point of a sweep, as the page shows it."""

    name: str  # the point's number, as text
    overrides: tuple[str, ...]  # the point's overrides
    state: str  # the point's state, as in `status`
    run: RunData | None = None  # the data of the point's run; None: the point has not started
    # for a point that the search pruned, the last value of the objective that it reported; None: none
    reported: float | None = None

    def metric(self, name: str) -> float | None:
        """Returns a metric of the point's result; None: the point has no result with a finite number of this name."""
        return finite((self.run.result or {}).get(name)) if self.run is not None else None


def sweep_page(
    name: str, points: Sequence[SweepPoint], objective: Sequence[str] = (), best_is: str = "max", path: str = "",
    seen: float = 0.0, search: tuple[SearchSettings, SearchProgress] | None = None,
) -> Page:  # fmt: skip
    """Returns the page about a sweep.

    objective: the metrics by which points are compared; the first one determines the order. Empty: no comparison.
    best_is: `max` or `min`, of the first. seen: when the points were read, in seconds since the epoch.
    search: the settings and the progress of a search (sweep.search); None: the sweep is no search.
    """
    goal = objective[0] if objective else None
    keys = differing([point.overrides for point in points])
    ranked = by_objective(points, goal, best_is)
    states = [point.state for point in points]
    counted = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    facts = [("points", str(len(points))), ("keys", ", ".join(map(_short, keys)) or "-")]
    codes: list[CodeBlock] = []
    best = ranked[0] if ranked and goal is not None and ranked[0].metric(goal) is not None else None
    if best is not None and goal is not None:
        facts += [("best point", f"{best.name}: {label(best.overrides, keys)}"), (goal, value_text(best.metric(goal)))]
        codes.append(CodeBlock("repeat the best point with", _command(best.overrides)))
    sections = [_points_section(ranked, keys, objective, best)]
    if figure := parallel_coordinates(ranked, keys, goal):
        sections.insert(0, Section("Points and their results", figures=[figure]))
    if search is not None:
        sections.insert(0, search_section(*search))
    named: Named = [(label(each.overrides, keys) or each.name, each.run.curves) for each in ranked if each.run]
    if figures := training_figures(named[:MOST_CURVES], IN_COLOUR):
        names = legend(named[:MOST_CURVES], IN_COLOUR)
        sections.append(Section("Training", _left_out(len(named)), legend=names, figures=figures))
    first = RunData(name, path, "", None, {}, seen=seen)
    return Page(name, "Sweep", "", counted, facts, codes, sections, made(first))


def search_section(settings: SearchSettings, found: SearchProgress) -> Section:
    """Returns the section about a search: its progress, its cost, and the table of its rungs."""
    head, *rungs = rung_lines(found.rungs) or [()]
    tables = [Table(tuple(map(str.lower, head)), rungs)] if rungs else []
    note = " ".join(f"{text[0].upper()}{text[1:]}." for text in described(settings, found))
    return Section("Search", note, tables=tables)


def by_objective(points: Sequence[SweepPoint], objective: str | None, best_is: str) -> list[SweepPoint]:
    """Returns the points by their objective, the best (`max`, `min`) first, those without a value last."""
    sign = -1.0 if best_is == "max" else 1.0

    def key(point: SweepPoint) -> float:
        value = None if objective is None else point.metric(objective)
        return math.inf if value is None else sign * value

    return sorted(points, key=key)


def _points_section(
    ranked: Sequence[SweepPoint], keys: Sequence[str], objective: Sequence[str], best: SweepPoint | None
) -> Section:
    results = [point.run.result or {} for point in ranked if point.run is not None]
    others = [key for key in dict.fromkeys(str(key) for each in results for key in each) if key not in objective]
    values_of_key = {key: {finite(each.get(key)) for each in results} - {None} for key in others}
    numbers = [key for key, values in values_of_key.items() if len(values) > 1 or (values and len(results) == 1)]
    numbers = numbers[:MOST_METRICS]
    metrics = [*objective, *numbers]
    rows = []
    for point in ranked:
        values, result = values_of(point.overrides, keys), (point.run.result if point.run else None) or {}
        rows.append((
            point.name, point.state, *(public(key, values.get(key, "-")) for key in keys),
            *(value_text(result.get(key)) for key in metrics),
        ))  # fmt: skip
    marks = {place: "good" for place, point in enumerate(ranked) if point is best}
    marks |= {place: "bad" for place, row in enumerate(rows) if row[1] in ("failed", "lost")}
    left, heads = frozenset(range(1, 2 + len(keys))), ("point", "state", *map(_short, keys), *metrics)
    shown = [Table(heads, rows[:FIRST_ROWS], left, marks)]
    if len(rows) > FIRST_ROWS:
        shown.append(Table(heads, rows, left, marks, f"All {plural(len(rows), 'point')}"))
    unknown = ""
    if objective and best is None:
        lacks = f"has a number named {objective[0]}" if any(row[1] == "done" for row in rows) else "is done yet"
        unknown = f"No point {lacks}."
    which = f" ({', '.join(numbers)})" if numbers else ""
    note = unknown or ("" if objective else f"To have points compared, sweep with sweep.objective=METRIC{which}.")
    return Section("Points", note, tables=shown)


def _command(overrides: Sequence[str]) -> str:
    return build.command(PROGRAM, [redact_override(each) for each in canonical(overrides)])


def _left_out(count: int) -> str:
    return f"The best {MOST_CURVES} of {count} points." if count > MOST_CURVES else ""


def _short(key: str) -> str:
    return key.removeprefix("workload.")


# -- parallel coordinates


@dataclass(frozen=True)
class Axis:
    """A vertical axis of the parallel coordinates."""

    name: str  # the config key or metric that the axis shows
    places: Mapping[str, float]  # the position of each value on the axis, from 0 to 1, by the value as text
    ticks: Sequence[tuple[float, str]]  # (position, text) of each tick


def axis_of(name: str, values: Sequence[str]) -> Axis:
    """Returns the axis of values given as text: numbers by size or logarithm, else all in alphabetical order."""
    known = list(dict.fromkeys(values))
    numbers = {each: _number(each) for each in known}
    if any(number is None for number in numbers.values()):
        spread = {each: place / max(1, len(known) - 1) for place, each in enumerate(sorted(known))}
        stride = math.ceil(len(spread) / MOST_TICKS)
        return Axis(name, spread, [(place, text) for text, place in spread.items()][::stride])
    sizes = {each: number for each, number in numbers.items() if number is not None}
    low, high = min(sizes.values()), max(sizes.values())
    if low > 0 and high / low >= LOG_FROM:
        sizes, low, high = {each: math.log(size) for each, size in sizes.items()}, math.log(low), math.log(high)
    places = {each: (size - low) / (high - low) if high > low else 0.5 for each, size in sizes.items()}
    shown = sorted(places, key=places.__getitem__)
    if len(shown) > MOST_TICKS:
        shown = [shown[0], shown[-1]]
    return Axis(name, places, [(places[each], each) for each in shown])


def parallel_coordinates(ranked: Sequence[SweepPoint], keys: Sequence[str], goal: str | None) -> Figure | None:
    """Returns a figure with a line for each point, best first, through its values of all keys and the goal.

    None: there is no objective, or fewer than two points have a value of it. The figure uses plain lines: plotly's
        parallel coordinates need WebGL, and `eval`, which the content security policy forbids.
    """
    if goal is None or not keys:
        return None
    done = [point for point in ranked if point.metric(goal) is not None]
    done = [*done, *(point for point in ranked if point.metric(goal) is None and point.reported is not None)]
    done = done[:MOST_LINES]
    if len(done) < 2:
        return None
    columns = [*keys, goal]

    def values(point: SweepPoint) -> list[str]:
        own = values_of(point.overrides, keys)
        return [*(public(key, own.get(key, "default")) for key in keys), _goal(point, goal)]

    table = [values(point) for point in done]
    axes = [axis_of(name, [row[place] for row in table]) for place, name in enumerate(columns)]
    traces: list[dict[str, Any]] = []
    first = 1  # the best one is drawn last, on top
    for part, shade, opacity in SHADES:
        last = max(first, math.ceil(part * len(done)))
        if table[first:last]:
            traces.insert(0, _lines(table[first:last], axes, shade, 1.5, opacity))
        first = last
    traces.append(_lines(table[:1], axes, "--good", 3, 1.0))
    ticks = [
        {"x": place, "y": height, "xanchor": "right" if place else "left", "xshift": -6 if place else 6,
         "showarrow": False, "text": plain_text(text[:16]), "bgcolor": "--surface",
         "font": {"size": 11, "color": "--muted"}}
        for place, axis in enumerate(axes) for height, text in axis.ticks
    ]  # fmt: skip
    layout = {
        "xaxis": {"tickmode": "array", "tickvals": list(range(len(axes))), "showgrid": False, "zeroline": False,
                  "ticktext": [plain_text(_short(axis.name)) for axis in axes], "range": [-0.15, len(axes) - 0.9]},
        "yaxis": {"visible": False, "range": [-0.06, 1.06]},
        "showlegend": False,
        "hovermode": "closest",
        "annotations": ticks,
        "shapes": [
            {"type": "line", "x0": place, "x1": place, "y0": 0, "y1": 1, "line": {"color": "--line", "width": 1},
             "layer": "below"}
            for place in range(len(axes))
        ],
    }  # fmt: skip
    pruned = "; a pruned point has the last value it reported" if any(p.metric(goal) is None for p in done) else ""
    caption = f"A line is a point; green is the best, grey are the worst{pruned}."
    return Figure("", traces, layout, caption, height=380, wide=True)


def _lines(
    table: Sequence[Sequence[str]], axes: Sequence[Axis], shade: str, width: float, opacity: float
) -> dict[str, Any]:
    x: list[int | None] = []
    y: list[float | None] = []
    text: list[str] = []
    for row in table:
        label = ", ".join(f"{_short(axis.name)} {value}" for axis, value in zip(axes, row, strict=True))
        x += [*range(len(axes)), None]
        y += [*(round(axis.places[value], 4) for axis, value in zip(axes, row, strict=True)), None]
        text += [plain_text(label)] * (len(axes) + 1)
    hover = {"customdata": text, "hovertemplate": "%{customdata}<extra></extra>"}
    return line("", x, y, shade, width=width, mode="lines", opacity=opacity, connectgaps=False, **hover)


def _goal(point: SweepPoint, goal: str) -> str:
    value = point.reported if point.metric(goal) is None else point.metric(goal)
    return "" if value is None else f"{value:.6g}"


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
