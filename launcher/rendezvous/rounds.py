"""Rounds: who takes part and with which ranks, how agents find the leader, and which rounds have begun.

All agents of an attempt connect to a leader, which verifies them before any rank starts: member 0, unless that is lost.
It listens on the first free port of a list that every agent derives from the attempt's secret, so that no address has
to pass through a file system with delays. At the timeout every agent names the agents that are missing.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import random
import secrets
import selectors
import socket
import struct
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from launcher import io_bounds, processes
from launcher.errors import explain
from launcher.failures import messages
from launcher.failures.codes import FaultCode
from launcher.files import safe_io
from launcher.files.json_types import from_json
from launcher.files.retried_reads import exists, unwrap
from launcher.rendezvous.signed_channel import Channel, ChannelError, Hub, refused, wait_for
from launcher.runs.events import Accused, Fault, Place
from launcher.schedulers import topology

LOOPBACK = "127.0.0.1"


class LeaderLost(Exception):
    """This agent has lost its connection to the leader, which is dead or cut off."""


class RendezvousError(RuntimeError):
    def __init__(self, fault: Fault, *, from_leader: bool = False, final: bool = False) -> None:
        # from_leader: whether the leader refused this agent, and reports the fault to the user itself. final: whether a
        # retry is useless, because the leader has decided
        super().__init__(messages.of_fault(fault))
        self.fault, self.from_leader, self.final = fault, from_leader, final or from_leader

    def __reduce__(self) -> Any:
        return partial(type(self), from_leader=self.from_leader, final=self.final), (self.fault,)


def accuse(place: Place) -> Accused:
    return Accused(host=place.host, rank=place.task, node=None if place.task is not None else place.node)


@dataclass(frozen=True)
class Member:
    """An agent that takes part in a round. There is one agent per node, or with launch=tasks one per rank."""

    index: int  # index of the agent among all that the scheduler started for the job, from 0; the same in all rounds
    node_rank: int  # index of the agent's node in the job, from 0
    host: str
    ranks: int  # number of ranks that the agent starts
    first_local_rank: int = 0  # local rank of the first of these ranks
    local_address: str = ""  # IP address of the agent's end of its connection to the leader
    master_address: str = ""  # of the leader's end


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
        return [member.local_address for member in self.members if member.local_address]

    @property
    def world_size(self) -> int:
        return self.first_rank(len(self.members))

    def place_of(self, index: int) -> int | None:
        """Returns the position in `members` of the member with this index; None: it does not take part."""
        return next((place for place, member in enumerate(self.members) if member.index == index), None)

    def first_rank(self, place: int) -> int:
        return sum(member.ranks for member in self.members[:place])


def address_reached(members: Sequence[Member]) -> str:
    """Returns the address at which the others have reached the leader, the first member; empty: several addresses."""
    addresses = {member.master_address for member in members[1:]} or {LOOPBACK}
    return addresses.pop() if len(addresses) == 1 else ""


@dataclass(frozen=True)
class Placement:
    place: int  # index of the rank among the ranks of its agent, from 0
    rank: int  # global rank
    environment: Mapping[str, str]  # variables that are added to the agent's environment
    cpus: tuple[int, ...] = ()  # ids of the CPUs that the rank may run on; empty: all CPUs of its agent


def placements(
    members: Sequence[Member], position: int, *,
    master: tuple[str, int], run_id: str, interface: str | None = None, round_number: int, max_restarts: int = 0,
    environ: Mapping[str, str],
) -> list[Placement]:  # fmt: skip
    """Returns the ranks of the agent `members[position]`, each with variables as from torchrun and two of ours.

    interface: `Rendezvous.interface`, which gloo uses in this round unless `environ` names another one.
    """
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
    if interface:
        of_all["GLOO_SOCKET_IFNAME"] = environ.get("GLOO_SOCKET_IFNAME", interface)
    first = sum(member.ranks for member in members[:position])
    return [
        Placement(place, first + place, {
            **of_all, "RANK": str(first + place), "ROLE_RANK": str(first + place),
            "LOCAL_RANK": str(first_local_rank + place),
        })
        for place in range(own.ranks)
    ]  # fmt: skip


# -- Joining a round


@dataclass
class Arrivals:
    """The leader's list of agents that have arrived for a round that is about to start."""

    places: Sequence[Place]  # host and node of each agent of the job, by member index
    leader: int  # member index of the leader
    least: int  # minimum number of members of the round
    wanted: set[int]  # member indices of the agents to wait for. Others take part if they arrive before these
    deadline: float  # monotonic time at which to stop waiting
    arrived: dict[int, Member] = field(default_factory=dict)  # the members that have arrived, by index
    most: int | None = None  # maximum number of members of the round; None: all
    before: Sequence[int] = ()  # member indices in the round before, in rank order

    def members(self) -> tuple[Member, ...]:
        """Returns the members of the round, in rank order: the leader first, since it hosts the ranks' store."""
        if self.most is None:
            return tuple(sorted(self.arrived.values(), key=lambda member: (member.index != self.leader, member.index)))
        return tuple(self.arrived[index] for index in seats(self.before, self.arrived, self.leader, self.most))

    def decided(self, now: float) -> bool:
        """Returns whether all wanted members have arrived, or the deadline has passed. now: monotonic seconds."""
        return self.wanted <= self.arrived.keys() or now >= self.deadline

    def problem(self) -> Fault | None:
        """Returns why the round cannot start with the members that have arrived; None: it can."""
        if len(self.arrived) >= self.least:
            return None
        leader = self.places[self.leader]
        missing = tuple(accuse(self.places[index]) for index in sorted(self.wanted) if index not in self.arrived)
        arrived, there = len(self.arrived), messages.node_of(leader.host, leader.node)
        message = f"{messages.agents(missing)} did not reach {there} in time: {arrived} of {len(self.wanted)} arrived"
        return Fault(
            code=FaultCode.RENDEZVOUS_TIMEOUT if missing else FaultCode.TOO_FEW,
            host=leader.host, node=leader.node, accused=missing[: io_bounds.ACCUSED],
            message=message if missing else messages.too_few(arrived, self.least),
        )  # fmt: skip


