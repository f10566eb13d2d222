"""Staying with a sweep: what is told of it, and the exit code that it comes to."""

from __future__ import annotations

import itertools
import signal
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.cli import commands, progress_bars, wait
from launcher.errors import DONE, FAILED, RESUME
from launcher.monitoring.run_status import JobMonitor, RunStatus
from launcher.monitoring.sweep_status import STATES, WAITING, PointStatus, point_statuses
from launcher.runs import event_files
from launcher.runs import events as kinds
from launcher.runs.directory import Run
from launcher.runs.lease_and_locks import is_being_submitted, only_submitter
from launcher.runs.sweep_directory import Sweep
from launcher.schedulers.base import JobState, SchedulerJob
from launcher.schedulers.slurm.client import Slurm
from launcher.sweeps import control
from tests.unit.clock import Clock
from tests.unit.faults import FileServer
from tests.unit.sweep_runs import begin, choose, end, make_search, make_sweep


@pytest.fixture(autouse=True)
def scheduler(handlers: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """All jobs are running; nobody waits long."""
    running = {f"100_{index}": SchedulerJob(f"100_{index}", JobState.RUNNING, "RUNNING") for index in range(9)}
    monkeypatch.setattr(Slurm, "jobs", lambda _: dict(running))
    monkeypatch.setattr(Slurm, "accounting", lambda *_: {})
    monkeypatch.setattr(wait, "IDLE_TIME", 0.0)


def points(sweep: Sweep, *states: str) -> list[PointStatus]:
    return [PointStatus(point, state) for point, state in zip(sweep.points(), states, strict=True)]


@pytest.mark.parametrize(
    ("states", "code"),
    [
        ((), DONE),
        (("done",), DONE),
        (("done", "stopped"), RESUME),
        (("stopped", "stopped"), RESUME),
        (("done", "pruned"), DONE),
        (("pruned", "stopped"), RESUME),
        *(((state, "done"), FAILED) for state in STATES if state not in ("done", "pruned", "stopped")),
        (("stopped", "failed"), FAILED),
    ],
)
def test_the_exit_code_is_that_of_the_worst_point(tmp_path: Path, states: tuple[str, ...], code: int) -> None:
    sweep = make_sweep(tmp_path, len(states), array=None)
    assert wait.sweep_exit_code(points(sweep, *states)) == code


def test_each_end_is_told_once(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, 3)
    end(sweep.run(0), 0)
    begin(sweep.run(2), "100_2")
    first = point_statuses(sweep)
    end(sweep.run(1), 1, job="100_1", fault="ValueError: no", rank=1, host="node2")
    now = [each if each.point.index != 1 else _failed(sweep) for each in first]
    before = {each.point.index: each for each in first}
    assert list(wait.ended_lines(before, now, ["workload.lr"])) == [
        "point 1 (lr=0.1) failed: rank 1 on node2: ValueError: no"
    ]
    assert list(wait.ended_lines({}, first, [])) == ["point 0 is done"]
    assert not list(wait.ended_lines({each.point.index: each for each in now}, now, []))


def _failed(sweep: Sweep) -> PointStatus:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Slurm, "jobs", lambda _: {})
        return point_statuses(sweep, points=[1])[0]


@pytest.mark.parametrize(("last", "code", "words"), [(0, 0, "2/2 done"), (75, 75, "1/2 done, 1 stopped")])
def test_a_sweep_that_is_over_is_not_waited_for(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    last: int,
    code: int,
    words: str,
) -> None:
    monkeypatch.setattr(Slurm, "jobs", lambda _: {})
    sweep = make_sweep(tmp_path, 2)
    end(sweep.run(0), 0)
    end(sweep.run(1), last)
    assert wait.follow_sweep(sweep) == code
    assert capsys.readouterr().out == f"lr-1: {words}\n"


def test_what_a_point_returned_is_waited_for(
    tmp_path: Path, server: FileServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = make_sweep(tmp_path, 2, objective=("accuracy",))
    end(sweep.run(0), 0)

    def sleep(seconds: float) -> None:
        server.recover()
        if not sweep.run(1).attempts():
            end(sweep.run(1), 0, metrics={"accuracy": 0.5})
            server.fail("1/result.json")

    monkeypatch.setattr(wait.time, "sleep", sleep)
    assert wait.follow_sweep(sweep) == 0
    assert "point 1 (lr=0.1) is done: accuracy 0.5\n" in capsys.readouterr().out


def test_a_sweep_is_followed_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], clock: Clock
) -> None:
    sweep = make_sweep(tmp_path, 2)

    def later() -> Iterator[None]:
        yield
        end(sweep.run(1), 0)
        yield
        end(sweep.run(0), 0)
        yield from itertools.repeat(None)

    steps = later()
    monkeypatch.setattr(wait.time, "sleep", lambda seconds: clock.sleep(seconds) or next(steps))
    assert wait.follow_sweep(sweep) == 0
    assert capsys.readouterr().out.splitlines() == [
        "lr-1: 0/2 done, 2 running", "point 1 (lr=0.1) is done", "point 0 (lr=0) is done", "lr-1: 2/2 done",
    ]  # fmt: skip


