"""Reads a run directory into one object. No other module of the report reads files of a run.

Files may be incomplete, damaged or of another version: the page shows what can be read, and lists what cannot.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.checkpoint import format as checkpoints
from launcher.errors import RunError
from launcher.files import run_files
from launcher.files.shared_files import read_json, unwrap
from launcher.monitoring.run_status import RunStatus
from launcher.reports import words
from launcher.reports.curves import Curve, curves
from launcher.reports.fabric import Fabric, Unreadable, parse
from launcher.reports.timeline import Timeline, timeline
from launcher.runs import unreadable
from launcher.runs.carriage_returns import last_state
from launcher.runs.directory import Run
from launcher.runs.health import remarks, stragglers
from launcher.runs.journal import journal_events

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
    fabric: Fabric | None = None
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
        return tuple(words.redact_override(str(each)) for each in self.record.get("overrides") or ())


def collect(seen: RunStatus, cause: str | None) -> RunData:
    """Reads the data of a run.

    Args:
        seen: the status of the run.
        cause: why the run ended, as one line; None: not known.

    Raises:
        RunError: the run's record cannot be read.
    """
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


def _fabric(run: Run) -> tuple[Fabric | None, tuple[str, ...]]:
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
    except checkpoints.Unavailable as error:
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
    return tuple(words.clean(last_state(line))[:LONGEST_LINE] for line in lines[-LOG_LINES:])
