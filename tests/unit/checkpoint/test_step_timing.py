"""A rank's own time for a step is told apart from its waiting, on hosts and on devices."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn

from launcher.checkpoint import resumable
from launcher.checkpoint.resumable import StepTimer
from launcher.worker import heartbeat
from launcher.worker.heartbeat import Pulse

CPU = torch.device("cpu")


class Clock:
    """A time that the test sets; marks are passed up to `there`."""

    def __init__(self) -> None:
        self.now, self.there = 0.0, float("inf")

    def mark(self) -> float:
        return self.now

    def passed(self, mark: float) -> bool:
        return mark <= self.there

    def seconds(self, first: float, last: float) -> float:
        return last - first


@pytest.fixture
def signs(monkeypatch: pytest.MonkeyPatch) -> Pulse:
    monkeypatch.setattr(resumable, "INTERVAL", 0.0)
    return Pulse(1)


def do(steps: str, own: StepTimer, clock: Clock) -> None:
    """`b`egin, 1 to 9 seconds pass, `c`omputed, `w`aited."""
    for letter in steps:
        if letter.isdecimal():
            clock.now += int(letter)
        else:
            {"b": own.begin, "c": own.computed, "w": own.waited}[letter]()


@pytest.mark.parametrize(
    ("steps", "seconds", "count"),
    [
        ("b2c3wb", 2.0, 1),
        ("b2c3b", 2.0, 1),  # what comes after the last mark is not the rank's own
        ("b1c1c5b", 2.0, 1),  # several backward passes
        ("b1c2w3c4w1cb", 5.0, 1),  # block by block
        ("b5b5b", 0.0, 0),  # nothing was marked
        ("2c3wb", 0.0, 0),  # before the first step
        ("b2cb4cb3cb", 3.0, 3),
    ],
)
def test_waiting_does_not_count(signs: Pulse, steps: str, seconds: float, count: int) -> None:
    clock = Clock()
    do(steps, StepTimer(CPU, signs.slot(0), clock), clock)
    assert signs.paces()[0][1] == count
    if count < 2:
        assert signs.paces()[0][0] == seconds


def test_the_median_of_the_steps_since_the_last_word_is_told(signs: Pulse, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    own = StepTimer(CPU, signs.slot(0), clock)
    do("b9cb", own, clock)
    monkeypatch.setattr(resumable, "INTERVAL", 3600.0)
    own._next_report = time.monotonic() + 3600
    do("2cb4cb3cb", own, clock)
    assert signs.paces() == [(9.0, 1)]
    own._next_report = 0.0
    do("2cb", own, clock)
    assert signs.paces() == [(2.5, 5)]


def test_nobody_waits_for_a_device(signs: Pulse) -> None:
    clock = Clock()
    own = StepTimer(CPU, signs.slot(0), clock)
    clock.there = -1.0
    do("b2cb4cb", own, clock)
    assert signs.paces() == [(0.0, 0)]
    clock.there = 2.0  # the device has come to the end of the first step
    do("b", own, clock)
    assert signs.paces() == [(2.0, 1)]
    clock.there = 100.0
    do("b", own, clock)
    assert signs.paces() == [(4.0, 2)]


def test_a_device_that_never_comes_costs_no_memory(signs: Pulse) -> None:
    clock = Clock()
    clock.there = -1.0
    own = StepTimer(CPU, signs.slot(0), clock)
    do("b" + "1cb" * 1000, own, clock)
    assert len(own._owed) == resumable.BEHIND


def test_unequal_numbers_of_parts_are_divided_by(signs: Pulse) -> None:
    clock = Clock()
    own = StepTimer(CPU, signs.slot(0), clock)
    own.units = 4
    do("b8cb", own, clock)
    assert signs.paces() == [(2.0, 1)]


def test_without_an_agent_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "_mine", None)
    model, clock = nn.Linear(2, 2), Clock()
    own = StepTimer(CPU, None, clock)
    own.watch_gradients(model)
    do("b1cb", own, clock)
    assert own._mark is None
    assert not model.weight._post_accumulate_grad_hooks


# -- in trainings
