"""Every benchmark works, in its short form, which judges no time; and one that fails leaves the others their rows."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from multiprocessing import spawn
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks import suite
from benchmarks.measure import Result
from benchmarks.suite import BENCHMARKS, Failed, measure, results
from tests import warm_python

GOOD, MISSED = Result("good", 1.0, 2.0, ""), Result("missed", 3.0, 2.0, "")


@pytest.mark.ci
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", BENCHMARKS)
def test_each_benchmark_gives_numbers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spawn, "_python_exe", os.fsencode(warm_python.python()))  # as no time is judged
    outcome = measure(name, partial(results, name, short=True), limit=600)
    assert not isinstance(outcome, Failed), outcome.reason


def test_each_module_that_measures_a_claim_is_run() -> None:
    folder = Path(suite.__file__).parent
    assert {path.stem for path in folder.glob("*.py") if "\ndef results(" in path.read_text()} == {*BENCHMARKS, "suite"}


# -- what may become of one


def crashes() -> list[Result]:
    raise RuntimeError("command exited with 1:\nTraceback (most recent call last):\n  ...\nKeyError: 'value'")


def is_killed() -> list[Result]:
    os.kill(os.getpid(), signal.SIGKILL)
    return []


def exits() -> list[Result]:
    sys.exit(3)


def gives_nothing() -> list[Result]:
    return []


def gives_no_number() -> list[Result]:
    return [GOOD, Result("odd", math.nan, 1.0, "")]


def hangs() -> list[Result]:
    threading.Event().wait()
    return []


def works() -> list[Result]:
    return [GOOD]


@pytest.mark.parametrize(
    ("benchmark", "limit", "outcome"),
    [
        (crashes, 60, Failed("it", "RuntimeError: command exited with 1: KeyError: 'value'")),
        (is_killed, 60, Failed("it", "its process ended with exit code -9")),
        (exits, 60, Failed("it", "its process ended with exit code 3")),
        (gives_nothing, 60, Failed("it", "RuntimeError: it gives no results")),
        (gives_no_number, 60, Failed("it", "RuntimeError: it gives no number for: odd")),
        (hangs, 0.1, Failed("it", "it did not end within 0.1 s")),
        (works, 60, [GOOD]),
    ],
)
def test_whatever_becomes_of_a_benchmark_is_told(
    benchmark: Callable[[], list[Result]], limit: float, outcome: object
) -> None:
    assert measure("it", benchmark, limit) == outcome


@pytest.mark.parametrize(
    ("arguments", "outcomes", "status", "rows"),
    [
        ([], [[GOOD]], 0, ["good | 1.00 x | at most 2 x | yes"]),
        ([], [[MISSED]], 1, ["missed | 3.00 x | at most 2 x | NO"]),
        (["--short"], [[GOOD, MISSED]], 0, ["good | 1.00 x | | not judged", "missed | 3.00 x | | not judged"]),
        (
            ["--short"], [Failed("scale", "KeyError: 'value'"), [GOOD]], 1,
            ["benchmarks.scale | failed | | KeyError: 'value'", "good | 1.00 x | | not judged"],
        ),
        (
            [], [Failed("scale", "why"), [GOOD]], 1,
            ["benchmarks.scale | failed | | why", "good | 1.00 x | at most 2 x | yes"],
        ),
    ],
)  # fmt: skip
def test_one_that_fails_leaves_the_others_their_rows(
    arguments: list[str], outcomes: list[list[Result] | Failed], status: int, rows: list[str],
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    given = iter(outcomes)
    monkeypatch.setattr(command, "measure", lambda name, call: next(given))
    assert command.main([*arguments, *list(BENCHMARKS)[: len(outcomes)]]) == status
    assert [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()[1:]] == rows


def test_a_name_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["sacle"])
    assert "no such benchmark: sacle" in capsys.readouterr().err
