"""Members find each other, and nobody else, whatever listens on the ports; who is missing is named."""

from __future__ import annotations

import itertools
import json
import random
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import astuple
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import TCPStore

from launcher.failures.codes import FaultCode
from launcher.rendezvous import rounds
from launcher.rendezvous.rounds import (
    CANDIDATES,
    LOOPBACK,
    Arrivals,
    Member,
    Rendezvous,
    RendezvousError,
    address_reached,
    candidate_ports,
    interface_with,
    join_rendezvous,
    listen,
    seats,
    secret_of,
)
from launcher.rendezvous.signed_channel import MAGIC, Channel, Hub
from launcher.runs.events import Accused, Fault, Place

KEYS = (f"test/{number}/{random.randrange(2**60)}" for number in itertools.count())  # another one for every rendezvous
LOW = random.randrange(20000, 28000)  # so that two test runs on one machine rarely meet on a port
RANGE = (LOW, LOW + 2000)
SECRET = b"the run's"
ENOUGH = 60.0  # seconds in which whoever is there does meet, on any machine; nobody waits for it


def together(parts: list[Callable[[], Any]]) -> list[Any]:
    """What each part returns, or the error that it raises; all run at once."""
    with ThreadPoolExecutor(len(parts)) as pool:
        futures: list[Future[Any]] = [pool.submit(part) for part in parts]
    return [future.exception() or future.result() for future in futures]


def member(index: int, key: str, size: int, *, port_range: tuple[int, int] = RANGE, **changes: Any) -> Any:
    """The part of one member of `size`, each on a node of its own."""
    options: dict[str, Any] = {
        "places": places(size), "master": "localhost", "secret": secret_of(SECRET, key),
        "ports": candidate_ports(key.encode(), port_range), "timeout": ENOUGH,
    }  # fmt: skip
    me = Member(index, index, f"node{index}", ranks=index + 1)

    def part() -> Rendezvous:
        rendezvous = join_rendezvous(me, **{**options, **changes})
        if rendezvous.listener is not None:
            rendezvous.listener.close()
        return rendezvous

    return part


def all_of(size: int, key: str, **changes: Any) -> list[Callable[[], Rendezvous]]:
    return [member(index, key, size, **changes) for index in range(size)]


def places(size: int) -> list[Place]:
    return [Place(host=f"node{number}", node=number) for number in range(size)]


def fault_of(error: object) -> Fault:
    assert isinstance(error, RendezvousError), error
    return error.fault


# -- processes without an agent meet once


