"""Makes the environment variables of ranks: those that torchrun sets, and the launcher's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from launcher.schedulers import topology

ROLE = "rank"


class AgentLike(Protocol):
    """The attributes of an agent that this module reads.

    index: index of the agent among all that the scheduler started for the job, from 0.
    node_rank: index of the agent's node in the job, from 0; with launch=tasks several agents have the same.
    host: name of the agent's host.
    ranks: number of ranks that the agent starts.
    first_local_rank: local rank of the first of these ranks.
    """

    @property
    def index(self) -> int: ...
    @property
    def node_rank(self) -> int: ...
    @property
    def host(self) -> str: ...
    @property
    def ranks(self) -> int: ...
    @property
    def first_local_rank(self) -> int: ...


@dataclass(frozen=True)
class Placement:
    """One rank to start."""

    place: int  # index of the rank among the ranks of its agent, from 0
    rank: int  # global rank
    environment: Mapping[str, str]  # variables that are added to the agent's environment
    cpus: tuple[int, ...] = ()  # ids of the CPUs that the rank may run on; empty: all CPUs of its agent


def place_variables(agents: Sequence[AgentLike], position: int, place: int) -> dict[str, str]:
    """Returns the environment variables of a rank that depend on its node: local rank, node rank and hosts.

    agents: all agents of the round, in the order of their ranks.
    position: index in `agents` of the agent that starts the rank.
    place: index of the rank among the ranks of its agent, from 0.
    """
    own = agents[position]
    nodes = list(dict.fromkeys(agent.node_rank for agent in agents))
    on_node = [agent for agent in agents if agent.node_rank == own.node_rank]
    hosts = {agent.node_rank: agent.host for agent in agents}
    node = str(nodes.index(own.node_rank))
    return {
        "LOCAL_RANK": str(sum(agent.ranks for agent in on_node if agent.index < own.index) + place),
        "LOCAL_WORLD_SIZE": str(sum(agent.ranks for agent in on_node)),
        "GROUP_RANK": node,
        "NODE_RANK": node,
        "GROUP_WORLD_SIZE": str(len(nodes)),
        **topology.variable([hosts[number] for number in nodes]),
    }


def environment_of(
    agents: Sequence[AgentLike], position: int, place: int, *,
    master: tuple[str, int], run_id: str, round_number: int, max_restarts: int = 0, environ: Mapping[str, str],
) -> dict[str, str]:  # fmt: skip
    """Returns all environment variables that torchrun sets for a rank, and LAUNCHER_ROUND and LAUNCHER_HOSTS.

    agents, position, place: see `place_variables`.
    round_number: index of the round, from 0.
    environ: the agent's environment; TORCH_NCCL_ASYNC_ERROR_HANDLING is taken from it.
    """
    rank = sum(agent.ranks for agent in agents[:position]) + place
    world_size = str(sum(agent.ranks for agent in agents))
    return {
        "RANK": str(rank),
        "WORLD_SIZE": world_size,
        "ROLE_NAME": ROLE,
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": world_size,
        "MASTER_ADDR": master[0],
        "MASTER_PORT": str(master[1]),
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": str(round_number),
        "TORCHELASTIC_MAX_RESTARTS": str(max_restarts),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        "LAUNCHER_ROUND": str(round_number),
        **place_variables(agents, position, place),
    }


def placements(
    agents: Sequence[AgentLike], position: int, *,
    master: tuple[str, int], run_id: str, round_number: int, max_restarts: int = 0, environ: Mapping[str, str],
) -> list[Placement]:  # fmt: skip
    """Returns the placements of all ranks of the agent `agents[position]`. Arguments: see `environment_of`."""
    first = sum(agent.ranks for agent in agents[:position])
    return [
        Placement(place, first + place, environment_of(
            agents, position, place, master=master, run_id=run_id, round_number=round_number,
            max_restarts=max_restarts, environ=environ,
        ))
        for place in range(agents[position].ranks)
    ]  # fmt: skip
