"""The points of a search as a slot manager sees them: made from a template, watched, pruned and ended."""

from __future__ import annotations

import dataclasses
import math
import os
from pathlib import Path
from typing import Any

import pytest

from launcher.config.compose_points import space_of
from launcher.config.search_space import Goal, Method
from launcher.plan.plan import as_dict
from launcher.runs import event_files
from launcher.runs.directory import FORMAT, Run
from launcher.runs.events import Ended, Evaluated, Event, Progress, Started
from launcher.runs.history import journal_events
from launcher.runs.sweep_directory import Journal, SearchRecord, SearchSettings, Sweep, TrialState
from launcher.search.point_template import template_of
from launcher.search.progress import PointReports, as_number, missing_reports, reports_in, seconds_of
from tests.unit.plans import plan_of
from tests.unit.sweep_runs import begin

pytest.importorskip("optuna", reason="pip install 'launcher[optuna]'")

from launcher.search.search import SearchPoints


def record_with(sweep: Sweep, point: int, lr: float) -> dict[str, Any]:
    run, plan = sweep.run(point), plan_of()
    workload = dataclasses.replace(plan.workload, params={**plan.workload.params, "lr": lr})
    own = dataclasses.replace(plan, run_id=f"{sweep.id}/{point}", run_dir=str(run.path), workload=workload)
    return {"format": FORMAT, "launcher": "1", "plan": as_dict(own), "config": {"workload": {"lr": lr}}}


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    """A search of a learning rate that prunes, and has chosen nothing yet."""
    made = Sweep.create(tmp_path / "lr")
    space, fixed = space_of(["workload=ddp_mnist", "workload.lr=interval(0,1)"])
    settings = SearchSettings(Method.asha, "accuracy", Goal.maximize, space, tuple(fixed))
    others = {"workload.lr": {text: record_with(made, 0, float(text)) for text in ("0.0", "1.0")}}
    first, moved = (record_with(made, point, 0.0) for point in range(2))
    template = template_of(first, moved, others, space, (f"{made.id}/0", f"{made.id}/1"))
    SearchRecord(made.path).create(settings, template)
    return made


def journal(sweep: Sweep) -> Journal:
    return SearchRecord(sweep.path).journal()


def told(run: Run, *events: Event, attempt: int = 0) -> None:
    for each in events:
        event_files.append(run.path / "attempts" / str(attempt) / "events" / "rank-0.jsonl", each)


def test_a_point_that_was_chosen_has_a_record_of_its_own(sweep: Sweep) -> None:
    points = SearchPoints(sweep)
    assert points.count() == 0
    assert points.more()
    assert points.more()
    other = SearchPoints(sweep)  # on another node
    assert other.count() == 2
    run = other.made(1)
    (lr,) = (each.removeprefix("workload.lr=") for each in journal(sweep).trials[1].overrides if "lr" in each)
    plan = run.plan()
    assert plan.workload.params["lr"] == float(lr)
    assert (plan.run_id, plan.run_dir) == ("lr/1", str(sweep.path / "1"))
    assert run.record()["overrides"] == ["workload=ddp_mnist", f"workload.lr={lr}"]
    before = (run.path / "record.json").stat().st_ino
    assert points.made(1).path == run.path
    assert (run.path / "record.json").stat().st_ino == before


def test_when_the_budget_is_spent_there_are_no_more_points_until_it_is_raised(sweep: Sweep) -> None:
    record = SearchRecord(sweep.path)
    record.create(dataclasses.replace(record.settings(), points=1), record.template())
    points = SearchPoints(sweep)
    assert points.more()
    assert not points.more()
    assert not points.more()
    record.create(dataclasses.replace(record.settings(), points=2), record.template())
    assert not points.more()  # it has just been looked at
    assert points.more(now=True)
    assert not points.more()
    (sweep.path / "search" / "settings.json").write_text("{}")
    assert not points.more(now=True)  # the settings that were read are kept


