"""The leader's decisions for all agents of an attempt: who takes part in a round, and what follows a failure.

No I/O: messages in, messages out. Agents send to the leader:

| type | content |
|---|---|
| `hello` | the agent has connected: its `member` row |
| `ready` | its ranks of the last round are gone, and had done `step`: it can start round `round` |
| `heartbeat` | `step`, `resumable`, `joined`, `closed`, `missing` ranks, `idle` seconds, ranks `done` |
| `failure` | its ranks failed: see `policy.RoundFailure` |
| `stop` | it was asked to stop: `level` (`stop` or `warning`), and the event `stop` |
| `leaving` | its ranks cannot resume and are being ended, because of `signal` |
| `silent` | its `ranks` have done no step for launch.hang_timeout |
| `stacks` | `reports` of its ranks, after `hang` |
| `ended` | all its ranks have ended, and it waits for the other agents |
| `report` | the agent's `value` for `key`: see `LeaderConnection.collect` |
| `want`, `agree` | what its ranks want done at a step boundary, and whether all agree: see `stop_agreement` |

The leader sends:

| type | content |
|---|---|
| `begin` | a round starts: `round`, `members`, `port` of the store, `history`, indices of the `spares` |
| `spare` | a round has started without this agent, which waits until another one is lost |
| `spares` | the indices of the spare agents are others now |
| `refused` | the round does not start, or not with this agent: `fault` |
| `heartbeat` | nothing: the leader is alive |
| `stop`, `warning` | the ranks have to save and exit: the event `stop` |
| `regroup` | the ranks have to save and exit, because the agents `back` came back |
| `hang` | the agents have to save the stacks of their ranks, and send `stacks` |
| `question` | a request of an `attach` command: `text` |
| `verdict` | the first failure, and what all agents do about it: see `policy.RoundVerdict` |
| `resized` | to itself only: the ranks continue without agents that are lost: the event `resized` |
| `over` | all ranks of this round have ended; `final`: no other round follows |
| `answer` | the leader's `value` for `key`: see `LeaderConnection.publish` |
| `propose`, `commit` | what all ranks do at one step boundary: see `stop_agreement` |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, astuple, replace
from pathlib import Path
from typing import Any

from launcher.agent import policy
from launcher.agent.failure_detector import AgentState, Blame, FailureDetector
from launcher.agent.policy import History, RoundEnd, RoundFailure
from launcher.failures.codes import FaultCode
from launcher.files.json_types import as_json, from_json
from launcher.plan.plan import JobPlan
from launcher.rendezvous.rounds import Arrivals, Member, RendezvousError
from launcher.rendezvous.signed_channel import Message, refused
from launcher.runs import events
from launcher.runs.events import Fault, Place, Resized, Stop
from launcher.worker import hang_diagnosis
from launcher.worker.stop_agreement import LeaderSide

Claim = Callable[[int, Sequence[Member]], "Fault | None"]
Listen = Callable[[Sequence[Member]], int]


SPARE_HEARD = 0.4  # of launch.heartbeat: a spare node has sent a heartbeat since then; it sends one each tenth
HELD_UP = 0.2  # of launch.heartbeat: if nothing happens for so long, the leader was held up; it polls each tenth
FEW = 64  # up to so many agents are looked at after each message
LOOK = 1e-5  # seconds between two looks, for each agent above FEW: the leader spends a few percent of its time on them


def patience(losses: int, heartbeat: float) -> float:
    """Returns the seconds for which an agent that has come back, and was lost in so many rounds, waits for a round that
    ends by itself: none at first, then a heartbeat, 3, 7, ... 127. A bad cable would take all time for restarts."""
    return heartbeat * (2 ** max(0, min(losses, 8) - 1) - 1)


class Coordinator:
    """What the leader knows about all agents. Takes their messages, decides, and collects the messages to send."""

    def __init__(
        self, plan: JobPlan, logs: Path, places: Sequence[Place], own: Member, *, claim: Claim, listen: Listen,
        blame: Blame = hang_diagnosis.blame,
    ) -> None:  # fmt: skip
        # claim: records the start of a round, from its index and members; returns a fault if it cannot start. listen:
        # opens a port for the ranks' store of a round with these members.
        self._plan, self._logs, self._places, self._own = plan, logs, places, own
        self._claim, self._listen, self._blame = claim, listen, blame
        self._heartbeat = plan.launch.heartbeat
        # Maximum number of agents in a round; None: all take part, and none is a spare
        self._most = (plan.nodes - plan.spares) * plan.tasks_per_node if plan.spares else None
        self.history = History()
        self.began: int | None = None  # when the round began, in ns of the file server's clock; None: unknown
        self.arrivals: Arrivals | None = None  # for a round that is about to start
        self.verdict: policy.RoundVerdict | None = None  # what follows the failure of this round, if it has had one
        self.reports: dict[str, dict[int, Any]] = {}  # the values of `report` messages: by key, then by member index
        self._ready: dict[int, Member] = {}  # members that wait for the next round, by index
        self._heard: dict[int, float] = {}  # when each agent has sent something
        self._now = 0.0  # when something happened last
        self._silent: dict[int, Member] = {}  # those that have sent nothing for launch.heartbeat
        self._losses: Counter[int] = Counter()  # rounds that each agent was lost in,
        self._let_in: dict[int, float] = {}  # and from when on a round ends for one that has come back
        self._outbox: list[tuple[tuple[int, ...], Message]] = []
        self._told_spares: list[int] = []  # the waiting agents when the round began
        self._announced: set[str] = set()  # of stop, warning, regroup: those that were broadcast
        self._watch = self._new_watch(())
        self._watching = self._over = False
        self._stops = LeaderSide(())

    def _new_watch(self, members: Sequence[Member], now: float = 0.0) -> FailureDetector:
        agents = {member.index: AgentState(member, now) for member in members}
        self._not_ended = list(agents.values())  # those at its end may have ended since
        self._look_from = now
        return FailureDetector(self._plan, self._logs, self._own, agents, self._blame, listened=self.history.listened)

    # -- the start of a round

    @property
    def members(self) -> list[int]:
        return list(self._watch.agents)

    @property
    def waiting(self) -> list[int]:
        """Indices of the agents that wait for the next round and are not in this one, in order."""
        return sorted(index for index in self._ready if index not in self._watch.agents)

    def spares(self) -> list[int]:
        """Returns the waiting agents that can be counted on: a node that is about to be lost sends no heartbeats."""
        if self._most is None:
            return self.waiting
        since = self._now - SPARE_HEARD * self._heartbeat
        return [index for index in self.waiting if self._heard.get(index, self._now) >= since]

    def _tell_spares(self) -> None:
        if self._most is not None and self._watching and self.arrivals is None:
            self.broadcast({"type": "spares", "indices": self.waiting})

    def present(self) -> set[int]:
        """Returns the indices of the members of the running round that are not lost."""
        return {index for index, agent in self._watch.agents.items() if not agent.gone}

    def gather(
        self, history: History, wanted: Collection[int], timeout: float, now: float, before: Sequence[int] = ()
    ) -> None:
        """Starts waiting for the members of a round; before: those of the round before, in rank order.

        timeout: seconds in which they have to arrive; now: monotonic seconds, as in the other methods.
        """
        self._advance(now)
        self.history, agents = history, self._watch.agents
        self._ready[self._own.index] = self._own
        wanted = {*wanted, self._own.index}
        if history.round:  # members lost since the verdict are not waited for; waiting agents are included
            wanted = {index for index in wanted if index not in agents or not agents[index].gone}
            wanted |= self._ready.keys()
        self.arrivals = Arrivals(
            self._places, self._own.index, self._plan.least_agents, wanted, now + timeout, most=self._most,
            before=before,
        )  # fmt: skip
        quiet = {*self.waiting} - {*self.spares()}
        self.arrivals.arrived.update((index, member) for index, member in self._ready.items() if index not in quiet)
        self.tick(now)

    def refuse_waiting(self, fault: Fault) -> None:
        """Sends a refusal because of `fault` to the agents that wait for a round to start. No-op while ranks run."""
        others = {*self._ready, *self._watch.agents} - {self._own.index}
        if others and (self.arrivals is not None or not self._watching):
            self._send(sorted(others), refused(fault))

    def watch(self, now: float) -> None:
        """Starts to watch the round's members for failures. Call it once their ranks are being started."""
        self._watching = True
        if self._most is not None and self.waiting != self._told_spares:  # since the round began
            self._send([index for index in self.waiting if index not in self._told_spares], {"type": "spare"})
            self._tell_spares()
        self._found(self._watch.start(now))

    def _begin(self, arrivals: Arrivals, now: float) -> None:
        members, port = arrivals.members(), 0
        problem = arrivals.problem()
        if problem is None:
            try:
                port = self._listen(members)
            except RendezvousError as error:
                problem = error.fault
        problem = problem or self._claim(self.history.round, members)
        self.arrivals = None
        if problem is not None:
            self._send(list(arrivals.arrived), refused(problem))
            return
        self._losses.update(index for index, agent in self._watch.agents.items() if agent.gone)
        for member in members:
            del self._ready[member.index]
        self.history = replace(self.history, best=max(self.history.best, self._watch.step))
        self._watch = self._new_watch(members, now)
        self.verdict, self._announced = None, set()
        self._watching = self._over = False
        self._stops = LeaderSide(self._watch.agents)
        self.reports.clear()
        rows = [astuple(member) for member in members]
        begin = {"type": "begin", "round": self.history.round, "port": port, "history": asdict(self.history)}
        self._told_spares = self.waiting
        self.broadcast({**begin, "members": rows, "spares": self.waiting})
        self._send(self.waiting, {"type": "spare"})

    # -- events

    def _advance(self, now: float) -> None:
        # If the leader itself was suspended, that time counts for no timeout. What spare nodes have sent while it was
        # held up may be read only after the end of another node
        late = now - self._now
        if late > HELD_UP * self._heartbeat:
            self._heard = dict.fromkeys(self._heard, now)
        if late > self._heartbeat / 2:
            self._watch.held_up(late, now)
            if self.arrivals is not None:
                self.arrivals.deadline += late
        self._now = now

    def receive(self, index: int, message: Message, now: float) -> None:
        """Handles a message of the agent with this index. Messages of an unknown type are ignored."""
        agent = self._watch.agents.get(index)
        if agent is not None:
            agent.last_message = now
        self._advance(now)
        self._heard[index] = now
        if (back := self._silent.pop(index, None)) is not None:
            self._ready[index] = back
        if self.arrivals is not None and index in self._ready:
            self.arrivals.arrived.setdefault(index, self._ready[index])
        kind = message.get("type")
        if kind == "hello":
            self._ready[index] = Member(*message["member"])
            self._let_in[index] = now + patience(self._losses[index], self._heartbeat)
            if self._most is not None and self._watching and self.arrivals is None:
                self._send([index], {"type": "spare"})
                self._tell_spares()
            if self.arrivals is not None:
                self.arrivals.arrived[index] = self._ready[index]
        elif kind == "report":
            self.reports.setdefault(message["key"], {})[index] = message["value"]
        elif agent is not None:
            self._handle(agent, kind, message, now)

    def disconnected(self, index: int, now: float) -> None:
        """Handles the closed connection of the agent with this index: it has ended, or the network is broken."""
        self._ready.pop(index, None)
        self._silent.pop(index, None)
        self._advance(now)
        self._tell_spares()
        if self.arrivals is not None:
            self.arrivals.arrived.pop(index, None)
            if self.history.round:
                self.arrivals.wanted.discard(index)
        agent = self._watch.agents.get(index)
        if agent is None or agent.gone:
            return
        agent.gone = agent.ended = True
        self._broadcast_all(self._stops.leave(index))
        # While agents report that they leave, `FailureDetector.left` names those that do not.
        if self._watching and self.verdict is None and not self._over and not self._watch.leaves:
            self._found(self._watch.lost([agent], FaultCode.NODE_ENDED))
        self._look_at_ended()

    def tick(self, now: float) -> None:
        """Does what is due: starts a gathered round, checks timeouts, asks for stacks, lets waiting agents in."""
        self._advance(now)
        for index in self.waiting if self.arrivals is None else ():
            if now - self._heard.get(index, now) > self._heartbeat:
                self._silent[index] = self._ready.pop(index)
                self._tell_spares()
        if self.arrivals is not None and self.arrivals.decided(now):
            self._begin(self.arrivals, now)
        if not self._watching or self._over or self.verdict is not None or not self._is_due(now):
            return
        self._found(self._watch.look(now))
        self._ask_for_stacks()
        if self.verdict is None:
            self._look_at_waiting()

    def _is_due(self, now: float) -> bool:
        due = now >= self._look_from
        if due:
            self._look_from = now + LOOK * max(0, len(self._watch.agents) - FEW)
        return due

    def next_look(self, now: float) -> float:
        if self.arrivals is not None:
            return max(0.0, min(self.arrivals.deadline - now, 1.0))
        return 0.25 if self._watch.urgent else min(1.0, self._heartbeat / 4)

    def take_outbox(self) -> list[tuple[tuple[int, ...], Message]]:
        outbox, self._outbox = self._outbox, []
        return outbox

    def broadcast(self, message: Message) -> None:
        self._send(self.members, message)

    def _broadcast_all(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self.broadcast(message)

    def _send(self, indices: Iterable[int], message: Message) -> None:
        self._outbox.append((tuple(indices), message))

    # -- messages of the members of the round

    def _handle(self, agent: AgentState, kind: object, message: Message, now: float) -> None:
        index = agent.member.index
        if kind == "ready" and not agent.gone:
            agent.ended, agent.step = True, max(agent.step, message.get("step", -1))
            self._ready[index] = agent.member
            if self.arrivals is not None and message["round"] == self.history.round:
                self.arrivals.arrived[index] = agent.member
        elif kind == "heartbeat":
            self._watch.heartbeat(agent, message)
        elif kind == "failure":
            self._found(from_json(message["failure"], RoundFailure))
        elif kind == "stop" and (level := message["level"]) not in self._announced:
            self._announced.add(level)
            if level == "stop":
                self._watch.first_stop = from_json(message["stop"], Stop)
            self.broadcast({"type": level, "stop": message["stop"]})
        elif kind == "leaving":
            self._watch.leave(agent, int(message["signal"]), now)
            if self.verdict is None and self._is_due(now):
                self._found(self._watch.left(now))
        elif kind == "silent" and self.verdict is None:
            self._watch.silent(agent, message["ranks"], now)
            self._ask_for_stacks()
        elif kind == "stacks":
            self._watch.stacks(index, message["reports"])
        elif kind == "ended":
            agent.ended = True
            self._broadcast_all(self._stops.leave(index))
            self._look_at_ended()
        elif kind in ("want", "agree"):
            self._broadcast_all(self._stops.receive(index, message))

    # -- decisions

    def _ask_for_stacks(self) -> None:
        if self._watch.wants_stacks:
            self._watch.wants_stacks = False
            self.broadcast({"type": "hang"})

    def _found(self, failure: RoundFailure | None) -> None:
        # Only the first failure of a round counts.
        # If the ranks are independent and enough members are left, the loss of a node does not end the round.
        if failure is None or self.verdict is not None:
            return
        failure = policy.early_exit(failure, tuple(self._watch.done.values()), asked=bool(self._announced))
        agents, lost = self._watch.agents, [index for index in failure.lost if index in self._watch.agents]
        for index in lost:
            agents[index].gone = agents[index].ended = True
        left = self.present()
        enough = len(left) >= self._plan.least_agents
        if self._plan.independent and failure.kind is RoundEnd.LOST_NODE and enough:
            self._go_on_without(lost)
        else:
            self.verdict = policy.judge(
                failure, self.history, self._plan, stopping="stop" in self._announced,
                members=len(left) + len(lost) + len(self.spares()), began=self.began,
            )  # fmt: skip
            self.history = self.verdict.history
            self.broadcast({"type": "verdict", "verdict": as_json(self.verdict, defaults=False)})
        self._look_at_ended()

    def _go_on_without(self, lost: Sequence[int]) -> None:
        left = [self._watch.agents[index].member for index in self.present()]
        resized = Resized(
            round=self.history.round, members=len(left), world_size=sum(member.ranks for member in left),
            size=len(self._places), without=tuple(self._places[index] for index in lost),
        )  # fmt: skip
        self._send([self._own.index], {"type": "resized", "resized": events.values(resized)})

    def _look_at_waiting(self) -> None:
        if self._announced & {"stop", "regroup"} or not self._watch.all_resumable:
            return
        full = self._most is not None and len(self.present()) >= self._most
        waiting = [index for index in self.waiting if self._now >= self._let_in.get(index, self._now)]
        if not full and self._watch.step > self.history.best and waiting:
            self._announced.add("regroup")
            self.broadcast({"type": "regroup", "back": [vars(self._places[index]) for index in waiting]})

    def _look_at_ended(self) -> None:
        agents = self._watch.agents
        while self._not_ended and self._not_ended[-1].ended:
            self._not_ended.pop()
        if self._over or not self._watching or self._not_ended:
            return
        self._over = True
        alive = [index for index, agent in agents.items() if not agent.gone]
        final = self.verdict is None or not self.verdict.restarts
        self._send([*alive, *(self.waiting if final else ())], {"type": "over", "final": final})
