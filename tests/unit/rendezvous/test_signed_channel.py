"""Two agents that know the attempt's secret talk to each other; nobody else takes part or alters what they say."""

from __future__ import annotations

import ast
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import launcher
from launcher import io_bounds
from launcher.rendezvous import signed_channel as channel_module
from launcher.rendezvous.signed_channel import MAC, MAGIC, NONCE, PROOF, Channel, ChannelError, encode, proof

SECRET = b"the attempt's"
HEAD = 4 + MAC


@pytest.fixture
def sockets() -> Iterator[list[socket.socket]]:
    """Sockets that are closed after the test."""
    opened: list[socket.socket] = []
    yield opened
    for each in opened:
        each.close()


def pair(sockets: list[socket.socket]) -> tuple[socket.socket, socket.socket]:
    ends = socket.socketpair()
    sockets += ends
    for end in ends:
        end.settimeout(5)
    return ends


def connected(sockets: list[socket.socket], *, theirs: bytes = SECRET) -> tuple[Channel, Channel]:
    """A server and a client that have done the handshake."""
    one, other = pair(sockets)
    server, client = Channel(one, SECRET, server=True), Channel(other, theirs, server=False)
    client.receive()
    server.receive()
    client.receive()
    return server, client


def server_and_stranger(sockets: list[socket.socket]) -> tuple[Channel, socket.socket]:
    ours, theirs = pair(sockets)
    return Channel(ours, SECRET, server=True), theirs


def client_and_stranger(sockets: list[socket.socket]) -> tuple[Channel, socket.socket]:
    ours, theirs = pair(sockets)
    return Channel(ours, SECRET, server=False), theirs


def relayed(sockets: list[socket.socket]) -> tuple[Channel, Channel, socket.socket, socket.socket]:
    """A server and a client that are connected through somebody: his end to the server, and his end to the client."""
    to_server, to_client = pair(sockets), pair(sockets)
    server, client = Channel(to_server[0], SECRET, server=True), Channel(to_client[0], SECRET, server=False)
    to_client[1].sendall(exactly(to_server[1], len(MAGIC) + NONCE))
    client.receive()
    to_server[1].sendall(exactly(to_client[1], NONCE + PROOF))
    server.receive()
    to_client[1].sendall(exactly(to_server[1], PROOF))
    client.receive()
    assert server.open and client.open
    return server, client, to_server[1], to_client[1]


def exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        assert part, "closed"
        data += part
    return data


# -- the handshake


def test_both_ends_are_authenticated_and_messages_go_both_ways(sockets: list[socket.socket]) -> None:
    server, client = connected(sockets)
    assert server.open and client.open
    client.send({"type": "hello", "name": "Zürich"})
    client.send({"type": "heartbeat"})
    assert server.receive() == [{"type": "hello", "name": "Zürich"}, {"type": "heartbeat"}]
    server.send({"type": "begin"})
    assert client.receive() == [{"type": "begin"}]
    assert client.receive() == []


def test_neither_end_is_open_before_the_other_has_proved_itself(sockets: list[socket.socket]) -> None:
    one, other = pair(sockets)
    server, client = Channel(one, SECRET, server=True), Channel(other, SECRET, server=False)
    assert not server.open
    client.receive()
    assert not client.open, "the client has seen a greeting only"
    server.receive()
    assert server.open and not client.open
    client.receive()
    assert client.open


@pytest.mark.parametrize("server", [True, False])
def test_nothing_is_sent_before_the_handshake(sockets: list[socket.socket], server: bool) -> None:
    one, _ = pair(sockets)
    with pytest.raises(ChannelError, match="not authenticated"):
        Channel(one, SECRET, server=server).send({"type": "hello"})


def test_a_client_with_another_secret_is_refused(sockets: list[socket.socket]) -> None:
    one, other = pair(sockets)
    server, client = Channel(one, SECRET, server=True), Channel(other, b"another", server=False)
    client.receive()
    with pytest.raises(ChannelError, match="does not know the attempt's secret"):
        server.receive()
    assert not server.open


def test_a_server_with_another_secret_is_refused(sockets: list[socket.socket]) -> None:
    client, stranger = client_and_stranger(sockets)
    nonce = bytes(range(NONCE))
    stranger.sendall(MAGIC + nonce)
    client.receive()
    answer = exactly(stranger, NONCE + PROOF)
    stranger.sendall(proof(b"another", b"server", nonce + answer[:NONCE]))
    with pytest.raises(ChannelError, match="does not know the attempt's secret"):
        client.receive()


