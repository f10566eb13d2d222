"""Collects what a report shows of a run (attempts, events, timeline, curves, results), and of the points of a sweep."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from launcher.checkpoint import format as checkpoints
from launcher.errors import RunError
from launcher.failures import messages
from launcher.files.json_types import misfit
from launcher.files.retried_reads import read_json, unwrap
from launcher.formatting import clean, flat, long_size, plural, si
from launcher.monitoring.run_status import JobMonitor, RunState, RunStatus
from launcher.monitoring.sweep_status import placed, point_statuses
from launcher.plan.plan import JobPlan
from launcher.redaction import redact_override
from launcher.runs import directory
from launcher.runs import events as kinds
from launcher.runs.directory import Run
from launcher.runs.history import journal_events, remarks
from launcher.runs.output_files import tail
from launcher.runs.sweep_directory import Sweep

Entry = Mapping[str, Any]  # an event, as files have it

# -- Reads a run directory into one object. No other module of the report reads files of a run
# Files may be incomplete, damaged or of another version: the page shows what can be read, and lists what cannot.


LOG_LINES = 200  # last lines of the output that the page shows
LOG_BYTES = 256 * 1024  # bytes that are read from the end of the output
LONGEST_LINE = 500  # characters; longer lines are cut


@dataclass(frozen=True)
class RunData:
    id: str
    path: str  # the run directory
    state: str  # as in `status`
    cause: str | None  # why the run ended, as one line; None: the run is done, or the cause is not known
    plan: JobPlan
    record: Mapping[str, Any]  # as JSON types: config, versions, overrides
    attempts: tuple[tuple[int, tuple[Entry, ...]], ...] = ()  # (number, events) of each attempt
    timeline: Timeline = field(default_factory=lambda: Timeline((), ()))
    curves: tuple[Curve, ...] = ()  # the training's metrics over steps
    health: tuple[str, ...] = ()  # lines about preflight checks and unused GPUs
    result: Mapping[str, Any] | None = None  # the metrics that rank 0 returned, by dotted name; None: it returned none
    fabric: FabricResults | None = None  # None: the run is no benchmark, or its results cannot be read
    checkpoints: tuple[checkpoints.Manifest, ...] = ()  # sorted by step
    offline: tuple[str, ...] = ()  # paths of folders that W&B has written without a server, oldest first
    log: tuple[str, ...] = ()  # the last lines of the run's output
    notes: tuple[str, ...] = ()  # what could not be read, and why
    seen: float = 0.0  # when all this was read, in seconds since the epoch

    @property
    def config(self) -> Mapping[str, Any]:
        return mapping(self.record.get("config"))

    @property
    def overrides(self) -> tuple[str, ...]:
        """The user's overrides, without the values of secrets."""
        return tuple(redact_override(str(each)) for each in self.record.get("overrides") or ())


def mapping(value: Any) -> Mapping[str, Any]:
    """Returns a value of a damaged file, if it is a mapping; else an empty one."""
    return value if isinstance(value, Mapping) else {}


def collect(seen: RunStatus, cause: str | None) -> RunData:
    """Reads the data of a run; cause: why it ended, as one line, if known; raises RunError."""
    run, now = seen.run, time.time()
    attempts = tuple((attempt.number, tuple(attempt.events())) for attempt in run.attempts())
    fabric, notes = None, list[str]()
    try:
        found = unwrap(read_json(run.path / "results.json"))
        fabric = None if found is None else parse(found)
    except RunError as error:
        notes.append(str(error))
    saved = _checkpoints(Path(seen.plan.checkpoint.dir), notes)
    return RunData(
        id=run.id, path=str(run.path), state=seen.state.value, cause=None if seen.state.value == "done" else cause,
        plan=seen.plan, record=run.record(), attempts=attempts,
        timeline=timeline(
            journal_events(run), attempts, None if seen.state.over else now, queued=seen.state is RunState.QUEUED
        ),
        curves=tuple(curves(events for _, events in attempts)),
        health=tuple(line for _, events in attempts for line in remarks(events)),
        result=flat(run.result() or {}) or None, fabric=fabric,
        checkpoints=saved,
        offline=tuple(sorted(map(str, (run.path / "wandb").glob("offline-run-*")))), log=_log(run),
        notes=tuple(dict.fromkeys((*notes, *directory.problems(run, whole=True)))), seen=now,
    )  # fmt: skip