@pytest.mark.parametrize("size", [1, 2, 5])
def test_members_meet_and_agree_on_who_is_in(size: int) -> None:
    results = together(all_of(size, next(KEYS)))
    assert all(isinstance(rendezvous, Rendezvous) for rendezvous in results), results
    assert [[(each.index, each.host, each.ranks) for each in rendezvous.members] for rendezvous in results] == [
        [(index, f"node{index}", index + 1) for index in range(size)]
    ] * size
    assert {rendezvous.port for rendezvous in results} == {results[0].port}
    assert {rendezvous.interface for rendezvous in results} == {"lo"}
    assert {rendezvous.world_size for rendezvous in results} == {size * (size + 1) // 2}
    assert [rendezvous.place_of(size - 1) for rendezvous in results] == [size - 1] * size


def test_the_first_member_may_come_last() -> None:
    key, tried = next(KEYS), threading.Event()
    real = rounds.find_leader

    def find(*args: Any, **options: Any) -> Channel | str:
        found = real(*args, **options)
        tried.set()
        return found

    def late() -> Rendezvous:
        assert tried.wait(ENOUGH)
        return member(0, key, 2)()  # type: ignore[no-any-return]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounds, "find_leader", find)
        assert all(isinstance(rendezvous, Rendezvous) for rendezvous in together([late, member(1, key, 2)]))


def test_members_of_one_node_are_one_host() -> None:
    members = tuple(Member(index, index // 2, f"node{index // 2}", 2) for index in range(4))
    rendezvous = Rendezvous("node0", 1, members, None)
    assert [rendezvous.first_rank(place) for place in range(4)] == [0, 2, 4, 6]
    assert rendezvous.place_of(7) is None


def test_twenty_meetings_on_sixty_ports_do_not_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "EXCHANGE", 1.0)  # what has connected to the store of another one tries again then
    keys = [next(KEYS) for _ in range(20)]
    narrow = (LOW + 3000, LOW + 3059)
    parts = [
        lambda key=key, part=part: (key, part()) for key in keys for part in all_of(2, key, port_range=narrow)
    ]  # fmt: skip
    results = together(random.sample(parts, len(parts)))
    assert all(isinstance(each, tuple) for each in results), results
    of_key = {key: [rendezvous.members for of, rendezvous in results if of == key] for key in keys}
    assert all(one == other for one, other in of_key.values())


def test_a_missing_member_is_named_on_every_other(monkeypatch: pytest.MonkeyPatch) -> None:
    key = next(KEYS)
    monkeypatch.setattr(Arrivals, "decided", lambda self, now: len(self.arrived) == 2)  # then time is up
    errors = together([member(index, key, 4) for index in (0, 2)])
    assert [type(error) for error in errors] == [RendezvousError] * 2
    assert {(error.fault.code, error.fault.accused) for error in errors} == {
        (FaultCode.RENDEZVOUS_TIMEOUT, (Accused("node1", node=1), Accused("node3", node=3)))
    }
    assert [error.from_leader for error in errors] == [False, True]  # the leader tells the user
    assert all(error.final for error in errors)


def test_a_missing_leader_is_named() -> None:
    (error,) = together([member(1, next(KEYS), 2, timeout=0.3)])
    fault = fault_of(error)
    assert (fault.code, fault.host, fault.seconds) == (FaultCode.NOT_REACHED, "node1", 0.3)
    assert fault.accused == (Accused("node0", node=0),)
    assert (fault.error or "").startswith("localhost: nothing of this attempt listens")


def test_a_leader_whose_name_is_unknown_is_told_with_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    (error,) = together([member(1, next(KEYS), 2, timeout=0.2, master="node0-ib")])
    assert (fault_of(error).error or "").startswith("node0-ib: its name")
    assert "cannot be resolved (Name or service not known); see cluster.host_suffix" in str(error)


def test_a_leader_that_cannot_be_routed_to_is_told_with_the_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object) -> int:
        return 113  # EHOSTUNREACH

    monkeypatch.setattr(socket.socket, "connect_ex", unreachable)
    (error,) = together([member(1, next(KEYS), 2, timeout=0.2)])
    assert "No route to host; see cluster.interface and cluster.port_range" in str(error)


def test_a_leader_without_file_descriptors_for_a_while_is_still_met(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for members for a long time, and takes connections again as soon as it can."""
    real, failures = socket.socket.accept, itertools.count()

    def accept(self: socket.socket) -> Any:
        if next(failures) < 2:
            raise OSError(24, "Too many open files")
        return real(self)

    monkeypatch.setattr(socket.socket, "accept", accept)
    assert all(isinstance(rendezvous, Rendezvous) for rendezvous in together(all_of(2, next(KEYS), timeout=600.0)))


def test_a_member_that_leaves_before_all_have_come_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may come again in time; if it does not, it is not taken for present."""
    key, came = next(KEYS), threading.Event()

    def decided(self: Arrivals, now: float) -> bool:
        """Time is up when it has come and has left."""
        if 1 in self.arrived:
            came.set()
        return came.is_set() and 1 not in self.arrived

    monkeypatch.setattr(Arrivals, "decided", decided)
    ports, secret = candidate_ports(key.encode(), RANGE), secret_of(SECRET, key)

    def leaves() -> None:
        found: Channel | str = ""
        while isinstance(found, str):
            found = rounds.find_leader("localhost", ports, secret, float("inf"))
        found.send({"type": "hello", "index": 1, "member": astuple(Member(1, 1, "node1", 1))})
        assert came.wait(ENOUGH)
        found.close()

    error, _ = together([member(0, key, 3), leaves])
    fault = fault_of(error)
    assert fault.code is FaultCode.RENDEZVOUS_TIMEOUT and fault.message.endswith("in time: 1 of 3 arrived")


# -- strangers on the ports


@contextmanager
def other_store(port: int) -> Iterator[None]:
    """Some job's store of torch."""
    store = TCPStore("localhost", port, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=5))
    yield
    del store


@contextmanager
def other_attempt(port: int) -> Iterator[None]:
    """The leader of another attempt: the same protocol, another secret."""
    leader, stop = Hub(socket.create_server(("", port)), secret_of(SECRET, "another"), members=[1]), threading.Event()

    def serve() -> None:
        while not stop.is_set():
            leader.poll(0.05)

    thread = threading.Thread(target=serve)
    thread.start()
    yield
    stop.set()
    thread.join()
    leader.close()


@contextmanager
def silent(port: int) -> Iterator[None]:
    """A service that takes connections and never says a word."""
    with socket.create_server(("", port)):
        yield


@contextmanager
def talking(port: int, text: bytes, pause: float) -> Iterator[None]:
    """A service that says something to all who connect, byte by byte when there are pauses; then it hangs up."""
    server, stop = socket.create_server(("", port)), threading.Event()
    threads: list[threading.Thread] = []

    def talk(connection: socket.socket) -> None:
        with connection:
            for part in [text] if not pause else [bytes([number]) for number in text]:
                try:
                    connection.sendall(part)
                except OSError:
                    return
                if stop.wait(pause):
                    return

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threads.append(threading.Thread(target=talk, args=(connection,)))
            threads[-1].start()

    thread = threading.Thread(target=serve)
    thread.start()
    yield
    stop.set()
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    for each in (thread, *threads):
        each.join()


STRANGERS: dict[str, Callable[[int], Any]] = {
    "a store of torch": other_store,
    "the leader of another attempt": other_attempt,
    "silent": silent,
    "chatty": lambda port: talking(port, b"SSH-2.0-OpenSSH_9.2\r\n", 0),
    "hangs up": lambda port: talking(port, b"", 0),
    "sends zeros": lambda port: talking(port, bytes(1 << 16), 0),
    "a byte now and then": lambda port: talking(port, b"x" * 600, 0.1),
    "our greeting, a byte now and then": lambda port: talking(port, MAGIC + bytes(600), 0.1),
    "our greeting, and a wrong proof": lambda port: talking(port, MAGIC + bytes(64), 0),
}


@pytest.mark.parametrize("stranger", STRANGERS)
def test_a_stranger_on_the_first_port_is_passed_by(stranger: str) -> None:
    key = next(KEYS)
    with STRANGERS[stranger](candidate_ports(key.encode(), RANGE)[0]):
        results = together(all_of(2, key))
    assert all(isinstance(rendezvous, Rendezvous) for rendezvous in results), results


def test_strangers_on_all_ports_but_the_last_are_passed_by(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "STAGGER", 0.02)
    key = next(KEYS)
    with ExitStack() as stack:
        for port in candidate_ports(key.encode(), RANGE)[:-2]:  # one for the leader, and one for the store
            stack.enter_context(silent(port))
        results = together(all_of(3, key))
    assert all(isinstance(rendezvous, Rendezvous) for rendezvous in results), results


def test_forty_connections_that_say_nothing_do_not_keep_a_member_out() -> None:
    key = next(KEYS)
    opened: list[socket.socket] = []
    first, leads = candidate_ports(key.encode(), RANGE)[0], threading.Event()
    real = rounds.listen

    def listening(*args: Any, **options: Any) -> socket.socket:
        made = real(*args, **options)
        leads.set()
        return made

    def others() -> Rendezvous:
        assert leads.wait(ENOUGH)
        opened.extend(socket.create_connection(("localhost", first)) for _ in range(40))
        return member(1, key, 2)()  # type: ignore[no-any-return]

    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rounds, "listen", listening)
            results = together([member(0, key, 2), others])
    finally:
        for each in opened:
            each.close()
    assert all(isinstance(rendezvous, Rendezvous) for rendezvous in results), results


