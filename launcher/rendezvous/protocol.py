"""Rendezvous: all agents of an attempt connect to a leader, which verifies them before any rank starts.

The leader is member 0 unless that is lost. It listens on the first free port of a list that every agent derives from
the attempt's secret, so that no address has to pass through a file system with delays. Both ends prove that they know
the secret (see `channel`), so that neither another job nor another user can take part. The leader's port stays open for
the whole attempt. At the timeout every agent names the agents that are missing.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from launcher.failures.codes import FaultCode
from launcher.rendezvous.channel import Channel, ChannelError, Hub, refused
from launcher.rendezvous.discovery import EXCHANGE, NO_ANSWER, ConnectBackoff, find_leader, interface_with, listen
from launcher.rendezvous.rounds import LOOPBACK, Member, Rendezvous, RendezvousError, accuse, address_reached
from launcher.runs import events
from launcher.runs.events import AgentCount, Fault, Place


@dataclass
class Arrivals:
    """The leader's list of agents that have arrived for a round that is about to start."""

    places: Sequence[Place]  # host and node of each agent of the job, by member index
    leader: int  # member index of the leader
    least: int  # minimum number of members of the round
    wanted: set[int]  # member indices of the agents to wait for. Others take part if they arrive before these
    deadline: float  # monotonic time at which to stop waiting
    arrived: dict[int, Member] = field(default_factory=dict)  # the members that have arrived, by index

    def members(self) -> tuple[Member, ...]:
        """Returns the members that have arrived, in rank order: the leader first, since it hosts the ranks' store."""
        return tuple(sorted(self.arrived.values(), key=lambda member: (member.index != self.leader, member.index)))

    def decided(self, now: float) -> bool:
        """Returns whether all wanted members have arrived, or the deadline has passed. now: monotonic seconds."""
        return self.wanted <= self.arrived.keys() or now >= self.deadline

    def problem(self) -> Fault | None:
        """Returns why the round cannot start with the members that have arrived; None: it can."""
        if len(self.arrived) >= self.least:
            return None
        leader = self.places[self.leader]
        missing = [self.places[index] for index in sorted(self.wanted) if index not in self.arrived]
        return Fault(
            code=FaultCode.RENDEZVOUS_TIMEOUT if missing else FaultCode.TOO_FEW, host=leader.host, node=leader.node,
            accused=tuple(map(accuse, missing)),
            agents=AgentCount(arrived=len(self.arrived), expected=len(self.wanted) if missing else self.least),
        )  # fmt: skip


def join_rendezvous(
    own: Member, *, places: Sequence[Place], master: str, secret: bytes, ports: Sequence[int], timeout: float
) -> Rendezvous:
    """Joins a rendezvous of processes that have no agent, and returns its result. Member 0 (`master`) leads.

    All connections are closed at the end. places: by member index; ports: candidates of member 0; timeout: seconds.
    Raises RendezvousError: the leader was not reached, or a process did not arrive in time.
    """
    deadline = time.monotonic() + timeout
    if own.index != 0:
        return _join_leader(own, places, master, secret, ports, deadline - min(3.0, timeout / 5), timeout)
    arrivals = Arrivals(places, 0, len(places), set(range(len(places))), deadline, {0: own})
    hub = Hub(listen(ports), secret, members=range(1, len(places)))
    listener = None
    try:
        while not arrivals.decided(time.monotonic()):
            for index, message in hub.poll(max(0.0, arrivals.deadline - time.monotonic())):
                if message is None:
                    arrivals.arrived.pop(index, None)  # it may reconnect
                elif message.get("type") == "hello":
                    arrivals.arrived[index] = Member.of(message["member"])
        problem, members = arrivals.problem(), arrivals.members()
        others = [member.index for member in members if member.index != 0]
        if problem is None:
            listener = listen(ports, address_reached(members))
            port = listener.getsockname()[1]
            answer = {"type": "begin", "port": port, "members": [member.row() for member in members]}
        else:
            answer = refused(problem)
        hub.broadcast(others, answer)
        hub.drain(others, EXCHANGE)
    finally:
        hub.close()
    if problem is not None:
        raise RendezvousError(problem, final=True)
    return leaders_rendezvous(port, members, listener)


def _join_leader(
    own: Member, places: Sequence[Place], master: str, secret: bytes, ports: Sequence[int], deadline: float,
    timeout: float,
) -> Rendezvous:  # fmt: skip
    backoff, problem = ConnectBackoff(len(places)), NO_ANSWER
    while isinstance(found := find_leader(master, ports, secret, deadline), str):
        problem = found or problem
        if time.monotonic() >= deadline:
            raise not_reached(own, places[0], master, timeout, problem)
        time.sleep(backoff.pause())

    def lost(problem: str) -> RendezvousError:
        return RendezvousError(
            Fault(code=FaultCode.LEADER_LOST, host=own.host, accused=(accuse(places[0]),), error=problem)
        )

    with contextlib.closing(found) as channel, selectors.DefaultSelector() as selector:
        mine = hello(own, channel)
        channel.send(mine)
        selector.register(channel, selectors.EVENT_READ)
        messages: list[dict[str, Any]] = []
        while not messages:
            if not selector.select(max(0.0, deadline + EXCHANGE + 15 - time.monotonic())):
                raise lost("no message in time")
            try:
                messages = channel.receive()
            except ChannelError as error:
                raise lost(str(error)) from None
        if messages[0]["type"] == "refused":
            raise refusal(messages[0])
        return rendezvous_of(messages[0], Member.of(mine["member"]))


def not_reached(own: Member, leader: Place, address: str, timeout: float, problem: str) -> RendezvousError:
    """Returns the error of an agent that could not connect to its leader (`problem`: of `find_leader`)."""
    return RendezvousError(
        Fault(
            code=FaultCode.NOT_REACHED, host=own.host, node=own.node_rank, accused=(accuse(leader),),
            seconds=float(timeout), error=f"{address}: {problem}",
        )
    )  # fmt: skip


def refusal(message: Mapping[str, Any], *, from_leader: bool = True) -> RendezvousError:
    """Returns the error of an agent that the leader has refused; from_leader: it reports the fault to the user."""
    return RendezvousError(events.from_values(Fault, message["fault"]), from_leader=from_leader, final=True)


def hello(own: Member, channel: Channel) -> dict[str, Any]:
    """Returns the first message of an agent to its leader: `own`, with the addresses of the connection `channel`."""
    mine = Member(**{**asdict(own), "local_address": channel.local[0], "master_address": channel.peer[0]})
    return {"type": "hello", "index": own.index, "member": mine.row()}


def rendezvous_of(begin: dict[str, Any], own: Member) -> Rendezvous:
    """Returns the rendezvous of a round from its leader's `begin`, on a member with these addresses."""
    members = tuple(map(Member.of, begin["members"]))
    address = LOOPBACK if len({member.host for member in members}) == 1 else own.local_address
    return Rendezvous(own.master_address, begin["port"], members, interface_with(address))


def leaders_rendezvous(port: int, members: Sequence[Member], listener: socket.socket | None = None) -> Rendezvous:
    """Returns the rendezvous of a round, on its leader. members: all members, the leader first."""
    reached = (member.master_address for member in members if member.host != members[0].host)
    interface = interface_with(next(reached, LOOPBACK))
    return Rendezvous(address_reached(members) or LOOPBACK, port, tuple(members), interface, listener)
