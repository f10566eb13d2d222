"""Makes the figure of step times: how long each rank computed for a step, without waiting for other ranks."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from launcher.reports import words
from launcher.reports.figures import POINTS, Figure, axis, clock, colour

MOST_RANKS = 8  # at most so many ranks have a line of their own

Event = Mapping[str, Any]
Points = list[tuple[float, float]]  # (time in seconds since the epoch, seconds of a step)


def by_rank(events: Sequence[Event]) -> dict[int, Points]:
    """Returns the step times of each rank as (time, seconds of a step) pairs, from the `pace` events of one attempt."""
    found: dict[int, Points] = {}
    for event in events:
        time, first, seconds = event.get("time"), event.get("rank"), event.get("seconds")
        if not isinstance(time, int | float) or not isinstance(first, int) or not isinstance(seconds, list):
            continue
        for rank, value in enumerate(seconds, first):
            if isinstance(value, int | float) and value > 0:
                found.setdefault(rank, []).append((float(time), float(value)))
    return found


def slowest(paces: Mapping[int, Points]) -> list[int]:
    """Returns the MOST_RANKS ranks with the largest median step time, sorted by rank."""
    medians = {rank: statistics.median(value for _, value in points) for rank, points in paces.items()}
    return sorted(sorted(medians, key=lambda rank: -medians[rank])[:MOST_RANKS])


def pace_figure(attempts: Sequence[Sequence[Event]]) -> Figure | None:
    """Returns a figure with a line for each of the slowest ranks, and one for the median of all ranks.

    None: no step times were recorded.

    Args:
        attempts: the `pace` events of each attempt.
    """
    measured = [by_rank(events) for events in attempts]
    everything: dict[int, Points] = {}
    for paces in measured:
        for rank, points in paces.items():
            everything.setdefault(rank, []).extend(points)
    if not everything:
        return None
    shown = slowest(everything)
    traces = []
    if len(everything) > len(shown):
        times: dict[int, list[float]] = {}
        for points in everything.values():
            for time, value in points:
                times.setdefault(round(time / 10), []).append(value)  # agents report within seconds of each other
        middle = [(10.0 * slot, statistics.median(values)) for slot, values in sorted(times.items())]
        traces.append(_line("median of all ranks", middle, "--muted", "dash"))
    for place, rank in enumerate(shown):
        gaps: list[tuple[float | None, float | None]] = []
        for paces in measured:  # no line from one attempt to the next
            gaps += [*paces.get(rank, []), (None, None)]
        traces.append(_line(f"rank {rank}", gaps[:-1], colour(place), "solid"))
    layout = {
        "xaxis": axis(type="date", nticks=6),
        "yaxis": axis(tickformat="~s", ticksuffix="s", rangemode="tozero"),
        "hovermode": "x unified",
        "showlegend": True,
    }
    more = len(everything) - len(shown)
    caption = f"The slowest {len(shown)} of {len(everything)} ranks." if more else ""
    return Figure("Time for a step, without waiting for others", traces, layout, caption, wide=True)


def _line(name: str, points: Sequence[tuple[float | None, float | None]], shade: str, dash: str) -> dict[str, Any]:
    stride = max(1, len(points) * (MOST_RANKS + 1) // POINTS)
    kept = points[::stride]
    return {
        "type": "scatter", "mode": "lines+markers" if len(kept) < 40 else "lines", "name": words.plain(name),
        "x": [None if time is None else clock(time) for time, _ in kept], "y": [value for _, value in kept],
        "line": {"color": shade, "width": 2, "dash": dash}, "marker": {"size": 5},
        "hovertemplate": "%{y:.3s}s",
    }  # fmt: skip
