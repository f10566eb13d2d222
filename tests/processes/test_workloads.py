"""Workloads in several ranks: they compute the right thing at any world size, and all ranks tell what goes wrong."""

from __future__ import annotations

import dataclasses
import re
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from launcher import Env
from launcher.config.schema import DDPMnist, Precision, Sync
from launcher.errors import UnavailableError
from tests.markers import ci
from tests.processes.workload_ranks import RankResult, run_ranks
from workloads import ddp, image_data, training
from workloads.across_ranks import together
from workloads.image_data import DatasetError
from workloads.training import load


def ddp_config(**changes: Any) -> DDPMnist:
    return DDPMnist(**{"name": "ddp_mnist", "entry": "", "seed": 0, "dataset": "digits", "threads": 1, **changes})


def the_error(results: list[RankResult]) -> str:
    """The one error that all ranks raised."""
    errors = {result.error for result in results}
    assert len(errors) == 1, errors
    return errors.pop()


# Errors of single ranks


def read_some(found: dict[int, Exception], env: Env) -> dict[str, Any]:
    def read() -> int:
        if env.rank in found:
            raise found[env.rank]
        return 1

    return {"read": together(read, env)}


@pytest.mark.parametrize(
    ("found", "error"),
    [
        ({1: DatasetError("torn")}, "WorkloadError: rank 1 on node0: torn"),
        ({1: UnavailableError("no answer")}, "UnavailableError: rank 1 on node0: no answer"),
        (
            {0: UnavailableError("no answer"), 1: ValueError("torn")},
            "WorkloadError: rank 0 on node0: no answer; rank 1 on node0: torn",
        ),
    ],
)
def test_a_file_that_one_rank_cannot_read_now_ends_the_attempt_of_all(found: dict[int, Exception], error: str) -> None:
    assert the_error(run_ranks(read_some, found, 2, fails=True)) == error


# Training


@pytest.mark.parametrize("world_size", [ci(1), 2, ci(3), ci(4)])
def test_digits_are_learned_at_any_world_size(world_size: int) -> None:
    results = run_ranks(ddp.main, ddp_config(), world_size, nnodes=2 if world_size == 4 else 1)
    metrics = results[0].metrics
    assert metrics["accuracy"] >= image_data.DIGITS.accuracy
    assert (metrics["dataset"], metrics["epochs"], metrics["steps"]) == ("digits", 30, 330)
    assert metrics["loss"] < 0.1 and metrics["images_per_s"] > 0 and metrics["seconds"] > 0
    for result in results:
        assert result.metrics["weights_sha256"] == metrics["weights_sha256"]
        assert result.metrics["accuracy"] == metrics["accuracy"]


def test_a_run_tells_how_it_goes() -> None:
    first, second = run_ranks(ddp.main, ddp_config(epochs=2, log_every=4), 2)
    assert second.printed == "rank 1/2 local 1 on node0: gloo, cpu\n" and second.progress == []
    lines = first.printed.splitlines()
    assert lines[0] == "rank 0/2 local 0 on node0: gloo, cpu"
    assert lines[1].startswith("data set digits (part of the launcher: ")
    assert lines[2] == "2 epochs of 11 steps, 128 images a step, sync=ddp, torch.float32, 1 thread a rank"
    steps = [line for line in lines if line.startswith("step ")]
    assert [line.split()[1] for line in steps] == [f"{step}/22" for step in (4, 8, 11, 12, 16, 20, 22)]
    assert re.fullmatch(r"step 4/22 epoch 1/2 loss \d\.\d{4} lr \d\.\d{4} [\d,]+ images/s", steps[0])
    assert [line.split()[1] for line in lines if " test accuracy " in line] == ["1/2", "2/2"]
    assert re.fullmatch(r"accuracy 0.\d{4} on digits after 2 epochs; expected .*: 0.97 after 30 \(.*\)", lines[-1])
    assert first.progress == [(step, 22) for step in (4, 8, 11, 12, 16, 20, 22)]


