"""The agents of a round (Member), the result of their rendezvous (Rendezvous), and its errors."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from launcher.failures import text
from launcher.runs.events import Accused, Fault, Place

LOOPBACK = "127.0.0.1"


class LeaderLost(Exception):
    """This agent has lost its connection to the leader, which is dead or cut off."""


class RendezvousError(RuntimeError):
    """The rendezvous failed.

    fault: why it failed.
    from_leader: whether the leader refused this agent, and reports the fault to the user itself.
    final: whether a retry is useless, because the leader has decided. If False, the leader may only be gone.
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
    """Returns the agent at `place` as the probable cause of a fault."""
    return Accused(host=place.host, rank=place.task, node=None if place.task is not None else place.node)


@dataclass(frozen=True)
class Member:
    """An agent that takes part in a round. There is one agent per node, or with launch=tasks one per rank."""

    index: int  # index of the agent among all that the scheduler started for the job, from 0; the same in all rounds
    node_rank: int  # index of the agent's node in the job, from 0
    host: str  # name of the agent's host
    ranks: int  # number of ranks that the agent starts
    first_local_rank: int = 0  # local rank of the first of these ranks
    local_address: str = ""  # the agent's end of its connection to the leader, as an IP address
    master_address: str = ""  # the leader's end of that connection, as an IP address

    @classmethod
    def of(cls, row: Sequence[Any]) -> Member:
        """Returns the member from its fields in order, as `row` returns them."""
        return cls(*row)

    def row(self) -> list[Any]:
        """Returns the fields in order, for JSON: shorter than an object, since each member gets the list of all."""
        return list(asdict(self).values())


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

    @property
    def hosts(self) -> tuple[str, ...]:
        """Host name of each node that takes part, in the order of its ranks."""
        return tuple({member.node_rank: member.host for member in self.members}.values())

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
    """Returns the address of the leader (the first member) at which the other members have reached it.

    | the members have connected to | result |
    |---|---|
    | one address | that address |
    | several addresses | empty: all interfaces |
    | nothing: the leader is alone | the loopback interface |
    """
    addresses = {member.master_address for member in members[1:]} or {LOOPBACK}
    return addresses.pop() if len(addresses) == 1 else ""
