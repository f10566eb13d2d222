"""Which CPUs the ranks of an agent are given, and what is told of it."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import pytest

from launcher.agent import attempt
from launcher.agent.attempt import Binder
from launcher.binding.hardware import Node
from launcher.binding.masks import BindingRefused
from launcher.failures.codes import Unbound
from launcher.rendezvous.rounds import Member, Placement, placements
from launcher.runs.events import Bound
from tests.unit.binding import trees
from tests.unit.binding.test_masks import flat
from tests.unit.plans import bare_plan

AGENTS = [Member(0, 0, "node0", 2), Member(1, 1, "node1", 2)]


BY_SCHEDULER = Unbound("launch=tasks: the scheduler has bound each rank")


def bound(
    node: Node, allowed: Set[int], *, agents: list[Member] = AGENTS, position: int = 0,
    environ: dict[str, str] | None = None, **plan: Any,
) -> tuple[list[Placement], Bound]:  # fmt: skip
    ranks = placements(agents, position, master=("node0", 1), run_id="r", round_number=0, environ={})
    binder = Binder(bare_plan(**plan), environ or {}, lambda: (node, allowed))
    return binder.bind(agents, position, ranks)


def shown(told: Bound) -> list[str]:
    return [rank.cpus for rank in told.ranks]


def test_each_rank_has_its_cores_and_as_many_threads() -> None:
    ranks, told = bound(flat(8, numas=2), set(range(8)), position=1)
    assert [rank.cpus for rank in ranks] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert [rank.environment["OMP_NUM_THREADS"] for rank in ranks] == ["4", "4"]
    assert [rank.environment["LAUNCHER_CORES"] for rank in ranks] == ["4", "4"]
    assert (told.host, told.allowed, told.unbound, [rank.rank for rank in told.ranks]) == ("node1", "0-7", None, [2, 3])
    assert [(rank.cpus, rank.numa) for rank in told.ranks] == [("0-3", "0"), ("4-7", "1")]


def test_ranks_that_are_not_bound_are_as_they_were() -> None:
    ranks, told = bound(flat(1), {0})
    assert told.unbound == Unbound("2 ranks and 1 core")
    assert [(rank.cpus, rank.environment.get("OMP_NUM_THREADS")) for rank in ranks] == [((), None)] * 2


def test_simulated_nodes_of_one_machine_share_its_cores() -> None:
    here = [Member(0, 0, "vm", 1), Member(1, 1, "vm", 2), Member(2, 2, "other", 1)]
    cores = [shown(bound(flat(6), set(range(6)), agents=here, position=place)[1]) for place in range(3)]
    assert cores == [["0-1"], ["2-3", "4-5"], ["0-5"]]


def test_with_tasks_the_schedulers_binding_stands_unless_asked() -> None:
    tasks = [Member(place, 0, "node0", 1, first_local_rank=place) for place in range(2)]
    ranks, told = bound(flat(8), {4, 5}, agents=tasks, position=1, launch={"mode": "tasks"})
    assert (ranks[0].cpus, told.unbound, shown(told)) == ((), BY_SCHEDULER, ["4-5"])
    ranks, told = bound(flat(8), {4, 5}, agents=tasks, position=1, launch={"mode": "tasks", "bind": "core"})
    assert (ranks[0].cpus, told.unbound) == ((4,), None)
    ranks, told = bound(
        flat(8), set(range(8)), agents=tasks, position=1, launch={"mode": "tasks", "bind": "map:0-1:6-7"}
    )
    assert ranks[0].cpus == (6, 7)


def test_the_lists_of_map_are_those_of_each_nodes_local_ranks() -> None:
    here = [Member(0, 0, "vm", 2), Member(1, 1, "vm", 2)]
    assert shown(bound(flat(8), set(range(8)), agents=here, position=1, launch={"bind": "map:1:3"})[1]) == ["1", "3"]
    with pytest.raises(BindingRefused, match="local rank 1 the CPUs 9"):
        bound(flat(8), set(range(8)), launch={"bind": "map:1:9"})


def test_ranks_are_beside_the_gpus_of_their_mask() -> None:
    node, allowed = trees.read("polaris"), set(trees.allowed(trees.description("polaris")))
    masked = {"CUDA_VISIBLE_DEVICES": "3,0"}
    told = bound(node, allowed, environ=masked, gpus_per_node=2, cpus_per_proc=4)[1]
    assert [(rank.numa, rank.gpu, rank.gpu_numa, rank.nic) for rank in told.ranks] == [
        ("0-1", "0000:c7:00.0", 0, "mlx5_0"), ("2-3", "0000:07:00.0", 3, None)
    ]  # fmt: skip
    told = bound(node, allowed, environ=masked, gpus_per_node=4)[1]
    assert told.ranks[0].gpu == "0000:c7:00.0"


NICS: dict[str, Any] = {
    "cluster": {
        "nics": ("hsn1", "hsn0"),
        "rank_environment": {"NCCL_SOCKET_IFNAME": "{nic}", "MPICH_OFI_NIC_POLICY": "GPU"},
    }
}


def nics_of(ranks: list[Placement]) -> list[str]:
    assert {rank.environment["MPICH_OFI_NIC_POLICY"] for rank in ranks} == {"GPU"}
    return [rank.environment["NCCL_SOCKET_IFNAME"] for rank in ranks]


def test_each_rank_talks_through_the_nic_of_its_gpu() -> None:
    node, allowed = trees.read("polaris"), set(trees.allowed(trees.description("polaris")))
    ranks, told = bound(node, allowed, environ={"CUDA_VISIBLE_DEVICES": "3,2"}, gpus_per_node=2, **NICS)
    assert nics_of(ranks) == ["hsn0", "hsn1"]
    assert [rank.nic for rank in told.ranks] == ["mlx5_0", "mlx5_1"]


def test_without_gpus_and_unbound_the_nic_follows_the_local_rank() -> None:
    assert nics_of(bound(flat(8), set(range(8)), **NICS)[0]) == ["hsn1", "hsn0"]
    told = bound(flat(8), set(range(8)), **NICS)[1]
    assert told.unbound == Unbound("cluster.nics names hsn1, hsn0, and there is none")
    tasks = [Member(place, 0, "node0", 1, first_local_rank=place) for place in range(2)]
    assert nics_of(bound(flat(8), {0}, agents=tasks, position=1, launch={"mode": "tasks"}, **NICS)[0]) == ["hsn0"]


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"gpus_per_node": 2}, Unbound("no accelerator is found in /sys or /proc")),
        ({"gpus_per_node": 2, "workload": {"device": "cpu"}}, None),
    ],
)
def test_ranks_whose_gpus_are_unknown_are_not_bound(keys: dict[str, Any], why: Unbound | None) -> None:
    ranks, told = bound(flat(8), set(range(8)), **keys)
    assert told.unbound == why
    assert all(bool(rank.cpus) is not bool(why) for rank in ranks)


@pytest.mark.parametrize(
    ("environ", "keys", "threads"),
    [
        ({}, {}, "4"),
        ({"OMP_NUM_THREADS": "3"}, {}, None),  # the user's
        ({"OMP_NUM_THREADS": "16"}, {}, None),
        ({"OMP_NUM_THREADS": "2"}, {"cpus_per_proc": 2}, None),  # the job script's, which fits
        ({"OMP_NUM_THREADS": "16"}, {"cpus_per_proc": 16}, "4"),  # the job script's, in hardware threads
        ({}, {"train": {"invariant": True}}, None),
        ({"OMP_NUM_THREADS": "16"}, {"cpus_per_proc": 16, "train": {"invariant": True}}, None),
    ],
)
def test_threads_of_a_rank_with_four_cores(environ: dict[str, str], keys: dict[str, Any], threads: str | None) -> None:
    assert attempt.omp_threads(environ, bare_plan(**keys), 4).get("OMP_NUM_THREADS") == threads


def test_a_node_is_looked_at_once() -> None:
    looks = []

    def look() -> tuple[Node, Set[int]]:
        looks.append(1)
        return flat(4), set(range(4))

    binder = Binder(bare_plan(), {}, look)
    ranks = placements(AGENTS, 0, master=("node0", 1), run_id="r", round_number=0, environ={})
    for _ in range(2):
        binder.bind(AGENTS, 0, ranks)
    assert len(looks) == 1
