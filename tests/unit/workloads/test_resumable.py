"""A training that is stopped or killed goes on as if nothing had happened, or says what differs."""

from __future__ import annotations

import math
import os
import random
import signal
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from tests.unit.plans import run_settings
from tests.unit.workloads.test_training import env_of
from workloads import resumable, training
from workloads.ranks import WorkloadError
from workloads.resumable import (
    Resumable,
    changes,
    generators,
    key,
    materialize,
    restore_generators,
    save_interval,
    seed_generators,
)

pytestmark = pytest.mark.usefixtures("handlers")


# The parts


@pytest.mark.parametrize(
    ("blocked", "whole", "seconds"),
    [
        (0, 0, 30),  # not measured
        (0.001, 0.001, 10),  # next to nothing
        (0.5, 0.5, 60),
        (0.02, 1.2, 31.5),  # most of it in the background
        (2, 100, 590),  # 12 s of cost are 2 % of 590 s
        (60, 60, 3000),
        (0.0, 3000, 15000),
    ],
)
def test_saves_are_as_frequent_as_they_may_be(blocked: float, whole: float, seconds: float) -> None:
    assert save_interval(blocked, whole) == pytest.approx(seconds, rel=0.01)


def test_a_save_never_costs_more_than_its_share_of_the_time() -> None:
    for exponent in range(-6, 8):
        whole = 4.0**exponent
        for blocked in (0.0, whole / 10, whole):
            interval = save_interval(blocked, whole)
            assert blocked / interval <= resumable.SHARE
            assert interval >= max(resumable.LEAST, 2 * whole)
            assert interval <= resumable.MOST or whole / resumable.SHARE > resumable.MOST


def test_changes_are_named() -> None:
    saved = {"torch": "2.13.0", "threads": 1, "device": "CPU"}
    assert changes(saved, saved) == []
    assert changes(saved, {"torch": "2.13.1", "threads": 1, "sync": "ddp"}) == [
        "torch 2.13.0 -> 2.13.1", "device CPU -> None", "sync None -> ddp",
    ]  # fmt: skip


def test_a_key_depends_on_its_parts_alone() -> None:
    assert key(0, 1, 2) == 4908529878518941816  # in every process and version
    assert len({key(seed, step, leaf) for seed in range(5) for step in range(5) for leaf in range(5)}) == 125
    assert key(1, 11) != key(11, 1)


def draw() -> list[float]:
    return [random.random(), float(torch.rand(())), float(torch.randn(())), float(numpy.random.standard_normal())]


def test_generators_are_put_back() -> None:
    cpu = torch.device("cpu")
    seed_generators(1, 2)
    first = draw()
    state = generators(cpu)
    second, third = draw(), draw()
    assert second != first
    restore_generators(state, cpu)
    assert [draw(), draw()] == [second, third]
    seed_generators(1, 2)
    assert draw() == first


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_an_optimizers_state_is_made_without_a_step(kind: type[torch.optim.Optimizer]) -> None:
    model = nn.Linear(3, 2)
    before = training.weights_sha256(model)
    model.weight.grad = gradient = torch.ones(2, 3)
    optimizer = kind(model.parameters(), lr=0.5, momentum=0.9) if kind is torch.optim.SGD else kind(model.parameters())
    rates = [group["lr"] for group in optimizer.param_groups]
    materialize(optimizer)
    assert training.weights_sha256(model) == before
    assert [group["lr"] for group in optimizer.param_groups] == rates
    assert len(optimizer.state) == 2
    assert model.weight.grad is gradient and model.bias.grad is None


# Trainings


# Invariant


