"""The parts of the training loop, alone on one rank, and what the communication benchmarks compute with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from launcher import Env
from launcher.torch_compat import destroy_without_gil
from workloads import image_data, measurement, training
from workloads.across_ranks import WorkloadError, name_ranks
from workloads.benchmark_keys import DTYPES, OPERATIONS, choose
from workloads.invariant import GradientBuckets, _groups
from workloads.training import load


def env_of(world_size: int = 1, node_ranks: tuple[int, ...] = (0,), local_world_size: int = 1) -> Env:
    return Env(
        rank=0,
        local_rank=0,
        world_size=world_size,
        local_world_size=local_world_size,
        node_rank=0,
        nnodes=max(node_ranks) + 1,
        hosts=(),
        host="here",
        backend="gloo",
        device=torch.device("cpu"),
        source="test",
        node_ranks=node_ranks,
    )


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Iterator[Env]:
    """A process group of this process alone."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    destroy_without_gil(dist.group.WORLD)
    yield env_of()
    dist.destroy_process_group()


@given(total=st.integers(1, 5000), peak=st.floats(1e-4, 10))
def test_the_learning_rate_rises_to_its_peak_and_falls(total: int, peak: float) -> None:
    rates = [training.learning_rate(step, total, peak) for step in range(total)]
    assert all(0 < rate <= peak for rate in rates)
    top = rates.index(max(rates))
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    if total >= 20:
        assert max(rates) > 0.8 * peak
        assert rates[0] < 0.4 * peak and rates[-1] < 0.1 * peak
        assert top < total / 2


def test_the_learning_rate_is_what_the_docs_say() -> None:
    rates = [round(training.learning_rate(step, 10, 1.0), 4) for step in range(10)]
    assert rates == [0.5, 1.0, 1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125]


def test_threads_are_the_ranks_share_of_the_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    set_to: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", set_to.append)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    for threads, local_world_size, expected in ((None, 1, 8), (None, 3, 2), (None, 20, 1), (5, 1, 5)):
        assert training.set_threads(threads, env_of(local_world_size=local_world_size)) == expected
        assert set_to[-1] == expected


def test_bfloat16_needs_a_device_that_has_it() -> None:
    cpu = torch.device("cpu")
    assert training.autocast_dtype("auto", cpu) is None
    assert training.autocast_dtype("float32", cpu) is None
    with pytest.raises(WorkloadError, match=r"precision=bfloat16 needs a GPU .* computes on the CPU: use"):
        training.autocast_dtype("bfloat16", cpu)


def test_one_changed_bit_changes_the_hash_of_the_weights() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    before = training.weights_sha256(model)
    assert before == training.weights_sha256(model)
    with torch.no_grad():
        model.bias[1] = torch.nextafter(model.bias[1], torch.tensor(9.0))
    assert training.weights_sha256(model) != before


def test_the_same_seed_gives_the_same_weights() -> None:
    hashes = []
    for seed in (3, 3, 4):
        training.seed_everything(seed)
        hashes.append(training.weights_sha256(nn.Linear(3, 2)))
    assert hashes[0] == hashes[1] != hashes[2]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_loss_that_is_not_finite_is_told_with_its_step(group: Env, bad: float) -> None:
    losses = training.LossLog(batch_size=2)
    for step, loss in enumerate((4.0, 2.0)):
        losses.add(step, torch.tensor(loss))
    mean, speed = losses.look()
    assert mean == 1.5 and speed > 0
    for step, loss in enumerate((1.0, bad, 1.0), start=2):
        losses.add(step, torch.tensor(loss))
    with pytest.raises(WorkloadError, match=r"the loss of step 4 is -?(nan|inf)"):  # the fourth, counted from 1
        losses.look()


@given(st.lists(st.integers(1, 500), min_size=1, max_size=20), st.integers(1, 4000))
def test_buckets_hold_neighbours_up_to_their_size(counts: list[int], limit: int) -> None:
    parameters = [nn.Parameter(torch.empty(count)) for count in counts]
    groups = _groups(parameters, limit)
    assert [parameter for group in groups for parameter in group] == parameters
    for one in groups:
        assert len(one) == 1 or sum(parameter.numel() * 4 for parameter in one) <= limit
    for one, following in pairwise(groups):
        assert sum(parameter.numel() * 4 for parameter in (*one, following[0])) > limit