def _checkpoints(folder: Path, problems: list[str]) -> tuple[checkpoints.Manifest, ...]:
    # The checkpoints' data is not read
    found = []
    try:
        for path in checkpoints.candidates(folder):
            try:
                found.append(checkpoints.read(path))
            except checkpoints.CheckpointError as error:
                if not checkpoints.was_removed(path):
                    problems.append(str(error))
    except checkpoints.CannotRead as error:
        problems.append(str(error))
    return tuple(sorted(found, key=lambda manifest: manifest.step))


def _log(run: Run) -> tuple[str, ...]:
    outputs = run.outputs()
    lines = tail(outputs[-1], most=LOG_BYTES) if outputs else []
    while lines and not lines[-1].strip():
        lines.pop()
    return tuple(clean(line)[:LONGEST_LINE] for line in lines[-LOG_LINES:])


# -- The timeline of a run: what it did when (spans), and what happened (moments)


@dataclass(frozen=True)
class Span:
    attempt: int  # the attempt's number
    what: str  # queued, starting, running or restarting
    begin: float  # in seconds since the epoch, like `end`
    end: float
    text: str = ""  # details, such as the number of ranks or the cause of a restart; may be empty


@dataclass(frozen=True)
class Moment:
    attempt: int  # the attempt's number
    kind: str  # checkpoint, stop, fault, restart, resized, warning or end
    time: float  # when the event happened, in seconds since the epoch
    text: str  # what happened, as one line


@dataclass(frozen=True)
class Timeline:
    spans: tuple[Span, ...]  # in order of time
    moments: tuple[Moment, ...]

    @property
    def begin(self) -> float | None:
        return min((span.begin for span in self.spans), default=None)

    @property
    def end(self) -> float | None:
        return max((span.end for span in self.spans), default=None)

    def total(self, what: str) -> float:
        return sum(span.end - span.begin for span in self.spans if span.what == what)


def timeline(
    journal: Sequence[Entry], attempts: Sequence[tuple[int, Sequence[Entry]]], now: float | None, *,
    queued: bool = False,
) -> Timeline:  # fmt: skip
    """Returns the timeline of a run from its journal and (number, events by time) of each attempt.

    now: for a run that is not over, the present time, at which its last span ends; None: the run is over.
    queued: whether it waits for its next attempt, so that the last one has ended.
    """
    submitted = [event.time for event in kinds.every(journal, kinds.Submitted)]
    spans: list[Span] = []
    moments: list[Moment] = []
    before: float | None = None  # when the previous attempt ended
    for place, (number, entries) in enumerate(attempts):
        if not entries:
            continue
        until = now if place + 1 == len(attempts) and not queued else None
        events = list(kinds.known(entry for entry in entries if entry["event"] != kinds.Progress.event))  # of a million
        started, ended = kinds.first(entries, kinds.Started), kinds.first(entries, kinds.Ended)
        began = started.time if started else float(entries[0]["time"])
        if (waited := _queued_since(submitted, before, began)) is not None and waited < began:
            spans.append(Span(number, "queued", waited, began))
        end = ended.time if ended else float(entries[-1]["time"]) if until is None else until
        spans += _spans(number, events, began, max(end, began))
        marks = ((event.time, _mark(event)) for event in events)
        moments += [Moment(number, mark[0], time, mark[1]) for time, mark in marks if mark is not None]
        before = spans[-1].end
    since = _queued_since(submitted, before, math.inf)
    if now is not None and since is not None and (queued or not attempts or (before is not None and since > before)):
        spans.append(Span(1 + max((number for number, _ in attempts), default=-1), "queued", since, max(since, now)))
    return Timeline(tuple(spans), tuple(moments))


def _queued_since(submitted: Sequence[float], before: float | None, began: float) -> float | None:
    # The last submission since the previous attempt ended (`before`), else that end: its job was requeued
    after = [time for time in submitted if time <= began and (before is None or time >= before)]
    return after[-1] if after else before


