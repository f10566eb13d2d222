"""`attach`: which way leads to a rank, what is asked of agents and answered, and who waits at a breakpoint."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launcher.attach import beside, reach, requests
from launcher.attach.answers import Desk, Process, initial_environment
from launcher.attach.answers import beside as place_of
from launcher.cli.attach import _members, waiting
from launcher.own_module import own_module
from launcher.rendezvous.handshake import Stranger, as_client
from launcher.runs.directory import Attempt, Run
from launcher.worker.hangs import Stacks
from tests.launch import until
from tests.unit.plans import bare_plan

HERE, SRUN, NETWORK = reach.Way.HERE, reach.Way.SRUN, reach.Way.NETWORK


@pytest.mark.parametrize(
    ("host", "job", "here", "way"),
    [
        ("node1", "12", "node1", HERE),
        ("node1", None, "node1.site.org", HERE),
        ("node1", "12", "login", SRUN),
        ("node1", None, "login", NETWORK),
        ("node1", None, "node10", NETWORK),
    ],
)
def test_the_way_to_a_rank(host: str, job: str | None, here: str, way: reach.Way) -> None:
    assert reach.way(host, job, here) is way


def test_srun_goes_beside_the_steps_that_run_and_takes_nothing_of_this_shells_job() -> None:
    plan = bare_plan(python="/venv/bin/python", run_dir="/runs/a b", code_root="/src")
    command = reach.srun(plan, "node2", "12", "shell", "/runs/a b/x", terminal=True)
    assert {"--jobid=12", "--overlap", "--nodelist=node2", "--nodes=1", "--ntasks=1", "--pty"} <= set(command)
    assert command[-6:] == ["/venv/bin/python", *own_module("launcher.attach.beside"), "shell", "/runs/a b/x"]
    environ = {"SLURM_CONF": "/c", "SLURM_NTASKS_PER_NODE": "4", "SRUN_DEBUG": "1", "HOME": "/h", "PYTHONPATH": "/mine"}
    assert reach.srun_environment(plan, environ) == {"SLURM_CONF": "/c", "HOME": "/h", "PYTHONPATH": "/src:/mine"}


def test_an_srun_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "ENDS_WITHIN", 0.05)
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('{}', flush=True); signal.pause()"
    line = reach.over_srun([sys.executable, "-c", deaf], {})
    assert line.receive() == {}
    line.close()
    assert line.reading.closed


def stop(rank: int, **more: Any) -> dict[str, Any]:
    return {"event": "breakpoint", "rank": rank, **more}


@pytest.mark.parametrize(
    ("events", "ranks"),
    [
        ([], []),
        ([stop(0)], [0]),
        ([stop(0), {"event": "continued", "rank": 0}], []),
        ([stop(0), stop(3), {"event": "continued", "rank": 0}, stop(0)], [0, 3]),
        ([stop(0), {"event": "restart", "round": 1}], []),
        ([stop(0), {"event": "restart", "round": 1}, stop(1)], [1]),
    ],
)
def test_who_waits_at_a_breakpoint(events: list[dict[str, Any]], ranks: list[int]) -> None:
    assert sorted(waiting(events)) == ranks


def test_agents_of_the_newest_round_count() -> None:
    events = [{"event": "met", "round": number, "host": host} for number, host in [(0, "a"), (0, "b"), (1, "a")]]
    assert [event["host"] for event in _members([*events, {"event": "fault"}])] == ["a"]
    assert _members([]) == []


# -- questions and answers


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    made = Attempt(Run(tmp_path), 0)
    made.path.mkdir(parents=True)
    return made


def test_a_question_is_heard_once_and_in_order(attempt: Attempt) -> None:
    assert not requests.listens(attempt)
    questions = requests.Questions(attempt)
    assert requests.listens(attempt)
    assert questions.next() is None
    folders = [requests.ask(attempt, requests.STACKS, 2), requests.ask(attempt, requests.RANK, 2, rank=1)]
    with open(attempt.path / "asked.jsonl", "a") as file:
        file.write('{"half a question')
    for folder, what in zip(folders, (requests.STACKS, requests.RANK), strict=True):
        question = requests.parse(questions.next() or "")
        assert question is not None
        assert question["what"] == what
        assert requests.folder_of(attempt, question) == folder
    assert questions.next() is None
    assert requests.Questions(attempt).next() is None  # another agent does not answer old ones


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"id": "../../x", "what": "rank"}', '{"id": 5, "what": "rank"}',
             '{"id": "0123456789abcdef"}'],
)  # fmt: skip
def test_what_is_no_question(text: str) -> None:
    assert requests.parse(text) is None


def test_only_the_agent_of_a_rank_tells_how_to_get_beside_it(attempt: Attempt) -> None:
    child = subprocess.Popen(["sleep", "60"], env={"KEEPS": "1", "DROPS": "2", "CHANGES": "3"}, cwd="/")
    until(lambda: initial_environment(child.pid), "its environment")  # Popen returns a little before execve does
    try:
        now = {"KEEPS": "1", "CHANGES": "4", "RANK": "5", "SLURM_JOB_ID": "77"}
        desk, questions = Desk(attempt, Stacks(1)), requests.Questions(attempt)
        folder = requests.ask(attempt, requests.RANK, 2, rank=5)
        text = questions.next() or ""
        desk.answer(text, 0, "node1", lambda: [Process(4, child.pid, 0, now)])
        assert requests.answers(folder) == {}
        desk = Desk(attempt, Stacks(1))
        desk.answer(text, 1, "node2", lambda: [Process(5, child.pid, 0, now)])
        told = requests.answers(folder)[1]
        assert (told["rank"], told["host"], told["job"], told["cwd"]) == (5, "node2", "77", "/")
        assert told["changes"] == {"CHANGES": "4", "RANK": "5", "SLURM_JOB_ID": "77", "DROPS": None}
        assert "KEEPS" not in json.dumps(told)  # what a job was started with may be secret
        assert beside.environment(told, "xterm") == {**now, "TERM": "xterm"}
        desk.answer(text, 1, "node2", lambda: pytest.fail("it was answered already"))
    finally:
        child.kill()
        child.wait()
    with pytest.raises(OSError):
        initial_environment(child.pid)


def test_an_answer_that_cannot_be_written_harms_nobody(attempt: Attempt) -> None:
    question = json.dumps({"id": "0123456789abcdef", "what": requests.STACKS})
    Desk(attempt, Stacks(0)).answer(question, 0, "node1", list)


def test_agents_that_do_not_answer_are_named(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from launcher.cli import attach

    members = [{"event": "met", "members": 2, "ranks": 2, "host": host} for host in ("node1", "node2")]
    report = {"rank": 0, "host": "node1", "pid": 7, "step": -1, "state": "D", "stack": ""}

    def ask(attempt: Attempt, what: str, count: int) -> Path:
        folder = attempt.path / "asked/1"
        folder.mkdir(parents=True)
        requests.answer(folder / "member-0", json.dumps([report]))
        requests.answer(folder / "member-1", "")
        return folder

    monkeypatch.setattr(requests, "ask", ask)
    monkeypatch.setattr(reach, "until", lambda look: look())
    assert attach._stack(attempt, members, None) == 1
    shown = capsys.readouterr()
    assert "rank 0 on node1, process 7: no stack; its process waits for a device or a file server" in shown.out
    assert "1 of 2 agents did not answer within 15 s: node2" in shown.err


# -- over the network


@pytest.fixture
def served(tmp_path: Path) -> Any:
    """`beside serve` for a shell beside this process, as an agent starts it: where it listens, and its secret."""
    secret = "s" * 64
    told = place_of("node1", Process(0, os.getpid(), 0, {**os.environ, "SHELL": "/bin/sh", "RANK": "0"}))
    question = {"mode": "shell", "term": "dumb", "ports": [20000, 32767]}
    for name, text in {
        "member-0": json.dumps(told), beside.SECRET: secret, beside.SERVED: "", "question": json.dumps(question)
    }.items():  # fmt: skip
        requests.answer(tmp_path / name, text)
    server = subprocess.Popen([sys.executable, "-m", "launcher.attach.beside", "serve", str(tmp_path), "member-0"])
    try:
        told = reach.until(lambda: requests.read(tmp_path / beside.SERVED), 60)
        assert told is not None
        yield told["port"], secret.encode(), server
    finally:
        server.kill()
        server.wait()


def test_a_shell_over_the_network_is_for_who_knows_the_secret(served: Any) -> None:
    import socket

    port, secret, server = served
    with socket.create_connection(("127.0.0.1", port), 30) as stranger, pytest.raises((Stranger, OSError)):
        as_client(stranger, b"guess")
    with contextlib.ExitStack() as held, socket.create_connection(("127.0.0.1", port), 30) as connection:
        for _ in range(40):  # strangers who say nothing
            held.enter_context(socket.create_connection(("127.0.0.1", port), 30))
        as_client(connection, secret)
        connection.sendall(beside.window(50, 132))
        connection.sendall(beside.frame(b"d", b'echo "rank=$RANK"; stty size; exit\n'))
        shown = b""
        while data := connection.recv(1 << 16):
            shown += data
    assert b"rank=0\r\n50 132\r\n" in shown
    assert server.wait(60) == 0
    with pytest.raises(OSError):  # it took one client, and is gone
        socket.create_connection(("127.0.0.1", port), 30)
