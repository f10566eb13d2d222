"""Agents of one job, in threads of this process: they meet, lose each other, continue, come back, and part."""

from __future__ import annotations

import errno
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from launcher.agent import leader_connection
from launcher.agent.leader_connection import AskedToStop, AttemptOver, LeaderConnection, NobodyLeads, Overtaken, Signals
from launcher.agent.policy import History, NextStep, RoundEnd, RoundFailure, RoundVerdict
from launcher.failures.codes import FaultCode
from launcher.rendezvous import rounds as files_of_rounds
from launcher.rendezvous.rounds import Arrivals, LeaderLost, Member, Rendezvous, RendezvousError, Rounds
from launcher.rendezvous.signed_channel import ChannelError
from launcher.runs.directory import Attempt
from launcher.runs.events import Fault, Place
from tests.unit.plans import bare_plan, with_fields

LOW = random.randrange(20000, 28000)  # so that two test runs on one machine rarely meet on a port
ENOUGH = 60.0  # seconds in which what is to happen has happened, on any machine; nobody waits for it
Make = Callable[..., LeaderConnection]
FAILED = RoundFailure(RoundEnd.LOST_NODE, Fault(), 0, listens=True)


class FakeSignals(Signals):
    def ignore(self) -> None:
        pass


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes one of three agents, two of which are enough."""
    made: list[LeaderConnection] = []
    key = f"test/{random.randrange(2**60)}"

    def agent(
        index: int, *, least: int = 2, heartbeat: float = 30, size: int = 3, join: float = ENOUGH,
        most: int | None = None,
    ) -> LeaderConnection:  # fmt: skip
        places = [Place(host=f"node{number}", node=number) for number in range(size)]
        plan = bare_plan(
            nodes=size, min_nodes=least, spares=0 if most is None else size - most,
            launch={"heartbeat": heartbeat, "rendezvous_timeout": join}, cluster={"port_range": (LOW, LOW + 2000)},
        )  # fmt: skip
        connection = LeaderConnection(
            Member(index, index, places[index].host, 1), plan=plan,
            attempt=cast(Attempt, SimpleNamespace(path=tmp_path, logs=tmp_path)), places=places,
            hosts=["localhost"] * size, secret=b"the run's", key=key, signals=FakeSignals(),
        )  # fmt: skip
        made.append(connection)
        return connection

    yield agent
    for connection in made:
        if connection._hub is not None:
            connection._hub.close()
        connection._disconnect()


def together(*parts: Callable[[], Any]) -> list[Any]:
    """What each part returns, or the error that it raises; all run at once."""
    with ThreadPoolExecutor(len(parts)) as pool:
        futures = [pool.submit(part) for part in parts]
    return [future.exception() or future.result() for future in futures]


def indices(rendezvous: Rendezvous) -> list[int]:
    return [member.index for member in rendezvous.members]


def met(*agents: LeaderConnection) -> list[Rendezvous]:
    """The first round of these."""
    found = together(*(agent.first for agent in agents))
    assert all(isinstance(each, tuple) for each in found), found
    for _, rendezvous in found:
        if rendezvous.listener is not None:
            rendezvous.listener.close()
    return [rendezvous for _, rendezvous in found]


def met_in_the_end(*agents: LeaderConnection) -> list[Rendezvous]:
    """The first round of these, when time for the others is up."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Arrivals, "decided", lambda self, now: len(self.arrived) == len(agents))
        return met(*agents)


def continued(*parts: Callable[[], Any]) -> list[Any]:
    """Meetings of the next round, or errors."""
    found = together(*parts)
    for each in found:
        if isinstance(each, tuple) and each[1].listener is not None:
            each[1].listener.close()
    return [each[1] if isinstance(each, tuple) else each for each in found]


def messages(agent: LeaderConnection, kind: str, count: int = 1) -> list[Any]:
    """The next messages of that type to this agent; others are passed over."""
    found: list[Any] = []
    give_up = time.monotonic() + ENOUGH
    while len(found) < count:
        assert time.monotonic() < give_up, found
        found += [message for message in agent.poll(0.05) if message["type"] == kind]
    return found


class Polling:
    """Agents that go on in the background, as they do while their ranks run."""

    def __init__(self, *agents: LeaderConnection) -> None:
        self.seen: dict[LeaderConnection, list[Any]] = {agent: [] for agent in agents}
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._poll, args=(agent,)) for agent in agents]

    def _poll(self, agent: LeaderConnection) -> None:
        while not self._stop.is_set():
            self.seen[agent] += agent.poll(0.02)

    def __enter__(self) -> Polling:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


