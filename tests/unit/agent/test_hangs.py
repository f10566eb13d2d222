"""Which rank hangs, from what the kernel and the interpreter say of each."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from launcher.agent.rank_watch import BUSY, LOOK, RankActivity
from launcher.runs.events import Accused
from launcher.worker import hang_diagnosis
from launcher.worker.hang_diagnosis import (
    Blamed,
    CollectiveGroup,
    HangReport,
    Recorder,
    Stacks,
    blame,
    suspects,
    waits,
)
from launcher.worker.heartbeat import Sign

COLLECTIVE = """Thread 0x01 (most recent call first):
  File "/usr/lib/python3/threading.py", line 300 in wait

Current thread 0x02 (most recent call first):
  File "/venv/lib/torch/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "/home/me/train.py", line 48 in main
"""
OUTSIDE = """Current thread 0x02 (most recent call first):
  File "/home/me/data.py", line 83 in read
  File "/venv/lib/torch/distributed/elastic/multiprocessing/api.py", line 706 in _wrap
"""
BACKWARD = """Current thread 0x02 (most recent call first):
  File "/venv/lib/torch/autograd/graph.py", line 800 in _engine_run_backward
  File "/home/me/train.py", line 48 in main
"""


NAMESAKE = """Current thread 0x02 (most recent call first):
  File "/home/me/ranks.py", line 12 in best
"""
ITEM = """Current thread 0x02 (most recent call first):
  File "/home/me/train.py", line 52 in main
"""


def rank(number: int, *, step: int = 5, state: str = "S", stack: str = COLLECTIVE, called: int = 0) -> HangReport:
    """A rank; `called`: collectives that it has enqueued on its GPU, of which the seventh does not end."""
    groups = (CollectiveGroup("0", called, 7 if called >= 7 else None, "nccl:all_reduce" if called >= 7 else "", True),)
    recorder = Recorder(number, groups) if called else None
    return HangReport(number, f"node{number}", step, state, stack, recorder)


NO_STACK, BEHIND, SILENT = "does not even write its stack", "is behind the others", "is silent, as are all others"
NO_COLLECTIVE = "is in no collective, and others wait for it in one"
BLOCKS = "has not called all_reduce (number 7 of process group 0), in which"


@pytest.mark.parametrize(
    ("reports", "guilty", "does"),
    [
        ([rank(0), rank(1, state="T", stack=""), rank(2, stack=OUTSIDE)], [1], "is stopped (state T)"),
        ([rank(0), rank(1, state="D", stack=""), rank(2)], [1], "waits for a device or a file server (state D)"),
        ([rank(0), rank(1), rank(2, stack="")], [2], NO_STACK),
        ([rank(0), rank(1, state="", stack=""), rank(2, stack=BACKWARD)], [1], ""),
        ([rank(0), rank(1, state="", stack=""), rank(2, stack=OUTSIDE)], [2], NO_COLLECTIVE),
        ([rank(0, stack=OUTSIDE), rank(1, state="", stack="")], [0], SILENT),
        ([rank(0, state="", stack=""), rank(1, state="", stack="")], [0, 1], SILENT),
        ([rank(0), rank(1, stack=OUTSIDE), rank(2, stack=BACKWARD)], [1], NO_COLLECTIVE),
        ([rank(0), rank(1), rank(2, step=4)], [2], BEHIND),
        (
            [rank(0, stack=ITEM, called=7), rank(1, stack=ITEM, called=6)], [1],
            f"{BLOCKS} rank 0 waits",
        ),
        (
            [rank(0, stack=ITEM, called=7), rank(1, called=6), rank(2, called=7)], [1],
            f"{BLOCKS} ranks 0,2 wait",
        ),
        ([rank(0, called=7), rank(1, stack="", called=7), rank(2, called=6)], [1], NO_STACK),
        ([rank(0, stack=ITEM, called=7), rank(1, stack=ITEM, called=7)], [0, 1], SILENT),
        ([rank(0), rank(1)], [0, 1], SILENT),
        ([rank(0, stack=OUTSIDE), rank(1, stack=OUTSIDE)], [0, 1], SILENT),
        ([rank(0, stack=""), rank(1, stack="", step=4)], [1], BEHIND),
        ([], [], SILENT),
    ],
)  # fmt: skip
def test_who_is_blamed(reports: list[HangReport], guilty: list[int], does: str) -> None:
    found, what = suspects(reports)
    assert [each.rank for each in found] == guilty
    assert what == does


@pytest.mark.parametrize(
    ("stack", "answer"), [(COLLECTIVE, True), (BACKWARD, True), (OUTSIDE, False), (NAMESAKE, False), ("", False)]
)
def test_the_main_threads_newest_frame_tells_whether_it_waits(stack: str, answer: bool) -> None:
    assert waits(stack) is answer


def test_silence_is_counted_from_the_last_beat_of_a_rank_that_has_done_a_step() -> None:
    activity = RankActivity(4, 0.0)

    def silent(signs: list[Sign], now: float) -> list[int]:
        activity.idle(signs, [0] * 4, [0] * 4, now)
        return activity.silent(signs, 10.0, now)

    signs = [Sign(True, 3, 1), Sign(True, 3, 1), Sign(False, 3, 1), Sign(True, -1, 0)]
    assert silent(signs, 0) == []
    assert silent([Sign(True, 4, 2), *signs[1:]], 9) == []
    assert silent([Sign(True, 4, 2), *signs[1:]], 10) == [1]
    assert silent([Sign(True, 4, 2), *signs[1:]], 19) == [0, 1]
    assert silent([Sign(True, 4, 2, closed=True), *signs[1:]], 19) == [1]


WRITER = """
import sys, time
from launcher.worker import hang_diagnosis
hang_diagnosis.serve(int(sys.argv[1]))
def stuck():
    print(flush=True)
    time.sleep(60)
