"""Decisions of agents: what failed first, whether ranks restart, how a round and an attempt end."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher import errors
from launcher.checkpoint import format as checkpoints
from launcher.failures import messages
from launcher.failures.codes import FaultCode, StopReason
from launcher.files.json_types import as_json, from_json
from launcher.formatting import plural
from launcher.plan.plan import JobPlan
from launcher.rendezvous.rounds import Member
from launcher.runs import events, user_checkpoints
from launcher.runs.events import Accused, Fault, Restart, Stop

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
    place: str = ""  # where the last round hung or an error was raised (`RoundFailure.place`); empty: neither
    preflight: bool = False  # whether the nodes of the current round are checked before the ranks start

    def after(self, step: int, *, counts: bool = True, place: str = "") -> History:
        """Returns the history at the next round's start; counts: whether the restart counts towards max_restarts."""
        tried = (0 if step > self.best else self.tried) + counts
        return History(self.round + 1, max(step, self.best), tried, listened=True, place=place)


def decide(
    kind: RoundEnd, history: History, progress: bool | None, *,
    listens: bool, stopping: bool, enough: bool, max_restarts: int, again: bool = False, has_checkpoint: bool = False,
) -> NextStep:  # fmt: skip
    """Returns what follows a failure. The first row that applies decides.

    | condition | then |
    |---|---|
    | exit code 93 (NO_RETRY) | no retry |
    | ranks exited with code 75 by themselves or after a stop request (LEFT) | resume |
    | ranks exited with code 75 because a node came back (REGROUP); enough nodes, no stop request | restart |
    | before any rank had reported that it can resume: a lost node, a stop request; the run has a checkpoint | resume |
    | the rank cannot resume, or has reported that its error is final | fail |
    | an error of the program (RAISED) in a round without progress | fail: it would happen again |
    | a stop request | resume |
    | too few nodes are left | resume |
    | at the same place as the round before (`again`), without progress | fail: it would happen again |
    | progress, and not `again`; or fewer than max_restarts in a row without | restart, unless max_restarts is 0 |
    | it is unknown whether the round made progress; max_restarts is not 0 | resume |
    | otherwise | fail |

    progress: whether this round got further than all earlier rounds; None: unknown.
    again: whether it hung, or its error was raised, where that of the round before was, and it did no further step: a
    new file is then progress that may be the same each time.
    """
    if kind is RoundEnd.NO_RETRY:
        return NextStep.NO_RETRY
    if kind is RoundEnd.LEFT:
        return NextStep.RESUME
    if kind is RoundEnd.REGROUP and enough and not stopping:
        return NextStep.RESTART
    if not listens:
        ended = kind in (RoundEnd.LOST_NODE, RoundEnd.KILLED, RoundEnd.LOST_PEER)
        return NextStep.RESUME if has_checkpoint and ended else NextStep.FAIL
    if kind is RoundEnd.RAISED and progress is False:
        return NextStep.FAIL
    if stopping or not enough:
        return NextStep.RESUME
    if again and progress is False:
        return NextStep.FAIL
    if max_restarts and ((progress and not again) or history.tried < max_restarts):
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
    place: str = ""  # where ranks hang or one raised its error, to be compared with other rounds; empty: neither

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
        return from_json({**values, "round": self.history.round, "world_size": world_size}, Restart)


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
    needed = "" if lost.rank is None else returned_early(done, messages.rank_on(lost.rank, lost.host))
    fault = Fault(
        code=FaultCode.RETURNED_EARLY, host=done[0].host, node=done[0].node, rank=done[0].rank, exit_code=0,
        step=lost.step, accused=tuple(done), message=needed,
    )  # fmt: skip
    return replace(failure, kind=RoundEnd.RAISED, fault=fault, listens=False)


def returned_early(done: Sequence[Accused], needed_by: str) -> str:
    more = len(done) - 1
    who = messages.rank_on(done[0].rank, done[0].host) + (f" and {plural(more, 'other rank')}" if more else "")
    return f"{who} exited with code 0 while {needed_by} still needed {'them' if more else 'it'}"


def has_saved(plan: JobPlan, since: int | None) -> bool | None:
    """Returns whether a program has saved something since this time (ns); None: it is not known soon enough."""
    if not plan.program_resumes:
        return False
    if since is None:
        return None
    try:
        return user_checkpoints.newest(plan, since, plan.launch.heartbeat / 3) > since
    except OSError:
        return None


def has_checkpoint(plan: JobPlan) -> bool:
    """Returns whether the run has saved a checkpoint, or may have: that cannot be read now."""
    try:
        return bool(checkpoints.candidates(Path(plan.checkpoint.dir)))
    except checkpoints.CannotRead:
        return True


