"""All members of an attempt find each other, verified, before any rank starts.

A member is one agent (one per node), or with launch=tasks one per rank. One of them is the master, member 0 unless that
is lost: it has a door on the first free port of a list that every member derives from the job, so nothing has to
travel over a file system that may lag behind. The door says whose it is and where the store is, so two jobs on one node
never take each other for their own, and no torch client ever talks to a stranger (it would wait for ever on one that
says nothing). Each member tells the master that it reached it, and how; the master then publishes who is in. Whoever
is missing when time is up is named, on every member.

Only next to torch: the store is torch's TCPStore, and the ranks go on using it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta

from torch.distributed import DistNetworkError, DistStoreError, Store, TCPStore

CANDIDATES = 16  # ports tried on the master's host
_POLL = 0.01  # seconds between two looks at the store
_PATIENCE = 2.0  # seconds for whatever listens on a port to say whose it is
_AT_FIRST = 0.2  # the same in the first seconds: a stranger that says nothing must not hold up a restart


class RendezvousError(RuntimeError):
    """Not all members met in time; the text names who, and why.

    Attributes:
        told: the master said so, which tells it to the user as well.
        over: it is of no use to try again: the master has decided. Otherwise it may only be the master that is gone.
    """

    def __init__(self, words: str, *, told: bool = False, over: bool = False) -> None:
        super().__init__(words)
        self.told = told
        self.over = over or told


@dataclass(frozen=True)
class Member:
    """One arrival.

    Attributes:
        index: the member's number in the job as the scheduler started it.
        node_rank: its node in that job.
        host: its host's name.
        ranks: ranks that it will start.
        first_local_rank: local rank of the first of them.
        local_address: its own address on the way to the master.
        master_address: the master's address as it was reached.
    """

    index: int
    node_rank: int
    host: str
    ranks: int
    first_local_rank: int = 0
    local_address: str = ""
    master_address: str = ""


@dataclass(frozen=True)
class Meeting:
    """The result: who is in, in order, and the store they share."""

    store: Store
    host: str
    port: int
    members: tuple[Member, ...]
    interface: str | None  # this member's network interface to the others, if it could be told

    @property
    def hosts(self) -> tuple[str, ...]:
        """Host of each node that is in, by node rank."""
        return tuple({member.node_rank: member.host for member in self.members}.values())


def candidate_ports(key: str, port_range: tuple[int, int]) -> list[int]:
    """The ports that this key's master may listen on, in the order of preference. Pure."""
    low, high = port_range
    seed = hashlib.sha256(key.encode()).digest()
    return random.Random(seed).sample(range(low, high + 1), min(CANDIDATES, high - low + 1))  # noqa: S311


def listen(ports: Sequence[int]) -> socket.socket:
    """A listening socket on the first free port, IPv6 and IPv4 where the host has both.

    Raises:
        RendezvousError: none is free.
    """
    for port in ports:
        try:
            return socket.create_server(
                ("", port),
                family=socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET,
                dualstack_ipv6=socket.has_dualstack_ipv6(),
                backlog=4096,
            )
        except OSError:
            continue
    raise RendezvousError(
        f"none of {len(ports)} ports is free on {socket.gethostname()} (tried {', '.join(map(str, ports))}): "
        "set cluster.port_range to a range that is"
    )


