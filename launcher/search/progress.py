"""How far a search is: its budget, the values that points report, and what it has chosen."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from launcher.config.search_space import Goal, size
from launcher.errors import near
from launcher.runs import event_files
from launcher.runs.directory import Run
from launcher.runs.events import Ended, Evaluated, Progress, Started, known
from launcher.runs.sweep_directory import Journal, SearchRecord, SearchSettings, Sweep, TrialRecord, TrialState

LARGEST_SHUFFLED = 1_000_000  # up to so many combinations are shuffled; more are visited with a stride


def budget_spent(seconds: Iterable[float], devices: int) -> float:
    """Returns the GPU-hours (without GPUs: node-hours) of points of so many devices that have run for so long."""
    return sum(seconds) * devices / 3600


def budget_saved(trials: Sequence[TrialRecord], devices: int) -> float | None:
    """Estimates the GPU-hours (without GPUs: node-hours) that pruning has saved; None: not known yet.

    Each pruned point would have done as many steps as the longest point that is done, at its own seconds per step. So
    nothing is known before a point that reports steps is done.
    """
    full = max((each.steps for each in trials if each.state is TrialState.COMPLETE and each.steps), default=None)
    if full is None:
        return None
    pruned = [each for each in trials if each.state is TrialState.PRUNED]
    seconds = sum((each.seconds or 0.0) * (full / each.steps - 1) for each in pruned if each.steps)
    return max(0.0, seconds) * devices / 3600


def min_steps_of(total: int, reduction_factor: int, rungs: int) -> int | None:
    """Returns the number of steps at the first rung, such that the last rung is at 1/reduction_factor of all steps.

    | total | reduction_factor | rungs | result | all rungs |
    |---|---|---|---|---|
    | 0: unknown | 3 | 3 | None | |
    | 270 | 3 | 3 | 10 | 10, 30, 90 |
    | 20 | 3 | 3 | 1 | 1, 3, 9 |
    """
    return max(1, total // reduction_factor**rungs) if total > 0 else None


def permutation(count: int, place: int, seed: int) -> int:
    """Returns an element of a random permutation of 0 to count - 1; above LARGEST_SHUFFLED, of a walk with a stride."""
    if count <= LARGEST_SHUFFLED:
        return _shuffled(count, seed)[place]
    generator = random.Random(seed)  # noqa: S311
    stride = generator.randrange(count // 3, count // 2)
    while math.gcd(stride, count) != 1:
        stride += 1
    return (generator.randrange(count) + place * stride) % count


@lru_cache(maxsize=1)
def _shuffled(count: int, seed: int) -> list[int]:
    order = list(range(count))
    random.Random(seed).shuffle(order)  # noqa: S311
    return order


# -- Reads the objective of a point from its run: reported values, the final value, and how long the point has run
#
# The user's code reports with `progress(step, total, **values)`, `evaluated(step, **values)` or the callbacks for
# Lightning and Transformers, which write events of rank 0. The final value is in the run's result.


def reports_in(
    entries: Iterable[Mapping[str, Any]], objective: str, total: int = 0
) -> list[tuple[int, float | None, int]]:
    """Returns reports of rank 0's events: steps, objective or None, total or 0; total: as known before these events."""
    found: list[tuple[int, float | None, int]] = []
    for event in known(entries):
        if isinstance(event, Progress):
            total = int(event.total) or total
        if isinstance(event, (Progress, Evaluated)):
            found.append((int(event.step), as_number(event.values, objective), total))
    return found


def as_number(values: Mapping[str, Any] | None, name: str) -> float | None:
    """Returns a metric as a float, maybe NaN, or None; `val.acc` also finds `acc` in the mapping `val`."""
    found: Any = values
    for part in [name] if values and name in values else name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return float(found) if isinstance(found, (int, float)) and not isinstance(found, bool) else None


