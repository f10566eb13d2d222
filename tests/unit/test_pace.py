"""A rank's own time for a step is told apart from its waiting, on hosts and on devices."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import nn
from workload_ranks import run_ranks

from launcher.config import DDPMnist, FSDPLm, Sync
from launcher.node import Env, pace, pulse
from launcher.node.pace import Pace
from launcher.node.pulse import Pulse
from launcher.node.settings import Settings
from workloads import ddp, fsdp

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
    monkeypatch.setattr(pace, "INTERVAL", 0.0)
    return Pulse(1)


def do(steps: str, own: Pace[float], clock: Clock) -> None:
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
    do(steps, Pace(CPU, signs.slot(0), clock), clock)
    assert signs.paces()[0][1] == count
    if count < 2:
        assert signs.paces()[0][0] == seconds


def test_the_median_of_the_steps_since_the_last_word_is_told(signs: Pulse, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    own = Pace(CPU, signs.slot(0), clock)
    do("b9cb", own, clock)
    monkeypatch.setattr(pace, "INTERVAL", 3600.0)
    own._next_word = time.monotonic() + 3600
    do("2cb4cb3cb", own, clock)
    assert signs.paces() == [(9.0, 1)]
    own._next_word = 0.0
    do("2cb", own, clock)
    assert signs.paces() == [(2.5, 5)]


def test_nobody_waits_for_a_device(signs: Pulse) -> None:
    clock = Clock()
    own = Pace(CPU, signs.slot(0), clock)
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
    own = Pace(CPU, signs.slot(0), clock)
    do("b" + "1cb" * 1000, own, clock)
    assert len(own._owed) == pace.BEHIND


def test_unequal_numbers_of_parts_are_divided_by(signs: Pulse) -> None:
    clock = Clock()
    own = Pace(CPU, signs.slot(0), clock)
    own.units = 4
    do("b8cb", own, clock)
    assert signs.paces() == [(2.0, 1)]


def test_without_an_agent_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse, "_mine", None)
    model, clock = nn.Linear(2, 2), Clock()
    own = Pace(CPU, None, clock)
    own.watch_gradients(model)
    do("b1cb", own, clock)
    assert own._mark is None
    assert not model.weight._post_accumulate_grad_hooks


# -- in trainings


def slow_forward(seconds: float, *modules: nn.Module) -> None:
    for module in modules:
        module.register_forward_pre_hook(lambda *_: time.sleep(seconds) if torch.is_grad_enabled() else None)


def train(config: Any, env: Env) -> dict[str, Any]:
    """A training whose rank 1 is slow; what each rank has told of its pace."""
    pace.INTERVAL = 0.0
    signs = Pulse(1)
    pulse.take(signs.slot(0))
    medians: list[float] = []
    told = signs.slot(0).pace

    def keep(seconds: float, steps: int) -> None:
        medians.append(seconds)
        told(seconds, steps)

    invariant = isinstance(config, DDPMnist) and config.momentum == 0.0
    run = Settings(invariant=invariant, micro_batches=4)
    trainer: Any = (ddp if isinstance(config, DDPMnist) else fsdp).Trainer(config, env, run)
    trainer.resumable.pace._slot.pace = keep
    if env.rank == 1:
        modules = [trainer.model.convolution] if isinstance(config, DDPMnist) else list(trainer.model.blocks)
        slow_forward(0.1, *[next(iter(each.children()), each) for each in modules])
    trainer.run()
    medians.sort()
    return {"median": medians[len(medians) // 2], "steps": signs.paces()[0][1]}


def mnist(**changes: Any) -> DDPMnist:
    return DDPMnist(**{"name": "m", "entry": "", "seed": 0, "dataset": "digits", "threads": 1, "epochs": 1, **changes})


LM = FSDPLm(
    "lm", "", seed=0, threads=1, layers=2, heads=2, width=16, context=16, steps=12, batch_size=4, eval_every=6,
    eval_windows=4, sample=0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("config", "steps"),
    [
        (mnist(), 10),
        (mnist(sync=Sync.manual), 10),
        (mnist(momentum=0.0), 10),
        (mnist(micro_batch_size=32), 10),
        (LM, 9),
    ],
    ids=["ddp", "manual", "invariant", "accumulated", "fsdp"],
)
def test_the_slow_rank_is_told_from_those_that_wait_for_it(config: Any, steps: int) -> None:
    """All take steps of the same time. The slow one sleeps 0.1 s or more; nobody else needs as much on its own."""
    fast, slow = (result.metrics for result in run_ranks(train, config, 2))
    assert fast["steps"] >= steps and slow["steps"] >= steps
    assert slow["median"] > 0.1 / (2 if config is not LM and config.momentum == 0.0 else 1)
    assert fast["median"] < slow["median"]
