"""The program that `attach` starts on a rank's node.

    python -m launcher.attach.node_session shell LOCATION         a shell in the rank's folder and environment
    python -m launcher.attach.node_session relay SOCKET           connects stdin and stdout to a rank's debugger
    python -m launcher.attach.node_session serve FOLDER LOCATION  shell or relay, for one client on the network

LOCATION is the file that the rank's agent has written; see `request_handler.rank_location`. `serve` is for schedulers
that do not let users start a process on a node (PBS): there the agent starts it. FOLDER has the request and a secret.
`serve` accepts one client, which has to prove within a minute that it knows the secret, and ends when the client
disconnects. A client's terminal sends frames: b"d" or b"w", the length (4 bytes, big-endian), then either the bytes
typed (d) or the rows and columns of its window (w, two numbers of 2 bytes).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import queue
import random
import signal
import socket
import struct
import sys
import termios
import threading
import time
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NoReturn

from launcher.attach import requests
from launcher.attach.request_handler import initial_environment
from launcher.rendezvous.handshake import NotTrusted, as_server, receive_exactly
from launcher.rendezvous.interfaces import address_of

CLIENT_TIMEOUT = 60.0  # seconds in which a client has to connect and authenticate
HANDSHAKE_TIMEOUT = 5.0  # seconds for one handshake
MAX_HANDSHAKES = 64  # at the same time
POLL_INTERVAL = 0.1  # seconds
PORT_ATTEMPTS = 20  # ports of the range that are tried
SECRET, SERVED = "secret", "served"  # files of FOLDER
_FRAME = struct.Struct("!cI")
_WINDOW = struct.Struct("!HH")


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
    """Returns the rank's present environment variables, with TERM for the user's terminal.

    Args:
        location: the rank's location, from `request_handler.rank_location`.
        terminal: value of TERM; None: the rank's own.

    Raises:
        OSError: the rank's process is gone.
    """
    values = initial_environment(location["pid"])
    for name, value in location["changes"].items():
        values.pop(name, None)
        if value is not None:
            values[name] = value
    if terminal:
        values["TERM"] = terminal
    return values


def _shell(location: dict[str, Any]) -> int:
    """Replaces this process by a shell in the rank's working folder and environment; returns 1 if the rank is gone."""
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
    """Connects stdin and stdout to the debugger's socket at `path`; returns 1 if nothing listens there, else 0."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as rank:
        try:
            rank.connect(path)
        except OSError as error:
            print(f"launcher: the rank's debugger is not at {path} any more: {error.strerror}", file=sys.stderr)
            return 1
        return _copy(0, 1, rank.fileno(), rank.fileno())


def _copy(reading: int, writing: int, other_reading: int, other_writing: int) -> int:
    """Copies bytes in both directions between two pairs of file descriptors until one end closes; returns 0."""
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
    client = _accept(listener, secret)
    listener.close()
    (folder / SECRET).unlink(missing_ok=True)  # valid for one client only
    if client is None:
        return 1
    if request["mode"] == "debug":
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as rank:
            rank.connect(request["socket"])
            return _copy(client.fileno(), client.fileno(), rank.fileno(), rank.fileno())
    return _terminal(client, location, request.get("term"))


def _listen(low: int, high: int, address: str) -> socket.socket:
    """Returns a listening socket.

    Ports from `low` to `high` are tried first, since the site's firewall admits them for ranks; else any port is used.

    Args:
        low, high: first and last port of the range.
        address: IP address of the network interface; empty: all interfaces.

    Raises:
        OSError: no port is free.
    """
    both = not address and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both or ":" in address else socket.AF_INET
    for port in [*random.sample(range(low, high + 1), min(PORT_ATTEMPTS, high + 1 - low)), 0]:
        with contextlib.suppress(OSError):
            return socket.create_server((address, port), family=family, dualstack_ipv6=both)
    raise OSError("no port is free")


def _accept(listener: socket.socket, secret: bytes) -> socket.socket | None:
    """Waits for a client that proves that it knows the secret, and returns its connection; None: timeout.

    Each handshake has a thread, so that a client which sends nothing does not block the others.
    """
    authenticated: queue.Queue[socket.socket] = queue.Queue()
    slots = threading.BoundedSemaphore(MAX_HANDSHAKES)

    def authenticate(connection: socket.socket) -> None:
        connection.settimeout(HANDSHAKE_TIMEOUT)
        try:
            as_server(connection, secret)
        except (NotTrusted, OSError):
            connection.close()
        else:
            connection.settimeout(None)
            authenticated.put(connection)
        slots.release()

    deadline = time.monotonic() + CLIENT_TIMEOUT
    listener.settimeout(POLL_INTERVAL)
    while time.monotonic() < deadline:
        with contextlib.suppress(queue.Empty):
            return authenticated.get_nowait()
        if not slots.acquire(timeout=POLL_INTERVAL):
            continue
        try:
            connection, _ = listener.accept()
        except OSError:
            slots.release()
            continue
        threading.Thread(target=authenticate, args=(connection,), daemon=True).start()
    return None


def _terminal(client: socket.socket, location: dict[str, Any], terminal: str | None) -> int:
    """Runs a shell in a new pseudo-terminal and connects the client to it until either ends; returns 0."""
    pid, master = pty.fork()
    if pid == 0:
        if terminal:
            os.environ["TERM"] = terminal
        os._exit(_shell(location))
    sources: list[Any] = [client, master]
    try:
        while True:
            ready = wait(sources)
            if master in ready:
                data = os.read(master, 1 << 16)  # EIO when the shell has ended
                if not data:
                    break
                client.sendall(data)
            if client in ready:
                kind, size = _FRAME.unpack(receive_exactly(client, _FRAME.size))
                data = receive_exactly(client, size)
                if kind == b"w":
                    rows, columns = _WINDOW.unpack(data)
                    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
                else:
                    _write(master, data)
    except (OSError, NotTrusted):
        pass
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGHUP)
    client.close()
    return 0


def frame(kind: bytes, data: bytes) -> bytes:
    """Returns `data` as a frame of the given kind, b"d" or b"w", for a client's terminal to send. Pure."""
    return _FRAME.pack(kind, len(data)) + data


def window(rows: int, columns: int) -> bytes:
    """Returns the frame that reports the size of a client's window. Pure."""
    return frame(b"w", _WINDOW.pack(rows, columns))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
