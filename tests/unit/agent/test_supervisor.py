"""Agents of one job, with ranks that do what a test says, by a clock that a test sets: what each of them does, and how
the attempt ends on each."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any, cast

import pytest

from launcher import errors
from launcher.agent.failure_detector import STACKS
from launcher.agent.leader import Coordinator
from launcher.agent.leader_connection import Signals
from launcher.agent.policy import AttemptFailed, Done, History, NextRound
from launcher.agent.rank_watch import AgentContext
from launcher.agent.supervisor import ALONE, AT_LIMIT, DECIDED, DIES, FREES, LATE, TICK, Supervisor
from launcher.agent.workers import WorkerExit
from launcher.attach import RequestHandler
from launcher.failures.codes import FaultCode, StopReason
from launcher.files.retried_reads import Ok, Unavailable
from launcher.plan.plan import JobPlan
from launcher.rendezvous.rounds import Member, Rendezvous
from launcher.rendezvous.signed_channel import Message
from launcher.runs import directory, event_files, lease_and_locks
from launcher.runs.directory import Events
from launcher.runs.events import Accused, Fault, Place, Stop
from launcher.runs.job_file import TimeLeft
from launcher.worker import hang_diagnosis
from launcher.worker.hang_diagnosis import Blamed, Stacks
from launcher.worker.heartbeat import Pulse, RankSlot
from launcher.worker.shared_with_agent import WorkerError
from tests.unit.plans import bare_plan

HEARTBEAT, GRACE, HANG = 10, 20, 60
TERM, KILL, USR2 = signal.SIGTERM, signal.SIGKILL, signal.SIGUSR2
Outcome = Done | NextRound | AttemptFailed


class FakeWorkers:
    """Ranks that run until a test ends them, or SIGKILL does."""

    def __init__(self, ranks: int, first_rank: int) -> None:
        self.ranks, self.first_rank = ranks, first_rank
        self.signals: list[tuple[int, int]] = []
        self.alive = set(range(ranks))
        self.immortal = False
        self.prints = False
        self.on_signal: Callable[[int, int], None] = lambda place, number: None
        self.on_kill: Callable[[], None] = lambda: None
        self._ended: list[WorkerExit] = []

    def end(self, place: int, code: int, *, returned: Any = None, error: WorkerError | None = None) -> None:
        if place in self.alive:
            self.alive.remove(place)
            self._ended.append(
                WorkerExit(
                    place, self.first_rank + place, 10**9 + place, code, returned, error, float(len(self._ended))
                )
            )

    def poll(self) -> list[WorkerExit]:
        ended, self._ended = self._ended, []
        return ended

    def pids(self) -> list[int]:
        return [10**9 + place for place in range(self.ranks)]  # no process has such a number

    def signal(self, place: int, number: int) -> None:
        self.signals.append((place, number))
        self.on_signal(place, number)

    def kill(self) -> None:
        self.on_kill()
        for place in sorted(self.alive):
            self.signals.append((place, KILL))
            if not self.immortal:
                self.end(place, -KILL)

    def forward_output(self) -> bool:
        return self.prints


class FakeSignals(Signals):
    """Signals that a test sends."""

    ignored = False

    def send(self, number: signal.Signals) -> None:
        self._take(number, None)

    def ignore(self) -> None:
        self.ignored = True


class FakeLine:
    """A connection to the leader's coordinator, without sockets."""

    def __init__(self, job: Job, index: int) -> None:
        self._job, self._index = job, index
        self.status: dict[str, Any] = {}
        self.coordinator = job.coordinator if index == 0 else None
        self.inbox: list[Message] = []
        self.connected = True

    def send(self, message: Message) -> None:
        if self.connected:
            self._job.coordinator.receive(self._index, message, self._job.now)
            self._job.deliver()

    def heartbeat(self) -> None:
        self.send({"type": "heartbeat", **self.status})

    def poll(self, timeout: float) -> list[Message]:
        inbox, self.inbox = self.inbox, []
        return inbox


class Agent:
    """One agent: its supervisor, what it works with, and how it has ended."""

    def __init__(self, job: Job, index: int, attempt: directory.Attempt, history: History) -> None:
        self.index, member = index, job.members[index]
        self.signals, self.pulse = FakeSignals(), Pulse(member.ranks)
        stacks = Stacks(member.ranks)
        self.events = attempt.events_file(f"node-{index}")
        self.context = AgentContext(
            job.plan, attempt, Events(attempt, f"node-{index}"), self.signals, self.pulse, -1, stacks,
            RequestHandler(attempt, stacks), [{}] * member.ranks,
        )  # fmt: skip
        self.slots: list[RankSlot] = [self.pulse.slot(place) for place in range(member.ranks)]
        self.workers = FakeWorkers(member.ranks, index * member.ranks)
        self.line = FakeLine(job, index)
        self.outcome: Outcome | None = None
        rendezvous = Rendezvous("localhost", 1, tuple(job.members), None)
        self.supervisor = Supervisor(
            self.context, cast(Any, self.line), cast(Any, self.workers), rendezvous, index, history,
            cast(Any, job) if index == 0 else None, clock=lambda: job.now,
        )  # fmt: skip

    def turn(self) -> None:
        if self.outcome is None:
            try:
                self.outcome = self.supervisor.turn(self.line.poll(0))
            except AttemptFailed as failed:
                self.outcome = failed

    def listen(self, step: int = 5) -> None:
        """Its ranks look for stop requests, and have done some steps."""
        for slot in self.slots:
            slot.arrive()
            slot.join()
            slot.listen()
            if step >= 0:
                slot.beat(step)

    def told(self) -> list[dict[str, Any]]:
        return list(event_files.read(self.events))