@pytest.mark.parametrize(
    "greeting", [b"SSH-2.0-OpenSSH_9.2\r\n", b"\0", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"launcher/2\n"]
)
def test_another_service_is_told_from_ours_by_its_first_bytes(sockets: list[socket.socket], greeting: bytes) -> None:
    client, stranger = client_and_stranger(sockets)
    stranger.sendall(greeting)
    with pytest.raises(ChannelError, match="another service"):
        client.receive()


def test_a_client_says_nothing_until_it_is_greeted(sockets: list[socket.socket]) -> None:
    """What it says first is what a stranger learns: nothing."""
    client, stranger = client_and_stranger(sockets)
    assert client.receive() == []
    stranger.setblocking(False)
    with pytest.raises(BlockingIOError):
        stranger.recv(1)


@pytest.mark.parametrize("text", [b"GET / HTTP/1.1\r\nHost: node0\r\n\r\n" * 8, b"\0" * 4096, b"\xff" * (1 << 20)])
def test_whatever_a_stranger_sends_to_the_leader_he_learns_a_nonce_only(
    sockets: list[socket.socket], text: bytes
) -> None:
    server, stranger = server_and_stranger(sockets)
    stranger.setblocking(False)
    sent = stranger.send(text)
    assert sent >= NONCE + PROOF
    with pytest.raises(ChannelError):
        server.receive()
    stranger.setblocking(True)
    assert len(exactly(stranger, len(MAGIC) + NONCE)) == len(MAGIC) + NONCE
    stranger.setblocking(False)
    with pytest.raises(BlockingIOError):
        stranger.recv(1)


@pytest.mark.parametrize("server", [True, False])
def test_an_end_that_leaves_in_the_handshake(sockets: list[socket.socket], server: bool) -> None:
    ours, stranger = pair(sockets)
    channel = Channel(ours, SECRET, server=server)
    stranger.close()
    with pytest.raises(ChannelError, match=r"closed|reset"):
        channel.receive()


def test_the_handshake_and_messages_may_come_one_byte_at_a_time(sockets: list[socket.socket]) -> None:
    to_server, to_client = pair(sockets), pair(sockets)
    server, client = Channel(to_server[0], SECRET, server=True), Channel(to_client[0], SECRET, server=False)
    found: dict[Channel, list[Any]] = {server: [], client: []}

    def carry(source: socket.socket, target: socket.socket, channel: Channel) -> bool:
        source.setblocking(False)
        try:
            data = source.recv(1 << 16)
        except BlockingIOError:
            return False
        for number in data:
            target.sendall(bytes([number]))
            found[channel] += channel.receive()
        return True

    while carry(to_server[1], to_client[1], client) or carry(to_client[1], to_server[1], server):
        pass
    assert server.open and client.open
    server.send({"a": 1})
    client.send({"b": "2" * 300})
    client.send({"c": 3})
    while carry(to_server[1], to_client[1], client) or carry(to_client[1], to_server[1], server):
        pass
    assert found == {client: [{"a": 1}], server: [{"b": "2" * 300}, {"c": 3}]}


# -- attacks on the proofs


def test_a_proof_of_an_earlier_connection_is_of_no_use(sockets: list[socket.socket]) -> None:
    """Somebody has recorded a client's whole answer, and sends it to the leader again."""
    server, _, _, _ = relayed(sockets)
    again, stranger = server_and_stranger(sockets)
    recorded = server._nonces[NONCE:] + proof(SECRET, b"client", server._nonces)
    stranger.sendall(recorded)
    with pytest.raises(ChannelError):
        again.receive()


def test_a_greeting_that_is_replayed_gets_no_second_connection(sockets: list[socket.socket]) -> None:
    """Somebody has recorded a leader's side of a connection and plays it to a client: its nonce is another one."""
    server, _, _, _ = relayed(sockets)
    client, stranger = client_and_stranger(sockets)
    stranger.sendall(MAGIC + server._nonces[:NONCE] + proof(SECRET, b"server", server._nonces))
    with pytest.raises(ChannelError):
        client.receive()


def test_a_client_s_own_proof_is_no_answer_to_it(sockets: list[socket.socket]) -> None:
    client, stranger = client_and_stranger(sockets)
    stranger.sendall(MAGIC + bytes(NONCE))
    client.receive()
    stranger.sendall(exactly(stranger, NONCE + PROOF)[NONCE:])
    with pytest.raises(ChannelError):
        client.receive()


