"""From what is known of an attempt to why it ended. Pure.

The first line that fits counts:

| what is known | the kind |
|---|---|
| the run was given up | no-progress |
| a set-up line failed | setup-failed |
| a rank raised an exception | what its last line is a sign of (`symptoms`), else exception |
| ranks did not meet, hang, or their nodes are bad, as agents say | rendezvous-timeout, hang, bad-node |
| a program left with an exit code, and its log ends with a traceback | as for an exception |
| a rank or a node ended without a word, or was told to stop | what the scheduler says of the job, or has written into |
| | its output, but no cancellation if a rank had left or crashed before; else what the kernel's counters say; else |
| | the last line of the rank's log with a symptom; else how it ended |
| no agent said anything | the same, without a rank's log; else the stop request; else the last line with a symptom |
| | of the job's output |
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field

from launcher import errors
from launcher.errors import RESUME
from launcher.failures import symptoms, text
from launcher.failures.codes import FaultCode, NextReason, StopReason
from launcher.failures.kinds import Kind
from launcher.formatting import rough_size
from launcher.monitoring.state import RunState
from launcher.runs.events import Fault, SetupFailed, Stays, Stop, StopRequested
from launcher.schedulers import notices

NEAR_LIMIT = 0.9  # part of a memory limit from which on a killed process was probably killed for it
GIVEN_UP = {NextReason.NO_PROGRESS, NextReason.MAX_ATTEMPTS}
NODE_LOST = {FaultCode.NODE_ENDED, FaultCode.NODE_SILENT, FaultCode.LEADER_LOST}
LEFT = {FaultCode.EXITED, FaultCode.RETURNED_EARLY, FaultCode.NO_RETRY, FaultCode.LEFT}
# How a task ended that could not say so itself, where nothing else tells more.
_ENDS = {FaultCode.TASK_NOT_STARTED: Kind.NEVER_STARTED, FaultCode.TASK_UNKNOWN: Kind.UNKNOWN}
# Ends that agents cannot explain.
_SILENT = NODE_LOST | LEFT | _ENDS.keys() | {FaultCode.SIGNALLED, FaultCode.LOST_PEER, FaultCode.STOPPED_EARLY}
# What a fault is that needs no further evidence, unless its error is a sign of something.
_KINDS = {
    FaultCode.HANG: Kind.HANG,
    FaultCode.NOT_JOINED: Kind.RENDEZVOUS_TIMEOUT,
    FaultCode.RENDEZVOUS_TIMEOUT: Kind.RENDEZVOUS_TIMEOUT,
    FaultCode.PREFLIGHT: Kind.BAD_NODE,
    FaultCode.STILL_THERE: Kind.BAD_NODE,
    FaultCode.REFUSED: Kind.CONFIG_ERROR,
    FaultCode.NO_FOLDER: Kind.CONFIG_ERROR,
    FaultCode.CONTAINER: Kind.CONFIG_ERROR,
    FaultCode.ARCHIVE: Kind.CONFIG_ERROR,
    FaultCode.UNREADABLE: Kind.CONFIG_ERROR,
    FaultCode.CONDITION_FAILED: Kind.NEVER_STARTED,
}
_WORDS = {
    "TIMEOUT": Kind.WALL_TIME,
    "DEADLINE": Kind.WALL_TIME,
    "PREEMPTED": Kind.PREEMPTED,
    "REQUEUED": Kind.REQUEUED,
    "NODE_FAIL": Kind.NODE_LOST,
    "BOOT_FAIL": Kind.NODE_LOST,
    "OUT_OF_MEMORY": Kind.OUT_OF_MEMORY,
    "CANCELLED": Kind.CANCELLED,
}
# How a rank ends when its job is cancelled: by one of these signals, or as a shell tells of it.
_CANCELS = {"SIGTERM", "SIGKILL", "SIGINT"}
_CANCELLED = {128 + signal.Signals[name] for name in _CANCELS}
TELLING = {*_WORDS} - {"CANCELLED"}  # for an end that no rank can know of


@dataclass(frozen=True)
class Codes:
    """What agents, ranks and the script told of an end.

    Attributes:
        fault: what failed first.
        stop: why it stopped early.
        stays: why the run does not go on by itself.
    """

    fault: FaultCode | None = None
    stop: StopReason | None = None
    stays: NextReason | None = None

    def as_dict(self) -> dict[str, str | None]:
        """For programs."""
        return {
            "code": self.fault.value if self.fault else None, "stop": self.stop.value if self.stop else None,
            "stays": self.stays.value if self.stays else None,
        }  # fmt: skip


@dataclass(frozen=True)
class Evidence:
    """What is known of one attempt; everything but the state may be missing.

    Attributes:
        state: of the run, for its last attempt; of an earlier one, STOPPED if it was gone on from, else UNKNOWN.
        fault, stop, stays: the first event `fault` or `setup_failed`, the last `stop` and `stays`.
        request: the event `stop_requested`: the signal by which the attempt was asked to end, and the host that got it.
        ended: its exit code.
        begun: it has started.
        scheduler: the scheduler's title.
        word: its word on the job, with its reason (`TIMEOUT`, `FAILED (NonZeroExitCode)`).
        signal: number of the signal that ended the job, if the scheduler says so.
        notices: what it wrote into the output.
        log: last lines of the failed rank's log.
        output: last lines of the job's output.
        cluster, setup: the profile's name, and the text of its set-up line that failed.
        cancelled: `launcher cancel` was called for it.
        preempted: its scheduler had begun to preempt its job when it stopped.
        memory: bytes that were used and allowed, and kills, as `launcher.agent.memory` tells them; `used` and `limit`
            as the scheduler does.
    """

    state: RunState
    fault: Fault | SetupFailed | None = None
    stop: Stop | None = None
    stays: Stays | None = None
    request: StopRequested | None = None
    ended: int | None = None
    begun: bool = True
    scheduler: str = ""
    word: str = ""
    signal: int | None = None
    notices: tuple[notices.Notice, ...] = ()
    log: tuple[str, ...] = ()
    output: tuple[str, ...] = ()
    cluster: str = ""
    setup: str = ""
    cancelled: bool = False
    preempted: bool = False
    memory: Mapping[str, int] = field(default_factory=dict)

    @property
    def codes(self) -> Codes:
        """What is known, for programs."""
        return Codes(
            self.fault.code if isinstance(self.fault, Fault) else None,
            self.stop.reason if self.stop else None,
            self.stays.reason if self.stays else None,
        )

    @property
    def silent(self) -> bool:
        """Whether what agents have told does not explain the end."""
        if not isinstance(self.fault, Fault):
            return self.fault is None
        if symptoms.lost_peer(self.fault.error or ""):  # somebody else was gone before
            return True
        return self.fault.code in _SILENT and not self.fault.traceback

    @property
    def said(self) -> str:
        """What the scheduler says of the job's end, in one word."""
        word = self.word.partition(" ")[0]
        return word if word in TELLING else notices.main_state(self.notices) or (word if word in _WORDS else "")

    @property
    def by_itself(self) -> bool:
        """Whether the rank that failed first left with an exit code, or crashed: nobody had cancelled it."""
        fault = self.fault
        if not isinstance(fault, Fault) or fault.rank is None:
            return False
        if fault.exit_code is None:
            return fault.signal is not None and fault.signal not in _CANCELS
        return fault.exit_code not in _CANCELLED


