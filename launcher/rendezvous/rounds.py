"""A round: its members and their ranks, the environment of each rank, and the files that name a round's leader."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from launcher.failures import text
from launcher.files import run_files
from launcher.files.shared_files import exists, unwrap
from launcher.runs.events import Accused, Fault, Place
from launcher.schedulers import topology

LOOPBACK = "127.0.0.1"


class LeaderLost(Exception):
    """This agent has lost its connection to the leader, which is dead or cut off."""


class RendezvousError(RuntimeError):
    """The rendezvous failed.

    from_leader: whether the leader refused this agent, and reports the fault to the user itself.
    final: whether a retry is useless, because the leader has decided. If False, the leader may only be gone.
    """

    def __init__(self, fault: Fault, *, from_leader: bool = False, final: bool = False) -> None:
        super().__init__(text.of_fault(fault))
        self.fault, self.from_leader, self.final = fault, from_leader, final or from_leader

    def __reduce__(self) -> Any:
        return partial(type(self), from_leader=self.from_leader, final=self.final), (self.fault,)


def accuse(place: Place) -> Accused:
    """Returns the agent at `place` as the probable cause of a fault."""
    return Accused(host=place.host, rank=place.task, node=None if place.task is not None else place.node)


@dataclass(frozen=True)
class Member:
    """An agent that takes part in a round. There is one agent per node, or with launch=tasks one per rank."""

    index: int  # index of the agent among all that the scheduler started for the job, from 0; the same in all rounds
    node_rank: int  # index of the agent's node in the job, from 0
    host: str
    ranks: int  # number of ranks that the agent starts
    first_local_rank: int = 0  # local rank of the first of these ranks
    local_address: str = ""  # the agent's end of its connection to the leader, as an IP address
    master_address: str = ""  # the leader's end of that connection, as an IP address


@dataclass(frozen=True)
class Rendezvous:
    """The result of a rendezvous: a round's members in the order of their ranks, and the address of their store."""

    # host, port: address of the ranks' store; the host is the address at which this member reached the leader
    host: str
    port: int
    members: tuple[Member, ...]  # all members, the leader first
    interface: str | None  # name of this agent's network interface to the others; None: unknown
    # on the leader, the listening socket of the store; None on others
    listener: socket.socket | None = field(default=None, compare=False)
    spares: tuple[int, ...] = ()  # `Member.index` of the agents that wait to take the place of a lost one

    @property
    def addresses(self) -> list[str]:
        """IP addresses from which the members have connected to the leader."""
        return [member.local_address for member in self.members if member.local_address]

    @property
    def world_size(self) -> int:
        return sum(member.ranks for member in self.members)

    def place_of(self, index: int) -> int | None:
        """Returns the position in `members` of the member with this index; None: it does not take part."""
        return next((place for place, member in enumerate(self.members) if member.index == index), None)

    def first_rank(self, place: int) -> int:
        """Returns the first global rank of the member at this position in `members`."""
        return sum(member.ranks for member in self.members[:place])


def address_reached(members: Sequence[Member]) -> str:
    """Returns the address at which the others have reached the leader, the first member; empty: several addresses."""
    addresses = {member.master_address for member in members[1:]} or {LOOPBACK}
    return addresses.pop() if len(addresses) == 1 else ""


@dataclass(frozen=True)
class Placement:
    """One rank to start."""

    place: int  # index of the rank among the ranks of its agent, from 0
    rank: int  # global rank
    environment: Mapping[str, str]  # variables that are added to the agent's environment
    cpus: tuple[int, ...] = ()  # ids of the CPUs that the rank may run on; empty: all CPUs of its agent