class Job:
    """All agents, and the leader's coordinator."""

    def __init__(
        self, folder: Path, *, agents: int = 2, ranks: int = 2, history: History | None = None, listen: bool = True,
        step: int = 5, **fields: Any,
    ) -> None:  # fmt: skip
        launch = {
            "heartbeat": HEARTBEAT, "grace": GRACE, "hang_timeout": HANG, "start_timeout": 300, "idle_timeout": 900,
            "rendezvous_timeout": 60, "max_restarts": 3, **fields.pop("launch", {}),
        }  # fmt: skip
        values = {"nodes": agents, "min_nodes": 1, "run_dir": str(folder), "launch": launch}
        self.plan: JobPlan = bare_plan(**{**values, **fields})
        self.now = 1000.0
        self.members = [Member(index, index, f"node{index}", ranks) for index in range(agents)]
        self.store_end = ""
        self.blamed = Blamed((Accused(host="node0", rank=1),), "is stopped (state T)", step=5)
        self.agents: list[Agent] = []
        places = [Place(host=f"node{index}", node=index) for index in range(agents)]
        self.coordinator = Coordinator(
            self.plan, folder, places, self.members[0], claim=lambda *_: None, listen=lambda _: 1,
            blame=lambda _: self.blamed,
        )  # fmt: skip
        history = history or History()
        self.attempt = directory.Attempt(directory.Run(folder), 0)
        self.attempt.logs.mkdir(parents=True)
        self.attempt.events_file("node-0").parent.mkdir()
        self.coordinator.gather(history, range(agents), 60, self.now)
        for member in self.members[1:]:
            self.coordinator.receive(member.index, {"type": "hello", "member": astuple(member)}, self.now)
        self.coordinator.tick(self.now)
        self.coordinator.take_outbox()
        self.coordinator.watch(self.now)
        self.agents = [Agent(self, index, self.attempt, history) for index in range(agents)]
        self.run(0.3)
        if listen:
            for agent in self.agents:
                agent.listen(step)
            self.run(0.3)

    def end(self) -> str:
        """What the leader asks the ranks' store."""
        return self.store_end

    def deliver(self) -> None:
        for indices, message in self.coordinator.take_outbox():
            for index in indices:
                if self.agents and self.agents[index].line.connected:
                    self.agents[index].line.inbox.append(message)

    def run(self, seconds: float) -> None:
        """Time passes."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 0.1)
            leads = self.agents[0].line.connected
            for agent in self.agents:
                if agent.outcome is None and agent.line.connected:
                    agent.line.heartbeat()
            if leads:
                self.coordinator.tick(self.now)
                self.deliver()
            for agent in self.agents:
                agent.turn()

    def cut(self, index: int) -> None:
        """A node is gone. For the others it is the leader that is lost if it is the first one."""
        self.agents[index].line.connected = False
        self.agents[index].outcome = AttemptFailed(Fault(error="gone"))
        if index:
            self.coordinator.disconnected(index, self.now)
            self.deliver()
            return
        for agent in self.agents[1:]:
            agent.line.connected = False
            agent.line.inbox.append({"type": "leader_lost", "reason": "Connection reset by peer"})

    def ended(self) -> list[Any]:
        """How each agent has ended: metrics, `round N`, or the exit code."""
        words: list[Any] = []
        for agent in self.agents:
            outcome = agent.outcome
            if isinstance(outcome, AttemptFailed):
                words.append(outcome.exit_code)
            elif isinstance(outcome, NextRound):
                words.append(f"round {outcome.history.round}")
            else:
                words.append(None if outcome is None else outcome.metrics)
        return words

    def failed(self, index: int = 0) -> AttemptFailed:
        outcome = self.agents[index].outcome
        assert isinstance(outcome, AttemptFailed), outcome
        return outcome

    def fault(self, index: int = 0) -> Fault:
        event = self.failed(index).event
        assert isinstance(event, Fault), event
        return event

    def stop(self, index: int = 0) -> Stop:
        event = self.failed(index).event
        assert isinstance(event, Stop), event
        return event

    def next_round(self, index: int = 0) -> NextRound:
        outcome = self.agents[index].outcome
        assert isinstance(outcome, NextRound), outcome
        return outcome

    def finish(self, index: int) -> None:
        """All ranks of an agent have done their work."""
        agent = self.agents[index]
        for place in range(agent.workers.ranks):
            agent.workers.end(place, 0, returned={"loss": index})

    def leave(self, index: int) -> None:
        """All ranks of an agent save, and leave to resume later."""
        for place in list(self.agents[index].workers.alive):
            self.agents[index].workers.end(place, errors.RESUME)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Job]:
    monkeypatch.setattr(hang_diagnosis, "WRITES", 0.1)
    return lambda **options: Job(tmp_path, **options)


def raised(message: str = "boom", *, lost_peer: bool = False, final: bool = False) -> WorkerError:
    return WorkerError("raised", "ValueError", message, f"Traceback\nValueError: {message}\n", lost_peer, final)


def sent_to(agent: Agent) -> Mapping[int, list[int]]:
    return {
        place: [number for to, number in agent.workers.signals if to == place] for place in range(agent.workers.ranks)
    }


# -- the work is done


def test_all_ranks_return(job: Callable[..., Job]) -> None:
    one = job()
    one.finish(0)
    one.run(5)
    assert one.ended() == [None, None], "the first agent waits for the other"
    one.finish(1)
    one.run(0.5)
    assert one.ended() == [{"loss": 0}, {"loss": 1}]
    assert [agent.workers.signals for agent in one.agents] == [[], []]


def test_nothing_is_waited_for_while_ranks_have_printed_more(job: Callable[..., Job]) -> None:
    one = job()
    agent = one.agents[0]
    waits = []
    for agent.workers.prints in (True, True, False):
        agent.turn()
        waits.append(agent.supervisor.pause)
    assert waits == [0.0, 0.0, TICK]


def test_one_that_has_finished_waits_as_long_as_the_others_work(job: Callable[..., Job]) -> None:
    one = job()
    one.finish(1)
    for _ in range(20):
        one.agents[0].slots[0].beat()
        one.agents[0].slots[1].beat()
        one.run(HEARTBEAT)
    assert one.ended() == [None, None]


@pytest.mark.parametrize(
    ("listen", "joined", "ended"), [(True, True, "round 1"), (False, False, "round 1"), (False, True, errors.FAILED)]
)
def test_ranks_do_not_wait_for_a_store_that_has_ended(
    job: Callable[..., Job], listen: bool, joined: bool, ended: Any
) -> None:
    one = job(listen=listen)
    for slot in (slot for agent in one.agents for slot in agent.slots if joined):
        slot.join()
    one.run(0.3)
    one.store_end = "the process of the ranks' store was killed by SIGKILL"
    one.run(GRACE + 1)
    assert one.ended() == [ended] * 2
    told = one.coordinator.verdict
    assert told is not None and one.store_end in str(told.failure.fault.error)


def test_one_that_has_finished_starts_again_with_the_others(job: Callable[..., Job]) -> None:
    one = job()
    one.finish(1)
    one.run(0.3)
    one.agents[0].workers.end(0, -KILL)
    one.run(1)
    assert one.ended() == ["round 1", "round 1"]


# -- ranks that fail


def test_a_rank_that_is_killed_after_progress_starts_again_on_all_nodes(job: Callable[..., Job]) -> None:
    one = job()
    one.agents[1].workers.end(0, -KILL)
    one.run(1)
    assert one.ended() == ["round 1", "round 1"]
    assert one.next_round(0).history == one.next_round(1).history
    assert one.next_round(0).history.best == 5
    assert [agent.workers.alive for agent in one.agents] == [set(), set()]
    assert sent_to(one.agents[0]) == {0: [KILL], 1: [KILL]}, "what they have not saved is lost already"
    (event,) = one.agents[1].told()
    assert (event["event"], event["code"], event["rank"], event["signal"]) == ("restart", "signalled", 2, "SIGKILL")
    assert one.agents[0].told() == [], "who saw it tells it"


def test_a_rank_that_raises_without_progress_ends_the_attempt(job: Callable[..., Job]) -> None:
    one = job(step=-1)
    one.agents[0].workers.end(1, 1, error=raised())
    one.run(1)
    assert one.ended() == [errors.FAILED, errors.FAILED]
    assert (one.failed(0).ours, one.failed(1).ours) == (True, False)
    assert (one.failed(0).decides, one.failed(1).decides) == (True, False)
    assert one.fault(1) == one.fault(0)
    assert (one.fault().code, one.fault().rank, one.fault().host) == (FaultCode.RAISED, 1, "node0")
    (event,) = one.agents[0].told()
    assert (event["event"], event["rank"], event["traceback"]) == ("fault", 1, "Traceback\nValueError: boom\n")
    assert "step" not in event, "it has done none"


def test_a_rank_that_raises_after_progress_starts_again(job: Callable[..., Job]) -> None:
    one = job()
    one.agents[0].workers.end(1, 1, error=raised())
    one.run(1)
    assert one.ended() == ["round 1", "round 1"]


@pytest.mark.parametrize("how", ["final", "gives up"])
def test_an_error_that_would_come_again_is_not_tried_again(job: Callable[..., Job], how: str) -> None:
    one = job()
    if how == "gives up":
        one.agents[0].slots[1].give_up()
    one.agents[0].workers.end(1, 1, error=raised(final=how == "final"))
    one.run(1)
    assert one.ended() == [errors.FAILED, errors.FAILED]


def test_ranks_that_cannot_resume_are_ended_gently(job: Callable[..., Job]) -> None:
    one = job(listen=False)
    one.agents[0].workers.end(0, 1, error=raised())
    one.run(1)
    assert one.ended() == [None, None]
    assert sent_to(one.agents[1]) == {0: [TERM], 1: [TERM]}
    assert sent_to(one.agents[0]) == {0: [], 1: [TERM]}
    one.run(GRACE)
    assert one.ended() == [errors.FAILED, errors.FAILED]
    assert sent_to(one.agents[1]) == {0: [TERM, KILL], 1: [TERM, KILL]}


def test_a_rank_that_exits_early_with_0_has_failed(job: Callable[..., Job]) -> None:
    one = job(step=-1)
    one.agents[1].workers.end(1, 0)
    one.run(1)
    assert one.ended() == [errors.FAILED, errors.FAILED]
    assert (one.fault().code, one.fault().rank, one.fault().host) == (FaultCode.RETURNED_EARLY, 3, "node1")


@pytest.mark.parametrize("agent", [0, 1], ids=["of the same node", "of another node"])
def test_a_rank_that_returns_before_another_one_loses_it_has_failed(job: Callable[..., Job], agent: int) -> None:
    one = job()
    one.agents[agent].workers.end(1, 0, returned={})
    one.run(2)
    assert one.ended() == [None, None]
    one.agents[0].workers.end(0, 1, error=raised("Connection closed by peer", lost_peer=True))
    one.run(1)
    assert one.ended() == [errors.FAILED, errors.FAILED]
    fault = one.fault(1)
    assert (fault.code, fault.rank, fault.host) == (FaultCode.RETURNED_EARLY, 2 * agent + 1, f"node{agent}")
    assert "exited with code 0 while rank 0 on node0 still needed it" in fault.message
    assert [event["event"] for event in one.agents[0].told()] == ["fault"]


def test_93_ends_the_attempt_for_good(job: Callable[..., Job]) -> None:
    one = job()
    one.agents[1].workers.end(0, errors.NO_RETRY)
    one.run(1)
    assert one.ended() == [errors.NO_RETRY, errors.NO_RETRY]


def test_the_death_is_blamed_and_not_who_lost_a_peer_by_it(job: Callable[..., Job]) -> None:
    one = job()
    one.agents[0].workers.end(0, 1, error=raised("Connection closed by peer", lost_peer=True))
    one.agents[0].workers.end(1, -signal.SIGSEGV)
    one.run(1)
    (event,) = one.agents[0].told()
    assert (event["code"], event["rank"], event["signal"]) == ("signalled", 1, "SIGSEGV")


def test_a_survivor_that_lost_a_peer_on_another_node_is_no_error_of_the_program(job: Callable[..., Job]) -> None:
    """Its agent hears of the end of its own ranks first; restarts are tried although nothing got further."""
    one = job(step=-1)
    one.agents[0].workers.end(0, 1, error=raised("Connection closed by peer", lost_peer=True))
    one.run(1)
    assert one.ended() == ["round 1", "round 1"]


def test_a_second_failure_elsewhere_changes_nothing(job: Callable[..., Job]) -> None:
    one = job()
    one.agents[0].workers.end(0, -KILL)
    one.agents[1].workers.end(0, errors.NO_RETRY)
    one.run(1)
    assert one.ended() == ["round 1", "round 1"]
    assert one.next_round(0).history == one.next_round(1).history


def test_ranks_that_do_not_die_end_the_attempt_to_resume_elsewhere(job: Callable[..., Job]) -> None:
    one = job()
    one.agents[0].workers.immortal = True
    one.agents[0].workers.end(0, -KILL)
    one.run(DIES - 0.5)
    assert one.ended()[0] is None
    one.run(2)
    assert one.ended()[0] == errors.RESUME
    assert (one.fault().code, one.fault().host) == (FaultCode.STILL_THERE, "node0")
    assert one.agents[0].told()[-1]["code"] == "still_there"


@pytest.mark.parametrize(("seconds", "end"), [(DIES + 30, "round 1"), (2 * FREES, errors.RESUME)])
def test_ranks_whose_memory_the_kernel_still_frees_are_waited_for(
    job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, seconds: float, end: Any
) -> None:
    one = job(agents=1)
    monkeypatch.setattr("launcher.processes.cpu_seconds", lambda pid: one.now)
    workers = one.agents[0].workers
    workers.immortal = True
    workers.end(0, -KILL)
    one.run(min(seconds, FREES - 1))
    assert one.ended() == [None]
    one.run(max(0.0, seconds - FREES))
    workers.immortal = False
    workers.kill()
    one.run(1)
    assert one.ended() == [end]


def test_a_rank_that_is_gone_hides_not_that_the_memory_of_another_is_still_freed(
    job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = job(agents=2, min_nodes=1)
    workers = one.agents[0].workers
    monkeypatch.setattr("launcher.processes.cpu_seconds", lambda pid: 10_000 * (pid % 2 == 0) + one.now)
    workers.immortal = True
    one.agents[1].workers.end(0, -KILL)
    one.run(DIES + 2)
    workers.end(0, -KILL)  # of the two it has used by far the most
    one.run(DIES + 5)
    assert one.ended()[0] is None


# -- ranks that leave to resume later


def test_ranks_that_leave_give_the_others_time_to_save(job: Callable[..., Job]) -> None:
    one = job()
    one.leave(1)
    one.run(1)
    assert one.ended() == [None, None]
    assert KILL not in [number for _, number in one.agents[0].workers.signals]
    one.leave(0)
    one.run(1)
    assert one.ended() == [errors.RESUME, errors.RESUME]
    assert (one.stop(1).reason, one.stop(1).host, one.stop(1).ranks) == (StopReason.EXIT_75, "node1", (2, 3))


def test_ranks_that_do_not_follow_are_killed_in_the_end(job: Callable[..., Job]) -> None:
    one = job()
    one.leave(1)
    one.run(HANG + 2 * LATE + 3)
    assert one.ended() == [errors.RESUME, errors.RESUME]
    assert sent_to(one.agents[0])[0][-1] == KILL


def test_a_rank_that_leaves_by_itself_ends_ranks_elsewhere_that_do_not_listen(job: Callable[..., Job]) -> None:
    """A function that ends with 75, and others that know nothing of stop requests."""
    one = job(listen=False)
    one.leave(1)
    one.run(1)
    assert sent_to(one.agents[0]) == {0: [TERM], 1: [TERM]}
    one.agents[0].workers.end(0, -TERM)
    one.agents[0].workers.end(1, -TERM)
    one.run(1)
    assert one.ended() == [errors.RESUME, errors.RESUME]


def test_one_rank_of_a_node_that_leaves_ends_the_node_s_others_that_do_not_listen(job: Callable[..., Job]) -> None:
    one = job(listen=False)
    one.agents[1].workers.end(0, errors.RESUME)
    one.run(1)
    assert sent_to(one.agents[1])[1] == [TERM]
    one.run(2 * GRACE)
    assert one.ended() == [errors.RESUME, errors.RESUME]


def test_a_node_that_is_lost_while_others_leave_is_not_waited_for(job: Callable[..., Job]) -> None:
    one = job(agents=3)
    one.leave(1)
    one.run(0.5)
    one.leave(0)
    one.cut(2)
    one.run(1)
    assert one.ended()[:2] == [errors.RESUME, errors.RESUME]


# -- stop requests


def test_ranks_that_listen_are_asked_and_leave(job: Callable[..., Job]) -> None:
    one = job()
    one.agents[1].signals.send(TERM)
    one.run(1)
    assert sent_to(one.agents[0]) == sent_to(one.agents[1]) == {0: [TERM], 1: [TERM]}, "once each, on all nodes"
    one.leave(0)
    one.leave(1)
    one.run(1)
    assert one.ended() == [errors.RESUME, errors.RESUME]
    assert (one.stop().reason, one.stop().host, one.stop().signal) == (StopReason.SIGNAL, "node1", "SIGTERM")


def test_ranks_that_listen_and_do_not_leave_are_killed_after_the_grace(job: Callable[..., Job]) -> None:
    one = job()
    one.agents[0].signals.send(TERM)
    one.run(GRACE - 1)
    assert one.agents[0].workers.alive
    one.run(2)
    assert not one.agents[0].workers.alive
    one.run(LATE + 1)
    assert one.ended() == [errors.RESUME, errors.RESUME]
    assert (one.stop().killed_on, one.stop().grace) == ("node0", GRACE)


@pytest.mark.parametrize(("left", "within"), [(-20.0, AT_LIMIT), (0.5, AT_LIMIT), (60.0, GRACE)])
def test_at_the_wall_time_ranks_are_killed_before_the_job_is_so_that_it_can_continue_the_run(
    job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, left: float, within: float
) -> None:
    monkeypatch.setattr("launcher.agent.supervisor.time_left", lambda _: TimeLeft(left, sure=False))
    one = job()
    for agent in one.agents:
        agent.signals.send(TERM)
    one.run(within - 1)
    assert [bool(agent.workers.alive) for agent in one.agents] == [True, True]
    one.run(2 + LATE + 1)
    assert one.ended() == [errors.RESUME, errors.RESUME]
    assert one.stop().grace == within


def join(one: Job) -> None:
    for slot in (slot for agent in one.agents for slot in agent.slots):
        slot.join()
    one.run(0.3)


def test_ranks_that_do_not_listen_end_with_the_signal(job: Callable[..., Job]) -> None:
    one = job(listen=False)
    join(one)
    for agent in one.agents:
        agent.signals.send(TERM)
    one.run(0.5)
    assert [agent.signals.ignored for agent in one.agents] == [True, True]
    for agent in one.agents:
        assert sent_to(agent) == {0: [TERM], 1: [TERM]}
        for place in range(2):
            agent.workers.end(place, -TERM)
    one.run(1)
    assert one.ended() == [128 + TERM, 128 + TERM]
    assert (one.fault().code, one.fault().signal) == (FaultCode.STOPPED_EARLY, "SIGTERM")


def test_a_stop_request_to_one_agent_ends_ranks_that_do_not_listen_everywhere(job: Callable[..., Job]) -> None:
    one = job(listen=False)
    join(one)
    one.agents[1].signals.send(TERM)
    one.run(GRACE + 3)
    assert one.ended() == [128 + TERM, 128 + TERM]
    assert sent_to(one.agents[0]) == {0: [TERM, KILL], 1: [TERM, KILL]}


def test_ranks_that_leave_with_75_on_one_node_while_another_ends_them(job: Callable[..., Job]) -> None:
    """A stop request, and a rank of another node that left in the same moment."""
    one = job(listen=False)
    one.leave(1)
    one.agents[0].signals.send(TERM)
    one.run(GRACE + 5)
    assert None not in one.ended()


def test_a_warning_reaches_all_ranks_once_and_ends_nothing(job: Callable[..., Job]) -> None:
    one = job()
    one.agents[1].signals.send(signal.SIGUSR1)
    one.run(GRACE * 2)
    assert one.ended() == [None, None]
    assert sent_to(one.agents[0]) == sent_to(one.agents[1]) == {0: [USR2], 1: [USR2]}
    one.leave(0)
    one.leave(1)
    one.run(1)
    assert one.ended() == [errors.RESUME, errors.RESUME]


def test_a_warning_to_ranks_that_do_not_listen_is_nothing(job: Callable[..., Job]) -> None:
    one = job(listen=False)
    one.agents[0].signals.send(signal.SIGUSR2)
    one.run(GRACE * 2)
    assert [agent.workers.signals for agent in one.agents] == [[], []]
    one.finish(0)
    one.finish(1)
    one.run(1)
    assert one.ended() == [{"loss": 0}, {"loss": 1}]


def test_a_rank_that_fails_while_all_stop_does_not_start_again(job: Callable[..., Job]) -> None:
    one = job()
    one.agents[0].signals.send(TERM)
    one.run(0.5)
    one.agents[1].workers.end(0, -KILL)
    one.run(GRACE + LATE + 2)
    assert one.ended() == [errors.RESUME, errors.RESUME]


# -- a node that came back


def test_ranks_leave_for_a_node_that_came_back_and_start_again(job: Callable[..., Job]) -> None:
    one = job()
    one.coordinator.broadcast({"type": "regroup", "back": [{"host": "node2", "node": 2}]})
    one.deliver()
    one.run(0.5)
    assert sent_to(one.agents[0]) == sent_to(one.agents[1]) == {0: [USR2], 1: [USR2]}
    one.leave(0)
    one.run(1)
    assert one.ended() == [None, None], "the other saves"
    one.leave(1)
    one.run(1)
    assert one.ended() == ["round 1", "round 1"]
    assert one.next_round().history.tried == 0


# -- programs


PROGRAM = {"workload": {"kind": "Program", "params": {"resumable": True, "stop_signal": "SIGINT", "saves": None}}}


@pytest.fixture
def program(job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setattr("launcher.runs.user_checkpoints.newest", lambda _: 0.0)
    monkeypatch.delenv("LAUNCHER_DEADLINE", raising=False)
    return job(listen=False, **PROGRAM)


def test_a_program_is_sent_its_own_signal_once(program: Job) -> None:
    program.agents[1].signals.send(TERM)
    program.run(1)
    assert sent_to(program.agents[0]) == sent_to(program.agents[1]) == {0: [signal.SIGINT], 1: [signal.SIGINT]}
    for agent in program.agents:
        for place in range(2):
            agent.workers.end(place, -signal.SIGINT)
    program.run(1)
    assert program.ended() == [errors.RESUME, errors.RESUME]


def test_a_program_that_ends_with_0_when_it_is_asked_to_may_have_more_to_do(program: Job) -> None:
    program.agents[0].signals.send(TERM)
    program.run(1)
    for agent in program.agents:
        for place in range(2):
            agent.workers.end(place, 0)
    program.run(1)
    assert program.ended() == [errors.RESUME, errors.RESUME]


def test_a_program_that_does_not_leave_is_killed_and_resumed(program: Job) -> None:
    program.agents[0].signals.send(TERM)
    program.run(GRACE + LATE + 3)
    assert program.ended() == [errors.RESUME, errors.RESUME]
    assert sent_to(program.agents[1])[0] == [signal.SIGINT, KILL]
    assert program.stop().killed_on is not None


def test_a_program_is_done_without_a_word(program: Job) -> None:
    for agent in program.agents:
        for place in range(2):
            agent.workers.end(place, 0)
    program.run(1)
    assert program.ended() == [{}, {}]


def test_93_of_a_program_that_is_stopping_is_still_final(program: Job) -> None:
    program.agents[0].signals.send(TERM)
    program.run(1)
    program.agents[0].workers.end(0, errors.NO_RETRY)
    program.run(GRACE + 3)
    assert program.ended()[0] == errors.NO_RETRY


def of_time(
    job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, seconds: float, *, sure: bool = True, lead: int = 30
) -> Job:
    """A program whose attempt has so many seconds left."""
    monkeypatch.setattr("launcher.runs.user_checkpoints.newest", lambda _: 0.0)
    monkeypatch.setattr("launcher.agent.supervisor.time_left", lambda _: TimeLeft(seconds, sure))
    return job(listen=False, resume={"lead": lead}, **PROGRAM)


@pytest.mark.parametrize("sure", [True, False])
def test_a_program_is_asked_to_stop_before_its_deadline(
    job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, sure: bool
) -> None:
    """Agents that only guess the deadline leave it to the first one."""
    one = of_time(job, monkeypatch, 60, sure=sure)
    one.run(25)
    assert [agent.workers.signals for agent in one.agents] == [[], []]
    one.run(6)
    assert sent_to(one.agents[0]) == sent_to(one.agents[1]) == {0: [signal.SIGINT], 1: [signal.SIGINT]}
    assert one.ended() == [None, None]
    one.leave(0)
    one.leave(1)
    one.run(1)
    assert one.ended() == [errors.RESUME, errors.RESUME]
    assert one.stop().reason is StopReason.TIME_LIMIT


def test_an_agent_that_guesses_a_deadline_does_not_end_the_attempt_of_others(
    job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its clock is ahead; the first agent, on whose machine the job's script runs, knows better."""
    monkeypatch.setattr("launcher.runs.user_checkpoints.newest", lambda _: 0.0)
    known = [TimeLeft(10_000, sure=True), TimeLeft(0, sure=False)]
    monkeypatch.setattr("launcher.agent.supervisor.time_left", lambda _: known.pop(0))
    one = job(listen=False, **PROGRAM)
    one.run(30)
    assert [agent.workers.signals for agent in one.agents] == [[], []]


