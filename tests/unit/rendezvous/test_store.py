"""The ranks' store serves this user's processes on the job's hosts, and nobody else."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch.distributed import TCPStore

from launcher.rendezvous import store
from launcher.rendezvous.store import RanksStore, owner_of_peer, sockets_connected_to
from tests.two_users import as_somebody_else

pytestmark = pytest.mark.root

ENOUGH = timedelta(seconds=60)  # on any machine; nobody waits for it


@pytest.fixture
def serve() -> Iterator[Callable[..., tuple[str, int]]]:
    """Starts a store; its address."""
    opened: list[RanksStore] = []

    def started(*hosts: str, address: str = "127.0.0.1") -> tuple[str, int]:
        listener = socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
        place = listener.getsockname()[:2]
        opened.append(RanksStore(listener, hosts))
        return place

    yield started
    for each in opened:
        each.close()


def client(place: tuple[str, int]) -> TCPStore:
    return TCPStore(*place, is_master=False, wait_for_workers=False, timeout=ENOUGH)


def answer(place: tuple[str, int]) -> bytes:
    """What a store says to whoever asks it as torch does; nothing: it hangs up."""
    with socket.create_connection(place) as connection:
        connection.settimeout(ENOUGH.total_seconds())
        try:
            # torch/csrc/distributed/c10d/TCPStoreBackend.hpp: VALIDATE with its number, GETNUMKEYS
            connection.sendall(b"\0" + (0x3C85F7CE).to_bytes(4, "little") + b"\x07")
            return connection.recv(64)
        except ConnectionError:
            return b""


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_ranks_of_this_host_use_it(serve: Callable[..., tuple[str, int]], address: str) -> None:
    place = serve(address=address)
    large = "x" * (1 << 22)

    def rank(number: int) -> tuple[bytes, bytes]:
        mine = client(place)
        mine.set(f"rank {number}", large if number == 0 else f"{number}")
        return mine.get(f"rank {(number + 1) % 8}"), mine.get("rank 0")

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(rank, range(8)))
    assert all(whole == large.encode() for _, whole in found)
    assert [text for text, _ in found[:7]] == [f"{number}".encode() for number in range(1, 8)]


def test_requests_in_two_parts_do_not_wait_for_an_acknowledgement() -> None:
    """Which takes 40 ms (Nagle's algorithm with delayed acknowledgements), at each of the ranks' requests."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy = store._Proxy(listener, [])
        with socket.create_connection(listener.getsockname()):
            assert proxy.accept() is None
        options = [end.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for end in proxy._ends.values()]
        assert len(options) == 2 and all(options)
        proxy._close(next(iter(proxy._ends.values())))
    assert proxy._ends == {}


def test_a_slow_reader_gets_everything_and_holds_up_nobody(serve: Callable[..., tuple[str, int]]) -> None:
    place = serve()
    large, times = "x" * (1 << 22), 8
    rank = client(place)
    rank.set("large", large)
    assert rank.get("large") == large.encode()  # for `set` does not wait for the store in every torch
    with socket.create_connection(place) as slow:
        slow.settimeout(ENOUGH.total_seconds())
        # VALIDATE with its number, GET with the length and the text of the key; it does not read the answers yet
        get = b"\x03" + (6).to_bytes(8, "little") + b"/large"
        slow.sendall(b"\0" + (0x3C85F7CE).to_bytes(4, "little") + times * get)
        assert rank.get("large") == large.encode()
        answers = (len(large).to_bytes(8, "little") + large.encode()) * times
        received = bytearray()
        while len(received) < len(answers):
            received += slow.recv(1 << 20)
    assert received == answers


def test_a_rank_that_ends_does_not_end_the_others(serve: Callable[..., tuple[str, int]]) -> None:
    place = serve()
    one, other = client(place), client(place)
    one.set("key", "value")
    del one
    assert other.get("key") == b"value"
    assert client(place).get("key") == b"value"


def test_a_host_outside_of_the_job_is_refused(
    serve: Callable[..., tuple[str, int]], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its sockets are not this host's."""
    monkeypatch.setattr(store, "_is_here", lambda host: False)
    monkeypatch.setattr(store, "owner_of_peer", lambda connection: None)
    monkeypatch.setattr(store, "_diag_works", lambda: True)
    inside, outside = serve("127.0.0.1"), serve("10.9.9.9")
    assert answer(inside)
    assert not answer(outside)
    assert not answer(outside)
    assert capfd.readouterr().err.count("refused a connection to the ranks' store from 127.0.0.1") == 1


def test_an_address_of_this_host_is_no_other_host(serve: Callable[..., tuple[str, int]]) -> None:
    """With two names of one machine, its own address is among those of the job."""
    place = serve("127.0.0.1", "::1")
    assert as_somebody_else(lambda: answer(place)) == b""
    assert answer(place)


def test_another_user_of_this_host_is_refused(serve: Callable[..., tuple[str, int]]) -> None:
    place = serve()
    assert as_somebody_else(lambda: answer(place)) == b""
    assert answer(place)


def test_nobody_gets_past_the_gate() -> None:
    inner = store._inner_store()
    with inner.listener, socket.socket() as stranger, pytest.raises(TimeoutError):
        stranger.settimeout(0.2)  # it would be for ever
        stranger.connect(inner.listener.getsockname())


def test_a_store_that_no_rank_uses_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "owner_of_peer", lambda connection: os.geteuid() + 1)
    monkeypatch.setattr(store, "_diag_works", lambda: True)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy = store._Proxy(listener, [])
        with socket.create_connection(listener.getsockname()) as stranger:
            assert proxy.accept() is None
            assert stranger.recv(1) == b""
    assert proxy._store is None and proxy._ends == {}


def test_where_no_more_files_may_be_open_ranks_wait_and_are_told(
    serve: Callable[..., tuple[str, int]], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    limit = (store.SPARE + store.FILES_PER_RANK, -1)  # of one rank
    monkeypatch.setattr(store.resource, "getrlimit", lambda _: limit)
    monkeypatch.setattr(store, "PAUSE", 0.001)
    place = serve()
    with ThreadPoolExecutor(1) as pool, socket.create_connection(place):
        waits = pool.submit(answer, place)
        said = ""
        while "accepts no connection now" not in said:
            said += capfd.readouterr().err
        assert "raise `ulimit -n`" in said and not waits.done()
    assert waits.result()
    assert "accepts no connection" not in capfd.readouterr().err  # which is said once


def test_its_process_has_none_of_the_agents_files(tmp_path: Path) -> None:
    with (tmp_path / "secret").open("w"), socket.create_server(("127.0.0.1", 0)) as listener:
        place = listener.getsockname()
        started = RanksStore(listener, [])
        try:
            assert answer(place)
            links = list[str]()
            for entry in Path(f"/proc/{started.pid}/fd").iterdir():
                with contextlib.suppress(FileNotFoundError):  # it has been closed since
                    links.append(os.readlink(entry))
        finally:
            started.close()
    assert links and str(tmp_path / "secret") not in links


def test_a_store_whose_process_was_killed_is_told(
    serve: Callable[..., tuple[str, int]], capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        killed = RanksStore(listener, [])
    assert killed.end() == ""
    os.kill(killed.pid, signal.SIGKILL)
    os.waitid(os.P_PID, killed.pid, os.WEXITED | os.WNOWAIT)
    killed.close()
    assert killed.end() == killed.end() == "the process of the ranks' store was killed by SIGKILL"
    assert "launcher: the process of the ranks' store was killed by SIGKILL" in capfd.readouterr().err


def test_a_store_that_cannot_be_made_now_is_waited_for(
    serve: Callable[..., tuple[str, int]], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    made, failures = store._inner_store, iter([OSError(errno.EMFILE, "Too many open files")] * 2)

    def scarce() -> store._InnerStore:
        if error := next(failures, None):
            raise error
        return made()

    monkeypatch.setattr(store, "_inner_store", scarce)
    monkeypatch.setattr(store, "PAUSE", 0.001)
    place = serve()
    client(place).set("key", "value")
    assert client(place).get("key") == b"value"
    assert capfd.readouterr().err.count("the ranks' store cannot be made now: [Errno 24] Too many open files") == 1


def test_the_gate_needs_no_privilege() -> None:
    """Socket filters, which could do the same, are for the administrator since Linux 6.18."""

    def connected() -> bytes:
        with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as gate:
            store.sign(listener, b"key")
            store.sign(gate, b"key")
            gate.connect(listener.getsockname())
            return b"connected"

    assert as_somebody_else(connected) == b"connected"


def test_without_signatures_the_store_serves_and_its_output_says_that_others_reach_it(
    serve: Callable[..., tuple[str, int]], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(sock: socket.socket, key: bytes) -> None:
        raise OSError(errno.ENOPROTOOPT, os.strerror(errno.ENOPROTOOPT))

    monkeypatch.setattr(store, "sign", refuse)
    place = serve()
    client(place).set("key", "value")
    assert client(place).get("key") == b"value"
    assert as_somebody_else(lambda: answer(place)) == b""
    assert "other users of this host can connect to the ranks' TCPStore" in capfd.readouterr().err


def test_a_store_to_which_somebody_came_too_early_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([{("127.0.0.1", 1): os.geteuid() + 1}, {("127.0.0.1", 2): os.geteuid()}])
    monkeypatch.setattr(store, "sockets_connected_to", lambda address: next(looks))
    made = store._inner_store()
    assert made.key is not None
    assert next(looks, None) is None
    made.listener.close()
    del made
    monkeypatch.setattr(store, "sockets_connected_to", lambda address: {("127.0.0.1", 1): os.geteuid() + 1})
    with pytest.raises(RuntimeError, match="another user of this host connected to the ranks' store"):
        store._inner_store()


@pytest.mark.parametrize(
    ("listens", "connects"), [("127.0.0.1",) * 2, ("::1",) * 2, ("::", "127.0.0.1"), ("::", "::1")]
)
def test_whose_a_connection_is(listens: str, connects: str, monkeypatch: pytest.MonkeyPatch) -> None:
    six = ":" in listens
    family = socket.AF_INET6 if six else socket.AF_INET
    with socket.create_server((listens, 0), family=family, dualstack_ipv6=six) as listener:
        place = (connects, listener.getsockname()[1])
        with socket.create_connection(place) as connection, listener.accept()[0] as accepted:
            owners = sockets_connected_to(place)  # closed ones, of an earlier user of this port, may still be listed
            assert owners[connection.getsockname()[:2]] == os.geteuid()
            monkeypatch.setattr(store, "TABLES", ())  # with all sockets of this host
            assert owner_of_peer(accepted) == os.geteuid()


def test_a_peer_that_is_no_socket_of_this_host_has_no_owner() -> None:
    accepted = SimpleNamespace(getpeername=lambda: ("192.0.2.1", 1), getsockname=lambda: ("127.0.0.1", 2))
    assert owner_of_peer(accepted) is None  # type: ignore[arg-type]


def test_without_that_interface_of_the_kernel_its_tables_are_read(
    serve: Callable[..., tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_SOCK_DIAG", 31)  # no such protocol of netlink
    assert not store._diag_works()
    place = serve()
    assert as_somebody_else(lambda: answer(place)) == b""
    assert answer(place)


@pytest.mark.parametrize("text, address", [
    ("0100007F:814F", ("127.0.0.1", 33103)),
    ("0000000000000000FFFF00000100007F:0016", ("127.0.0.1", 22)),
    ("00000000000000000000000001000000:0016", ("::1", 22)),
])  # fmt: skip
def test_addresses_of_the_kernels_tables(text: str, address: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    if sys.byteorder == "little":
        assert store._of_hex(text) == address