def test_buckets_keep_types_apart_and_fill_in_for_unused_parameters(group: Env) -> None:
    first, second = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2, 2, dtype=torch.float64))
    fixed = nn.Parameter(torch.ones(3), requires_grad=False)
    buckets = GradientBuckets([first, second, fixed], 1)
    assert buckets.buckets == [[second], [first]]
    first.grad = torch.tensor([1.0, 2.0, 3.0])
    buckets.average()
    assert first.grad.tolist() == [1, 2, 3]
    assert second.grad is not None and second.grad.tolist() == [[0, 0], [0, 0]]
    with pytest.raises(ValueError, match="bucket_mb=0"):
        GradientBuckets([first], 0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_test_values_depend_on_every_part_of_their_key(dtype: str) -> None:
    made = [
        measurement.Values(measurement.torch_dtype(dtype), torch.device("cpu"), seed).make(
            256, source, destination, iteration
        )
        for seed, source, destination, iteration in (
            (0, 1, 2, 3),
            (1, 1, 2, 3),
            (0, 2, 2, 3),
            (0, 1, 1, 3),
            (0, 1, 2, 4),
        )
    ]
    for index, one in enumerate(made):
        assert one.dtype == measurement.torch_dtype(dtype)
        assert one.unique().numel() > 50
        for other in made[:index]:
            assert measurement.count_wrong(one, other) > 200


def test_not_a_number_is_always_wrong() -> None:
    nan = torch.tensor([float("nan"), 1.0])
    assert measurement.count_wrong(nan, nan) == 1


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ("all", OPERATIONS),
        ("barrier", ("barrier",)),
        ("reduce, all_reduce,reduce", ("reduce", "all_reduce")),
        (["gather", "scatter,barrier"], ("gather", "scatter", "barrier")),
        (["gather", "all"], OPERATIONS),
    ],
)
def test_names_are_chosen(chosen: str | list[str], expected: tuple[str, ...]) -> None:
    assert choose("operation", chosen, OPERATIONS) == expected


@pytest.mark.parametrize(
    ("chosen", "text"),
    [
        ("allreduce", r"'allreduce' is no operation; known are all, .*Did you mean all_reduce or"),
        ("reduce,qqq", r"'qqq' is no operation; known are [a-z_, ]*\.$"),
        ("", "no operation is chosen"),
        ([], "no operation is chosen"),
    ],
)
def test_unknown_names_are_refused(chosen: str | list[str], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        choose("operation", chosen, OPERATIONS)


def test_unknown_types_are_refused() -> None:
    with pytest.raises(ValueError, match=r"'float23' is no dtype.*Did you mean float32"):
        measurement.torch_dtype("float23")


def test_ranks_are_named_with_their_hosts() -> None:
    assert name_ranks([3], ["a", "a", "b", "b"]) == "rank 3 on b"
    assert name_ranks([0, 1, 2], ["a", "a", "b", "b"]) == "ranks 0-2 on a, b"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(losses=st.lists(st.floats(0, 1e3), min_size=1, max_size=30), stops=st.sets(st.integers(0, 30)))
def test_mean_losses_have_the_same_bits_however_often_a_training_is_stopped(
    group: Env, losses: list[float], stops: set[int]
) -> None:
    straight, stopped = training.LossLog(7, 2, 1), training.LossLog(7, 2, 1)
    for step, loss in enumerate(losses):
        straight.add(step, torch.tensor(loss))
        stopped.add(step, torch.tensor(loss))
        if step in stops:
            told = json.loads(json.dumps(stopped.state()))  # as a checkpoint keeps it
            stopped = training.LossLog(7, 2, 1)
            stopped.restore(told)
    assert straight.look()[0] == stopped.look()[0]
    assert straight.mean == stopped.mean
    straight.begin_epoch()
    assert straight.mean == 0


def test_losses_of_micro_batches_are_added_without_rounding(group: Env) -> None:
    losses = training.LossLog(1, 3)
    losses.add(0, torch.tensor(1e8), torch.tensor(1.0), torch.tensor(-1e8))
    assert losses.look()[0] == 1
    losses.add(1, torch.tensor(float("nan")), torch.tensor(1.0), torch.tensor(1.0))
    with pytest.raises(WorkloadError, match="the loss of step 2 is nan"):
        losses.collect()


def test_between_the_chunks_of_an_evaluation_somebody_may_look_up(group: Env) -> None:
    calls: list[int] = []
    data = load(image_data.find("digits"))
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    scores = training.evaluate(model, data, group, chunk=100, between=lambda: calls.append(1))
    assert (len(calls), scores.samples) == (4, 360)


def test_the_threads_of_an_invariant_training_do_not_depend_on_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert [training.set_threads(None, env_of(local_world_size=ranks), True) for ranks in (1, 2, 8)] == [1, 1, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert training.set_threads(None, env_of(), True) == 3