def test_a_program_that_does_not_leave_before_its_deadline_is_killed_in_time_to_tell(
    job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the lead of 12 seconds the agents keep 5, whatever the grace is."""
    one = of_time(job, monkeypatch, 60, lead=12)
    one.run(50)
    assert sent_to(one.agents[0]) == {0: [signal.SIGINT], 1: [signal.SIGINT]}
    one.run(7)
    assert sent_to(one.agents[0]) == sent_to(one.agents[1]) == {0: [signal.SIGINT, KILL], 1: [signal.SIGINT, KILL]}
    one.run(LATE + 1)
    assert one.ended() == [errors.RESUME, errors.RESUME]


def test_a_program_stops_when_its_stop_file_is_there(program: Job) -> None:
    """The first agent looks for it, and tells the others."""
    program.run(5)
    assert [agent.workers.signals for agent in program.agents] == [[], []]
    Path(program.plan.run_dir, "stop").touch()
    program.run(2)
    assert sent_to(program.agents[0]) == sent_to(program.agents[1]) == {0: [signal.SIGINT], 1: [signal.SIGINT]}
    program.leave(0)
    program.leave(1)
    program.run(1)
    assert program.ended() == [errors.RESUME, errors.RESUME]
    assert program.stop().reason is StopReason.STOP_FILE


def test_a_stop_file_that_cannot_be_read_is_no_stop_request(program: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    unavailable = Unavailable("the file server does not answer", errno.EIO)
    answers: list[Ok[bool] | Unavailable] = [unavailable, unavailable, Ok(True)]
    monkeypatch.setattr(
        "launcher.agent.supervisor.exists", lambda *_, **__: answers.pop(0) if len(answers) > 1 else answers[0]
    )
    program.run(1.9)
    assert [agent.workers.signals for agent in program.agents] == [[], []]
    program.run(2)
    assert sent_to(program.agents[1]) == {0: [signal.SIGINT], 1: [signal.SIGINT]}


# -- another attempt has taken over the run


@pytest.fixture
def lease_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "lease"
    for name, value in (("ATTEMPT", "0"), ("JOB_ID", "7"), ("LEASE", str(path))):
        monkeypatch.setenv(f"LAUNCHER_{name}", value)
    path.write_text("7 0 node0\n")
    return path


@pytest.mark.parametrize("holder", ["7 1 node2\n", "8 1 node2\n", "7\n"])  # the last: it has no attempt yet
@pytest.mark.parametrize(("listen", "signals"), [(True, [KILL]), (False, [TERM, KILL])])
def test_ranks_of_an_attempt_that_has_lost_the_run_are_not_asked_to_save(
    job: Callable[..., Job], lease_file: Path, holder: str, listen: bool, signals: list[int]
) -> None:
    one = job(listen=listen)
    one.run(lease_and_locks.HEARTBEAT + 1)
    assert [agent.workers.signals for agent in one.agents] == [[], []]
    lease_file.write_text(holder)
    one.run(lease_and_locks.HEARTBEAT + GRACE + 1)
    assert sent_to(one.agents[0]) == sent_to(one.agents[1]) == {0: signals, 1: signals}
    assert one.ended() == [errors.RESUME, errors.RESUME]
    assert (one.stop().reason, one.failed().decides) == (StopReason.LEASE_LOST, True)
    assert "attempt 0 has lost the run" in str(one.failed())
    assert [[each["event"] for each in agent.told()] for agent in one.agents] == [["stop"], []]


def test_an_attempt_that_has_lost_the_run_while_it_stops_does_not_save(
    job: Callable[..., Job], lease_file: Path
) -> None:
    one = job(launch={"grace": 100})
    one.agents[0].signals.send(TERM)
    one.run(1)
    lease_file.write_text("7 1 node2\n")
    one.run(lease_and_locks.HEARTBEAT + 1)
    assert sent_to(one.agents[0]) == sent_to(one.agents[1]) == {0: [TERM, KILL], 1: [TERM, KILL]}
    assert one.ended() == [errors.RESUME, errors.RESUME]


@pytest.mark.parametrize("seen", ["none", "empty", "unreadable"])
def test_only_the_lease_of_another_attempt_ends_ranks(
    job: Callable[..., Job], lease_file: Path, seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = job()
    if seen == "none":
        lease_file.unlink()
    elif seen == "empty":
        lease_file.write_text("")
    else:
        unavailable = Unavailable("the file server does not answer", errno.EIO)
        monkeypatch.setattr(lease_and_locks, "read_text", lambda *_, **__: unavailable)
    one.run(2 * lease_and_locks.HEARTBEAT)
    assert [agent.workers.signals for agent in one.agents] == [[], []]
    assert one.ended() == [None, None]


# -- other agents, and the leader


def test_a_lost_node_starts_a_new_round_of_the_others(job: Callable[..., Job]) -> None:
    one = job(agents=3)
    one.cut(2)
    one.run(1)
    assert one.ended()[:2] == ["round 1", "round 1"]
    assert one.next_round(1).lost == (2,)


def test_steps_since_the_last_heartbeat_count_as_reached_when_a_node_is_lost(job: Callable[..., Job]) -> None:
    one = job(agents=3, step=90)
    one.cut(2)
    for agent in one.agents[:2]:
        agent.workers.on_kill = lambda slot=agent.slots[0]: slot.beat(105)
    one.run(1)
    assert [one.next_round(index).history.best for index in (0, 1)] == [105, 105]


def test_too_few_nodes_resume_in_another_attempt(job: Callable[..., Job]) -> None:
    one = job(agents=3, min_nodes=3)
    one.cut(2)
    one.run(1)
    assert one.ended()[:2] == [errors.RESUME, errors.RESUME]
    assert (one.fault(1).code, one.fault(1).accused) == (FaultCode.NODE_ENDED, (Accused(host="node2"),))


@pytest.mark.parametrize("lost", [0, 2])
@pytest.mark.parametrize(("saved", "code"), [(True, errors.RESUME), (False, errors.FAILED)])
def test_a_node_that_is_lost_while_ranks_load_does_not_end_a_run_that_has_a_checkpoint(
    job: Callable[..., Job], tmp_path: Path, saved: bool, code: int, lost: int
) -> None:
    """No rank has told yet that it can resume."""
    folder = tmp_path / "checkpoints"
    (folder / ("step-000000005" if saved else ".saving")).mkdir(parents=True)
    one = job(agents=3, min_nodes=3, listen=False, checkpoint={"dir": str(folder)})
    one.cut(lost)
    one.run(GRACE + 2)
    assert [each for index, each in enumerate(one.ended()) if index != lost] == [code, code]


def test_too_few_nodes_that_may_be_cut_off_do_not_speak_for_the_attempt_yet(job: Callable[..., Job]) -> None:
    """Two of three are silent, and two can go on: perhaps they do, elsewhere."""
    one = job(agents=3, min_nodes=2)
    for index in (1, 2):
        one.agents[index].line.connected = False
    one.run(HEARTBEAT + 2)
    failed = one.failed(0)
    assert (failed.exit_code, failed.ours) == (errors.RESUME, True)
    assert failed.suspended == failed.event
    assert not [event for event in one.agents[0].told() if event["event"] == "fault"]


@pytest.mark.parametrize(("listen", "outcome"), [(True, "round 1"), (False, errors.FAILED)])
def test_a_lost_leader_is_decided_about_by_each_for_itself(job: Callable[..., Job], listen: bool, outcome: Any) -> None:
    one = job(agents=3, listen=listen)
    one.cut(0)
    one.run(GRACE + 2)
    assert one.ended()[1:] == [outcome, outcome]
    if listen:
        assert one.next_round(1).lost == one.next_round(2).lost == (0,)
        assert one.next_round(1).history.round == one.next_round(2).history.round
    else:
        assert (one.fault(1).code, one.fault(1).accused) == (FaultCode.LEADER_LOST, (Accused(host="node0"),))


def test_agents_that_are_killed_with_their_leader_blame_nobody(job: Callable[..., Job]) -> None:
    """A job that is killed by force: its agents die within milliseconds, in any order."""
    one = job(agents=3)
    one.cut(0)
    one.run(ALONE - 0.2)
    assert one.ended()[1:] == [None, None]
    assert not [event for agent in one.agents[1:] for event in agent.told() if event["event"] in ("fault", "restart")]
    one.run(GRACE + 2)
    assert one.ended()[1:] == ["round 1", "round 1"]


def test_a_lost_leader_is_in_the_record_and_not_who_tells_of_it(job: Callable[..., Job]) -> None:
    one = job(agents=3)
    one.cut(0)
    one.run(GRACE + 2)
    for agent in one.agents[1:]:
        told = [event for event in agent.told() if event["event"] == "restart"]
        assert [(event["code"], event["host"], event["node"]) for event in told] == [("leader_lost", "node0", 0)]


def test_a_leader_that_is_lost_while_ranks_end_is_the_cause(job: Callable[..., Job]) -> None:
    """A node dies, and the scheduler ends the others because of that."""
    one = job(listen=False)
    one.agents[0].outcome = AttemptFailed(Fault(error="its kernel has stopped; its connections are still there"))
    one.agents[1].signals.send(TERM)
    one.run(0.3)
    one.cut(0)
    one.run(GRACE + 2)
    assert one.ended()[1] == 128 + TERM
    fault = one.fault(1)
    assert (fault.code, fault.accused) == (FaultCode.NODE_ENDED, (Accused(host="node0"),))
    assert fault.message.endswith("(killed, or lost); then node1 was asked to stop by SIGTERM")


def test_a_leader_that_is_lost_while_ranks_save(job: Callable[..., Job]) -> None:
    one = job()
    one.agents[1].signals.send(TERM)
    one.run(0.3)
    one.cut(0)
    one.run(GRACE + LATE + 2)
    assert one.ended()[1] == errors.RESUME


def test_a_leader_that_is_lost_after_its_verdict_changes_nothing(job: Callable[..., Job]) -> None:
    one = job()
    one.agents[1].workers.immortal = True
    one.agents[1].workers.end(0, -KILL)
    one.run(0.5)
    one.cut(0)
    one.run(0.5)
    one.agents[1].workers.end(1, -KILL)
    one.run(0.5)
    assert one.ended()[1] == "round 1"
    assert one.next_round(1).lost == ()


def test_a_leader_that_decides_nothing_is_given_up(job: Callable[..., Job]) -> None:
    one = job()
    one.agents[1].line.connected = False  # what it says is lost, and nobody notices
    one.agents[1].workers.end(0, -KILL)
    one.run(HEARTBEAT + DECIDED + 1)
    assert one.next_round(1).lost == (0,)


# -- hangs


def test_ranks_that_do_no_step_are_found_out(job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch) -> None:
    one = job()
    taken: list[Sequence[int]] = []
    monkeypatch.setattr(
        Stacks, "take", lambda self, pids: taken.append(pids) or [("S", f"stack of {pid}") for pid in pids]
    )
    for _ in range(int(HANG) + 2):
        for slot in one.agents[1].slots:
            slot.beat(6)
        one.run(1)
    one.run(STACKS)
    assert one.ended() == ["round 1", "round 1"]
    assert len(taken) == 2
    (event,) = one.agents[0].told()
    assert (event["code"], event["rank"], event["seconds"]) == ("hang", 1, 60)
    assert event["message"].startswith("rank 1 on node0 is stopped (state T): no step for 60 s")
    stacks = sorted(path.name for path in one.attempt.logs.iterdir() if "stacks" in path.name)
    assert len(stacks) == 4


@pytest.mark.parametrize("step", [5, -1])
def test_ranks_that_were_suspended_with_their_agents_do_not_hang(job: Callable[..., Job], step: int) -> None:
    """As by `scontrol suspend`: the clock goes on, and nobody else does."""
    one = job(step=step)
    one.run(3)
    one.now += 3600
    one.run(HANG - 5)
    assert one.ended() == [None, None]
    assert not list(one.attempt.logs.iterdir())
    if step >= 0:
        one.run(5 + STACKS)
        assert one.ended() == ["round 1", "round 1"]


def test_what_follows_a_training_is_not_watched_for_steps(job: Callable[..., Job]) -> None:
    one = job()
    for agent in one.agents:
        for slot in agent.slots:
            slot.close()
    one.run(HANG + 2)
    assert one.ended() == [None, None]
    one.agents[1].workers.end(0, -KILL)  # it can resume all the same
    one.run(1)
    assert one.ended() == ["round 1", "round 1"]


def test_ranks_that_have_ended_are_not_asked_for_stacks(
    job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = job(agents=1)
    taken: list[Sequence[int]] = []
    monkeypatch.setattr(Stacks, "take", lambda self, pids: taken.append(pids) or [("S", "x") for _ in pids])
    one.agents[0].workers.end(1, 0, returned={})
    one.run(0.3)
    one.coordinator.broadcast({"type": "hang"})
    one.deliver()
    one.run(0.3)
    assert taken == [[10**9, 0]]


def test_the_time_to_join_names_the_ranks_that_are_missing(job: Callable[..., Job]) -> None:
    one = job(listen=False)
    one.agents[0].slots[0].arrive()
    for slot in one.agents[1].slots:
        slot.arrive()
    one.run(62)
    one.run(GRACE + 1)
    assert one.ended() == [errors.FAILED, errors.FAILED]
    assert (one.fault().code, one.fault().accused) == (FaultCode.NOT_JOINED, (Accused(host="node0", rank=1),))


def test_no_agent_touches_this_process_s_signals() -> None:
    assert os.environ.get("PYTEST_CURRENT_TEST")
    assert signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN
