"""Collects what a report shows of a run: its attempts, events, curves and results."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.checkpoint import format as checkpoints
from launcher.errors import RunError
from launcher.files import run_files
from launcher.files.shared_files import read_json, unwrap
from launcher.monitoring.run_status import RunStatus
from launcher.reports.fabric import FabricResults, Unreadable, parse
from launcher.reports.timeline import Timeline, clean, redact_override, timeline
from launcher.runs import unreadable
from launcher.runs.directory import Run
from launcher.runs.events import Evaluated, Progress, known
from launcher.runs.health import remarks, stragglers
from launcher.runs.history import journal_events
from launcher.runs.output import last_state

# -- Reads a run directory into one object. No other module of the report reads files of a run
# Files may be incomplete, damaged or of another version: the page shows what can be read, and lists what cannot.


LOG_LINES = 200  # last lines of the output that the page shows
LOG_BYTES = 256 * 1024  # bytes that are read from the end of the output
LONGEST_LINE = 500  # characters; longer lines are cut
Event = Mapping[str, Any]


@dataclass(frozen=True)
class RunData:
    """The data that a page shows about a run."""

    id: str  # the run's id
    path: str  # the run directory
    state: str  # the run's state, as in `status`
    cause: str | None  # why the run ended, as one line; None: the run is done, or the cause is not known
    record: Mapping[str, Any]  # the run's record, as JSON types: plan, config, versions, overrides
    attempts: tuple[tuple[int, tuple[Event, ...]], ...] = ()  # (number, events) of each attempt
    # the spans and moments of all attempts, from the journal and the events
    timeline: Timeline = field(default_factory=lambda: Timeline((), ()))
    curves: tuple[Curve, ...] = ()  # the training's metrics over steps, from the events
    # `pace` events of each attempt, evenly apart: the step times of its ranks
    paces: tuple[tuple[Event, ...], ...] = ()
    # lines about preflight checks, unused GPUs, and ranks that were slower than the others
    health: tuple[str, ...] = ()
    result: Mapping[str, Any] | None = None  # the metrics that rank 0 returned; None: it returned none
    # the results, if the run is a benchmark of the interconnect; None: it is none, or they cannot be read
    fabric: FabricResults | None = None
    checkpoints: tuple[checkpoints.Manifest, ...] = ()  # manifests of the existing checkpoints, sorted by step
    offline: tuple[str, ...] = ()  # paths of folders that W&B has written without a server, oldest first
    log: tuple[str, ...] = ()  # the last lines of the run's output
    notes: tuple[str, ...] = ()  # what could not be read, and why
    seen: float = 0.0  # when all this was read, in seconds since the epoch

    @property
    def plan(self) -> Mapping[str, Any]:
        plan = self.record.get("plan")
        return plan if isinstance(plan, Mapping) else {}

    @property
    def cluster_settings(self) -> Mapping[str, Any]:
        """The keys of `cluster` that only the run's scheduler has: partition, exclude."""
        cluster = self.plan.get("cluster")
        settings = cluster.get("settings") if isinstance(cluster, Mapping) else None
        return settings if isinstance(settings, Mapping) else {}

    @property
    def config(self) -> Mapping[str, Any]:
        config = self.record.get("config")
        return config if isinstance(config, Mapping) else {}

    @property
    def overrides(self) -> tuple[str, ...]:
        """The user's overrides, without the values of secrets."""
        return tuple(redact_override(str(each)) for each in self.record.get("overrides") or ())


def collect(seen: RunStatus, cause: str | None) -> RunData:
    """Reads the data of a run, and why it ended, as one line, if known; raises RunError."""
    run, now = seen.run, time.time()
    attempts = tuple((attempt.number, tuple(attempt.events())) for attempt in run.attempts())
    paces = tuple(tuple(attempt.paces()) for attempt in run.attempts())
    fabric, notes = _fabric(run)
    saved, damaged = _checkpoints(Path(seen.plan.checkpoint.dir))
    return RunData(
        id=run.id,
        path=str(run.path),
        state=seen.state.value,
        cause=None if seen.state.value == "done" else cause,
        record=run.record(),
        attempts=attempts,
        timeline=timeline(journal_events(run), attempts, None if seen.state.over else now),
        curves=tuple(curves(events for _, events in attempts)),
        paces=tuple(tuple(attempt.paces(whole=True)) for attempt in run.attempts()),
        health=_health(seen, [events for _, events in attempts], paces),
        result=run.result(),
        fabric=fabric,
        checkpoints=saved,
        offline=tuple(sorted(map(str, (run.path / "wandb").glob("offline-run-*")))),
        log=_log(run),
        notes=tuple(dict.fromkeys((*notes, *damaged, *unreadable.problems(run, whole=True)))),
        seen=now,
    )


def _health(seen: RunStatus, attempts: Sequence[Sequence[Event]], paces: Sequence[Sequence[Event]]) -> tuple[str, ...]:
    found = [line for events in attempts for line in remarks(events)]
    for number, events in enumerate(paces):
        over = seen.state.over or number + 1 < len(paces)
        found += [
            each.words
            for each in stragglers(events, seen.plan.train.straggler_factor, seen.plan.train.straggler_time, over=over)
        ]
    return tuple(found)


def _fabric(run: Run) -> tuple[FabricResults | None, tuple[str, ...]]:
    try:
        found = unwrap(read_json(run.path / "results.json"))
        return (None if found is None else parse(found)), ()
    except (RunError, Unreadable) as error:
        return None, (str(error),)


def _checkpoints(folder: Path) -> tuple[tuple[checkpoints.Manifest, ...], tuple[str, ...]]:
    # The checkpoints' data is not read
    found, problems = [], []
    try:
        paths = checkpoints.candidates(folder)
    except checkpoints.CannotRead as error:
        return (), (str(error),)
    for path in paths:
        try:
            found.append(checkpoints.read(path))
        except checkpoints.CheckpointError as error:
            problems.append(str(error))
    return tuple(sorted(found, key=lambda manifest: manifest.step)), tuple(problems)


def _log(run: Run) -> tuple[str, ...]:
    outputs = run.outputs()
    if not outputs:
        return ()
    try:
        data, start = run_files.read_range(outputs[-1], 0, None, LOG_BYTES)
    except OSError:
        return ()
    lines = data.decode(errors="replace").split("\n")[1 if start else 0 :]
    while lines and not lines[-1].strip():
        lines.pop()
    return tuple(clean(last_state(line))[:LONGEST_LINE] for line in lines[-LOG_LINES:])


# -- Makes curves of a training's metrics over steps from its events


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
    """Returns a curve for each metric in `progress` and `evaluated` events by attempt, in order of appearance."""
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