def test_a_nonce_that_is_reflected_does_not_help(sockets: list[socket.socket]) -> None:
    """The stranger greets the client with what the leader said, and the leader with what the client would say."""
    server, to_server = server_and_stranger(sockets)
    greeting = exactly(to_server, len(MAGIC) + NONCE)
    nonce = greeting[len(MAGIC) :]
    to_server.sendall(nonce + proof(b"", b"client", nonce + nonce))
    with pytest.raises(ChannelError):
        server.receive()


def test_nonces_are_never_used_twice(sockets: list[socket.socket]) -> None:
    assert len({Channel(pair(sockets)[0], SECRET, server=False)._nonce for _ in range(20)}) == 20


def test_frames_of_another_connection_of_the_same_attempt_are_refused(sockets: list[socket.socket]) -> None:
    _, client, _, from_client = relayed(sockets)
    client.send({"type": "failure"})
    frame = from_client.recv(1 << 16)
    server, _, to_server, _ = relayed(sockets)
    to_server.sendall(frame)
    with pytest.raises(ChannelError, match="altered"):
        server.receive()


def test_a_message_cannot_be_sent_back_to_its_sender(sockets: list[socket.socket]) -> None:
    _, client, _, from_client = relayed(sockets)
    client.send({"type": "failure"})
    from_client.sendall(from_client.recv(1 << 16))
    with pytest.raises(ChannelError, match="altered"):
        client.receive()


# -- attacks on the frames


@pytest.mark.parametrize("change", ["bit", "mac", "swap", "repeat", "drop", "zero mac"])
def test_whoever_relays_can_neither_alter_nor_repeat_nor_drop_nor_swap_messages(
    sockets: list[socket.socket], change: str
) -> None:
    server, client, to_server, from_client = relayed(sockets)
    frames = []
    for number in range(2):
        client.send({"type": "heartbeat", "step": number})
        frames.append(from_client.recv(1 << 16))
    one, two = (bytearray(frame) for frame in frames)
    if change == "bit":
        one[-2] ^= 1
    elif change == "mac":
        one[4] ^= 1
    elif change == "zero mac":
        one[4:HEAD] = bytes(MAC)
    to_server.sendall({"swap": two + one, "repeat": one + one, "drop": two}.get(change, one + two))
    with pytest.raises(ChannelError, match="altered"):
        server.receive()


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_changed_byte_of_a_frame_is_noticed(data: st.DataObject) -> None:
    sockets: list[socket.socket] = []
    try:
        server, client, to_server, from_client = relayed(sockets)
        client.send({"type": "heartbeat", "step": 7})
        frame = bytearray(from_client.recv(1 << 16))
        place = data.draw(st.integers(0, len(frame) - 1))
        frame[place] ^= data.draw(st.integers(1, 255))
        to_server.sendall(frame)
        to_server.close()
        with pytest.raises(ChannelError):
            assert server.receive() == []  # a length that was made greater: the rest never comes
            server.receive()
    finally:
        for each in sockets:
            each.close()


def framed(channel: Channel, text: bytes, number: int = 0) -> bytes:
    """A frame as an authenticated, but ill, agent would send it."""
    mac = channel_module.hmac.new(channel._keys["send"], number.to_bytes(8, "big") + text, "sha256").digest()[:MAC]
    return len(text).to_bytes(4, "big") + mac + text


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"\x80\x04K\x01.", "not JSON"),  # a pickle
        (b"{'a': 1}", "not JSON"),
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 200_000, "not JSON"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "not JSON"),
        (b'{"a":' + b"9" * 10_000 + b"}", "not JSON"),
        (b"[1,2]", "not a JSON object"),
        (b'"text"', "not a JSON object"),
        (b"null", "not a JSON object"),
    ],
)
def test_what_is_no_json_object_ends_the_connection(sockets: list[socket.socket], text: bytes, problem: str) -> None:
    server, client, to_server, _ = relayed(sockets)
    frame = framed(client, text)
    to_server.setblocking(False)
    sent = 0
    with pytest.raises(ChannelError, match=problem):
        while True:
            if sent < len(frame):
                sent += to_server.send(frame[sent : sent + (1 << 15)])
            server.receive()


def test_a_message_that_is_too_long_is_refused_before_it_has_come(sockets: list[socket.socket]) -> None:
    server, _, to_server, _ = relayed(sockets)
    to_server.sendall((io_bounds.MESSAGE_BYTES + 1).to_bytes(4, "big") + bytes(MAC))
    with pytest.raises(ChannelError, match=f"{io_bounds.MESSAGE_BYTES + 1} bytes"):
        server.receive()


