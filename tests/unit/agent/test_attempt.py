"""An agent's attempt, with a leader connection, ranks and a supervisor that do what a test says: no error of theirs
leaves it as a traceback, and none that passes ends it for good."""

from __future__ import annotations

import errno
import gc
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher import errors
from launcher.agent import attempt as module
from launcher.agent.__main__ import main
from launcher.agent.attempt import Binder, failed_by
from launcher.agent.leader_connection import AskedToStop, AttemptOver, NobodyLeads, Overtaken, Signals
from launcher.agent.policy import AttemptFailed, Done, History, NextRound, RoundEnd
from launcher.agent.preflight import PreflightVerdict
from launcher.agent.workers import StartError
from launcher.errors import RunError, UnavailableError
from launcher.failures.codes import FaultCode, PreflightThen, StopReason
from launcher.rendezvous.rounds import LeaderLost, Member, Placement, Rendezvous, RendezvousError
from launcher.runs import directory, event_files
from launcher.runs.event_files import read
from launcher.runs.events import Accused, Ended, Event, Fault, Met, Progress, Restored, Stop, StopRequested, every
from launcher.worker import shared_with_agent
from tests.unit.binding.test_masks import flat
from tests.unit.plans import bare_plan

MEMBERS = tuple(Member(index, index, f"node{index}", 1) for index in range(3))
RENDEZVOUS = Rendezvous("localhost", 1, MEMBERS, None)
DONE = Done({"loss": 1})
FIRST, SECOND = (History(), RENDEZVOUS), (History(round=1), RENDEZVOUS)
FAULT = Fault(code=FaultCode.NODE_SILENT, host="node0", ends_with=errors.RESUME)
STOP = AskedToStop(signal.SIGTERM)
LOCAL = ("JOB_ID", "NTASKS", "GLOBALID", "LOCALID", "JOB_NUM_NODES", "NODEID")
EIO = OSError(errno.EIO, "Input/output error", "/shared/rounds")


def in_a_job(path: Path, monkeypatch: pytest.MonkeyPatch, task: str) -> directory.Attempt:
    attempt = directory.Attempt(directory.Run.create(path / "run"), 0)
    (attempt.path / "events").mkdir(parents=True)
    monkeypatch.setattr(os, "umask", lambda _: 0o077)
    for name in [*(name for name in os.environ if name.startswith(("SLURM_", "PBS_"))), "LAUNCHER_GUARD"]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LAUNCHER_RUN_DIR", str(attempt.run.path))
    for told in ("ATTEMPT=0", "JOB_ID=7", f"TASK={task}", "TASKS=2", "NODE=0", "HOSTS=node0"):
        name, _, value = told.partition("=")
        monkeypatch.setenv(f"LAUNCHER_{name}", value)
    return attempt


def test_an_agent_whose_variables_contradict_each_other_says_so_in_an_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = in_a_job(tmp_path, monkeypatch, task="x")
    assert main(str(attempt.run.path)) == errors.NO_RETRY
    (fault,) = every(attempt.events(), Fault)
    assert (fault.code, fault.error) == (FaultCode.REFUSED, "LAUNCHER_TASK='x' is not a number")
    monkeypatch.setenv("PBS_NODEFILE", str(tmp_path))
    assert main(str(attempt.run.path)) == errors.NO_RETRY
    assert "Is a directory" in str(every(attempt.events(), Fault)[-1].error)


