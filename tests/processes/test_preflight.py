"""A preflight of several agents that are processes finds the bad node, and never hangs."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import TCPStore

from launcher import Env, errors
from launcher.agent import preflight as attempt
from launcher.agent import preflight_checks as checks
from launcher.agent.leader_connection import LeaderConnection, Signals
from launcher.agent.preflight import Preflight
from launcher.agent.preflight_checks import CheckProblem, check
from launcher.failures.codes import PreflightThen
from launcher.plan.plan import JobPlan
from launcher.rendezvous.rounds import Member
from launcher.runs import directory
from launcher.runs.events import Place
from tests.markers import ci
from tests.processes.workload_ranks import _context, run_ranks
from tests.unit.plans import bare_plan


def test_clocks_are_compared_over_the_store() -> None:
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=30))
    clients = [store, *(TCPStore("localhost", store.port, is_master=False, wait_for_workers=False) for _ in range(3))]
    told: list[str] = []
    threads = [
        threading.Thread(target=lambda place=place: told.append(checks.clock(clients[place], place == 0, 4)))
        for place in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(told) == 4, "one of them has found that this machine's clock differs from itself"


def reduce(config: str, env: Env) -> dict[str, Any]:
    """The all_reduce of a preflight, in which rank 1 sends or receives something wrong."""
    whole = dist.all_reduce

    def damaged(tensor: torch.Tensor) -> None:
        if config == "sends":
            tensor[env.rank] += 1
        whole(tensor)
        if config == "receives":
            tensor[0] += 1

    if env.rank == 1:
        dist.all_reduce = damaged
    found = check("all_reduce", lambda: checks.reduce_together(env.rank, env.world_size, env.device))
    return {"level": found.level.value, "accused": found.accused}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ("nothing", [("fine", ())] * 3),
        ("sends", [("failed", (1,))] * 3),
        ("receives", [("fine", ()), ("failed", (0,)), ("fine", ())]),
    ],
)
def test_a_wrong_element_tells_whose_it_is(config: str, expected: list[Any]) -> None:
    results = [result.metrics for result in run_ranks(reduce, config, 3)]
    assert [(result["level"], result["accused"]) for result in results] == expected


def fine(index: int) -> None:
    pass


def computes_wrong(index: int) -> None:
    def wrong(where: torch.device) -> str:
        raise CheckProblem("cuda:3 computes wrong")

    if index == 1:
        checks.compute = wrong


def hangs(index: int) -> None:
    attempt.ALONE = 8.0
    if index == 1:
        checks.compute = lambda where: str(time.sleep(600))


def dies(index: int) -> None:
    if index == 0:
        checks.compute = lambda where: str(os.kill(os.getpid(), signal.SIGKILL))


def is_stopped(index: int) -> None:
    attempt.ALONE, attempt.SLACK, checks.FILE = 8.0, 1.0, 1.0
    if index == 1:
        os.kill(os.getpid(), signal.SIGSTOP)


def has_a_folder_of_its_own(index: int) -> None:
    checks.SEEN = 0.5
    whole = checks.write_mine
    if index == 1:
        checks.see = lambda folder, texts, timeout: _see(folder.parent, texts, 0.1)
        checks.write_mine = lambda folder, mine, text: whole(folder, mine, text + "!")


_see = checks.see


def breaks_in_the_all_reduce(index: int) -> None:
    attempt.TOGETHER = 26.0

    def broken(*_: object) -> str:
        raise RuntimeError("unhandled system error")

    if index == 1:
        checks.reduce_together = broken


def is_behind_a_wall(index: int) -> None:
    def lost(*_: object) -> None:
        raise RuntimeError("timed out connecting")

    checks.process_group.start = lost
    if index == 1:
        server = socket.create_server(("127.0.0.1", 0))
        told = f"127.0.0.1 {server.getsockname()[1]}"
        server.close()
        checks.open_port = lambda interface: (server, told)


def has_no_room_for_a_checkpoint(index: int) -> None:
    if index == 0:  # which tells the others
        checks.newest_checkpoint = lambda plan: 1 << 60


def loses_each_other(index: int) -> None:
    def lost(*_: object) -> None:
        raise RuntimeError("timed out connecting")

    checks.process_group.start = lost


def is_off(index: int) -> None:
    judge = checks.judge_clock
    if index == 1:
        checks.judge_clock = lambda ahead, error: judge(7.0, 0.1)


def _connection(
    index: int, members: Sequence[Member], folder: Path, least: int, heartbeat: float = 60
) -> LeaderConnection:
    return LeaderConnection(
        members[index], attempt=directory.Attempt(directory.Run(folder), 0),
        plan=bare_plan(
            nodes=len(members), min_nodes=least, launch={"heartbeat": heartbeat, "rendezvous_timeout": 60},
            cluster={"port_range": (20000, 32767)},
        ),
        places=[Place(host=f"node{member.index}", node=member.node_rank) for member in members],
        hosts=["localhost"] * len(members), secret=b"secret", key=str(folder), signals=Signals(),
    )  # fmt: skip


def _agent(index: int, members: Sequence[Member], plan: JobPlan, folder: Path, prepare: Callable[[int], None],
           pipe: Connection) -> None:  # fmt: skip
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    if index == 0:
        pipe.send(0)
    else:
        pipe.recv()
    connection = _connection(index, members, folder, plan.min_nodes)
    _, rendezvous = connection.first()
    pipe.send("there")
    pipe.recv()
    prepare(index)
    events: dict[str, Any] = {}
    verdict = Preflight(
        plan, directory.Attempt(directory.Run(folder), 0), lambda event: events.update({event.event: event}),  # type: ignore[arg-type]
        connection, rendezvous, round_number=0,
    ).run()  # fmt: skip
    pipe.send((verdict, events))
    pipe.recv()


def agents(
    prepare: Callable[[int], None], folder: Path, *, nodes: int = 3, ranks: int = 2, least: int = 2
) -> list[Any]:
    """The verdict and the events of each agent; None of one that does not end."""
    plan = bare_plan(
        nodes=nodes, min_nodes=least, procs_per_node=ranks, run_dir=str(folder), checkpoint={"dir": str(folder / "c")},
        workload={"backend": "gloo", "device": "cpu"},
    )  # fmt: skip
    (folder / "attempts" / "0").mkdir(parents=True)
    members = [Member(number, number, f"host{number}", ranks) for number in range(nodes)]
    pipes, processes = [], []
    for index in range(nodes):
        ours, theirs = _context.Pipe()
        process = _context.Process(target=_agent, args=(index, members, plan, folder, prepare, theirs))
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    try:
        port = pipes[0].recv()
        for pipe in pipes[1:]:
            pipe.send(port)
        for pipe in pipes:
            assert pipe.recv() == "there"
        for pipe in pipes:
            pipe.send("go")
        answers = [pipe.recv() if prepare is not is_stopped or index != 1 else None for index, pipe in enumerate(pipes)]
        for pipe in pipes:
            pipe.send("end")
        return answers
    finally:
        for process in processes:
            process.join(0.1 if prepare is is_stopped else 20)
            process.kill()
            process.join()


@pytest.mark.parametrize(
    ("prepare", "then", "lost", "words"),
    [
        (fine, PreflightThen.GO, (), ""),
        (computes_wrong, PreflightThen.WITHOUT, (1,), "cuda:3 computes wrong"),
        (hangs, PreflightThen.WITHOUT, (1,), "reported nothing within 8 s"),
        (dies, PreflightThen.WITHOUT, (0,), "was killed by SIGKILL"),
        ci(is_stopped, PreflightThen.WITHOUT, (1,), "reported nothing within 8 s"),
        (has_a_folder_of_its_own, PreflightThen.WITHOUT, (1,), "is it on a file system that all nodes share?"),
        (breaks_in_the_all_reduce, PreflightThen.WITHOUT, (1,), "unhandled system error"),
        (is_behind_a_wall, PreflightThen.WITHOUT, (1,), "is there a firewall between the nodes"),
        (loses_each_other, PreflightThen.FAIL, (), ""),
        (has_no_room_for_a_checkpoint, PreflightThen.FAIL, (0, 1, 2), "less than 1024P"),
    ],
)
def test_all_agents_hear_the_same_verdict(
    prepare: Callable[[int], None], then: PreflightThen, lost: tuple[int, ...], words: str, tmp_path: Path
) -> None:
    answers = [answer for answer in agents(prepare, tmp_path) if answer is not None]
    verdicts = [verdict for verdict, _ in answers]
    assert len({repr(verdict) for verdict in verdicts}) == 1
    assert (verdicts[0].then, verdicts[0].lost) == (then, lost)
    assert verdicts[0].exit_code == (errors.NO_RETRY if len(lost) == 3 else errors.FAILED)
    assert all(words in each.found.text for each in verdicts[0].bad)
    told = answers[0][1]["preflighted"]
    assert (told.then, told.nodes, len(told.bad)) == (then, 3, len(lost))
    assert not any("preflighted" in events for _, events in answers[1:])


def test_every_node_tells_each_check_and_its_time(tmp_path: Path) -> None:
    answers = agents(is_off, tmp_path, nodes=2, least=2)
    assert [verdict.then for verdict, _ in answers] == [PreflightThen.GO, PreflightThen.GO]
    assert answers[0][0].warnings[0].name == "host1 (node 1)"
    for index, (_, events) in enumerate(answers):
        event = events["preflight"]
        assert (event.host, event.fine) == (f"host{index}", True)
        names = [each.name for each in event.checks]
        assert sorted(names) == sorted(
            ["device", "device", *["space"] * 4, "run_dir", "all_reduce", "all_reduce", "clock"]
        )
        assert all(each.ms >= 0 and each.found.text for each in event.checks)


def test_a_master_that_is_gone_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not answer any more, and nobody waits for ever."""
    monkeypatch.setattr(attempt, "ALONE", 0.5)
    monkeypatch.setattr(attempt, "TOGETHER", 0.5)
    monkeypatch.setattr(Preflight, "_start", lambda self: None)
    monkeypatch.setattr(Preflight, "_collect", lambda self, part, timeout: None)
    (tmp_path / "attempts" / "0").mkdir(parents=True)
    members = [Member(index, index, f"host{index}", 1) for index in range(2)]
    leader, mine = (_connection(index, members, tmp_path, 1, heartbeat=0.5) for index in range(2))
    thread = threading.Thread(target=leader.first)
    thread.start()
    _, rendezvous = mine.first()
    thread.join()
    verdict = Preflight(
        bare_plan(nodes=2), directory.Attempt(directory.Run(tmp_path), 0), lambda *_, **__: None,  # type: ignore[arg-type]
        mine, rendezvous, round_number=0,
    ).run()  # fmt: skip
    assert (verdict.then, verdict.lost) == (PreflightThen.WITHOUT, (0,))
    assert verdict.bad[0].found.text.startswith("it leads the agents, and does not respond")
    assert leader._hub is not None
    leader._hub.close()


