"""`attach` over the network: a shell is for who knows the secret, and for nobody between him and the node."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher import attach as node_session
from launcher.attach import RankProcess, data_message, data_of, exchange, rank_location
from launcher.cli import attach as connect
from launcher.errors import RunError
from launcher.rendezvous.rounds import find_leader
from launcher.rendezvous.signed_channel import MAC, MAGIC, NONCE, PROOF, Channel, ChannelError
from tests.launch import until

SECRET = "s" * 64
HEAD = 4 + MAC


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., tuple[int, subprocess.Popen[bytes]]]]:
    """Starts `launcher.attach serve` as an agent does; its port and its process."""
    started: list[subprocess.Popen[bytes]] = []

    def start(limit: int = 1024, **details: str) -> tuple[int, subprocess.Popen[bytes]]:
        location = rank_location(
            "node1", RankProcess(0, os.getpid(), 0, {**os.environ, "SHELL": "/bin/sh", "RANK": "0"})
        )
        request = {"mode": "shell", "term": "dumb", "ports": [20000, 32767], **details}
        files = {"member-0": json.dumps(location), node_session.SECRET: SECRET, node_session.SERVED: ""}
        for name, text in {**files, "question": json.dumps(request)}.items():
            node_session.write_reply(tmp_path / name, text)
        module = [sys.executable, "-m", "launcher.attach", "serve", str(tmp_path), "member-0"]
        started.append(subprocess.Popen(["bash", "-c", f'ulimit -n {limit}; exec "$@"', "bash", *module]))
        until(lambda: node_session.read_reply(tmp_path / node_session.SERVED), "its port")
        return node_session.read_reply(tmp_path / node_session.SERVED)["port"], started[-1]

    yield start
    for server in started:
        server.kill()
        server.wait()


def client_of(port: int, secret: str = SECRET) -> Channel:
    found = find_leader("127.0.0.1", [port], secret.encode(), float("inf"))
    assert isinstance(found, Channel), found
    found.send(node_session.HELLO)
    return found


def shown_by(channel: Channel) -> bytes:
    """What the shell prints until it ends."""
    shown = b""
    while True:
        for message in exchange(channel, {}, timeout=60)[0]:
            if message.get("end"):
                return shown
            shown += data_of(message)


def test_a_shell_is_for_who_knows_the_secret(serve: Callable[..., tuple[int, subprocess.Popen[bytes]]]) -> None:
    port, server = serve()
    assert find_leader("127.0.0.1", [port], b"guess", float("inf")) == f"port {port} belongs to something else"
    with contextlib.closing(client_of(port)) as channel:
        channel.send({"window": [50, 132]})
        channel.send(data_message(b'echo "rank=$RANK"; stty size; exit\n'))
        assert b"rank=0\r\n50 132\r\n" in shown_by(channel)
    assert server.wait(60) == 0
    with pytest.raises(OSError):  # it took one client, and is gone
        socket.create_connection(("127.0.0.1", port), 30)


@pytest.mark.parametrize("limit", [64, 1024])
def test_connections_that_say_nothing_keep_nobody_out(
    serve: Callable[..., tuple[int, subprocess.Popen[bytes]]], limit: int
) -> None:
    port, server = serve(limit)
    with contextlib.ExitStack() as held:
        for _ in range(200):
            held.enter_context(socket.create_connection(("127.0.0.1", port), 30))
        with contextlib.closing(client_of(port)) as channel:
            channel.send(data_message(b"exit\n"))
            shown_by(channel)
        assert server.wait(60) == 0


def test_more_bytes_than_either_end_keeps_pass_in_both_directions(
    serve: Callable[..., tuple[int, subprocess.Popen[bytes]]],
) -> None:
    port, server = serve()
    with contextlib.closing(client_of(port)) as channel:
        channel.send(data_message(b"stty raw -echo; echo go; head -c 5000000 | tr x '\\377'; exit\n"))
        shown = b""
        while b"go\n" not in shown:
            shown += b"".join(map(data_of, exchange(channel, {}, timeout=60)[0]))
        for _ in range(5):
            channel.send(data_message(b"x" * 1_000_000))
        assert shown_by(channel).count(b"\377") + shown.count(b"\377") == 5_000_000
    assert server.wait(60) == 0


# -- somebody on the way


class Relay:
    """Passes a connection on, frame by frame, and does something to the frames of one direction.

    Attributes:
        port: where clients connect.
    """

    def __init__(self, port: int, change: Callable[[list[bytes]], list[bytes]], *, to_server: bool) -> None:
        """
        Args:
            port: where the server listens.
            change: gets all frames of the direction so far, the newest last; returns what is passed on instead of it.
            to_server: which direction.
        """
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._server, self._change, self._to_server = port, change, to_server
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with contextlib.suppress(OSError, struct.error):
            client = self._listener.accept()[0]
            server = socket.create_connection(("127.0.0.1", self._server))
            client.sendall(_exactly(server, len(MAGIC) + NONCE))
            server.sendall(_exactly(client, NONCE + PROOF))
            client.sendall(_exactly(server, PROOF))
            ways = [(client, server, self._to_server), (server, client, not self._to_server)]
            threads = [threading.Thread(target=self._pass, args=way, daemon=True) for way in ways]
            for thread in threads:
                thread.start()

    def _pass(self, source: socket.socket, target: socket.socket, changes: bool) -> None:
        frames: list[bytes] = []
        with contextlib.suppress(OSError, struct.error):
            while True:
                head = _exactly(source, HEAD)
                frame = head + _exactly(source, *struct.unpack(">I", head[:4]))
                frames.append(frame)
                for each in self._change(frames) if changes else [frame]:
                    target.sendall(each)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)


def _exactly(source: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (more := source.recv(size - len(data))):
        data += more
    if len(data) < size:
        raise OSError("it has ended")
    return data


def _only(number: int, change: Callable[[list[bytes]], list[bytes]]) -> Callable[[list[bytes]], list[bytes]]:
    return lambda frames: change(frames) if len(frames) == number else frames[-1:]


def _insert(frames: list[bytes]) -> list[bytes]:
    text = b'{"data":"touch INSERTED\\n"}'
    return [struct.pack(">I", len(text)) + bytes(MAC) + text, frames[-1]]


TAMPERING = {
    "changes": _only(3, lambda frames: [frames[-1].replace(b"echo", b"eCho").replace(b"answer", b"ANSWER")]),
    "repeats": _only(3, lambda frames: [frames[-1], frames[-1]]),
    "repeats an earlier one": _only(3, lambda frames: [frames[0], frames[-1]]),
    "drops": _only(3, lambda frames: []),
    "swaps": lambda frames: [] if len(frames) == 3 else frames[:-3:-1] if len(frames) == 4 else frames[-1:],
    "inserts": _only(3, _insert),
    "cuts": _only(3, lambda frames: [frames[-1][:-1]]),
}


@pytest.mark.parametrize("change", TAMPERING.values(), ids=TAMPERING)
def test_keys_that_somebody_tampers_with_reach_no_shell(
    serve: Callable[..., tuple[int, subprocess.Popen[bytes]]],
    change: Callable[[list[bytes]], list[bytes]],
    tmp_path: Path,
) -> None:
    """The fourth frame is never acted upon, nor is the third one unless it came as it was sent."""
    port, server = serve()
    with contextlib.closing(client_of(Relay(port, change, to_server=True).port)) as channel:
        channel.send(data_message(f"cd {tmp_path}; set -x\n".encode()))  # the second one
        channel.send(data_message(b"echo x >> ./third\n"))
        with pytest.raises(ChannelError):
            channel.send(data_message(b"echo x >> ./fourth\n"))
            shown_by(channel)
    assert server.wait(60) == 0
    assert not (tmp_path / "fourth").exists()
    assert not (tmp_path / "INSERTED").exists()
    assert not (tmp_path / "third").exists() or (tmp_path / "third").read_text() == "x\n"


@pytest.mark.parametrize("change", TAMPERING.values(), ids=TAMPERING)
def test_output_that_somebody_tampers_with_is_not_shown(
    change: Callable[[list[bytes]], list[bytes]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said = [f"answer {number}\n".encode() for number in range(6)]
    listener = socket.create_server(("127.0.0.1", 0))
    relay = Relay(listener.getsockname()[1], change, to_server=False)

    def answer() -> None:
        channel = Channel(listener.accept()[0], SECRET.encode(), server=True)
        with contextlib.closing(channel), contextlib.suppress(ChannelError):
            while not channel.open:
                exchange(channel, {}, timeout=60)
            for each in said:
                channel.send(data_message(each))
            channel.send({"end": True})
            exchange(channel, {}, timeout=60)

    threading.Thread(target=answer, daemon=True).start()
    with open(tmp_path / "keys", "w+b", 0) as keys, open(tmp_path / "screen", "w+b", 0) as screen:
        monkeypatch.setattr(sys, "stdin", keys)
        monkeypatch.setattr(sys, "stdout", screen)
        with pytest.raises(RunError, match="the connection to the rank's node was lost"):
            connect.connect_terminal(client_of(relay.port))
    assert b"".join(said).startswith((tmp_path / "screen").read_bytes())


def test_a_debugger_s_connection_that_somebody_cuts_is_no_rank_that_has_ended() -> None:
    ours, theirs = socket.socketpair()
    server, channel = Channel(theirs, b"s", server=True), Channel(ours, b"s", server=False)
    for end in (channel, server, channel):
        end.receive()
    debugger = connect.over_channel(channel)
    server.send(data_message(b'{"prompt": "(Pdb) "}\n{"te'))
    server.send(data_message(b'xt": "x"}\n'))
    assert [debugger.receive(), debugger.receive()] == [{"prompt": "(Pdb) "}, {"text": "x"}]
    debugger.send(line="p 1")
    assert server.receive() == [data_message(b'{"line": "p 1"}\n')]
    server.close()
    with pytest.raises(RunError, match="attach again"):
        debugger.receive()
    debugger.close()


def test_a_debugger_whose_rank_ends() -> None:
    ours, theirs = socket.socketpair()
    server, channel = Channel(theirs, b"s", server=True), Channel(ours, b"s", server=False)
    for end in (channel, server, channel):
        end.receive()
    server.send({"end": True})
    assert connect.over_channel(channel).receive() is None
    server.close()
    channel.close()
