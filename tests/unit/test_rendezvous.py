"""Members find each other, and nobody else, whatever listens on the ports; who is missing is named."""

from __future__ import annotations

import itertools
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from launcher.node.rendezvous import (
    CANDIDATES,
    Meeting,
    Member,
    RendezvousError,
    candidate_ports,
    interface_with,
    listen,
    meet,
)
from torch.distributed import TCPStore

from launcher.node import rendezvous

KEYS = (f"test/{number}/{random.randrange(2**60)}" for number in itertools.count())  # another one for every meeting
LOW = random.randrange(20000, 28000)  # so that two test runs on one machine rarely meet on a port
RANGE = (LOW, LOW + 2000)
PATIENT = 4.0  # seconds in which whoever is there does meet, also while other tests use every core


@pytest.fixture(autouse=True)
def quick_dns(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch asks for the name of every peer's address; a name server that does not answer costs 1 s and not 10 s."""
    monkeypatch.setenv("RES_OPTIONS", "timeout:1 attempts:1")


def together(parts: list[Callable[[], Any]]) -> list[Any]:
    """What each part returns, or the error that it raises; all run at once."""
    with ThreadPoolExecutor(len(parts)) as pool:
        futures: list[Future[Any]] = [pool.submit(part) for part in parts]
    return [future.exception() or future.result() for future in futures]


def member(index: int, key: str, size: int, **changes: Any) -> Callable[[], Meeting]:
    """The part of one member of `size`, each on a node of its own."""
    options: dict[str, Any] = {
        "size": size, "least": size, "expected": [f"node{number}" for number in range(size)], "master": "localhost",
        "key": key, "port_range": RANGE, "timeout": 30.0,
    }  # fmt: skip
    me = Member(index, index, f"node{index}", ranks=index + 1)
    return lambda: meet(me, **{**options, **changes})


def all_of(size: int, key: str, **changes: Any) -> list[Callable[[], Meeting]]:
    return [member(index, key, size, **changes) for index in range(size)]


@pytest.mark.parametrize("size", [1, 2, 5])
def test_members_meet_and_agree_on_who_is_in(size: int) -> None:
    meetings = together(all_of(size, next(KEYS)))
    assert all(isinstance(meeting, Meeting) for meeting in meetings), meetings
    assert [[(each.index, each.host, each.ranks) for each in meeting.members] for meeting in meetings] == [
        [(index, f"node{index}", index + 1) for index in range(size)]
    ] * size
    assert {meeting.hosts for meeting in meetings} == {tuple(f"node{index}" for index in range(size))}
    assert {meeting.port for meeting in meetings} == {meetings[0].port}
    assert {meeting.interface for meeting in meetings} == {"lo"}


def test_the_store_is_shared_by_all() -> None:
    meetings = together(all_of(3, next(KEYS)))
    meetings[1].store.set("word", "from 1")
    assert [meeting.store.get("word") for meeting in meetings] == [b"from 1"] * 3


def test_the_master_may_come_last() -> None:
    key = next(KEYS)

    def late() -> Meeting:
        time.sleep(0.3)
        return member(0, key, 2)()

    assert all(isinstance(meeting, Meeting) for meeting in together([late, member(1, key, 2)]))


def test_members_of_one_node_are_one_host() -> None:
    key = next(KEYS)
    options: dict[str, Any] = {
        "size": 4, "least": 4, "expected": list("abcd"), "master": "localhost", "key": key, "port_range": RANGE,
        "timeout": 30.0,
    }  # fmt: skip
    members = [Member(index, index // 2, f"node{index // 2}", 1) for index in range(4)]
    meetings = together([lambda me=me: meet(me, **options) for me in members])
    assert {meeting.hosts for meeting in meetings} == {("node0", "node1")}


def test_twenty_meetings_on_sixty_ports_do_not_mix() -> None:
    keys = [next(KEYS) for _ in range(20)]
    narrow = (LOW + 3000, LOW + 3059)
    members = [part for key in keys for part in all_of(2, key, port_range=narrow)]
    meetings = together(random.sample(members, len(members)))
    assert all(isinstance(meeting, Meeting) for meeting in meetings), meetings
    assert len({meeting.port for meeting in meetings}) == 20
    for port in {meeting.port for meeting in meetings}:
        one, other = (meeting for meeting in meetings if meeting.port == port)
        one.store.set("mine", str(port))
        assert other.store.get("mine") == str(port).encode()


def test_a_missing_member_is_named_on_every_other() -> None:
    key = next(KEYS)
    errors = together([member(index, key, 4, timeout=PATIENT) for index in (0, 2)])
    assert [type(error) for error in errors] == [RendezvousError] * 2
    assert {str(error) for error in errors} == {"node1, node3 did not reach node0 in time: 2 of 4 arrived"}
    assert [error.told for error in errors] == [False, True]  # the user hears it from the master


def test_a_missing_master_is_named() -> None:
    (error,) = together([member(1, next(KEYS), 2, timeout=0.3, master="localhost")])
    assert isinstance(error, RendezvousError)
    assert str(error).startswith(
        "node1 could not reach localhost (rank 0) within 0.3 s: nothing of this attempt listens"
    )


def test_a_master_whose_name_is_unknown_is_told_with_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "create_connection", unknown)
    (error,) = together([member(1, next(KEYS), 2, timeout=0.2, master="node0-ib")])
    assert "could not reach node0-ib (rank 0)" in str(error)
    assert "Name or service not known); see cluster.host_suffix" in str(error)


def test_fewer_members_go_on_when_they_are_enough() -> None:
    key = next(KEYS)
    meetings = together([member(index, key, 4, least=2, timeout=PATIENT) for index in (0, 3)])
    assert all(isinstance(meeting, Meeting) for meeting in meetings), meetings
    assert {meeting.hosts for meeting in meetings} == {("node0", "node3")}


def test_who_comes_when_the_others_have_begun_finds_the_door_shut() -> None:
    key = next(KEYS)
    meetings = together([member(index, key, 3, least=2, timeout=PATIENT) for index in (0, 2)])
    assert all(isinstance(meeting, Meeting) for meeting in meetings), meetings
    with pytest.raises(RendezvousError, match=r"node1 could not reach localhost .* has not started, or has ended"):
        member(1, key, 3, least=2, timeout=0.3)()


def test_all_who_come_in_time_are_in_although_fewer_would_do() -> None:
    meetings = together(all_of(3, next(KEYS), least=1))
    assert {len(meeting.members) for meeting in meetings} == {3}


@contextmanager
def foreign_store(port: int) -> Iterator[None]:
    """Another job's store: the same protocol, another key."""
    store = TCPStore("localhost", port, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=5))
    store.set("attempt/of another job", "1")
    yield
    del store


@contextmanager
def silent(port: int) -> Iterator[None]:
    """A service that takes connections and never says a word."""
    with socket.create_server(("", port)):
        yield


@contextmanager
def chatty(port: int) -> Iterator[None]:
    """A service with a protocol of its own, that hangs up at once."""
    server = socket.create_server(("", port))

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")

    thread = threading.Thread(target=serve)
    thread.start()
    yield
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join()


@pytest.mark.parametrize("stranger", [foreign_store, silent, chatty])
def test_a_stranger_on_the_first_port_is_passed_by(
    monkeypatch: pytest.MonkeyPatch, stranger: Callable[[int], Any]
) -> None:
    monkeypatch.setattr(rendezvous, "_PATIENCE", 0.5)
    key = next(KEYS)
    first, _, third = candidate_ports(key, RANGE)[:3]  # the second is the door's
    with stranger(first):
        meetings = together(all_of(2, key))
        assert all(isinstance(meeting, Meeting) for meeting in meetings), meetings
        assert {meeting.port for meeting in meetings} == {third}


def test_only_strangers_is_told_as_that() -> None:
    key = next(KEYS)
    port = candidate_ports(key, (LOW + 4000, LOW + 4001))[0]
    with foreign_store(port):
        (error,) = together([member(1, key, 2, timeout=0.3, port_range=(port, port))])
        assert str(error).endswith(f"port {port} belongs to something else")
        (error,) = together([member(0, key, 2, timeout=0.3, port_range=(port, port))])
        assert f"none of 1 ports is free on {socket.gethostname()} (tried {port}): set cluster.port_range" in str(error)


def test_listening_takes_the_first_free_port() -> None:
    ports = candidate_ports(next(KEYS), RANGE)
    with listen(ports) as first, listen(ports) as second:
        assert [first.getsockname()[1], second.getsockname()[1]] == ports[:2]


@given(st.text(max_size=20), st.integers(1024, 60000), st.integers(1, 100))
def test_ports_depend_on_the_key_alone_and_stay_in_the_range(key: str, low: int, width: int) -> None:
    ports = candidate_ports(key, (low, low + width))
    assert ports == candidate_ports(key, (low, low + width))
    assert len(ports) == len(set(ports)) == min(CANDIDATES, width + 1)
    assert all(low <= port <= low + width for port in ports)


def test_ports_of_different_attempts_differ() -> None:
    assert candidate_ports("run/0", (20000, 32767)) != candidate_ports("run/1", (20000, 32767))


def test_many_missing_members_are_counted() -> None:
    names = [f"n{number}" for number in range(12)]
    assert rendezvous._names(names[:3]) == "n0, n1, n2"
    assert rendezvous._names(names) == "n0, n1, n2, n3, n4, n5, n6, n7, n8, n9 and 2 more"


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
