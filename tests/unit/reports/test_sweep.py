"""The page of a sweep: which point is the best, and what is drawn."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from launcher.config.search_space import Dimension, Goal, Method
from launcher.reports import page
from launcher.reports.collect import Curve, SweepPoint, by_objective
from launcher.reports.page import Page, sweep_page
from launcher.runs.sweep_directory import Journal, SearchSettings, TrialRecord, TrialState
from launcher.search.progress import progress_of

HOSTILE = "</script><script>alert(1)</script>"


def point(number: int, rate: str, accuracy: Any, state: str = "done", **more: str) -> SweepPoint:
    overrides = ("workload=ddp_mnist", f"workload.lr={rate}", *(f"workload.{key}={each}" for key, each in more.items()))
    steps = (1, 2, 3)
    curve = Curve("loss", steps, tuple(1 / (step + number) for step in steps))
    return SweepPoint(str(number), overrides, state, {"accuracy": accuracy, "steps": 3}, (curve,))


def some() -> list[SweepPoint]:
    waiting = SweepPoint("3", ("workload=ddp_mnist", "workload.lr=1"), "waiting")
    return [point(0, "0.01", 0.7), point(1, "0.1", 0.9), point(2, "0.001", 0.95, "failed"), waiting]


def numbers(points: list[SweepPoint]) -> list[str]:
    return [each.name for each in points]


@pytest.mark.parametrize(
    ("goal", "best_is", "order"),
    [("accuracy", "max", "1023"), ("accuracy", "min", "0123"), ("nothing", "max", "0123"), (None, "max", "0123")],
)
def test_the_best_is_first_and_those_without_a_number_last(goal: str | None, best_is: str, order: str) -> None:
    assert numbers(by_objective(some(), goal, best_is)) == list(order)


def shown(points: list[SweepPoint], objective: tuple[str, ...] = ("accuracy",)) -> Page:
    return sweep_page("lr-3f9c", points, objective, "max", "/runs/lr-3f9c", 1795282000.0)


def test_the_page_names_the_best_point_and_its_command() -> None:
    told = shown(some())
    assert ("best point", "1: lr=0.1") in told.facts
    assert told.codes[0][1] == "python -m launcher workload=ddp_mnist workload.lr=0.1"
    assert told.cause == "2 done, 1 failed, 1 waiting"
    table = next(section for section in told.sections if section.title == "Points").tables[0]
    assert table.heads == ("point", "state", "lr", "accuracy")  # the steps are the same in all
    assert table.rows[0] == ("1", "done", "0.1", "0.9")
    assert table.marks == {0: "good", 2: "bad"}


def test_of_very_many_points_the_first_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MOST_POINTS", 50)
    for count, summary in (
        (50, "All 50 points"),
        (51, "The first 50 of 51 points; `sweep results --csv FILE` writes all"),
    ):
        folded = shown([point(number, str(number), number) for number in range(count)]).sections[0].tables[1]
        assert (len(folded.rows), folded.summary) == (50, summary)


def test_without_an_objective_nothing_is_the_best() -> None:
    told = shown(some(), ())
    assert (told.codes, [section.title for section in told.sections]) == ([], ["Points", "Training"])
    assert "sweep.objective=METRIC" in told.sections[0].note


def test_its_figures_are_what_plotly_knows_and_its_texts_are_escaped() -> None:
    objects = pytest.importorskip("plotly.graph_objects")
    told = shown([*some(), point(4, "0.3", 0.8, note=HOSTILE), point(5, "0.3", 0.8, note="x")])
    assert HOSTILE not in page.render(told)
    figures = [figure for section in told.sections for figure in section.figures]
    assert len(figures) == 1
    for figure in figures:
        traces, layout = json.loads(re.sub(r'"--[a-z0-9-]+"', '"#123456"', json.dumps([figure.traces, figure.layout])))
        objects.Figure(data=traces, layout=layout)


def test_all_figures_of_a_sweep_have_one_legend() -> None:
    """Each used to have its own, which took more room than its plot."""
    points = [point(number, f"0.{number + 1}", number / 20, optimizer="adamw" * 9) for number in range(12)]
    training = next(section for section in shown(points).sections if section.title == "Training")
    assert len(training.legend) == 8  # as many as have a colour
    assert training.legend[0] == ("--series-1", "lr=0.12")
    assert [figure.layout["showlegend"] for figure in training.figures] == [False] * len(training.figures)
    assert {figure.height for figure in training.figures} == {300}
    assert all(f'<span style="background: var({colour})"></span>{name}' in page.render(shown(points))
               for colour, name in training.legend)  # fmt: skip


def test_a_search_has_its_rungs() -> None:
    settings = SearchSettings(
        Method.asha, "accuracy", Goal.maximize, {"workload.lr": Dimension(low=0, high=1)}, points=9
    )
    trials = [
        TrialRecord(0, state=TrialState.COMPLETE, value=0.7, rungs={0: 0.5}),
        TrialRecord(1, state=TrialState.COMPLETE, value=0.9, rungs={0: 0.6}),
        TrialRecord(2, state=TrialState.PRUNED, rungs={0: 0.2}, pruned_at=3),
    ]
    found = progress_of(settings, Journal(trials, min_steps=3), {})
    points = [point(0, "0.01", 0.7), point(1, "0.1", 0.9), point(2, "0.3", None, "pruned")]
    found_page = sweep_page("lr", points, ("accuracy",), "max", search=(settings, found))
    first = found_page.sections[0]
    assert first.title == "Search"
    assert "Search asha, maximize accuracy: 3 chosen of at most 9" in first.note
    assert first.tables[0].rows == [("3", "3", "1", "0.6")]


@pytest.mark.parametrize(
    ("state", "says"), [("running", "No point is done yet."), ("done", "No point has a number named speed.")]
)
def test_a_sweep_without_a_number_to_compare_says_why(state: str, says: str) -> None:
    shown = sweep_page("lr", [point(0, "0.1", 0.9, state), point(1, "0.2", 0.8, state)], ("speed",), "max")
    assert shown.sections[0].note == says