def test_only_strangers_is_told_as_that() -> None:
    key = next(KEYS)
    port = candidate_ports(key.encode(), (LOW + 4000, LOW + 4001))[0]
    with STRANGERS["chatty"](port):
        (error,) = together([member(1, key, 2, timeout=0.5, ports=[port])])
        assert str(error).endswith(f"port {port} belongs to something else")
        (error,) = together([member(0, key, 2, timeout=0.5, ports=[port])])
        assert f"no port is free (tried {port}): set cluster.port_range" in str(error)


def test_a_search_leaves_no_connection_open() -> None:
    """Neither to strangers nor to ports that it did not need any more."""
    key = next(KEYS)
    ports = candidate_ports(key.encode(), RANGE)[:3]
    with ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", port))) for port in ports]
        found = rounds.find_leader("127.0.0.1", ports, b"", rounds.time.monotonic() + 0.7)
        assert isinstance(found, str)
        for server in servers:
            server.settimeout(30)
            connection, _ = server.accept()
            with connection:
                connection.settimeout(30)
                assert connection.recv(1) == b""


def test_a_signal_ends_the_search_at_once() -> None:
    key = next(KEYS)
    port = candidate_ports(key.encode(), RANGE)[0]
    reader, writer = socket.socketpair()
    with reader, writer, silent(port):
        writer.send(b"\0")
        found = rounds.find_leader("localhost", [port], b"", float("inf"), wake=reader.fileno())
        assert found == "it was interrupted"


