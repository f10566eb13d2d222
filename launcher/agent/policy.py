"""Decisions of agents, without I/O: what has failed, and what first; whether ranks restart; how attempts end."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING, Any

from launcher import bounds, errors
from launcher.failures import messages
from launcher.failures.codes import FaultCode, StopReason
from launcher.files.json_types import as_json
from launcher.formatting import plural
from launcher.rendezvous.rounds import Member
from launcher.runs import events
from launcher.runs.events import Accused, Fault, Restart, Stop
from launcher.worker.hangs import Blamed

if TYPE_CHECKING:
    from launcher.agent.workers import LeftOver, WorkerExit


class RoundEnd(str, Enum):
    KILLED = "killed"  # a rank, by a signal
    LOST_PEER = "lost peer"  # a rank failed because another one was gone
    HUNG = "hung"  # a rank did no step for too long
    RAISED = "raised"  # a rank raised an exception, or exited with any other code or before its work was done
    NO_RETRY = "no retry"  # a rank exited with code 93
    LEFT = "left"  # ranks exited with code 75, by themselves or after a stop request
    LOST_NODE = "lost node"  # an agent is gone
    REGROUP = "regroup"  # ranks exited with code 75 because a node came back


class NextStep(str, Enum):
    RESTART = "restart"  # the ranks restart in the next round of this attempt
    FAIL = "fail"  # the attempt ends as failed
    RESUME = "resume"  # the attempt ends, and the run continues in another attempt
    NO_RETRY = "no retry"  # the attempt ends as failed, and a retry would fail, too

    @property
    def exit_code(self) -> int:
        return {NextStep.RESUME: errors.RESUME, NextStep.NO_RETRY: errors.NO_RETRY}.get(self, errors.FAILED)


@dataclass(frozen=True)
class History:
    """The rounds of an attempt so far. A round lasts from the fork of the ranks to their end."""

    round: int = 0  # index of the current round, from 0
    best: int = -1  # highest step of the run at the end of any earlier round; -1: none
    tried: int = 0  # number of restarts in a row without progress
    listened: bool = False  # whether ranks of an earlier round could resume: they listened for stop requests
    hung: str = ""  # where the last round hung (`RoundFailure.place`); empty: it did not
    preflight: bool = False  # whether the nodes of the current round are checked before the ranks start

    def after(self, step: int, *, counts: bool = True, hung: str = "") -> History:
        """Returns the history at the next round's start; counts: towards max_restarts; hung: where it did, or empty."""
        tried = (0 if step > self.best else self.tried) + counts
        return History(self.round + 1, max(step, self.best), tried, listened=True, hung=hung)


def decide(
    kind: RoundEnd, history: History, progress: bool | None, *,
    listens: bool, stopping: bool, enough: bool, max_restarts: int, again: bool = False,
) -> NextStep:  # fmt: skip
    """Returns what follows a failure. The first row that applies decides.

    | condition | then |
    |---|---|
    | exit code 93 (NO_RETRY) | no retry |
    | ranks exited with code 75 by themselves or after a stop request (LEFT) | resume |
    | ranks exited with code 75 because a node came back (REGROUP); enough nodes, no stop request | restart |
    | the rank cannot resume, or has reported that its error is final | fail |
    | an error of the program (RAISED) in a round without progress | fail: it would happen again |
    | a stop request | resume |
    | too few nodes are left | resume |
    | a hang at the same place as that of the round before (`again`), without progress | fail: it would happen again |
    | the round made progress, or fewer than max_restarts in a row did not | restart, unless max_restarts is 0 |
    | it is unknown whether the round made progress; max_restarts is not 0 | resume |
    | otherwise | fail |

    progress: whether this round got further than all earlier rounds; None: unknown.
    """
    if kind is RoundEnd.NO_RETRY:
        return NextStep.NO_RETRY
    if kind is RoundEnd.LEFT:
        return NextStep.RESUME
    if kind is RoundEnd.REGROUP and enough and not stopping:
        return NextStep.RESTART
    if not listens:
        return NextStep.FAIL
    if kind is RoundEnd.RAISED and progress is False:
        return NextStep.FAIL
    if stopping or not enough:
        return NextStep.RESUME
    if again and progress is False:
        return NextStep.FAIL
    if max_restarts and (progress or history.tried < max_restarts):
        return NextStep.RESTART
    return NextStep.RESUME if max_restarts and progress is None else NextStep.FAIL


