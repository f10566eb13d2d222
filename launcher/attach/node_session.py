"""The program that `attach` starts on a rank's node.

    python -m launcher.attach.node_session shell LOCATION         a shell in the rank's folder and environment
    python -m launcher.attach.node_session relay SOCKET           connects stdin and stdout to a rank's debugger
    python -m launcher.attach.node_session serve FOLDER LOCATION  shell or relay, for one client on the network

LOCATION is the file that the rank's agent has written; see `requests.rank_location`. `serve` is for schedulers
that do not let users start a process on a node (PBS): there the agent starts it. FOLDER has the request and a secret.
`serve` accepts one client, which has to prove within a minute that it knows the secret, and ends when the client
disconnects. All messages are authenticated (`launcher.rendezvous.channel`). Each has one of these keys:

| key | from | value |
|---|---|---|
| data | both | bytes, as text in Latin-1 |
| window | client | rows and columns of the client's terminal |
| end | server | true: the shell or the rank has ended. Without it, the connection was cut |
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import random
import select
import signal
import socket
import struct
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NoReturn

from launcher.attach import requests
from launcher.attach.requests import initial_environment
from launcher.rendezvous.channel import Channel, ChannelError, Hub, Message
from launcher.rendezvous.protocol import address_of

CLIENT_TIMEOUT = 60.0  # seconds in which a client has to connect and authenticate
CLOSE_TIMEOUT = 5.0  # seconds for the client to read the last message
PORT_ATTEMPTS = 20  # ports of the range that are tried
SECRET, SERVED = "secret", "served"  # files of FOLDER
CLIENT = 0  # its index among those that the server accepts
HELLO = {"type": "hello", "index": CLIENT}  # a client's first message


def main(arguments: list[str]) -> int:
    """Runs `shell`, `relay` or `serve`, and returns the exit code."""
    os.umask(0o077)
    what, path, *more = arguments
    if what == "shell":
        return _shell(json.loads(Path(path).read_text()))
    if what == "relay":
        return _relay(path)
    return _serve(Path(path), more[0])


def environment(location: dict[str, Any], terminal: str | None) -> dict[str, str]:
    """Returns the rank's present environment variables, with this TERM; raises OSError: its process is gone."""
    values = initial_environment(location["pid"])
    for name, value in location["changes"].items():
        values.pop(name, None)
        if value is not None:
            values[name] = value
    if terminal:
        values["TERM"] = terminal
    return values


def _shell(location: dict[str, Any]) -> int:
    rank, pid = location["rank"], location["pid"]
    try:
        values = environment(location, os.environ.get("TERM"))
        os.chdir(location["cwd"])
    except OSError as error:
        print(f"launcher: rank {rank} (process {pid}) is gone: {error}", file=sys.stderr)
        return 1
    shell = values.get("SHELL") or "/bin/bash"
    if not os.access(shell, os.X_OK):
        shell = "/bin/bash"
    print(f"attached to rank {rank} on {location['host']} (process {pid}); `exit` does not affect the run", flush=True)
    return _execute(shell, values)


def _execute(shell: str, values: dict[str, str]) -> NoReturn:
    os.execve(shell, [shell], values)  # noqa: S606


def _relay(path: str) -> int:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as rank:
        try:
            rank.connect(path)
        except OSError as error:
            print(f"launcher: the rank's debugger is not at {path} any more: {error.strerror}", file=sys.stderr)
            return 1
        return _copy(0, 1, rank.fileno(), rank.fileno())


def _copy(reading: int, writing: int, other_reading: int, other_writing: int) -> int:
    targets = {reading: other_writing, other_reading: writing}
    while True:
        ready = wait(list(targets))
        for source, target in targets.items():
            if source not in ready:
                continue
            try:
                data = os.read(source, 1 << 16)
            except OSError:
                data = b""
            if not data:
                return 0
            _write(target, data)


def _write(target: int, data: bytes) -> None:
    while data:
        data = data[os.write(target, data) :]


# -- over the network


