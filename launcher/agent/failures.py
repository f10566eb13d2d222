"""How ranks fail: a closed list of codes, what belongs to each, and the text that a user reads at the end. Pure."""

from __future__ import annotations

import errno
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from launcher import errors
from launcher.agent.workers import LeftOver, StartError, WorkerError, WorkerExit


class FailureCode(str, Enum):
    """What happened to a rank. Programs read this, and never the text."""

    RAISED = "raised"  # an exception, or sys.exit with words
    LOST_PEER = "lost peer"  # an exception, because another rank was gone
    KILLED = "killed"  # by a signal
    EXITED = "exited"  # with an exit code of its own, without a word
    RETURNED_EARLY = "returned early"  # exit code 0 before its work was done (os._exit(0))
    LEFT = "left"  # exit code 75: it has saved, and can be resumed
    NO_RETRY = "no retry"  # exit code 93
    NOT_STARTED = (
        "not started"  # the kernel had no process, memory or descriptor for it, or its files cannot be written
    )
    STILL_THERE = "still there"  # it was killed, and its process is not gone


@dataclass(frozen=True)
class Failure:
    """How one rank failed.

    Attributes:
        code: what happened.
        rank: its number in the job.
        host: its node.
        exit_code: of its process, if it has ended by itself.
        signal: that killed it.
        error: in its own words.
        number: what the kernel said when it was started (errno).
        limit: the limit that this was about (`ulimit`); -1: none.
        words: what the kernel said, as text, or which processes are still there.
        time: seconds since the epoch.
    """

    code: FailureCode
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
        """As Python prints it, from the user's own frames on; empty: there is none."""
        return self.error.traceback if self.error else ""

    @property
    def final(self) -> bool:
        """Whether it would fail again, wherever the work is taken up."""
        return self.code is FailureCode.NO_RETRY or (self.error is not None and self.error.final)


def failure_of(ended: WorkerExit, host: str, *, returns: bool) -> Failure | None:
    """What an exit was; None: the rank has done its work. The first line that fits counts.

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
        host: of the rank.
        returns: the rank is to report metrics; a program that took its place is done with exit code 0.
    """
    code, error = ended.code, ended.error
    if code == errors.DONE and (ended.returned is not None or not returns):
        return None
    if code == errors.RESUME:
        kind = FailureCode.LEFT
    elif code == errors.NO_RETRY:
        kind = FailureCode.NO_RETRY
    elif error is not None:
        kind = FailureCode.LOST_PEER if error.lost_peer else FailureCode.RAISED
    elif code == errors.DONE:
        kind = FailureCode.RETURNED_EARLY
    else:
        kind = FailureCode.KILLED if code < 0 else FailureCode.EXITED
    return Failure(
        kind, ended.rank, host, exit_code=code if code >= 0 else None, signal=-code if code < 0 else None, error=error,
        time=ended.time,
    )  # fmt: skip


def failure_to_start(error: StartError, host: str, time: float) -> Failure:
    """A rank for which the kernel had nothing to give."""
    limits = {errno.EAGAIN: error.processes, errno.EMFILE: error.files}
    return Failure(
        FailureCode.NOT_STARTED, error.rank, host, number=error.number, limit=limits.get(error.number, -1),
        words=error.words, time=time,
    )  # fmt: skip


def failure_to_end(left: Sequence[LeftOver], host: str, time: float) -> Failure:
    """Ranks of the round before that are not gone."""
    return Failure(
        FailureCode.STILL_THERE, left[0].rank, host, words="; ".join(map(str, left)), signal=signal.SIGKILL, time=time
    )


# Of several failures that are seen at once: an error may have come of a death, and a lost peer always has.
_BLAME = {
    FailureCode.NO_RETRY: 0,
    FailureCode.NOT_STARTED: 1,
    FailureCode.STILL_THERE: 1,
    FailureCode.KILLED: 2,
    FailureCode.EXITED: 3,
    FailureCode.RETURNED_EARLY: 3,
    FailureCode.RAISED: 3,
    FailureCode.LEFT: 4,
    FailureCode.LOST_PEER: 5,
}


def to_blame(failures: Sequence[Failure]) -> Failure:
    """The failure that the others followed from: the first by kind, then by time, then by rank."""
    return min(failures, key=lambda each: (_BLAME[each.code], each.time, each.rank))


def describe(failure: Failure) -> str:
    """A failure in one line, for a person. Nothing else makes text of one."""
    who = f"rank {failure.rank} on {failure.host}"
    if failure.code is FailureCode.NOT_STARTED:
        return f"{who} cannot be started: {_why_not_started(failure)}"
    if failure.code is FailureCode.STILL_THERE:
        return (
            f"on {failure.host} ranks of the round before were killed and are still there: {failure.words}; what they "
            "hold (GPUs, memory, ports) is not free. Look for a file server or a driver that hangs on this node"
        )
    if failure.code is FailureCode.RETURNED_EARLY:
        return f"{who} exited with code 0 before its work was done"
    if failure.code is FailureCode.LEFT:
        return f"{who} left with exit code {failure.exit_code}"
    if failure.code is FailureCode.LOST_PEER and failure.error is not None:
        return f"{who} lost another rank ({failure.error.line})"
    return f"{who}: {failure.error.line if failure.error is not None else _how_it_ended(failure)}"


def _how_it_ended(failure: Failure) -> str:
    if failure.signal is None:
        return f"exited with code {failure.exit_code}"
    try:
        return f"killed by {signal.Signals(failure.signal).name}"
    except ValueError:  # a real-time signal has no name
        return f"killed by signal {failure.signal}"


def _why_not_started(failure: Failure) -> str:
    now = "unlimited" if failure.limit < 0 else str(failure.limit)
    fix = {
        errno.EAGAIN: f"no more processes are allowed here: raise `ulimit -u` (now {now}) or the job's pids limit, "
                      "or have fewer ranks (procs_per_node) and data loader workers",
        errno.ENOMEM: "there is no memory for one more process: ask for more, or have fewer ranks (procs_per_node)",
        errno.EMFILE: f"the agent may open no more files: raise `ulimit -n` (now {now}), for instance in cluster.setup",
        errno.ENFILE: "the node has no more files to open (sysctl fs.file-max): other processes on it hold them",
    }.get(failure.number)  # fmt: skip
    return f"{failure.words}; {fix}" if fix else failure.words
