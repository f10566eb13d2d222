"""Links between nodes: every pair is measured once, slow ones are told, and the nodes that explain them are found."""

from __future__ import annotations

import random
import tracemalloc
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads.p2p_matrix import ROWS, Measured, Usual, heat_map, rounds_of, slow_pairs, suspects, tournament, usual

LIMITS = 0.7, 3  # least bandwidth and most latency of a pair, as parts of what is expected


# Who meets whom


@given(st.integers(0, 40))
def test_everybody_meets_everybody_once_and_nobody_is_in_two_places(players: int) -> None:
    rounds = list(tournament(players))
    assert len(rounds) == (0 if players < 2 else players - 1 + players % 2)
    assert sorted(pair for met in rounds for pair in met) == list(combinations(range(players), 2))
    for met in rounds:
        assert len({player for pair in met for player in pair}) == 2 * len(met)
        assert len(met) == players // 2


@given(st.lists(st.integers(1, 4), min_size=1, max_size=7))
def test_ranks_meet_in_rounds_that_never_share_a_node(sizes: list[int]) -> None:
    node_of = [node for node, size in enumerate(sizes) for _ in range(size)]
    nodes = [[rank for rank, node in enumerate(node_of) if node == wanted] for wanted in range(len(sizes))]
    rounds = list(rounds_of(nodes))
    assert sorted(pair for met in rounds for pair in met) == list(combinations(range(len(node_of)), 2))
    for met in rounds:
        busy = [node for a, b in met for node in {node_of[a], node_of[b]}]
        assert len(set(busy)) == len(busy)
    if set(sizes) == {1}:
        assert len(rounds) == len(list(tournament(len(sizes))))


# Verdicts