@dataclass(frozen=True)
class RoundFailure:
    kind: RoundEnd  # for the restart policy
    fault: Fault
    member: int  # member index of the agent that reports the failure to the user
    listens: bool  # whether the failed rank can resume; of a lost node: whether any rank can
    lost: tuple[int, ...] = ()  # member indices of the agents that are gone
    stop: Stop | None = None  # why ranks have exited with code 75, to resume later; None: they have not
    exit_code: int | None = None  # of the attempt, if this failure ends it; None: `NextStep.exit_code` of the verdict
    place: str = ""  # where the ranks hang, to be compared with other rounds; empty: they do not

    @property
    def step(self) -> int:
        """Step of the run that the round reached; -1: none."""
        return -1 if self.fault.step is None else self.fault.step

    def message(self) -> dict[str, Any]:
        return {"type": "failure", "failure": as_json(self, defaults=False)}


@dataclass(frozen=True)
class RoundVerdict:
    """The leader's decision about the first failure of a round, which all agents carry out."""

    failure: RoundFailure
    then: NextStep
    exit_code: int  # exit code of the attempt, if the attempt ends
    history: History  # the rounds so far; if the ranks restart, as at the start of the next round

    @property
    def restarts(self) -> bool:
        return self.then is NextStep.RESTART

    @property
    def saves(self) -> bool:
        return self.failure.kind in (RoundEnd.LEFT, RoundEnd.REGROUP)

    @property
    def event(self) -> Fault | Stop:
        """The event to write if this verdict ends the attempt."""
        stop, step = self.failure.stop, self.failure.step
        if stop is not None:
            return replace(stop, step=step) if step >= 0 else stop
        return replace(self.failure.fault, ends_with=self.exit_code)

    def restart(self, world_size: int) -> Restart:
        values = events.values(self.failure.fault)
        return events.from_values(Restart, {**values, "round": self.history.round, "world_size": world_size})


def early_exit(failure: RoundFailure, done: Sequence[Accused], *, asked: bool) -> RoundFailure:
    """Returns the failure that caused a given one: ranks that had exited with 0 too early, or itself.

    | failure | ranks that have exited with 0 | a stop request | result |
    |---|---|---|---|
    | a rank lost a peer | some | no | RETURNED_EARLY of these ranks; a retry would fail as well |
    | a rank lost a peer | some | yes: they may have saved | the failure |
    | a rank lost a peer | none | any | the failure |
    | any other | any | any | the failure: it explains itself |
    """
    lost = failure.fault
    if failure.kind is not RoundEnd.LOST_PEER or asked or not done:
        return failure
    needed = "" if lost.rank is None else _returned_early(done, messages.rank_on(lost.rank, lost.host))
    fault = Fault(
        code=FaultCode.RETURNED_EARLY, host=done[0].host, node=done[0].node, rank=done[0].rank, exit_code=0,
        step=lost.step, accused=tuple(done), message=needed,
    )  # fmt: skip
    return replace(failure, kind=RoundEnd.RAISED, fault=fault, listens=False)


def _returned_early(done: Sequence[Accused], needed_by: str) -> str:
    more = len(done) - 1
    who = messages.rank_on(done[0].rank, done[0].host) + (f" and {plural(more, 'other rank')}" if more else "")
    return f"{who} exited with code 0 while {needed_by} still needed {'them' if more else 'it'}"


