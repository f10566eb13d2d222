"""Events of faults, restarts and stops, and of how the run continues after them."""

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
from launcher.runs.events.attempts import Place
from launcher.runs.events.preflights import Finding


@dataclass(frozen=True)
class Accused(Open):
    """A node or rank that probably caused a fault.

    Attributes:
        host: name of the host; empty: unknown.
        rank: the rank; None: the whole node.
        node: number of the node in the job; None: unknown.
    """

    host: str
    rank: int | None = None
    node: int | None = None


@dataclass(frozen=True)
class HostSignal(Open):
    """A signal that the agent on a host received."""

    host: str
    signal: str


@dataclass(frozen=True, kw_only=True)
class BlockedCollective(Open):
    """A collective in which ranks wait for the accused ranks, according to NCCL's flight recorder.

    Attributes:
        sign: what the accused ranks have not done.
        operation: the collective that the waiting ranks have called (`all_reduce`).
        number: sequence number of the collective in the process group, from 1.
        group: name of the process group.
        waiting: ranks that wait in the collective (`0-3,7`).
        called: for OTHER_CALLED, the operation that the accused ranks have called instead.
    """

    sign: CollectiveSign
    operation: str
    number: int
    group: str
    waiting: str = ""
    called: str = ""


@dataclass(frozen=True, kw_only=True)
class Hang(Open):
    """Details of a hang.

    Attributes:
        sign: how the accused ranks were identified.
        collective: for HangSign.RECORDER, the collective that the accused ranks block; else None.
        slowest: number of steps that the slowest accused rank has done; -1: it reported none; None: unknown.
        stacks: folder with the stacks of all ranks; empty: there is none.
    """

    sign: HangSign = HangSign.UNKNOWN
    collective: BlockedCollective | None = None
    slowest: int | None = None
    stacks: str = ""


@dataclass(frozen=True, kw_only=True)
class StartLimit(Open):
    """Why the system did not start a process, or would not.

    Attributes:
        errno: error number of fork or exec.
        maximum: the `ulimit` of the user that this error is about; -1: unlimited; None: it is about no such limit.
        needed: what it would have to be; None: unknown.
    """

    errno: int
    maximum: int | None = None
    needed: int | None = None


@dataclass(frozen=True, kw_only=True)
class AgentCount(Open):
    """Number of agents that arrived at a rendezvous, and the number that was expected."""

    arrived: int
    expected: int


@dataclass(frozen=True, kw_only=True)
class PreflightFailure(Open):
    """Why a preflight ends the attempt.

    Attributes:
        reason: code of the reason.
        nodes: number of nodes that took part in the preflight.
        failed: number of these nodes that failed a check.
        findings: the first problems that were found.
        exclude: override for resuming the run without the bad nodes; empty: the scheduler cannot exclude nodes.
    """

    reason: PreflightReason
    nodes: int
    failed: int
    findings: tuple[Finding, ...] = ()
    exclude: str = ""


