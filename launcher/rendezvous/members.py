"""The agents of a round, the result of their rendezvous, and its errors."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from launcher.failures import text
from launcher.runs.events import Accused, Fault, Place

LOOPBACK = "127.0.0.1"


class LeaderLost(Exception):
    """The leader is gone, or is cut off from this agent."""


class RendezvousError(RuntimeError):
    """The rendezvous failed.

    Attributes:
        fault: why.
        from_leader: whether the leader has decided so, and reports it to the user as well.
        final: whether a retry is useless, because the leader has decided; else only the leader may be gone.
    """

    def __init__(self, fault: Fault, *, from_leader: bool = False, final: bool = False) -> None:
        super().__init__(text.of_fault(fault))
        self.fault, self.from_leader, self.final = fault, from_leader, final or from_leader

    def __reduce__(self) -> Any:
        return type(self)._made, (self.fault, self.from_leader, self.final)

    @classmethod
    def _made(cls, fault: Fault, from_leader: bool, final: bool) -> RendezvousError:
        return cls(fault, from_leader=from_leader, final=final)


def accuse(place: Place) -> Accused:
    """Returns an agent as the probable cause of a fault."""
    return Accused(host=place.host, rank=place.task, node=None if place.task is not None else place.node)


@dataclass(frozen=True)
class Member:
    """One agent: one per node, or with launch=tasks one per rank.

    Attributes:
        index: number of the agent in the job as the scheduler started it.
        node_rank: number of its node in that job.
        host: name of its host.
        ranks: number of ranks that it starts.
        first_local_rank: local rank of the first of them.
        local_address: own address of its connection to the leader.
        master_address: the leader's address of that connection.
    """

    index: int
    node_rank: int
    host: str
    ranks: int
    first_local_rank: int = 0
    local_address: str = ""
    master_address: str = ""

    @classmethod
    def of(cls, row: Sequence[Any]) -> Member:
        """Returns the member of a `row`."""
        return cls(*row)

    def row(self) -> list[Any]:
        """Returns the values in order: shorter than an object where a thousand members are sent to each of them."""
        return list(asdict(self).values())


@dataclass(frozen=True)
class Rendezvous:
    """The result of a rendezvous: who takes part in a round, in order, and where the ranks find their store.

    Attributes:
        host, port: address of the store; the host is the address at which this member reached the leader.
        members: all that take part, the leader first.
        interface: this agent's network interface to the others, if known.
        listener: on the leader, the listening socket of the store.
    """

    host: str
    port: int
    members: tuple[Member, ...]
    interface: str | None
    listener: socket.socket | None = field(default=None, compare=False)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Host of each node, by node rank."""
        return tuple({member.node_rank: member.host for member in self.members}.values())

    @property
    def addresses(self) -> list[str]:
        """Addresses from which members have reached the leader."""
        return [member.local_address for member in self.members if member.local_address]

    @property
    def world_size(self) -> int:
        return sum(member.ranks for member in self.members)

    def place_of(self, index: int) -> int | None:
        """Returns the place of the member with this index in this round; None: it does not take part."""
        return next((place for place, member in enumerate(self.members) if member.index == index), None)

    def first_rank(self, place: int) -> int:
        """Returns the first rank of the member at a place."""
        return sum(member.ranks for member in self.members[:place])


def address_reached(members: Sequence[Member]) -> str:
    """Returns the address at which all members have reached their leader, which is the first of them. Pure.

    | the members have connected to | result |
    |---|---|
    | one address | that one |
    | several addresses | empty: all interfaces |
    | nothing: the leader is alone | the loopback interface |
    """
    addresses = {member.master_address for member in members[1:]} or {LOOPBACK}
    return addresses.pop() if len(addresses) == 1 else ""
