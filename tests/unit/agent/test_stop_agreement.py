"""All ranks stop, or save, at the same boundary, whatever the speed of ranks and of messages."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.agent.leader import Coordinator
from launcher.agent.policy import History
from launcher.rendezvous.rounds import Member
from launcher.runs.events import Place
from launcher.worker.heartbeat import Pulse
from launcher.worker.stop_agreement import (
    MOST_AHEAD,
    AgentSide,
    BoundaryAction,
    Cause,
    LeaderSide,
    Message,
    Proposal,
    RankState,
    Want,
    answer,
    decide,
    joined,
    margin,
)
from tests.unit.plans import bare_plan

TERM = Want(Cause.TERM, 3)


@pytest.mark.parametrize(
    ("step_time", "boundaries"),
    [(0.0, 1), (30.0, 1), (0.1, 1), (0.05, 1), (0.01, 5), (0.001, MOST_AHEAD), (1e-9, MOST_AHEAD)],
)
def test_how_far_ahead_a_boundary_is_proposed(step_time: float, boundaries: int) -> None:
    assert margin(step_time) == boundaries


@pytest.mark.parametrize(
    ("boundary", "acted", "proposal", "committed", "then"),
    [
        (7, 0, None, 0, BoundaryAction.CONTINUE),
        (7, 1, Proposal(1, 6, TERM), 1, BoundaryAction.CONTINUE),
        (7, 0, Proposal(1, 6, TERM), 0, BoundaryAction.REFUSE),
        (7, 1, Proposal(2, 6, TERM), 1, BoundaryAction.REFUSE),
        (7, 0, Proposal(1, 8, TERM), 0, BoundaryAction.ACCEPT),
        (7, 0, Proposal(1, 8, TERM), 1, BoundaryAction.ACCEPT),
        (7, 0, Proposal(1, 7, TERM), 0, BoundaryAction.WAIT),
        (7, 1, Proposal(2, 7, TERM), 1, BoundaryAction.WAIT),
        (7, 0, Proposal(1, 7, TERM), 1, BoundaryAction.ACT),
    ],
)
def test_what_a_rank_does_at_a_boundary(
    boundary: int, acted: int, proposal: Proposal | None, committed: int, then: BoundaryAction
) -> None:
    assert decide(boundary, acted, proposal, committed) is then


def test_of_several_wants_the_highest_cause_of_the_lowest_rank_counts() -> None:
    wants = [Want(Cause.DEADLINE, 0), Want(Cause.TERM, 5), Want(Cause.TERM, 2), Want(save=True)]
    assert joined(wants) == Want(Cause.TERM, 2, save=True)
    assert joined(wants).without(Want(Cause.FILE, 7)) == Want(save=True)
    assert joined(wants).without(Want(save=True)) == Want(Cause.TERM, 2)
    assert not joined([]) and not joined(wants).without(joined(wants))


# -- the leader


def want(cause: Cause, rank: int, boundary: int, *, save: bool = False, step_time: float = 1.0) -> Message:
    return {
        "type": "want", "cause": int(cause), "rank": rank, "save": save, "boundary": boundary, "step_time": step_time,
    }  # fmt: skip


def agree(number: int, boundary: int, *, accepted: bool = True) -> Message:
    return {"type": "agree", "number": number, "accepted": accepted, "boundary": boundary}


def propose(number: int, at: int, cause: Cause, rank: int, *, save: bool = False) -> Message:
    return {"type": "propose", "number": number, "at": at, "cause": int(cause), "rank": rank, "save": save}


def test_a_stop_is_committed_when_all_agents_have_accepted() -> None:
    leader = LeaderSide([0, 1, 2])
    assert leader.receive(1, want(Cause.TERM, 4, boundary=10)) == [propose(1, 11, Cause.TERM, 4)]
    assert leader.receive(2, want(Cause.TERM, 8, boundary=10)) == []  # it is proposed already
    assert leader.receive(0, agree(1, 10)) == []
    assert leader.receive(1, agree(1, 10)) == []
    assert leader.receive(2, agree(1, 11)) == [{"type": "commit", "number": 1}]


def test_after_a_refusal_a_later_boundary_is_proposed_with_all_that_is_wanted_by_then() -> None:
    leader = LeaderSide([0, 1])
    leader.receive(0, want(Cause.NONE, 0, boundary=10, save=True))
    assert leader.receive(0, want(Cause.FILE, 0, boundary=10, save=True)) == []
    assert leader.receive(1, agree(1, 20, accepted=False)) == [propose(2, 22, Cause.FILE, 0, save=True)]
    assert leader.receive(0, agree(1, 11)) == []  # about the old one
    assert leader.receive(1, agree(2, 30, accepted=False)) == [propose(3, 34, Cause.FILE, 0, save=True)]
    leader.receive(0, agree(3, 30))
    assert leader.receive(1, agree(3, 31)) == [{"type": "commit", "number": 3}]


def test_what_is_wanted_while_a_proposal_is_open_comes_next() -> None:
    leader = LeaderSide([0])
    leader.receive(0, want(Cause.NONE, 0, boundary=1, save=True))
    assert leader.receive(0, want(Cause.WARNING, 0, boundary=1)) == []
    assert leader.receive(0, agree(1, 2)) == [{"type": "commit", "number": 1}, propose(2, 3, Cause.WARNING, 0)]


def test_agents_whose_ranks_have_ended_are_not_waited_for() -> None:
    leader = LeaderSide([0, 1])
    leader.receive(0, want(Cause.TERM, 0, boundary=1))
    assert leader.receive(0, agree(1, 1)) == []
    assert leader.leave(1) == [{"type": "commit", "number": 1}]


def test_the_coordinator_passes_on_what_the_leader_of_the_agreement_says() -> None:
    members = [Member(index, index, f"node{index}", 1) for index in (0, 1)]
    places = [Place(host=member.host, node=member.node_rank) for member in members]
    coordinator = Coordinator(
        bare_plan(nodes=2, min_nodes=1), Path(), places, members[0], claim=lambda *_: None, listen=lambda _: 1
    )
    coordinator.gather(History(), [0, 1], timeout=10.0, now=0.0)
    coordinator.receive(1, {"type": "hello", "member": astuple(members[1])}, 0.0)
    coordinator.tick(0.0)
    coordinator.watch(0.0)
    coordinator.take_outbox()
    coordinator.receive(1, want(Cause.TERM, 1, boundary=10), 1.0)
    assert coordinator.take_outbox() == [((0, 1), propose(1, 11, Cause.TERM, 1))]
    coordinator.receive(1, agree(1, 11), 1.0)
    assert coordinator.take_outbox() == []
    coordinator.receive(0, {"type": "ended"}, 1.0)  # its ranks were done
    assert coordinator.take_outbox() == [((0, 1), {"type": "commit", "number": 1})]


# -- an agent


def test_an_agent_sends_each_want_once_and_one_answer_per_proposal() -> None:
    agent = AgentSide(first_rank=4)
    ranks = [RankState(boundary=7, step_time=0.2), RankState(boundary=8, cause=Cause.TERM, step_time=0.3)]
    assert agent.look(ranks) == [want(Cause.TERM, 5, boundary=8, step_time=0.2)]
    assert agent.look(ranks) == [] and not agent.waits
    agent.receive(propose(1, 9, Cause.TERM, 5))
    assert agent.look(ranks) == [] and agent.waits
    assert agent.proposal == Proposal(1, 9, Want(Cause.TERM, 5))
    ranks[0] = replace(ranks[0], boundary=8, answered=1, accepted=True)
    assert agent.look(ranks) == []
    ranks[1] = replace(ranks[1], boundary=9, answered=1, accepted=True)
    assert agent.look(ranks) == [agree(1, 9)]
    assert agent.look(ranks) == [] and not agent.waits


def test_an_agent_passes_on_a_refusal_at_once() -> None:
    agent = AgentSide(0)
    agent.receive(propose(1, 9, Cause.TERM, 5))
    ranks = [RankState(boundary=7), RankState(boundary=10)]
    agent.look(ranks)
    ranks[1] = replace(ranks[1], answered=1)
    assert agent.look(ranks) == [agree(1, 10, accepted=False)]


@pytest.mark.parametrize(
    ("rank", "accepts"),
    [
        (RankState(boundary=8), None),
        (RankState(boundary=9), False),  # it may be in a collective with ranks that wait there
        (RankState(boundary=10), False),
        (RankState(boundary=8, answered=1), None),  # another proposal
        (RankState(boundary=9, answered=2), False),
        (RankState(boundary=9, answered=2, accepted=True), True),
    ],
)
def test_whether_a_rank_accepts(rank: RankState, accepts: bool | None) -> None:
    assert answer(rank, Proposal(2, 9, TERM)) is accepts


def test_ranks_that_come_to_no_boundary_any_more_are_not_asked() -> None:
    agent = AgentSide(0)
    ranks = [RankState(boundary=7, closed=True), RankState(boundary=7)]
    agent.receive(propose(1, 9, Cause.TERM, 5))
    assert agent.look(ranks, ended={1}) == []
    assert agent.look(ranks, ended={1}) == [agree(1, 7)]
    agent.receive(propose(2, 7, Cause.TERM, 5))
    agent.look(ranks, ended={1})
    assert agent.look(ranks, ended={1}) == [agree(2, 7, accepted=False)]  # they were there without knowing of it


def test_a_proposal_waits_until_all_ranks_have_carried_out_the_one_before() -> None:
    agent = AgentSide(0)
    ranks = [RankState(boundary=1, answered=1, accepted=True, save=True)] * 2
    agent.receive(propose(1, 2, Cause.NONE, 0, save=True))
    agent.look(ranks)
    for message in ({"type": "commit", "number": 1}, propose(2, 4, Cause.TERM, 0)):
        agent.receive(message)
    assert agent.look(ranks) == [agree(1, 1)]
    assert (agent.proposal, agent.committed) == (Proposal(1, 2, Want(save=True)), 1)
    done = replace(ranks[0], boundary=2, acted=1, save=False)
    agent.look([done, ranks[1]])
    assert agent.proposal == Proposal(1, 2, Want(save=True)) and agent.waits
    assert agent.look([done, done]) == []
    assert agent.proposal == Proposal(2, 4, Want(Cause.TERM, 0))


# -- all of them: ranks, agents and messages at any speed


@dataclass
class _Rank:
    """A simulated rank: what it wrote, and what it was told to do at which boundary."""

    agent: int
    speed: Callable[[], float]
    state: RankState = field(default_factory=RankState)
    wants: Want = field(default_factory=Want)
    done: list[tuple[int, Want]] = field(default_factory=list)
    closed_at: int | None = None


class _Simulation:
    """Ranks take steps, agents look, messages travel in order, each with a random delay."""

    def __init__(
        self, chooser: random.Random, sizes: list[int], *, lockstep: bool, slow: float, last: int | None = None
    ) -> None:  # fmt: skip
        """
        Args:
            chooser: of everything.
            sizes: ranks of each agent.
            lockstep: each step has a collective, so that no rank gets ahead of the others.
            slow: seconds that a message takes at most.
            last: boundaries after which the training is over.
        """
        self.random, self.lockstep, self.slow, self.last = chooser, lockstep, slow, last
        self.now, self._count = 0.0, 0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self.leader = LeaderSide(range(len(sizes)))
        first = [sum(sizes[:index]) for index in range(len(sizes))]
        self.agents = [AgentSide(number) for number in first]
        self.shown: list[tuple[Proposal | None, int]] = [(None, 0) for _ in sizes]
        self.ranks: list[_Rank] = []
        paces = [chooser.choice([0.002, 0.01, 0.1])] if not lockstep else [0.002, 0.01, 0.1]
        for index, size in enumerate(sizes):
            for _ in range(size):
                pace = chooser.choice(paces)
                self.ranks.append(_Rank(index, lambda pace=pace: chooser.uniform(0.2, 1.0) * pace))
        self.sent = [0.0] * (2 * len(sizes))  # when the last message of each connection and direction arrives
        self.barrier: list[int] = []
        for place in range(len(self.ranks)):
            self.after(self.ranks[place].speed(), lambda place=place: self.boundary(place))
        for index in range(len(sizes)):
            self.after(chooser.random() * 0.1, lambda index=index: self.look(index, again=True))

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._queue, (self.now + seconds, self._count, what))

    def run(self) -> None:
        while any(rank.closed_at is None for rank in self.ranks):
            self.now, _, what = heapq.heappop(self._queue)
            assert self.now < 100, "somebody waits for ever"
            what()

    def deliver(self, connection: int, what: Callable[[], None]) -> None:
        self.sent[connection] = max(self.sent[connection], self.now + self.random.random() * self.slow)
        self.after(self.sent[connection] - self.now, what)

    def look(self, index: int, *, again: bool = False) -> None:
        agent = self.agents[index]
        for message in agent.look([rank.state for rank in self.ranks if rank.agent == index]):
            self.deliver(2 * index, lambda message=message: self.at_leader(index, message))
        self.shown[index] = agent.proposal, agent.committed
        if again:
            pause = 0.005 if agent.waits else 0.1
            self.after(pause, lambda: self.look(index, again=True))

    def at_leader(self, index: int, message: Message) -> None:
        for reply in self.leader.receive(index, message):
            for other in range(len(self.agents)):
                self.deliver(2 * other + 1, lambda other=other, reply=reply: self.at_agent(other, reply))

    def at_agent(self, index: int, message: Message) -> None:
        self.agents[index].receive(message)
        self.look(index)

    def boundary(self, place: int) -> None:
        rank = self.ranks[place]
        if self.last is not None and rank.state.boundary >= self.last:
            self.close(rank)
            return
        rank.state = replace(
            rank.state, boundary=rank.state.boundary + 1, cause=rank.wants.cause, save=rank.wants.save,
            step_time=self.random.choice([0.0, 0.001, 0.1]),
        )  # fmt: skip
        self.at_boundary(place)

    def at_boundary(self, place: int) -> None:
        rank = self.ranks[place]
        proposal, committed = self.shown[rank.agent]
        then = decide(rank.state.boundary, rank.state.acted, proposal, committed)
        if proposal is None or then is BoundaryAction.CONTINUE:
            self.step(place)
            return
        if then is BoundaryAction.ACT:
            rank.state = replace(rank.state, acted=proposal.number, cause=Cause.NONE, save=False)
            rank.done.append((rank.state.boundary, proposal.want))
            rank.wants = rank.wants.without(proposal.want)
            if proposal.want.cause:
                self.close(rank)
            else:
                self.step(place)
            return
        rank.state = replace(rank.state, answered=proposal.number, accepted=then is not BoundaryAction.REFUSE)
        if then is BoundaryAction.WAIT:
            self.after(0.002, lambda: self.at_boundary(place))
        else:
            self.step(place)

    def step(self, place: int) -> None:
        if not self.lockstep:
            self.after(self.ranks[place].speed(), lambda: self.boundary(place))
            return
        self.barrier.append(place)  # a collective: it ends when all have come
        if len(self.barrier) == len(self.ranks):
            for other in self.barrier:
                self.after(self.ranks[other].speed(), lambda other=other: self.boundary(other))
            self.barrier = []

    def close(self, rank: _Rank) -> None:
        rank.closed_at = rank.state.boundary
        rank.state = replace(rank.state, closed=True, cause=Cause.NONE, save=False)


SIZES = st.lists(st.integers(1, 3), min_size=1, max_size=4)
WANTS = st.lists(
    st.tuples(st.floats(0, 0.5), st.integers(0, 11), st.sampled_from(["save", *list(Cause)[1:]])),
    min_size=1,
    max_size=6,
)


def want_at(simulation: _Simulation, when: float, rank: _Rank, wanted: Any, signals: bool) -> None:
    """From this time on the rank wants it; a signal's handler writes it at once."""

    def happens() -> None:
        if rank.closed_at is not None:
            return
        new = Want(save=True) if wanted == "save" else Want(wanted, simulation.ranks.index(rank))
        rank.wants = joined([rank.wants, new])
        if signals and wanted != "save":
            rank.state = replace(rank.state, cause=max(rank.state.cause, wanted))

    simulation.after(when, happens)