def judge(
    failure: RoundFailure, history: History, plan: JobPlan, *, stopping: bool, members: int, began: int | None = None
) -> RoundVerdict:
    """Returns the verdict on the first failure of a round; began: when the round did, in ns; None: unknown.

    It looks what the run has saved only where that decides.
    """
    max_restarts = plan.launch.max_restarts
    steps = failure.step > history.best
    counts = failure.listens and failure.kind not in (RoundEnd.NO_RETRY, RoundEnd.LEFT)
    progress = has_saved(plan, began) if counts and not steps else steps
    again = not steps and failure.place != "" and failure.place == history.place
    further = max(failure.step, history.best + 1) if progress and not again else failure.step
    ended = failure.kind is RoundEnd.LOST_NODE
    ended |= failure.kind in (RoundEnd.KILLED, RoundEnd.LOST_PEER) and stopping
    then = decide(
        failure.kind, history, progress, listens=failure.listens, stopping=stopping,
        enough=members - len(failure.lost) >= plan.least_agents, max_restarts=max_restarts, again=again,
        has_checkpoint=ended and not failure.listens and has_checkpoint(plan),
    )  # fmt: skip
    if then is NextStep.RESTART:
        history = history.after(further, counts=failure.kind is not RoundEnd.REGROUP, place=failure.place)
    elif then is NextStep.FAIL and (failure.kind is not RoundEnd.RAISED or again) and history.tried:
        why = f"{plural(history.tried, 'restart')} got no further (launch.max_restarts={max_restarts})"
        why = "after a restart they hung there again" if again and not progress else why
        message = f"{messages.of_fault(failure.fault)}; {why}"
        failure = replace(failure, fault=replace(failure.fault, message=message))
    code = then.exit_code if then is NextStep.RESUME else failure.exit_code or then.exit_code
    return RoundVerdict(failure, then, code, history)


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


# Of the failures of several ranks the one that comes first here is the cause of the others: a lost peer always follows
# from another failure. By code: the kind for the restart policy, and the place in this order.
_RANK_FAILURES = {
    FaultCode.NO_RETRY: (RoundEnd.NO_RETRY, 0),
    FaultCode.USAGE: (RoundEnd.NO_RETRY, 0),
    FaultCode.SIGNALLED: (RoundEnd.KILLED, 1),
    FaultCode.EXITED: (RoundEnd.RAISED, 2),
    FaultCode.RETURNED_EARLY: (RoundEnd.RAISED, 2),
    FaultCode.RAISED: (RoundEnd.RAISED, 2),
    FaultCode.LEFT: (RoundEnd.RAISED, 3),
    FaultCode.LOST_PEER: (RoundEnd.LOST_PEER, 4),
}
_REPORTED = {"usage": FaultCode.USAGE, "printed": FaultCode.EXITED}  # by the code of the rank's error


@dataclass(frozen=True)
class RankFailure:
    fault: Fault
    final: bool = False  # whether a retry would fail as well
    time: float = 0.0  # when the agent noticed it, in seconds since the epoch

    @property
    def kind(self) -> RoundEnd:
        return _RANK_FAILURES[self.fault.code][0]

    @property
    def rank(self) -> int:
        assert self.fault.rank is not None
        return self.fault.rank

    @property
    def place(self) -> str:
        """Where its error was raised: exception and frames of the traceback, or what it printed; empty: it was not."""
        frames = re.findall(r'^  File ".*", line \d+', self.fault.traceback or "", re.MULTILINE)
        known = "\n".join([self.fault.exception or "", *frames]) if frames else self.fault.error or ""
        return known if self.kind is RoundEnd.RAISED else ""


def failure_of(ended: WorkerExit, host: str, *, returns: bool) -> RankFailure | None:
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
    return RankFailure(fault, kind in (FaultCode.NO_RETRY, FaultCode.USAGE) or bool(error and error.final), ended.time)


def fault_of_end(left: Sequence[LeftOver], host: str) -> Fault:
    return Fault(
        code=FaultCode.STILL_THERE, rank=left[0].rank, host=host, error="; ".join(map(str, left)), signal="SIGKILL"
    )


def to_blame(failures: Sequence[RankFailure]) -> RankFailure:
    """Returns the failure that caused the others: the first by code (`_RANK_FAILURES`), then by time, then by rank."""
    return min(failures, key=lambda each: (_RANK_FAILURES[each.fault.code][1], each.time, each.rank))


def exited_to_resume(
    failed: Sequence[RankFailure], *, resumable: bool, left_first: bool, saving: bool, signalled: bool
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
        return left_first or to_blame(failed).fault.code is FaultCode.LEFT
    codes = {failure.fault.code for failure in failed}
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
