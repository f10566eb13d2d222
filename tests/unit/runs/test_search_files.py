"""The journal of a search is read within bounds, and each field has its type, whoever wrote it."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher import io_bounds
from launcher.config.search_space import Goal, Method
from launcher.errors import RunError
from launcher.runs.sweep_directory import RUNG, SearchRecord, SearchSettings, TrialState
from launcher.search import progress

NEW: dict[str, Any] = {"op_code": 4, "user_attrs": {"overrides": ["a=1"]}}
SETTINGS = SearchSettings(Method.asha, "loss", Goal.minimize, {}, min_steps=1)


def journal_of(folder: Path, *entries: Any) -> Any:
    record = SearchRecord(folder)
    record.folder.mkdir(exist_ok=True)
    record.journal_file.write_text("".join(json.dumps(each) + "\n" for each in entries))
    return record.journal()


def trial(code: int, **fields: Any) -> dict[str, Any]:
    return {"op_code": code, "trial_id": 0, **fields}


def attributes(**values: Any) -> dict[str, Any]:
    return trial(8, user_attr=values)


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"op_code": 2, "user_attr": []}, "user_attr is not an object"),
        ({"op_code": 2, "user_attr": {"min_steps": "9"}}, "min_steps is not a whole number"),
        ({"op_code": 2, "user_attr": {"min_steps": 1 << 64}}, "min_steps is an integer of more than 64 bits"),
        ({"op_code": 2, "user_attr": {"stopped": {}}}, "stopped is not text"),
        ({"op_code": 4}, "overrides is not a list"),
        ({"op_code": 4, "user_attrs": 5}, "user_attrs is not an object"),
        ({"op_code": 4, "user_attrs": {"overrides": "abc"}}, "overrides is not a list"),
        ({"op_code": 4, "user_attrs": {"overrides": [1]}}, r"overrides\[0\] is not text"),
        ({**NEW, "state": 9}, "9 is not a valid TrialState"),
        ({**NEW, "state": []}, "is not a valid TrialState"),
        ({**NEW, "datetime_start": 5}, "datetime_start is not text"),
        ({**NEW, "datetime_start": "0001-01-01"}, ""),
        ({**NEW, "datetime_start": "yesterday"}, "yesterday"),
        (trial(6), "None is not a valid TrialState"),
        (trial(6, state=1, values=5), "values is not a list"),
        (trial(6, state=1, values={"0": 1}), "values is not a list"),
        (trial(6, state=1, values=["abc"]), "values is not a number"),
        (trial(6, state=1, values=[True]), "values is not a number"),
        (trial(6, state=1, values=[1], datetime_complete=[]), "datetime_complete is not text"),
        (trial(7, step=[], intermediate_value=1), "step is not a whole number"),
        (trial(7, step="1", intermediate_value=1), "step is not a whole number"),
        (trial(7, step=1, intermediate_value="x"), "intermediate_value is not a number"),
        (trial(7, step=1), "intermediate_value is not a number"),
        (trial(8), "user_attr is not an object"),
        (attributes(seconds="9"), "seconds is not a number"),
        (attributes(steps=1.5), "steps is not a whole number"),
        (attributes(pruned_at=True), "pruned_at is not a whole number"),
        (attributes(cause=["x"]), "cause is not text"),
        (trial(9, system_attr=[]), "system_attr is not an object"),
        (trial(9, system_attr={RUNG + "x": 1}), "invalid literal"),
        (trial(9, system_attr={RUNG + "-1": 1}), "has no rung -1"),
        (trial(9, system_attr={RUNG + "64": 1}), "has no rung 64"),
        (trial(9, system_attr={RUNG + "9" * 5000: 1}), ""),
        (trial(9, system_attr={RUNG + "0": None}), "is not a number"),
    ],
)  # fmt: skip
def test_what_is_no_record_of_a_search_is_refused_by_name(entry: Any, problem: str, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=f"journal.jsonl cannot be read: record 2: .*{problem}"):
        journal_of(tmp_path, NEW, entry)


@pytest.mark.parametrize("entry", [*(trial(7, trial_id=each) for each in (-1, True, 1, "0")), {"op_code": 99}])
def test_what_belongs_to_no_trial_is_left_out(entry: Any, tmp_path: Path) -> None:
    (only,) = journal_of(tmp_path, NEW, NEW | {"op_code": 5}, entry).trials
    assert (only.overrides, only.reports) == (("a=1",), {})


def test_a_point_may_report_what_is_no_finite_number(tmp_path: Path) -> None:
    (only,) = journal_of(
        tmp_path, NEW, trial(7, step=1, intermediate_value=float("nan")), trial(7, step=2, intermediate_value=3),
        trial(9, system_attr={RUNG + "63": 1.5, "other": []}), trial(6, state=3, values=None),
    ).trials  # fmt: skip
    assert str(only.reports) == "{1: nan, 2: 3}"
    assert only.rungs == {63: 1.5}
    assert only.state is TrialState.FAIL


def test_all_rungs_of_a_trial_are_shown_at_once(tmp_path: Path) -> None:
    """Each rung has a power of the factor as its number of steps."""
    journal = journal_of(
        tmp_path, NEW, trial(9, system_attr={RUNG + str(number): 1 for number in range(io_bounds.SEARCH_RUNGS)})
    )
    journal.min_steps = 1
    assert len(progress.rungs_of(SETTINGS, journal)) == 64


@pytest.mark.parametrize(("bound", "most"), [("SWEEP_POINTS", 3), ("SWEEP_OVERRIDES", 3)])
def test_more_points_or_overrides_than_a_sweep_has_are_refused(
    bound: str, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(io_bounds, bound, most)
    assert len(journal_of(tmp_path, NEW, NEW).trials) == 2
    assert len(journal_of(tmp_path, NEW, NEW, NEW).trials) == 3
    with pytest.raises(RunError, match="at most 3"):
        journal_of(tmp_path, NEW, NEW, NEW, NEW)


def test_a_search_chooses_no_point_that_could_not_be_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    fixed = replace(SETTINGS, fixed=("a=1", "b=2"))
    monkeypatch.setattr(io_bounds, "SWEEP_OVERRIDES", 6)
    assert [fixed.full(chosen) for chosen in (1, 2, 3, 4)] == [False, False, True, True]
    monkeypatch.setattr(io_bounds, "SWEEP_POINTS", 2)
    assert [fixed.full(chosen) for chosen in (0, 1, 2, 3)] == [False, False, True, True]
    assert [replace(SETTINGS, points=1).full(chosen) for chosen in (0, 1)] == [False, True]


def test_a_line_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(io_bounds, "SEARCH_LINE_BYTES", len(json.dumps(NEW)))
    assert len(journal_of(tmp_path, NEW, NEW).trials) == 2
    with pytest.raises(RunError, match="line 2 has more than"):
        journal_of(tmp_path, NEW, {**NEW, "x": ""})


def test_a_journal_that_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    record = SearchRecord(tmp_path)
    record.folder.mkdir()
    os.mkfifo(record.journal_file)
    with pytest.raises(RunError, match="FIFO"):
        record.journal()