def test_a_message_that_the_other_end_would_refuse_is_not_sent(
    sockets: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(io_bounds, "MESSAGE_BYTES", 1000)
    server, client = connected(sockets)
    with pytest.raises(ValueError, match="over the limit of 1000"):
        client.send({"text": "x" * 1000})
    client.send({"type": "heartbeat"})
    assert server.receive() == [{"type": "heartbeat"}]


def test_a_text_that_is_sent_to_many_is_kept_once(sockets: list[socket.socket]) -> None:
    text = encode({"members": ["node"] * 500_000})
    channels = [connected(sockets) for _ in range(2)]
    for server, _ in channels:
        server.send(text)
        assert server.unsent
        assert server._out[-1].obj is text
    for server, client in channels:
        messages: list[Any] = []
        while not messages:
            server.flush()
            messages = client.receive()
        assert encode(messages[0]) == text


def test_one_look_reads_a_bounded_amount_however_fast_the_other_end_sends() -> None:
    """An agent that floods the leader holds up nobody else, and cannot fill its memory in one go."""

    class Endless:
        reads = 0

        def recv(self, count: int) -> bytes:
            self.reads += 1
            assert self.reads < 1000, "it reads for ever"
            return bytes(count)

    one, other = socket.socketpair()
    with one, other:
        channel = Channel(one, SECRET, server=True)
        channel.open = True
        channel._keys = {"send": b"k", "receive": b"k"}
        endless = Endless()
        channel._socket = endless  # type: ignore[assignment]
        with pytest.raises(ChannelError):
            channel.receive()
        assert endless.reads < 100


# -- large messages, slow readers, closing


def test_a_large_message_waits_for_a_slow_reader(sockets: list[socket.socket]) -> None:
    server, client = connected(sockets)
    large = {"text": "x" * (4 << 20)}
    client.send(large)
    client.send({"type": "heartbeat"})
    assert client.unsent > 0, "the socket does not take all of it at once"
    messages: list[dict[str, Any]] = []
    while len(messages) < 2:
        messages += server.receive()
        client.flush()
    assert messages == [large, {"type": "heartbeat"}]
    assert client.unsent == 0


def test_what_was_sent_before_the_end_is_received_before_the_end(sockets: list[socket.socket]) -> None:
    server, client = connected(sockets)
    client.send({"type": "ended"})
    client.close()
    assert server.receive() == [{"type": "ended"}]
    with pytest.raises(ChannelError, match="closed"):
        server.receive()


def test_half_a_message_before_the_end_is_none(sockets: list[socket.socket]) -> None:
    server, client, to_server, from_client = relayed(sockets)
    client.send({"type": "ended"})
    to_server.sendall(from_client.recv(1 << 16)[:-1])
    to_server.close()
    with pytest.raises(ChannelError, match="closed"):
        assert server.receive() == []
        server.receive()


def test_sending_to_an_end_that_is_gone_is_an_error(sockets: list[socket.socket]) -> None:
    server, client = connected(sockets)
    server.close()
    with pytest.raises(ChannelError):
        for _ in range(3):
            client.send({"type": "heartbeat"})


def test_both_ends_close_twice_without_harm(sockets: list[socket.socket]) -> None:
    for channel in connected(sockets):
        channel.close()
        channel.close()
        with pytest.raises(ChannelError):
            channel.receive()


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@given(
    st.dictionaries(
        TEXTS,
        st.recursive(st.none() | st.booleans() | st.integers(-(2**60), 2**60) | TEXTS, st.lists, max_leaves=5),
        max_size=5,
    )
)
def test_any_json_object_arrives_as_it_was_sent(message: dict[str, Any]) -> None:
    sockets: list[socket.socket] = []
    try:
        server, client = connected(sockets)
        client.send(message)
        assert server.receive() == [json.loads(json.dumps(message))]
    finally:
        for each in sockets:
            each.close()


@pytest.mark.parametrize(
    "module",
    [
        "rendezvous/signed_channel",
        "rendezvous/rounds",
        "agent/leader",
        "agent/leader_connection",
    ],
)
def test_no_module_between_agents_can_unpickle_or_evaluate(module: str) -> None:
    tree = ast.parse((Path(launcher.__file__).parent / f"{module}.py").read_text())
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in ([alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""])
    }
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert not imported & {"pickle", "marshal", "shelve", "dill", "cloudpickle", "torch", "multiprocessing"}
    assert not called & {"eval", "exec", "compile", "__import__"}