class Fault(Event):
    """Ranks failed, or could not be started. `launcher.failures.text.of_fault` turns it into text for the user.

    Fields that do not apply to the code, or are not known, have their defaults.

    Attributes:
        code: kind of the fault.
        host, node: name and number of the node where the fault happened or, if that is unknown, was reported.
        rank: rank that failed first.
        exit_code: exit code of the rank's process.
        signal: signal that ended the process, or that asked it to stop (`SIGKILL`).
        exception: name of the type of the rank's exception.
        error: message of Python, the system or a library.
        reading: path of the checkpoint that the rank was loading when its exception was raised; empty: none.
        accused: nodes or ranks that probably caused the fault; they need not be those that reported it.
        limit: config key of the timeout that expired.
        seconds: value of this timeout.
        step: number of steps that the run had done; -1: none.
        hang: details of a HANG.
        start: details of NOT_STARTED and OPEN_FILES.
        agents: details of RENDEZVOUS_TIMEOUT and TOO_FEW.
        preflight: details of PREFLIGHT.
        during: what the agent was doing when the fault happened.
        needed_by: for RETURNED_EARLY, the rank that lost its peer; None: unknown.
        then: signal that an agent received after the fault, perhaps because of it.
        back: for NODE_RETURNED, the agents that came back.
        restarts: for a fault that ends the attempt, number of previous restarts in a row without progress.
        max_restarts: for a fault that ends the attempt, the value of launch.max_restarts.
        repeated: for a fault that ends the attempt, whether the ranks hung where they had hung before the restart.
        traceback: traceback of the rank.
        memory: bytes used, bytes allowed and number of kills; see `launcher.agent.memory`.
        ends_with: exit code of the attempt; None: the fault does not end it.
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
    reading: str = ""
    accused: tuple[Accused, ...] = ()
    limit: str | None = None
    seconds: float | None = None
    step: int | None = None
    hang: Hang | None = None
    start: StartLimit | None = None
    agents: AgentCount | None = None
    preflight: PreflightFailure | None = None
    during: AgentPhase | None = None
    needed_by: Accused | None = None
    then: HostSignal | None = None
    back: tuple[Place, ...] = ()
    restarts: int = 0
    max_restarts: int | None = None
    repeated: bool = False
    traceback: str | None = None
    memory: Mapping[str, int] | None = None
    ends_with: int | None = None


class Restart(Fault):
    """The ranks are restarted inside the attempt, after the fault that the inherited fields describe.

    Attributes:
        round: number of the new round.
        world_size: world size of the previous round.
    """

    event: ClassVar[str] = "restart"
    round: int = 0
    world_size: int = 0


class SetupFailed(Event):
    """A shell line that sets up the job's environment (modules, virtual environment, user's own lines) failed.

    Attributes:
        line: number of the line among all set-up lines, from 1.
        host: name of the host on which the line ran.
        of: part of the set-up to which the line belongs.
        number: number of the line within that part, from 1.
        name: module, environment or folder that the line sets up.
        code: exit code of the line; None: unknown.
    """

    event: ClassVar[str] = "setup_failed"
    line: int
    host: str
    of: SetupPart = SetupPart.UNKNOWN
    number: int = 0
    name: str = ""
    code: int | None = None


class Stop(Event):
    """An attempt ends early, and can be resumed. `launcher.failures.text.of_stop` turns it into text for the user.

    Fields that do not apply to the reason, or are not known, have their defaults.

    Attributes:
        reason: code of the reason.
        host, rank: host and rank where the reason was noticed first.
        ranks: ranks that exited with code 75, or did not stop in time.
        signal: signal that asked the attempt to stop.
        exit_code: exit code of agents that were killed.
        step: number of steps that the run has done.
        error: message of the error that ends the attempt.
        killed_on: name of a host on which ranks were killed because they did not exit in time.
        grace: seconds that these ranks had to exit.
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
    """The process that waits for the tasks of a job received a signal to stop the attempt.

    Attributes:
        signal: name of the signal (`SIGTERM`).
        host: name of the host on which the process runs.
    """

    event: ClassVar[str] = "stop_requested"
    signal: str
    host: str


class Stopped(Event):
    """What a run has saved, recorded after an attempt that stopped early, to see whether attempts make progress.

    Attributes:
        step: number of steps done in the newest checkpoint; -1: no checkpoint; None: unknown what was saved.
        saved: for a user's program, mtime of its newest checkpoint file, or of any that this attempt saved, in ns since
            the epoch; -1: not looked for, or unknown.
        preempted: whether the scheduler was preempting the job.
    """

    event: ClassVar[str] = "stopped"
    step: int | None
    saved: int
    preempted: bool


class Continues(Event):
    """The run continues with another attempt. `launcher.failures.text.of_next` turns it into text for the user.

    Attributes:
        what: `here` (in this job) or `elsewhere` (in another job).
        reason: code of the way in which the run continues.
        job: id of the job in which the run continues; None: unknown.
    """

    event: ClassVar[str] = "continues"
    what: str
    reason: NextReason = NextReason.UNKNOWN
    job: str | None = None


class Stays(Event):
    """The run does not continue by itself. `launcher.failures.text.of_next` turns it into text for the user.

    Attributes:
        what: `stays` (it stopped as wanted, or cannot continue now) or `given_up` (no progress, or too many attempts).
        reason: code of the reason.
        step: highest number of steps that any attempt reached.
        attempts: number of attempts so far.
        scheduler: name of the scheduler.
        state: state of the job according to the scheduler.
        limit: for NO_PROGRESS, the job's wall time (config key `time`) in seconds.
        saves_in: for NO_PROGRESS of a user's program, where its checkpoint files were looked for.
        error: message of the error that prevents another attempt.
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
