"""How far a search is: its best point, its rungs, what it has spent and saved."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from launcher.config.search_space import Dimension, Goal, Method
from launcher.runs.sweep_directory import Journal, SearchSettings, TrialRecord, TrialState
from launcher.search.progress import Rung, described, progress_of, rung_lines

SPACE = {"lr": Dimension(low=0, high=1)}


def settings(goal: Goal = Goal.maximize, **changes: object) -> SearchSettings:
    return SearchSettings(Method.asha, "accuracy", goal, SPACE, **{"points": 9, **changes})  # type: ignore[arg-type]


JOURNAL = Journal(
    [
        TrialRecord(0, state=TrialState.COMPLETE, value=0.8, rungs={0: 0.5, 1: 0.7}, seconds=3600, steps=27),
        TrialRecord(1, state=TrialState.PRUNED, value=0.2, rungs={0: 0.2}, pruned_at=3, seconds=360, steps=3),
        TrialRecord(2, state=TrialState.COMPLETE, value=0.9, rungs={0: 0.6, 1: 0.6}, seconds=3600, steps=27),
        TrialRecord(3, state=TrialState.FAIL, seconds=36),
        TrialRecord(4, reports={3: 0.1, 9: 0.4}, rungs={0: 0.1}),
    ],
    min_steps=3,
)


def test_the_state_of_a_search() -> None:
    found = progress_of(settings(), JOURNAL, {4: 360.0})
    assert (found.chosen, found.done, found.pruned, found.failed) == (5, 2, 1, 1)
    assert found.best is JOURNAL.trials[2]
    assert found.hours == pytest.approx(2.21)
    assert found.saved == pytest.approx(0.8)
    assert found.rungs == (Rung(3, 4, 1, 0.6), Rung(9, 2, 0, 0.7))


def test_where_less_is_better() -> None:
    found = progress_of(settings(Goal.minimize), JOURNAL, {4: 360.0})
    assert found.best is JOURNAL.trials[0]
    assert [each.best for each in found.rungs] == [0.1, 0.6]


def test_what_is_said_of_it() -> None:
    lines = described(settings(gpu_hours=5.0, devices_are_gpus=True), progress_of(settings(), JOURNAL, {4: 360.0}))
    assert lines == [
        "search asha, maximize accuracy: 5 chosen of at most 9, 1 pruned",
        "best so far: point 2, accuracy 0.9; 2.21 of 5 GPU-hours spent, about 0.8 saved by pruning",
    ]
    stopped = progress_of(settings(), Journal(stopped="no such metric"), {})
    assert described(settings(), stopped)[1:] == ["0 node-hours spent", "the search has ended: no such metric"]


@pytest.mark.parametrize(
    ("changes", "journal", "over", "words"),
    [
        ({"points": 9}, JOURNAL, False, None),
        ({"points": 5}, JOURNAL, True, None),
        ({"points": None, "gpu_hours": 2.0}, JOURNAL, True, "no more points are chosen: the budget is spent"),
        ({"points": None, "gpu_hours": 2.5}, JOURNAL, False, None),
        (
            {"space": {"lr": Dimension(choices=tuple("12345"))}},
            JOURNAL,
            True,
            "no more points are chosen: every combination is taken",
        ),
        ({}, Journal(stopped="no such metric"), True, "the search has ended: no such metric"),
    ],
)
def test_whether_more_points_are_chosen(
    changes: dict[str, Any], journal: Journal, over: bool, words: str | None
) -> None:
    found = dataclasses.replace(settings(), **changes)
    progress = progress_of(found, journal, {4: 360.0})
    assert progress.over is over
    last = described(found, progress)[-1]
    assert (last if "chosen:" in last or "ended" in last else None) == words


def test_rungs_are_a_table() -> None:
    assert rung_lines([Rung(3, 4, 1, 0.6)])[1:] == [("3", "4", "1", "0.6")]
    assert rung_lines([]) == []
