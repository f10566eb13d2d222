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
from workload_ranks import RankResult, RanksFailedError, run_ranks

from launcher.config import DDPMnist, Sync
from launcher.node import Env
from launcher.node.settings import Settings
from tests.unit.test_training import env_of
from workloads import ddp, resumable, training
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

EPOCHS = 2  # of 11 steps


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


def digits(**changes: Any) -> DDPMnist:
    return DDPMnist(
        **{"name": "ddp_mnist", "entry": "", "seed": 0, "dataset": "digits", "threads": 1, "epochs": EPOCHS, **changes}
    )


def attempt(case: dict[str, Any], env: Env) -> dict[str, Any]:
    """One attempt at a training.

    `case` may have the steps before which a rank is told to stop, is killed, or looks at the weights and leaves; the
    changes of its settings and of its config; and whether it is told to stop in an evaluation.
    """
    run = Settings(checkpoint_dir=case["folder"], **case.get("run", {}))
    trainer = ddp.Trainer(digits(**case.get("config", {})), env, run)
    real_step, real_batch = trainer.step, type(trainer.data).batch
    told = env.rank == case.get("rank", env.world_size - 1)

    def step(number: int, chosen: torch.Tensor) -> None:
        if told and number == case.get("stop"):
            os.kill(os.getpid(), signal.SIGTERM)
        if told and number == case.get("kill"):
            os.kill(os.getpid(), signal.SIGKILL)
        if number == case.get("look"):
            raise StopIteration
        real_step(number, chosen)

    def batch(split: Any, chosen: Any) -> Any:
        if split is trainer.data.test and case.get("stop_in_evaluation"):
            os.kill(os.getpid(), signal.SIGTERM)
        return real_batch(trainer.data, split, chosen)

    trainer.step = step  # type: ignore[method-assign]
    object.__setattr__(trainer.data, "batch", batch)
    try:
        return trainer.run()
    except SystemExit as leave:
        return {"code": leave.code, "steps": trainer.steps, "finished": trainer.finished}
    except StopIteration:
        return {"weights": [parameter.tolist() for parameter in trainer.model.parameters()]}
    finally:
        trainer.resumable.close()


OF_THE_RUN = ("weights_sha256", "accuracy", "loss", "test_loss", "epochs", "steps")


def outcome(results: list[RankResult]) -> dict[str, Any]:
    """What must be equal, bit for bit, on all ranks and however often it was stopped."""
    told = [{name: result.metrics[name] for name in OF_THE_RUN} for result in results]
    assert told == told[:1] * len(told)
    return told[0]


def go(folder: Path, world_size: int, **case: Any) -> list[RankResult]:
    return run_ranks(attempt, {"folder": folder, **case}, world_size)


@pytest.mark.parametrize(
    ("sync", "world_size"), [(Sync.ddp, 1), (Sync.ddp, 2), (Sync.ddp, 3), (Sync.ddp, 4), (Sync.manual, 3)]
)
def test_a_stopped_training_ends_as_an_undisturbed_one(tmp_path: Path, sync: Sync, world_size: int) -> None:
    config = {"sync": sync, "log_every": 4}
    undisturbed = outcome(go(tmp_path / "one", world_size, config=config))
    at = []
    for stop in (2, 13):
        results = go(tmp_path / "two", world_size, config=config, stop=stop, rank=0)
        assert {result.metrics["code"] for result in results} == {75}
        assert len({result.metrics["steps"] for result in results}) == 1
        at.append(results[0].metrics["steps"])
        assert f"stopped after step {at[-1]}: told to stop (rank 0 on node0); saved in" in results[0].printed
    assert 2 < at[0] < at[1] < 22
    last = go(tmp_path / "two", world_size, config=config)
    assert outcome(last) == undisturbed
    assert f"goes on after step {at[1]} (step-{at[1]:09d}, saved by {resumable.ranks(world_size)})" in last[0].printed
    assert [step for step, _ in last[0].progress] == [step for step in (16, 20, 22) if step > at[1]]
    assert "world size" not in last[0].printed


def test_a_finished_training_is_not_trained_again(tmp_path: Path) -> None:
    done = go(tmp_path / "one", 2)
    again = go(tmp_path / "one", 2)
    assert outcome(again) == outcome(done)
    assert again[0].progress == [] and again[0].metrics["images_per_s"] == 0
    assert "goes on after step 22" in again[0].printed


@pytest.mark.parametrize("world_size", [2, 3])
def test_a_killed_training_loses_no_more_than_the_steps_since_its_save(tmp_path: Path, world_size: int) -> None:
    undisturbed = outcome(go(tmp_path / "one", world_size))
    run = {"every_steps": 5, "background": False}
    with pytest.raises(RanksFailedError, match="died"):
        go(tmp_path / "two", world_size, run=run, kill=13)
    last = go(tmp_path / "two", world_size, run=run)
    assert "goes on after step 10 " in last[0].printed
    assert outcome(last) == undisturbed


