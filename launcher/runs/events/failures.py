"""Events of failures and stops, and of what follows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from launcher.failures.codes import (
    AgentPhase,
    CollectiveSign,
    FaultCode,
    HangSign,
    NextReason,
    PreflightReason,
    SetupPart,
    StopReason,
)
from launcher.runs.event_json import Event, Open
from launcher.runs.events.attempts import Finding, Place


@dataclass(frozen=True)
class Accused(Open):
    """The node, or one of its ranks, that probably caused a fault.

    Attributes:
        host: name of the host; empty: unknown.
        rank: the rank; None: the whole node.
        node: number of the node in the job, if known.
    """

    host: str
    rank: int | None = None
    node: int | None = None


@dataclass(frozen=True)
class HostSignal(Open):
    """A signal that the agent on a host got."""

    host: str
    signal: str


@dataclass(frozen=True, kw_only=True)
class BlockedCollective(Open):
    """A collective that ranks block, as NCCL's flight recorder shows it.

    Attributes:
        sign: what these ranks have not done.
        operation: the collective that the other ranks have called (`all_reduce`).
        number: its number in the process group, from 1.
        group: name of the process group.
        waiting: ranks that wait in it (`0-3,7`).
        called: for OTHER_CALLED, the operation that these ranks have called.
    """

    sign: CollectiveSign
    operation: str
    number: int
    group: str
    waiting: str = ""
    called: str = ""


@dataclass(frozen=True, kw_only=True)
class Hang(Open):
    """What is known of a hang.

    Attributes:
        sign: by what the accused ranks were found.
        collective: for HangSign.RECORDER, the collective that they block.
        slowest: steps that the slowest of them has done; -1: none.
        stacks: folder with the stacks of all ranks.
    """

    sign: HangSign = HangSign.UNKNOWN
    collective: BlockedCollective | None = None
    slowest: int | None = None
    stacks: str = ""


@dataclass(frozen=True, kw_only=True)
class StartLimit(Open):
    """Why the system did not start a process.

    Attributes:
        errno: the error number.
        maximum: the limit (`ulimit`) that was exceeded; -1: unlimited; None: it is none of the user's limits.
    """

    errno: int
    maximum: int | None = None


@dataclass(frozen=True, kw_only=True)
class AgentCount(Open):
    """Number of agents that took part in a rendezvous, and number that was needed."""

    arrived: int
    expected: int


@dataclass(frozen=True, kw_only=True)
class PreflightFailure(Open):
    """Why a preflight ends the attempt.

    Attributes:
        reason: code of the reason.
        nodes: number of nodes that took part.
        failed: number of these that failed a check.
        findings: the first problems.
        exclude: override with which the run can be resumed without the bad nodes; empty: the scheduler has none.
    """

    reason: PreflightReason
    nodes: int
    failed: int
    findings: tuple[Finding, ...] = ()
    exclude: str = ""


class Fault(Event):
    """Ranks failed, or could not be started. `launcher.failures.text.of_fault` describes it to people.

    Attributes:
        code: kind of the fault.
        host, node: where it happened; if that is unknown, where it was reported.
        rank: rank that failed first.
        exit_code: exit code of its process.
        signal: signal that ended it, or that asked it to stop (`SIGKILL`).
        exception: type of its exception.
        error: message of Python, the system or a library.
        accused: probable culprits, if known; these need not be the ranks that reported the fault.
        limit: the key of the timeout that expired.
        seconds: that timeout.
        step: steps of the run that were done; -1: none.
        hang, start, agents, preflight: details, for HANG, NOT_STARTED, RENDEZVOUS_TIMEOUT and TOO_FEW, PREFLIGHT.
        during: what the agent was doing.
        then: signal that an agent got after the fault, and that may be a consequence of it.
        back: for NODE_RETURNED, the agents that came back.
        restarts, max_restarts: for a fault that ends the attempt, number of restarts in a row without progress before
            it, and launch.max_restarts.
        traceback: traceback of the rank.
        memory: bytes used, bytes allowed and the count of kills; see `launcher.agent.memory`.
        ends_with: exit code of the attempt, if the fault ends it.
    """

    event: ClassVar[str] = "fault"
    code: FaultCode = FaultCode.UNKNOWN
    host: str = ""
    node: int | None = None
    rank: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    exception: str | None = None
    error: str | None = None
    accused: tuple[Accused, ...] = ()
    limit: str | None = None
    seconds: float | None = None
    step: int | None = None
    hang: Hang | None = None
    start: StartLimit | None = None
    agents: AgentCount | None = None
    preflight: PreflightFailure | None = None
    during: AgentPhase | None = None
    then: HostSignal | None = None
    back: tuple[Place, ...] = ()
    restarts: int = 0
    max_restarts: int | None = None
    traceback: str | None = None
    memory: Mapping[str, int] | None = None
    ends_with: int | None = None


class Restart(Fault):
    """The ranks are restarted in place after a fault.

    Attributes:
        round: number of the new round.
        world_size: world size of the round before.
    """

    event: ClassVar[str] = "restart"
    round: int = 0
    world_size: int = 0


class SetupFailed(Event):
    """A set-up line failed.

    Attributes:
        line: number of the line among all set-up lines, from 1.
        host: where it ran.
        of: part of the set-up that it belongs to.
        number: number of the line within that part, from 1.
        name: module, environment or folder that the line is about.
        code: exit code of the line.
    """

    event: ClassVar[str] = "setup_failed"
    line: int
    host: str
    of: SetupPart = SetupPart.UNKNOWN
    number: int = 0
    name: str = ""
    code: int | None = None


class Stop(Event):
    """An attempt ends early, and can be resumed. `launcher.failures.text.of_stop` describes it to people.

    Attributes:
        reason: code of the reason.
        host, rank: where the stop was noticed first, if known.
        ranks: ranks that exited with 75, or did not stop in time.
        signal: signal that asked the attempt to stop.
        exit_code: exit code of agents that were killed.
        step: steps of the run that are done.
        error: message of the error that ends it.
        killed_on, grace: host of ranks that did not exit in time, and the seconds that they had; they were killed.
    """

    event: ClassVar[str] = "stop"
    reason: StopReason = StopReason.UNKNOWN
    host: str = ""
    rank: int | None = None
    ranks: tuple[int, ...] = ()
    signal: str | None = None
    exit_code: int | None = None
    step: int | None = None
    error: str | None = None
    killed_on: str | None = None
    grace: float | None = None


class StopRequested(Event):
    """The process that waits for the tasks of a job received this signal."""

    event: ClassVar[str] = "stop_requested"
    signal: str
    host: str


class Stopped(Event):
    """The saved state of a run after an attempt that stopped early.

    Attributes:
        step: steps that a checkpoint contains; -1: none; None: unknown.
        saved: for programs, when the newest file was written (ns since the epoch); -1: not looked for.
        preempted: whether the scheduler had begun to preempt the job.
    """

    event: ClassVar[str] = "stopped"
    step: int | None
    saved: int
    preempted: bool


class Continues(Event):
    """The run continues with another attempt. `launcher.failures.text.of_next` describes it to people.

    Attributes:
        what: here (in this job) or elsewhere.
        reason: code of the way it continues.
        job: id of the job in which it continues, if known.
    """

    event: ClassVar[str] = "continues"
    what: str
    reason: NextReason = NextReason.UNKNOWN
    job: str | None = None


class Stays(Event):
    """The run stays stopped, or is given up. `launcher.failures.text.of_next` describes it to people.

    Attributes:
        what: stays, or given_up.
        reason: code of the reason.
        step: the most steps that any attempt reached.
        attempts: number of attempts so far.
        scheduler, state: name of the scheduler, and the state that it shows for the job.
        limit: for NO_PROGRESS, the key `time` in seconds.
        saves_in: for NO_PROGRESS of a program, where its saves were looked for.
        error: message of the error because of which it does not continue.
    """

    event: ClassVar[str] = "stays"
    what: str
    reason: NextReason = NextReason.UNKNOWN
    step: int | None = None
    attempts: int | None = None
    scheduler: str | None = None
    state: str | None = None
    limit: int | None = None
    saves_in: str | None = None
    error: str | None = None