def _spans(number: int, events: Sequence[kinds.Event], began: float, end: float) -> list[Span]:
    spans: list[Span] = []
    what, since, text = "starting", began, ""
    for event in events:
        time = max(since, event.time)
        if isinstance(event, kinds.Met) and what != "running":
            spans.append(Span(number, what, since, time, text))
            what, since = "running", time
            text = f"{plural(event.ranks, 'rank')} on {plural(event.members, 'node')}"
        elif isinstance(event, kinds.Restart) and what == "running":
            spans.append(Span(number, what, since, time, text))
            what, since, text = "restarting", time, messages.of_fault(event)
    return [*spans, Span(number, what, since, max(since, end), text)]


def _mark(event: kinds.Event) -> tuple[str, str] | None:
    if isinstance(event, kinds.Saved):
        size, seconds = long_size(event.bytes), si(event.seconds, "s")
        return "checkpoint", f"checkpoint of step {event.step}, {size}, {seconds}"
    if isinstance(event, kinds.Restart):
        return "restart", f"restart in place{_at(event.step)}, round {event.round}: {messages.of_fault(event)}"
    if isinstance(event, kinds.Fault):
        cause = messages.of_fault(event)
        host = f" ({event.host})" if event.host not in cause else ""
        return "fault", f"failure{_at(event.step)}: {cause}{host}"
    if isinstance(event, kinds.SetupFailed):
        return "fault", f"failure: {event.message} ({event.host})"
    if isinstance(event, kinds.Stop):
        return "stop", f"stop{_at(event.step)}: {messages.of_stop(event)}"
    if isinstance(event, kinds.Resized):
        return "resized", messages.of_resized(event)
    if isinstance(event, kinds.SaveFailure):
        return "warning", f"the checkpoint of step {event.step} was not saved: {event.error}"
    if isinstance(event, kinds.PassedOver):
        return "warning", f"a checkpoint cannot be used: {event.checkpoint}: {'; '.join(event.problems)}"
    if isinstance(event, kinds.Restored):
        return "restart", messages.of_restored(event)
    if isinstance(event, kinds.Continues):
        return "end", f"continues: {messages.of_next(event)}"
    if isinstance(event, kinds.Stays):
        return "end", f"does not continue: {messages.of_next(event)}"
    return ("end", f"ended with exit code {event.code}") if isinstance(event, kinds.Ended) else None


def _at(step: int | None) -> str:
    return f" at step {step}" if step is not None and step >= 0 else ""


# -- Reads the points of a sweep: the results of all, and the events of the best


MOST_CURVES = 40  # only the best so many points have training curves


@dataclass(frozen=True)
class SweepPoint:
    name: str  # the point's number
    overrides: tuple[str, ...]  # without the values of secrets
    state: str  # as in `status`
    result: Mapping[str, Any] | None = None  # its metrics, by dotted name; None: the point has not started
    curves: tuple[Curve, ...] = ()

    def metric(self, name: str) -> float | None:
        """Returns a metric of the point's result; None: it has no such finite number, or the point is not done."""
        return finite((self.result or {}).get(name)) if self.state == "done" else None


def collect_points(sweep: Sweep) -> list[SweepPoint]:
    """Reads the points of a sweep, in their order; raises RunError."""
    manifest, points = sweep.manifest(), list[SweepPoint]()
    for seen in point_statuses(sweep, JobMonitor()):
        run, overrides = seen.point.run, tuple(map(redact_override, seen.point.overrides))
        result = flat(run.result() or {}) if run.attempts() else None
        points.append(SweepPoint(str(seen.point.index), overrides, seen.state, result))
    # The events of thousands of points would not fit into memory.
    goal = manifest.objective[0] if manifest.objective else None
    started = [each for each in by_objective(points, goal, manifest.best_is) if each.result is not None]
    for each in started[:MOST_CURVES]:
        found = tuple(curves(attempt.events() for attempt in sweep.run(int(each.name)).attempts()))
        points[int(each.name)] = replace(each, curves=found)
    return points


def by_objective(points: Sequence[SweepPoint], objective: str | None, best_is: str) -> list[SweepPoint]:
    """Returns the points by their objective, the best (`max`, `min`) first, those without a value last."""
    return sorted(points, key=lambda each: placed(each.metric(objective or ""), largest_first=best_is == "max"))


# -- Makes curves of a training's metrics over steps from its events


NO_CURVES = {"epoch"}


@dataclass(frozen=True)
class Curve:
    name: str  # its key in the events (`loss`)
    steps: tuple[int, ...]  # increasing
    values: tuple[float, ...]  # at each step
    repeated: tuple[tuple[tuple[int, ...], tuple[float, ...]], ...] = ()  # parts that a later attempt computed again


