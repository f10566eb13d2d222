"""Rendezvous: all agents of an attempt connect to a leader, which verifies them before any rank starts.

The leader is member 0 unless that is lost. It listens on the first free port of a list that every agent derives from
the attempt's secret, so that no address has to pass through a file system with delays. Both ends prove that they know
the secret (see `channel`), so that neither another job nor another user can take part. The leader's port stays open for
the whole attempt. At the timeout every agent names the agents that are missing.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import random
import secrets
import selectors
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from launcher.failures.codes import FaultCode
from launcher.rendezvous.channel import Channel, ChannelError, NotAuthenticated
from launcher.rendezvous.hub import Hub, refused

CANDIDATES = 16  # ports tried on the leader's host
STAGGER = 0.2  # seconds after which the next port is tried while this one says nothing
EXCHANGE = 5.0  # seconds for a whole handshake
LOOPBACK = "127.0.0.1"
NO_ANSWER = (
    "it did not answer in time; it listens on the address that its own host name stands for there "
    "(`getent hosts NAME`); see cluster.interface and cluster.port_range"
)
_ADDRESS_OF_INTERFACE = 0x8915  # man 7 netdevice, SIOCGIFADDR


class LeaderLost(Exception):
    """The leader is gone, or is cut off from this agent."""


class RendezvousError(RuntimeError):
    """The rendezvous failed. The text names the agents that are missing, and why.

    Attributes:
        from_leader: the leader said so, and tells the user as well.
        final: it is of no use to try again: the leader has decided. Otherwise it may only be the leader that is gone.
        code: what happened.
        accused: indices of the members whose fault it seems.
    """

    def __init__(
        self, text: str, *, from_leader: bool = False, final: bool = False,
        code: FaultCode = FaultCode.RENDEZVOUS_TIMEOUT, accused: Sequence[int] = (),
    ) -> None:  # fmt: skip
        super().__init__(text)
        self.code, self.accused = code, tuple(accused)
        self.from_leader = from_leader
        self.final = final or from_leader


@dataclass(frozen=True)
class Member:
    """One agent: one per node, or with launch=tasks one per rank.

    Attributes:
        index: the member's number in the job as the scheduler started it.
        node_rank: its node in that job.
        host: its host's name.
        ranks: ranks that it will start.
        first_local_rank: local rank of the first of them.
        local_address: its own address on the way to the leader.
        master_address: the leader's address as it was reached.
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
        """The inverse of `row`."""
        return cls(*row)

    def row(self) -> list[Any]:
        """Its values in order: a list of a thousand members is sent to each of them."""
        return list(asdict(self).values())