def missing_reports(objective: str, known_names: Iterable[str]) -> str:
    """Returns the error message for a point that is done and has no value of sweep.objective."""
    names = list(dict.fromkeys(known_names))
    return (
        f"sweep.objective={objective}: a point is done and has no such number.{near(objective, names)} "
        f"It has {', '.join(names) or 'none'}"
    )


class PointReports:
    """Reads the reports of a point while it runs, each once; last: of the objective, steps: done; None: none yet."""

    def __init__(self, run: Run, objective: str) -> None:
        self.objective = objective
        self.last: float | None = None
        self.steps: int | None = None
        self._run = run
        self._attempt = -1
        self._offset = self._total = 0

    def new(self) -> list[tuple[int, float, int]]:
        """Returns (steps done, objective, total steps or 0) of the new reports that have it, attempt after attempt."""
        valued: list[tuple[int, float, int]] = []
        for attempt in self._run.attempts():
            if attempt.number < self._attempt:
                continue
            if attempt.number > self._attempt:
                self._attempt, self._offset = attempt.number, 0
            before = -1
            while before != self._offset:  # it reads a bounded number of bytes each time
                before = self._offset
                events, self._offset = event_files.read_on(attempt.events_file("rank-0"), before)
                found = reports_in(events, self.objective, self._total)
                if found:
                    self.steps, _, self._total = found[-1]
                valued += [(step, value, total) for step, value, total in found if value is not None]
        self.last = valued[-1][1] if valued else self.last
        return valued


def seconds_of(run: Run) -> float:
    """Returns the sum of the seconds of a point's attempts; one that has no end lasts until its last sign of life."""
    total = 0.0
    attempts = run.attempts()
    for attempt in attempts:
        began, ended = 0.0, None
        for event in known(attempt.written_by("script")):
            began = event.time if isinstance(event, Started) else began
            ended = event.time if isinstance(event, Ended) else ended
        if ended is None:  # the attempt runs, or was killed with its node
            age = run.lease_age() if attempt is attempts[-1] else None
            ended = (
                max(event["time"] for event in (*attempt.latest_events(), {"time": 0}))
                if age is None
                else time.time() - age
            )
        total += max(0.0, ended - began) if began else 0.0
    return total


def value_of(run: Run, reports: PointReports) -> float | None:
    """Returns the objective of a point that is done: from its result, or else its last report; None: it has none."""
    value = as_number(run.result(), reports.objective)
    if value is None:
        reports.new()
        return reports.last
    return value


# -- Progress of a search: best point, hours spent and saved, rungs; and the lines that show it. Works without Optuna


@dataclass(frozen=True)
class Rung:
    """A rung: a number of steps at which a search compares points, and prunes the worse ones."""

    steps: int  # the number of steps
    reached: int  # number of points that have reached the rung
    pruned: int  # number of points that were pruned at the rung
    best: float | None  # best value of the objective at the rung; None: no point has reached it


@dataclass(frozen=True)
class SearchProgress:
    chosen: int  # points; of these are
    done: int
    pruned: int
    failed: int
    best: TrialRecord | None  # the best point that is done; None: no point is done
    hours: float  # GPU-hours (without GPUs: node-hours) that were spent
    saved: float | None  # GPU-hours (node-hours) that pruning has saved; None: not known yet
    rungs: tuple[Rung, ...]  # rungs that points have reached; empty if the search does not prune
    stopped: str | None  # why the search ended before its budget was spent, as text for the user; None: it did not
    over: bool  # whether no more points will be chosen


def look(sweep: Sweep) -> tuple[SearchSettings, SearchProgress]:
    """Reads a sweep's search: its settings and its present progress; raises RunError."""
    record = SearchRecord(sweep.path)
    settings, journal = record.settings(), record.journal()
    running = [each.number for each in journal.trials if not each.state.over]
    return settings, progress_of(settings, journal, {each: seconds_of(sweep.run(each)) for each in running})