def seats(before: Sequence[int], there: Collection[int], leader: int, most: int) -> list[int]:
    """Returns the member indices of a round in rank order: those of the round before keep their ranks where they can.

    A new agent gets the ranks of one that is gone. The leader changes places with the first agent.
    """
    new = sorted(set(there) - set(before))
    chosen = [index if index in there else new.pop(0) if new else None for index in before]
    found = [index for index in [*chosen, *new] if index is not None]
    first = found.index(leader)
    found[0], found[first] = found[first], found[0]
    return found[:most]


def join_rendezvous(
    own: Member, *, places: Sequence[Place], master: str, secret: bytes, ports: Sequence[int], timeout: float
) -> Rendezvous:
    """Joins a rendezvous of processes that have no agent. Member 0 (`master`) leads. Raises RendezvousError.

    places: by member index; ports: candidates of member 0; timeout: seconds.
    """
    deadline = time.monotonic() + timeout
    if own.index != 0:
        return _join_leader(own, places, master, secret, ports, timeout)
    arrivals = Arrivals(places, 0, len(places), set(range(len(places))), deadline, {0: own})
    hub = Hub(listen(ports), secret, members=range(1, len(places)))
    listener = None
    try:
        while not arrivals.decided(time.monotonic()):
            for index, message in hub.poll(max(0.0, arrivals.deadline - time.monotonic())):
                if message is None:
                    arrivals.arrived.pop(index, None)  # it may reconnect
                elif message.get("type") == "hello":
                    arrivals.arrived[index] = Member(*message["member"])
        problem, members = arrivals.problem(), arrivals.members()
        others = [member.index for member in members[1:]]
        if problem is None:
            listener = listen(ports, address_reached(members))
            port = listener.getsockname()[1]
            answer = {"type": "begin", "port": port, "members": [astuple(member) for member in members], "spares": []}
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
    own: Member, places: Sequence[Place], master: str, secret: bytes, ports: Sequence[int], timeout: float
) -> Rendezvous:
    give_up = time.monotonic() + timeout + EXCHANGE + 15
    channel, mine = connect(own, places[0], master, ports, secret, timeout, len(places))
    messages: list[dict[str, Any]] = []
    with contextlib.closing(channel):
        while not messages:
            if not wait_for(max(0.0, give_up - time.monotonic()), channel.fileno()):
                raise leader_lost(own, places[0], "no message in time")
            try:
                messages = channel.receive()
            except ChannelError as error:
                raise leader_lost(own, places[0], str(error)) from None
    if messages[0]["type"] == "refused":
        raise refusal(messages[0])
    return rendezvous_of(messages[0], mine)