@given(st.integers(0, 1 << 32), SIZES, WANTS, st.booleans(), st.sampled_from([0.0, 0.01, 0.1]))
def test_all_ranks_act_alike_and_no_want_is_lost(
    seed: int, sizes: list[int], wants: list[tuple[float, int, Any]], lockstep: bool, slow: float
) -> None:
    simulation = _Simulation(random.Random(seed), sizes, lockstep=lockstep, slow=slow)
    for when, number, wanted in wants:
        rank = simulation.ranks[number % len(simulation.ranks)]
        want_at(simulation, when, rank, wanted, simulation.random.random() < 0.5)

    def end() -> None:
        if any(rank.wants.save for rank in simulation.ranks):
            simulation.after(0.1, end)  # if a save is lost, this is for ever
        else:
            want_at(simulation, 0.0, simulation.ranks[0], Cause.TERM, False)

    simulation.after(0.5, end)
    simulation.run()
    done = [rank.done for rank in simulation.ranks]
    assert done[0] and done == [done[0]] * len(done)
    assert [want for _, want in done[0] if want.cause] == [done[0][-1][1]]  # the last one, and no other, is a stop
    assert sum(want.save for _, want in done[0]) <= sum(wanted == "save" for _, _, wanted in wants)


@given(st.integers(0, 1 << 32), SIZES, WANTS, st.integers(1, 60), st.booleans(), st.sampled_from([0.0, 0.01, 0.1]))
def test_a_training_that_ends_meanwhile_ends_on_all_ranks(
    seed: int, sizes: list[int], wants: list[tuple[float, int, Any]], steps: int, lockstep: bool, slow: float
) -> None:
    simulation = _Simulation(random.Random(seed), sizes, lockstep=lockstep, slow=slow, last=steps)
    for when, number, wanted in wants:
        want_at(simulation, when, simulation.ranks[number % len(simulation.ranks)], wanted, False)
    simulation.run()
    assert len({(rank.closed_at, tuple(rank.done)) for rank in simulation.ranks}) == 1


# -- ranks and agents of their own processes, through shared memory


def test_the_words_in_shared_memory_say_what_was_written() -> None:
    shared = Pulse(2)
    shared.clear(world_size=1000)
    slot = shared.slot(1)
    assert (slot.agent.world_size, slot.agent.proposal(), shared.stops()) == (1000, (None, 0), [RankState()] * 2)
    state = RankState(1 << 39, True, Cause.TERM, True, 1 << 23, (1 << 23) + 1, True, 0.25)
    slot.stop.write(state)
    assert shared.stops() == [RankState(), state]
    proposal = Proposal((1 << 24) - 1, 1 << 39, Want(Cause.FILE, (1 << 36) - 1, save=True))
    shared.agent.show(proposal, proposal.number - 1)
    assert slot.agent.proposal() == (proposal, proposal.number - 1)
    slot.agent._words[2] = 0  # half of the next one is there
    assert slot.agent.proposal() is None
    shared.clear(1000)
    assert (slot.agent.proposal(), shared.stops()) == ((None, 0), [RankState()] * 2)
