"""Makes curves of a training's metrics over steps from its events."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.runs.events import Evaluated, Progress, known

NO_CURVES = {"epoch"}


@dataclass(frozen=True)
class Curve:
    """A metric over steps."""

    name: str  # the metric's key in the events (`loss`)
    steps: tuple[int, ...]  # the steps, increasing
    values: tuple[float, ...]  # the metric at each step
    # (steps, values) of each discarded part, which a later attempt computed again from a checkpoint
    repeated: tuple[tuple[tuple[int, ...], tuple[float, ...]], ...] = ()


def curves(attempts: Iterable[Sequence[Mapping[str, Any]]]) -> list[Curve]:
    """Returns a curve for each metric in the events `progress` and `evaluated`, in order of first appearance.

    Args:
        attempts: the events of each attempt; attempts and events are sorted by time.
    """
    points: dict[str, list[tuple[int, float]]] = {}
    for events in attempts:
        for event in known(events):
            if not isinstance(event, (Progress, Evaluated)):
                continue
            for name, value in (event.values or {}).items():
                if name not in NO_CURVES and _number(value):
                    points.setdefault(name, []).append((int(event.step), float(value)))
    return [_curve(name, found) for name, found in points.items()]


def _curve(name: str, points: Iterable[tuple[int, float]]) -> Curve:
    kept: list[tuple[int, float]] = []
    repeated: list[list[tuple[int, float]]] = []
    for step, value in points:
        again: list[tuple[int, float]] = []
        while kept and kept[-1][0] >= step:
            again.append(kept.pop())
        if [point for point in again if point[0] > step]:
            repeated.append(again[::-1])
        kept.append((step, value))
    return Curve(name, *_columns(kept), tuple(_columns(part) for part in repeated))


def thin(curve: Curve, most: int) -> Curve:
    """Returns the curve thinned to about `most` points: every k-th point, and the last one."""
    return Curve(
        curve.name, _every(curve.steps, most), _every(curve.values, most),
        tuple((_every(steps, most), _every(values, most)) for steps, values in curve.repeated[-20:]),
    )  # fmt: skip


def _every(values: tuple[Any, ...], most: int) -> tuple[Any, ...]:
    stride = max(1, math.ceil(len(values) / most))
    return values if stride == 1 else (*values[:-1:stride], values[-1])


def _columns(points: Sequence[tuple[int, float]]) -> tuple[tuple[int, ...], tuple[float, ...]]:
    return tuple(step for step, _ in points), tuple(value for _, value in points)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
