"""What is told of a plan before it runs."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from launcher.cli.output import bound_to, confirm, fitting, json_text, labelled, table
from launcher.config.schema import LaunchMode
from tests.unit.plans import plan_of


@pytest.mark.parametrize(
    ("keys", "shown"),
    [
        ({}, []),
        ({"procs_per_node": 2}, ["cores of its part (launch.bind=auto), decided on each node"]),
        ({"gpus_per_node": 2}, ["cores next to its GPU (launch.bind=auto), decided on each node"]),
        ({"procs_per_node": 2, "launch": {"mode": LaunchMode.tasks}}, ["what the scheduler binds each task to"]),
        ({"launch": {"bind": "none"}}, ["nothing"]),
        ({"procs_per_node": 2, "launch": {"bind": "map:0-1:5:7"}}, ["CPUs 0-1: local rank 0", "CPUs 5: local rank 1"]),
    ],
)
def test_what_is_known_of_cores_before_a_node_is(keys: dict[str, Any], shown: list[str]) -> None:
    assert bound_to(plan_of(**keys)) == shown


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"loss": float("nan"), "best": [float("-inf"), 1.5]}, {"loss": None, "best": [None, 1.5]}),
        ({"dataset": "NaN or Infinity"}, {"dataset": "NaN or Infinity"}),
    ],
)
def test_programs_get_json_that_any_parser_reads(value: dict[str, object], text: dict[str, object]) -> None:
    def refused(constant: str) -> None:
        raise AssertionError(constant)

    assert json.loads(json_text(value), parse_constant=refused) == text


def test_without_an_input_nobody_is_asked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", None)  # as Python has it after `<&-`
    confirm([plan_of(gpus_per_node=8)], 1.0, yes=False)
    assert "8 GPUs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("width", "optional", "shown"),
    [
        (80, [1, 2], [0, 1, 2]), (20, [1, 2], [0, 1]), (20, [2, 1], [0, 2]), (15, [1, 2], [0, 2]), (1, [1, 2], [0]),
        (1, [], [0, 1, 2]),
    ],
)  # fmt: skip
def test_columns_that_do_not_fit_the_terminal_are_left_out_the_best_are_not(
    width: int, optional: list[int], shown: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert fitting([("RUN", "STEP", "JOB"), ("a" * 8, "1" * 10, "47")], optional) == shown


def test_texts_are_wrapped_at_the_width_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("HOST", "NOTE"), ("node1", "word " * 30)]
    for width in (40, 120):
        monkeypatch.setenv("COLUMNS", str(width))
        for lines in (table(rows, wraps=1), labelled("why", "word " * 30)):
            assert width - 5 <= max(map(len, lines)) <= width


def test_a_terminal_that_tells_no_size_is_80_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.10 does not replace the 0 columns of such a terminal (`ssh -tt` without one, say)."""
    monkeypatch.setattr("shutil.get_terminal_size", lambda *_: os.terminal_size((0, 0)))
    assert 75 <= max(map(len, labelled("why", "word " * 30))) <= 80
