"""The leader's connections: members come and go, and whoever else connects holds up nobody."""

from __future__ import annotations

import errno
import selectors
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from launcher.rendezvous import signed_channel as hub_module
from launcher.rendezvous.signed_channel import Channel, ChannelError, Event, Hub

SECRET = b"the attempt's"


@pytest.fixture
def hub() -> Iterator[Hub]:
    made = Hub(socket.create_server(("127.0.0.1", 0), backlog=128), SECRET, members=range(1, 10))
    yield made
    made.close()


@pytest.fixture
def connect(hub: Hub) -> Iterator[Callable[..., Channel]]:
    """Connects a member, or somebody else, without waiting for an answer."""
    opened: list[Channel] = []

    def make(secret: bytes = SECRET) -> Channel:
        channel = Channel(socket.create_connection(("127.0.0.1", hub.port)), secret, server=False)
        opened.append(channel)
        return channel

    yield make
    for channel in opened:
        channel.close()


def until(hub: Hub, done: Callable[[], bool], *channels: Channel) -> list[Event]:
    """What the hub tells until something is so; the channels go on with their handshakes meanwhile."""
    events: list[Event] = []
    give_up = time.monotonic() + 30
    while not done():
        assert time.monotonic() < give_up, events
        events += hub.poll(0.01)
        for channel in channels:
            channel.receive()
    return events


def joined(hub: Hub, channel: Channel, index: int) -> list[Event]:
    """The channel becomes that member's."""
    until(hub, lambda: channel.open, channel)
    channel.send({"type": "hello", "index": index})
    return told(hub, lambda events: (index, {"type": "hello", "index": index}) in events)


def told(hub: Hub, enough: Callable[[list[Event]], bool]) -> list[Event]:
    """What the hub tells until that is enough."""
    events: list[Event] = []
    give_up = time.monotonic() + 30
    while not enough(events):
        assert time.monotonic() < give_up, events
        events += hub.poll(0.01)
    return events


def read(channel: Channel) -> list[dict[str, Any]]:
    """What arrives next."""
    with selectors.DefaultSelector() as selector:
        selector.register(channel, selectors.EVENT_READ)
        assert selector.select(30)
    return channel.receive()


def test_a_member_is_known_by_its_first_message(hub: Hub, connect: Callable[..., Channel]) -> None:
    one, two = connect(), connect()
    assert joined(hub, one, 4) == [(4, {"type": "hello", "index": 4})]
    joined(hub, two, 7)
    two.send({"type": "heartbeat"})
    assert told(hub, bool) == [(7, {"type": "heartbeat"})]
    hub.broadcast([4, 7, 9], {"type": "begin"})
    assert read(one) == read(two) == [{"type": "begin"}]


def test_a_member_that_ends_is_told_after_its_last_message(hub: Hub, connect: Callable[..., Channel]) -> None:
    channel = connect()
    joined(hub, channel, 4)
    channel.send({"type": "ended"})
    channel.close()
    assert told(hub, lambda events: (4, None) in events) == [(4, {"type": "ended"}), (4, None)]
    assert hub.channels == {}


def test_a_member_that_is_found_gone_while_something_is_sent_is_told_once(
    hub: Hub, connect: Callable[..., Channel]
) -> None:
    channel = connect()
    joined(hub, channel, 4)
    hub.channels[4]._socket.shutdown(socket.SHUT_WR)
    hub.send(4, {"type": "heartbeat"})
    hub.send(4, {"type": "heartbeat"})
    assert told(hub, bool) == [(4, None)]
    assert hub.poll(0) == []


def test_a_member_that_connects_again_replaces_its_old_connection(hub: Hub, connect: Callable[..., Channel]) -> None:
    """The network cut the first one without a word."""
    first, second = connect(), connect()
    joined(hub, first, 4)
    assert joined(hub, second, 4) == [(4, None), (4, {"type": "hello", "index": 4})]
    hub.send(4, {"type": "begin"})
    assert read(second) == [{"type": "begin"}]
    with pytest.raises(ChannelError):
        read(first)


def test_an_old_connection_that_is_replaced_while_it_can_be_written_is_forgotten(
    hub: Hub, connect: Callable[..., Channel]
) -> None:
    """Both are found ready in one look, the new one first."""
    first, second = connect(), connect()
    joined(hub, first, 4)
    until(hub, lambda: second.open, second)
    old = hub.channels[4]
    second.send({"type": "hello", "index": 4})
    (new,) = hub._pending
    keys = [(selectors.SelectorKey(channel, channel.fileno(), 0, None), mask) for channel, mask in
            ((new, selectors.EVENT_READ), (old, selectors.EVENT_WRITE))]  # fmt: skip
    real, hub._selector.select = hub._selector.select, lambda _=None: keys  # type: ignore[method-assign]
    events = hub.poll(0)
    hub._selector.select = real  # type: ignore[method-assign]
    assert events == [(4, None), (4, {"type": "hello", "index": 4})]
    hub.send(4, {"type": "begin"})
    assert read(second) == [{"type": "begin"}]


@pytest.mark.parametrize(
    "first",
    [{"type": "heartbeat"}, {"type": "hello"}, {"type": "hello", "index": "4"}, {"type": "hello", "index": None},
     {"type": "hello", "index": True}, {"type": "hello", "index": 4.0}, {"type": "hello", "index": [4]}, {}],
)  # fmt: skip
def test_whoever_does_not_say_which_member_it_is_is_dropped(
    hub: Hub, connect: Callable[..., Channel], first: dict[str, Any]
) -> None:
    channel = connect()
    until(hub, lambda: channel.open, channel)
    channel.send(first)
    assert until(hub, lambda: not hub._pending) == []
    assert hub.channels == {}


