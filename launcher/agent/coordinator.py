"""What the leading agent knows of all agents of a round, and decides for them. No I/O: messages in, messages out.

Agents send to the leader:

| type | says |
|---|---|
| `hello` | an agent is connected: its `member` row |
| `ready` | its ranks of the last round are gone: it can begin round `round` |
| `beat` | it lives. `step`, `resumable`, `joined`, `missing` ranks, `idle` seconds, `pace`: how its ranks are |
| `failure` | something ended its ranks: see `Failure` fields in `fail` |
| `stop` | it was asked to stop: `level` (`end` or `warning`), `reason` for people, `code`, `signal` |
| `leaving` | its ranks cannot resume and are being ended, because of `signal` |
| `silent` | its `ranks` have done no step for launch.hang_timeout |
| `stacks` | `reports` of its ranks, after `hang` |
| `ended` | none of its ranks runs any more, and it waits for the others |
| `report` | its `value` for `key`: see `Control.collect` |
| `want`, `agree` | what its ranks want done at a step boundary, and whether all agree: see `stop_agreement` |

The leader sends:

| type | says |
|---|---|
| `begin` | a round begins: `round`, `members`, `port` of the store, `history` |
| `refused` | it does not: `reason` |
| `beat` | it lives |
| `stop`, `warning`, `regroup` | the ranks are to save and leave: `reason`, `code`, `signal` |
| `hang` | save the stacks of your ranks |
| `question` | a command asks something: `text` |
| `verdict` | the first failure, and what all do about it |
| `over` | no rank of this round runs any more |
| `answer` | the leader's `value` for `key` |
| `propose`, `commit` | what all ranks do at one step boundary: see `stop_agreement` |
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from launcher.agent.restart_policy import History, Kind, Then, decide
from launcher.failures import text
from launcher.failures.codes import FaultCode, StopReason
from launcher.rendezvous.channel import Message
from launcher.rendezvous.protocol import Gathering, Member, RendezvousError, refused, some_of
from launcher.worker.hangs import Blamed
from launcher.worker.stop_agreement import LeaderSide

STACKS = 10.0  # seconds in which all agents have sent the stacks of their ranks, and what NCCL has recorded
HEARSAY = 2.0  # seconds in which every agent that is asked to stop has said so

Claim = Callable[[int, Sequence[Member]], "str | None"]
Listen = Callable[[Sequence[Member]], int]


@dataclass(frozen=True)
class Limits:
    """The settings of a run that the coordinator goes by. Times are in seconds.

    Attributes:
        least: members with which the run can go on.
        rendezvous_timeout: until every rank must have joined; None: nobody looks (MPI, programs, a debugger).
        start_timeout: from joining to the first step; None: no limit.
        idle_timeout: without a sign of life of any rank; None: no limit.
        hang_timeout: without a step, after the first; None: no limit.
        heartbeat: of silence after which an agent counts as lost.
        max_restarts: restarts in a row that may bring no progress.
        stacks_in: the folder in which agents save the stacks of ranks that hang.
    """

    least: int
    rendezvous_timeout: float | None
    start_timeout: float | None
    idle_timeout: float | None
    hang_timeout: float | None
    heartbeat: float
    max_restarts: int
    stacks_in: str = ""


@dataclass
class _Agent:
    """One agent of the round that runs."""

    member: Member
    heard: float
    step: int = -1
    resumable: bool = False
    joined: bool = False
    missing: tuple[int, ...] = ()
    idle: float = 0.0
    ended: bool = False
    leaving: bool = False
    gone: bool = False


@dataclass
class _Hang:
    """Ranks are silent; the stacks of all ranks are awaited."""

    limit: str  # the key whose time is over
    reason: str
    where: str
    step: int
    deadline: float
    reports: dict[int, list[dict[str, Any]]] = field(default_factory=dict)


class Coordinator:
    """The state of all agents, on the leader."""

    def __init__(
        self, limits: Limits, names: Sequence[str], me: Member, *, claim: Claim, listen: Listen,
        blame: Callable[[Iterable[Mapping[str, Any]]], Blamed],
    ) -> None:  # fmt: skip
        """
        Args:
            limits: see there.
            names: what to call each member of the job in an error.
            me: the leader.
            claim: makes a round known, with its members; words against it.
            listen: opens the port of the store for a round of these members.
            blame: finds the ranks to blame for a hang from the stacks of all.
        """
        self.limits, self._names, self._me, self._claim, self._blame = limits, names, me, claim, blame
        self._listen = listen
        self.history = History()
        self.gathering: Gathering | None = None
        self.verdict: dict[str, Any] | None = None
        self.reports: dict[str, dict[int, Any]] = {}
        self.paces: list[Any] = []
        self._agents: dict[int, _Agent] = {}
        self._ready: dict[int, Member] = {}
        self._known: dict[int, Member] = {me.index: me}
        self._outbox: list[tuple[tuple[int, ...], Message]] = []
        self._announced: set[str] = set()
        self._watching = self._over = False
        self._looked: float | None = None
        self._join_by: float | None = None
        self._joined_at: float | None = None
        self._hang: _Hang | None = None
        self._leave: tuple[float, int] | None = None  # until when agents may say that they leave, and the signal
        self._first_to_stop = ""
        self._stops = LeaderSide(())

    # -- beginning a round

    @property
    def members(self) -> list[int]:
        """Indices of the members of the round."""
        return list(self._agents)

    @property
    def waiting(self) -> list[int]:
        """Indices of members that wait for the next round."""
        return sorted(index for index in self._ready if index not in self._agents)

    def present(self) -> set[int]:
        """Indices of the members of the round that are connected."""
        return {index for index, agent in self._agents.items() if not agent.gone}

    def gather(self, history: History, wanted: Collection[int], timeout: float, now: float) -> None:
        """The leader is ready for a round, and waits for others.

        Args:
            history: its number is that of the round.
            wanted: indices of the members that are waited for; the leader's own may be among them.
            timeout: seconds that they have to come.
            now: by the monotonic clock, as everywhere here.
        """
        self.history = history
        self._ready[self._me.index] = self._me
        wanted = {*wanted, self._me.index}
        if history.round:  # who is gone since the verdict is not waited for; who has come is in
            wanted = {index for index in wanted if index not in self._agents or not self._agents[index].gone}
            wanted |= self._ready.keys()
        self.gathering = Gathering(self._names, self._me.index, self.limits.least, wanted, now + timeout)
        self.gathering.arrived.update(self._ready)
        self.tick(now)

    def stop_gathering(self, reason: str) -> None:
        """Tells those that wait for a round to begin, or for its ranks to be started, that they wait in vain."""
        waits = self.gathering is not None or not self._watching
        others = {*self._ready, *self._agents} - {self._me.index}
        if waits and others:
            self._send(sorted(others), refused(reason, FaultCode.STOPPED_EARLY))

    def watch(self, now: float) -> None:
        """The ranks of the round are being started: from now on they are watched."""
        self._watching = True
        for agent in self._agents.values():
            agent.heard = now
        if self.limits.rendezvous_timeout is not None:
            self._join_by = now + self.limits.rendezvous_timeout
        if gone := [agent for agent in self._agents.values() if agent.gone]:
            self._lost(gone, FaultCode.NODE_ENDED, "{} ended before its ranks had started", now)

    def _begin(self, gathering: Gathering, now: float) -> None:
        members = gathering.members()
        port, problem, code = 0, gathering.problem(), FaultCode.RENDEZVOUS_TIMEOUT
        accused = gathering.missing if problem is not None else []
        if problem is None:
            try:
                port = self._listen(members)
            except RendezvousError as error:
                problem, code = str(error), error.code
        problem = problem or self._claim(self.history.round, members)
        self.gathering = None
        if problem is not None:
            self._send(list(gathering.arrived), refused(problem, code, accused))
            return
        self._agents = {member.index: _Agent(member, now) for member in members}
        for member in members:
            del self._ready[member.index]
        self.verdict, self._announced, self._hang, self._leave = None, set(), None, None
        self._join_by = self._joined_at = None
        self._watching = self._over = False
        self._first_to_stop = ""
        self._stops = LeaderSide(self._agents)
        self.reports.clear()
        rows = [member.row() for member in members]
        begin = {"type": "begin", "round": self.history.round, "port": port, "history": asdict(self.history)}
        self._send(self.members, {**begin, "members": rows})

    # -- what happens

    def receive(self, index: int, message: Message, now: float) -> None:
        """A member has sent something."""
        agent = self._agents.get(index)
        if agent is not None:
            agent.heard = now
        handle = getattr(self, f"_on_{message.get('type')}", None)
        if handle is not None:
            handle(index, agent, message, now)

    def disconnected(self, index: int, now: float) -> None:
        """A member's connection was closed: its process has ended, or it is cut off."""
        self._ready.pop(index, None)
        if self.gathering is not None:
            self.gathering.arrived.pop(index, None)
            if self.history.round:
                self.gathering.wanted.discard(index)
        agent = self._agents.get(index)
        if agent is None or agent.gone:
            return
        agent.gone = agent.ended = True
        self._broadcast_all(self._stops.leave(index))
        # While agents say that they leave, `_look_at_leaving` names those that do not.
        if self._watching and self.verdict is None and not self._over and self._leave is None:
            self._lost([agent], FaultCode.NODE_ENDED, text.node_lost("{}"), now)
        self._look_at_ended()

    def tick(self, now: float) -> None:
        """Looks at what is due."""
        if self._looked is not None and now - self._looked > self.limits.heartbeat / 2:
            for agent in self._agents.values():  # the leader itself was away: stopped, or held up by a file server
                agent.heard = now
        self._looked = now
        if self.gathering is not None and self.gathering.decided(now):
            self._begin(self.gathering, now)
        if not self._watching or self._over:
            return
        if self.verdict is None:
            self._look_at_silence(now)
        if self.verdict is None and self._leave is not None:
            self._look_at_leaving(now)
        if self.verdict is None:
            self._look_at_joining(now)
        if self.verdict is None:
            self._look_at_hangs(now)
        if self.verdict is None:
            self._look_at_waiting()

    def next_look(self, now: float) -> float:
        """Seconds until `tick` is due at the latest."""
        if self.gathering is not None:
            return max(0.0, min(self.gathering.deadline - now, 1.0))
        return 0.25 if self._hang or self._leave else min(1.0, self.limits.heartbeat / 4)

    def take_outbox(self) -> list[tuple[tuple[int, ...], Message]]:
        """What is to be sent, and to whom; empty afterwards."""
        outbox, self._outbox = self._outbox, []
        return outbox

    def take_paces(self) -> list[Any]:
        """How fast ranks are, as agents have told since the last call."""
        paces, self.paces = self.paces, []
        return paces

    def broadcast(self, message: Message) -> None:
        """Sends to all members of the round."""
        self._send(self.members, message)

    def _broadcast_all(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self.broadcast(message)

    def step(self) -> int:
        """Most steps of the run that any agent has told of."""
        return max((agent.step for agent in self._agents.values()), default=-1)

    def _send(self, indices: Iterable[int], message: Message) -> None:
        self._outbox.append((tuple(indices), message))

    # -- messages

    def _on_hello(self, index: int, agent: _Agent | None, message: Message, now: float) -> None:
        self._known[index] = self._ready[index] = Member.of(message["member"])
        if self.gathering is not None:
            self.gathering.arrived[index] = self._known[index]

    def _on_ready(self, index: int, agent: _Agent | None, message: Message, now: float) -> None:
        if agent is None or agent.gone:
            return
        agent.ended = True
        self._ready[index] = agent.member
        if self.gathering is not None and message["round"] == self.history.round:
            self.gathering.arrived[index] = agent.member

    def _on_beat(self, index: int, agent: _Agent | None, message: Message, now: float) -> None:
        if agent is None:
            return
        agent.step = max(agent.step, int(message.get("step", -1)))
        agent.resumable = bool(message.get("resumable")) or agent.resumable
        agent.joined = bool(message.get("joined")) or agent.joined
        agent.missing = tuple(message.get("missing", ()))
        agent.idle = float(message.get("idle", 0.0))
        if message.get("pace"):
            self.paces.append(message["pace"])

    def _on_failure(self, index: int, agent: _Agent | None, message: Message, now: float) -> None:
        if agent is not None:
            self.fail({name: value for name, value in message.items() if name != "type"}, now)

    def _on_stop(self, index: int, agent: _Agent | None, message: Message, now: float) -> None:
        level = "warning" if message["level"] == "warning" else "stop"
        if agent is None or level in self._announced:
            return
        self._announced.add(level)
        if level == "stop":
            self._first_to_stop = message["reason"]
        self.broadcast({**message, "type": level})

    def _on_leaving(self, index: int, agent: _Agent | None, message: Message, now: float) -> None:
        if agent is None:
            return
        agent.leaving = True
        if self._leave is None:
            self._leave = now + HEARSAY, int(message["signal"])
        self._look_at_leaving(now)

    def _on_silent(self, index: int, agent: _Agent | None, message: Message, now: float) -> None:
        if agent is not None and self._hang is None and self.verdict is None:
            ranks = ", ".join(map(str, message["ranks"]))
            reason = f"no step for {self.limits.hang_timeout:g} s (launch.hang_timeout) after step"
            self._suspect("launch.hang_timeout", reason, f"rank {ranks} on {agent.member.host}", now)

    def _on_stacks(self, index: int, agent: _Agent | None, message: Message, now: float) -> None:
        if self._hang is not None and agent is not None:
            self._hang.reports[index] = message["reports"]

    def _on_ended(self, index: int, agent: _Agent | None, message: Message, now: float) -> None:
        if agent is not None:
            agent.ended = True
            self._broadcast_all(self._stops.leave(index))
            self._look_at_ended()

    def _on_want(self, index: int, agent: _Agent | None, message: Message, now: float) -> None:
        if agent is not None:
            self._broadcast_all(self._stops.receive(index, message))

    _on_agree = _on_want

    def _on_report(self, index: int, agent: _Agent | None, message: Message, now: float) -> None:
        self.reports.setdefault(message["key"], {})[index] = message["value"]

    # -- decisions

    def fail(self, failure: Mapping[str, Any], now: float) -> None:
        """Decides what is done about a failure; only the first one of a round counts.

        Args:
            failure: `kind` (for the policy), `code`, `cause`, `listens` (the rank can resume), `host`, `node`,
                `member`, `step`, `lost` (indices of members that are gone), `exit_code` (of the attempt), `status`
                (exit code of the rank's process), and other fields of `launcher.runs.events.Fault`.
            now: the time.
        """
        if self.verdict is not None:
            return
        self.verdict = judged(
            failure,
            self.history,
            stopping="stop" in self._announced,
            members=len(self._agents),
            least=self.limits.least,
            max_restarts=self.limits.max_restarts,
        )
        if self.verdict["then"] == Then.RESTART.value:
            counts = self.verdict["kind"] != Kind.REGROUP.value
            self.history = self.history.after(self.verdict["cause"], self.verdict["further"], counts=counts)
        for index in self.verdict["lost"]:
            if index in self._agents:
                self._agents[index].gone = self._agents[index].ended = True
        self.broadcast({"type": "verdict", **self.verdict, "history": asdict(self.history)})
        self._look_at_ended()

    def _failure(
        self, kind: Kind, code: FaultCode, cause: str, now: float, blamed: Member | None = None, **details: Any
    ) -> None:
        """The coordinator itself has found something, of the node of this member if it is known of which."""
        resumable = any(agent.resumable for agent in self._agents.values()) or self.history.listened
        where = blamed or self._me
        failure: dict[str, Any] = {
            "kind": kind.value, "code": code.value, "cause": cause, "listens": resumable, "host": where.host,
            "node": where.node_rank, "member": self._me.index, "step": self.step(), "lost": [],
            "accused": [{"host": blamed.host}] if blamed is not None else [],
        }  # fmt: skip
        self.fail({**failure, **details}, now)

    def _lost(self, agents: Sequence[_Agent], code: FaultCode, words: str, now: float) -> None:
        """These agents are gone: what that is called, with `{}` for their hosts."""
        hosts = some_of([agent.member.host for agent in agents])
        for agent in agents:
            agent.gone = agent.ended = True
        lost = [agent.member.index for agent in agents]
        accused = [{"host": agent.member.host} for agent in agents]
        self._failure(Kind.LOST_NODE, code, words.format(hosts), now, agents[0].member, lost=lost, accused=accused)

    def _look_at_silence(self, now: float) -> None:
        silent = [
            agent
            for index, agent in self._agents.items()
            if index != self._me.index and not agent.gone and now - agent.heard > self.limits.heartbeat
        ]
        if silent:
            self._lost(silent, FaultCode.NODE_SILENT, text.node_silent("{}", self.limits.heartbeat), now)

    def _look_at_leaving(self, now: float) -> None:
        if self._leave is None or self.verdict is not None:
            return
        until, number = self._leave
        # Ranks that can resume do not leave like that: their agent gives them the time to save.
        quiet = [
            agent.member for agent in self._agents.values() if not agent.leaving and (agent.gone or not agent.resumable)
        ]
        if quiet and now < until and not all(agent.leaving or agent.gone for agent in self._agents.values()):
            return
        cause, code = self._first_to_stop, FaultCode.STOPPED_EARLY
        details: dict[str, Any] = {"signal": text.signal_name(number)}
        if quiet:
            hosts = [member.host for member in quiet]
            cause, code = f"{text.node_lost(', '.join(hosts))}; then {cause}", FaultCode.NODE_ENDED
            details["accused"] = [{"host": host} for host in hosts]
        if not any(agent.resumable for agent in self._agents.values()):  # else ranks of other nodes are saving
            details |= {"listens": False, "exit_code": 128 + number}
        self._failure(Kind.KILLED, code, cause, now, **details)

    def _look_at_joining(self, now: float) -> None:
        if self._joined_at is None and all(agent.joined for agent in self._agents.values()):
            self._joined_at = now
        timeout = self.limits.rendezvous_timeout
        if timeout is None or self._join_by is None or self._joined_at is not None or now < self._join_by:
            return
        self._join_by = None
        missing = [(rank, agent.member) for agent in self._agents.values() for rank in agent.missing]
        if not missing:  # they have come, and wait for each other: their own timeout counts
            return
        hosts = ", ".join(dict.fromkeys(member.host for _, member in missing))
        self._failure(
            Kind.HUNG,
            FaultCode.NOT_JOINED,
            text.not_joined(", ".join(str(rank) for rank, _ in missing), hosts, timeout),
            now,
            missing[0][1],
            accused=[{"host": member.host, "rank": rank} for rank, member in missing],
        )

    def _look_at_hangs(self, now: float) -> None:
        if self._hang is not None:
            if len(self._hang.reports) >= sum(not agent.gone for agent in self._agents.values()) or (
                now >= self._hang.deadline
            ):
                self._blame_hang(self._hang, now)
            return
        agents = [agent for agent in self._agents.values() if not agent.ended]
        if not agents:
            return
        start, idle = self.limits.start_timeout, self.limits.idle_timeout
        starts = self._joined_at is not None and any(agent.resumable for agent in agents) and self.step() < 0
        if start is not None and starts and now - (self._joined_at or now) > start:
            reason = f"no first step within {start:g} s of joining (launch.start_timeout); step"
            self._suspect("launch.start_timeout", reason, "all ranks", now)
        elif idle is not None and all(agent.idle > idle for agent in agents):
            reason = f"no CPU time, output or step of any rank for {idle:g} s (launch.idle_timeout) after step"
            self._suspect("launch.idle_timeout", reason, "all ranks", now)

    def _suspect(self, limit: str, reason: str, where: str, now: float) -> None:
        self._hang = _Hang(limit, reason, where, self.step(), now + STACKS)
        self.broadcast({"type": "hang"})

    def _blame_hang(self, hang: _Hang, now: float) -> None:
        self._hang = None
        blamed = self._blame([report for reports in hang.reports.values() for report in reports])
        step = hang.step if blamed.step is None else blamed.step
        names = blamed.names or hang.where
        stacks = f"the stacks of all ranks are in {self.limits.stacks_in}"
        cause = f"{names} {blamed.why}: {hang.reason} {step}; {stacks}"
        member = self._member_of(blamed.rank)
        accused = [] if member is None else [{"host": member.host, "rank": blamed.rank}]
        self._failure(
            Kind.HUNG, FaultCode.HANG, cause, now, member, rank=blamed.rank, limit=hang.limit, accused=accused,
            stacks=self.limits.stacks_in,
        )  # fmt: skip

    def _member_of(self, rank: int | None) -> Member | None:
        """Whose rank this is."""
        first = 0
        for agent in self._agents.values():
            if rank is not None and first <= rank < first + agent.member.ranks:
                return agent.member
            first += agent.member.ranks
        return None

    def _look_at_waiting(self) -> None:
        """Has a new round begun for members that wait, once this one has got somewhere; they lose nothing by it."""
        resumable = all(agent.resumable or agent.ended for agent in self._agents.values()) or self.history.listened
        if self._announced & {"stop", "regroup"} or not resumable or self.step() <= self.history.best:
            return
        if waiting := self.waiting:
            self._announced.add("regroup")
            names = ", ".join(self._names[index] for index in waiting)
            returned = {"reason": f"{names} came back", "code": StopReason.NODE_RETURNED.value}
            self.broadcast({"type": "regroup", **returned})

    def _look_at_ended(self) -> None:
        if self._over or not self._watching or not all(agent.ended for agent in self._agents.values()):
            return
        self._over = True
        alive = [index for index, agent in self._agents.items() if not agent.gone]
        final = self.verdict is None or self.verdict["then"] != Then.RESTART.value
        self._send([*alive, *(self.waiting if final else ())], {"type": "over", "final": final})


def judged(
    failure: Mapping[str, Any], history: History, *, stopping: bool, members: int, least: int, max_restarts: int
) -> dict[str, Any]:
    """The failure with what is done about it: `then`, `exit_code`, `further` (the step that counts). Pure.

    Args:
        failure: see `Coordinator.fail`.
        history: of the rounds before.
        stopping: the agents were asked to stop.
        members: agents of the round.
        least, max_restarts: see `Limits`.
    """
    kind, step = Kind(failure["kind"]), int(failure["step"])
    further = max(step, history.best + 1) if failure.get("saved") else step
    then = decide(
        kind,
        history,
        further,
        listens=bool(failure["listens"]),
        stopping=stopping,
        enough=members - len(failure["lost"]) >= least,
        max_restarts=max_restarts,
    )
    cause = failure["cause"]
    if then is Then.FAIL and kind is not Kind.RAISED:
        cause = text.given_up(cause, history.first, history.tried, max_restarts)
    exit_code = failure.get("exit_code") or then.exit_code
    return {**failure, "cause": cause, "then": then.value, "exit_code": exit_code, "further": further}


def may_be_cut_off(verdict: Mapping[str, Any], least: int) -> bool:
    """Whether the lost members may well continue without those who decided so: a partition looks alike from both sides.
    Pure.

    | kind | then | lost members | |
    |---|---|---|---|
    | lost node | the attempt ends: too few are left | enough for a round of their own | perhaps |
    | lost node | the attempt ends | fewer | no |
    | any | the ranks start again | any | no: the folder `rounds` decides which side continues |
    | another | any | any | no: the members of the round have heard each other |
    """
    ends = verdict["then"] != Then.RESTART.value
    return ends and verdict["kind"] == Kind.LOST_NODE.value and len(verdict["lost"]) >= least
