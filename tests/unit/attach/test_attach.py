"""`attach`: how a rank's node is reached, requests to agents and their replies, and which ranks wait at breakpoints."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher import attach as node_session
from launcher.attach import RankProcess, RequestHandler, initial_environment
from launcher.cli import attach as connect
from launcher.cli.attach import _members
from launcher.paths import own_module
from launcher.runs.directory import Attempt, Run
from launcher.runs.event_files import entry
from launcher.runs.events import Met
from launcher.runs.history import at_breakpoints
from launcher.worker.hang_diagnosis import Stacks
from tests.launch import until
from tests.unit.plans import bare_plan


@pytest.mark.parametrize(
    ("starter", "host", "job", "here", "starts"),
    [
        ("srun", "node1", "12", "node1", "here"),
        (None, "node1", None, "node1.site.org", "here"),
        ("srun", "node1", "12", "login", "srun"),
        ("pbsdsh", "node1", None, "login", None),
        ("qrsh", "node1", None, "node10", None),
        (None, "node1", None, "login", None),
    ],
)
def test_the_way_to_a_rank(starter: str | None, host: str, job: str | None, here: str, starts: str | None) -> None:
    """What starts a process there; None: only the agent can."""
    found = connect.access(bare_plan(starter=starter), host, job, here)
    assert (found and ("here" if found.scheduler is None else found.command("x", terminal=False)[0])) == starts


def test_srun_overlaps_the_steps_that_run_and_takes_nothing_of_this_shells_job() -> None:
    plan = bare_plan(python="/venv/bin/python", run_dir="/runs/a b", code_root="/src", starter="srun")
    step = connect.access(plan, "node2", "12", "login")
    assert step is not None
    command = step.command("shell", "/runs/a b/x", terminal=True)
    assert {"--jobid=12", "--overlap", "--nodelist=node2", "--nodes=1", "--ntasks=1", "--pty"} <= set(command)
    assert command[-6:] == ["/venv/bin/python", *own_module("launcher.attach"), "shell", "/runs/a b/x"]
    environ = {
        "SLURM_CONF": "/c",
        "SLURM_CONF_SERVER": "h",
        "SLURM_NTASKS_PER_NODE": "4",
        "SRUN_DEBUG": "1",
        "HOME": "/h",
        "PYTHONPATH": "/mine",
    }
    environ |= {"SLURM_CLUSTERS": "there"}
    assert step.environment(environ) == {
        "SLURM_CONF": "/c",
        "SLURM_CONF_SERVER": "h",
        "SLURM_CLUSTERS": "there",
        "HOME": "/h",
        "PYTHONPATH": "/src:/mine",
    }


def test_an_srun_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "EXIT_TIMEOUT", 0.05)
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('{}', flush=True); signal.pause()"
    debugger = connect.over_process([sys.executable, "-c", deaf], {})
    assert debugger.receive() == {}
    debugger.close()
    assert debugger.reading.closed


def stop(rank: int, **more: Any) -> dict[str, Any]:
    return {"event": "breakpoint", "rank": rank, "host": "node1", "where": "a.py:1", "socket": "/s", **more}


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
    assert sorted(at_breakpoints(events)) == ranks


def test_agents_of_the_newest_round_count() -> None:
    rounds = [(0, "a"), (0, "b"), (1, "a")]
    events = [entry(Met(ranks=2, members=2, round=number, host=host)) for number, host in rounds]
    assert [event.host for event in _members([*events, {"event": "fault"}])] == ["a"]
    assert _members([]) == []


# -- requests and replies


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    made = Attempt(Run(tmp_path), 0)
    made.path.mkdir(parents=True)
    return made


def test_requests_are_read_once_and_in_order(attempt: Attempt) -> None:
    assert not node_session.is_listening(attempt)
    reader = RequestHandler(attempt, Stacks(0))
    assert reader.next_request() is None
    assert node_session.is_listening(attempt)
    folders = [
        node_session.send(attempt, node_session.STACKS, 2),
        node_session.send(attempt, node_session.RANK, rank=1),
    ]
    with open(attempt.path / "attach.jsonl", "a") as file:
        file.write('{"half a request')
    for folder, what in zip(folders, (node_session.STACKS, node_session.RANK), strict=True):
        request = node_session.parse(reader.next_request() or "")
        assert request is not None
        assert request["what"] == what
        assert node_session.folder_of(attempt, request) == folder
    assert reader.next_request() is None
    assert RequestHandler(attempt, Stacks(0)).next_request() is None  # another agent does not answer old ones


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"id": "../../x", "what": "rank"}', '{"id": 5, "what": "rank"}',
             '{"id": "0123456789abcdef"}'],
)  # fmt: skip
def test_what_is_no_request(text: str) -> None:
    assert node_session.parse(text) is None


def test_only_the_agent_of_a_rank_replies_where_it_runs(attempt: Attempt) -> None:
    child = subprocess.Popen(["sleep", "60"], env={"KEEPS": "1", "DROPS": "2", "CHANGES": "3"}, cwd="/")
    until(lambda: initial_environment(child.pid), "its environment")  # Popen returns a little before execve does
    try:
        now = {"KEEPS": "1", "CHANGES": "4", "RANK": "5", "SLURM_JOB_ID": "77"}
        handler = RequestHandler(attempt, Stacks(1))
        assert handler.next_request() is None
        folder = node_session.send(attempt, node_session.RANK, rank=5)
        assert [path.name for path in folder.iterdir()] == [node_session.ONLY_REPLY]  # in a run of any size
        text = handler.next_request() or ""
        handler.handle(text, 0, "node1", lambda: [RankProcess(4, child.pid, 0, now)])
        reply = folder / node_session.ONLY_REPLY
        assert node_session.read_reply(reply) is None
        handler = RequestHandler(attempt, Stacks(1))
        handler.handle(text, 1, "node2", lambda: [RankProcess(5, child.pid, 0, now)])
        location = node_session.read_reply(reply)
        assert (location["rank"], location["host"], location["job"], location["cwd"]) == (5, "node2", "77", "/")
        assert location["changes"] == {"CHANGES": "4", "RANK": "5", "SLURM_JOB_ID": "77", "DROPS": None}
        assert "KEEPS" not in json.dumps(location)  # what a job was started with may be secret
        assert node_session.environment(location, "xterm") == {**now, "TERM": "xterm"}
        handler.handle(text, 1, "node2", lambda: pytest.fail("it was answered already"))
    finally:
        child.kill()
        child.wait()
    with pytest.raises(OSError):
        initial_environment(child.pid)


def test_a_reply_that_cannot_be_written_raises_nothing(attempt: Attempt) -> None:
    request = json.dumps({"id": "0123456789abcdef", "what": node_session.STACKS})
    RequestHandler(attempt, Stacks(0)).handle(request, 0, "node1", list)


def test_a_look_reads_one_file_of_an_agent_that_has_not_answered(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    from launcher.cli import attach

    found, parsed = list[object](), node_session.read_reply
    monkeypatch.setattr(node_session, "read_reply", lambda path: found.append(parsed(path)) or found[-1])

    def wait(poll: Callable[[], object]) -> object:
        for place in (4, 0, 2, 3, 1):
            found.clear()
            assert not poll()
            assert found.count(None) == 1
            (folder,) = attempt.path.glob("attach/*")
            node_session.write_reply(folder / f"member-{place}", "[]")
        return poll()

    monkeypatch.setattr(attach, "wait_until", wait)
    assert attach._stack(attempt, [Met(members=5, ranks=5, host="node1")], None) == 0


def test_agents_that_do_not_answer_are_named(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from launcher.cli import attach

    members = [Met(members=2, ranks=2, host=host) for host in ("node1", "node2")]
    report = {"rank": 0, "host": "node1", "pid": 7, "step": -1, "state": "D", "stack": ""}

    def send(attempt: Attempt, what: str, count: int) -> Path:
        folder = attempt.path / "attach/1"
        folder.mkdir(parents=True)
        node_session.write_reply(folder / "member-0", json.dumps([report]))
        node_session.write_reply(folder / "member-1", "")
        return folder

    monkeypatch.setattr(node_session, "send", send)
    monkeypatch.setattr(attach, "wait_until", lambda poll: poll())
    assert attach._stack(attempt, members, None) == 1
    shown = capsys.readouterr()
    assert "rank 0 on node1, process 7: no stack; its process waits for a device or a file server" in shown.out
    assert "1 of 2 agents did not answer within 15 s: node2" in shown.err