def test_who_waits_for_a_leader_that_ends_says_so() -> None:
    key = next(KEYS)
    ports, secret = candidate_ports(key.encode(), RANGE), secret_of(SECRET, key)

    def ends() -> None:
        leader = Hub(listen(ports), secret, members=[1])
        while not leader.channels:
            leader.poll(0.1)
        leader.close()

    error, _ = together([member(1, key, 2), ends])
    assert (fault_of(error).code, fault_of(error).accused) == (FaultCode.LEADER_LOST, (Accused("node0", node=0),))


# -- ports and interfaces


def test_listening_takes_the_first_free_port() -> None:
    ports = candidate_ports(next(KEYS).encode(), RANGE)
    with listen(ports) as first, listen(ports) as second:
        assert [first.getsockname()[1], second.getsockname()[1]] == ports[:2]


def test_a_leader_of_one_host_listens_to_this_host_only() -> None:
    with listen(candidate_ports(next(KEYS).encode(), RANGE), LOOPBACK) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), st.integers(1024, 60000), st.integers(1, 100))
def test_ports_depend_on_the_key_alone_and_stay_in_the_range(key: str, low: int, width: int) -> None:
    ports = candidate_ports(key.encode(), (low, low + width))
    assert ports == candidate_ports(key.encode(), (low, low + width))
    assert len(ports) == len(set(ports)) == min(CANDIDATES, width + 1)
    assert all(low <= port <= low + width for port in ports)


def test_ports_and_secrets_of_different_attempts_differ() -> None:
    assert candidate_ports(b"run/0", (20000, 32767)) != candidate_ports(b"run/1", (20000, 32767))
    assert len({secret_of(b"a", "run/0"), secret_of(b"a", "run/1"), secret_of(b"b", "run/0")}) == 3


@pytest.mark.parametrize(
    ("address", "interface"),
    [("127.0.0.1", "lo"), ("127.0.1.1", "lo"), ("::1", "lo"), ("::ffff:127.0.0.1", "lo"), ("203.0.113.7", None),
     ("2001:db8::7", None)],
)  # fmt: skip
def test_the_interface_of_an_address(address: str, interface: str | None) -> None:
    assert interface_with(address) == interface


def test_the_interface_of_this_machines_own_address() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("203.0.113.7", 9))  # sends nothing
        except OSError:
            pytest.skip("this machine has no way out")
        address = probe.getsockname()[0]
    assert interface_with(address) in [name for _, name in socket.if_nameindex()]


# -- who takes part