def measured(nodes: int, bad: dict[int | tuple[int, int], float], per_node: int = 1, spread: float = 0.0) -> Measured:
    """A fabric of 1 us and 10 GB/s, in which bad nodes and bad pairs of ranks have that part of it."""
    rng = random.Random(0)
    ranks = nodes * per_node
    node_of = [rank // per_node for rank in range(ranks)]
    latency: list[list[float | None]] = [[None] * ranks for _ in range(ranks)]
    bandwidth: list[list[float | None]] = [[None] * ranks for _ in range(ranks)]
    for a, b in combinations(range(ranks), 2):
        part = min(bad.get(node_of[a], 1), bad.get(node_of[b], 1), bad.get((a, b), 1))
        if node_of[a] == node_of[b]:
            part = 4 * bad.get((a, b), 1)
        latency[a][b] = latency[b][a] = 1e-6 / part
        for source, to in ((a, b), (b, a)):
            bandwidth[source][to] = 10e9 * part * (1 - spread * rng.random())
    return Measured(node_of, latency, bandwidth)


@pytest.mark.parametrize(
    ("nodes", "bad", "slow", "blamed"),
    [
        (2, {}, 0, []),
        (4, {}, 0, []),
        (3, {2: 0.5}, 2, [2]),
        (4, {0: 0.5}, 3, [0]),
        (4, {2: 0.1}, 3, [2]),
        (4, {(1, 3): 0.1}, 1, []),  # a link, and neither of its ends
        (5, {0: 0.3, 4: 0.3}, 7, [0, 4]),
        (8, {3: 0.6}, 7, [3]),
        (8, {3: 0.75}, 0, []),
        (8, {(0, 1): 0.2, (2, 3): 0.3, (4, 5): 0.4}, 3, []),
        (8, {(0, 1): 0.2, (0, 2): 0.2, (0, 3): 0.2}, 3, []),  # three of seven are not most of them
        (8, {(0, 1): 0.2, (0, 2): 0.2, (0, 3): 0.2, (0, 4): 0.2}, 4, [0]),
        (16, {7: 0.5, 11: 0.2, (0, 1): 0.1}, 15 + 14 + 1, [11, 7]),
        (2, {0: 0.1}, 0, []),  # one pair: there is nothing to compare it with
    ],
)
@pytest.mark.parametrize("spread", [0.0, 0.1])
def test_slow_pairs_and_the_nodes_that_explain_them(
    nodes: int, bad: dict[int | tuple[int, int], float], slow: int, blamed: list[int], spread: float
) -> None:
    seen = measured(nodes, bad, spread=spread)
    found = slow_pairs(seen, *LIMITS)
    assert len(found) == slow
    assert sorted(suspects(seen, found)) == sorted(blamed)
    assert [each.ratio for each in found] == sorted(each.ratio for each in found)
    assert all(each.ratio < 0.7 and each.against == "median" for each in found)


def test_one_direction_is_enough_to_be_slow() -> None:
    seen = measured(4, {})
    seen.bandwidth[1][2] = 1e9  # type: ignore[index]
    (found,) = slow_pairs(seen, *LIMITS)
    assert (found.pair, found.bandwidth, found.ratio) == ((1, 2), 1e9, 0.1)


def test_latency_alone_makes_a_pair_slow() -> None:
    seen = measured(4, {})
    for a, b in ((0, 3), (3, 0)):
        seen.latency[a][b] = 5e-6  # type: ignore[index]
    (found,) = slow_pairs(seen, *LIMITS)
    assert (found.pair, found.measure, round(found.ratio, 6)) == ((0, 3), "latency", 0.2)


def test_pairs_within_a_node_are_compared_with_their_like() -> None:
    seen = measured(3, {(2, 3): 0.3}, per_node=2)
    assert usual(seen) == Usual(1e-6, 10e9)
    assert usual(seen, within=True) == Usual(0.25e-6, 40e9)
    assert [each.pair for each in slow_pairs(seen, *LIMITS)] == [(2, 3)]  # 12 GB/s: more than between nodes
    assert suspects(seen, slow_pairs(seen, *LIMITS)) == []
    whole = measured(3, {1: 0.3}, per_node=2)
    assert suspects(whole, slow_pairs(whole, *LIMITS)) == [1]


def test_an_earlier_run_is_a_measure_too() -> None:
    seen = measured(4, {0: 0.5, 1: 0.5, 2: 0.5, 3: 0.5})  # all are slow: the median cannot tell
    assert slow_pairs(seen, *LIMITS) == []
    before = measured(4, {(2, 3): 0.6})
    before.bandwidth[0][2] = before.bandwidth[2][0] = None  # type: ignore[index]  # it has not measured this link
    for pair in ((0, 3), (1, 2), (1, 3)):
        before.bandwidth[max(pair)][min(pair)] = 5e9  # type: ignore[index]
    (found,) = slow_pairs(seen, 0.8, 3, before)
    assert (found.pair, found.ratio, found.against) == ((0, 1), 0.5, "baseline")


def test_pairs_that_were_not_measured_are_not_slow() -> None:
    nothing: list[list[float | None]] = [[None] * 3 for _ in range(3)]
    seen = Measured([0, 1, 2], nothing, nothing)
    assert np.isnan(seen.pairs()).all() and (usual(seen), slow_pairs(seen, *LIMITS)) == (None, [])


@pytest.mark.parametrize("nodes", [1024, pytest.param(4096, marks=pytest.mark.slow)])
def test_the_links_of_many_nodes_take_little_memory(nodes: int) -> None:
    bad = 1000
    latency, bandwidth = np.full((nodes, nodes), 1e-6), np.full((nodes, nodes), 10e9)
    bandwidth[bad] = bandwidth[:, bad] = 5e9
    seen = Measured(range(nodes), latency, bandwidth)
    tracemalloc.start()
    try:
        slow = slow_pairs(seen, *LIMITS)
        assert (len(slow), suspects(seen, slow)) == (nodes - 1, [bad])
        assert tracemalloc.get_traced_memory()[1] < 60 * nodes**2
    finally:
        tracemalloc.stop()


# The heat map


def shares_of(seen: Measured) -> list[list[float | None]]:
    return [[None if value is None else value / 10e9 for value in row] for row in seen.bandwidth]


def test_a_small_heat_map_has_percentages() -> None:
    seen = measured(3, {(0, 2): 0.314})
    assert heat_map(["node1", "node2", "node3"], shares_of(seen), {(0, 2)}, "the median") == [
        "bandwidth, row to column, % of the median; ! slow",
        "          0    1    2",
        "0 node1   -  100   31!",
        "1 node2 100    -  100",
        "2 node3  31! 100    -",
    ]


@given(st.integers(1, 130), st.integers(0, 129), st.integers(1, 40))
def test_a_heat_map_of_any_size_fits_and_shows_the_bad_node(nodes: int, bad: int, length: int) -> None:
    bad %= nodes
    labels = [f"{'n' * length}{node:03}" for node in range(nodes)]
    lines = heat_map(labels, shares_of(measured(nodes, {bad: 0.21})), set(), "the median (12.34 GB/s)")
    assert all(len(line) <= 76 for line in lines)
    assert len(lines) <= ROWS + 4
    row = next(line for line in lines if line.lstrip().startswith(f"{bad} ") and labels[bad][-3:] in line)
    if nodes > 1:
        assert "21" in row.split() or set(row.split()[-1]) == {"2", "-"}


def test_what_a_large_heat_map_leaves_out_is_told() -> None:
    lines = heat_map([f"n{node}" for node in range(100)], shares_of(measured(100, {7: 0.5, 8: 0.3})), set(), "it")
    assert lines[0] == "bandwidth, row to column, tens of % of it; 9: 90 or more"
    assert lines[1] == "columns: the worst 69 of 100"
    assert lines[-1] == "76 more rows: nothing below 100 % among them"
