"""What a point says of its objective: its reports after some steps, its value at the end, and how long it has run.

A rank reports with `progress(step, total, **values)`, `evaluated(step, **values)` or the callbacks for Lightning and
Transformers, which write events of rank 0; the value at the end is that of the run's result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from launcher.errors import near
from launcher.runs import event_file
from launcher.runs.directory import Run
from launcher.runs.event_json import known
from launcher.runs.events import Ended, Evaluated, Progress, Started


@dataclass(frozen=True)
class Report:
    """The progress of a point.

    Attributes:
        step: steps that it has done.
        value: the objective after these steps; None: it was not reported.
        total: all its steps; 0: unknown.
    """

    step: int
    value: float | None
    total: int = 0


def reports_in(entries: Iterable[Mapping[str, Any]], objective: str, total: int = 0) -> list[Report]:
    """Returns what the events of rank 0 report, without an objective as well (None). Pure.

    Args:
        entries: events.
        objective: the metric.
        total: all steps, as of earlier events; 0: unknown.
    """
    found: list[Report] = []
    for event in known(entries):
        if isinstance(event, Progress):
            total = int(event.total) or total
        if isinstance(event, (Progress, Evaluated)):
            found.append(Report(int(event.step), number(event.values, objective), total))
    return found


def number(values: Mapping[str, Any] | None, name: str) -> float | None:
    """Returns a metric, NaN too; None: there is no such number. In nested values its name has dots. Pure."""
    found: Any = values
    for part in [name] if values and name in values else name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return float(found) if isinstance(found, (int, float)) and not isinstance(found, bool) else None


def missing(objective: str, known_names: Iterable[str]) -> str:
    """Returns the text for a point that is done without the objective. Pure."""
    names = list(dict.fromkeys(known_names))
    return (
        f"sweep.objective={objective}: a point is done and has no such number.{near(objective, names)} "
        f"It has {', '.join(names) or 'none'}"
    )


class PointReports:
    """The reports of a point, read while its last attempt continues.

    Attributes:
        objective: the metric.
        last: the last value of the objective; None: there is none yet.
        steps: steps that the point has done; None: unknown.
    """

    def __init__(self, run: Run, objective: str) -> None:
        self.objective = objective
        self.last: float | None = None
        self.steps: int | None = None
        self._run = run
        self._attempt = -1
        self._offset = self._total = 0

    def new(self) -> list[tuple[int, float, int]]:
        """Returns step, objective and all steps (0: unknown) of each report since the last call.

        Raises:
            UnavailableError: the events cannot be read now.
        """
        attempts = self._run.attempts()
        if not attempts:
            return []
        if attempts[-1].number != self._attempt:
            self._attempt, self._offset = attempts[-1].number, 0
        events, self._offset = event_file.read_on(attempts[-1].events_file("rank-0"), self._offset)
        found = reports_in(events, self.objective, self._total)
        if found:
            self._total, self.steps = found[-1].total, found[-1].step
        valued = [(each.step, each.value, each.total) for each in found if each.value is not None]
        self.last = valued[-1][1] if valued else self.last
        return valued


def seconds_of(run: Run, now: float) -> float:
    """Returns how long all attempts of a point have run. One without a recorded end ran until its last event, or now.

    Raises:
        UnavailableError: the events cannot be read now.
    """
    total = 0.0
    attempts = run.attempts()
    for attempt in attempts:
        began, ended = 0.0, None
        for event in known(event_file.read(attempt.events_file("script"))):
            began = event.time if isinstance(event, Started) else began
            ended = event.time if isinstance(event, Ended) else ended
        if ended is None:  # it runs, or was killed with its node
            ended = now if attempt is attempts[-1] else max(event["time"] for event in (*attempt.events(), {"time": 0}))
        total += max(0.0, ended - began) if began else 0.0
    return total


def value_of(run: Run, reports: PointReports) -> float | None:
    """Returns the objective of a point that is done: that of its result, else the last that it has reported.

    Raises:
        UnavailableError: the result cannot be read now.
    """
    value = number(run.result(), reports.objective)
    if value is None:
        reports.new()
        return reports.last
    return value