def connect(
    own: Member, leader: Place, address: str, ports: Sequence[int], secret: bytes, timeout: float, agents: int, *,
    wake: int | None = None, failed: Callable[[str], None] = lambda problem: None,
) -> tuple[Channel, Member]:  # fmt: skip
    """Connects to the leader, and says `hello`; returns the connection, and `own` with its addresses; RendezvousError.

    agents: number of agents of the job. wake: a descriptor that ends a wait when it becomes readable (on signals).
    failed: called after each try that has failed, with the problem of those before, or NO_ANSWER.
    """
    # Give up before the leader does: this agent can tell why it did not reach the leader, and the leader cannot.
    deadline = time.monotonic() + timeout - min(3.0, timeout / 5)
    pauses, problem = _pauses(agents), NO_ANSWER
    while isinstance(found := find_leader(address, ports, secret, deadline, wake=wake), str):
        failed(problem)
        problem = found or problem
        if time.monotonic() >= deadline:
            raise RendezvousError(Fault(
                code=FaultCode.NOT_REACHED, host=own.host, node=own.node_rank, accused=(accuse(leader),),
                seconds=float(timeout), error=f"{address}: {problem}",
            ))  # fmt: skip
        wait_for(next(pauses), *([] if wake is None else [wake]))
    mine = replace(own, local_address=found.local[0], master_address=found.peer[0])
    try:
        found.send({"type": "hello", "index": own.index, "member": astuple(mine)})
    except ChannelError as error:
        found.close()
        raise leader_lost(own, leader, str(error)) from None
    return found, mine


def _pauses(agents: int) -> Iterator[float]:
    # Seconds between two tries to connect: for the first 3 s at most 0.03, or 0.001 for each agent if that is more,
    # since the leader of a new round appears soon
    pause, soon = 0.01, time.monotonic() + 3.0
    while True:
        longest = min(1.0, max(0.03, 0.001 * agents)) if time.monotonic() < soon else 1.0
        yield min(pause, longest)
        pause = min(2 * pause, longest)


def leader_lost(own: Member, leader: Place, problem: str) -> RendezvousError:
    return RendezvousError(Fault(code=FaultCode.LEADER_LOST, host=own.host, accused=(accuse(leader),), error=problem))


def refusal(message: Mapping[str, Any], *, from_leader: bool = True) -> RendezvousError:
    return RendezvousError(from_json(message["fault"], Fault), from_leader=from_leader, final=True)


def rendezvous_of(begin: dict[str, Any], own: Member) -> Rendezvous:
    """Returns the rendezvous of a round from its leader's `begin`, on a member with these addresses."""
    members = tuple(Member(*row) for row in begin["members"])
    address = LOOPBACK if len({member.host for member in members}) == 1 else own.local_address
    return Rendezvous(
        own.master_address, begin["port"], members, interface_with(address), spares=tuple(begin["spares"])
    )


def leaders_rendezvous(
    port: int, members: Sequence[Member], listener: socket.socket | None = None, spares: Sequence[int] = ()
) -> Rendezvous:
    """Returns the rendezvous of a round, on its leader, which is the first of the members."""
    reached = (member.master_address for member in members if member.host != members[0].host)
    interface = interface_with(next(reached, LOOPBACK))
    return Rendezvous(address_reached(members) or LOOPBACK, port, tuple(members), interface, listener, tuple(spares))


CANDIDATES = 16  # ports tried on the leader's host


def secret_of(shared: bytes, key: str) -> bytes:
    """Returns a secret for `key` (the id of an attempt, the index of a round) made from a longer-lived one."""
    return hashlib.sha256(b"launcher attempt\0" + shared + b"\0" + key.encode()).digest()


def candidate_ports(secret: bytes, port_range: tuple[int, int]) -> list[int]:
    """Returns the ports that a leader tries, in order; without the secret they cannot be predicted."""
    low, high = port_range
    seed = hashlib.sha256(b"launcher ports\0" + secret).digest()
    return random.Random(seed).sample(range(low, high + 1), min(CANDIDATES, high - low + 1))  # noqa: S311


def free_ports(port_range: tuple[int, int]) -> list[int]:
    """Returns random ports of the range (lowest, highest) to try, for a service that announces its port itself."""
    return candidate_ports(secrets.token_bytes(16), port_range)


