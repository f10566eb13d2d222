"""A rank knows its place as torchrun would tell it, however its agents were started."""

from __future__ import annotations

import pytest

from launcher.rendezvous.rounds import Member, placements
from launcher.schedulers.topology import derive

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
    rank = placements(members, index, master=("m", 1), run_id="r", round_number=0, environ={})[local]
    assert rank.environment.items() >= {
        "LOCAL_RANK": local_rank, "LOCAL_WORLD_SIZE": local_world, "GROUP_RANK": node, "NODE_RANK": node,
        "GROUP_WORLD_SIZE": nodes, "LAUNCHER_HOSTS": hosts,
    }.items()  # fmt: skip


@pytest.mark.parametrize("members", [AGENTS, SHRUNK, TASKS, UNEVEN, ONE_HOST])
def test_the_variables_are_those_that_a_rank_finds_its_topology_in(members: list[Member]) -> None:
    world = sum(member.ranks for member in members)
    of_all = [
        each for index in range(len(members))
        for each in placements(members, index, master=("m", 1), run_id="r", round_number=0, environ={})
    ]  # fmt: skip
    assert [each.rank for each in of_all] == list(range(world))
    owners = [member for member in members for _ in range(member.ranks)]
    seen = set()
    for each, owner in zip(of_all, owners, strict=True):
        topology = derive(each.environment, owner.host, lambda path: "")
        assert (topology.source, topology.rank, topology.world_size) == ("torchrun", each.rank, world)
        assert topology.hosts[topology.node_rank] == owner.host
        seen.add((topology.node_rank, topology.local_rank))
    assert len(seen) == world


def test_a_rank_finds_all_that_torchrun_would_give_it() -> None:
    """The names are those of torch 2.13's LocalElasticAgent, and NODE_RANK."""
    environ = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}
    (found,) = placements(
        UNEVEN, 1, master=("node1", 29500), run_id="run-1", round_number=2, max_restarts=3, environ=environ
    )
    assert found.environment == {
        "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "1", "NODE_RANK": "1",
        "GROUP_WORLD_SIZE": "2", "ROLE_NAME": "rank", "ROLE_RANK": "3", "ROLE_WORLD_SIZE": "4", "MASTER_ADDR": "node1",
        "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "run-1", "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "2", "TORCHELASTIC_MAX_RESTARTS": "3", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
        "LAUNCHER_ROUND": "2", "LAUNCHER_HOSTS": "a,b",
    }  # fmt: skip