def judge(
    failure: RoundFailure, history: History, *, stopping: bool, members: int, least: int, max_restarts: int,
    saved: Callable[[], bool | None] = lambda: False,
) -> RoundVerdict:  # fmt: skip
    """Returns the verdict on the first failure of a round; `saved` is called only if that decides."""
    steps = failure.step > history.best
    counts = failure.listens and failure.kind not in (RoundEnd.NO_RETRY, RoundEnd.LEFT)
    progress = saved() if counts and not steps else steps
    further = max(failure.step, history.best + 1) if progress else failure.step
    again = failure.place != "" and failure.place == history.hung
    then = decide(
        failure.kind, history, progress, listens=failure.listens, stopping=stopping,
        enough=members - len(failure.lost) >= least, max_restarts=max_restarts, again=again,
    )  # fmt: skip
    if then is NextStep.RESTART:
        history = history.after(further, counts=failure.kind is not RoundEnd.REGROUP, hung=failure.place)
    elif then is NextStep.FAIL and failure.kind is not RoundEnd.RAISED and history.tried:
        why = f"{plural(history.tried, 'restart')} got no further (launch.max_restarts={max_restarts})"
        why = "after a restart they hung there again" if again else why
        message = f"{messages.of_fault(failure.fault)}; {why}"
        failure = replace(failure, fault=replace(failure.fault, message=message))
    return RoundVerdict(failure, then, failure.exit_code or then.exit_code, history)


def may_be_cut_off(verdict: RoundVerdict, least: int) -> bool:
    """Returns whether the lost members may continue without this agent, which restarts no ranks, after a partition."""
    return not verdict.restarts and verdict.failure.kind is RoundEnd.LOST_NODE and len(verdict.failure.lost) >= least


def describe(event: Fault | Stop) -> str:
    """Returns why an attempt ended, as text for the user."""
    return f"stopped: {messages.of_stop(event)}" if isinstance(event, Stop) else messages.of_fault(event)


# -- How a round or an attempt of an agent ends, and what it reports of a failure


class AttemptFailed(Exception):
    """The attempt ended before its work was done; text and `event` are the cause.

    ours: whether this agent saw the cause first, so that it prints it. decides: whether the exit code is the attempt's.
    suspended: an event to be written if the lost members do not continue without this agent (`may_be_cut_off`).
    """

    def __init__(
        self, event: Fault | Stop, exit_code: int = errors.FAILED, *, ours: bool = True, decides: bool = False,
        suspended: Fault | None = None,
    ) -> None:  # fmt: skip
        super().__init__(describe(event))
        self.event, self.exit_code = event, exit_code
        self.ours, self.decides, self.suspended = ours, decides, suspended


@dataclass(frozen=True)
class Done:
    metrics: dict[str, Any]  # metrics that the first rank of this agent has returned


@dataclass(frozen=True)
class NextRound:
    history: History  # the rounds so far; `history.round` is the index of the new round
    lost: tuple[int, ...] = ()  # member indices of the agents that are gone
    spares: tuple[int, ...] = ()  # member indices of the agents that wait to replace a lost one
    planned: bool = False  # whether it starts because a node came back, and not because of a failure


# The kind of a rank's failure for the restart policy; all others are errors of the program.
_KINDS = {
    FaultCode.LOST_PEER: RoundEnd.LOST_PEER,
    FaultCode.SIGNALLED: RoundEnd.KILLED,
    FaultCode.NO_RETRY: RoundEnd.NO_RETRY,
    FaultCode.USAGE: RoundEnd.NO_RETRY,
}
_REPORTED = {"usage": FaultCode.USAGE, "printed": FaultCode.EXITED}  # by the code of the rank's error


@dataclass(frozen=True)
class Failure:
    fault: Fault
    final: bool = False  # whether a retry would fail as well
    time: float = 0.0  # when the agent noticed it, in seconds since the epoch

    @property
    def code(self) -> FaultCode:
        return self.fault.code

    @property
    def kind(self) -> RoundEnd:
        return _KINDS.get(self.code, RoundEnd.RAISED)

    @property
    def rank(self) -> int:
        assert self.fault.rank is not None
        return self.fault.rank


