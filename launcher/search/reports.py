"""Reads the objective of a point from its run: reported values, the final value, and how long the point has run.

The user's code reports with `progress(step, total, **values)`, `evaluated(step, **values)` or the callbacks for
Lightning and Transformers, which write events of rank 0. The final value is in the run's result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from launcher.errors import near
from launcher.runs import event_file
from launcher.runs.directory import Run
from launcher.runs.events import Ended, Evaluated, Progress, Started, known


@dataclass(frozen=True)
class Report:
    """One report of a point."""

    step: int  # number of steps that the point has done
    value: float | None  # objective after these steps; None: the report does not contain it
    total: int = 0  # total number of steps of the point; 0: unknown


def reports_in(entries: Iterable[Mapping[str, Any]], objective: str, total: int = 0) -> list[Report]:
    """Returns the reports in the events of rank 0, including those without the objective.

    entries: events of rank 0 as dicts, oldest first.
    total: total number of steps according to earlier events; 0: unknown.
    """
    found: list[Report] = []
    for event in known(entries):
        if isinstance(event, Progress):
            total = int(event.total) or total
        if isinstance(event, (Progress, Evaluated)):
            found.append(Report(int(event.step), number(event.values, objective), total))
    return found


def number(values: Mapping[str, Any] | None, name: str) -> float | None:
    """Returns a metric as a float, which may be NaN; None: there is no number of this name.

    values: metrics; nested mappings are allowed.
    name: name of the metric; `val.acc` also finds `acc` in the mapping `val`.
    """
    found: Any = values
    for part in [name] if values and name in values else name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return float(found) if isinstance(found, (int, float)) and not isinstance(found, bool) else None


def missing(objective: str, known_names: Iterable[str]) -> str:
    """Returns the error message for a point that is done and has no value of the objective.

    objective: name of the metric (sweep.objective).
    """
    names = list(dict.fromkeys(known_names))
    return (
        f"sweep.objective={objective}: a point is done and has no such number.{near(objective, names)} "
        f"It has {', '.join(names) or 'none'}"
    )


class PointReports:
    """Reads the reports of a point while it runs, each report once.

    objective: name of the metric.
    last: last reported value of the objective; None: none yet.
    steps: number of steps that the point has done; None: unknown.
    """

    def __init__(self, run: Run, objective: str) -> None:
        self.objective = objective
        self.last: float | None = None
        self.steps: int | None = None
        self._run = run
        self._attempt = -1
        self._offset = self._total = 0

    def new(self) -> list[tuple[int, float, int]]:
        """Returns the reports of the last attempt since the previous call, without those that lack the objective.

        Returns for each report the steps done, the objective, and the total number of steps (0: unknown).
        Raises UnavailableError: the events cannot be read now.
        """
        attempts = self._run.attempts()
        if not attempts:
            return []
        if attempts[-1].number != self._attempt:
            self._attempt, self._offset = attempts[-1].number, 0
        valued: list[tuple[int, float, int]] = []
        before = -1
        while before != self._offset:  # it reads a bounded number of bytes each time
            before = self._offset
            events, self._offset = event_file.read_on(attempts[-1].events_file("rank-0"), before)
            found = reports_in(events, self.objective, self._total)
            if found:
                self._total, self.steps = found[-1].total, found[-1].step
            valued += [(each.step, each.value, each.total) for each in found if each.value is not None]
        self.last = valued[-1][1] if valued else self.last
        return valued


def seconds_of(run: Run, now: float) -> float:
    """Returns the sum of the run times of a point's attempts, in seconds.

    The last attempt, if its end is not recorded, counts until now, and earlier ones until their last event.

    now: present time, in seconds since the epoch.
    Raises UnavailableError: the events cannot be read now.
    """
    total = 0.0
    attempts = run.attempts()
    for attempt in attempts:
        began, ended = 0.0, None
        for event in known(event_file.read(attempt.events_file("script"))):
            began = event.time if isinstance(event, Started) else began
            ended = event.time if isinstance(event, Ended) else ended
        if ended is None:  # the attempt runs, or was killed with its node
            ended = (
                now
                if attempt is attempts[-1]
                else max(event["time"] for event in (*attempt.latest_events(), {"time": 0}))
            )
        total += max(0.0, ended - began) if began else 0.0
    return total


def value_of(run: Run, reports: PointReports) -> float | None:
    """Returns the objective of a point that is done: from its result, or else its last report; None: it has none.

    Raises UnavailableError: the result or the events cannot be read now.
    """
    value = number(run.result(), reports.objective)
    if value is None:
        reports.new()
        return reports.last
    return value