def test_the_threads_of_an_invariant_training_do_not_depend_on_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert [training.set_threads(None, env_of(local_world_size=ranks), True) for ranks in (1, 2, 8)] == [1, 1, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert training.set_threads(None, env_of(), True) == 3


# A training of one number


def counting(folder: Path | None, **run: Any) -> tuple[Resumable, torch.Tensor]:
    number = torch.zeros(1)
    it = Resumable(
        env_of(), state=lambda: {"number": number}, position=dict, identity={"kind": "number"},
        run=run_settings(checkpoint_dir=folder, **run),
    )  # fmt: skip
    return it, number


def saved(folder: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in folder.glob("step-*"))


def test_outside_of_a_run_nothing_happens() -> None:
    before = signal.getsignal(signal.SIGTERM)
    it, _ = counting(None)
    assert it.load() is None
    it.boundary(1)
    it.evaluated(1, {"accuracy": 1.0})
    it.finish(1)
    assert signal.getsignal(signal.SIGTERM) is before


def test_saves_come_at_just_the_steps_that_are_asked_for(tmp_path: Path) -> None:
    it, number = counting(tmp_path, every_steps=3, keep=9, background=False)
    assert it.load() is None
    for step in range(1, 8):
        number += 1
        it.boundary(step)
        it.boundary(step)  # an evaluation
    assert saved(tmp_path) == [3, 6]
    it.finish(7)
    assert saved(tmp_path) == [3, 6, 7]
    it, number = counting(tmp_path)
    loaded = it.load()
    assert loaded is not None and (loaded.step, number.item()) == (7, 7)
    it.close()


def test_saves_come_when_their_time_has_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(resumable.time, "monotonic", lambda: clock[0])
    it, _ = counting(tmp_path, every=60.0, keep=9, background=False)
    for step in range(1, 10):
        clock[0] += 25
        it.boundary(step)
    assert saved(tmp_path) == [3, 6, 9]
    it.close()


def test_a_save_that_fails_at_a_stop_does_not_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    it, _ = counting(tmp_path)
    monkeypatch.setattr("launcher.checkpoint.saving._free", lambda folder: 0)
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(SystemExit) as leave:
        it.boundary(1)
    assert leave.value.code == 75
    assert saved(tmp_path) == []


def test_the_best_is_saved_when_it_is_found_and_by_no_other_name(tmp_path: Path) -> None:
    it, _ = counting(tmp_path, best="loss", best_is="min", keep=1, background=False)
    for step, loss in enumerate((0.5, 0.2, 0.3), 1):
        it.evaluated(step, {"loss": loss})
    assert max(saved(tmp_path)) == 2
    it.finish(3)
    assert saved(tmp_path) == [2, 3]
    it, _ = counting(tmp_path, best="loss", best_is="min", keep=1, background=False)
    it.load()
    it.evaluated(4, {"loss": 0.25})  # not better than the best of the attempt before
    assert saved(tmp_path) == [2, 3]
    with pytest.raises(WorkloadError, match=r"checkpoint\.best=loss: this training measures accuracy, f1"):
        it.evaluated(4, {"accuracy": 0.25, "f1": 0.1})
    it.close()


@pytest.mark.parametrize(
    ("value", "best", "best_is", "yes"),
    [
        (0.5, None, "max", True),
        (0.5, 0.4, "max", True),
        (0.5, 0.5, "max", False),
        (0.5, 0.4, "min", False),
        (0.3, 0.4, "min", True),
        (math.nan, None, "max", False),
        (math.inf, None, "min", False),
        (0.1, math.nan, "max", True),  # saved by an older launcher
        (math.nan, 0.1, "min", False),
    ],
)
def test_which_metric_is_better(value: float, best: float | None, best_is: str, yes: bool) -> None:
    assert resumable.better(value, best, best_is) is yes


def test_a_first_metric_that_is_no_number_does_not_stay_the_best(tmp_path: Path) -> None:
    it, _ = counting(tmp_path, best="loss", best_is="min", keep=1, background=False)
    it.evaluated(1, {"loss": math.nan})
    assert saved(tmp_path) == []
    it.evaluated(2, {"loss": 0.5})
    it.evaluated(3, {"loss": 0.7})
    assert saved(tmp_path) == [2]
    it.close()