def failure_of(ended: WorkerExit, host: str, *, returns: bool) -> Failure | None:
    """Returns the failure of a rank that has ended; None: it has done its work. The first row that matches decides.

    | exit code | the rank's report | FaultCode |
    |---|---|---|
    | 0 | metrics; for a program, any | None |
    | 0 | an error | RAISED, or LOST_PEER if the error is a consequence of another rank's end |
    | 0 | none | RETURNED_EARLY |
    | 75 | any | LEFT |
    | 93 | any | NO_RETRY |
    | any other | it refuses its arguments or its config | USAGE |
    | any other | only what it has printed last | EXITED |
    | any other, or a signal | an error | RAISED or LOST_PEER: the error came first |
    | a signal | none, or metrics | SIGNALLED |
    | any other | none, or metrics | EXITED |
    """
    code, error = ended.code, ended.error
    if code == errors.DONE and (ended.returned is not None or not returns):
        return None
    if code == errors.RESUME:
        kind = FaultCode.LEFT
    elif code == errors.NO_RETRY:
        kind = FaultCode.NO_RETRY
    elif error is not None and code and error.code in _REPORTED:
        kind = _REPORTED[error.code]
    elif error is not None:
        kind = FaultCode.LOST_PEER if error.lost_peer else FaultCode.RAISED
    elif code == errors.DONE:
        kind = FaultCode.RETURNED_EARLY
    else:
        kind = FaultCode.SIGNALLED if code < 0 else FaultCode.EXITED
    fault = Fault(
        code=kind, rank=ended.rank, host=host, exit_code=code if code >= 0 else None,
        signal=messages.signal_name(-code) if code < 0 else None,
    )  # fmt: skip
    if error is not None:
        fault = replace(
            fault, exception=error.type or None, error=error.line, reading=error.reading,
            traceback=error.traceback or None,
        )  # fmt: skip
    return Failure(fault, kind in (FaultCode.NO_RETRY, FaultCode.USAGE) or bool(error and error.final), ended.time)


def fault_of_end(left: Sequence[LeftOver], host: str) -> Fault:
    return Fault(
        code=FaultCode.STILL_THERE, rank=left[0].rank, host=host, error="; ".join(map(str, left)), signal="SIGKILL"
    )


# The failure with the lowest number is the cause of the others: a lost peer always follows from another failure.
_BLAME = {
    FaultCode.NO_RETRY: 0,
    FaultCode.USAGE: 0,
    FaultCode.NOT_STARTED: 1,
    FaultCode.STILL_THERE: 1,
    FaultCode.SIGNALLED: 2,
    FaultCode.EXITED: 3,
    FaultCode.RETURNED_EARLY: 3,
    FaultCode.RAISED: 3,
    FaultCode.LEFT: 4,
    FaultCode.LOST_PEER: 5,
}


def to_blame(failures: Sequence[Failure]) -> Failure:
    """Returns the failure that caused the others: the first by code (see `_BLAME`), then by time, then by rank."""
    return min(failures, key=lambda each: (_BLAME[each.code], each.time, each.rank))


def exited_to_resume(
    failed: Sequence[Failure], *, resumable: bool, left_first: bool, saving: bool, signalled: bool
) -> bool:
    """Returns whether an agent's ranks that have failed did so to resume later.

    | the ranks | condition | result |
    |---|---|---|
    | can resume | any of them exited with 75, or `saving` | True |
    | | `signalled`, and none of them exited with 93 | True |
    | | otherwise | False |
    | cannot | `left_first`, or the failure that caused the others is an exit with 75 | True |
    | | otherwise | False |

    left_first: whether the agent is ending its ranks because one of them exited with 75.
    saving: whether the ranks were given time to save and exit. signalled: whether a program's have got the stop signal.
    """
    if not resumable:
        return left_first or to_blame(failed).code is FaultCode.LEFT
    codes = {failure.code for failure in failed}
    return FaultCode.LEFT in codes or saving or (signalled and FaultCode.NO_RETRY not in codes)