@pytest.mark.parametrize("index", [0, 10, 99, -1])
def test_an_agent_that_is_no_member_is_refused_by_name(hub: Hub, connect: Callable[..., Channel], index: int) -> None:
    """The leader's own number, or one that the job does not have: a mistake of whoever started the agents."""
    channel = connect()
    until(hub, lambda: channel.open, channel)
    channel.send({"type": "hello", "index": index})
    assert until(hub, lambda: not hub._pending) == []
    (message,) = read(channel)
    assert message == {"type": "refused", "fault": {"code": "not_a_member", "node": index}}
    assert hub.channels == {}


def test_who_does_not_know_the_secret_is_never_a_member(hub: Hub, connect: Callable[..., Channel]) -> None:
    stranger = connect(b"another")
    give_up = time.monotonic() + 30
    with pytest.raises(ChannelError):
        while time.monotonic() < give_up:
            assert hub.poll(0.01) == []
            stranger.receive()
    assert hub.channels == {} and not hub._pending


def test_a_member_gets_in_past_connections_that_say_nothing(hub: Hub, connect: Callable[..., Channel]) -> None:
    silent = [socket.create_connection(("127.0.0.1", hub.port)) for _ in range(40)]
    try:
        joined(hub, connect(), 4)
        assert list(hub.channels) == [4]
    finally:
        for each in silent:
            each.close()


def test_of_too_many_connections_that_say_nothing_the_oldest_is_closed(
    hub: Hub, connect: Callable[..., Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "PENDING", 3)
    silent = [socket.create_connection(("127.0.0.1", hub.port)) for _ in range(8)]
    try:
        until(hub, lambda: len(hub._pending) == 3)
        joined(hub, connect(), 4)
        assert len(hub._pending) <= 3
    finally:
        for each in silent:
            each.close()


def test_a_connection_that_says_nothing_is_given_up_in_the_middle_of_a_long_wait(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait itself ends in time, so that the file descriptor is free again."""
    monkeypatch.setattr(hub_module, "HANDSHAKE", 0.05)
    waits: list[float] = []
    real = hub._selector.select
    monkeypatch.setattr(hub._selector, "select", lambda timeout=None: waits.append(timeout) or real(timeout))
    with closing(socket.create_connection(("127.0.0.1", hub.port))):
        until(hub, lambda: bool(hub._pending))
        waits.clear()
        hub.poll(60)
        assert waits[0] <= 0.06
        until(hub, lambda: not hub._pending)


def test_a_member_that_reads_slowly_holds_up_no_other(hub: Hub, connect: Callable[..., Channel]) -> None:
    slow, quick = connect(), connect()
    joined(hub, slow, 1)
    joined(hub, quick, 2)
    large = {"type": "begin", "text": "x" * (4 << 20)}
    hub.send(1, large)
    assert hub.channels[1].unsent
    hub.broadcast([1, 2], {"type": "heartbeat"})
    assert read(quick) == [{"type": "heartbeat"}]
    messages: list[dict[str, Any]] = []
    while len(messages) < 2:
        messages += slow.receive()
        hub.poll(0)
    assert messages == [large, {"type": "heartbeat"}]


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
def test_a_leader_without_file_descriptors_neither_spins_nor_stops_listening(
    hub: Hub, connect: Callable[..., Channel], monkeypatch: pytest.MonkeyPatch, number: int,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """The connection stays in the backlog; it is taken when a descriptor is free, also in the middle of a long wait."""
    tries, real, listener = 0, hub._listener, hub._listener

    class Full:
        def accept(self) -> tuple[socket.socket, Any]:
            nonlocal tries
            tries += 1
            if tries <= 3:
                raise OSError(number, "none is left")
            return real.accept()

        def __getattr__(self, name: str) -> Any:
            return getattr(listener, name)

    full = Full()
    hub._selector.unregister(listener)
    hub._listener = full  # type: ignore[assignment]
    hub._selector.register(full, selectors.EVENT_READ)  # type: ignore[arg-type]
    waits: list[float] = []
    monkeypatch.setattr(hub_module.time, "sleep", waits.append)
    channel = connect()
    for _ in range(50):
        if tries > 3:
            break
        hub.poll(60)
    assert tries > 3
    assert waits == [hub_module.PAUSE] * 3, "it spins"
    assert capfd.readouterr().err.count("launcher: the leader cannot accept agents now: ") == 1
    joined(hub, channel, 4)


def test_draining_waits_until_members_have_read_everything(hub: Hub, connect: Callable[..., Channel]) -> None:
    channel = connect()
    joined(hub, channel, 4)
    hub.send(4, {"type": "over"})
    assert read(channel) == [{"type": "over"}]
    channel.close()
    hub.drain([4, 5], 30)
    assert hub.channels == {}


def test_closing_sends_what_the_socket_takes_and_frees_the_port(connect: Callable[..., Channel], hub: Hub) -> None:
    channel = connect()
    joined(hub, channel, 4)
    port = hub.port
    hub.send(4, {"type": "over"})
    hub.close()
    assert read(channel) == [{"type": "over"}]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