def meet(
    me: Member,
    *,
    size: int,
    least: int,
    expected: Sequence[str],
    master: str,
    key: str,
    port_range: tuple[int, int],
    timeout: float,
    leader: int = 0,
    wanted: Collection[int] | None = None,
    claim: Callable[[Sequence[Member], int], str | None] = lambda members, port: None,
) -> Meeting:
    """Waits until the members have met.

    Args:
        me: this member.
        size: members of the job.
        least: members that will do when the others do not come in time.
        expected: a name for each member, for the errors (`node3`).
        master: host name of the master, with the suffix of its fabric.
        key: tells this attempt from every other.
        port_range: ports that the master may use.
        timeout: seconds until every member must have arrived.
        leader: the master's index.
        wanted: indices of the members that are waited for; others are in if they come before these. None: all.
        claim: what the master asks, with the members and the store's port, before it lets them begin; words against it
            end the meeting.

    Raises:
        RendezvousError: the master was not reached, or too few members came.
    """
    deadline = time.monotonic() + timeout
    ports = candidate_ports(key, port_range)
    if me.index == leader:
        awaited = frozenset(range(size) if wanted is None else wanted) - {leader}
        return _receive(me, size, least, expected, key, ports, deadline, awaited, claim)
    # A little earlier than the master gives up: who could not reach it knows why, and the master does not.
    early = deadline - min(3, timeout / 5)
    called = f"{master} ({f'member {leader}' if leader else 'rank 0'})"
    return _reach(me, expected, called, master, key, ports, early, timeout)


def _receive(
    me: Member, size: int, least: int, expected: Sequence[str], key: str, ports: list[int], deadline: float,
    awaited: frozenset[int], claim: Callable[[Sequence[Member], int], str | None],
) -> Meeting:  # fmt: skip
    """The master's part."""
    door = listen(ports)
    server = listen(ports)
    port = server.getsockname()[1]
    store = TCPStore(
        "localhost", port, is_master=True, wait_for_workers=False, master_listen_fd=server.detach(),
        timeout=timedelta(seconds=60),
    )  # fmt: skip
    with _open(door, f"{_word(key)} {port}\n".encode()):
        arrivals = _arrivals(store, me, size, deadline, awaited)
    members = tuple(arrivals[index] for index in sorted(arrivals))
    if len(arrivals) < least:
        missing = [expected[index] for index in sorted(awaited) if index not in arrivals]
        came = f"{len(arrivals)} of {len(awaited) + 1} arrived"
        problem: str | None = f"{_names(missing)} did not reach {expected[me.index]} in time: {came}"
        if not missing:  # those that were to come are too few
            problem = f"only {_names([expected[index] for index in sorted(arrivals)])} are left, and {least} are needed"
    else:
        problem = claim(members, port)
    if problem is not None:
        store.set("meeting", json.dumps({"problem": problem}))
        _wait_until_read(store, len(arrivals) - 1)
        raise RendezvousError(problem, over=True)
    store.set("meeting", json.dumps({"members": [asdict(member) for member in members]}))
    reached = next((member.master_address for member in members if member.host != me.host), "127.0.0.1")
    if len({member.host for member in members}) == 1:
        reached = "127.0.0.1"
    return Meeting(store, "localhost", port, members, interface_with(reached))


def _arrivals(store: Store, me: Member, size: int, deadline: float, awaited: frozenset[int]) -> dict[int, Member]:
    """Who has come, by index, when all that are awaited have or time is up."""
    arrivals = {me.index: me}
    while not awaited <= arrivals.keys() and time.monotonic() < deadline:
        if store.add("arrivals", 0) >= len(arrivals):
            for index in range(size):
                if index not in arrivals and store.check([f"member/{index}"]):
                    arrivals[index] = Member(**json.loads(store.get(f"member/{index}")))
        else:
            time.sleep(_POLL)
    return arrivals