R1 = History(round=1)


# -- rounds


def test_a_loss_is_told_with_the_step_that_the_leader_s_ranks_are_at(make: Make) -> None:
    agents = [make(index) for index in range(3)]
    met(*agents)
    leader = agents[0].coordinator
    assert leader is not None
    leader.watch(time.monotonic())
    for step in (7, 8):
        agents[0].status = {"step": step, "resumable": True}
        agents[0].poll(0.05)
    agents[2]._disconnect()
    (message,) = messages(agents[0], "verdict")
    assert message["verdict"]["failure"]["fault"]["step"] == 8


def test_all_meet_and_the_first_leads(make: Make) -> None:
    agents = [make(index) for index in range(3)]
    results = met(*agents)
    assert [indices(rendezvous) for rendezvous in results] == [[0, 1, 2]] * 3
    assert [agent.leads for agent in agents] == [True, False, False]
    assert {rendezvous.port for rendezvous in results} == {results[0].port}
    assert {rendezvous.interface for rendezvous in results} == {"lo"}
    assert agents[0].begun(0) and not agents[0].begun(1)


def test_the_next_round_keeps_its_connections_and_has_a_port_of_its_own(make: Make) -> None:
    agents = [make(index) for index in range(3)]
    first = met(*agents)
    channels = [agent._channel for agent in agents]
    second = continued(
        *(lambda agent=agent, old=old: agent.next(R1, old, ()) for agent, old in zip(agents, first, strict=True))
    )
    assert [indices(rendezvous) for rendezvous in second] == [[0, 1, 2]] * 3
    assert [agent._channel for agent in agents] == channels
    assert len({rendezvous.port for rendezvous in second}) == 1


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_lost_member_is_done_without_also_the_first(make: Make, lost: int) -> None:
    """The lowest that is left leads."""
    agents = [make(index) for index in range(3)]
    first = met(*agents)
    gone = agents[lost]
    if gone._hub is not None:
        gone._hub.close()
        gone._hub = None
    gone._disconnect()
    left = [index for index in range(3) if index != lost]
    second = continued(*(lambda index=index: agents[index].next(R1, first[index], [lost]) for index in left))
    assert [indices(rendezvous) for rendezvous in second] == [left, left], second
    assert [agents[index].leads for index in left] == [True, False]


@pytest.mark.parametrize("lost", [0, 1])
def test_who_does_not_come_is_given_up(make: Make, monkeypatch: pytest.MonkeyPatch, lost: int) -> None:
    """Nobody knows yet that it is lost; if it is the leader, the next one takes its place."""
    agents = [make(index) for index in range(3)]
    first = met(*agents)
    if lost == 0:
        assert agents[0]._hub is not None
        agents[0]._hub.close()
        agents[0]._hub = None
    left = [index for index in range(3) if index != lost]
    monkeypatch.setattr(Arrivals, "decided", lambda self, now: len(self.arrived) == 2)  # then time is up
    second = continued(*(lambda index=index: agents[index].next(R1, first[index], ()) for index in left))
    assert [indices(rendezvous) for rendezvous in second] == [left, left], second