def chooses_more(sweep: Sweep) -> bool:
    """Returns whether a sweep is a search that may choose more points; raises RunError."""
    return SearchRecord(sweep.path).exists() and not sweep.cancelled() and not look(sweep)[1].over


def progress_of(settings: SearchSettings, journal: Journal, seconds: Mapping[int, float]) -> SearchProgress:
    """Returns the progress of a search; seconds: how long each point without a recorded end has run."""
    states = [each.state for each in journal.trials]
    spent = [each.seconds or seconds.get(each.number, 0.0) for each in journal.trials]
    done = [each for each in journal.trials if each.state is TrialState.COMPLETE and each.value is not None]
    hours, most = budget_spent(spent, settings.devices), size(settings.space)
    full = settings.full(len(states)) or (most is not None and len(states) >= most)
    return SearchProgress(
        chosen=len(states), done=states.count(TrialState.COMPLETE),
        pruned=states.count(TrialState.PRUNED), failed=states.count(TrialState.FAIL),
        best=min(done, key=lambda each: (_rank(each.value, settings.goal), each.number), default=None),
        hours=hours, saved=budget_saved(journal.trials, settings.devices), rungs=rungs_of(settings, journal),
        stopped=journal.stopped,
        over=full or journal.stopped is not None or (settings.gpu_hours is not None and hours >= settings.gpu_hours),
    )  # fmt: skip


def rungs_of(settings: SearchSettings, journal: Journal) -> tuple[Rung, ...]:
    """Returns the rungs that points have reached, the lowest first; empty if the search does not prune."""
    count = max((len(each.rungs) for each in journal.trials), default=0)
    found = []
    for number in range(count if journal.min_steps is not None else 0):
        values = [each.rungs[number] for each in journal.trials if number in each.rungs]
        ended = sum(each.pruned_at is not None and len(each.rungs) == number + 1 for each in journal.trials)
        best = min(values, key=lambda value: _rank(value, settings.goal), default=None)
        steps = (journal.min_steps or 1) * settings.reduction_factor**number
        found.append(Rung(steps, len(values), ended, best))
    return tuple(found)


def described(settings: SearchSettings, found: SearchProgress) -> list[str]:
    unit = "GPU-hours" if settings.devices_are_gpus else "node-hours"
    most = f" of at most {settings.points}" if settings.points is not None else ""
    counts = [f"{found.chosen} chosen{most}", f"{found.pruned} pruned"]
    lines = [f"search {settings.method.value}, {settings.goal.value} {settings.objective}: {', '.join(counts)}"]
    limit = f" of {settings.gpu_hours:g}" if settings.gpu_hours is not None else ""
    hours = f"{found.hours:.3g}{limit} {unit} spent"
    if found.saved:
        hours += f", about {found.saved:.3g} saved by pruning"
    if found.best is not None:
        lines.append(f"best so far: point {found.best.number}, {settings.objective} {found.best.value:.5g}; {hours}")
    else:
        lines.append(hours)
    if found.stopped:
        lines.append(f"the search has ended: {found.stopped}")
    elif found.over and found.chosen != settings.points:
        spends = settings.gpu_hours is not None and found.hours >= settings.gpu_hours
        why = "a sweep has no more" if settings.full(found.chosen) else "every combination is taken"
        lines.append(f"no more points are chosen: {'the budget is spent' if spends else why}")
    return lines


def rung_lines(rungs: Sequence[Rung]) -> list[tuple[str, ...]]:
    """Returns a table of rungs as rows of text, the heading first; empty if there are no rungs."""
    rows = [
        (str(each.steps), str(each.reached), str(each.pruned), "-" if each.best is None else f"{each.best:.5g}")
        for each in rungs
    ]
    return [("RUNG (STEPS)", "POINTS", "PRUNED", "BEST"), *rows] if rows else []


def _rank(value: float | None, goal: Goal) -> float:
    if value is None or math.isnan(value):
        return math.inf
    return -value if goal is Goal.maximize else value