@pytest.mark.parametrize("lacking", ["submitit.core.submission", "launcher.agent.attempt"])
def test_an_agent_whose_python_lacks_a_package_says_so_in_an_event(
    lacking: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = in_a_job(tmp_path, monkeypatch, task="0")
    for name in ("EXECUTOR", *(f"LOCAL_{each}" for each in LOCAL)):
        monkeypatch.setenv(f"SUBMITIT_{name}", "")  # which the agent sets: it is this process's again afterwards
    monkeypatch.setitem(sys.modules, lacking, None)
    try:
        assert main(str(attempt.run.path)) == errors.NO_RETRY
    finally:
        gc.enable()
    (fault,) = every(attempt.events(), Fault)
    assert fault.code is FaultCode.REFUSED
    assert str(fault.error).startswith(f"{sys.executable}: ")
    assert lacking in str(fault.error)


def cut_off() -> AttemptFailed:
    return AttemptFailed(FAULT, errors.RESUME, ours=True, decides=True, suspended=FAULT)


class Script:
    """What the parts of an agent do, one after the other; the last is repeated. An exception is raised."""

    def __init__(self) -> None:
        self.steps: dict[str, list[Any]] = {
            "first": [FIRST], "next": [SECOND], "join": [SECOND], "begun": [False], "others_begin": [False],
            "start": [None], "open_gate": [None], "supervise": [DONE],
            "preflight": [PreflightVerdict(PreflightThen.GO, (), ())],
            "serve": [None],
        }  # fmt: skip
        self.calls: list[str] = []
        self.connection: Any = None
        self.interfaces: list[str | None] = []  # gloo's, in each round

    def start(self, ranks: Sequence[Placement], *_: object, **__: object) -> Any:
        self.interfaces.append(ranks[0].environment.get("GLOO_SOCKET_IFNAME"))
        return self.call("start")

    def call(self, name: str) -> Any:
        self.calls.append(name)
        steps = self.steps[name]
        step = steps.pop(0) if len(steps) > 1 else steps[0]
        if isinstance(step, BaseException):
            raise step
        return step


class FakeConnection:
    """In place of the connection to the others."""

    def __init__(self, script: Script, own: Member) -> None:
        self._script, self.own, self.size, self.elastic = script, own, 3, True
        self.closed = False
        self.sent: list[Mapping[str, Any]] = []
        self.coordinator: Any = None  # a member's
        self.follows = False
        script.connection = self

    def send(self, message: Mapping[str, Any]) -> None:
        self.sent.append(message)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *_, **__: self._script.call(name)

    def descriptors(self) -> list[int]:
        return []

    def close(self) -> None:
        self.closed = True


class FakeWorkers:
    def __init__(self, script: Script) -> None:
        self.start = script.start
        self.open_gate = lambda: script.call("open_gate")
        self.spared: set[int] = set()
        self.still_there = list
        self.close = lambda: None


class FakeSignals(Signals):
    def install(self) -> None:
        pass

    def ignore(self) -> None:
        pass


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    # The agent sets it in its own environment, which is this process's
    monkeypatch.setenv(shared_with_agent.REACHED, "-1")
    script = Script()
    plan = bare_plan(nodes=3, min_nodes=2, run_dir=str(tmp_path), workdir=str(tmp_path))
    attempt = directory.Attempt(directory.Run(tmp_path), 0)
    for folder in (attempt.logs, attempt.events_file("x").parent):
        folder.mkdir(parents=True)
    place = SimpleNamespace(rank=0, node_rank=0, local_rank=0, hosts=("node0", "node1", "node2"), job="1", source="x")
    monkeypatch.setattr(module, "current_attempt", lambda: attempt)
    monkeypatch.setattr(directory.Run, "plan", lambda self: plan)
    monkeypatch.setattr(directory.Run, "secret", lambda self: b"secret")
    monkeypatch.setattr(module, "Signals", FakeSignals)
    monkeypatch.setattr(module.processes, "adopt", lambda: None)
    monkeypatch.setattr(module.topology, "derive", lambda *_: place)
    monkeypatch.setattr(module, "LeaderConnection", lambda own, **_: FakeConnection(script, own))
    monkeypatch.setattr(module, "WorkerGroup", lambda *_, **__: FakeWorkers(script))
    monkeypatch.setattr(module, "Supervisor", lambda *_: SimpleNamespace(run=lambda: script.call("supervise")))
    monkeypatch.setattr(module, "Preflight", lambda *_, **__: SimpleNamespace(run=lambda: script.call("preflight")))
    monkeypatch.setattr(module.store, "RanksStore", lambda *_, **__: script.call("serve"))
    monkeypatch.setattr(module, "preload", lambda *_: None)
    monkeypatch.setattr(module, "Binder", partial(Binder, look=lambda: (flat(8, numas=2), set(range(8)))))
    return script


def ended(folder: Path) -> Any:
    """The metrics, or the exit code."""
    try:
        return module.run(str(folder))
    except AttemptFailed as failed:
        return failed.exit_code


def unmet(code: FaultCode = FaultCode.TOO_FEW) -> RendezvousError:
    return RendezvousError(Fault(code=code, host="node1"))


def faults(folder: Path) -> list[Fault]:
    return every(read(directory.Attempt(directory.Run(folder), 0).events_file("node-0")), Fault)


def test_a_run_without_faults(script: Script, tmp_path: Path) -> None:
    assert ended(tmp_path) == {"loss": 1}
    assert script.calls == ["first", "start", "open_gate", "supervise"]
    assert (tmp_path / "attempts" / "0" / "exit_code").read_text() == "0\n"


# -- nodes that have not what the first one has


@pytest.mark.parametrize(("least", "decides"), [(3, True), (2, False)])
def test_a_node_without_the_working_folder_says_so_before_it_meets_the_others(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least: int, decides: bool
) -> None:
    plan = bare_plan(nodes=3, min_nodes=least, run_dir=str(tmp_path), workdir=f"{tmp_path}/gone")
    monkeypatch.setattr(directory.Run, "plan", lambda self: plan)
    words = f"its working folder {tmp_path}/gone cannot be entered there: submit in a folder that all nodes share"
    with pytest.raises(AttemptFailed, match=f"^node0: {words}") as failed:
        module.run(str(tmp_path))
    assert (failed.value.exit_code, failed.value.decides) == (errors.NO_RETRY, decides)
    (fault,) = read(directory.Attempt(directory.Run(tmp_path), 0).events_file("node-0"))
    assert (fault["code"], fault["host"], fault["ends_with"]) == ("no_folder", "node0", errors.NO_RETRY)
    assert script.calls == []


@pytest.mark.parametrize(
    ("changes", "rank", "needed"),
    [
        ({"procs_per_node": 64}, 0, 64 + 3 * 192),  # the process of the leader's store
        ({"procs_per_node": 64}, 1, 64 + 4 * 64),
        ({"procs_per_node": 64, "min_nodes": 2}, 1, 64 + 3 * 192),  # which may lead later
        ({"procs_per_node": 64, "launch": {"mode": "tasks"}}, 0, 64 + 3 * 192),
    ],
)
@pytest.mark.parametrize("lacks", [0, 1])
def test_where_too_few_files_may_be_open_no_agent_waits_for_the_others(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: Any, rank: int, needed: int, lacks: int
) -> None:
    plan = bare_plan(**{"nodes": 3, "min_nodes": 3, "run_dir": str(tmp_path), "workdir": str(tmp_path), **changes})
    monkeypatch.setattr(directory.Run, "plan", lambda self: plan)
    monkeypatch.setattr(module.processes, "raise_limit", lambda: needed - lacks)
    place: Any = module.topology.derive({}, "", lambda _: "")
    place.rank, place.node_rank, place.world_size = rank, rank, 192
    script.steps = {"first": [AskedToStop(signal.SIGTERM)]}
    with pytest.raises(AttemptFailed) as failed:
        module.run(str(tmp_path))
    (fault,) = read(directory.Attempt(directory.Run(tmp_path), 0).events_file(f"node-{rank}"))
    if not lacks:
        assert (failed.value.exit_code, fault["code"]) == (errors.RESUME, "stopped_early")
        return
    assert (failed.value.exit_code, fault["code"], script.calls) == (errors.NO_RETRY, "open_files", [])
    assert f"(`ulimit -Hn`: {needed - 1}, and its agent needs {needed})" in fault["message"]


def test_a_working_folder_that_cannot_be_looked_at_now_may_be_there(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hung(_: str) -> bool:
        raise EIO

    monkeypatch.setattr(module.os, "stat", hung)
    assert ended(tmp_path) == errors.RESUME


# -- how often runs fail, from which the interval between saves follows


@pytest.fixture
def counted(script: Script, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, int]]:
    """What this attempt adds: failures, those that copies in memory made good, and node-seconds to a tenth."""
    lines: list[dict[str, int]] = []
    monkeypatch.setattr(
        module.history, "add_failures",
        lambda _, cluster, failures, node_seconds, absorbed=0: lines.append(
            {"failures": failures, "absorbed": absorbed, "seconds": round(node_seconds, 1)}
        ),
    )  # fmt: skip
    return lines


def test_each_round_counts_when_it_ends_so_that_the_next_one_knows(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counted: list[dict[str, int]]
) -> None:
    outcomes, now = [NEXT, NextRound(History(round=2), (), planned=True), AttemptFailed(FAULT, errors.RESUME)], [0.0]
    seen = []

    def supervise() -> Any:
        seen.append(sum(line["failures"] for line in counted))
        if len(seen) == 2:
            directory.Events(directory.Attempt(directory.Run(tmp_path), 0), "restored")(Restored(step=5, memory=True))
        now[0] += 100.0
        outcome = outcomes.pop(0)
        if isinstance(outcome, AttemptFailed):
            raise outcome
        return outcome

    monkeypatch.setattr(module, "Supervisor", lambda *_: SimpleNamespace(run=supervise))
    monkeypatch.setattr(module.time, "time", lambda: now[0])
    assert ended(tmp_path) == errors.RESUME
    assert seen == [0, 1, 1]
    assert counted == [
        {"failures": 1, "absorbed": 0, "seconds": 300.0},  # three nodes
        {"failures": 0, "absorbed": 1, "seconds": 300.0},
        {"failures": 1, "absorbed": 0, "seconds": 300.0},
    ]


BEFORE = Met(port=1, members=3, ranks=3, interface=None, source="x", time=1000.0)


@pytest.fixture
def died(script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> directory.Attempt:
    """The attempt before this one, of which the whole job has died."""
    before, this = (directory.Attempt(directory.Run(tmp_path), number) for number in (0, 1))
    directory.Events(before, "node-0")(BEFORE)
    directory.Events(before, "rank-0")(Progress(step=7, total=9, time=1100.0))
    for folder in (this.logs, this.events_file("x").parent):
        folder.mkdir(parents=True)
    monkeypatch.setattr(module, "current_attempt", lambda: this)
    return before


REQUEST = StopRequested(signal="SIGTERM", host="node0")


@pytest.mark.parametrize(
    ("writer", "event", "failures", "absorbed"),
    [
        ("node-1", BEFORE, 1, 0),
        ("script", Ended(code=75), 0, 0),
        ("stop", Stop(reason=StopReason.SIGNAL), 0, 0),  # preempted, or cancelled, and killed before it had ended
        ("script", REQUEST, 0, 0),
        ("spawn", REQUEST, 0, 0),
        ("restored", Restored(step=5, memory=True, time=1050.0), 1, 1),  # its round has not lived to count it
        ("restored", Restored(step=5, memory=True, time=950.0), 1, 0),  # a round before the last has
        ("restored", Restored(step=5, time=1050.0), 1, 0),
    ],
)
def test_the_death_of_a_whole_job_is_counted_by_the_next_attempt(
    died: directory.Attempt, tmp_path: Path, counted: list[dict[str, int]], writer: str, event: Event, failures: int,
    absorbed: int,
) -> None:  # fmt: skip
    directory.Events(died, writer)(event)
    assert ended(tmp_path) == {"loss": 1}
    assert [line for line in counted if line["failures"]] == [
        {"failures": 1, "absorbed": absorbed, "seconds": 300.0}
    ] * failures


def test_the_others_do_not_wait_while_the_leader_counts(
    died: directory.Attempt, tmp_path: Path, counted: list[dict[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1, 50):
        directory.Events(died, f"node-{number}")(BEFORE)
    reads: list[float | None] = []
    retry_read = event_files.retry_read

    def noted(call: Callable[[], Any], path: Any, *, retry_seconds: float | None = None) -> Any:
        if died.path in Path(path).parents:
            reads.append(retry_seconds)
        return retry_read(call, path, retry_seconds=retry_seconds)

    monkeypatch.setattr(event_files, "retry_read", noted)
    ended(tmp_path)
    assert counted[0]["failures"] == 1
    assert set(reads) == {0}
    assert len(reads) < 10


# -- rounds


NEXT = NextRound(History(round=1), (2,))
AGAIN = [NEXT, DONE]


@pytest.mark.parametrize(
    ("steps", "outcome"),
    [
        ({"supervise": AGAIN}, {"loss": 1}),
        ({"supervise": AGAIN, "next": [Overtaken("too late")]}, {"loss": 1}),
        ({"supervise": [NextRound(History(round=1), (0,)), DONE], "next": [EIO]}, {"loss": 1}),  # others gave it up
        ({"supervise": AGAIN, "next": [unmet()]}, errors.RESUME),
        ({"supervise": AGAIN, "next": [unmet()], "others_begin": [True]}, {"loss": 1}),
        ({"supervise": AGAIN, "next": [STOP]}, errors.RESUME),
        ({"supervise": AGAIN, "next": [AttemptOver("it has ended")]}, {}),
        ({"supervise": AGAIN, "next": [EIO]}, errors.RESUME),
        ({"supervise": AGAIN, "next": [Overtaken("too late")], "join": [AttemptOver("it has ended")]}, {}),
        ({"supervise": AGAIN, "next": [Overtaken("too late")], "join": [NobodyLeads("silent")]}, errors.RESUME),
        ({"supervise": AGAIN, "next": [Overtaken("too late")], "join": [EIO]}, errors.RESUME),
        ({"first": [unmet()]}, errors.FAILED),
        ({"first": [AttemptOver("it has ended")]}, {}),
        ({"first": [NobodyLeads("silent")]}, errors.RESUME),
        ({"first": [STOP]}, errors.RESUME),
        ({"first": [EIO]}, errors.RESUME),
        ({"first": [UnavailableError("the file server does not answer")]}, errors.RESUME),
        ({"first": [OSError(errno.EACCES, "Permission denied")]}, errors.FAILED),
    ],
)
def test_whatever_becomes_of_a_round_is_no_traceback(
    script: Script, tmp_path: Path, steps: dict[str, list[Any]], outcome: Any
) -> None:
    script.steps.update({name: list(each) for name, each in steps.items()})
    assert ended(tmp_path) == outcome


@pytest.mark.parametrize(
    ("steps", "outcome"),
    [
        (
            {
                "preflight": [
                    PreflightVerdict(PreflightThen.WITHOUT, (), (1,)),
                    PreflightVerdict(PreflightThen.GO, (), ()),
                ]
            },
            {"loss": 1},
        ),
        ({"preflight": [PreflightVerdict(PreflightThen.WITHOUT, (), (0,))]}, {}),
        ({"preflight": [PreflightVerdict(PreflightThen.FAIL, exit_code=93)]}, 93),
        (
            {"preflight": [PreflightVerdict(PreflightThen.WITHOUT, (), (1,))], "next": [Overtaken("too late")]},
            {"loss": 1},
        ),
        (
            {"preflight": [PreflightVerdict(PreflightThen.WITHOUT, (), (1,))], "next": [unmet()]},
            errors.FAILED,
        ),
        ({"preflight": [PreflightVerdict(PreflightThen.WITHOUT, (), (1,))], "next": [STOP]}, errors.RESUME),
        ({"preflight": [PreflightVerdict(PreflightThen.WITHOUT, (), (1,))], "next": [EIO]}, errors.RESUME),
        ({"preflight": [STOP]}, errors.RESUME),
        ({"preflight": [EIO]}, errors.RESUME),
        ({"preflight": [unmet()]}, errors.FAILED),
        ({"preflight": [LeaderLost("it is gone")]}, errors.RESUME),
    ],
)
def test_whatever_becomes_of_a_preflight_is_no_traceback(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: dict[str, list[Any]], outcome: Any
) -> None:
    plan = bare_plan(nodes=3, min_nodes=2, run_dir=str(tmp_path), workdir=str(tmp_path), preflight=True)
    monkeypatch.setattr(directory.Run, "plan", lambda self: plan)
    for name in ("first", "next"):
        [(history, rendezvous)] = script.steps[name]
        script.steps[name] = [(replace(history, preflight=True), rendezvous)]
    script.steps.update({name: list(each) for name, each in steps.items()})
    assert ended(tmp_path) == outcome


@pytest.mark.parametrize("part", ["start", "open_gate", "supervise"])
def test_a_node_that_cannot_work_ends_without_a_traceback(script: Script, tmp_path: Path, part: str) -> None:
    script.steps[part] = [OSError(errno.EMFILE, "Too many open files")]
    assert ended(tmp_path) == errors.RESUME
    assert [(each.code, each.error) for each in faults(tmp_path)] == [
        (FaultCode.AGENT, "[Errno 24] Too many open files")
    ]


@pytest.mark.parametrize("leads", [True, False])
def test_a_binding_that_one_node_refuses_ends_the_run_of_all(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leads: bool
) -> None:
    plan = bare_plan(nodes=3, min_nodes=3, run_dir=str(tmp_path), workdir=str(tmp_path), launch={"bind": "map:9"})
    monkeypatch.setattr(directory.Run, "plan", lambda self: plan)
    connect = module.LeaderConnection

    def connected(own: Member, **how: Any) -> Any:
        connection: Any = connect(own, **how)
        connection.elastic = False
        connection.coordinator = SimpleNamespace(verdict=None) if leads else None
        return connection

    monkeypatch.setattr(module, "LeaderConnection", connected)
    with pytest.raises(AttemptFailed, match=r"launch\.bind gives local rank 0 the CPUs 9") as failed:
        module.run(str(tmp_path))
    assert (failed.value.exit_code, failed.value.decides) == (errors.NO_RETRY, True)
    (told,) = script.connection.sent
    assert told["failure"]["kind"] == RoundEnd.NO_RETRY.value


@pytest.mark.parametrize(("least", "decides"), [(3, True), (2, False)])
def test_a_node_without_the_interface_says_so_before_it_meets_the_others(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least: int, decides: bool
) -> None:
    fields = {"run_dir": str(tmp_path), "workdir": str(tmp_path), "cluster": {"interface": "ib99"}}
    plan = bare_plan(nodes=3, min_nodes=least, **fields)
    monkeypatch.setattr(directory.Run, "plan", lambda self: plan)
    with pytest.raises(AttemptFailed, match="no network interface ib99") as failed:
        module.run(str(tmp_path))
    assert (failed.value.exit_code, failed.value.decides, script.calls) == (errors.NO_RETRY, decides, [])
    assert [each.ends_with for each in faults(tmp_path)] == [errors.NO_RETRY]


def test_a_store_whose_process_cannot_be_forked_is_told(script: Script, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        script.steps["first"] = [(History(), Rendezvous("localhost", 1, MEMBERS, None, listener))]
        script.steps["serve"] = [OSError(errno.EAGAIN, "Resource temporarily unavailable")]
        assert ended(tmp_path) == errors.RESUME
    (failure,) = script.connection.sent  # the others hear of it
    fault = failure["failure"]["fault"]
    assert fault["code"] == "agent" and fault["error"].endswith("Resource temporarily unavailable")
    assert fault["accused"] == [{"host": "node0"}]


def test_ranks_do_not_keep_the_socket_of_their_store(script: Script, tmp_path: Path) -> None:
    """One that kept it would let others connect, and wait, when the store is gone: its process is there before them."""
    order = ["serve", "start", "close store"]

    def serve(*_: object, **__: object) -> Any:
        script.call("serve")
        return SimpleNamespace(pid=1, close=partial(script.calls.append, "close store"))

    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.MonkeyPatch.context() as patched:
        patched.setattr(module.store, "RanksStore", serve)
        script.steps["first"] = [(History(), Rendezvous("localhost", 1, MEMBERS, None, listener))]
        script.steps["start"] = [StartError(0, OSError(errno.EAGAIN, "Resource temporarily unavailable"))]
        assert ended(tmp_path) == errors.RESUME
    assert [call for call in script.calls if call in (*order, "open_gate")] == order


@pytest.mark.parametrize(("given", "used"), [(None, ["lo", "eth0"]), ("ib0", ["ib0", "ib0"])])
def test_gloo_uses_the_interface_of_the_round(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str | None, used: list[str]
) -> None:
    """A run that begins on one node, on its loopback interface, grows when others come."""
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    if given:
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", given)
    first, second = (replace(RENDEZVOUS, interface=name) for name in ("lo", "eth0"))
    script.steps |= {
        "first": [(History(), first)], "next": [(History(round=1), second)],
        "supervise": [NextRound(History(round=1), ()), DONE],
    }  # fmt: skip
    module.run(str(tmp_path))
    assert script.interfaces == used


def test_the_fault_of_a_rendezvous_is_an_event(script: Script, tmp_path: Path) -> None:
    accused = (Accused(host="node1", node=1), Accused(host="node2", node=2))
    script.steps["first"] = [RendezvousError(Fault(code=FaultCode.RENDEZVOUS_TIMEOUT, host="node0", accused=accused))]
    assert ended(tmp_path) == errors.FAILED
    assert [(each.code, each.accused) for each in faults(tmp_path)] == [(FaultCode.RENDEZVOUS_TIMEOUT, accused)]


@pytest.mark.parametrize(
    ("follows", "elastic", "decides"), [(True, True, False), (True, False, True), (False, True, True)]
)
def test_one_of_several_that_is_to_stop_between_two_rounds_does_not_end_the_attempt_of_the_others(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, follows: bool, elastic: bool, decides: bool
) -> None:
    def stop(*_: object) -> None:
        script.connection.follows, script.connection.elastic = follows, elastic
        raise STOP

    script.steps["supervise"] = [*AGAIN]
    monkeypatch.setattr(FakeConnection, "next", stop, raising=False)
    with pytest.raises(AttemptFailed) as failed:
        module.run(str(tmp_path))
    assert (failed.value.exit_code, failed.value.decides) == (errors.RESUME, decides)


@pytest.mark.parametrize(("end", "code"), [(unmet(), FaultCode.TOO_FEW), (STOP, FaultCode.STOPPED_EARLY)])
def test_an_end_between_two_rounds_is_an_event(script: Script, tmp_path: Path, end: Any, code: FaultCode) -> None:
    script.steps.update(supervise=list(AGAIN), next=[end])
    assert ended(tmp_path) == errors.RESUME
    assert [each.code for each in faults(tmp_path)] == [code]


@pytest.mark.parametrize(
    ("elastic", "leads", "restarts", "decides"),
    [
        (False, False, False, True),
        (True, False, False, False),  # the others may continue
        (True, True, False, True),
        (True, True, True, False),
    ],
)
def test_a_node_that_cannot_start_its_ranks_is_lost_to_the_others_and_speaks_for_the_attempt_only_if_they_end(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elastic: bool, leads: bool, restarts: bool,
    decides: bool,
) -> None:  # fmt: skip
    script.steps["start"] = [StartError(0, OSError(errno.EAGAIN, "Resource temporarily unavailable"))]
    made = FakeConnection.__init__

    def init(self: FakeConnection, script: Script, own: Member) -> None:
        made(self, script, own)
        self.elastic = elastic
        self.coordinator = SimpleNamespace(verdict=SimpleNamespace(restarts=restarts)) if leads else None

    monkeypatch.setattr(FakeConnection, "__init__", init)
    with pytest.raises(AttemptFailed) as failed:
        module.run(str(tmp_path))
    event = failed.value.event
    assert isinstance(event, Fault) and (event.code, event.rank) == (FaultCode.NOT_STARTED, 0)
    assert (failed.value.exit_code, failed.value.decides, failed.value.ours) == (errors.RESUME, decides, leads)
    (message,) = script.connection.sent
    failure = message["failure"]
    assert (failure["kind"], failure["listens"], failure["lost"]) == ("lost node", True, [0])
    assert len(faults(tmp_path)) == leads


@pytest.mark.parametrize(("error", "code"), [(RunError("another version"), errors.NO_RETRY), (EIO, errors.RESUME)])
def test_the_secret_of_a_run_that_cannot_be_read(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int
) -> None:
    def secret(self: object) -> bytes:
        raise error

    monkeypatch.setattr(directory.Run, "secret", secret)
    assert ended(tmp_path) == code


def test_a_plan_of_another_version_is_final(script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(self: object) -> None:
        raise RunError("was written by another version")

    monkeypatch.setattr(directory.Run, "plan", plan)
    assert ended(tmp_path) == errors.NO_RETRY


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (EIO, errors.RESUME),
        (OSError(errno.ESTALE, "Stale file handle"), errors.RESUME),
        (UnavailableError("the file server does not answer"), errors.RESUME),
        (LeaderLost("it is gone"), errors.RESUME),
        (Overtaken("others have begun"), errors.RESUME),
        (OSError(errno.ENOSPC, "No space left on device"), errors.FAILED),
        (OSError(errno.EACCES, "Permission denied"), errors.FAILED),
        (RunError("it is damaged"), errors.NO_RETRY),
    ],
)
def test_what_becomes_of_an_error(error: Exception, code: int) -> None:
    failed = failed_by(error, "node0")
    assert (failed.exit_code, failed.decides) == (code, True)
    assert isinstance(failed.event, Fault)
    assert (failed.event.host, failed.event.error, failed.event.ends_with) == ("node0", str(error), code)


def test_an_agent_that_sees_nobody_lead_decides_nothing_for_the_others() -> None:
    failed = failed_by(NobodyLeads("silent"), "node0")
    assert (failed.exit_code, failed.decides) == (errors.RESUME, False)


# -- a partition


def test_a_side_that_is_too_small_comes_back_to_the_other(script: Script, tmp_path: Path) -> None:
    script.steps.update(supervise=[cut_off(), DONE], others_begin=[True])
    assert ended(tmp_path) == {"loss": 1}
    assert script.calls[4:6] == ["others_begin", "join"]
    assert faults(tmp_path) == [], "the attempt continues"


@pytest.mark.parametrize("answer", [False, STOP, unmet()])
def test_a_side_that_is_too_small_ends_the_attempt_when_nobody_continues(
    script: Script, tmp_path: Path, answer: Any
) -> None:
    script.steps.update(supervise=[cut_off()], others_begin=[answer])
    assert ended(tmp_path) == errors.RESUME
    assert [each.code for each in faults(tmp_path)] == [FAULT.code]


def test_a_failure_that_all_have_heard_of_is_not_waited_for(script: Script, tmp_path: Path) -> None:
    script.steps.update(supervise=[AttemptFailed(Fault(code=FaultCode.RAISED, rank=1), errors.FAILED)])
    assert ended(tmp_path) == errors.FAILED
    assert "others_begin" not in script.calls