def test_a_point_that_is_behind_is_to_be_pruned(sweep: Sweep) -> None:
    points = SearchPoints(sweep)
    for point, values in ((0, (0.5, 0.9)), (1, (0.4, 0.95))):
        assert points.more()
        begin(points.made(point))
        told(points.made(point), Progress(step=0, total=27), Evaluated(step=1, values={"accuracy": values[0]}))
        assert points.to_prune(point) is (point == 1)
        told(points.made(point), Evaluated(step=27, values={"accuracy": values[1]}))
    assert [each["step"] for each in journal_events(points.made(1))] == [1]
    points.ended(1, TrialState.PRUNED)
    points.made(0).write_result({"accuracy": 0.91})
    points.ended(0, TrialState.COMPLETE)
    first, second = journal(sweep).trials
    assert (first.state, first.value, first.steps) == (TrialState.COMPLETE, 0.91, 27)
    assert (second.state, second.pruned_at, second.rungs) == (TrialState.PRUNED, 1, {0: 0.4})


def test_without_a_result_the_last_report_is_the_value(sweep: Sweep) -> None:
    points = SearchPoints(sweep)
    assert points.more()
    begin(points.made(0))
    told(points.made(0), Evaluated(step=1, values={"accuracy": 0.5}), Evaluated(step=2, values={"accuracy": 0.6}))
    points.ended(0, TrialState.COMPLETE)
    assert journal(sweep).trials[0].value == 0.6


def test_a_point_that_was_resumed_after_its_last_report_has_its_value(sweep: Sweep) -> None:
    points = SearchPoints(sweep)
    assert points.more()
    begin(points.made(0))
    told(points.made(0), Evaluated(step=27, values={"accuracy": 0.6}))
    begin(points.made(0), number=1)
    points.ended(0, TrialState.COMPLETE)
    assert (journal(sweep).trials[0].value, journal(sweep).stopped) == (0.6, None)