def _serve(folder: Path, name: str) -> int:
    location, secret = requests.read_reply(folder / name), (folder / SECRET).read_bytes()
    request = json.loads((folder / "question").read_text())
    low, high = request["ports"]
    listener = _listen(low, high, address_of(location["host"]))
    requests.write_reply(folder / SERVED, json.dumps({"port": listener.getsockname()[1], "host": socket.gethostname()}))
    hub = Hub(listener, secret, members=[CLIENT])
    messages = _first_messages(hub)
    (folder / SECRET).unlink(missing_ok=True)  # valid for one client only
    if not messages:
        hub.close()
        return 1
    client = hub.release(CLIENT)
    if request["mode"] == "debug":
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as rank:
            rank.connect(request["socket"])
            _serve_descriptor(client, messages, rank.fileno())
    else:
        _serve_shell(client, messages, location, request.get("term"))
    return 0


def _listen(low: int, high: int, address: str) -> socket.socket:
    # Ports from `low` to `high` are tried first, since the site's firewall admits them for ranks; else any port is
    # used.
    both = not address and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both or ":" in address else socket.AF_INET
    for port in [*random.sample(range(low, high + 1), min(PORT_ATTEMPTS, high + 1 - low)), 0]:
        with contextlib.suppress(OSError):
            return socket.create_server((address, port), family=family, dualstack_ipv6=both)
    raise OSError("no port is free")


def _first_messages(hub: Hub) -> list[Message]:
    deadline, found = time.monotonic() + CLIENT_TIMEOUT, list[Message]()
    while not (found and hub.channels) and (left := deadline - time.monotonic()) > 0:
        found = [message for _, message in hub.poll(left) if message is not None]
    return found if hub.channels else []


def _serve_shell(client: Channel, messages: Sequence[Message], location: dict[str, Any], terminal: str | None) -> None:
    pid, master = pty.fork()
    if pid == 0:
        if terminal:
            os.environ["TERM"] = terminal
        os._exit(_shell(location))
    _serve_descriptor(client, messages, master)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGHUP)


def _serve_descriptor(client: Channel, messages: Sequence[Message], served: int) -> None:
    os.set_blocking(served, False)
    unwritten = bytearray()
    with contextlib.closing(client), contextlib.suppress(ChannelError):
        while True:
            for message in messages:
                if "window" in message:
                    fcntl.ioctl(served, termios.TIOCSWINSZ, struct.pack("HHHH", *message["window"], 0, 0))
                unwritten += data_of(message)
            events = (0 if client.unsent else select.POLLIN) | (select.POLLOUT if unwritten else 0)
            messages, ready = exchange(client, {served: events}, reads=not unwritten)
            if ready.get(served, 0) & select.POLLOUT:
                with contextlib.suppress(BlockingIOError):
                    del unwritten[: os.write(served, unwritten)]
            if ready.get(served, 0) & ~select.POLLOUT:
                try:
                    data = os.read(served, 1 << 16)
                except OSError:  # EIO when the shell has ended
                    data = b""
                client.send(data_message(data) if data else {"end": True})
                if not data:
                    break
        deadline = time.monotonic() + CLOSE_TIMEOUT
        while (left := deadline - time.monotonic()) > 0:  # until the client closes the connection
            exchange(client, {}, timeout=left)


def exchange(
    channel: Channel, others: Mapping[int, int], *, reads: bool = True, timeout: float | None = None
) -> tuple[Sequence[Message], dict[int, int]]:
    """Waits until something arrives, or one of the other descriptors is ready. Sends unsent messages meanwhile.

    others: the events of poll(2) to wait for, by file descriptor. timeout: seconds; None: no limit.
    reads: whether messages are received; else only their end is noticed.
    Returns the messages that have arrived, and the events of descriptors. Raises ChannelError.
    """
    poll = select.poll()
    poll.register(channel, (select.POLLIN if reads else select.POLLRDHUP) | (select.POLLOUT if channel.unsent else 0))
    for descriptor, events in others.items():
        if events:
            poll.register(descriptor, events)
    ready = dict(poll.poll(None if timeout is None else timeout * 1000))
    events = ready.get(channel.fileno(), 0)
    if events & select.POLLOUT:
        channel.flush()
    if not events & ~select.POLLOUT:
        return (), ready
    if not reads:
        raise ChannelError("the other end has closed the connection")
    return channel.receive(), ready


def data_message(data: bytes) -> Message:
    return {"data": data.decode("latin-1")}


def data_of(message: Message) -> bytes:
    return str(message.get("data", "")).encode("latin-1")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
