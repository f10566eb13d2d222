"""An agent's answers to commands: the stacks of its ranks, how to get beside one of them, a way in from the network."""

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
from launcher.runs import directory
from launcher.worker.hangs import Stacks

GONE = 0  # in the place of the process id of a rank that has ended: another process may have got its own


@dataclass(frozen=True)
class Process:
    """A rank of this agent.

    Attributes:
        rank, pid: it.
        step: steps of the run that it has done; -1: none.
        environment: its variables.
    """

    rank: int
    pid: int
    step: int
    environment: Mapping[str, str]


@dataclass
class Desk:
    """Where one agent takes questions; it outlives its rounds."""

    attempt: directory.Attempt
    stacks: Stacks
    _questions: requests.Questions | None = None
    _last: str = ""
    _servers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def question(self) -> str | None:
        """For the first agent: what is asked next."""
        self._questions = self._questions or requests.Questions(self.attempt)
        return self._questions.next()

    def answer(self, text: str, place: int, host: str, look: Callable[[], Sequence[Process]]) -> None:
        """Answers a question, once; never fails the work because of it.

        Args:
            text: the question as it was written.
            place: of this agent.
            host: its node.
            look: tells its ranks.
        """
        question = None if text == self._last else requests.parse(text)
        self._last = text
        self._servers = [server for server in self._servers if server.poll() is None]
        if question is None:
            return
        ranks = look()
        with contextlib.suppress(OSError):  # a full disk, or the command has given up
            if question["what"] == requests.STACKS:
                self._write(question, place, self._stacks(host, ranks))
            for rank in ranks:
                if rank.rank == question.get("rank") and question["what"] in (requests.RANK, requests.SERVE):
                    self._write(question, place, beside(host, rank))
                    if question["what"] == requests.SERVE:
                        self._serve(question, place)

    def _write(self, question: dict[str, Any], place: int, value: Any) -> None:
        requests.answer(requests.folder_of(self.attempt, question) / f"member-{place}", json.dumps(value))

    def _stacks(self, host: str, ranks: Sequence[Process]) -> list[dict[str, Any]]:
        taken = self.stacks.take([rank.pid for rank in ranks])
        return [
            {"rank": rank.rank, "host": host, "pid": rank.pid, "step": rank.step, "state": state, "stack": stack}
            for rank, (state, stack) in zip(ranks, taken, strict=True)
        ]

    def _serve(self, question: dict[str, Any], place: int) -> None:
        folder = requests.folder_of(self.attempt, question)
        words = [sys.executable, *own_module("launcher.attach.beside"), "serve", str(folder), f"member-{place}"]
        server = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._servers.append(server)


def beside(host: str, rank: Process) -> dict[str, Any]:
    """How to get beside a rank: where it is, and what of its environment its process was not started with.

    What it was started with is in /proc of its node, so that what may be secret in it is in no file.
    """
    now, first = rank.environment, initial_environment(rank.pid)
    if first.get("RANK") == str(rank.rank):  # it has become another program, with an environment of its own
        now = first
    changes: dict[str, str | None] = {name: value for name, value in now.items() if first.get(name) != value}
    changes |= {name: None for name in first if name not in now}
    return {
        "rank": rank.rank, "host": host, "pid": rank.pid, "changes": changes,
        "job": now.get("SLURM_JOB_ID"), "cwd": os.readlink(f"/proc/{rank.pid}/cwd"),
    }  # fmt: skip


def initial_environment(pid: int) -> dict[str, str]:
    """The variables that a process of ours was started with (man 5 proc, /proc/PID/environ).

    Raises:
        OSError: it is gone.
    """
    pairs = (os.fsdecode(entry).partition("=") for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    return {name: value for name, equals, value in pairs if equals}
