"""Workloads in several ranks: they compute the right thing at any world size, and all ranks tell what goes wrong."""

from __future__ import annotations

import dataclasses
import re
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from workload_ranks import RankResult, run_ranks

from launcher import datasets
from launcher.config import P2P, Collective, DDPMnist, Precision, Sync
from launcher.node import Env
from workloads import bench, collective, ddp, operations, p2p, training
from workloads.data import load
from workloads.names import GROUPS, OPERATIONS, PATTERNS


def ddp_config(**changes: Any) -> DDPMnist:
    return DDPMnist(**{"name": "ddp_mnist", "entry": "", "seed": 0, "dataset": "digits", "threads": 1, **changes})


def collective_config(**changes: Any) -> Collective:
    few = {"name": "collective", "entry": "", "seed": 0, "size": "4K", "iterations": 3}
    return Collective(**{**few, **changes})


def p2p_config(**changes: Any) -> P2P:
    return P2P(**{"name": "p2p", "entry": "", "seed": 0, "size": "4K", "iterations": 2, **changes})


def the_error(results: list[RankResult]) -> str:
    """The one error that all ranks raised."""
    errors = {result.error for result in results}
    assert len(errors) == 1, errors
    return errors.pop()


# Training


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_digits_are_learned_at_any_world_size(world_size: int) -> None:
    results = run_ranks(ddp.main, ddp_config(), world_size, nnodes=2 if world_size == 4 else 1)
    metrics = results[0].metrics
    assert metrics["accuracy"] >= datasets.DIGITS.accuracy
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
    assert lines[2] == "2 epochs of 11 steps, 128 images a step, sync=ddp, torch.float32, 1 threads a rank"
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
    data = load(datasets.find("digits"))
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
    assert re.search("the initial weights should be the same .* ranks 0, 1 on node0: .*; rank 2 on node0: ", error)


def damaged_on_the_second_node(env: Env) -> None:
    if env.node_rank == 1:
        error = datasets.DatasetError("train-images-idx3-ubyte.gz is damaged")
        patch.object(datasets, "find", side_effect=error).start()


def _raise(error: Exception) -> Any:
    raise error


def test_a_data_set_that_is_damaged_on_one_node_ends_all_ranks() -> None:
    error = the_error(run_ranks(ddp.main, ddp_config(), 2, nnodes=2, prepare=damaged_on_the_second_node, fails=True))
    assert error == "WorkloadError: rank 1 on node1: train-images-idx3-ubyte.gz is damaged"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"batch_size": 1438}, "has 1437 samples, fewer than workload.batch_size=1438"),
        ({"batch_size": 1}, "workload.batch_size=1 leaves some of the 2 ranks without a sample"),
        ({"precision": Precision.bfloat16}, "precision=bfloat16 needs a GPU"),
        ({"epochs": 0}, "workload.epochs=0"),
        ({"log_every": 0}, "workload.log_every=0"),
        ({"dataset": "mnits"}, "Did you mean mnist"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes: dict[str, Any], text: str) -> None:
    assert text in the_error(run_ranks(ddp.main, ddp_config(**changes), 2, fails=True))


# Collectives