@dataclass(frozen=True)
class Verdict:
    """Why an attempt ended.

    Attributes:
        kind: one of a closed list.
        cause: in a line, as all commands tell it; None: there is nothing to tell.
        sign: the line of a log or of an output by which it was recognised; empty: it is in the cause.
        sure: else it is the most probable one.
    """

    kind: Kind
    cause: str | None
    sign: str = ""
    sure: bool = True


def classify(seen: Evidence) -> Verdict:
    """The kind and the cause, by the table above."""
    if seen.stays is not None and seen.stays.reason in GIVEN_UP:
        return Verdict(Kind.NO_PROGRESS, f"given up: {seen.stays.why}")
    if seen.state is RunState.DONE:
        return Verdict(Kind.DONE, None)
    if seen.state is RunState.STOPPED and seen.stop is not None:
        return _stopped(seen, seen.stop)
    if seen.fault is None:
        return _without_fault(seen)
    if isinstance(seen.fault, SetupFailed):
        what = text.of_setup_line(seen.fault.of, seen.fault.number, seen.fault.name, f"cluster={seen.cluster}")
        where = f"{what} failed on {seen.fault.host}"
        return Verdict(Kind.SETUP_FAILED, f"{where}: {seen.setup}")
    return _fault(seen, seen.fault)


