"""Progress of a search: best point, hours spent and saved, rungs; and the lines that show it. Works without Optuna."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from launcher.config.search_space import Goal, size
from launcher.runs.search_record import Journal, SearchRecord, SearchSettings, Trial, TrialState
from launcher.runs.sweep_directory import Sweep
from launcher.search.budget import Cost, saved, spent
from launcher.search.reports import seconds_of


@dataclass(frozen=True)
class Rung:
    """A rung: a number of steps at which a search compares points, and prunes the worse ones."""

    steps: int  # the number of steps
    reached: int  # number of points that have reached the rung
    pruned: int  # number of points that were pruned at the rung
    best: float | None  # best value of the objective at the rung; None: no point has reached it


@dataclass(frozen=True)
class SearchProgress:
    """Progress of a search."""

    # number of points that were chosen. done, pruned, failed: how many of the chosen points are done, were pruned, or
    # failed
    chosen: int
    done: int
    pruned: int
    failed: int
    best: Trial | None  # the best point that is done; None: no point is done
    hours: float  # GPU-hours (without GPUs: node-hours) that were spent
    saved: float | None  # GPU-hours (node-hours) that pruning has saved; None: not known yet
    rungs: tuple[Rung, ...]  # rungs that points have reached; empty if the search does not prune
    stopped: str | None  # why the search ended before its budget was spent, as text for the user; None: it did not
    over: bool  # whether no more points will be chosen


def look(sweep: Sweep) -> tuple[SearchSettings, SearchProgress]:
    """Reads a sweep's search, and returns its settings and its present progress.

    Raises UnavailableError: a file of the search cannot be read now.
    Raises RunError: a file of the search is damaged.
    """
    record = SearchRecord(sweep.path)
    settings, journal = record.settings(), record.journal()
    running = [each.number for each in journal.trials if not each.state.over]
    now = time.time()
    return settings, progress_of(settings, journal, {each: seconds_of(sweep.run(each), now) for each in running})


def progress_of(settings: SearchSettings, journal: Journal, seconds: Mapping[int, float]) -> SearchProgress:
    """Returns the progress of a search.

    seconds: for each point without a recorded end, by number, how long it has run.
    """
    states = [each.state for each in journal.trials]
    costs = [_cost(each, seconds) for each in journal.trials]
    done = [each for each in journal.trials if each.state is TrialState.COMPLETE and each.value is not None]
    hours, most = spent(costs, settings.devices), size(settings.space)
    full = settings.full(len(states)) or (most is not None and len(states) >= most)
    return SearchProgress(
        chosen=len(states), done=states.count(TrialState.COMPLETE),
        pruned=states.count(TrialState.PRUNED), failed=states.count(TrialState.FAIL),
        best=min(done, key=lambda each: (_rank(each.value, settings.goal), each.number), default=None),
        hours=hours, saved=saved(costs, settings.devices), rungs=rungs_of(settings, journal), stopped=journal.stopped,
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


def last_value(trial: Trial) -> float | None:
    """Returns the objective of a point: its final value, or else the last reported one; None: it has none yet."""
    if trial.value is not None or not trial.reports:
        return trial.value
    return trial.reports[max(trial.reports)]


def described(settings: SearchSettings, found: SearchProgress) -> list[str]:
    """Returns the progress of a search as lines of text for the user."""
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


def _cost(trial: Trial, seconds: Mapping[int, float]) -> Cost:
    done, pruned = (trial.state is state for state in (TrialState.COMPLETE, TrialState.PRUNED))
    return Cost(trial.seconds or seconds.get(trial.number, 0.0), trial.steps, pruned=pruned, done=done)
