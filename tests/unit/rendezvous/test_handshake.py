"""Two ends that share a secret let each other in; nobody else is let in, or told anything."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.rendezvous import handshake
from launcher.rendezvous.handshake import SIZE, NotTrusted, as_client, as_server, proof, receive_exactly

SECRET = b"s" * 32


def both(server: Callable[[socket.socket], Any], client: Callable[[socket.socket], Any]) -> list[BaseException | None]:
    """Runs two ends of a connection; what each raised."""
    ends, raised = socket.socketpair(), [None, None]  # type: tuple[socket.socket, ...], list[BaseException | None]

    def play(place: int, part: Callable[[socket.socket], Any]) -> None:
        ends[place].settimeout(20)
        try:
            part(ends[place])
        except Exception as error:
            raised[place] = error
        finally:
            ends[place].close()

    threads = [threading.Thread(target=play, args=each) for each in enumerate((server, client))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


def serve(end: socket.socket) -> None:
    as_server(end, SECRET)


def test_who_knows_the_secret_is_let_in() -> None:
    assert both(serve, lambda end: as_client(end, SECRET)) == [None, None]


def test_who_does_not_is_not_and_learns_nothing() -> None:
    heard: list[bytes] = []

    def guess(end: socket.socket) -> None:
        nonce = receive_exactly(end, SIZE)
        end.sendall(bytes(SIZE) + proof(b"guess", b"client", nonce + bytes(SIZE)))
        heard.append(end.recv(SIZE))

    raised = both(serve, guess)
    assert isinstance(raised[0], NotTrusted)
    assert heard == [b""]


def test_a_server_that_does_not_know_it_gets_nothing_typed() -> None:
    def pretend(end: socket.socket) -> None:
        end.sendall(bytes(SIZE))
        receive_exactly(end, 2 * SIZE)
        end.sendall(bytes(SIZE))

    assert isinstance(both(pretend, lambda end: as_client(end, SECRET))[1], NotTrusted)


def test_a_proof_cannot_be_sent_back_as_ones_own() -> None:
    def reflect(end: socket.socket) -> None:
        nonce = bytes(SIZE)
        end.sendall(nonce)
        answer = receive_exactly(end, 2 * SIZE)
        end.sendall(answer[SIZE:])

    assert isinstance(both(reflect, lambda end: as_client(end, SECRET))[1], NotTrusted)


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\n\r\n"])
def test_a_scanner_of_ports_is_a_stranger(said: bytes) -> None:
    raised = both(serve, lambda end: end.sendall(said))
    assert isinstance(raised[0], (NotTrusted, OSError))


@pytest.mark.parametrize("enter", [as_server, as_client])
def test_who_says_a_byte_now_and_then_is_not_waited_for(
    enter: Callable[[Any, bytes], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]

    class Trickle:
        """Says a byte each second, within the timeout of each."""

        def gettimeout(self) -> float:
            return 5.0

        def settimeout(self, seconds: float) -> None:
            assert 0 < seconds <= 5.0

        def sendall(self, data: bytes) -> None:
            pass

        def recv(self, size: int) -> bytes:
            clock[0] += 1.0
            return b"x"

    monkeypatch.setattr(handshake, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    end: Any = Trickle()
    with pytest.raises(TimeoutError):
        enter(end, SECRET)
    assert clock[0] == 5.0
