"""Runs of 100 days, with a million events or thousands of metrics: nothing grows without bound, no curve has a gap."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from launcher import io_bounds
from launcher.cli import status as status_command
from launcher.cli.status import progress_of
from launcher.monitoring.run_status import JobMonitor, RunStatus, status_of
from launcher.reports.collect import Curve, collect, curves
from launcher.runs import event_files, events
from launcher.runs.directory import Attempt, Run
from launcher.runs.events import Ended, Evaluated, Event, Progress, Saved, Started, known
from launcher.search.progress import PointReports
from launcher.worker import tracking
from launcher.worker.tracking import STEP, Reporter, most_events
from tests.unit.plans import plan_of, with_fields

DAY = 86400
GAP = 0.05  # of a run: the longest part of it without a point in a curve


def gap(curve: Curve, last: int) -> float:
    """The longest part of a run of `last` steps in which a curve has no point."""
    steps = [0, *curve.steps, last]
    return max(after - before for before, after in pairwise(steps)) / last


def lines(count: int, metrics: int = 1) -> str:
    """An event file as versions that wrote two events a second have left it."""
    values = json.dumps({f"metric_{number}": 0.125 for number in range(metrics)})
    return "".join(
        f'{{"time": {1e9 + step}, "event": "progress", "step": {step}, "total": {count}, "values": {values}}}\n'
        for step in range(1, count + 1)
    )


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    run = Run.create(tmp_path / "run")
    run.write_record(with_fields(plan_of(), run_id="run", run_dir=str(run.path)), {}, {"launcher": "1", "token": "t"})
    made = Attempt(run, 0)
    for folder in ("events", "logs"):
        (made.path / folder).mkdir(parents=True)
    event_files.append(made.events_file("script"), Started(time=1e9, job="7", host="node1"))
    return made


# -- what is written


@pytest.mark.parametrize(
    ("days", "steps"),
    [(1, 20_000), (100, 20_000), *(pytest.param(days, 100_000, marks=pytest.mark.slow) for days in (1, 60, 100))],
)
def test_the_interval_between_events_grows_with_the_run(
    attempt: Attempt, days: int, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, step = 0.0, 0
    written: list[Event] = []
    tracked: list[int] = []

    def write(event: Event) -> bool:
        event.time = now
        written.append(event)
        return True

    monkeypatch.setattr(tracking.time, "monotonic", lambda: now)
    monkeypatch.setattr(tracking, "Events", lambda *_: write)
    told = Reporter(attempt, 0)
    monkeypatch.setattr(told, "_track", lambda prefix, values, step, **_: tracked.append(step))
    took = days * DAY / steps  # seconds of a step
    while step < steps:
        now, step = now + took, step + 1
        told.progress(step, steps, {"loss": 1 / step})
        if step % 100 == 0:
            told.evaluated(step, {"accuracy": 0.5})
    loss, accuracy = curves([[event_files.entry(event) for event in written]])
    assert len(loss.steps) <= most_events(now) + 2
    assert gap(loss, step) < 0.005
    assert len(accuracy.steps) == step // 100, "what is rare is written whenever it is reported"
    reported = [event.time for event in written if isinstance(event, Progress)]
    assert max(after - before for before, after in pairwise(reported)) <= max(STEP, took) + took
    assert len(written) < most_events(now) * 2 + now / STEP
    assert {*tracked} == {*range(1, step + 1)}, "trackers get what is at least INTERVAL apart, as ever"


def test_a_hundred_days_of_200_metrics_stay_small() -> None:
    line = len(json.dumps(event_files.entry(Progress(step=10**7, total=10**7, values={
        f"layer_{number}/gradient_norm": 0.123456789 for number in range(200)
    }))))  # fmt: skip
    step = len(json.dumps(event_files.entry(Progress(step=10**7, total=10**7))))
    size = most_events(100 * DAY) * line + 100 * DAY / STEP * step
    assert size < 2 * io_bounds.EVENTS_BYTES


@pytest.mark.parametrize("value", [10**300, -(10**300), {"a": [10**301]}])
def test_a_number_that_no_reader_takes_is_refused(attempt: Attempt, value: Any) -> None:
    told = Reporter(attempt, 0)
    told.progress(5, 10, {"loss": value})
    (event,) = events.every(event_files.read(attempt.events_file("rank-0")), Progress)
    assert (event.step, event.values) == (5, None), "the step is told, without the values"


# -- what is read


@pytest.mark.parametrize(
    ("count", "metrics"), [(2_000, 1), (20_000, 1), pytest.param(200_000, 1, marks=pytest.mark.slow), (2_000, 200)]
)
def test_of_a_file_that_is_too_large_events_are_read_that_are_evenly_apart(
    attempt: Attempt, count: int, metrics: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(io_bounds, "EVENTS_BYTES", 1 << 18)
    monkeypatch.setattr(io_bounds, "EVENT_BYTES", 1 << 14)
    path = attempt.events_file("rank-0")
    path.write_text(lines(count, metrics))
    found = list(event_files.read(path))
    steps = [event["step"] for event in found]
    assert steps == sorted({*steps})
    assert (steps[0], steps[-1]) == (1, count)
    assert gap(curves([found])[0], count) < GAP
    assert len(found) <= 3_500
    assert event_files.problems(path) == []


def test_of_too_many_lines_some_are_read_that_are_evenly_apart(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(io_bounds, "EVENTS_LINES", 1000)
    path = attempt.events_file("rank-0")
    path.write_text(lines(10_000))
    found = list(event_files.read(path))
    assert len(found) <= 1001
    assert (found[0]["step"], found[-1]["step"]) == (1, 10_000)
    assert gap(curves([found])[0], 10_000) < GAP


@pytest.mark.parametrize("cut", ["", '{"time": 1e9, "eve'])
def test_of_too_many_lines_none_is_read_twice(attempt: Attempt, cut: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(io_bounds, "EVENTS_LINES", 1000)
    path = attempt.events_file("rank-0")
    path.write_text(lines(10_000) + lines(5, metrics=300).replace('"step": ', '"step": 1000') + cut)  # long ones last
    steps = [event["step"] for event in event_files.read(path)]
    assert len(steps) == len({*steps})
    assert steps[-1] == 10005


def test_the_report_of_an_old_run_has_whole_curves(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(io_bounds, "EVENTS_BYTES", 1 << 18)
    attempt.events_file("rank-0").write_text(lines(20_000))
    seen = ended(attempt)
    found = collect(seen, None)
    assert gap(found.curves[0], 20_000) < GAP
    assert found.notes == ()


@pytest.mark.parametrize("metrics", [10, 100, 1000])
@pytest.mark.parametrize("half", ["", '{"time": 1, "event": "progr'])
def test_the_step_is_known_whatever_the_number_of_metrics(attempt: Attempt, metrics: int, half: str) -> None:
    values = {f"metric_{number}": 0.5 for number in range(metrics)}
    evaluated = json.dumps(event_files.entry(Evaluated(time=2e9, step=40, values=values)))
    attempt.events_file("rank-0").write_text(lines(40, metrics) + evaluated + "\n" + half)
    seen = ended(attempt)
    assert progress_of(seen, time.time())["step"] == 40
    assert progress_of(seen, time.time())["rate"] == 1.0
    assert seen.history.last(Evaluated) is not None


def test_a_search_reads_all_reports_however_many_there_are(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(io_bounds, "EVENTS_BYTES", 1000)
    attempt.events_file("rank-0").write_text(lines(100))
    reports = PointReports(attempt.run, "metric_0")
    assert [step for step, _, _ in reports.new()] == [*range(1, 101)]


# -- what it takes


def ended(attempt: Attempt) -> RunStatus:
    event_files.append(attempt.events_file("script"), Ended(time=2e9, code=0))
    return status_of(attempt.run, JobMonitor())


def status(attempt: Attempt) -> None:
    status_command._print_details(ended(attempt), heading=False)


@pytest.mark.parametrize(("command", "most"), [(status, 1), (lambda attempt: collect(ended(attempt), None), 11)])
def test_work_for_ten_times_the_events(
    tmp_path: Path, attempt: Attempt, command: Callable[[Attempt], object], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    validated, misfit = [0], event_files._misfit

    def counted(event: object) -> str | None:
        validated[0] += 1
        return misfit(event)

    monkeypatch.setattr(event_files, "_misfit", counted)
    counts = []
    for count in (1_000, 10_000):
        attempt.events_file("rank-0").write_text(lines(count))
        saved = json.dumps(event_files.entry(Saved(time=1e9, step=1)))
        attempt.events_file("checkpoint").write_text(f"{saved}\n" * count)
        validated[0] = 0
        command(attempt)
        counts.append(validated[0])
    assert counts[1] <= most * counts[0] + 10


def test_a_damaged_line_of_the_newest_is_named_by_status_and_any_by_report(attempt: Attempt) -> None:
    path = attempt.events_file("rank-0")
    path.write_text(lines(1000) + "oh\n" + lines(1000) + "no\n" + lines(1))
    assert event_files.problems(path, ends=True) == [f"{path}, a line: it is no event"]
    assert event_files.problems(path) == [f"{path}, line {number}: it is no event" for number in (1001, 2002)]
    assert len(list(known(event_files.read(path)))) == 2001