def stop_of_exits(exits: Iterable[WorkerExit], asked: Stop | None, host: str, *, killed_after: float | None) -> Stop:
    """Returns the event of ranks that have exited to resume later; killed_after: launch.grace, if ranks were killed."""
    left = tuple(sorted(ended.rank for ended in exits if ended.code == errors.RESUME))
    if asked is None:
        asked = Stop(reason=StopReason.EXIT_75 if left else StopReason.NOT_IN_TIME, host=host)
    stop = replace(asked, ranks=left, time=0.0)
    return stop if killed_after is None else replace(stop, killed_on=host, grace=killed_after)


def fault_of_lost_leader(
    leader: Member, reason: str, *, stopping: bool, ended_by: int | None, asked: Stop | None
) -> Fault:
    """Returns the fault of a round whose leader is lost; ended_by: the signal for which this agent ends ranks."""
    fault = Fault(host=leader.host, node=leader.node_rank, accused=(Accused(host=leader.host),))
    if ended_by is None:
        return replace(fault, code=FaultCode.NODE_ENDED if stopping else FaultCode.LEADER_LOST, error=reason)
    name = messages.signal_name(ended_by)
    then = messages.of_request(asked.host, asked.signal or name) if asked else ""
    return replace(fault, code=FaultCode.NODE_ENDED, signal=name, message=messages.node_ended([leader.host], then=then))


# -- The leader's timeouts in a running round: agents that are lost or leave, ranks that do not join or hang. No I/O


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


@dataclass(frozen=True)
class RoundLimits:
    """The settings of a run that the leader needs. Times are in seconds; None: no limit."""

    least: int  # minimum number of agents with which the run can continue
    # from the start of the ranks until all must have joined; None for MPI, programs, debuggers
    rendezvous_timeout: float | None
    start_timeout: float | None  # from the last rank's joining to the first step
    idle_timeout: float | None  # longest time without CPU use, output or steps of any rank
    hang_timeout: float | None  # longest time of a rank without a step, after its first step
    heartbeat: float  # time without a message after which an agent counts as lost
    max_restarts: int  # maximum number of restarts in a row without progress
    stacks_in: str = ""  # directory in which agents save the stacks of ranks that hang
    independent: bool = False  # whether ranks continue when another node is lost
    most: int | None = None  # maximum number of agents in a round; the others are spares; None: all take part


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
    # the reports (`hangs.HangReport`) of each agent's ranks, by member index
    reports: dict[int, list[dict[str, Any]]] = field(default_factory=dict)