@contextlib.contextmanager
def _open(door: socket.socket, answer: bytes) -> Iterator[None]:
    """Tells everybody who connects the answer. The thread is gone afterwards: ranks will be forked."""

    def serve() -> None:
        while True:
            try:
                guest, _ = door.accept()
            except OSError:  # shut
                return
            with contextlib.suppress(OSError), guest:
                guest.sendall(answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield
    finally:
        door.shutdown(socket.SHUT_RDWR)  # wakes accept()
        thread.join()
        door.close()


def _reach(
    me: Member, expected: Sequence[str], called: str, master: str, key: str, ports: list[int], deadline: float,
    timeout: float,
) -> Meeting:  # fmt: skip
    """Every other member's part."""
    pause, soon = _POLL, time.monotonic() + 3.0
    while True:
        patience = min(_PATIENCE, _AT_FIRST) if time.monotonic() < soon else _PATIENCE
        found = _find_master(master, key, ports, deadline, patience)
        if not isinstance(found, str):
            store, port, local, remote = found
            break
        if time.monotonic() > deadline:
            raise RendezvousError(f"{me.host} could not reach {called} within {timeout:g} s: {found}")
        time.sleep(pause)
        # In a new round the master is there in no time; many knock less often.
        longest = min(1.0, max(0.03, 0.001 * len(expected))) if time.monotonic() < soon else 1.0
        pause = min(2 * pause, longest)
    store.set_timeout(timedelta(seconds=max(deadline - time.monotonic(), 1) + 15))
    mine = Member(**{**asdict(me), "local_address": local, "master_address": remote})
    store.set(f"member/{me.index}", json.dumps(asdict(mine)))
    store.add("arrivals", 1)
    try:
        outcome = json.loads(store.get("meeting"))
    except (DistStoreError, DistNetworkError) as error:
        raise RendezvousError(f"{me.host} lost {called} while it waited for the others: {error}") from None
    if "problem" in outcome:
        store.add("read", 1)
        raise RendezvousError(outcome["problem"], told=True)
    members = tuple(Member(**values) for values in outcome["members"])
    if me.index not in {member.index for member in members}:
        raise RendezvousError(f"{expected[me.index]} came too late: the others have begun without it", over=True)
    address = "127.0.0.1" if len({member.host for member in members}) == 1 else local
    return Meeting(store, master, port, members, interface_with(address))


def _find_master(
    master: str, key: str, ports: Sequence[int], deadline: float, patience: float
) -> tuple[TCPStore, int, str, str] | str:
    """The store of this attempt's master, its port, and both ends' addresses; or why it was not found this time."""
    problem = "no port was tried"
    for door in ports:
        try:
            answer, local, remote = _ask(master, door, deadline, patience)
            word, _, port = answer.partition(" ")
            if word == _word(key):
                timeout = timedelta(seconds=max(deadline - time.monotonic(), 5))
                store = TCPStore(master, int(port), is_master=False, wait_for_workers=False, timeout=timeout)
                return store, int(port), local, remote
            problem = f"port {door} belongs to something else"
        except socket.gaierror as error:
            return f"its name cannot be resolved ({error.strerror}); see cluster.host_suffix"
        except ConnectionRefusedError:
            problem = "nothing of this attempt listens there: its agent has not started, or has ended"
        except (OSError, DistNetworkError, DistStoreError) as error:
            problem = f"{type(error).__name__}: {error}; see cluster.interface and cluster.port_range"
    return problem


def _ask(host: str, port: int, deadline: float, answers_in: float) -> tuple[str, str, str]:
    """What whoever listens there says of itself, and both ends' addresses."""
    patience = min(max(deadline - time.monotonic(), 0.5), 5)
    with socket.create_connection((host, port), timeout=patience) as connection:
        connection.settimeout(answers_in)
        local, remote, text = connection.getsockname()[0], connection.getpeername()[0], b""
        with contextlib.suppress(TimeoutError):  # a stranger that waits for us to speak first
            while b"\n" not in text and len(text) < 200 and (more := connection.recv(200)):
                text += more
        return text.decode(errors="replace").strip(), local, remote


def _word(key: str) -> str:
    """What this attempt's door says; it does not tell strangers the key."""
    return hashlib.sha256(key.encode()).hexdigest()[:32]


def _names(names: Sequence[str]) -> str:
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")


def _wait_until_read(store: Store, readers: int, patience: float = 5) -> None:
    """The store lives in the master's process: it stays until the others know why it goes."""
    give_up = time.monotonic() + patience
    while store.add("read", 0) < readers and time.monotonic() < give_up:
        time.sleep(_POLL)


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
                answer = fcntl.ioctl(probe.fileno(), 0x8915, struct.pack("256s", name.encode()[:15]))
            except OSError:  # an interface without an IPv4 address
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None