@pytest.mark.parametrize(("world_size", "nnodes"), [(1, 1), (2, 1), (3, 3), (4, 2)])
def test_all_collectives_are_right_in_all_groups(world_size: int, nnodes: int) -> None:
    results = run_ranks(collective.main, collective_config(groups=list(GROUPS)), world_size, nnodes)
    metrics = results[0].metrics
    assert (metrics["operations"], metrics["wrong"]) == (len(OPERATIONS) * len(GROUPS), 0)
    assert metrics["checked"] > 0
    lines = [line.split() for line in results[0].printed.splitlines()]
    assert lines[1] == ["op", "group", "ranks", "bytes", "time(us)", "#wrong"]
    table = {(line[0], line[1]): line[2:] for line in lines[2:-1]}
    assert list(table) == [(op, kind) for kind in GROUPS for op in OPERATIONS]
    assert all(cells[-1] == "0" and float(cells[-2]) > 0 for cells in table.values())
    assert table["all_reduce", "world"][:2] == [str(world_size), str(4096 // 4 // world_size * world_size * 4)]
    if world_size == 4:
        assert table["gather", "stride"][:4] == ["2", "x", "2", "4096"]
    assert results[0].progress[-1] == (27, 27)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int32", "int64", "int8"])
def test_collectives_are_right_for_every_type(dtype: str) -> None:
    metrics = run_ranks(collective.main, collective_config(dtype=dtype, iterations=2), 2)[0].metrics
    assert (metrics["operations"], metrics["wrong"]) == (9, 0)


def test_chosen_collectives_run() -> None:
    metrics = run_ranks(collective.main, collective_config(op="reduce,barrier"), 2)[0].metrics
    assert {name for name in metrics if name.endswith("/us")} == {"reduce/world/us", "barrier/world/us"}


def corrupt_results_of_rank_1(env: Env) -> None:
    """The last element that rank 1 gets is off by one, in the last run of every operation."""

    def corrupt(operation: operations.Operation) -> operations.Operation:
        def run(case: operations.Case, data: Tensor, out: Tensor) -> None:
            operation.run(case, data, out)
            if env.rank == 1 and case.root == 1 and out.numel():
                out[-1] += 1

        return dataclasses.replace(operation, run=run)

    collective.BY_NAME = {name: corrupt(operation) for name, operation in operations.BY_NAME.items()}


def test_a_wrong_result_of_any_collective_is_told() -> None:
    config = collective_config(warmup=0)  # each of the 3 ranks is the root once
    results = run_ranks(collective.main, config, 3, nnodes=3, prepare=corrupt_results_of_rank_1, fails=True)
    faults = the_error(results).removeprefix("WorkloadError: ").split("; ")
    with_data = [name for name in OPERATIONS if name != "barrier"]
    for operation, fault in zip(with_data, faults, strict=True):
        assert re.fullmatch(rf"{operation} in group world: 1 wrong of \d+ elements on rank 1 on node1", fault)
    lines = [line.split() for line in results[0].printed.splitlines()[2:]]
    assert {line[0]: line[-1] for line in lines} == {name: "1" if name != "barrier" else "0" for name in OPERATIONS}


def no_barrier(env: Env) -> None:
    patch.object(dist, "barrier").start()


def test_a_barrier_that_lets_ranks_pass_is_told() -> None:
    config = collective_config(op="barrier")
    error = the_error(run_ranks(collective.main, config, 2, prepare=no_barrier, fails=True))
    assert "barrier in group world: rank" in error and "left before" in error


def lack_reduce_scatter(env: Env) -> None:
    operation = dataclasses.replace(
        operations.BY_NAME["reduce_scatter"],
        run=lambda case, data, out: _raise(RuntimeError("this backend does not support reduce_scatter")),
    )
    collective.BY_NAME = {**operations.BY_NAME, "reduce_scatter": operation}


def test_an_operation_that_the_backend_lacks_is_told() -> None:
    first, _ = run_ranks(collective.main, collective_config(), 2, prepare=lack_reduce_scatter)
    assert first.metrics["operations"] == 8
    assert re.search(r"reduce_scatter +world .* - +-  gloo: this backend does not support", first.printed)
    config = collective_config(op="reduce_scatter")
    error = the_error(run_ranks(collective.main, config, 2, prepare=lack_reduce_scatter, fails=True))
    assert error == "WorkloadError: reduce_scatter cannot be run: gloo: this backend does not support reduce_scatter"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"op": "allreduce"}, "Did you mean all_reduce"),
        ({"groups": ["nodes"]}, "Did you mean node"),
        ({"dtype": "float"}, "is no dtype"),
        ({"size": "many"}, "is not a size"),
        ({"iterations": 0}, "iterations=0"),
    ],
)
def test_collective_settings_are_checked(changes: dict[str, Any], text: str) -> None:
    assert text in the_error(run_ranks(collective.main, collective_config(**changes), 1, fails=True))


# Point to point


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_all_patterns_are_right(world_size: int) -> None:
    results = run_ranks(p2p.main, p2p_config(), world_size)
    lines = [line.split() for line in results[0].printed.splitlines()]
    assert lines[1] == ["pattern", "messages", "bytes", "time(us)", "MB/s", "result"]
    assert [line[0] for line in lines[2:]] == list(PATTERNS)
    pairs = 2 * (world_size - 1)
    messages = [pairs, pairs, world_size * (world_size - 1), world_size**2]
    assert [(int(line[1]), line[2], line[5]) for line in lines[2:]] == [(count, "4096", "ok") for count in messages]
    metrics = results[0].metrics
    assert metrics["checked"] == sum(messages) * 1024 * 2
    assert metrics["ring/us"] > 0 and metrics["ring/mb_per_s"] > 0
    assert results[0].progress[-1] == (4, 4)


def one_peer_at_once(env: Env) -> None:
    patch.object(p2p, "AT_ONCE", 1).start()


def test_patterns_take_many_peers_in_turns() -> None:
    assert run_ranks(p2p.main, p2p_config(dtype="int8"), 4, prepare=one_peer_at_once)[0].metrics["patterns"] == 4


def corrupt_what_rank_1_receives(env: Env) -> None:
    real = bench.timed

    def timed(device: torch.device, run: Any, exchange: p2p.Exchange) -> float:
        seconds = real(device, run, exchange)
        if env.rank == 1 and exchange.receipts:
            exchange.receipts[0].buffer[:2] += 1
        return seconds

    patch.object(bench, "timed", timed).start()


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_wrong_value_is_told_with_the_peers(pattern: str) -> None:
    config = p2p_config(patterns=[pattern], iterations=1)
    results = run_ranks(p2p.main, config, 2, nnodes=2, prepare=corrupt_what_rank_1_receives, fails=True)
    error = the_error(results)
    expected = "4 wrong" if pattern == "ring" else "2 wrong"  # what is sent on is wrong again
    assert f"{pattern}: {expected} elements of 1024 a message arrived on rank 1 on node1 from rank 0 on node0" in error
    assert results[0].printed.splitlines()[-1].split()[-1] == "WRONG"


@pytest.mark.parametrize(
    ("changes", "world_size", "text"),
    [
        ({}, 1, "p2p needs at least 2 ranks"),
        ({"patterns": ["rings"]}, 2, "Did you mean ring"),
        ({"iterations": 0}, 2, "iterations=0"),
    ],
)
def test_p2p_settings_are_checked(changes: dict[str, Any], world_size: int, text: str) -> None:
    assert text in the_error(run_ranks(p2p.main, p2p_config(**changes), world_size, fails=True))
