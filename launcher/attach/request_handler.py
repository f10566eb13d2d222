"""How an agent answers requests of `attach`: with its ranks' stacks, a rank's location, or network access to a rank."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.attach import requests
from launcher.own_module import own_module
from launcher.processes import limits
from launcher.runs import directory
from launcher.worker.hangs import Stacks

GONE = 0  # pid of a rank that has ended, since the system may reuse its real pid


@dataclass(frozen=True)
class Process:
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
    _reader: requests.RequestReader | None = None
    _last: str = ""
    _servers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def next_request(self) -> str | None:
        """Returns the next request, a line of JSON; None: there is none. Only the leading agent calls this."""
        self._reader = self._reader or requests.RequestReader(self.attempt)
        return self._reader.next()

    def handle(self, text: str, place: int, host: str, processes: Callable[[], Sequence[Process]]) -> None:
        """Writes this agent's reply to a request, once. An error never fails the run."""
        request = None if text == self._last else requests.parse(text)
        self._last = text
        self._servers = [server for server in self._servers if server.poll() is None]
        if request is None:
            return
        ranks = processes()
        with contextlib.suppress(OSError):  # a full disk, or the command has given up
            if request["what"] == requests.STACKS:
                self._reply(request, place, self._stacks(host, ranks))
            for rank in ranks:
                if rank.rank == request.get("rank") and request["what"] in (requests.RANK, requests.SERVE):
                    self._reply(request, place, rank_location(host, rank))
                    if request["what"] == requests.SERVE:
                        self._serve(request, place)

    def _reply(self, request: dict[str, Any], place: int, value: Any) -> None:
        requests.write_reply(requests.folder_of(self.attempt, request) / f"member-{place}", json.dumps(value))

    def _stacks(self, host: str, ranks: Sequence[Process]) -> list[dict[str, Any]]:
        taken = self.stacks.take([rank.pid for rank in ranks])
        return [
            {"rank": rank.rank, "host": host, "pid": rank.pid, "step": rank.step, "state": state, "stack": stack}
            for rank, (state, stack) in zip(ranks, taken, strict=True)
        ]

    def _serve(self, request: dict[str, Any], place: int) -> None:
        folder = requests.folder_of(self.attempt, request)
        command = [sys.executable, *own_module("launcher.attach.node_session"), "serve", str(folder), f"member-{place}"]
        server = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            preexec_fn=limits.restore_limit,
        )  # fmt: skip
        self._servers.append(server)


def rank_location(host: str, rank: Process) -> dict[str, Any]:
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
