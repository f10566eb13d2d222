"""How a round or an attempt of this agent ends, and what it reports of a failure."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from launcher import errors
from launcher.agent.control import NobodyLeads, Overtaken
from launcher.agent.policy import History, RoundEnd, describe
from launcher.agent.workers import LeftOver, StartError, WorkerExit
from launcher.failures import text
from launcher.failures.codes import FaultCode, StopReason
from launcher.files.shared_files import is_transient
from launcher.rendezvous.rounds import LeaderLost, Member
from launcher.runs.events import Accused, Fault, Stop


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
        signal=text.signal_name(-code) if code < 0 else None,
    )  # fmt: skip
    if error is not None:
        fault = replace(
            fault, exception=error.type or None, error=error.line, reading=error.reading,
            traceback=error.traceback or None,
        )  # fmt: skip
    return Failure(fault, kind in (FaultCode.NO_RETRY, FaultCode.USAGE) or bool(error and error.final), ended.time)


def fault_of_start(error: StartError, host: str) -> Fault:
    processes, files = ("unlimited" if each < 0 else str(each) for each in (error.processes, error.files))
    fix = {
        errno.EAGAIN: f"no more processes are allowed here: raise `ulimit -u` (now {processes}) or the job's pids "
                      "limit, or have fewer ranks (procs_per_node) and data loader workers",
        errno.ENOMEM: "there is no memory for one more process: ask for more, or have fewer ranks (procs_per_node)",
        errno.EMFILE: f"the agent may open no more files: raise `ulimit -n` (now {files}), for instance in "
                      "cluster.setup",
        errno.ENFILE: "the node has no more files to open (sysctl fs.file-max): other processes on it hold them",
    }.get(error.number)  # fmt: skip
    message = f"{text.rank_on(error.rank, host)} cannot be started: {error.message}" + (f"; {fix}" if fix else "")
    return Fault(code=FaultCode.NOT_STARTED, rank=error.rank, host=host, error=error.message, message=message)


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
    name = text.signal_name(ended_by)
    then = text.of_request(asked.host, asked.signal or name) if asked else ""
    return replace(fault, code=FaultCode.NODE_ENDED, signal=name, message=text.node_ended([leader.host], then=then))


def failed_by(error: Exception, host: str) -> AttemptFailed:
    """Returns how the attempt ends after an error that stops an agent.

    If it is transient, or the leader was lost, it can be resumed; a damaged run directory would make it fail again.
    """
    lost = isinstance(error, (LeaderLost, Overtaken, NobodyLeads))
    unreadable = isinstance(error, errors.RunError)
    exit_code = errors.NO_RETRY if unreadable else errors.FAILED
    if is_transient(error) or lost:
        exit_code = errors.RESUME
    code = FaultCode.UNREADABLE if unreadable else FaultCode.LEADER_LOST if lost else FaultCode.AGENT
    fault = Fault(code=code, host=host, error=str(error), ends_with=exit_code)
    return AttemptFailed(fault, exit_code, decides=not isinstance(error, NobodyLeads))