MEMBERS = {index: Member(index, index, f"node{index}", 1) for index in range(4)}
LATE = "node2 (node 2), node3 (node 3) did not reach node0 (node 0) in time: 2 of 4 arrived"
FEW = "too few agents are left: 2 of the 3 that are needed"


@pytest.mark.parametrize(
    ("arrived", "wanted", "least", "now", "decided", "problem"),  # code, accused, message
    [
        ((0, 1, 2, 3), (0, 1, 2, 3), 4, 0, True, None),
        ((0, 1), (0, 1, 2, 3), 2, 9, False, None),  # enough, and yet there is time
        ((0, 1), (0, 1, 2, 3), 2, 10, True, None),
        ((0, 1), (0, 1, 2, 3), 3, 10, True, (FaultCode.RENDEZVOUS_TIMEOUT, [2, 3], LATE)),
        ((0, 1), (0, 1), 3, 0, True, (FaultCode.TOO_FEW, [], FEW)),
        ((0, 1, 3), (0, 1), 3, 0, True, None),  # one came that nobody had waited for
    ],
)
def test_when_it_is_decided_who_takes_part(
    arrived: tuple[int, ...], wanted: tuple[int, ...], least: int, now: float, decided: bool, problem: Any
) -> None:
    came = {index: MEMBERS[index] for index in arrived}
    arrivals = Arrivals(places(4), 0, least, set(wanted), 10.0, came)
    assert arrivals.decided(now) is decided
    if decided:
        found = arrivals.problem()
        assert problem == (found and (found.code, [each.node for each in found.accused], found.message))


def test_the_leader_comes_first_and_the_others_in_order() -> None:
    came = {index: MEMBERS[index] for index in (3, 0, 2, 1)}
    members = Arrivals(places(4), 2, 1, set(), 0.0, came).members()
    assert [member.index for member in members] == [2, 0, 1, 3]


@pytest.mark.parametrize(
    ("before", "there", "leader", "most", "wanted"),
    [
        ((), (0, 1, 2), 0, 2, [0, 1]),
        ((), (1, 2, 3), 2, 2, [2, 1]),
        ((0, 1, 2), (0, 1, 2, 3), 0, 3, [0, 1, 2]),
        ((0, 1, 2), (0, 2, 3), 0, 3, [0, 3, 2]),  # the spare has the place of the lost one
        ((0, 1, 2), (1, 2, 3), 1, 3, [1, 3, 2]),  # the next leader changes places with it
        ((0, 1, 2), (0, 3, 4), 0, 3, [0, 3, 4]),
        ((0, 1, 2), (0, 2), 0, 3, [0, 2]),  # no spare is left
        ((0, 2), (0, 1, 2), 0, 3, [0, 2, 1]),  # a node comes back
    ],
)
def test_members_keep_their_ranks_when_a_spare_node_replaces_another_one(
    before: tuple[int, ...], there: tuple[int, ...], leader: int, most: int, wanted: list[int]
) -> None:
    assert seats(before, there, leader, most) == wanted
    came = {index: MEMBERS[index] for index in there if index < len(MEMBERS)}
    if len(came) == len(there):
        found = Arrivals(places(4), leader, 1, set(), 0.0, came, most, before).members()
        assert [member.index for member in found] == wanted


def test_a_member_travels_as_a_row() -> None:
    member = Member(3, 1, "node1", 2, 4, "10.0.0.2", "10.0.0.1")
    assert Member(*json.loads(json.dumps(astuple(member)))) == member


@pytest.mark.parametrize(("reached", "address"), [
    ([], LOOPBACK),
    ([LOOPBACK, LOOPBACK], LOOPBACK),
    (["10.0.0.1", "10.0.0.1"], "10.0.0.1"),
    (["10.0.0.1", "fd00::1"], ""),
])  # fmt: skip
def test_the_store_listens_where_the_leader_was_reached(reached: list[str], address: str) -> None:
    others = [Member(number, number, "n", 1, master_address=each) for number, each in enumerate(reached, 1)]
    assert address_reached([Member(0, 0, "n0", 1), *others]) == address