def curves(attempts: Iterable[Sequence[Entry]]) -> list[Curve]:
    """Returns a curve for each metric in `progress` and `evaluated` events by attempt, in order of appearance."""
    points: dict[str, list[tuple[int, float]]] = {}
    for events in attempts:
        for entry in events:
            values = entry.get("values") if entry["event"] in (kinds.Progress.event, kinds.Evaluated.event) else None
            for name, value in (values or {}).items():
                if name not in NO_CURVES and (number := finite(value)) is not None:
                    points.setdefault(name, []).append((int(entry["step"]), number))
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
    """Returns about `most` points of a curve: every k-th point, and the last one."""
    return Curve(
        curve.name, _every(curve.steps, most), _every(curve.values, most),
        tuple((_every(steps, most), _every(values, most)) for steps, values in curve.repeated[-20:]),
    )  # fmt: skip


def _every(values: tuple[Any, ...], most: int) -> tuple[Any, ...]:
    stride = max(1, math.ceil(len(values) / most))
    return values if stride == 1 else (*values[:-1:stride], values[-1])


def _columns(points: Sequence[tuple[int, float]]) -> tuple[tuple[int, ...], tuple[float, ...]]:
    return tuple(step for step, _ in points), tuple(value for _, value in points)


# -- The results of a benchmark of the interconnect (RUN/results.json; by workloads/benchmark_results.py)


FORMAT = 1
_NUMBERS = ("size", "algbw", "busbw", "bandwidth", "latency")
# Types of the columns that are used in calculations
_ROW = {**dict.fromkeys(_NUMBERS, float | None), "seconds": Mapping[str, Any] | None}
_PAIR = dict.fromkeys(("bandwidth", "latency", "ratio"), float | None)
_CONDITIONS = {"hosts": list[str], "environment": Mapping[str, str]}

Row = Mapping[str, Any]


@dataclass(frozen=True)
class FabricResults:
    workload: str  # `p2p` or `collective`
    conditions: Mapping[str, Any]  # what the numbers depend on: hosts, backend, device, iterations
    roof: Mapping[str, Any]  # measured upper limits of the speed, in bytes/s, and how they were measured
    rows: tuple[Row, ...]  # the measurements, a mapping from column to value each
    matrix: Mapping[str, Any] | None  # bandwidth and latency of all pairs of hosts; None: not measured
    complete: bool
    reason: str = ""  # why it is not complete

    def roofs(self) -> dict[str, float]:
        """Returns the measured upper limits in bytes/s, by their name (`socket`, `memory`)."""
        return {name: speed for name in ("socket", "memory") if (speed := positive(self.roof.get(name)))}


def parse(values: Any) -> FabricResults:
    """Converts the parsed JSON of a results.json; raises RunError: it is damaged, or of another format."""
    if not isinstance(values, Mapping) or not isinstance(values.get("rows"), list):
        raise RunError("results.json is damaged: it has no rows")
    if values.get("format") != FORMAT:
        raise RunError(f"results.json has format {values.get('format')}, and this launcher reads format {FORMAT}")
    conditions, roof, matrix = values.get("conditions"), values.get("roof"), values.get("matrix")
    if matrix is not None and not _is_matrix(matrix):
        raise RunError("results.json is damaged: its matrix has not a number or null for each pair of hosts")
    slow = mapping(matrix).get("slow") or []
    if wrong := misfit(slow, list, "slow"):
        raise RunError(f"results.json is damaged: {wrong}")
    for name, rows, types in (("rows", values["rows"], _ROW), ("slow", slow, _PAIR)):
        for place, row in enumerate(rows):
            if wrong := misfit(row, dict, f"{name}[{place}]") or _misfits(row, types, f"{name}[{place}]."):
                raise RunError(f"results.json is damaged: {wrong}")
    if isinstance(conditions, Mapping) and (wrong := _misfits(conditions, _CONDITIONS, "conditions.")):
        raise RunError(f"results.json is damaged: {wrong}")
    return FabricResults(
        str(values.get("workload", "")), mapping(conditions), mapping(roof), tuple(values["rows"]), matrix,
        bool(values.get("complete")), str(values.get("reason") or ""),
    )  # fmt: skip


