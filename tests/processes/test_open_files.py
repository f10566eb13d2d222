"""Many ranks under a soft limit of 1,024 open files: they join, or the run is refused if the hard limit is as low."""

from __future__ import annotations

import multiprocessing
import resource
import socket
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from launcher import errors, processes
from launcher.agent.attempt import open_files_needed
from launcher.rendezvous.signed_channel import Channel, Hub
from launcher.rendezvous.store import RanksStore
from tests.launch import Launcher

RANKS, PROCESSES, HARD = 1024, 4, 4096
SECRET = b"secret"
_context = multiprocessing.get_context("fork")


def lead(agents: socket.socket, ranks: socket.socket, limits: tuple[int, int], pipe: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    processes.raise_limit()
    RanksStore(ranks, [])
    hub = Hub(agents, SECRET, members=range(RANKS))
    while len(hub.channels) < RANKS:
        hub.poll(1)
    pipe.send(len(hub.channels))
    pipe.recv()


def join(indices: range, agents: int, ranks: int, pipe: Connection) -> None:
    """Simulates agents, each with one rank that asks the store for the number of its keys."""
    held = []
    for index in indices:
        channel = Channel(socket.create_connection(("127.0.0.1", agents)), SECRET, server=False)
        rank = socket.create_connection(("127.0.0.1", ranks))
        rank.sendall(b"\0" + (0x3C85F7CE).to_bytes(4, "little") + b"\x07")
        held.append((index, channel, rank))
    for index, channel, rank in held:
        while not channel.open:
            channel.receive()
        channel.send({"type": "hello", "index": index})
        assert len(rank.recv(8)) == 8
    pipe.send(len(held))
    pipe.recv()


@pytest.mark.parametrize("agents", [16, 1024])  # one a node of 64 ranks, and with launch=tasks
def test_what_is_needed_is_allowed_by_the_hard_limit_alone(agents: int) -> None:
    assert 1024 < open_files_needed(RANKS // agents, agents, RANKS) < HARD


def test_where_the_kernel_does_not_allow_the_hard_limit_the_soft_one_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(processes, "_users", None)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 1024))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert processes.raise_limit() == 256


def test_a_thousand_ranks_join_under_a_soft_limit_of_as_many_files() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=RANKS) as agents:
        ranks = socket.create_server(("127.0.0.1", 0), backlog=RANKS)
        ports = agents.getsockname()[1], ranks.getsockname()[1]
        ours, theirs = zip(*(_context.Pipe() for _ in range(PROCESSES + 1)), strict=True)
        parts = [range(number, RANKS, PROCESSES) for number in range(PROCESSES)]
        processes = [
            _context.Process(target=lead, args=(agents, ranks, (1024, HARD), theirs[0])),
            *(
                _context.Process(target=join, args=(part, *ports, pipe))
                for part, pipe in zip(parts, theirs[1:], strict=True)
            ),
        ]
        try:
            for process in processes:
                process.start()
            for pipe, joined in zip(ours, [RANKS, *map(len, parts)], strict=True):
                assert pipe.poll(200), "not all have joined"
                assert pipe.recv() == joined
        finally:
            for process in processes:
                process.kill()
                process.join()
            ranks.close()


def test_a_run_that_the_hard_limit_does_not_allow_is_refused_at_its_first_attempt(tmp_path: Path) -> None:
    launcher = Launcher(tmp_path / "runs", {}, prefix=["sh", "-c", 'ulimit -n 1024 && exec "$@"', "sh"])
    done = launcher.run("workload=collective", "nodes=2", "procs_per_node=256", "resume.max_attempts=3")
    assert done.code == errors.NO_RETRY
    assert "allows a process too few open files for these ranks (`ulimit -Hn`: 1024, and its agent needs " in done.cause
    assert done.cause in done.output
    assert (len(done.run.attempts()), done.fault["ends_with"]) == (1, errors.NO_RETRY)