def listen(ports: Sequence[int], address: str = "") -> socket.socket:
    """Returns a listening socket on the first free port of this address (empty: of all); raises RendezvousError."""
    both = not address and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both or ":" in address else socket.AF_INET
    problem = f"no port is free (tried {', '.join(map(str, ports))}): set cluster.port_range"
    for port in ports:
        try:
            return processes.waited_out(partial(
                socket.create_server, (address, port), family=family, dualstack_ipv6=both, backlog=4096
            ))  # fmt: skip
        except OSError as error:
            if error.errno in processes.NOT_NOW:
                problem = f"no port can be opened: {explain(error) or error}"
                break
    raise RendezvousError(Fault(code=FaultCode.REFUSED, host=socket.gethostname(), error=problem))


# -- The addresses of this machine's network interfaces, and listening on one of them


IPV6_TABLE = Path("/proc/net/if_inet6")
_SIOCGIFADDR = 0x8915  # man 7 netdevice
_LINK = 0x20  # the scope of link-local addresses


def addresses(interface: str) -> list[str]:
    """Returns an interface's addresses: IPv4, IPv6, then link-local IPv6 (`fe80::1%eth0`, named alike on all nodes)."""
    return [*_ipv4(interface), *_ipv6(interface)]


def interface_with(address: str) -> str | None:
    """Returns the name of the interface with this address (IPv4, IPv6, IPv4-mapped IPv6); None: there is none."""
    address = address.removeprefix("::ffff:").partition("%")[0]
    if address.startswith("127.") or address == "::1":
        return "lo"
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in names if address in (each.partition("%")[0] for each in addresses(name))), None)


def listen_on(interface: str | None, backlog: int = 128) -> tuple[socket.socket, tuple[str, int]]:
    """Returns a listening socket on a free port of the (first) interface, or as gloo does, and its (address, port)."""
    name = interface.split(",")[0] if interface else None
    problem = OSError(errno.EADDRNOTAVAIL, f"{name or socket.gethostname()} has no address")
    for address in addresses(name) if name else _of_this_host():
        try:
            family, _, _, _, place = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
            server = socket.create_server(place, family=family, backlog=backlog)
            return server, (address, server.getsockname()[1])
        except OSError as error:  # an IPv6 address that is still tentative, for instance
            problem = error
    raise problem


def address_of(name: str) -> str:
    """Returns this machine's one address of a host name; empty: several, another's, or Debian's 127.0.1.1."""
    try:
        found = {str(each[4][0]) for each in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)}
    except OSError:
        return ""
    usable = [each for each in found if not each.startswith("127.") and each != "::1" and _is_mine(each)]
    return usable[0] if len(found) == len(usable) == 1 else ""


def _is_mine(address: str) -> bool:
    with contextlib.suppress(OSError):
        socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET).close()
        return True
    return False


def _of_this_host() -> list[str]:
    found = dict.fromkeys(str(each[4][0]) for each in socket.getaddrinfo(socket.gethostname(), None))
    return sorted(found, key=lambda address: address.startswith("127.") or address == "::1")


def _ipv4(interface: str) -> list[str]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        except OSError:  # no such interface, or none with an IPv4 address
            return []
    return [socket.inet_ntoa(answer[20:24])]


def _ipv6(interface: str) -> list[str]:
    # The columns of /proc/net/if_inet6 are address, interface number, prefix length, scope, flags and name
    try:
        rows = [line.split() for line in IPV6_TABLE.read_text().splitlines()]
    except OSError:  # a kernel without IPv6
        return []
    mine = [(int(row[3], 16) == _LINK, row[0]) for row in rows if row[5] == interface]
    found = []
    for of_link, digits in sorted(mine):
        address = socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))
        found.append(f"{address}%{interface}" if of_link else address)
    return found


# -- Finds the leader of an attempt among whatever listens on its candidate ports


STAGGER = 0.2  # seconds between two connection attempts while no answer has come
EXCHANGE = 5.0  # seconds to connect, and then for the handshake
NO_ANSWER = (
    "it did not answer in time; it listens on the address that its own host name stands for there "
    "(`getent hosts NAME`); see cluster.interface and cluster.port_range"
)


