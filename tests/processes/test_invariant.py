"""The reduction tree gives the same bits whoever holds which leaves, and so do gradients that are added along it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from launcher import Env
from launcher.checkpoint.resumable import seed_generators, share
from launcher.torch_compat import destroy_without_gil
from tests.markers import ci
from tests.processes.workload_ranks import run_ranks
from workloads import invariant
from workloads.invariant import InvariantGradients, Node, TreeReduction, add_up, inner_nodes, meets_in_pairs, subtrees

FLOATS = st.floats(-1e6, 1e6, width=32)


def of_leaves(values: list[float], node: Node) -> float:
    """The sum along the tree, as one who has all leaves takes it."""
    return float(add_up(node, held([torch.tensor(value) for value in values]), torch.add))


@given(st.lists(FLOATS, min_size=1, max_size=20), st.sets(st.integers(1, 19)))
def test_any_partition_of_the_leaves_gives_the_same_bits(values: list[float], cuts: set[int]) -> None:
    count = len(values)
    bounds = [0, *sorted(cut for cut in cuts if cut < count), count]
    known: dict[Node, float] = {}
    for first, last in pairwise(bounds):
        for node in subtrees(first, last, (0, count)):
            assert first <= node[0] < node[1] <= last
            known[node] = of_leaves(values, node)
    assert add_up((0, count), known.get, lambda a, b: float(torch.tensor(a) + torch.tensor(b))) == of_leaves(
        values, (0, count)
    )


@given(st.integers(1, 80), st.integers(0, 6))
def test_ranks_meet_in_pairs_where_that_is_the_tree(leaves: int, power: int) -> None:
    ranks = 2**power
    if ranks > leaves:
        return
    parts = [subtrees(*share(leaves, rank, ranks), (0, leaves)) for rank in range(ranks)]
    if leaves & (leaves - 1) == 0:
        assert meets_in_pairs(parts)
    if meets_in_pairs(parts):
        sums: list[Any] = [part[0] for part in parts]
        while len(sums) > 1:
            sums = list(zip(sums[::2], sums[1::2], strict=True))
        known = {part[0]: part[0] for part in parts}
        assert sums == [add_up((0, leaves), known.get, lambda a, b: (a, b))]


def test_other_numbers_of_ranks_do_not_meet_in_pairs() -> None:
    for leaves, ranks in ((8, 3), (8, 5), (12, 6), (11, 8), (19, 16)):
        assert not meets_in_pairs([subtrees(*share(leaves, rank, ranks), (0, leaves)) for rank in range(ranks)])


@given(st.integers(1, 40))
def test_a_tree_over_n_leaves_has_n_minus_1_inner_nodes_each_after_its_halves(leaves: int) -> None:
    nodes = inner_nodes((0, leaves))
    assert len(nodes) == len(set(nodes)) == leaves - 1
    seen = {(leaf, leaf + 1) for leaf in range(leaves)}
    for begin, end in nodes:
        middle = (begin + end) // 2
        assert {(begin, middle), (middle, end)} <= seen
        seen.add((begin, end))


def test_the_largest_subtrees_are_taken() -> None:
    assert subtrees(0, 8, (0, 8)) == [(0, 8)]
    assert subtrees(0, 2, (0, 8)) == [(0, 2)]
    assert subtrees(2, 5, (0, 8)) == [(2, 4), (4, 5)]
    assert subtrees(5, 8, (0, 8)) == [(5, 6), (6, 8)]


def vectors(leaves: int, size: int) -> list[Tensor]:
    """Of very different sizes, so that the order of adding shows."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(size, generator=generator) * 10.0 ** (leaf % 5) for leaf in range(leaves)]


def held(leaves: list[Tensor]) -> Callable[[Node], Tensor | None]:
    return lambda node: leaves[node[0]] if node[1] - node[0] == 1 else None


CASES = ((5, 3, 0), (8, 37, 1 << 20), (8, 37, 0))  # leaves, elements, invariant.SMALL


def reduce_twice(cases: Any, env: Env) -> dict[str, Any]:
    results = []
    for count, size, invariant.SMALL in cases:
        tree, leaves = TreeReduction(count), vectors(count, size)
        for _ in range(2):  # its buffers are used again
            sums = [add_up(node, held(leaves), torch.add).clone() for node in tree.mine]
            results.append(tree.reduce(sums).tolist())
    return {"sums": results, "pairs": tree.pairs}


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_ranks_come_to_the_sum_along_the_tree(world_size: int) -> None:
    expected = []
    for count, size, _ in CASES:
        leaves = vectors(count, size)
        alone = add_up((0, count), held(leaves), torch.add)
        expected += [alone.tolist()] * 2
    assert not torch.equal(torch.stack(leaves).sum(0), alone)  # else this test would show nothing
    for result in run_ranks(reduce_twice, CASES, world_size):
        assert result.metrics == {"sums": expected, "pairs": world_size != 3}


def train_with_dropout(case: dict[str, Any], env: Env) -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Dropout(0.5), nn.Linear(30, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    gradients = InvariantGradients(model.parameters(), case["leaves"])
    images = torch.randn(50, 20, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(env.rank)  # what a rank has drawn before must not matter
    for step in range(5):
        gradients.begin()
        for leaf in gradients.own_leaves:
            first, last = share(50, leaf, case["leaves"])
            seed_generators(3, step, leaf)
            model(images[first:last]).square().sum().backward()
            gradients.leaf_done()
        gradients.end()
        optimizer.step()
    return {"weights": [parameter.tolist() for parameter in model.parameters()]}


@pytest.mark.parametrize("leaves", [5, ci(8)])
def test_weights_are_the_same_at_any_world_size_with_dropout_and_uneven_leaves(leaves: int) -> None:
    results = [
        result.metrics["weights"]
        for world_size in (1, 2, 3, 4)
        for result in run_ranks(train_with_dropout, {"leaves": leaves}, world_size)
    ]
    assert all(weights == results[0] for weights in results)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    destroy_without_gil(dist.group.WORLD)
    yield
    dist.destroy_process_group()


def test_gradients_are_those_of_the_whole_batch(alone: None) -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    unused, fixed = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2), requires_grad=False)
    inputs = torch.randn(10, 3)
    model(inputs).square().sum().backward()
    expected = [parameter.grad for parameter in model.parameters()]
    gradients = InvariantGradients([*model.parameters(), unused, fixed], 4)
    gradients.begin()
    for leaf in range(4):
        first, last = share(10, leaf, 4)
        model(inputs[first:last]).square().sum().backward()
        gradients.leaf_done()
    gradients.end()
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        assert torch.allclose(parameter.grad, gradient, rtol=1e-5)
    assert unused.grad is not None and unused.grad.tolist() == [0, 0]
    assert fixed.grad is None


def test_parameters_of_several_types_are_refused(alone: None) -> None:
    mixed = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2, dtype=torch.bfloat16))]
    with pytest.raises(ValueError, match=r"one type on one device, .*bfloat16 on cpu, torch\.float32 on cpu"):
        InvariantGradients(mixed, 4)
    with pytest.raises(ValueError, match="there are none"):
        InvariantGradients([], 4)


def too_few(leaves: int, env: Env) -> None:
    TreeReduction(leaves)


def test_more_ranks_than_leaves_are_refused() -> None:
    for result in run_ranks(too_few, 2, 3, fails=True):
        assert "train.micro_batches=2 is fewer than the 3 ranks" in result.error
