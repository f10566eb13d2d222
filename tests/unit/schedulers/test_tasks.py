"""The wait for tasks: when the others end, and which exit status counts."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.runs.directory import Attempt, Run
from launcher.schedulers import tasks as task_group
from tests.unit.clock import Clock


class Task:
    """A task that ends with 0 at a time, after it has called `done`."""

    def __init__(self, clock: Clock, ends: float, done: Callable[[], None] = lambda: None) -> None:
        self._clock, self._ends, self._done = clock, ends, done
        self.killed = False

    def poll(self) -> int | None:
        if self.killed:
            return -9
        if self._clock.now < self._ends:
            return None
        self._done()
        return 0

    def terminate(self) -> None:
        raise AssertionError("the agents may still be copying output")

    def kill(self) -> None:
        self.killed = True


@pytest.mark.parametrize(
    ("gone", "killed", "code", "after"),
    [([1], [1], 137, 960), ([1, 2], [1, 2], 137, 160), ([], [], 0, 5000), ([0, 2], [], 0, 5000)],
)
def test_a_function_ends_when_only_tasks_on_lost_nodes_are_left(
    monkeypatch: pytest.MonkeyPatch, gone: list[int], killed: list[int], code: int, after: float
) -> None:
    clock = Clock(monkeypatch, task_group)
    began = clock.now
    tasks = [Task(clock, began + ends) for ends in (100, 5000, 900)]
    if 2 in killed:
        tasks[2] = Task(clock, math.inf)
    assert task_group.watch(tasks, [], 30.0, 0.5, keep_going=True, lost=lambda: gone) == code
    assert [number for number, task in enumerate(tasks) if task.killed] == killed
    assert after <= clock.now - began < after + 5


def test_a_signal_is_noticed_although_many_tasks_are_polled_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    signals: list[int] = []
    told: list[float] = []

    class Stopped(Task):
        def terminate(self) -> None:
            told.append(clock.now)
            self.killed = True

    class Signalled(Clock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            if self.now > stop:
                signals.append(signal.SIGTERM)

    clock = Signalled(monkeypatch, task_group)
    stop = clock.now + 50
    assert task_group.watch([Stopped(clock, math.inf)], signals, 30.0, pause=40.0) == 137
    assert told[0] - stop < 1


@pytest.mark.parametrize("keep_going", [False, True])
def test_a_task_whose_node_is_gone_ends_after_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep_going: bool
) -> None:
    attempt = Attempt(Run(tmp_path), 0)
    attempt.path.mkdir(parents=True)
    monkeypatch.setattr(task_group, "current_attempt", lambda: attempt)
    clock = Clock(monkeypatch, task_group)
    over = clock.now + 100.0
    tasks = [Task(clock, over, done=lambda: attempt.write_exit_code(0)), Task(clock, math.inf)]
    assert task_group.watch(tasks, [], 30.0, 0.5, keep_going=keep_going) == 0
    assert tasks[1].killed and over + task_group.STRAGGLERS < clock.now < over + task_group.STRAGGLERS + 5.0