@pytest.mark.parametrize("world_size", [1, 3])
def test_a_stop_in_an_evaluation_is_heard(tmp_path: Path, world_size: int) -> None:
    undisturbed = outcome(go(tmp_path / "one", world_size))
    first = go(tmp_path / "two", world_size, stop_in_evaluation=True)
    assert first[0].metrics["code"] == 75
    if world_size == 1:  # several ranks may need a step more to agree
        assert (first[0].metrics["steps"], first[0].metrics["finished"]) == (11, 0)
        assert "test accuracy" not in first[0].printed
    last = go(tmp_path / "two", world_size)
    assert outcome(last) == undisturbed
    if world_size == 1:
        assert [line.split()[1] for line in last[0].printed.splitlines() if " test accuracy " in line] == ["1/2", "2/2"]


@pytest.mark.parametrize("sync", Sync)
def test_accumulation_takes_small_pieces_and_comes_to_the_same(tmp_path: Path, sync: Sync) -> None:
    small = {"sync": sync, "micro_batch_size": 10}
    whole = go(tmp_path / "whole", 3, look=5, config={"sync": sync})
    pieces = go(tmp_path / "pieces", 3, look=5, config=small)
    for one, other in zip(whole[0].metrics["weights"], pieces[0].metrics["weights"], strict=True):
        assert torch.allclose(torch.tensor(one), torch.tensor(other), rtol=1e-4, atol=1e-6)
    undisturbed = outcome(go(tmp_path / "one", 3, config=small))
    go(tmp_path / "two", 3, config=small, stop=6)
    assert outcome(go(tmp_path / "two", 3, config=small)) == undisturbed


def test_another_world_size_takes_the_same_steps(tmp_path: Path) -> None:
    """The inputs are the same, so the next steps come to the same but for the order of sums."""
    straight = go(tmp_path / "one", 4, look=9)[0].metrics["weights"]
    stopped = go(tmp_path / "two", 4, stop=3)
    assert stopped[0].metrics["steps"] < 9
    resumed = go(tmp_path / "two", 3, look=9)
    for one, other in zip(straight, resumed[0].metrics["weights"], strict=True):
        assert torch.allclose(torch.tensor(one), torch.tensor(other), rtol=1e-4, atol=1e-6)
    assert "world size 4 -> 3: same batches, order and learning rate; sums are taken in another" in resumed[0].printed


def test_strict_refuses_what_could_differ(tmp_path: Path) -> None:
    go(tmp_path, 3, stop=3)
    results = run_ranks(
        attempt,
        {"folder": tmp_path, "run": {"strict": True}, "config": {"threads": 2}},
        2,
        fails=True,
    )
    (error,) = {result.error for result in results}
    assert "WorkloadError: resume.strict=true refuses" in error
    assert "because of world size 3 -> 2, threads 1 -> 2. Go on as before" in error
    assert outcome(go(tmp_path, 3, run={"strict": True}))["steps"] == 22


def test_a_checkpoint_of_another_training_is_refused_with_what_differs(tmp_path: Path) -> None:
    go(tmp_path, 1, stop=3)
    other = {"config": {"lr": 0.2, "epochs": 3}, "run": {"invariant": True}}
    (result,) = run_ranks(attempt, {"folder": tmp_path, **other}, 1, fails=True)
    for name, before, now in (
        ("workload.lr", "0.1", "0.2"), ("workload.epochs", "2", "3"), ("train.invariant", "false", "true"),
    ):  # fmt: skip
        line = next(line for line in result.error.splitlines() if name in line)
        assert before in line.lower() and now in line.lower()
    assert "workload.momentum" not in result.error
    assert outcome(go(tmp_path, 1))["steps"] == 22  # nothing was harmed


# Invariant


def test_an_invariant_training_has_the_same_weights_at_any_world_size_and_across_sizes(tmp_path: Path) -> None:
    run = {"invariant": True}
    alone = outcome(go(tmp_path / "1", 1, run=run))
    for world_size in (2, 3, 4, 8):
        assert outcome(go(tmp_path / str(world_size), world_size, run=run)) == alone
    for world_size, stop in ((2, 4), (3, 12)):
        results = go(tmp_path / "elastic", world_size, run=run, stop=stop)
        assert results[0].metrics["code"] == 75
    last = go(tmp_path / "elastic", 1, run={**run, "strict": True})  # nothing can differ, so nothing is refused
    assert "world size 3 -> 1: the weights stay bitwise equal (train.invariant=true)" in last[0].printed
    assert outcome(last) == alone


@pytest.mark.parametrize(
    ("run", "config", "text"),
    [
        ({"micro_batches": 2}, {}, "train.micro_batches=2 must be from 3 (the number of ranks) to 128"),
        ({"micro_batches": 40}, {"batch_size": 30}, "train.micro_batches=40 must be from 3 .* to 30"),
        ({}, {"micro_batch_size": 10}, "micro-batches of 16 samples: set train.micro_batches=13"),
        ({}, {"micro_batch_size": 0}, "workload.micro_batch_size=0: a forward pass needs at least one"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(
    tmp_path: Path, run: dict[str, Any], config: dict[str, Any], text: str
) -> None:
    case = {"folder": tmp_path, "run": {"invariant": True, **run}, "config": config}
    for result in run_ranks(attempt, case, 3, fails=True):
        assert all(part in result.error for part in text.split(" .* "))


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
        run=Settings(checkpoint_dir=folder, **run),
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
