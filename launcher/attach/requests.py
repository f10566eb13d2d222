"""Requests of commands to the agents of a running attempt, and the agents' replies, as files of the run directory.

    attempts/N/attach.jsonl        the requests, one line of JSON each; the leading agent creates it and reads it every
                                  second
    attempts/N/attach/ID/member-P  the reply of agent P; the command creates it, empty, before it sends the request

Files work with every scheduler, and need no connection to the nodes. Each file is created before its reader polls it:
NFS may hide a new file for half a minute, but shows data appended to a known file as soon as it is reopened. For the
same reason a reply is written into the existing file, and not renamed to it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher import processes
from launcher.files import run_files
from launcher.own_module import own_module
from launcher.runs import directory, event_file, events
from launcher.runs.events import AttachRequest
from launcher.worker.hangs import Stacks

STACKS = "stacks"  # the stacks of all ranks
RANK = "rank"  # the location of one rank; see rank_location
SERVE = "serve"  # the same, and start `node_session serve` on the rank's node
_ID = re.compile(r"[0-9a-f]{16}")


class RequestReader:
    """Reads requests, for the leading agent. Skips requests that were sent before this object was created."""

    def __init__(self, attempt: directory.Attempt) -> None:
        self._path, self._read = attempt.path / "attach.jsonl", 0
        self._waiting: list[str] = []
        with contextlib.suppress(OSError):  # a full disk: then no request can be sent
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            self._read = os.fstat(file).st_size
            os.close(file)

    def next(self) -> str | None:
        """Returns the oldest request not returned yet, a line of JSON; None: there is none."""
        with contextlib.suppress(OSError), open(self._path, "rb") as file:
            if os.fstat(file.fileno()).st_size > self._read:
                file.seek(self._read)
                whole, end, _ = file.read().rpartition(b"\n")
                self._read += len(whole) + len(end)
                self._waiting += whole.decode(errors="replace").splitlines()
        return self._waiting.pop(0) if self._waiting else None


def parse(text: str) -> dict[str, Any] | None:
    """Parses a line of JSON; None: not a valid request. The `id` of a valid request is safe as a folder name."""
    try:
        request = json.loads(text)
    except ValueError:
        return None
    valid = isinstance(request, dict) and _ID.fullmatch(str(request.get("id"))) and "what" in request
    return request if valid else None


def folder_of(attempt: directory.Attempt, request: dict[str, Any]) -> Path:
    """Returns the folder that receives the replies to a request."""
    return attempt.path / "attach" / str(request["id"])


def is_listening(attempt: directory.Attempt) -> bool:
    """Returns whether the leading agent has started to read requests."""
    return (attempt.path / "attach.jsonl").exists()


def send(
    attempt: directory.Attempt, what: str, members: int, files: dict[str, str] | None = None, rank: int | None = None
) -> Path:
    """Sends a request to all agents of an attempt, and returns the folder of their replies; raises OSError.

    what: the request: STACKS (of all ranks), RANK (location of a rank) or SERVE (network access to a rank).
    members: number of agents for which an empty reply file is created; others may reply, too.
    files: further files in the folder of replies, by name, which are written before the request.
    """
    request = AttachRequest(id=secrets.token_hex(8), what=what, rank=rank)
    folder = folder_of(attempt, events.values(request))
    run_files.make_folder(folder)
    for name, text in {**{f"member-{place}": "" for place in range(members)}, **(files or {})}.items():
        write_reply(folder / name, text)
    event_file.append(attempt.path / "attach.jsonl", request)
    return folder


def write_reply(path: Path, text: str) -> None:
    """Writes `text` to a file that only this user can read. An existing file is overwritten, not replaced."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)


def replies(folder: Path) -> dict[int, Any]:
    """Returns the replies that have arrived in a folder, by the agent's index in the round."""
    found = {}
    for path in folder.glob("member-*"):
        place = path.name.partition("-")[2]
        if place.isdecimal() and (value := read_reply(path)) is not None:
            found[int(place)] = value
    return found


def read_reply(path: Path) -> Any:
    """Returns the reply in a file, parsed from JSON; None: the file is missing or not complete yet."""
    try:
        return run_files.parse_json(run_files.read_whole(path))
    except (OSError, ValueError):
        return None


# -- How an agent answers requests of `attach`: with its ranks' stacks, a rank's location, or network access to a rank


GONE = 0  # pid of a rank that has ended, since the system may reuse its real pid


@dataclass(frozen=True)
class RankProcess:
    """A rank that this agent has started."""

    rank: int  # the global rank
    pid: int  # the rank's process id; GONE: it has ended
    step: int  # the last training step that the rank has completed; -1: none
    environment: Mapping[str, str]  # the rank's environment variables


@dataclass
class RequestHandler:
    """Answers the requests that commands send to one agent. One object serves all rounds of the agent."""

    attempt: directory.Attempt  # the attempt to which the agent belongs
    stacks: Stacks  # reads the stacks of processes
    _reader: RequestReader | None = None
    _last: str = ""
    _servers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def next_request(self) -> str | None:
        """Returns the next request, a line of JSON; None: there is none. Only the leading agent calls this."""
        self._reader = self._reader or RequestReader(self.attempt)
        return self._reader.next()

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
                self._reply(request, place, self._stacks(host, ranks))
            for rank in ranks:
                if rank.rank == request.get("rank") and request["what"] in (RANK, SERVE):
                    self._reply(request, place, rank_location(host, rank))
                    if request["what"] == SERVE:
                        self._serve(request, place)

    def _reply(self, request: dict[str, Any], place: int, value: Any) -> None:
        write_reply(folder_of(self.attempt, request) / f"member-{place}", json.dumps(value))

    def _stacks(self, host: str, ranks: Sequence[RankProcess]) -> list[dict[str, Any]]:
        taken = self.stacks.take([rank.pid for rank in ranks])
        return [
            {"rank": rank.rank, "host": host, "pid": rank.pid, "step": rank.step, "state": state, "stack": stack}
            for rank, (state, stack) in zip(ranks, taken, strict=True)
        ]

    def _serve(self, request: dict[str, Any], place: int) -> None:
        folder = folder_of(self.attempt, request)
        command = [sys.executable, *own_module("launcher.attach.node_session"), "serve", str(folder), f"member-{place}"]
        server = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            preexec_fn=processes.restore_limit,
        )  # fmt: skip
        self._servers.append(server)


def rank_location(host: str, rank: RankProcess) -> dict[str, Any]:
    """Returns a rank's `rank`, `host`, `pid`, `cwd`, `job` (id of Slurm) and `changes`; raises OSError.

    `changes` has the variables that differ from the environment with which the process was started (None: removed).
    This initial environment is not included, since it may contain secrets, which must not be written to a file.
    `node_session` reads it from /proc on the rank's node.
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
