"""Trainings of several ranks that are stopped, killed and resumed end as undisturbed ones."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from launcher import Env
from launcher.checkpoint.format import CheckpointError
from launcher.checkpoint.resumable import Resumable
from launcher.config.schema import DDPMnist, Sync
from launcher.formatting import plural
from tests.markers import ci
from tests.processes.workload_ranks import RankResult, RanksFailedError, run_ranks
from tests.unit.plans import run_settings
from workloads import ddp

EPOCHS = 2  # of 11 steps


def digits(**changes: Any) -> DDPMnist:
    return DDPMnist(
        **{"name": "ddp_mnist", "entry": "", "seed": 0, "dataset": "digits", "threads": 1, "epochs": EPOCHS, **changes}
    )


def attempt(case: dict[str, Any], env: Env) -> dict[str, Any]:
    """One attempt at a training.

    `case` may have the steps before which a rank is told to stop, is killed, or looks at the weights and leaves; the
    changes of its settings and of its config; and whether it is told to stop in an evaluation.
    """
    run = run_settings(checkpoint_dir=case["folder"], **case.get("run", {}))
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
    ("sync", "world_size"), [ci(Sync.ddp, 1), (Sync.ddp, 2), ci(Sync.ddp, 3), ci(Sync.ddp, 4), (Sync.manual, 3)]
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
        assert f"stopped after step {at[-1]}: asked to stop (rank 0 on node0); saved in" in results[0].printed
    assert 2 < at[0] < at[1] < 22
    last = go(tmp_path / "two", world_size, config=config)
    assert outcome(last) == undisturbed
    assert f"continues after step {at[1]} (step-{at[1]:09d}, saved by {plural(world_size, 'rank')})" in last[0].printed
    assert [step for step, _ in last[0].progress] == [step for step in (16, 20, 22) if step > at[1]]
    assert "world size" not in last[0].printed


def test_a_finished_training_is_not_trained_again(tmp_path: Path) -> None:
    done = go(tmp_path / "one", 2)
    again = go(tmp_path / "one", 2)
    assert outcome(again) == outcome(done)
    assert again[0].progress == [] and again[0].metrics["images_per_s"] == 0
    assert "continues after step 22" in again[0].printed


@pytest.mark.parametrize("world_size", [2, ci(3)])
def test_a_killed_training_loses_no_more_than_the_steps_since_its_save(tmp_path: Path, world_size: int) -> None:
    undisturbed = outcome(go(tmp_path / "one", world_size))
    run = {"every_steps": 5, "background": False}
    with pytest.raises(RanksFailedError, match="died"):
        go(tmp_path / "two", world_size, run=run, kill=13)
    last = go(tmp_path / "two", world_size, run=run)
    assert "continues after step 10 " in last[0].printed
    assert outcome(last) == undisturbed


@pytest.mark.parametrize("world_size", [ci(1), 3])
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


@pytest.mark.parametrize("sync", [Sync.ddp, ci(Sync.manual)])
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
    assert "world size 4 -> 3: sums are taken in another order, so weights may differ" in resumed[0].printed


def test_strict_refuses_what_could_differ(tmp_path: Path) -> None:
    go(tmp_path, 3, stop=3)
    results = run_ranks(
        attempt,
        {"folder": tmp_path, "run": {"strict": True}, "config": {"threads": 2}},
        2,
        fails=True,
    )
    (error,) = {result.error for result in results}
    assert "Misfit: resume.strict=true refuses" in error
    assert "because of world size 3 -> 2, threads 1 -> 2. Continue as before" in error
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


@pytest.mark.ci  # test_invariant.py has it without stops
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
    ],
)
def test_sizes_that_do_not_fit_are_refused(
    tmp_path: Path, run: dict[str, Any], config: dict[str, Any], text: str
) -> None:
    case = {"folder": tmp_path, "run": {"invariant": True, **run}, "config": config}
    for result in run_ranks(attempt, case, 3, fails=True):
        assert all(part in result.error for part in text.split(" .* "))


class Loader:
    """A data loader; some ranks' do not take their state again."""

    def __init__(self, *, takes: bool) -> None:
        self._takes = takes

    def state_dict(self) -> dict[str, Any]:
        return {"next": 1}

    def load_state_dict(self, _: dict[str, Any]) -> None:
        if not self._takes:
            raise ValueError("my shard is gone")


def load_where_one_refuses(case: dict[str, Any], env: Env) -> dict[str, Any]:
    def training(*, takes: bool) -> Resumable:
        model = torch.nn.Linear(2, 1)
        return Resumable({"model": model}, {"loader": Loader(takes=takes)}, env=env, run=run_settings(**case))

    training(takes=True).finish(1)
    again = training(takes=env.rank != 1)
    try:
        again.load()
    except CheckpointError as error:
        return {"said": str(error)}
    finally:
        again.close()
    return {"said": ""}


def test_an_object_that_refuses_its_state_on_one_rank_ends_the_load_on_all(tmp_path: Path) -> None:
    first, *others = [
        each.metrics["said"] for each in run_ranks(load_where_one_refuses, {"checkpoint_dir": tmp_path}, 3)
    ]
    assert "rank 1: " in first
    assert "loader (Loader) does not take the state that was saved for it: ValueError: my shard is gone" in first
    assert others == [first, first]