def _fault(seen: Evidence, fault: Fault) -> Verdict:
    """What agents have told of a fault."""
    said, told = seen.said, fault.cause.rstrip(" :")
    cause = f"{told}; {seen.scheduler} says {said}" if said in TELLING and seen.silent else told
    if not seen.silent:
        if fault.code is FaultCode.UNREADABLE and fault.ends_with == RESUME:  # a file server that does not answer
            return Verdict(Kind.STOPPED, cause)
        return Verdict(
            symptoms.kind_of(fault.error or "", fault.exception) or _KINDS.get(fault.code, Kind.EXCEPTION), cause
        )
    if said in _WORDS and not (said == "CANCELLED" and seen.by_itself):
        return Verdict(_WORDS[said], cause)
    if seen.cancelled:
        return Verdict(Kind.CANCELLED, cause)
    killed = fault.code is FaultCode.SIGNALLED and fault.signal == "SIGKILL"
    if (by_kernel := _killed_for_memory(seen.memory)) and killed:
        return Verdict(Kind.OUT_OF_MEMORY, f"{cause}; {by_kernel[0]}", sure=by_kernel[1])
    error = symptoms.last_error("\n".join(seen.log)) if fault.code in LEFT else ""
    if error:  # a program of its own, whose exception no agent has seen
        return Verdict(symptoms.kind_of(error) or Kind.EXCEPTION, f"{cause}: {error}", sign=error)
    if found := symptoms.last_symptom(seen.log):
        return Verdict(found[0], cause, sign=found[1])
    return _by_end(seen, fault, cause)


def _by_end(seen: Evidence, fault: Fault, cause: str) -> Verdict:
    """How it ended is all that is known."""
    if fault.code in _ENDS:
        return Verdict(_ENDS[fault.code], cause, sure=False)
    if fault.code in NODE_LOST:
        return Verdict(Kind.NODE_LOST, cause, sure=False)
    if fault.code is FaultCode.SIGNALLED:
        if fault.signal == "SIGBUS":
            return Verdict(Kind.SHARED_MEMORY, cause, sure=False)
        return Verdict(Kind.KILLED, cause, sure=fault.signal not in (None, "SIGKILL"))
    if fault.code is FaultCode.LOST_PEER or symptoms.lost_peer(fault.error or ""):
        return Verdict(symptoms.kind_of(fault.error or "", fault.exception) or Kind.CONNECTION_LOST, cause, sure=False)
    if fault.code is FaultCode.STOPPED_EARLY:
        return Verdict(Kind.CANCELLED if seen.state is RunState.CANCELLED else Kind.STOPPED, cause, sure=False)
    if fault.code is FaultCode.NO_RETRY:
        return Verdict(Kind.CONFIG_ERROR, cause)
    return Verdict(Kind.EXITED, cause)