def find_leader(
    host: str, ports: Sequence[int], secret: bytes, deadline: float, *, wake: int | None = None
) -> Channel | str:
    """Returns an authenticated connection to the attempt's leader, or why it was not found; empty: no port answered.

    The ports are tried STAGGER seconds apart, since another service may listen on one of them and send nothing.
    deadline: monotonic time; wake: a descriptor that ends the search when it becomes readable (on signals).
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
    # Each try is started STAGGER seconds after the one before

    def __init__(self, secret: bytes, wake: int | None) -> None:
        self._secret = secret
        self._selector = selectors.DefaultSelector()
        # Sockets that connect, and channels in their handshake, with the port and when to give it up
        self._tries: dict[socket.socket | Channel, tuple[int, float]] = {}
        self._problems: dict[str, str] = {}
        if wake is not None:
            self._selector.register(wake, selectors.EVENT_READ)

    def run(self, ways: list[tuple[int, tuple[str, int]]], deadline: float) -> Channel | str:
        ways, next_start = ways[::-1], 0.0
        while (ways or self._tries) and (now := time.monotonic()) < deadline:
            if ways and (now >= next_start or not self._tries):
                self._start(*ways.pop())
                next_start = now + STAGGER
            first_given_up = min((when for _, when in self._tries.values()), default=deadline)
            until = min(deadline, next_start if ways else deadline, first_given_up)
            for key, _ in self._selector.select(max(0.0, until - now)):
                if isinstance(key.fileobj, int):  # a signal
                    return "it was interrupted"
                assert isinstance(key.fileobj, (socket.socket, Channel))
                if (found := self._advance(key.fileobj)) is not None:
                    return found
            now = time.monotonic()
            for each in [each for each, (_, when) in self._tries.items() if now > when]:
                self._fail(each, TimeoutError(errno.ETIMEDOUT, "timed out"))
        for kind in ("taken", "error", "refused"):
            if kind in self._problems:
                return self._problems[kind]
        return ""

    def close(self) -> None:
        for each in self._tries:
            each.close()
        self._selector.close()

    def _start(self, family: int, address: tuple[str, int]) -> None:
        try:
            connection = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            self._note(error)
            return
        connection.setblocking(False)
        self._add(connection, selectors.EVENT_WRITE, address[1])
        problem = connection.connect_ex(address)
        if problem not in (0, errno.EINPROGRESS):
            self._fail(connection, OSError(problem, os.strerror(problem)))

    def _add(self, each: socket.socket | Channel, event: int, port: int) -> None:
        self._tries[each] = port, time.monotonic() + EXCHANGE
        self._selector.register(each, event)

    def _remove(self, each: socket.socket | Channel) -> int:
        self._selector.unregister(each)
        return self._tries.pop(each)[0]

    def _advance(self, each: socket.socket | Channel) -> Channel | None:
        try:
            if isinstance(each, Channel):
                each.receive()  # the leader sends no messages before `hello`
                if not each.open:
                    return None
                self._remove(each)
                return each
            if problem := each.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise OSError(problem, os.strerror(problem))
            channel = Channel(each, self._secret, server=False)
            self._add(channel, selectors.EVENT_READ, self._remove(each))
        except OSError as error:
            self._fail(each, error)
        return None

    def _fail(self, each: socket.socket | Channel, error: OSError) -> None:
        port = self._remove(each)
        each.close()
        if isinstance(each, Channel):
            self._problems["taken"] = f"port {port} belongs to something else"
        else:
            self._note(error)

    def _note(self, error: OSError) -> None:
        if isinstance(error, ConnectionRefusedError) or error.errno == errno.ECONNREFUSED:
            self._problems["refused"] = "nothing of this attempt listens there: its agent has not started, or has ended"
        else:
            text = f"{type(error).__name__}: {error}"
            self._problems["error"] = f"{text}; see cluster.interface and cluster.port_range"


# -- Files in the attempt's directory `rounds`, in which agents that lost their leader find the newest round's leader
#
# Only one process can create the file of a round, `K.json`, so that of two halves of a partitioned cluster only one
# continues.


@dataclass(frozen=True)
class Round:
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
            safe_io.create(self._folder / f"{number}.json", json.dumps(values).encode())
        except FileExistsError:
            return self.of_number(number) == Round(
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
        """Returns the newest round; None: there is none; ignores other files. Raises OSError: they cannot be read."""
        try:
            names = [path.name for path in self._folder.iterdir()]
        except FileNotFoundError:
            return None
        numbers = [int(name.removesuffix(".json")) for name in names if name.removesuffix(".json").isdecimal()]
        found = (self.of_number(number) for number in sorted(numbers, reverse=True))
        return next((each for each in found if each is not None), None)

    def of_number(self, number: int) -> Round | None:
        """Returns round `number`; None: its file is no record of a round. Raises OSError: it cannot be read."""
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
