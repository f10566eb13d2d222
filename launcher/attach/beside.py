"""What `attach` starts on a rank's node.

    python -m launcher.attach.beside shell ANSWER          a shell in the rank's folder and environment
    python -m launcher.attach.beside relay SOCKET          stdin and stdout <-> a rank's debugger
    python -m launcher.attach.beside serve FOLDER ANSWER   either of them, for one client that comes over the network

ANSWER is what the rank's agent has told of it; see `answers.beside`. `serve` is for schedulers that let nobody onto a
node (PBS): the agent starts it. It takes one client, which knows the secret in FOLDER, within a minute, and ends with
it.
Bytes of a client's terminal come in frames: b"d" or b"w", the length (4 bytes, big-endian), and the bytes typed, or two
numbers of 2 bytes: rows and columns of its window.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import queue
import random
import select
import signal
import socket
import struct
import sys
import termios
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

from launcher.attach import requests
from launcher.attach.answers import initial_environment
from launcher.rendezvous.handshake import Stranger, as_server, exactly
from launcher.rendezvous.interfaces import address_of

COMES_WITHIN = 60.0  # seconds in which the client connects
PROVES_WITHIN = 5.0  # seconds that a client has for its proof
AT_ONCE = 64  # clients that may be proving at once
LOOK = 0.1  # seconds between two looks whether one has
PORTS = 20  # ports that are tried
SECRET, SERVED = "secret", "served"  # files of FOLDER
_FRAME = struct.Struct("!cI")
_WINDOW = struct.Struct("!HH")


def main(arguments: list[str]) -> int:
    os.umask(0o077)
    what, path, *more = arguments
    if what == "shell":
        return _shell(json.loads(Path(path).read_text()))
    if what == "relay":
        return _relay(path)
    return _serve(Path(path), more[0])


def environment(told: dict[str, Any], terminal: str | None) -> dict[str, str]:
    """The rank's variables, with a terminal's."""
    values = initial_environment(told["pid"])
    for name, value in told["changes"].items():
        values.pop(name, None)
        if value is not None:
            values[name] = value
    if terminal:
        values["TERM"] = terminal
    return values


def _shell(told: dict[str, Any]) -> int:
    """Becomes a shell beside the rank."""
    try:
        values = environment(told, os.environ.get("TERM"))
        os.chdir(told["cwd"])
    except OSError as error:
        print(f"launcher: rank {told['rank']} (process {told['pid']}) is gone: {error}", file=sys.stderr)
        return 1
    shell = values.get("SHELL") or "/bin/bash"
    if not os.access(shell, os.X_OK):
        shell = "/bin/bash"
    print(f"beside rank {told['rank']} on {told['host']} (process {told['pid']}); `exit` leaves the run alone")
    sys.stdout.flush()
    return _become(shell, values)


def _become(shell: str, values: dict[str, str]) -> NoReturn:
    os.execve(shell, [shell], values)  # noqa: S606


def _relay(path: str) -> int:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as rank:
        try:
            rank.connect(path)
        except OSError as error:
            print(f"launcher: the rank's debugger is not at {path} any more: {error.strerror}", file=sys.stderr)
            return 1
        return _join(0, 1, rank.fileno(), rank.fileno())


def _join(reading: int, writing: int, other_reading: int, other_writing: int) -> int:
    """Copies both ways until one end closes."""
    ways = {reading: other_writing, other_reading: writing}
    while True:
        ready, _, _ = select.select(list(ways), [], [])
        for source in ready:
            try:
                data = os.read(source, 1 << 16)
            except OSError:
                data = b""
            if not data:
                return 0
            _write(ways[source], data)


def _write(target: int, data: bytes) -> None:
    while data:
        data = data[os.write(target, data) :]


# -- over the network


def _serve(folder: Path, name: str) -> int:
    told, secret = requests.read(folder / name), (folder / SECRET).read_bytes()
    question = json.loads((folder / "question").read_text())
    low, high = question["ports"]
    listener = _listen(low, high, address_of(told["host"]))
    requests.answer(folder / SERVED, json.dumps({"port": listener.getsockname()[1], "host": socket.gethostname()}))
    client = _client(listener, secret)
    listener.close()
    (folder / SECRET).unlink(missing_ok=True)  # it was good for one
    if client is None:
        return 1
    if question["mode"] == "debug":
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as rank:
            rank.connect(question["socket"])
            return _join(client.fileno(), client.fileno(), rank.fileno(), rank.fileno())
    return _terminal(client, told, question.get("term"))


def _listen(low: int, high: int, address: str) -> socket.socket:
    """A listener on a free port in [low, high], where the site's firewall lets ranks meet; else on any.

    Args:
        low, high: the ports.
        address: of the interface; empty: all of them.
    """
    both = not address and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both or ":" in address else socket.AF_INET
    for port in [*random.sample(range(low, high + 1), min(PORTS, high + 1 - low)), 0]:
        with contextlib.suppress(OSError):
            return socket.create_server((address, port), family=family, dualstack_ipv6=both)
    raise OSError("no port is free")


def _client(listener: socket.socket, secret: bytes) -> socket.socket | None:
    """The first one that proves that it knows the secret; others may try at the same time."""
    proved: queue.Queue[socket.socket] = queue.Queue()
    trying = threading.BoundedSemaphore(AT_ONCE)

    def prove(connection: socket.socket) -> None:
        connection.settimeout(PROVES_WITHIN)
        try:
            as_server(connection, secret)
        except (Stranger, OSError):
            connection.close()
        else:
            connection.settimeout(None)
            proved.put(connection)
        trying.release()

    give_up = time.monotonic() + COMES_WITHIN
    listener.settimeout(LOOK)
    while time.monotonic() < give_up:
        with contextlib.suppress(queue.Empty):
            return proved.get_nowait()
        if not trying.acquire(timeout=LOOK):
            continue
        try:
            connection, _ = listener.accept()
        except OSError:
            trying.release()
            continue
        threading.Thread(target=prove, args=(connection,), daemon=True).start()
    return None


def _terminal(client: socket.socket, told: dict[str, Any], terminal: str | None) -> int:
    """A shell with a terminal of its own, for the client to sit at."""
    pid, master = pty.fork()
    if pid == 0:
        if terminal:
            os.environ["TERM"] = terminal
        os._exit(_shell(told))
    sources: list[Any] = [client, master]
    try:
        while True:
            ready, _, _ = select.select(sources, [], [])
            if master in ready:
                data = os.read(master, 1 << 16)  # EIO when the shell has ended
                if not data:
                    break
                client.sendall(data)
            if client in ready:
                kind, size = _FRAME.unpack(exactly(client, _FRAME.size))
                data = exactly(client, size)
                if kind == b"w":
                    rows, columns = _WINDOW.unpack(data)
                    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
                else:
                    _write(master, data)
    except (OSError, Stranger):
        pass
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGHUP)
    client.close()
    return 0


def frame(kind: bytes, data: bytes) -> bytes:
    """What a client's terminal sends. Pure."""
    return _FRAME.pack(kind, len(data)) + data


def window(rows: int, columns: int) -> bytes:
    """The frame that tells the size of a client's window. Pure."""
    return frame(b"w", _WINDOW.pack(rows, columns))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
