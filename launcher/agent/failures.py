"""Makes failures, with codes (launcher/failures/codes.py), of the exits of processes. Pure."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass

from launcher import errors
from launcher.agent.workers import LeftOver, StartError, WorkerExit
from launcher.failures import text
from launcher.failures.codes import FaultCode
from launcher.runs.events import Fault


@dataclass(frozen=True)
class Failure:
    """How one rank failed.

    Attributes:
        fault: its description.
        final: whether a retry would fail as well.
        time: when the agent noticed it, in seconds since the epoch.
    """

    fault: Fault
    final: bool = False
    time: float = 0.0

    @property
    def code(self) -> FaultCode:
        return self.fault.code

    @property
    def rank(self) -> int:
        assert self.fault.rank is not None
        return self.fault.rank


def failure_of(ended: WorkerExit, host: str, *, returns: bool) -> Failure | None:
    """Returns the failure that an exit shows; None: the rank has done its work. The first line that matches counts.

    | exit code | report | failure |
    |---|---|---|
    | 0 | metrics, or the rank is a program, which reports none | none |
    | 0 | an error | raised, or lost peer |
    | 0 | none | returned early |
    | 75 | any | left |
    | 93 | any | no retry |
    | any other, or a signal | an error | raised, or lost peer: what came after it does not matter |
    | a signal | none, or metrics | killed |
    | any other | none, or metrics | exited |

    Args:
        ended: the exit.
        host: host of the rank.
        returns: whether the rank has to report metrics; a user's program only has to exit with 0.
    """
    code, error = ended.code, ended.error
    if code == errors.DONE and (ended.returned is not None or not returns):
        return None
    if code == errors.RESUME:
        kind = FaultCode.LEFT
    elif code == errors.NO_RETRY:
        kind = FaultCode.NO_RETRY
    elif error is not None:
        kind = FaultCode.LOST_PEER if error.lost_peer else FaultCode.RAISED
    elif code == errors.DONE:
        kind = FaultCode.RETURNED_EARLY
    else:
        kind = FaultCode.SIGNALLED if code < 0 else FaultCode.EXITED
    fault = Fault(
        code=kind, rank=ended.rank, host=host, exit_code=code if code >= 0 else None,
        signal=text.signal_name(-code) if code < 0 else None, exception=error.type if error else None,
        error=error.line if error else None, traceback=(error.traceback or None) if error else None,
    )  # fmt: skip
    return Failure(fault, kind is FaultCode.NO_RETRY or (error is not None and error.final), ended.time)


def fault_of_start(error: StartError, host: str) -> Fault:
    """Returns the fault of a rank that could not be started."""
    limits = {errno.EAGAIN: error.processes, errno.EMFILE: error.files}
    return Fault(
        code=FaultCode.NOT_STARTED, rank=error.rank, host=host, error=error.words, errno=error.number,
        maximum=limits.get(error.number),
    )  # fmt: skip


def fault_of_end(left: Sequence[LeftOver], host: str) -> Fault:
    """Returns the fault of ranks of the last round whose processes still exist."""
    return Fault(
        code=FaultCode.STILL_THERE, rank=left[0].rank, host=host, error="; ".join(map(str, left)), signal="SIGKILL"
    )


# Of failures at the same time the lowest number is the cause: an exception may follow from the death of another rank,
# and a lost peer always does.
_BLAME = {
    FaultCode.NO_RETRY: 0,
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
    """Returns the failure that caused the others: the first by kind, then by time, then by rank."""
    return min(failures, key=lambda each: (_BLAME[each.code], each.time, each.rank))