def test_reports_of_a_search_that_prunes_nothing_are_read_at_the_end(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = SearchRecord(sweep.path)
    record.create(dataclasses.replace(record.settings(), method=Method.tpe), record.template())
    points = SearchPoints(sweep)
    assert points.more()
    begin(points.made(0))
    told(points.made(0), Evaluated(step=27, values={"accuracy": 0.6}))
    with monkeypatch.context() as patch:
        patch.setattr(PointReports, "new", lambda _: pytest.fail("they were read"))
        assert not points.to_prune(0)
    points.ended(0, TrialState.COMPLETE)
    assert (journal(sweep).trials[0].value, journal(sweep).trials[0].steps) == (0.6, 27)


def test_an_objective_that_nobody_reports_ends_the_search_and_says_what_there_is(sweep: Sweep) -> None:
    points = SearchPoints(sweep)
    assert points.more()
    points.made(0).write_result({"acuracy": 0.5, "loss": 1.0})
    points.ended(0, TrialState.COMPLETE)
    assert journal(sweep).trials[0].state is TrialState.FAIL
    stopped = journal(sweep).stopped or ""
    assert "sweep.objective=accuracy" in stopped
    assert "Did you mean acuracy?" in stopped
    assert "It has acuracy, loss" in stopped
    assert not SearchPoints(sweep).more()


@pytest.mark.parametrize(
    ("before", "result", "ends"), [(0.5, {"loss": 1.0}, False), (None, {"accuracy": None}, False), (None, {}, True)]
)
def test_a_point_that_is_not_feasible_fails_alone(
    sweep: Sweep, before: float | None, result: dict[str, Any], ends: bool
) -> None:
    points = SearchPoints(sweep)
    assert points.more()
    assert points.more()
    if before is not None:
        points.made(1).write_result({"accuracy": before})
        points.ended(1, TrialState.COMPLETE)
    points.made(0).write_result(result)
    points.ended(0, TrialState.COMPLETE)
    assert (journal(sweep).trials[0].state, journal(sweep).stopped is not None) == (TrialState.FAIL, ends)


def test_a_failed_point_does_not_end_the_search(sweep: Sweep) -> None:
    points = SearchPoints(sweep)
    assert points.more()
    points.ended(0, TrialState.FAIL)
    assert journal(sweep).stopped is None
    assert points.more()


# -- reports


def test_what_events_report_of_an_objective() -> None:
    entries = [
        event_files.entry(each)
        for each in (
            Progress(step=1, total=10, values={"loss": 2.0}), Started(job="1", host="a"),
            Evaluated(step=1, values={"accuracy": 0.5, "test": {"loss": 1.0}}), Progress(step=2, total=0),
        )
    ]  # fmt: skip
    assert reports_in(entries, "accuracy") == [
        (1, None, 10),
        (1, 0.5, 10),
        (2, None, 10),
    ]
    assert [value for _, value, _ in reports_in(entries, "test.loss")] == [None, 1.0, None]


@pytest.mark.parametrize(
    ("values", "value"),
    [
        (None, None), ({}, None), ({"a": 1}, 1.0), ({"a": True}, None), ({"a": "high"}, None), ({"a": None}, None),
        ({"b": {"a": 1}}, None), ({"a": {"b": 1}}, None),
    ],
)  # fmt: skip
def test_a_metric_is_a_number(values: Any, value: float | None) -> None:
    assert as_number(values, "a") == value


def test_names_of_metrics_may_have_dots() -> None:
    assert as_number({"eval/loss.mean": 1}, "eval/loss.mean") == 1.0
    assert as_number({"eval": {"loss": {"mean": 1}}}, "eval.loss.mean") == 1.0
    assert math.isnan(as_number({"a": math.nan}, "a") or 0)


def test_reports_are_read_once_attempt_after_attempt(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    reports = PointReports(run, "accuracy")
    assert reports.new() == []
    begin(run)
    told(run, Progress(step=3, total=9), Evaluated(step=3, values={"accuracy": 0.3}))
    path = run.path / "attempts" / "0" / "events" / "rank-0.jsonl"
    with path.open("ab") as file:
        file.write(b'{"time": 5, "event": "evaluated", "step": 4, "val')
    assert reports.new() == [(3, 0.3, 9)]
    with path.open("ab") as file:
        file.write(b'ues": {"accuracy": 0.4}}\n')
    assert reports.new() == [(4, 0.4, 9)]
    assert reports.new() == []
    begin(run, number=1)
    told(run, Evaluated(step=4, values={"accuracy": 0.5}), attempt=1)
    assert reports.new() == [(4, 0.5, 9)]
    assert (reports.last, reports.steps) == (0.5, 4)
    assert PointReports(run, "accuracy").new() == [(3, 0.3, 9), (4, 0.4, 9), (4, 0.5, 9)]


def test_the_time_of_a_point_is_that_of_all_its_attempts(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    for attempt, (began, ended) in enumerate(((100.0, 160.0), (200.0, None), (500.0, None))):
        begin(run, number=attempt)
        path = run.path / "attempts" / str(attempt) / "events" / "script.jsonl"
        path.unlink()
        event_files.append(path, Started(job="1", host="a", time=began))
        if ended is not None:
            event_files.append(path, Ended(code=75, time=ended))
    told(run, Progress(step=1, total=9, time=207.0), attempt=1)
    told(run, Progress(step=1, total=9, time=504.0), attempt=2)
    assert seconds_of(run) == 60.0 + 7.0 + 4.0
    (run.path / "lease").touch()
    os.utime(run.path / "lease", (530.0, 530.0))  # the last heartbeat of its slot manager, which was killed
    assert seconds_of(run) == pytest.approx(60.0 + 7.0 + 30.0)


def test_what_a_point_lacks_is_said_with_what_it_has() -> None:
    assert missing_reports("loss", []) == "sweep.objective=loss: a point is done and has no such number. It has none"