@dataclass(frozen=True)
class Meeting:
    """Who takes part in a round, in order, and where their ranks find a store.

    Attributes:
        host, port: of the store: the address at which this member reached the leader.
        members: the leader first.
        interface: this agent's network interface to the others, if it is known.
        listener: on the leader, the listening socket of the store that is to be made.
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
        """The place of a member in this round; None: it does not take part."""
        return next((place for place, member in enumerate(self.members) if member.index == index), None)

    def first_rank(self, place: int) -> int:
        """The first rank of the member at a place."""
        return sum(member.ranks for member in self.members[:place])


def secret_of(shared: bytes, key: str) -> bytes:
    """The secret of one attempt, from that of its run. Pure."""
    return hashlib.sha256(b"launcher attempt\0" + shared + b"\0" + key.encode()).digest()


def candidate_ports(secret: bytes, port_range: tuple[int, int]) -> list[int]:
    """The ports that a leader may listen on, in the order of preference; only who knows the secret foresees them.
    Pure."""
    low, high = port_range
    seed = hashlib.sha256(b"launcher ports\0" + secret).digest()
    return random.Random(seed).sample(range(low, high + 1), min(CANDIDATES, high - low + 1))  # noqa: S311


def free_ports(port_range: tuple[int, int]) -> list[int]:
    """Ports to try for a service whose port is told to those who are to know it."""
    return candidate_ports(secrets.token_bytes(16), port_range)


def listen(ports: Sequence[int], address: str = "") -> socket.socket:
    """A listening socket on the first free port.

    Args:
        ports: in the order of preference.
        address: of the interface; empty: all interfaces, IPv6 and IPv4 where the host has both.

    Raises:
        RendezvousError: none is free.
    """
    both = not address and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both or ":" in address else socket.AF_INET
    for port in ports:
        try:
            return socket.create_server((address, port), family=family, dualstack_ipv6=both, backlog=4096)
        except OSError:
            continue
    raise RendezvousError(
        f"none of {len(ports)} ports is free on {socket.gethostname()} (tried {', '.join(map(str, ports))}): "
        "set cluster.port_range to a range that is",
        code=FaultCode.REFUSED,
    )


@dataclass
class Gathering:
    """Who has come to a round that is about to begin.

    Attributes:
        names: what to call each member in an error (`node3`).
        leader: index of the leader.
        least: members that will do when the others do not come in time.
        wanted: indices of the members that are waited for; others take part if they come before these.
        deadline: when it is decided, by the monotonic clock.
        arrived: who has come, by index.
    """

    names: Sequence[str]
    leader: int
    least: int
    wanted: set[int]
    deadline: float
    arrived: dict[int, Member] = field(default_factory=dict)

    def members(self) -> tuple[Member, ...]:
        """Who takes part: the leader first, whose host has rank 0 and the store of the ranks."""
        return tuple(sorted(self.arrived.values(), key=lambda member: (member.index != self.leader, member.index)))

    def decided(self, now: float) -> bool:
        """Whether all that are waited for have come, or time is up. Pure."""
        return self.wanted <= self.arrived.keys() or now >= self.deadline

    @property
    def missing(self) -> list[int]:
        """Indices of the members that have not arrived. Pure."""
        return [index for index in sorted(self.wanted) if index not in self.arrived]

    def problem(self) -> str | None:
        """Why the round cannot begin with those that have come; None: it can. Pure."""
        if len(self.arrived) >= self.least:
            return None
        if missing := [self.names[index] for index in self.missing]:
            came = f"{len(self.arrived)} of {len(self.wanted)} arrived"
            return f"{some_of(missing)} did not reach {self.names[self.leader]} in time: {came}"
        present = [self.names[index] for index in sorted(self.arrived)]
        return f"only {some_of(present)} are left, and {self.least} are needed"


def some_of(names: Sequence[str]) -> str:
    """At most ten of the names, and how many more there are. Pure."""
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")


def find_leader(
    host: str, ports: Sequence[int], secret: bytes, deadline: float, *, wake: int | None = None
) -> Channel | str:
    """A connection to this attempt's leader, or why it was not found this time; empty: time was up before one knows.

    Ports are tried one after the other, without waiting long for one that says nothing: whatever listens there may be
    somebody else's.

    Args:
        host: of the leader, with the suffix of its fabric.
        ports: that it may listen on.
        secret: of the attempt.
        deadline: when to give up, by the monotonic clock.
        wake: a file descriptor (of signals) that ends the wait when it can be read.
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        return f"its name cannot be resolved ({error.strerror or error}); see cluster.host_suffix"
    addresses = list(dict.fromkeys((int(family), str(address[0])) for family, _, _, _, address in found))
    ways = [(family, (address, port)) for port in ports for family, address in addresses]
    search = _Search(secret, wake)
    try:
        return search.run(ways, deadline)
    finally:
        search.close()


