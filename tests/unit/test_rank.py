"""A rank knows its place as torchrun would tell it, however its agents were started."""

from __future__ import annotations

import pytest
from launcher.node.rank import final, place_variables, workload_config
from launcher.node.rendezvous import Member

from launcher.config import Collective, DDPMnist, Precision, Sync, Workload
from launcher.node.lease import LeaseLost
from launcher.node.topology import derive
from tests.unit.plans import plan_of
from workloads.ranks import WorkloadError

AGENTS = [Member(0, 0, "a", 2), Member(1, 1, "b", 2), Member(2, 2, "c", 2)]
SHRUNK = [AGENTS[0], AGENTS[2]]
TASKS = [Member(0, 0, "a", 1), Member(1, 0, "a", 1), Member(2, 1, "b", 1), Member(3, 1, "b", 1)]
UNEVEN = [Member(0, 0, "a", 3), Member(1, 1, "b", 1)]
ONE_HOST = [Member(0, 0, "h", 1), Member(1, 1, "h", 1)]


@pytest.mark.parametrize(
    ("members", "index", "local", "place"),
    [
        (AGENTS, 0, 1, ("1", "2", "0", "3", "a,b,c")),
        (AGENTS, 2, 0, ("0", "2", "2", "3", "a,b,c")),
        (SHRUNK, 1, 1, ("1", "2", "1", "2", "a,c")),  # nodes are numbered anew when one is missing
        (TASKS, 1, 0, ("1", "2", "0", "2", "a,b")),
        (TASKS, 2, 0, ("0", "2", "1", "2", "a,b")),
        (TASKS, 3, 0, ("1", "2", "1", "2", "a,b")),
        ([TASKS[0], TASKS[3]], 1, 0, ("0", "1", "1", "2", "a,b")),
        (UNEVEN, 0, 2, ("2", "3", "0", "2", "a,b")),
        (UNEVEN, 1, 0, ("0", "1", "1", "2", "a,b")),
        (ONE_HOST, 1, 0, ("0", "1", "1", "2", "h,h")),
    ],
)
def test_the_place_of_a_rank(members: list[Member], index: int, local: int, place: tuple[str, ...]) -> None:
    local_rank, local_world, node, nodes, hosts = place
    assert place_variables(members, index, local) == {
        "LOCAL_RANK": local_rank, "LOCAL_WORLD_SIZE": local_world, "GROUP_RANK": node, "NODE_RANK": node,
        "GROUP_WORLD_SIZE": nodes, "LAUNCHER_HOSTS": hosts,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (WorkloadError("no"), True),
        (LeaseLost("gone"), True),
        (ValueError("banana"), False),
        (RuntimeError("peer"), False),
    ],
)
def test_an_error_that_would_come_again_is_known(error: Exception, answer: bool) -> None:
    assert final(error) is answer


@pytest.mark.parametrize("members", [AGENTS, SHRUNK, TASKS, UNEVEN, ONE_HOST])
def test_the_variables_are_those_that_a_rank_finds_its_topology_in(members: list[Member]) -> None:
    world = sum(member.ranks for member in members)
    ranks = [(index, local) for index, member in enumerate(members) for local in range(member.ranks)]
    seen = set()
    for rank, (index, local) in enumerate(ranks):
        environ = {
            "RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "m", "MASTER_PORT": "1",
            **place_variables(members, index, local),
        }  # fmt: skip
        topology = derive(environ, members[index].host, lambda path: "")
        assert (topology.source, topology.rank, topology.world_size) == ("torchrun", rank, world)
        assert topology.hosts[topology.node_rank] == members[index].host
        seen.add((topology.node_rank, topology.local_rank))
    assert len(seen) == world


@pytest.mark.parametrize(
    "workload",
    [
        Workload("w", "m:f", seed=3),
        DDPMnist("w", "m:f", seed=3, precision=Precision.bfloat16, sync=Sync.manual, lr=0.5, threads=2),
        Collective("w", "m:f", seed=3, op=["all_reduce"], groups=["node"]),
    ],
)
def test_a_workload_gets_its_config_back_from_the_plan(workload: Workload) -> None:
    again = workload_config(plan_of(workload=workload))
    assert again == workload
    assert type(again) is type(workload)
