"""Makes failures, with codes (launcher/failures/codes.py), of the exits of processes. Pure."""

from __future__ import annotations

import errno
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from launcher import errors
from launcher.agent.workers import LeftOver, StartError, WorkerError, WorkerExit
from launcher.failures import text
from launcher.failures.codes import FaultCode


@dataclass(frozen=True)
class Failure:
    """How one rank failed.

    Attributes:
        code: kind of failure.
        rank: global rank.
        host: its host.
        exit_code: exit code of its process; None: a signal killed it, or it did not start.
        signal: signal that killed it.
        error: exception that the rank reported.
        number: errno of a failed start.
        limit: the limit that the start exceeded (`ulimit`); -1: none.
        words: text of a failed start, or the processes that still exist.
        time: seconds since the epoch.
    """

    code: FaultCode
    rank: int
    host: str
    exit_code: int | None = None
    signal: int | None = None
    error: WorkerError | None = None
    number: int = 0
    limit: int = -1
    words: str = ""
    time: float = 0.0

    @property
    def traceback(self) -> str:
        """The traceback as Python prints it, from the user's frames on; empty: there is none."""
        return self.error.traceback if self.error else ""

    @property
    def told(self) -> dict[str, Any]:
        """What the event of it says, in JSON's types; see `launcher.runs.events.Fault`."""
        error = self.error
        said = {"exception": error.type, "error": error.line} if error else {"error": self.words or None}
        ended = {"exit_code": self.exit_code, "signal": None if self.signal is None else text.signal_name(self.signal)}
        return {
            "cause": text.of_rank(self), "code": self.code.value, "rank": self.rank, **ended, **said,
            "traceback": self.traceback or None,
        }  # fmt: skip

    @property
    def final(self) -> bool:
        """Whether a retry would fail as well."""
        return self.code is FaultCode.NO_RETRY or (self.error is not None and self.error.final)


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
    return Failure(
        kind, ended.rank, host, exit_code=code if code >= 0 else None, signal=-code if code < 0 else None, error=error,
        time=ended.time,
    )  # fmt: skip


def failure_to_start(error: StartError, host: str, time: float) -> Failure:
    """Returns the failure of a rank that could not be started."""
    limits = {errno.EAGAIN: error.processes, errno.EMFILE: error.files}
    return Failure(
        FaultCode.NOT_STARTED, error.rank, host, number=error.number, limit=limits.get(error.number, -1),
        words=error.words, time=time,
    )  # fmt: skip


def failure_to_end(left: Sequence[LeftOver], host: str, time: float) -> Failure:
    """Returns the failure of ranks of the last round whose processes still exist."""
    return Failure(
        FaultCode.STILL_THERE, left[0].rank, host, words="; ".join(map(str, left)), signal=signal.SIGKILL, time=time
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