class _Search:
    """Connections that are tried at once, each a little later than the one before."""

    def __init__(self, secret: bytes, wake: int | None) -> None:
        self._secret, self._wake = secret, wake
        self._selector = selectors.DefaultSelector()
        self._connecting: dict[socket.socket, tuple[int, float]] = {}  # port, when it is given up
        self._talking: dict[Channel, tuple[int, float]] = {}
        self._problems: dict[str, str] = {}
        if wake is not None:
            self._selector.register(wake, selectors.EVENT_READ)

    def run(self, ways: list[tuple[int, tuple[str, int]]], deadline: float) -> Channel | str:
        ways, next_start = ways[::-1], 0.0
        while ways or self._connecting or self._talking:
            now = time.monotonic()
            if now >= deadline:
                break
            if ways and (now >= next_start or not (self._connecting or self._talking)):
                self._start(*ways.pop())
                next_start = now + STAGGER
            waits = max(0.0, min(deadline, next_start if ways else deadline, self._first_given_up()) - now)
            for key, _ in self._selector.select(waits):
                if isinstance(key.fileobj, int):  # a signal
                    return "it was interrupted"
                if isinstance(key.fileobj, Channel):
                    if self._talk(key.fileobj):
                        return key.fileobj
                elif isinstance(key.fileobj, socket.socket):
                    self._connected(key.fileobj)
            self._give_up(time.monotonic())
        for kind in ("taken", "error", "refused"):
            if kind in self._problems:
                return self._problems[kind]
        return ""

    def close(self) -> None:
        for connection in self._connecting:
            connection.close()
        for channel in self._talking:
            channel.close()
        self._selector.close()

    def _first_given_up(self) -> float:
        return min((when for _, when in (*self._connecting.values(), *self._talking.values())), default=float("inf"))

    def _start(self, family: int, address: tuple[str, int]) -> None:
        try:
            connection = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            self._failed(error)
            return
        connection.setblocking(False)
        problem = connection.connect_ex(address)
        if problem not in (0, errno.EINPROGRESS):
            connection.close()
            self._failed(OSError(problem, os.strerror(problem)))
            return
        self._connecting[connection] = address[1], time.monotonic() + EXCHANGE
        self._selector.register(connection, selectors.EVENT_WRITE)

    def _connected(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        port, _ = self._connecting.pop(connection)
        if problem := connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            connection.close()
            self._failed(OSError(problem, os.strerror(problem)))
            return
        try:
            channel = Channel(connection, self._secret, server=False)
        except OSError as error:
            connection.close()
            self._failed(error)
            return
        self._talking[channel] = port, time.monotonic() + EXCHANGE
        self._selector.register(channel, selectors.EVENT_READ)

    def _talk(self, channel: Channel) -> bool:
        """Whether the other end is our leader."""
        try:
            channel.receive()  # the leader speaks after `hello` only
        except ChannelError as error:
            self._forget(channel)
            if isinstance(error, NotAuthenticated):
                return False
            self._failed(error)
            return False
        if channel.open:
            self._selector.unregister(channel)
            del self._talking[channel]
        return channel.open

    def _forget(self, channel: Channel) -> None:
        self._selector.unregister(channel)
        port, _ = self._talking.pop(channel)
        self._problems["taken"] = f"port {port} belongs to something else"
        channel.close()

    def _give_up(self, now: float) -> None:
        for channel in [each for each, (_, when) in self._talking.items() if now > when]:
            self._forget(channel)
        for connection in [each for each, (_, when) in self._connecting.items() if now > when]:
            self._selector.unregister(connection)
            del self._connecting[connection]
            connection.close()
            self._failed(TimeoutError(errno.ETIMEDOUT, "timed out"))

    def _failed(self, error: OSError) -> None:
        if isinstance(error, ConnectionRefusedError) or error.errno == errno.ECONNREFUSED:
            self._problems["refused"] = "nothing of this attempt listens there: its agent has not started, or has ended"
        else:
            text = f"{type(error).__name__}: {error}"
            self._problems["error"] = f"{text}; see cluster.interface and cluster.port_range"


class ConnectBackoff:
    """Backoff between an agent's attempts to connect to its leader."""

    def __init__(self, members: int) -> None:
        self._pause, self._members, self._soon = 0.01, members, time.monotonic() + 3.0

    def pause(self) -> float:
        """Seconds until the next try. In a new round the leader is there in no time; many agents try less often."""
        longest = min(1.0, max(0.03, 0.001 * self._members)) if time.monotonic() < self._soon else 1.0
        pause, self._pause = min(self._pause, longest), min(2 * self._pause, longest)
        return pause


def meet(
    me: Member, *, names: Sequence[str], master: str, secret: bytes, ports: Sequence[int], timeout: float
) -> Meeting:
    """Processes without an agent meet once, member 0 leads, and the connections are closed again.

    Args:
        me: this process; as many take part as there are names.
        names: what to call each member in an error.
        master: host name of member 0.
        secret: that all of them know.
        ports: that member 0 may listen on.
        timeout: seconds until all must have come.

    Raises:
        RendezvousError: the leader was not reached, or too few came.
    """
    deadline = time.monotonic() + timeout
    if me.index != 0:
        return _visit(me, names, master, secret, ports, deadline - min(3.0, timeout / 5), timeout)
    gathering = Gathering(names, 0, len(names), set(range(len(names))), deadline, {0: me})
    hub = Hub(listen(ports), secret, members=range(1, len(names)))
    listener = None
    try:
        while not gathering.decided(time.monotonic()):
            for index, message in hub.poll(max(0.0, gathering.deadline - time.monotonic())):
                if message is None:
                    gathering.arrived.pop(index, None)  # it may come again
                elif message.get("type") == "hello":
                    gathering.arrived[index] = Member.of(message["member"])
        problem, members = gathering.problem(), gathering.members()
        others = [member.index for member in members if member.index != 0]
        answer = refused(problem or "")
        if problem is None:
            listener = listen(ports, where_reached(members))
            port = listener.getsockname()[1]
            answer = {"type": "begin", "port": port, "members": [member.row() for member in members]}
        hub.broadcast(others, answer)
        hub.drain(others, EXCHANGE)
    finally:
        hub.close()
    if listener is None:
        raise RendezvousError(problem or "", final=True)
    return meeting_of_leader(port, members, listener)


def _visit(
    me: Member, names: Sequence[str], master: str, secret: bytes, ports: Sequence[int], deadline: float, timeout: float
) -> Meeting:
    backoff, problem = ConnectBackoff(len(names)), NO_ANSWER
    while isinstance(found := find_leader(master, ports, secret, deadline), str):
        problem = found or problem
        if time.monotonic() >= deadline:
            raise RendezvousError(
                f"{names[me.index]} could not reach {master} (rank 0) within {timeout:g} s: {problem}"
            )
        time.sleep(backoff.pause())
    with contextlib.closing(found) as channel, selectors.DefaultSelector() as selector:
        mine = hello(me, channel)
        channel.send(mine)
        selector.register(channel, selectors.EVENT_READ)
        messages: list[dict[str, Any]] = []
        while not messages:
            if not selector.select(max(0.0, deadline + EXCHANGE + 15 - time.monotonic())):
                raise RendezvousError(f"{names[me.index]} waited for {master} (rank 0), which said nothing more")
            try:
                messages = channel.receive()
            except ChannelError as error:
                raise RendezvousError(f"{names[me.index]} lost {master} (rank 0): {error}") from None
        if messages[0]["type"] == "refused":
            raise refusal(messages[0])
        return meeting_of(messages[0], Member.of(mine["member"]))


def refusal(message: Mapping[str, Any], *, from_leader: bool = True) -> RendezvousError:
    """The error that a leader's refusal is for whoever is refused; see `hub.refused`."""
    return RendezvousError(
        message["reason"], from_leader=from_leader, final=True, code=FaultCode(message["code"]),
        accused=message["accused"],
    )  # fmt: skip


def hello(me: Member, channel: Channel) -> dict[str, Any]:
    """The first message of an agent to its leader."""
    mine = Member(**{**asdict(me), "local_address": channel.local[0], "master_address": channel.peer[0]})
    return {"type": "hello", "index": me.index, "member": mine.row()}


def meeting_of(begin: dict[str, Any], me: Member) -> Meeting:
    """Makes the meeting from the leader's `begin` message, on a member other than the leader."""
    members = tuple(map(Member.of, begin["members"]))
    address = LOOPBACK if len({member.host for member in members}) == 1 else me.local_address
    return Meeting(me.master_address, begin["port"], members, interface_with(address))


def meeting_of_leader(port: int, members: Sequence[Member], listener: socket.socket | None = None) -> Meeting:
    """The same meeting as its leader sees it, which is the first of the members."""
    reached = (member.master_address for member in members if member.host != members[0].host)
    interface = interface_with(next(reached, LOOPBACK))
    return Meeting(where_reached(members) or LOOPBACK, port, tuple(members), interface, listener)


def where_reached(members: Sequence[Member]) -> str:
    """The address at which all members have reached their leader, which is the first of them. Pure.

    | members came to | it is |
    |---|---|
    | one address | that |
    | several addresses | empty: all interfaces |
    | nobody came: the leader is alone | the loopback interface |
    """
    addresses = {member.master_address for member in members[1:]} or {LOOPBACK}
    return addresses.pop() if len(addresses) == 1 else ""


def interface_with(address: str) -> str | None:
    """The network interface that has this address (man 7 netdevice, SIOCGIFADDR; /proc/net/if_inet6), or None."""
    address = address.removeprefix("::ffff:").partition("%")[0]
    if address.startswith("127.") or address == "::1":
        return "lo"
    if ":" in address:
        wanted = socket.inet_pton(socket.AF_INET6, address).hex()
        with open("/proc/net/if_inet6") as table:
            rows = [line.split() for line in table]
        return next((row[5] for row in rows if row[0] == wanted), None)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe.fileno(), _ADDRESS_OF_INTERFACE, struct.pack("256s", name.encode()[:15]))
            except OSError:  # an interface without an IPv4 address
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None