class FailureDetector:
    """Takes the reports of a round's agents. `look` checks all timeouts, and returns the failure that it finds."""

    def __init__(
        self, limits: RoundLimits, own: Member, agents: Mapping[int, AgentState], blame: Blame, *, listened: bool
    ):
        # listened: whether ranks of an earlier round could resume
        self._limits, self._own, self.agents, self._blame = limits, own, agents, blame
        self._listened = listened
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
        self.present(now)
        if self._limits.rendezvous_timeout is not None:
            self._join_by = now + self._limits.rendezvous_timeout
        gone = [agent for agent in self.agents.values() if agent.gone]
        message = messages.node_ended([agent.member.host for agent in gone], "before its ranks had started")
        return self.lost(gone, FaultCode.NODE_ENDED, message=message) if gone else None

    def present(self, now: float) -> None:
        """Restarts the heartbeat timeout of all agents, because the leader itself was suspended."""
        for agent in self.agents.values():
            agent.last_message = now

    def heartbeat(self, agent: AgentState, message: Mapping[str, Any]) -> None:
        agent.step = max(agent.step, int(message.get("step", -1)))
        agent.resumable = bool(message.get("resumable")) or agent.resumable
        agent.joined = bool(message.get("joined")) or agent.joined
        agent.closed = bool(message.get("closed"))
        agent.missing = tuple(message.get("missing", ()))
        agent.idle = float(message.get("idle", 0.0))
        for rank in message.get("done", ()):
            if len(self.done) < bounds.ACCUSED:
                self.done.setdefault(rank, Accused(host=agent.member.host, rank=rank, node=agent.member.node_rank))

    def leave(self, agent: AgentState, number: int, now: float) -> None:
        agent.leaving = True
        if self._leave is None:
            self._leave = now + LEAVE_TIMEOUT, number

    def silent(self, agent: AgentState, ranks: Sequence[int], now: float) -> None:
        """Records a suspected hang: these ranks of an agent have done no step for launch.hang_timeout."""
        if self._hang is None:
            silent = tuple(Accused(host=agent.member.host, rank=rank) for rank in ranks)
            self._suspect("launch.hang_timeout", self._limits.hang_timeout or 0.0, silent, now)

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
        where = blamed or self._own
        fault = Fault(
            **{"host": where.host, "node": where.node_rank, "step": self.step, **details}, code=code,
            accused=tuple(islice(accused, bounds.ACCUSED)),
        )  # fmt: skip
        resumable = self.any_resumable or self._listened if listens is None else listens
        return RoundFailure(kind, fault, self._own.index, resumable, lost, exit_code=exit_code, place=place)

    def _silent_agents(self, now: float) -> RoundFailure | None:
        limit = self._limits.heartbeat
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
            details |= {"listens": False, "exit_code": 128 + number}
        if not quiet:
            return self._failure(RoundEnd.KILLED, FaultCode.STOPPED_EARLY, None, host=asked.host, **details)
        hosts, then = [member.host for member in quiet], messages.of_request(asked.host, asked.signal or signal)
        accused, message = map(Accused, hosts), messages.node_ended(hosts, then=then)
        return self._failure(RoundEnd.KILLED, FaultCode.NODE_ENDED, None, accused, message=message, **details)

    def _not_joined(self, now: float) -> RoundFailure | None:
        if self._joined_at is None and all(agent.joined for agent in self.agents.values()):
            self._joined_at = now
        timeout = self._limits.rendezvous_timeout
        if timeout is None or self._join_by is None or self._joined_at is not None or now < self._join_by:
            return None
        self._join_by = None
        missing = [(rank, agent.member) for agent in self.agents.values() for rank in agent.missing]
        if not missing:  # all have arrived, and wait for each other: the process group's own timeout applies
            return None
        accused = [Accused(host=member.host, rank=rank) for rank, member in missing]
        return self._failure(
            RoundEnd.HUNG, FaultCode.NOT_JOINED, missing[0][1], accused, seconds=float(timeout),
            place=f"joining: {[rank for rank, _ in missing[: bounds.ACCUSED]]}",
        )  # fmt: skip

    # -- hangs

    def _hanging(self, now: float) -> RoundFailure | None:
        if (hang := self._hang) is not None:
            awaited = sum(not agent.gone for agent in self.agents.values())
            return self._blame_hang(hang) if len(hang.reports) >= awaited or now >= hang.deadline else None
        agents = [agent for agent in self.agents.values() if not agent.ended]
        start, idle = self._limits.start_timeout, self._limits.idle_timeout
        trains = any(agent.resumable and not agent.closed for agent in agents)
        starts = self._joined_at is not None and trains and self.step < 0
        if start is not None and starts and now - (self._joined_at or now) > start:
            self._suspect("launch.start_timeout", start, (), now)
        elif idle is not None and agents and all(agent.idle > idle for agent in agents):
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
        why += f"; the stacks of all ranks are in {self._limits.stacks_in}" if self._limits.stacks_in else ""
        names = "; ".join(messages.rank_on(each.rank, each.host) for each in islice(accused, MOST_NAMED)) or "all ranks"
        ended = blamed.does == ""  # with 0, and the others wait for them
        place = f"{blamed.does}: {blamed.frame or [each.rank for each in blamed.ranks]}"
        who = _returned_early(blamed.ranks, "all others") if ended else f"{names} {blamed.does}"
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