@pytest.mark.parametrize(("budget", "code", "words"), [(2, DONE, ""), (3, FAILED, "sweep throttle search-1 2")])
def test_a_search_that_nobody_goes_on_with_is_not_done(
    budget: int, code: int, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = make_search(tmp_path, 2, points=budget)
    assert wait.follow_sweep(sweep) == code
    error = capsys.readouterr().err
    assert ("no pilot runs, and more points may be chosen" in error) == (code == FAILED)
    assert words in error
    assert wait.follow_sweep(sweep, points={1}) == DONE


def test_a_search_whose_points_wait_without_a_pilot_is_told_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = make_search(tmp_path, 2, points=4)
    choose(sweep, 2)  # its pilot is gone
    assert wait.follow_sweep(sweep) == FAILED
    printed = capsys.readouterr()
    assert (printed.out + printed.err).count("no pilot runs") == 1
    assert "sweep rerun search-1" in printed.out


def test_looks_at_a_run_take_a_tenth_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, clock, looks = make_sweep(tmp_path, 1).run(0), Clock(monkeypatch, wait, progress_bars), []
    events, read = begin(run), wait.status_of

    def look(run: Run, live: JobMonitor) -> RunStatus:
        looks.append(clock.now)
        clock.now += 5.0
        if len(looks) == 4:
            event_files.append(events / "script.jsonl", kinds.Ended(code=0))
        return read(run, live)

    monkeypatch.setattr(wait, "status_of", look)
    assert wait.follow_to_end(run, foreground=False, output=False) == 0
    assert clock.slept == [50.0] * 3


def test_only_the_points_that_matter_are_waited_for(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, 3)
    end(sweep.run(1), 0)
    assert wait.follow_sweep(sweep, points={1}) == 0


def test_points_that_nobody_will_begin_are_not_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = make_sweep(tmp_path, 3, first=2)
    end(sweep.run(2), 0)
    assert wait.follow_sweep(sweep) == 1
    assert "points 0-1 were never submitted: repeat the command" in capsys.readouterr().out


def test_a_runner_that_was_killed_is_sent_again_but_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep, sent = make_sweep(tmp_path, 2, array=None), []
    sweep.request_local([0, 1], restart=False)
    monkeypatch.setattr("launcher.sweeps.submit.start_local_runner", sent.append)
    monkeypatch.setattr(wait, "MIN_POLL_INTERVAL", 0.0)
    assert wait.follow_sweep(sweep) == 1
    assert sent == [sweep] * wait.MAX_STARTERS
    assert f"points 0-1 do not start: see {sweep.path}/points.log" in capsys.readouterr().out


def test_a_point_that_has_not_begun_is_waited_for_and_then_shown_like_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = make_sweep(tmp_path, 2, array=None)
    sweep.request_local([1], restart=False)

    def start(sweep: Sweep) -> None:
        sweep.run(1).journal(kinds.ProcessStarted(pid=1, start=1, host="node1"))
        end(sweep.run(1), 93, job="7")
        (sweep.run(1).path / "output-7.log").write_text("[0] hello\n")

    monkeypatch.setattr("launcher.sweeps.submit.start_local_runner", start)
    assert wait.run(Namespace(name="lr-1/1", runs_dir=tmp_path, quiet=False)) == 93
    assert "[0] hello\n" in capsys.readouterr().out


def test_who_is_at_work_is_asked_without_being_in_the_way(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, 1)
    assert not is_being_submitted(sweep.path)
    with only_submitter(sweep.path):
        assert is_being_submitted(sweep.path)
    assert not is_being_submitted(sweep.path)


def test_points_that_are_being_handed_over_are_waited_for(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, 1, array=None)
    waiting = points(sweep, WAITING)
    with only_submitter(sweep.path):
        assert wait._start_waiting(sweep, waiting, starters=0) is None
    assert "were never submitted" in str(wait._start_waiting(sweep, waiting, starters=0))


@pytest.mark.parametrize("foreground", [False, True])
def test_ctrl_c_stops_following_or_ends_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], foreground: bool
) -> None:
    sweep, cancelled = make_sweep(tmp_path, 1), []

    def cancel(sweep: Sweep, points: object, *, kill: bool) -> None:
        cancelled.append(kill)
        end(sweep.run(0), 0)

    monkeypatch.setattr(control, "cancel", cancel)
    monkeypatch.setattr(wait.time, "sleep", lambda _: signal.raise_signal(signal.SIGINT))
    assert wait.follow_sweep(sweep, foreground=foreground) == 130
    assert cancelled == ([False] if foreground else [])
    message = "stopping; Ctrl-C again kills" if foreground else "continues without this terminal"
    assert message in capfd.readouterr().err


def test_who_waits_for_a_run_in_an_unclear_state_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_sweep(tmp_path, 1, array=None).run(0)
    run.journal(kinds.Submitting(token="t"))  # and its submitter was killed
    looks = iter([None, None, lambda: end(run, 0)])
    monkeypatch.setattr(wait.time, "sleep", lambda _: (next(looks) or (lambda: None))())
    assert wait.follow_to_end(run, foreground=False, output=False) == 0
    assert capsys.readouterr().err.splitlines() == [f"unconfirmed: `{commands.program()} why {run.id}` says what to do"]
