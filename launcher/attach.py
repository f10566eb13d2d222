"""`attach` on a rank's node: the program that it starts there, and how agents are asked for it.

    python -m launcher.attach shell LOCATION         a shell in the rank's folder and environment
    python -m launcher.attach relay SOCKET           connects stdin and stdout to a rank's debugger
    python -m launcher.attach serve FOLDER LOCATION  shell or relay, for one client on the network

LOCATION is the file that the rank's agent has written; see `rank_location`. `serve` is for schedulers that do not let
users start a process on a node (PBS): there the agent starts it, for one client, which has to prove within a minute
that it knows the secret in FOLDER. Messages are authenticated (`rendezvous.signed_channel`). Each has one of:

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
import re
import secrets
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from launcher import processes
from launcher.files import safe_io
from launcher.paths import own_module
from launcher.rendezvous.rounds import address_of, free_ports, listen
from launcher.rendezvous.signed_channel import Channel, ChannelError, Hub, Message
from launcher.runs import directory, event_files, events
from launcher.runs.events import AttachRequest
from launcher.worker.hang_diagnosis import Stacks

CLIENT_TIMEOUT = 60.0  # seconds in which a client has to connect and authenticate
CLOSE_TIMEOUT = 5.0  # seconds for the client to read the last message
SECRET, SERVED = "secret", "served"  # files of FOLDER
CLIENT = 0  # its index among those that the server accepts
HELLO = {"type": "hello", "index": CLIENT}  # a client's first message


def main(arguments: list[str]) -> int:
    os.umask(0o077)
    what, path, *more = arguments
    if what == "shell":
        return _shell(json.loads(Path(path).read_text()))
    return _relay(path) if what == "relay" else _serve(Path(path), more[0])


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
    return os.execve(shell, [shell], values)  # noqa: S606


def _relay(path: str) -> int:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as rank:
        try:
            rank.connect(path)
        except OSError as error:
            print(f"launcher: the rank's debugger is not at {path} any more: {error.strerror}", file=sys.stderr)
            return 1
        targets = {0: rank.fileno(), rank.fileno(): 1}
        while True:
            for source in wait(list(targets)):
                try:
                    data = os.read(source, 1 << 16)  # type: ignore[arg-type]
                except OSError:
                    data = b""
                if not data:
                    return 0
                while data:
                    data = data[os.write(targets[source], data) :]  # type: ignore[index]


def _serve(folder: Path, name: str) -> int:
    location, secret = read_reply(folder / name), (folder / SECRET).read_bytes()
    request = json.loads((folder / "question").read_text())
    low, high = request["ports"]  # the site's firewall admits them for ranks
    listener = listen([*free_ports((low, high)), 0], address_of(location["host"]))
    write_reply(folder / SERVED, json.dumps({"port": listener.getsockname()[1], "host": socket.gethostname()}))
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
            wanted = (0 if client.unsent else select.POLLIN) | (select.POLLOUT if unwritten else 0)
            messages, ready = exchange(client, {served: wanted}, reads=not unwritten)
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
    """Waits until something arrives, or one of the other descriptors is ready; returns messages, and events of poll(2).

    others: the events to wait for, by file descriptor. reads: whether messages are received; else only their end is
    noticed. timeout: seconds; None: no limit. Sends unsent messages meanwhile. Raises ChannelError.
    """
    poll = select.poll()
    poll.register(channel, (select.POLLIN if reads else select.POLLRDHUP) | (select.POLLOUT if channel.unsent else 0))
    for descriptor, wanted in others.items():
        if wanted:
            poll.register(descriptor, wanted)
    ready = dict(poll.poll(None if timeout is None else timeout * 1000))
    arrived = ready.get(channel.fileno(), 0)
    if arrived & select.POLLOUT:
        channel.flush()
    if not arrived & ~select.POLLOUT:
        return (), ready
    if not reads:
        raise ChannelError("the other end has closed the connection")
    return channel.receive(), ready


def data_message(data: bytes) -> Message:
    return {"data": data.decode("latin-1")}


def data_of(message: Message) -> bytes:
    return str(message.get("data", "")).encode("latin-1")


# -- Requests of commands to the agents of a running attempt, and the agents' replies, as files of the run directory
#
# attempts/N/attach.jsonl        the requests, one line of JSON each; the leading agent creates it and reads it every
#                                second
# attempts/N/attach/ID/member-P  the reply of agent P; the command creates it, empty, before it sends the request. That
#                                about one rank is in member-0, whichever agent has the rank
#
# Files work with every scheduler, and need no connection to the nodes. Each file is created before its reader polls it,
# and a reply is written into it: NFS may hide a new file for half a minute, but shows data appended to a known one.


STACKS = "stacks"  # the stacks of all ranks
RANK = "rank"  # the location of one rank; see rank_location
SERVE = "serve"  # the same, and start `launcher.attach serve` on the rank's node
ONLY_REPLY = "member-0"  # the file with the reply about one rank, which one agent has
_ID = re.compile(r"[0-9a-f]{16}")


def parse(text: str) -> dict[str, Any] | None:
    """Parses a line of JSON; None: not a valid request. The `id` of a valid request is safe as a folder name."""
    try:
        request = json.loads(text)
    except ValueError:
        return None
    valid = isinstance(request, dict) and _ID.fullmatch(str(request.get("id"))) and "what" in request
    return request if valid else None


def folder_of(attempt: directory.Attempt, request: dict[str, Any]) -> Path:
    return attempt.path / "attach" / str(request["id"])


def is_listening(attempt: directory.Attempt) -> bool:
    """Returns whether the leading agent reads requests."""
    return (attempt.path / "attach.jsonl").exists()


def send(
    attempt: directory.Attempt, what: str, members: int = 1, files: Mapping[str, str] | None = None,
    rank: int | None = None,
) -> Path:  # fmt: skip
    """Sends a request (STACKS, RANK or SERVE) to all agents; returns the folder of their replies; raises OSError.

    members: number of agents that reply, for each of which an empty file is created. files: further ones, by name.
    """
    request = AttachRequest(id=secrets.token_hex(8), what=what, rank=rank)
    folder = folder_of(attempt, events.values(request))
    safe_io.make_folder(folder)
    for name, text in {**{f"member-{place}": "" for place in range(members)}, **(files or {})}.items():
        write_reply(folder / name, text)
    event_files.append(attempt.path / "attach.jsonl", request)
    return folder


def write_reply(path: Path, text: str) -> None:
    """Writes a file that only this user can read. An existing file is overwritten, not replaced."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)