def test_the_leader_s_heartbeat_goes_on_while_its_own_check_takes_long(tmp_path: Path) -> None:
    """A driver that wakes up slowly on the first node is no reason to continue without it."""
    (tmp_path / "attempts" / "0").mkdir(parents=True)
    members = [Member(index, index, f"host{index}", 1) for index in range(2)]
    leader, other = (_connection(index, members, tmp_path, 1, heartbeat=1.0) for index in range(2))
    thread = threading.Thread(target=leader.first)
    thread.start()
    _, rendezvous = other.first()
    thread.join()
    reports: list[dict[str, Any]] = []
    part = Preflight(
        bare_plan(nodes=2), directory.Attempt(directory.Run(tmp_path), 0), lambda *_, **__: None,  # type: ignore[arg-type]
        leader, rendezvous, round_number=0,
    )  # fmt: skip
    part._workers = SimpleNamespace(poll=list, forward_output=bool, reports=lambda: reports)  # type: ignore[assignment]
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(part._collect("alone", 60)))
    thread.start()
    lost: list[Any] = []
    give_up = time.monotonic() + 3.0
    while time.monotonic() < give_up:
        lost += [message for message in other.poll(0.1) if message["type"] == "leader_lost"]
    reports.append({"alone": []})
    thread.join()
    assert (lost, found) == ([], [[]])
    assert leader._hub is not None
    leader._hub.close()