stuck()
"""


def test_stacks_are_taken_from_who_can_write_them() -> None:
    stacks = Stacks(2)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(stacks.file(place))], pass_fds=[stacks.file(place)],
            stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.getcwd()},
        )
        for place in range(2)
    ]  # fmt: skip
    try:
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        processes[1].send_signal(signal.SIGSTOP)
        give_up = time.monotonic() + 30
        while True:  # a busy machine may not get to it in time
            (state, stack), (stopped, none) = stacks.take([process.pid for process in processes])
            if stack or time.monotonic() > give_up:
                break
        assert "in stuck" in stack
        assert state in ("S", "R")
        assert (stopped, none) == ("T", "")
    finally:
        for process in processes:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def test_who_would_die_of_the_question_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hang_diagnosis, "WRITES", 0.1)
    other, ended = subprocess.Popen(["sleep", "60"]), subprocess.Popen(["true"])
    ended.wait()
    try:
        (state, stack), gone = Stacks(2).take([other.pid, ended.pid])
        assert (state in ("S", "R"), stack, gone) == (True, "", ("", ""))
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(0.2)
    finally:
        other.kill()
        other.wait()


def test_whom_all_reports_blame() -> None:
    reports = [vars(HangReport(rank, f"node{rank}", 7, "T" if rank == 1 else "S", "")) for rank in range(3)]
    blamed = blame(reports)
    assert blamed == Blamed((Accused(host="node1", rank=1),), "is stopped (state T)", step=7)


def test_nobody_is_blamed_without_reports() -> None:
    assert blame([]).ranks == ()


QUIET = Sign(True, 3, 1)


def test_any_sign_of_any_rank_is_a_sign_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    """Told by itself, printed, or CPU time used."""
    used = {1: 0.0, 2: 0.0}
    monkeypatch.setattr("launcher.processes.cpu_seconds", used.get)
    activity = RankActivity(2, 0.0)
    signs = [QUIET, QUIET]
    assert activity.idle(signs, [1, 2], [0, 0], 0.0) == 0
    assert activity.idle(signs, [1, 2], [0, 0], 100.0) == 100
    assert activity.idle([QUIET, Sign(True, 3, 2)], [1, 2], [0, 0], 200.0) == 0  # it has told
    signs = [QUIET, Sign(True, 3, 2)]
    assert activity.idle(signs, [1, 2], [5, 0], 300.0) == 0  # it has printed
    assert activity.idle(signs, [1, 2], [5, 0], 400.0) == 100
    used[2] = 100 * 2 * BUSY
    assert activity.idle(signs, [1, 2], [5, 0], 500.0) == 0  # it has computed
    used[2] += 100 * BUSY / 2
    assert activity.idle(signs, [1, 2], [5, 0], 600.0) == 100  # threads that only wake now and then
    assert activity.idle(signs, [1, 0], [5, 0], 600.0 + LOOK) == 100 + LOOK  # a rank that has ended is none