def read_reply(path: Path) -> Any:
    """Returns the reply in a file, parsed from JSON; None: the file is missing or not complete yet."""
    try:
        return safe_io.parse_json(safe_io.read_whole(path))
    except (OSError, ValueError):
        return None


GONE = 0  # pid of a rank that has ended, since the system may reuse its real pid


@dataclass(frozen=True)
class RankProcess:
    rank: int
    pid: int  # GONE: it has ended
    step: int  # the last training step that the rank has completed; -1: none
    environment: Mapping[str, str]


@dataclass
class RequestHandler:
    """Answers the requests that commands send to one agent. One object serves all rounds of the agent."""

    attempt: directory.Attempt
    stacks: Stacks
    _read: int | None = None  # bytes of the requests that the leading agent has read
    _waiting: list[str] = field(default_factory=list)  # what it has read, and not returned yet
    _last: str = ""
    _servers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def next_request(self) -> str | None:
        """On the leading agent: returns the next request that was sent after the first call, a line of JSON."""
        path = self.attempt.path / "attach.jsonl"
        with contextlib.suppress(OSError), safe_io.open_to_append(path) as file:  # a full disk: nobody can send one
            size = os.fstat(file).st_size
            self._read = size if self._read is None else self._read
            whole, end, _ = os.pread(file, max(0, size - self._read), self._read).rpartition(b"\n")
            self._read += len(whole) + len(end)
            self._waiting += whole.decode(errors="replace").splitlines()
        return self._waiting.pop(0) if self._waiting else None

    def handle(self, text: str, place: int, host: str, processes: Callable[[], Sequence[RankProcess]]) -> None:
        """Writes this agent's reply to a request, once. An error never fails the run."""
        request = None if text == self._last else parse(text)
        self._last = text
        self._servers = [server for server in self._servers if server.poll() is None]
        if request is None:
            return
        ranks = processes()
        with contextlib.suppress(OSError):  # a full disk, or the command has given up
            if request["what"] == STACKS:
                taken = zip(ranks, self.stacks.take([rank.pid for rank in ranks]), strict=True)
                self._reply(request, place, [
                    {"rank": rank.rank, "host": host, "pid": rank.pid, "step": rank.step, "state": state,
                     "stack": stack}
                    for rank, (state, stack) in taken
                ])  # fmt: skip
            for rank in ranks:
                if rank.rank == request.get("rank") and request["what"] in (RANK, SERVE):
                    self._reply(request, 0, rank_location(host, rank))  # no other agent replies
                    if request["what"] == SERVE:
                        self._serve(request)

    def _reply(self, request: dict[str, Any], place: int, value: Any) -> None:
        write_reply(folder_of(self.attempt, request) / f"member-{place}", json.dumps(value))

    def _serve(self, request: dict[str, Any]) -> None:
        folder = folder_of(self.attempt, request)
        command = [sys.executable, *own_module("launcher.attach"), "serve", str(folder), ONLY_REPLY]
        server = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            preexec_fn=processes.restore_limit,
        )  # fmt: skip
        self._servers.append(server)


def rank_location(host: str, rank: RankProcess) -> dict[str, Any]:
    """Returns a rank's `rank`, `host`, `pid`, `cwd`, `job` (id of Slurm) and `changes`; raises OSError.

    `changes` has the variables that differ from the environment with which the process was started (None: removed):
    that may contain secrets, so the shell reads it from /proc.
    """
    now, first = rank.environment, initial_environment(rank.pid)
    if first.get("RANK") == str(rank.rank):  # the rank has called exec, so /proc has its present environment
        now = first
    changes: dict[str, str | None] = {name: value for name, value in now.items() if first.get(name) != value}
    changes |= {name: None for name in first if name not in now}
    return {
        "rank": rank.rank, "host": host, "pid": rank.pid, "changes": changes,
        "job": now.get("SLURM_JOB_ID"), "cwd": os.readlink(f"/proc/{rank.pid}/cwd"),
    }  # fmt: skip


def initial_environment(pid: int) -> dict[str, str]:
    """Returns the environment with which a process was started (man 5 proc, /proc/PID/environ); OSError."""
    pairs = (os.fsdecode(entry).partition("=") for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    return {name: value for name, equals, value in pairs if equals}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