def test_too_few_do_not_continue(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    agents = [make(index) for index in range(3)]
    first = met(*agents)
    monkeypatch.setattr(Arrivals, "decided", lambda self, now: True)  # time is up
    (error,) = continued(lambda: agents[0].next(R1, first[0], ()))
    assert isinstance(error, RendezvousError)
    assert (error.fault.code, [each.node for each in error.fault.accused]) == (FaultCode.RENDEZVOUS_TIMEOUT, [1, 2])
    (error,) = continued(lambda: agents[2].next(R1, first[2], (0, 1)))
    assert isinstance(error, RendezvousError)
    assert error.fault.code is FaultCode.TOO_FEW
    assert str(error) == "too few agents are left: 1 of the 2 that are needed"


def test_of_two_halves_one_continues(make: Make) -> None:
    """They cannot reach each other; the folder that both see decides."""
    agents = [make(index, least=1) for index in range(3)]
    first = met(*agents)
    (alone,) = continued(lambda: agents[0].next(R1, first[0], (1, 2)))
    assert indices(alone) == [0]
    others = continued(*(lambda index=index: agents[index].next(R1, first[index], (0,)) for index in (1, 2)))
    assert [type(each) for each in others] == [Overtaken, Overtaken], others


def test_a_leader_that_is_cut_off_and_overtaken_leads_nobody(make: Make) -> None:
    agents = [make(index, least=1, heartbeat=2) for index in range(3)]
    first = met(*agents)
    second = continued(*(lambda index=index: agents[index].next(R1, first[index], (0,)) for index in (1, 2)))
    assert [indices(rendezvous) for rendezvous in second] == [[1, 2], [1, 2]], second
    (error,) = continued(lambda: agents[0].next(R1, first[0], (1, 2)))
    assert isinstance(error, Overtaken)


def test_a_leader_that_was_lost_while_something_was_sent_is_not_lost_again(make: Make) -> None:
    """That it was lost is known by the time of the next round, and says nothing about the leader of that one."""
    agents = [make(index) for index in range(3)]
    first = met(*agents)
    assert agents[0]._hub is not None
    agents[0]._hub.close()
    agents[0]._hub = None
    for index in (1, 2):
        for _ in range(3):  # the first ones still fit into the socket
            agents[index].send({"type": "ended"})
            time.sleep(0.01)
        assert agents[index]._inbox, "the leader's end was found while something was sent"
    second = continued(*(lambda index=index: agents[index].next(R1, first[index], (0,)) for index in (1, 2)))
    assert [indices(rendezvous) for rendezvous in second] == [[1, 2], [1, 2]], second


def test_spare_nodes_replace_one_leader_after_the_other_at_once(make: Make) -> None:
    agents = [make(index, size=4, most=2) for index in range(4)]
    with ThreadPoolExecutor(2) as pool:
        spares = [pool.submit(agents[index].first) for index in (2, 3)]
        first = met(*agents[:2])
        assert [(indices(each), each.spares) for each in first] == [([0, 1], (2, 3))] * 2
        lose_leader(agents[0])
        began = time.monotonic()
        ((_, second),) = together(lambda: agents[1].next(R1, first[1], (0,)))
        assert second.listener is not None
        second.listener.close()
        assert (indices(second), second.spares) == ([1, 2], (3,))
        assert indices(spares[0].result(ENOUGH)[1]) == [1, 2]
        assert not spares[1].done()
        lose_leader(agents[1])
        ((history, third),) = together(lambda: agents[2].next(History(round=2), second, (1,)))
        third.listener.close()
        assert (history.round, indices(third), third.spares) == (2, [2, 3], ())
        assert indices(spares[1].result(ENOUGH)[1]) == [2, 3]
        assert time.monotonic() - began < 30  # less than launch.heartbeat: nobody was waited for in vain


def test_a_leader_that_leaves_a_round_to_the_others_keeps_the_spare_nodes_waiting(make: Make) -> None:
    agents = [make(index, size=3, most=2) for index in range(3)]
    with ThreadPoolExecutor(1) as pool:
        spare = pool.submit(agents[2].first)
        first = met(*agents[:2])
        leader = agents[0].coordinator
        assert leader is not None
        leader.verdict = RoundVerdict(FAILED, NextStep.RESTART, 1, R1)
        agents[0].close()
        ((_, second),) = together(lambda: agents[1].next(R1, first[1], (0,)))
        second.listener.close()
        assert indices(second) == indices(spare.result(ENOUGH)[1]) == [1, 2]


def lose_leader(agent: LeaderConnection) -> None:
    assert agent._hub is not None
    agent._hub.close()
    agent._hub = agent.coordinator = None


def is_lost_when_it_has_recorded(leader: LeaderConnection, first: Rendezvous, told: tuple[int, ...]) -> None:
    """Leads the round after the first one until it is recorded; these are told."""
    assert leader.coordinator is not None
    send, listens = leader.coordinator._send, leader.coordinator._listen

    def send_to_some(indices: Any, message: Any) -> None:
        send(told if message["type"] == "begin" else indices, message)

    def listen(members: Any) -> int:
        leader._signals._take(15, None)  # it ends as soon as it has told
        return listens(members)

    leader.coordinator._listen, leader.coordinator._send = listen, send_to_some  # type: ignore[method-assign]
    with pytest.raises(AskedToStop):
        leader.next(R1, first, ())
    lose_leader(leader)


@pytest.mark.parametrize("told", [(), (1,), (2,)])
def test_a_leader_that_is_lost_when_it_has_recorded_a_round_is_replaced_at_once(
    make: Make, told: tuple[int, ...]
) -> None:
    """Some or none were told that the round begins."""
    agents = [make(index) for index in range(3)]
    first = met(*agents)

    def follow(index: int) -> Any:
        history, rendezvous = agents[index].next(R1, first[index], ())
        if history.round == 2:
            return history, rendezvous
        messages(agents[index], "leader_lost")
        return agents[index].next(History(round=2), rendezvous, (0,))

    lead = partial(is_lost_when_it_has_recorded, agents[0], first[0], told)
    _, *second = together(lead, lambda: follow(1), lambda: follow(2))
    assert [(history.round, indices(rendezvous)) for history, rendezvous in second] == [(2, [1, 2])] * 2, second
    second[0][1].listener.close()


def test_who_would_be_too_few_without_a_leader_that_has_recorded_a_round_looks_for_no_other(make: Make) -> None:
    """Those that were told end the attempt, and each of them would be tried for launch.heartbeat."""
    agents = [make(index, least=3) for index in range(3)]
    first = met(*agents)
    lead = partial(is_lost_when_it_has_recorded, agents[0], first[0], (1,))
    *_, error = together(lead, *(partial(each.next, R1, first[each.own.index], ()) for each in agents[1:]))
    assert isinstance(error, Overtaken), error


def test_one_who_was_away_waits_and_is_let_in(make: Make) -> None:
    agents = [make(index) for index in range(3)]
    first = met(*agents)
    agents[2]._disconnect()
    second = continued(*(lambda index=index: agents[index].next(R1, first[index], (2,)) for index in (0, 1)))
    leader = agents[0].coordinator
    assert leader is not None

    def lead() -> Any:
        give_up = time.monotonic() + ENOUGH
        while leader.waiting != [2] and time.monotonic() < give_up:
            agents[0].poll(0.05)
        return agents[0].next(History(round=2), second[0], ())

    third = together(lead, lambda: agents[1].next(History(round=2), second[1], ()), agents[2].join)
    assert [indices(rendezvous) for _, rendezvous in third] == [[0, 1, 2]] * 3, third
    history, _ = third[2]
    assert (history.round, history.listened) == (2, True)
    third[0][1].listener.close()


def test_a_member_that_comes_late_joins_when_fewer_are_enough(make: Make) -> None:
    agents = [make(index) for index in range(3)]
    first = met_in_the_end(agents[0], agents[1])
    assert indices(first[0]) == [0, 1]
    late = make(2)
    leader = agents[0].coordinator
    assert leader is not None

    def lead() -> Any:
        while leader.waiting != [2]:
            agents[0].poll(0.05)
        return agents[0].next(R1, first[0], ())

    second = continued(lead, lambda: agents[1].next(R1, first[1], ()), late.first)
    assert [indices(rendezvous) for rendezvous in second] == [[0, 1, 2]] * 3, second


def test_a_member_that_comes_late_is_refused_when_all_are_needed(make: Make) -> None:
    met(make(0, size=1, least=1))
    (error,) = together(make(0, size=1, least=1).first)
    assert isinstance(error, RendezvousError) and error.final
    assert error.fault.code is FaultCode.LATE


def test_who_waits_leaves_when_the_attempt_ends(make: Make, tmp_path: Path) -> None:
    agents = [make(0), make(1)]
    met_in_the_end(*agents)
    leader = agents[0].coordinator
    assert leader is not None

    def lead() -> None:
        while leader.waiting != [2]:
            agents[0].poll(0.02)
        (tmp_path / "exit_code").write_text("0")

    with Polling(agents[1]):
        _, error = together(lead, make(2).first)
    assert isinstance(error, AttemptOver)


def test_who_waits_is_told_that_all_is_over(make: Make) -> None:
    agents = [make(0), make(1)]
    met_in_the_end(*agents)
    leader = agents[0].coordinator
    assert leader is not None
    leader.watch(time.monotonic())

    def lead() -> None:
        while leader.waiting != [2]:
            agents[0].poll(0.05)
        for agent in agents:
            agent.send({"type": "ended"})
        messages(agents[0], "over")

    results = together(lead, lambda: messages(agents[1], "over"), make(2).first)
    assert isinstance(results[2], AttemptOver), results


def test_a_stop_request_ends_every_wait(make: Make) -> None:
    for index in (0, 1):
        agent = make(index)
        agent._signals._take(15, None)
        agent._signals._writer.send(b"\0")
        (error,) = together(agent.first)
        assert isinstance(error, AskedToStop)


def test_an_agent_that_is_stopped_tells_why_it_had_not_reached_the_leader(
    make: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The leader gives up at the same time, and the scheduler then stops the others before they could report it."""
    agent, tries = make(1), iter(["its name cannot be resolved", "it was interrupted"])

    def find_leader(*_: object, **__: object) -> str:
        problem = next(tries)
        if problem == "it was interrupted":
            agent._signals._take(15, None)
        return problem

    monkeypatch.setattr(leader_connection.rounds, "find_leader", find_leader)
    (error,) = together(agent.first)
    assert isinstance(error, AskedToStop)
    assert capsys.readouterr().err == "launcher: node1 could not reach 127.0.0.1: its name cannot be resolved\n"


# -- an unreliable file system


def test_rounds_that_cannot_be_read_for_a_moment_are_not_gone(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits to join does not take a file server that stutters for the end of the attempt."""
    agents = [make(index) for index in range(2)]
    first = met_in_the_end(*agents)
    leader = agents[0].coordinator
    assert leader is not None
    real, failures = Path.read_text, [errno.EIO, errno.ESTALE, errno.ETIMEDOUT]

    def read_text(self: Path, *args: Any, **options: Any) -> str:
        if self.parent.name == "rounds" and failures:
            raise OSError(failures.pop(), "file server")
        return real(self, *args, **options)

    monkeypatch.setattr(Path, "read_text", read_text)

    def lead() -> Any:
        while leader.waiting != [2]:
            agents[0].poll(0.05)
        return agents[0].next(R1, first[0], ())

    second = continued(lead, lambda: agents[1].next(R1, first[1], ()), make(2).first)
    assert [indices(rendezvous) for rendezvous in second] == [[0, 1, 2]] * 3, second
    assert failures == []


class FlakyFolder:
    """os.stat of some files fails as on a file server that does not answer, for a number of times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, failures: int) -> None:
        self.left, self._name, self._real = failures, name, os.stat
        monkeypatch.setattr("launcher.files.retried_reads.os.stat", self._stat)

    def _stat(self, path: Any, **options: Any) -> os.stat_result:
        if self.left and str(path).endswith(self._name):
            self.left -= 1
            raise OSError((errno.EIO, errno.ESTALE)[self.left % 2], "file server", str(path))
        return self._real(path, **options)


def test_whether_a_round_has_begun_is_asked_again_when_nobody_can_tell(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader_connection, "LOOK", 0.01)
    (agent,) = (make(0, size=1, least=1),)
    met(agent)
    folder = FlakyFolder(monkeypatch, "0.json", 4)
    assert agent.begun(0) and folder.left == 0
    folder = FlakyFolder(monkeypatch, "1.json", 4)
    assert not agent.begun(1) and folder.left == 0


def test_who_is_overtaken_hears_so_although_the_folder_could_not_be_read(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader_connection, "LOOK", 0.01)
    agents = [make(index, least=1) for index in range(3)]
    first = met(*agents)
    continued(lambda: agents[0].next(R1, first[0], (1, 2)))
    folder = FlakyFolder(monkeypatch, "1.json", 4)
    (error,) = continued(lambda: agents[1].next(R1, first[1], (0, 2)))
    assert isinstance(error, Overtaken)
    assert folder.left == 0


def test_rounds_that_cannot_be_read_at_all_end_the_wait(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_connection, "LOOK", 0.01)
    agent = make(0, size=1, least=1)
    met(agent)
    agent._plan = with_fields(agent._plan, launch={"rendezvous_timeout": 0.05})
    FlakyFolder(monkeypatch, "1.json", 10**9)
    with pytest.raises(RendezvousError, match=r"node0: cannot read the rounds of this attempt: .*1\.json") as error:
        agent.begun(1)
    assert error.value.final


def test_who_waits_to_join_goes_on_when_the_exit_code_cannot_be_read(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents = [make(0), make(1)]
    met_in_the_end(*agents)
    folder = FlakyFolder(monkeypatch, "exit_code", 3)
    (tmp_path / "exit_code").write_text("0")
    with Polling(*agents):
        (error,) = together(make(2).join)
    assert isinstance(error, AttemptOver) and folder.left == 0


@pytest.mark.parametrize("begins", [True, False])
def test_others_are_given_time_to_begin_a_round(make: Make, monkeypatch: pytest.MonkeyPatch, begins: bool) -> None:
    monkeypatch.setattr(leader_connection, "LOOK", 0.01)
    monkeypatch.setattr(leader_connection.rounds, "EXCHANGE", ENOUGH if begins else 0.05)
    agents = [make(index, least=1, heartbeat=0.01) for index in range(2)]
    looks, real = 0, agents[0]._rounds.begun

    def begun(number: int) -> bool:
        nonlocal looks
        looks += 1
        if looks == 3 and begins:
            assert agents[1]._rounds.claim(1, agents[1].own, 1, [])
        return real(number)

    monkeypatch.setattr(agents[0]._rounds, "begun", begun)
    assert agents[0].others_begin(1) is begins
    assert looks >= (3 if begins else 1)


ME = Member(0, 0, "node0", 1)


def test_a_round_is_claimed_once_and_read_by_all(tmp_path: Path) -> None:
    one, other = Rounds(tmp_path / "rounds"), Rounds(tmp_path / "rounds")
    assert one.latest() is None and not one.begun(0)
    assert one.claim(0, ME, 1234, [ME])
    assert not other.claim(0, Member(1, 1, "node1", 1), 99, [])
    assert other.latest() == files_of_rounds.Round(0, "node0", 1234, 0, (0,))
    assert [path.name for path in (tmp_path / "rounds").iterdir()] == ["0.json"]


def test_a_claim_whose_answer_was_lost_on_the_way_is_still_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS sends the request again when the answer is lost, and the second one finds the link that the first made."""
    real = files_of_rounds.os.link

    def link(source: Any, target: Any) -> None:
        real(source, target)
        raise FileExistsError(errno.EEXIST, "File exists", str(target))

    monkeypatch.setattr(files_of_rounds.os, "link", link)
    rounds = Rounds(tmp_path / "rounds")
    assert rounds.claim(0, ME, 1234, [ME])
    assert not rounds.claim(0, Member(1, 1, "node1", 1), 99, [])


@pytest.mark.parametrize("made", [True, False])
def test_a_claim_without_an_answer_is_tried_again(make: Make, monkeypatch: pytest.MonkeyPatch, made: bool) -> None:
    """Without a hard mount the client gives up: the file server may have made the link, or not."""
    real, tries = files_of_rounds.os.link, 0

    def link(source: Any, target: Any) -> None:
        nonlocal tries
        tries += 1
        if tries > 1 or made:
            real(source, target)
        if tries == 1:
            raise OSError(errno.ETIMEDOUT, "Connection timed out", str(target))

    agent = make(0, least=1, heartbeat=30.0)
    monkeypatch.setattr(files_of_rounds.os, "link", link)
    with monkeypatch.context() as patch:
        patch.setattr(agent, "_hub", SimpleNamespace(port=1))
        patch.setattr(agent, "coordinator", SimpleNamespace())
        assert agent._claim(1, [agent.own]) is None
    assert tries == 2
    latest = agent._rounds.latest()
    assert latest is not None and (latest.number, latest.leader) == (1, 0)


@pytest.mark.parametrize("readable", [True, False])
def test_who_waits_for_a_leader_that_is_silent_does_not_count_the_attempt_as_done(
    make: Make, monkeypatch: pytest.MonkeyPatch, readable: bool
) -> None:
    monkeypatch.setattr(leader_connection, "LOOK", 0.01)
    monkeypatch.setattr(leader_connection, "FILE_DELAY", 0.2)
    agent = make(0, size=2, least=1, heartbeat=0.1)
    agent._rounds.claim(0, Member(1, 1, "node1", 1), 1, [])
    monkeypatch.setattr(agent, "_leaders", lambda *_: ())
    if readable:
        with pytest.raises(NobodyLeads):
            agent.join()
        return
    began = time.monotonic()
    real = agent._rounds.time_of

    def time_of(number: int) -> int:
        if time.monotonic() - began < 1.0:  # for longer than a silent leader has
            raise OSError(errno.EIO, "Input/output error")
        (agent._attempt.path / "exit_code").write_text("0")
        return real(number)

    monkeypatch.setattr(agent._rounds, "time_of", time_of)
    with pytest.raises(AttemptOver):
        agent.join()


def test_a_round_whose_time_cannot_be_read_is_still_ours(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(number: int) -> int:
        raise OSError(errno.EIO, "Input/output error")

    agent = make(0, least=1)
    monkeypatch.setattr(agent._rounds, "time_of", unreadable)
    with monkeypatch.context() as patch:
        patch.setattr(agent, "_hub", SimpleNamespace(port=1))
        patch.setattr(agent, "coordinator", SimpleNamespace())
        assert agent._claim(1, [agent.own]) is None
    assert agent._rounds.begun(1)


def test_many_claim_a_round_and_one_gets_it(tmp_path: Path) -> None:
    def claim(index: int) -> Callable[[], Any]:
        return lambda: Rounds(tmp_path / "rounds").claim(0, Member(index, index, "n", 1), index, [])

    assert together(*(claim(index) for index in range(16))).count(True) == 1


def test_what_is_no_round_is_passed_over(tmp_path: Path) -> None:
    rounds = Rounds(tmp_path / "rounds")
    rounds.claim(0, ME, 1234, [ME])
    for name, text in (("1.json", "{"), ("x.json", "{}"), (".2-0", "{}"), ("3.json", "[]")):
        (tmp_path / "rounds" / name).write_text(text)
    latest = rounds.latest()
    assert latest is not None and latest.number == 0


def test_a_round_begins_without_what_the_ranks_of_the_last_one_did(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a new rank that never joins counts as one that trains, or as idle for too long."""
    agent = make(0, size=1, least=1)
    (first,) = met(agent)
    agent.status = {"step": 7, "joined": [0], "done": [], "idle": 1801.0}
    monkeypatch.setattr(agent, "_lead", lambda *_: dict(agent.status))
    assert agent.next(R1, first, ()) == {}


# -- heartbeats


def test_a_leader_that_is_silent_is_lost(make: Make) -> None:
    agents = [make(index, size=2, heartbeat=0.4) for index in range(2)]
    met(*agents)
    (lost,) = messages(agents[1], "leader_lost")
    assert lost["reason"] == "no heartbeat for 0.4 s (launch.heartbeat)"
    assert agents[1].poll(0) == [], "it is told once"


def test_a_leader_that_ends_is_lost_at_once(make: Make) -> None:
    agents = [make(index, size=2) for index in range(2)]
    met(*agents)
    assert agents[0]._hub is not None
    agents[0]._hub.close()
    agents[0]._hub = None
    (lost,) = messages(agents[1], "leader_lost")
    assert "closed" in lost["reason"] or "reset" in lost["reason"]


def test_heartbeats_keep_both_sides_together(make: Make) -> None:
    agents = [make(index, size=2, heartbeat=1) for index in range(2)]
    met(*agents)
    leader = agents[0].coordinator
    assert leader is not None
    leader.watch(time.monotonic())
    with Polling(*agents) as polling:
        agents[1].status["step"] = 7
        agents[1].heartbeat()
        give_up = time.monotonic() + 1.3
        while time.monotonic() < give_up:
            time.sleep(0.05)
    assert polling.seen == {agents[0]: [], agents[1]: []}
    assert leader._watch.step == 7


# -- questions and answers


def test_what_members_report_is_collected_and_the_answer_published(make: Make) -> None:
    agents = [make(index) for index in range(3)]
    met(*agents)

    def part(index: int) -> Any:
        agent = agents[index]
        answers = []
        for key in ("first", "second"):
            if agent.leads:
                found = sorted(agent.collect(key, [key, index], ENOUGH).values())
                agent.publish(key, found)
                answers.append(found)
            else:
                agent.send({"type": "report", "key": key, "value": [key, index]})
                answers.append(agent.answer(key, ENOUGH))
        return answers

    wanted = [[[key, index] for index in range(3)] for key in ("first", "second")]
    assert together(*(lambda index=index: part(index) for index in range(3))) == [wanted] * 3


def test_answers_that_come_together_are_all_heard(make: Make) -> None:
    agents = [make(index, size=2) for index in range(2)]
    met(*agents)
    agents[0].publish("a", 1)
    agents[0].publish("b", 2)
    assert agents[1].answer("a", ENOUGH) == 1
    assert agents[1].answer("b", 5) == 2


def test_collecting_does_not_spin_while_a_message_waits(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    agents = [make(index, size=2) for index in range(2)]
    met(*agents)
    agents[0]._inbox.append({"type": "warning", "reason": "x"})
    assert agents[0]._hub is not None
    looks, real = 0, agents[0]._hub.poll

    def poll(timeout: float) -> Any:
        nonlocal looks
        looks += 1
        return real(timeout)

    monkeypatch.setattr(agents[0]._hub, "poll", poll)
    assert agents[0].collect("k", 0, 0.5) == {0: 0}
    assert looks < 20
    assert agents[0].poll(0) == [{"type": "warning", "reason": "x"}], "it is not forgotten either"


def test_collecting_takes_what_has_come_when_time_is_up_and_does_not_wait_for_the_lost(make: Make) -> None:
    agents = [make(index) for index in range(3)]
    met(*agents)
    agents[1].send({"type": "report", "key": "k", "value": 1})
    agents[2]._disconnect()
    assert agents[0].collect("k", 0, 10_000) == {0: 0, 1: 1}
    assert agents[0].collect("other", 0, 0.05) == {0: 0}


def test_an_answer_of_a_leader_that_is_gone(make: Make) -> None:
    agents = [make(index, size=2) for index in range(2)]
    met(*agents)
    assert agents[0]._hub is not None
    agents[0]._hub.close()
    agents[0]._hub = None
    with pytest.raises(LeaderLost):
        agents[1].answer("k", ENOUGH)


# -- closing


def test_closing_delivers_everything_that_was_sent(make: Make) -> None:
    """Also to a leader that reads late, and while its heartbeats wait to be read here."""
    agents = [make(index, size=2, heartbeat=600) for index in range(2)]
    met(*agents)
    large = "x" * (8 << 20)
    closed = threading.Event()

    def ends() -> None:
        agents[1].send({"type": "report", "key": "large", "value": large})
        agents[1].send({"type": "report", "key": "last", "value": 1})
        agents[1].close()
        closed.set()

    thread = threading.Thread(target=ends)
    assert agents[0]._hub is not None
    agents[0]._hub.broadcast([1], {"type": "heartbeat"})  # arrives, and nobody reads it any more
    thread.start()
    time.sleep(0.2)
    assert agents[0].coordinator is not None
    reports = agents[0].coordinator.reports
    give_up = time.monotonic() + ENOUGH
    while not closed.is_set() or "last" not in reports:
        assert time.monotonic() < give_up, "it was lost"
        agents[0].poll(0.05)
        if closed.is_set() and not agents[0]._hub.channels:
            break
    thread.join()
    assert reports["large"] == {1: large}
    assert reports["last"] == {1: 1}


def test_a_leader_closes_when_all_have_heard_the_last_word(make: Make) -> None:
    agents = [make(index) for index in range(3)]
    met(*agents)
    agents[0].publish("last", "word")

    def ends(agent: LeaderConnection) -> Any:
        answer = agent.answer("last", ENOUGH)
        agent.close()
        return answer

    assert together(agents[0].close, *(lambda agent=agent: ends(agent) for agent in agents[1:])) == [
        None,
        "word",
        "word",
    ]
    assert not agents[0].leads


def test_a_leader_that_closes_does_not_wait_for_a_member_that_is_lost(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody closes the other end of a half-open connection."""
    agents = [make(index, heartbeat=300) for index in range(3)]
    met(*agents)
    leader, hub = agents[0].coordinator, agents[0]._hub
    assert leader is not None and hub is not None
    agents[0].poll(0.01)  # reads what they have sent
    leader.watch(time.monotonic() - 600)  # node2 has been silent since, and its connection stays
    leader.receive(1, {"type": "heartbeat"}, time.monotonic())
    agents[0].poll(0.01)
    assert 2 in hub.channels and leader.present() == {0, 1}
    awaited: list[set[int]] = []
    monkeypatch.setattr(hub, "drain", lambda indices, timeout: awaited.append({*indices} - {0}))
    agents[0].close()
    assert awaited == [{1}]


def test_closing_does_not_wait_for_ever(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_connection, "CLOSING", 0.1)
    agents = [make(index, size=2) for index in range(2)]
    met(*agents)
    agents[0].close()  # the other does nothing
    agents[1].close()
    with suppress(ChannelError):
        agents[1].send({"type": "ended"})  # nobody is there; it is no error


@pytest.mark.parametrize("number", [0, 1])
def test_a_round_that_cannot_be_made_known_begins_only_if_nobody_else_could_have_begun_it(
    make: Make, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The other side of a partition might have claimed round 1."""
    agents = [make(index) for index in range(3)]
    first = met(*agents) if number else []

    def claim(*_: Any) -> bool:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Rounds, "claim", claim)
    if number == 0:
        assert [indices(rendezvous) for rendezvous in met(*agents)] == [[0, 1, 2]] * 3
        return
    errors = continued(
        *(lambda agent=agent, old=old: agent.next(R1, old, ()) for agent, old in zip(agents, first, strict=True))
    )
    assert {(error.fault.code, error.fault.error) for error in errors} == {
        (FaultCode.AGENT, "round 1 cannot be recorded: [Errno 28] No space left on device")
    }, errors


def test_what_the_leader_sent_last_is_read_before_it_counts_as_lost(make: Make) -> None:
    """The agent was held up, and its next message cannot be sent any more."""
    agents = [make(index, size=2) for index in range(2)]
    met(*agents)
    leader = agents[0].coordinator
    assert leader is not None and agents[0]._hub is not None
    agents[0]._hub.send(1, {"type": "over", "final": True})
    agents[0]._stop_leading()
    seen: list[str] = []
    give_up = time.monotonic() + ENOUGH
    while "leader_lost" not in seen and time.monotonic() < give_up:
        agents[1].send({"type": "ended"})
        seen += [message["type"] for message in agents[1].poll(0.05)]
    assert seen == ["over", "leader_lost"]
