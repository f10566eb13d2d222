"""A job is handed over exactly once, whatever gets lost on the way: a scheduler that follows a script of answers."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.errors import SubmissionError
from launcher.runs import event_files
from launcher.runs import events as kinds
from launcher.runs.directory import Run
from launcher.schedulers.base import QueryError
from launcher.schedulers.executor import begun_job
from launcher.schedulers.run_command import NoAnswer, SubmissionRefused, submit_once

SURE = SubmissionRefused("fatal: no configuration", definite=True)
REFUSED = SubmissionRefused("invalid account")
SILENT = NoAnswer("timed out")
DOWN = QueryError("squeue failed")


@dataclass
class Clock:
    """Time that passes only in pauses."""

    now: float = 1000.0
    pauses: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "sleep", clock.sleep)
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    return clock


class Scheduler:
    """Answers `send` and `find` from a script such as "send: silent, find: none, send: 7"; the last answer repeats."""

    def __init__(self, sends: list[Any], finds: list[Any]) -> None:
        self.answers = {"send": list(sends), "find": list(finds)}
        self.asked: list[str] = []

    def _answer(self, question: str) -> Any:
        self.asked.append(question)
        answers = self.answers[question]
        assert answers, f"{question} was not to be asked: {self.asked}"
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def submit(self, **options: Any) -> str:
        return submit_once(lambda: self._answer("send"), lambda: self._answer("find"), **options)


@pytest.mark.parametrize(
    ("before", "sends", "finds", "result", "asked"),
    [
        (False, ["7"], [], "7", "send"),
        (True, [], ["7"], "7", "find"),  # an earlier process had submitted it
        (True, ["7"], [None], "7", "find send"),
        (False, [REFUSED], [None], REFUSED, "send find"),
        (False, [REFUSED], ["7"], "7", "send find"),  # a wrapper of the site failed after the job was taken
        (False, [SURE], [], SURE, "send"),
        (True, [SURE], [None], SURE, "find send"),
        (False, [SILENT], ["7"], "7", "send find"),
        (False, [SILENT, "7"], [None], "7", "send find send"),
        (False, [SILENT, "7"], [DOWN, DOWN, None], "7", "send find find find send"),
        (False, [SILENT], [DOWN, "7"], "7", "send find find"),
        (False, [SILENT, SILENT, "7"], [None], "7", "send find send find send"),
        (False, [SILENT, REFUSED], [None], REFUSED, "send find send find"),
        (False, [SILENT, SURE], [None], SURE, "send find send"),
        (False, [REFUSED], [DOWN, "7"], "7", "send find find"),
        (False, [REFUSED, REFUSED], [DOWN, None], REFUSED, "send find find send find"),
        (True, ["7"], [DOWN, None], "7", "find find send"),
        (True, [], [DOWN, "7"], "7", "find find"),
    ],
)
def test_the_table(
    clock: Clock, before: bool, sends: list[Any], finds: list[Any], result: str | SubmissionRefused, asked: str
) -> None:
    scheduler = Scheduler(sends, finds)
    if isinstance(result, SubmissionRefused):
        with pytest.raises(SubmissionRefused) as refusal:
            scheduler.submit(before=before)
        assert refusal.value is result
    else:
        assert scheduler.submit(before=before) == result
    assert scheduler.asked == asked.split()


@pytest.mark.parametrize(
    ("sends", "finds", "before"), [([SILENT], [DOWN], False), ([], [DOWN], True), ([SILENT], [None], False)]
)
def test_after_the_timeout_nobody_claims_to_know(
    clock: Clock, sends: list[Any], finds: list[Any], before: bool
) -> None:
    with pytest.raises(
        SubmissionError, match="did not answer for 100 s, so it is unknown whether it accepted the job"
    ) as error:
        Scheduler(sends, finds).submit(before=before, timeout=100.0)
    assert not isinstance(error.value, SubmissionRefused)
    assert 100 <= sum(clock.pauses) <= 120
    assert clock.pauses[0] <= 0.5 < clock.pauses[-1]  # they grow
    assert max(clock.pauses) <= 20


def test_waiting_is_announced(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    Scheduler([SILENT], ["7"]).submit()
    assert "launcher: no answer (timed out); retrying for up to 120 s" in capsys.readouterr().err
    Scheduler(["7"], []).submit()
    assert capsys.readouterr().err == ""


def test_other_errors_are_not_hidden(clock: Clock) -> None:
    with pytest.raises(ZeroDivisionError):
        Scheduler([ZeroDivisionError()], []).submit()
    assert clock.pauses == []


def test_nothing_waits_when_all_goes_well(clock: Clock) -> None:
    assert Scheduler(["7"], []).submit() == "7"
    assert clock.pauses == []


@dataclass
class Lossy:
    """A scheduler that takes every job it hears of, and whose answers may get lost both ways."""

    fates: list[str]
    jobs: list[str] = field(default_factory=list)

    def _fate(self) -> str:
        return self.fates.pop(0) if self.fates else "fine"

    def send(self) -> str:
        fate = self._fate()
        if fate == "request lost":
            raise SILENT
        self.jobs.append(str(len(self.jobs) + 1))
        if fate == "answer lost":
            raise SILENT
        if fate == "wrapper failed":
            raise REFUSED
        return self.jobs[-1]

    def find(self) -> str | None:
        if self._fate() != "fine":
            raise DOWN
        return self.jobs[0] if self.jobs else None


@given(st.lists(st.sampled_from(["fine", "request lost", "answer lost", "wrapper failed"]), max_size=8), st.booleans())
def test_there_is_one_job_whatever_gets_lost(fates: list[str], before: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock()
        patch.setattr(time, "sleep", clock.sleep)
        scheduler = Lossy(fates)
        assert submit_once(scheduler.send, scheduler.find, before=before) == "1"
        assert scheduler.jobs == ["1"]


@pytest.mark.parametrize(
    ("began", "known", "found"),
    [
        (90.0, (), None),  # of an earlier submission, whose id was lost: it is no answer to this one
        (98.0, (), "18"),  # by the clock of the compute node
        (120.0, (), "18"),
        (120.0, ("18",), None),
    ],
)
def test_a_job_that_began_before_this_submission_is_not_taken_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, began: float, known: tuple[str, ...], found: str | None
) -> None:
    run = Run.create(tmp_path / "run")
    (run.path / "attempts/0/events").mkdir(parents=True)
    times = iter([*(50.0 for _ in known), 100.0, began])
    monkeypatch.setattr(time, "time", lambda: next(times))
    for job in known:
        run.journal(kinds.Submitted(job=job))
    run.journal(kinds.Submitting(token="token"))
    event_files.append(run.path / "attempts/0/events/s.jsonl", kinds.Started(job="18"))
    assert begun_job(run) == found