def _misfits(values: Mapping[str, Any], types: Mapping[str, Any], name: str) -> str | None:
    found = (misfit(values[key], kind, f"{name}{key}") for key, kind in types.items() if key in values)
    return next((words for words in found if words), None)


def finite(value: Any) -> float | None:
    """Returns the value as a float if it is a finite number (and no bool), else None."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if number else None


def positive(value: Any) -> float | None:
    """Returns the value as a float if it is a number above zero, as a logarithmic axis needs, else None."""
    number = finite(value)
    return number if number is not None and number > 0 else None


def _is_matrix(matrix: Any) -> bool:
    if not isinstance(matrix, Mapping) or not isinstance(matrix.get("hosts"), list) or not matrix["hosts"]:
        return False
    if misfit(matrix.get("block", 1), int, "block") or block_of(matrix) < 1:
        return False
    count = math.ceil(len(matrix["hosts"]) / block_of(matrix))
    return all(
        isinstance(table := matrix.get(name), list)
        and len(table) == count
        and all(isinstance(row, list) and len(row) == count for row in table)
        and all(cell is None or positive(cell) is not None for row in table for cell in row)
        for name in ("bandwidth", "latency")
    )


def block_of(matrix: Mapping[str, Any]) -> int:
    return int(matrix.get("block", 1))


# -- Benchmarks of the interconnect: curves over message size


COLUMNS = ("group", "ranks", "dtype", "redop", "root", "place", "async", "window")  # distinguish curves of an operation
# Title and unit of each measured quantity.
MEASURES = {
    "busbw": ("Bus bandwidth", "B/s"),
    "algbw": ("Algorithm bandwidth", "B/s"),
    "bandwidth": ("Bandwidth", "B/s"),
    "latency": ("Latency", "s"),
    "time": ("Time", "s"),
}


@dataclass(frozen=True)
class SizeCurve:
    op: str  # the operation or pattern (`all_reduce`)
    kind: str  # what distinguishes the curve from others of the same operation (`float16 in place`); may be empty
    sizes: tuple[int, ...]  # of messages in bytes, increasing
    values: tuple[float, ...]  # at each size


def seconds_of(row: Row, part: str) -> float | None:
    """part: `median`, `min` or `p99`."""
    seconds = row.get("seconds")
    return positive(seconds.get(part)) if isinstance(seconds, Mapping) else None


def measured(row: Row, measure: str) -> float | None:
    """measure: a key of MEASURES."""
    return seconds_of(row, "median") if measure == "time" else positive(row.get(measure))


def operation(row: Row) -> str:
    return str(row.get("op") or row.get("pattern") or "?")


def size_curves(rows: Iterable[Row], measure: str) -> list[SizeCurve]:
    """Returns curves of a key of MEASURES over message size, one a combination of operation and COLUMNS."""
    rows = list(rows)
    kind = varying(rows)
    found: dict[tuple[str, str], dict[int, float]] = {}
    for row in rows:
        value, size = measured(row, measure), positive(row.get("size"))
        if value is not None and size is not None:
            found.setdefault((operation(row), kind(row)), {})[int(size)] = value
    return [
        SizeCurve(op, kind, tuple(sorted(points)), tuple(points[size] for size in sorted(points)))
        for (op, kind), points in found.items()
    ]


def varying(rows: Sequence[Row]) -> Callable[[Row], str]:
    """Returns what tells a row from others of its operation: the COLUMNS that vary (`float16 in place`)."""
    values: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        for column in COLUMNS:
            values.setdefault((column, operation(row)), set()).add(_word(column, row))
    several = {column for (column, _), each in values.items() if len(each) > 1}
    differing = [column for column in COLUMNS if column in several]
    if "group" in differing and "ranks" in differing:
        differing.remove("ranks")  # the group determines the ranks
    return lambda row: " ".join(word for column in differing if (word := _word(column, row)))


def _word(column: str, row: Row) -> str:
    value = row.get(column)
    if value is None or value == "" or value is False:
        return ""
    if column == "async":
        return "async"
    if column == "place":
        return {"out": "out of place", "in": "in place"}.get(str(value), str(value))
    return f"{column} {value}" if column in ("root", "window") else str(value)


def size_word(row: Row) -> str:
    return long_size(positive(row.get("size")))