def test_manual_averaging_equals_ddp_bitwise_with_two_ranks() -> None:
    hashes = {
        run_ranks(ddp.main, ddp_config(epochs=3, sync=sync, bucket_mb=size), 2)[0].metrics["weights_sha256"]
        for sync, size in ((Sync.ddp, 1.0), (Sync.manual, 1.0), (Sync.manual, 0.0001), (Sync.ddp, 0.0001))
    }
    assert len(hashes) == 1


def first_steps(config: DDPMnist, env: Env) -> dict[str, Any]:
    trainer = ddp.Trainer(config, env)
    for step, chosen in trainer.sampler.batches(0):
        trainer.step(step, chosen)
        if step == 3:
            break
    return {"weights": torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()]).tolist()}


def test_the_first_steps_are_the_same_at_any_world_size() -> None:
    alone = torch.tensor(run_ranks(first_steps, ddp_config(), 1)[0].metrics["weights"])
    for world_size in (3, 4):
        for sync in Sync:
            for result in run_ranks(first_steps, ddp_config(sync=sync), world_size):
                assert torch.allclose(torch.tensor(result.metrics["weights"]), alone, rtol=1e-4, atol=1e-6)


def evaluate_untrained(config: DDPMnist, env: Env) -> dict[str, Any]:
    trainer = ddp.Trainer(config, env)
    return dataclasses.asdict(training.evaluate(trainer.model, trainer.data, env, chunk=50))


def test_evaluation_counts_each_sample_once_at_any_world_size() -> None:
    scores = [run_ranks(evaluate_untrained, ddp_config(), world_size)[0].metrics for world_size in (1, 2, 3, 4)]
    training.seed_everything(0)
    data = load(image_data.find("digits"))
    images, labels = data.batch(data.test, slice(0, None))
    right = int((ddp.Net(8, 10)(images).argmax(1) == labels).sum())
    for score in scores:
        assert (score["samples"], score["accuracy"]) == (360, right / 360)
        assert score["loss"] == scores[0]["loss"]


def nan_in_the_fifth_step(env: Env) -> None:
    if env.rank == 1:
        calls, real = [0], ddp.cross_entropy

        def cross_entropy(*arguments: Any, **options: Any) -> Tensor:
            calls[0] += 1
            return real(*arguments, **options) * (float("nan") if calls[0] == 5 else 1)

        patch.object(ddp, "cross_entropy", cross_entropy).start()


def test_a_loss_that_is_not_finite_on_one_rank_ends_all_of_them() -> None:
    for sync in Sync:
        results = run_ranks(ddp.main, ddp_config(sync=sync), 2, prepare=nan_in_the_fifth_step, fails=True)
        assert "WorkloadError: the loss of step 5 is nan" in the_error(results)


def another_seed(env: Env) -> None:
    if env.rank == 2:
        patch.object(training, "seed_everything", lambda seed: torch.manual_seed(seed + 1)).start()


def test_different_initial_weights_are_noticed() -> None:
    error = the_error(run_ranks(ddp.main, ddp_config(), 3, prepare=another_seed, fails=True))
    assert re.search("the initial weights should be the same .* ranks 0-1 on node0: .*; rank 2 on node0: ", error)


def damaged_on_the_second_node(env: Env) -> None:
    if env.node_rank == 1:
        error = image_data.DatasetError("train-images-idx3-ubyte.gz is damaged")
        patch.object(image_data, "find", side_effect=error).start()


def test_a_data_set_that_is_damaged_on_one_node_ends_all_ranks() -> None:
    error = the_error(run_ranks(ddp.main, ddp_config(), 2, nnodes=2, prepare=damaged_on_the_second_node, fails=True))
    assert error == "WorkloadError: rank 1 on node1: train-images-idx3-ubyte.gz is damaged"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"batch_size": 1438}, "has 1437 samples, fewer than workload.batch_size=1438"),
        ({"batch_size": 1}, "workload.batch_size=1 leaves some of the 2 ranks without a sample"),
        ({"precision": Precision.bfloat16}, "precision=bfloat16 needs a GPU"),
        ({"dataset": "mnits"}, "Did you mean mnist"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes: dict[str, Any], text: str) -> None:
    assert text in the_error(run_ranks(ddp.main, ddp_config(**changes), 2, fails=True))