def placements(
    members: Sequence[Member], position: int, *,
    master: tuple[str, int], run_id: str, round_number: int, max_restarts: int = 0, environ: Mapping[str, str],
) -> list[Placement]:  # fmt: skip
    """Returns the ranks of the agent `members[position]`, each with variables as from torchrun and two of ours."""
    own = members[position]
    nodes = {member.node_rank: member.host for member in members}
    node = str([*nodes].index(own.node_rank))
    on_node = [member for member in members if member.node_rank == own.node_rank]
    first_local_rank = sum(member.ranks for member in on_node if member.index < own.index)
    world_size = str(sum(member.ranks for member in members))
    of_all = {
        "WORLD_SIZE": world_size,
        "LOCAL_WORLD_SIZE": str(sum(member.ranks for member in on_node)),
        "GROUP_RANK": node,
        "NODE_RANK": node,
        "GROUP_WORLD_SIZE": str(len(nodes)),
        "ROLE_NAME": "rank",
        "ROLE_WORLD_SIZE": world_size,
        "MASTER_ADDR": master[0],
        "MASTER_PORT": str(master[1]),
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": str(round_number),
        "TORCHELASTIC_MAX_RESTARTS": str(max_restarts),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        "LAUNCHER_ROUND": str(round_number),
        **topology.variable(list(nodes.values())),
    }
    first = sum(member.ranks for member in members[:position])
    return [
        Placement(place, rank, {
            **of_all, "RANK": str(rank), "ROLE_RANK": str(rank), "LOCAL_RANK": str(first_local_rank + place)
        })
        for place, rank in enumerate(range(first, first + own.ranks))
    ]  # fmt: skip


# -- Files in the attempt's directory `rounds`, in which agents that lost their leader find the newest round's leader
#
# Only one process can create the file of a round, `K.json`, so that of two halves of a partitioned cluster only one
# continues.


@dataclass(frozen=True)
class Round:
    """One round that has started."""

    number: int  # index of the round, from 0. host, port: the address that the leader listens on
    host: str
    port: int
    leader: int  # `Member.index` of the agent that leads the round
    members: tuple[int, ...]  # `Member.index` of each agent that takes part


class Rounds:
    """Reads and writes the attempt's directory `rounds`, for one agent."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def claim(self, number: int, leader: Member, port: int, members: Sequence[Member]) -> bool:
        """Creates the file of a round atomically; False: another leader has. After OSError it may be called again."""
        values = {
            "round": number, "leader": leader.index, "host": leader.host, "port": port,
            "members": [asdict(member) for member in members],
        }  # fmt: skip
        self._folder.mkdir(mode=0o700, exist_ok=True)
        try:
            run_files.create(self._folder / f"{number}.json", json.dumps(values).encode())
        except FileExistsError:
            return self._of_number(number) == Round(
                number, leader.host, port, leader.index, tuple(member.index for member in members)
            )
        return True

    def begun(self, number: int) -> bool:
        """Returns whether round `number` has started. Raises UnavailableError: the directory cannot be read now."""
        return bool(unwrap(exists(self._folder / f"{number}.json", retry_seconds=0)))

    def time_of(self, number: int) -> int:
        """Returns when a round began or its leader last beat (ns of the file server's clock); raises OSError."""
        return (self._folder / f"{number}.json").stat().st_mtime_ns

    def latest(self) -> Round | None:
        """Returns the newest round, or None; ignores files not in this format; OSError: it is unknown."""
        try:
            names = [path.name for path in self._folder.iterdir()]
        except FileNotFoundError:
            return None
        numbers = [int(name.removesuffix(".json")) for name in names if name.removesuffix(".json").isdecimal()]
        found = (self._of_number(number) for number in sorted(numbers, reverse=True))
        return next((each for each in found if each is not None), None)

    def _of_number(self, number: int) -> Round | None:
        try:
            values: dict[str, Any] = json.loads((self._folder / f"{number}.json").read_text())
            members = tuple(int(member["index"]) for member in values["members"])
            return Round(number, str(values["host"]), int(values["port"]), int(values["leader"]), members)
        except (ValueError, KeyError, TypeError):
            return None

    def heartbeat(self, number: int) -> None:
        """Updates the mtime of a round's file, if possible. The leader calls it regularly; agents that wait poll it."""
        with contextlib.suppress(OSError):
            os.utime(self._folder / f"{number}.json")
