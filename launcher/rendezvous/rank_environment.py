"""Makes the environment variables of ranks: those that torchrun sets, and the launcher's. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

ROLE = "rank"


class AgentLike(Protocol):
    """The attributes of an agent that this module reads.

    Attributes:
        index: number of the agent in the job as the scheduler started it.
        node_rank: number of its node in that job; with launch=tasks several agents have the same.
        host: name of its host.
        ranks: number of ranks that it starts.
        first_local_rank: local rank of the first of them.
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
    """One rank to start.

    Attributes:
        place: number of the rank among those of its agent.
        rank: global rank.
        environment: variables that are added to those of its agent.
        cpus: CPUs that the rank may run on; empty: all of its agent's.
    """

    place: int
    rank: int
    environment: Mapping[str, str]
    cpus: tuple[int, ...] = ()


def place_variables(agents: Sequence[AgentLike], position: int, place: int) -> dict[str, str]:
    """Returns the variables with the local rank, the node rank and the hosts.

    Args:
        agents: all agents of the round, in the order of their ranks.
        position: index in `agents` of the agent that starts the rank.
        place: number of the rank among those of its agent.
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
        "LAUNCHER_HOSTS": ",".join(hosts[number] for number in nodes),
    }


def environment_of(
    agents: Sequence[AgentLike], position: int, place: int, *,
    master: tuple[str, int], run_id: str, round_number: int, max_restarts: int = 0, environ: Mapping[str, str],
) -> dict[str, str]:  # fmt: skip
    """Returns all variables that torchrun sets for a rank, with LAUNCHER_ROUND and LAUNCHER_HOSTS.

    Args:
        agents, position, place: see `place_variables`.
        master: host and port of the store.
        run_id: id of the run.
        round_number: number of the round, from 0.
        max_restarts: launch.max_restarts.
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
    """Returns the placements of all ranks of one agent. The arguments are those of `environment_of`."""
    first = sum(agent.ranks for agent in agents[:position])
    return [
        Placement(place, first + place, environment_of(
            agents, position, place, master=master, run_id=run_id, round_number=round_number,
            max_restarts=max_restarts, environ=environ,
        ))
        for place in range(agents[position].ranks)
    ]  # fmt: skip
