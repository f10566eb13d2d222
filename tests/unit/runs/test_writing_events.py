"""What rank 0 tells of its progress, and how often."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import numpy
import pytest
import torch

from launcher import io_bounds
from launcher.files import safe_io
from launcher.runs import directory, event_files
from launcher.runs.directory import Attempt, Events, Run
from launcher.runs.events import Finished, Met, Resized, Restart
from launcher.search.progress import PointReports
from launcher.worker.tracking import FIRST, INTERVAL, Reporter


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    attempt = Attempt(Run(tmp_path), 0)
    attempt.events_file("rank-0").parent.mkdir(parents=True)
    return attempt


def steps(attempt: Attempt, event: str) -> list[int]:
    return [each["step"] for each in event_files.read(attempt.events_file("rank-0")) if each["event"] == event]


@pytest.mark.parametrize("event", ["progress", "evaluated"])
def test_the_first_are_all_kept_and_then_two_a_second(
    attempt: Attempt, event: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(directory.time, "monotonic", lambda: now)
    reporter = Reporter(attempt, 0)

    def tell(step: int) -> None:
        if event == "progress":
            reporter.progress(step, 10_000, {"loss": 1.0})
        else:
            reporter.evaluated(step, {"accuracy": 0.5})

    for step in range(1, FIRST + 10):
        tell(step)
    assert steps(attempt, event) == list(range(1, FIRST + 1))
    now += INTERVAL
    tell(100)
    tell(101)
    assert steps(attempt, event)[FIRST:] == [100]


def test_steps_without_values_are_in_no_way_of_values(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(directory.time, "monotonic", lambda: now)
    reporter = Reporter(attempt, 0)
    for step in range(1, FIRST + 10):
        reporter.progress(step, 10_000)
    now += INTERVAL
    for step in range(100, 200):
        reporter.progress(step, 10_000, {"loss": 1.0} if step == 150 else {})
    assert steps(attempt, "progress")[FIRST:] == [100, 150]


def test_the_last_step_is_always_told(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    reporter = Reporter(attempt, 0)
    for step in range(1, FIRST + 11):
        reporter.progress(step, FIRST + 10)
    assert steps(attempt, "progress") == [*range(1, FIRST + 1), FIRST + 10]


def test_the_last_values_are_written_when_the_rank_exits(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    reporter = Reporter(attempt, 0)
    for step in range(1, FIRST + 11):
        reporter.progress(step, 0)
        reporter.progress(step, 0, {"loss": 1.0 / step})
        reporter.evaluated(step, {"accuracy": step})
    reporter.progress(FIRST + 11, 0)
    reporter.finish()
    reporter.finish()
    assert steps(attempt, "evaluated") == [*range(1, FIRST + 1), FIRST + 10]
    assert steps(attempt, "progress")[2 * FIRST :] == [FIRST + 10, FIRST + 11], "the last event has the last step"
    reports = PointReports(attempt.run, "accuracy")
    reports.new()
    assert reports.last == FIRST + 10


def test_a_last_value_does_not_take_the_step_back(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    reporter = Reporter(attempt, 0)
    for step in range(1, FIRST + 11):
        reporter.progress(step, 0, {"loss": 1.0 / step})
    reporter.progress(FIRST + 20, 0)  # this one is due, and newer than the loss that is not
    reporter.finish()
    assert steps(attempt, "progress")[FIRST:] == [FIRST + 20, FIRST + 10, FIRST + 20]


def test_a_fork_of_the_rank_does_not_write_the_last_values(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    reporter = Reporter(attempt, 0)
    for step in range(1, FIRST + 11):
        reporter.evaluated(step, {"accuracy": step})
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: 1)
        reporter.finish()
    assert steps(attempt, "evaluated") == [*range(1, FIRST + 1)]


def test_other_ranks_tell_nothing(attempt: Attempt) -> None:
    reporter = Reporter(attempt, 1)
    reporter.progress(1, 2)
    reporter.evaluated(1, {"accuracy": 0.5})
    reporter.report({"accuracy": 0.5})
    assert not attempt.events_file("rank-0").exists()
    assert attempt.run.result() is None


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOSPC, errno.EIO])
def test_what_cannot_be_written_is_written_with_the_next_event(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int
) -> None:
    now, append, fails = 1000.0, safe_io.append, True

    def failing(path: Path, line: str) -> None:
        if fails:
            raise OSError(number, os.strerror(number))
        append(path, line)

    monkeypatch.setattr(safe_io, "append", failing)
    monkeypatch.setattr(directory.time, "time", lambda: now)
    tell = Events(attempt, "rank-0")
    tell(Restart(error="a rank is gone", rank=1))
    now += 1
    tell(Resized(round=1, members=1, world_size=1, size=2))
    assert capsys.readouterr().out.count("cannot write to") == 1
    fails, now = False, now + 1
    tell(Met(members=2, ranks=2))
    tell(Finished())
    told = [(each["event"], each["time"]) for each in event_files.read(attempt.events_file("rank-0"))]
    assert told == [("restart", 1000.0), ("resized", 1001.0), ("met", 1002.0), ("finished", 1002.0)]


def test_an_event_over_a_bound_does_not_keep_back_those_after_it(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, fails = safe_io.append, True

    def failing(path: Path, line: str) -> None:
        if fails:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        append(path, line)

    monkeypatch.setattr(safe_io, "append", failing)
    tell = Events(attempt, "rank-0")
    tell(Met(members=2, ranks=2))
    tell(Restart(error="x" * io_bounds.EVENT_BYTES, rank=1))
    fails = False
    assert tell(Finished())
    assert [each["event"] for each in event_files.read(attempt.events_file("rank-0"))] == ["met", "finished"]


def test_numbers_of_numpy_and_torch_are_numbers(attempt: Attempt) -> None:
    reporter, loss = Reporter(attempt, 0), torch.tensor(0.5)
    reporter._tracking = None
    reporter.progress(numpy.int64(1), 10, {"loss": loss, "layers": {"first": numpy.float32(0.25)}})
    found = {"accuracy": torch.ones(1), "found": numpy.bool_(True), "each": [numpy.int32(7)]}
    reporter.evaluated(torch.tensor(1), found)
    reporter.report({"accuracy": numpy.float32(3), "each": [torch.tensor(2)], "place": attempt.path})
    told = [(each["step"], each["values"]) for each in event_files.read(attempt.events_file("rank-0"))]
    assert told == [(1, {"loss": 0.5, "layers": {"first": 0.25}}), (1, {"accuracy": 1.0, "found": True, "each": [7]})]
    assert attempt.run.result() == {"accuracy": 3.0, "each": [2], "place": str(attempt.path)}


def test_a_tensor_that_changes_later_is_reported_as_it_was(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    reporter, total = Reporter(attempt, 0), torch.tensor(0.5)
    reporter._tracking = None
    for step in range(FIRST + 1):
        reporter.progress(step, 0, {"total_loss": total})
    total.zero_()
    reporter.finish()
    *_, last = event_files.read(attempt.events_file("rank-0"))
    assert last["values"] == {"total_loss": 0.5}


def test_what_is_no_json_does_not_keep_back_what_comes_after_it(
    attempt: Attempt, capsys: pytest.CaptureFixture[str]
) -> None:
    reporter = Reporter(attempt, 0)
    reporter._tracking = None
    for step in (1, 2):
        reporter.evaluated(step, {"matrix": torch.zeros(2)})
    reporter.evaluated(3, {"accuracy": 0.5})
    assert steps(attempt, "evaluated") == [3]
    assert capsys.readouterr().out.count("an event evaluated is not written to") == 1


def test_half_a_line_of_a_full_disk_does_not_spoil_the_next_one(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, room = os.write, [10, 0]

    def nearly_full(descriptor: int, data: bytes) -> int:
        if not (left := room.pop(0)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data[:left])

    tell = Events(attempt, "rank-0")
    tell(Met(members=2, ranks=2))
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", nearly_full)
        tell(Resized(round=1, members=1, world_size=1, size=2))
    tell(Finished())
    assert [each["event"] for each in event_files.read(attempt.events_file("rank-0"))] == ["met", "resized", "finished"]
