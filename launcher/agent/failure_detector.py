"""How the leader finds that a running round has failed: agents that are lost or leave, ranks that do not join or hang.

No I/O. What follows a failure is in `policy`; the stacks of ranks that hang are judged by `worker.hang_diagnosis`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from launcher import errors, io_bounds
from launcher.agent.policy import RoundEnd, RoundFailure, returned_early
from launcher.config.schema import Backend
from launcher.failures import messages
from launcher.failures.codes import FaultCode
from launcher.plan.plan import JobPlan
from launcher.rendezvous.rounds import Member
from launcher.runs.events import Accused, Fault, Stop
from launcher.worker.hang_diagnosis import Blamed

STACKS = 10.0  # seconds in which all agents have to send the stacks of their ranks, and NCCL's flight recorders
MOST_NAMED = 4  # ranks that the message about a hang names
# What has not happened, by the timeout that has expired.
_EXPIRED = {
    "launch.start_timeout": "no first step within {} of joining",
    "launch.idle_timeout": "no CPU time, output or step of any rank for {}",
    "launch.hang_timeout": "no step for {}",
}
LEAVE_TIMEOUT = 2.0  # seconds from the first `leaving` message in which the other agents have to send theirs

Blame = Callable[[Iterable[Mapping[str, Any]]], Blamed]


@dataclass
class AgentState:
    member: Member
    last_message: float  # monotonic time at which its last message arrived
    step: int = -1  # highest step of the run that it has reported; -1: none
    resumable: bool = False  # whether it has reported that its ranks can resume: they save and exit on a stop request
    joined: bool = False  # whether it has reported that all its ranks have joined the process group
    closed: bool = False  # whether it has reported that the training of all its ranks is over
    missing: tuple[int, ...] = ()  # its global ranks that have not arrived at the process group, by its last heartbeat
    idle: float = 0.0  # seconds without CPU use, output or steps of any of its ranks, by its last heartbeat
    ended: bool = False  # whether all its ranks have ended
    leaving: bool = False  # whether it is ending its ranks because of a stop request
    gone: bool = False  # whether it is lost


@dataclass
class _Hang:
    # The leader waits for the stacks of all ranks

    limit: str  # config key of the timeout that expired, such as launch.hang_timeout
    seconds: float  # value of that timeout
    silent: tuple[Accused, ...]  # the ranks that were reported as silent; empty: all ranks
    step: int  # highest step of the run when the timeout expired
    deadline: float  # monotonic time at which to decide without the stacks that are missing
    # the reports (`hang_diagnosis.HangReport`) of each agent's ranks, by member index
    reports: dict[int, list[dict[str, Any]]] = field(default_factory=dict)


class FailureDetector:
    """Takes the reports of a round's agents. `look` checks all timeouts, and returns the failure that it finds."""

    def __init__(
        self, plan: JobPlan, logs: Path, own: Member, agents: Mapping[int, AgentState], blame: Blame, *, listened: bool
    ):
        # logs: where agents save stacks of ranks that hang. listened: whether ranks of an earlier round could resume
        self._plan, self._launch, self._logs, self._own = plan, plan.launch, logs, own
        self.agents, self._blame, self._listened = agents, blame, listened
        self.done: dict[int, Accused] = {}  # the ranks that have exited with 0, in order
        self.wants_stacks = False  # whether the caller has to ask the agents for the stacks of their ranks
        self.first_stop: Stop | None = None  # the first stop request reported
        self._join_by: float | None = None
        self._joined_at: float | None = None
        self._hang: _Hang | None = None
        self._leave: tuple[float, int] | None = None  # deadline for `leaving` messages, and the first one's signal

    # -- what agents report

    def start(self, now: float) -> RoundFailure | None:
        """Starts the timeouts, while the ranks are being started. Returns a failure if agents are lost already."""
        self.held_up(0.0, now)
        workload = self._plan.workload
        # Ranks of MPI, and programs, need not join through our store. While one rank is at a breakpoint, all are silent
        elsewhere = workload.backend == Backend.mpi.value or workload.kind == "Program"
        if not (elsewhere or self._plan.debugs) and workload.params.get("init", True):
            self._join_by = now + self._launch.rendezvous_timeout
        gone = [agent for agent in self.agents.values() if agent.gone]
        message = messages.node_ended([agent.member.host for agent in gone], "before its ranks had started")
        return self.lost(gone, FaultCode.NODE_ENDED, message=message) if gone else None

    def held_up(self, seconds: float, now: float) -> None:
        """Extends all timeouts, because the leader itself was suspended, and so maybe the ranks."""
        for agent in self.agents.values():
            agent.last_message = now
        self._join_by = None if self._join_by is None else self._join_by + seconds
        self._joined_at = None if self._joined_at is None else self._joined_at + seconds
        self._leave = None if self._leave is None else (self._leave[0] + seconds, self._leave[1])
        if self._hang is not None:
            self._hang.deadline += seconds

    def heartbeat(self, agent: AgentState, message: Mapping[str, Any]) -> None:
        agent.step = max(agent.step, int(message.get("step", -1)))
        agent.resumable = bool(message.get("resumable")) or agent.resumable
        agent.joined = bool(message.get("joined")) or agent.joined
        agent.closed = bool(message.get("closed"))
        agent.missing = tuple(message.get("missing", ()))
        agent.idle = float(message.get("idle", 0.0))
        for rank in message.get("done", ()):
            if len(self.done) < io_bounds.ACCUSED:
                self.done.setdefault(rank, Accused(host=agent.member.host, rank=rank, node=agent.member.node_rank))

    def leave(self, agent: AgentState, number: int, now: float) -> None:
        agent.leaving = True
        if self._leave is None:
            self._leave = now + LEAVE_TIMEOUT, number

    def silent(self, agent: AgentState, ranks: Sequence[int], now: float) -> None:
        """Records a suspected hang: these ranks of an agent have done no step for launch.hang_timeout."""
        if self._hang is None:
            silent = tuple(Accused(host=agent.member.host, rank=rank) for rank in ranks)
            self._suspect("launch.hang_timeout", self._launch.hang_timeout, silent, now)

    def stacks(self, index: int, reports: list[dict[str, Any]]) -> None:
        if self._hang is not None:
            self._hang.reports[index] = reports

    # -- failures

    @property
    def step(self) -> int:
        """Highest step of the run that any agent has reported; -1: none."""
        return max((agent.step for agent in self.agents.values()), default=-1)

    @property
    def any_resumable(self) -> bool:
        return any(agent.resumable for agent in self.agents.values())

    @property
    def all_resumable(self) -> bool:
        return all(agent.resumable or agent.ended for agent in self.agents.values()) or self._listened

    @property
    def leaves(self) -> bool:
        return self._leave is not None

    @property
    def urgent(self) -> bool:
        return self._hang is not None or self.leaves

    def look(self, now: float) -> RoundFailure | None:
        return self._silent_agents(now) or self.left(now) or self._not_joined(now) or self._hanging(now)

    def lost(self, agents: Sequence[AgentState], code: FaultCode, **details: Any) -> RoundFailure:
        """Marks agents as gone, and returns the failure of the round."""
        for agent in agents:
            agent.gone = agent.ended = True
        accused = [Accused(host=agent.member.host) for agent in agents]
        lost = tuple(agent.member.index for agent in agents)
        return self._failure(RoundEnd.LOST_NODE, code, agents[0].member, accused, lost=lost, **details)

    def _failure(
        self, kind: RoundEnd, code: FaultCode, blamed: Member | None, accused: Iterable[Accused] = (), *,
        lost: tuple[int, ...] = (), listens: bool | None = None, exit_code: int | None = None, place: str = "",
        **details: Any,
    ) -> RoundFailure:  # fmt: skip
        where, step = blamed or self._own, None if self.step < 0 else self.step
        fault = Fault(
            **{"host": where.host, "node": where.node_rank, "step": step, **details}, code=code,
            accused=tuple(islice(accused, io_bounds.ACCUSED)),
        )  # fmt: skip
        resumable = self.any_resumable or self._listened if listens is None else listens
        return RoundFailure(kind, fault, self._own.index, resumable, lost, exit_code=exit_code, place=place)

    def _silent_agents(self, now: float) -> RoundFailure | None:
        limit = self._launch.heartbeat
        silent = [
            agent
            for index, agent in self.agents.items()
            if index != self._own.index and not agent.gone and now - agent.last_message > limit
        ]
        return self.lost(silent, FaultCode.NODE_SILENT, seconds=float(limit)) if silent else None

    def left(self, now: float) -> RoundFailure | None:
        """Returns the failure if agents end their ranks after a stop request; in the end it names those that do not."""
        if self._leave is None:
            return None
        until, number = self._leave
        # An agent whose ranks can resume does not leave: it gives them the time to save.
        quiet = [
            agent.member for agent in self.agents.values() if not agent.leaving and (agent.gone or not agent.resumable)
        ]
        if quiet and now < until and not all(agent.leaving or agent.gone for agent in self.agents.values()):
            return None
        signal = messages.signal_name(number)
        asked = self.first_stop or Stop(host=self._own.host, signal=signal)
        details: dict[str, Any] = {"signal": signal}
        if not self.any_resumable:  # else ranks of other nodes are saving
            begun = self._join_by is None or any(agent.joined for agent in self.agents.values())
            details |= {"listens": False, "exit_code": 128 + number if begun else errors.RESUME}  # nothing is lost
        if not quiet:
            return self._failure(RoundEnd.KILLED, FaultCode.STOPPED_EARLY, None, host=asked.host, **details)
        hosts, then = [member.host for member in quiet], messages.of_request(asked.host, asked.signal or signal)
        accused, message = map(Accused, hosts), messages.node_ended(hosts, then=then)
        return self._failure(RoundEnd.KILLED, FaultCode.NODE_ENDED, None, accused, message=message, **details)

    def _not_joined(self, now: float) -> RoundFailure | None:
        if self._joined_at is None and all(agent.joined for agent in self.agents.values()):
            self._joined_at = now
        if self._join_by is None or self._joined_at is not None or now < self._join_by:
            return None
        self._join_by = None
        missing = [(rank, agent.member) for agent in self.agents.values() for rank in agent.missing]
        if not missing:  # all have arrived, and wait for each other: the process group's own timeout applies
            return None
        accused = [Accused(host=member.host, rank=rank) for rank, member in missing]
        return self._failure(
            RoundEnd.HUNG, FaultCode.NOT_JOINED, missing[0][1], accused, seconds=float(self._launch.rendezvous_timeout),
            place=f"joining: {[rank for rank, _ in missing[: io_bounds.ACCUSED]]}",
        )  # fmt: skip

    # -- hangs

    def _hanging(self, now: float) -> RoundFailure | None:
        if (hang := self._hang) is not None:
            awaited = sum(not agent.gone for agent in self.agents.values())
            return self._blame_hang(hang) if len(hang.reports) >= awaited or now >= hang.deadline else None
        if self._plan.debugs:
            return None
        agents = [agent for agent in self.agents.values() if not agent.ended]
        start, idle = self._launch.start_timeout, self._launch.idle_timeout
        trains = any(agent.resumable and not agent.closed for agent in agents)
        starts = self._joined_at is not None and trains and self.step < 0
        if starts and now - (self._joined_at or now) > start:
            self._suspect("launch.start_timeout", start, (), now)
        elif agents and all(agent.idle > idle for agent in agents):
            self._suspect("launch.idle_timeout", idle, (), now)
        return None

    def _suspect(self, limit: str, seconds: float, silent: tuple[Accused, ...], now: float) -> None:
        self._hang = _Hang(limit, float(seconds), silent, self.step, now + STACKS)
        self.wants_stacks = True

    def _blame_hang(self, hang: _Hang) -> RoundFailure:
        self._hang = None
        blamed = self._blame([report for reports in hang.reports.values() for report in reports])
        accused: Collection[Accused] = blamed.ranks or hang.silent
        rank = blamed.ranks[0].rank if blamed.ranks else None
        slowest = hang.step if blamed.step is None else blamed.step
        why = f"{_EXPIRED[hang.limit].format(f'{hang.seconds:g} s')} ({hang.limit})"
        why += f" after step {slowest}" if slowest >= 0 else " before the first step"
        why += f"; the stacks of all ranks are in {self._logs}"
        names = "; ".join(messages.rank_on(each.rank, each.host) for each in islice(accused, MOST_NAMED)) or "all ranks"
        ended = blamed.does == ""  # with 0, and the others wait for them
        place = f"{blamed.does}: {blamed.frame or [each.rank for each in blamed.ranks]}"
        who = returned_early(blamed.ranks, "all others") if ended else f"{names} {blamed.does}"
        return self._failure(
            RoundEnd.RAISED if ended else RoundEnd.HUNG, FaultCode.RETURNED_EARLY if ended else FaultCode.HANG,
            self._member_of(rank), accused, rank=rank, limit=hang.limit, seconds=hang.seconds, message=f"{who}: {why}",
            listens=False if ended else None, place=place,
        )  # fmt: skip

    def _member_of(self, rank: int | None) -> Member | None:
        first = 0
        for agent in self.agents.values():
            if rank is not None and first <= rank < first + agent.member.ranks:
                return agent.member
            first += agent.member.ranks
        return None