def _killed_for_memory(memory: Mapping[str, int]) -> tuple[str, bool] | None:
    """Whether a process that was killed was killed for lack of memory, in words; and whether that is sure."""
    if memory.get("kills"):
        return "the kernel killed for lack of memory in its cgroup", True
    if memory.get("host_kills"):
        return "the kernel killed for lack of memory on that host", False
    most, limit = max(memory.get("largest", 0), memory.get("peak", 0), memory.get("used", 0)), memory.get("limit", 0)
    if limit and most >= NEAR_LIMIT * limit:
        return f"it had {rough_size(most)} of {rough_size(limit)} memory", False
    return None


def _stopped(seen: Evidence, stop: Stop) -> Verdict:
    """The ranks have saved and left, or the script found that they were all killed."""
    stays = seen.stays
    at = f" at step {stop.step}" if stop.step is not None else ""
    cause = f"{stop.cause}{at}" + (f"; {stays.why}" if stays and stays.why != stop.cause else "")
    if stop.reason in (StopReason.TIME_LIMIT, StopReason.WARNING_SIGNAL):
        return Verdict(Kind.WALL_TIME, cause)
    if stop.reason is StopReason.STOP_FILE:
        return Verdict(Kind.STOPPED, cause)
    if seen.preempted:
        return Verdict(Kind.PREEMPTED, cause)
    if seen.said in _WORDS:
        return Verdict(_WORDS[seen.said], cause)
    if seen.cancelled:
        return Verdict(Kind.CANCELLED, cause)
    if stop.reason is StopReason.KILLED and seen.request is None:
        return Verdict(Kind.KILLED, cause, sure=False)
    if stays is not None and stays.state == "PREEMPTED":
        return Verdict(Kind.PREEMPTED, cause)
    return Verdict(Kind.STOPPED, cause)


def _without_fault(seen: Evidence) -> Verdict:
    """No agent has said anything: they were killed, or there never were any."""
    said, kind = seen.said, _WORDS.get(seen.said)
    last = next((line.strip() for line in reversed(seen.output) if line.strip()), "")
    code = f" (exit code {seen.ended})" if seen.ended is not None else ""
    request = text.asked_to_stop(seen.request.host, seen.request.signal) if seen.request else ""
    named = f"{seen.scheduler} says {said}" if said in TELLING else seen.word or said
    found = symptoms.last_symptom(seen.output) if kind is None else None
    sign = found[1] if found else ""
    if seen.state is RunState.FAILED:
        heard = f"its last words: {sign or last}" if (sign or last) and said not in _WORDS and not request else ""
        words = [f"{request or 'no rank said why'}{code}", named, heard]
        cause: str | None = "; ".join(word for word in words if word)
    elif seen.cancelled and seen.state is RunState.CANCELLED and said not in TELLING:
        at = f" at step {seen.stop.step}" if seen.stop and seen.stop.step is not None else ""
        cause = f"it was cancelled{at}" if seen.begun else "it was cancelled before it began"
    else:
        cause = "; ".join(word for word in (request, named) if word) or None
    cancelled = seen.cancelled, seen.state is RunState.CANCELLED
    if all(cancelled) or (kind is None and any(cancelled)):  # Slurm may cancel what has too much memory
        return Verdict(Kind.CANCELLED, cause)
    if kind is not None:
        return Verdict(kind, cause)
    if not seen.begun:
        return Verdict(Kind.NEVER_STARTED, cause)
    if seen.request is not None:
        return Verdict(Kind.STOPPED, cause, sure=False)
    if seen.state is RunState.FAILED and found:
        return Verdict(found[0], cause, sign=sign, sure=False)
    if seen.ended == errors.NO_RETRY:
        return Verdict(Kind.CONFIG_ERROR, cause, sure=False)
    if seen.state is RunState.STOPPED:
        return Verdict(Kind.STOPPED, cause)
    if (seen.ended is not None and seen.ended > 128) or seen.signal is not None:
        return Verdict(Kind.KILLED, cause, sure=False)
    return Verdict(Kind.LOST if seen.state in (RunState.LOST, RunState.UNKNOWN) else Kind.UNKNOWN, cause, sure=False)
