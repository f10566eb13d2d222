"""The kinds of events, one dataclass each. Files are written from these classes, and checked against them when read.

An event is invalid if a required field is missing or has another type (`event_file.problems`). Unknown fields, codes
and kinds, of a newer version, are valid. Code that reads many events uses the dicts (`progress`, `pace`); code that
acts on a single one uses its class (`every`, `first`, `last`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from launcher.binding.node import Unbound
from launcher.failures.codes import (
    AgentPhase,
    CollectiveSign,
    FaultCode,
    HangSign,
    NextReason,
    PreflightReason,
    PreflightThen,
    SetupPart,
    StopReason,
)
from launcher.runs.event_json import Event, Open, from_entry

# -- the journal of a run, and of a sweep


class Submitting(Event):
    """A job is about to be submitted.

    Attributes:
        token: by which the scheduler can find the job.
        points: the points of a sweep that are the elements of this array (`0-3,7`).
    """

    event: ClassVar[str] = "submitting"
    token: str
    points: str | None = None


class Submitted(Event):
    """The scheduler has accepted a job.

    Attributes:
        job: id of the job.
        chain: ids of the jobs that follow it.
        token: token of the array; None for single jobs.
    """

    event: ClassVar[str] = "submitted"
    job: str
    chain: tuple[str, ...] = ()
    token: str | None = None


class Refused(Event):
    """The scheduler has refused an array.

    Attributes:
        token: token of the array.
        error: the scheduler's message; None: the submitter was killed, and there is no job.
    """

    event: ClassVar[str] = "refused"
    token: str
    error: str | None = None


class ProcessStarted(Event):
    """The run's script was started on this machine; see `launcher.processes.groups.Process`."""

    event: ClassVar[str] = "process"
    pid: int
    start: int
    host: str


class Cancelled(Event):
    """The run was cancelled: its job is to end, and no other one may continue it.

    Attributes:
        by: the user.
        host: where the command ran.
    """

    event: ClassVar[str] = "cancelled"
    by: str = ""
    host: str = ""


class CancelFailed(Event):
    """The scheduler did not end the job, so the run is not cancelled.

    Attributes:
        error: the scheduler's message.
    """

    event: ClassVar[str] = "cancel_failed"
    error: str = ""


class Pruned(Event):
    """The search of the point's sweep has decided to end it: others are ahead.

    Attributes:
        step: steps that it had done; None: unknown.
    """

    event: ClassVar[str] = "pruned"
    step: int | None = None


# -- the journal of a slot manager, which runs points of a packed sweep; for statistics, since claims are the truth


class ManagerBegan(Event):
    """A slot manager begins.

    Attributes:
        host: its node.
        job: id of its pilot's job.
        slots: points that it runs at once; 0: its node follows the first one of its group.
        pid, start, namespace: its process, see `launcher.processes.groups.Process`, and the namespace of its id.
    """

    event: ClassVar[str] = "manager_began"
    host: str
    job: str
    slots: int
    pid: int
    start: int
    namespace: str


class PointBegan(Event):
    """A slot manager has claimed a point, and starts it.

    Attributes:
        point: its number.
        slot: the slot that it runs in.
        attempt: number of the attempt; None: written by a version for points of one node.
    """

    event: ClassVar[str] = "point_began"
    point: int
    slot: int
    attempt: int | None = None


class PointEnded(Event):
    """A point's process has ended.

    Attributes:
        point: its number.
        slot: the slot that it ran in.
        code: its exit code; negative: the signal that killed it.
        kind: the entry of its log (launcher.runs.claims.Kind).
    """

    event: ClassVar[str] = "point_ended"
    point: int
    slot: int
    code: int
    kind: str


class PartEnded(Event):
    """The part of a point that ran on another node than the first of its group has ended.

    Attributes:
        point, attempt: their numbers.
        code: its exit code; negative: the signal that killed it.
    """

    event: ClassVar[str] = "part_ended"
    point: int
    attempt: int
    code: int


class GroupBroken(Event):
    """A slot manager takes no more points, since other nodes that they need are lost.

    Attributes:
        lost: the hosts.
    """

    event: ClassVar[str] = "group_broken"
    lost: tuple[str, ...]


class NodeLeftOut(Event):
    """A slot manager takes no more points, since several have failed on its node.

    Attributes:
        points: those.
    """

    event: ClassVar[str] = "node_left_out"
    points: tuple[int, ...]


class ManagerIdle(Event):
    """A slot manager has found no point, and ends unless one was freed in this moment."""

    event: ClassVar[str] = "manager_idle"


class ManagerEnded(Event):
    """A slot manager has ended, and will write nothing more."""

    event: ClassVar[str] = "manager_ended"


# -- an attempt


class Started(Event):
    """The job's script begins an attempt.

    Attributes:
        job: id of the job.
        host: where the script runs.
        output: bytes that earlier attempts of this job have printed.
    """

    event: ClassVar[str] = "started"
    job: str
    host: str = ""
    output: int = 0


class Ended(Event):
    """The job's script has ended an attempt.

    Attributes:
        code: exit code of the attempt.
    """

    event: ClassVar[str] = "ended"
    code: int


@dataclass(frozen=True, kw_only=True)
class Awaited(Open):
    """A run or sweep that another run has waited for.

    Attributes:
        id: id of the run or sweep.
        condition: ok, failed or any.
        state: its state when the condition was met.
    """

    id: str
    condition: str
    state: str


class ConditionsMet(Event):
    """The conditions of the key `after` are met, and the run starts."""

    event: ClassVar[str] = "after"
    others: tuple[Awaited, ...]


# -- its agents


@dataclass(frozen=True, kw_only=True)
class Place(Open):
    """Where an agent runs.

    Attributes:
        host: name of its host.
        node: number of its node in the job.
        task: rank of its task with launch.mode=tasks; else None.
    """

    host: str
    node: int
    task: int | None = None


class Met(Event):
    """The rendezvous of a round is complete; each agent writes this event.

    Attributes:
        ranks, members: number of ranks and agents in the round.
        round: number of the round.
        host: host of the agent.
        port: port of the ranks' store.
        interface: network interface by which the agent reaches the others.
        source: variables from which the agent derived its rank.
        torch: version of torch.
    """

    event: ClassVar[str] = "met"
    ranks: int
    members: int
    round: int = 0
    host: str = ""
    port: int | None = None
    interface: str | None = None
    source: str | None = None
    torch: str | None = None


class Resized(Event):
    """A round begins with other agents than the one before, or continues without some that were lost.

    Attributes:
        round: number of the round.
        members, world_size: number of agents and ranks that take part.
        size: number of agents that the job was started with.
        without: agents that no longer take part.
        back: agents that take part now, and did not in the round before.
    """

    event: ClassVar[str] = "resized"
    round: int
    members: int
    world_size: int
    size: int
    without: tuple[Place, ...] = ()
    back: tuple[Place, ...] = ()


class Finished(Event):
    """The ranks of an agent have done their work."""

    event: ClassVar[str] = "finished"


@dataclass(frozen=True)
class CheckEnded(Open):
    """A check of a preflight on one node; see `launcher.preflight.checks.Check`."""

    name: str
    level: str
    words: str = ""
    ms: float = 0.0


class NodeChecked(Event):
    """The result of the preflight on one node; each agent writes that of its node.

    Attributes:
        round: round of the preflight.
        host, node: name and number of the node.
        fine: whether the node takes part.
        seconds: duration of the preflight.
        checks: all checks that ran.
    """

    event: ClassVar[str] = "preflight"
    round: int
    host: str
    node: int
    fine: bool
    seconds: float
    checks: tuple[CheckEnded, ...] = ()


@dataclass(frozen=True)
class Finding(Open):
    """A problem that a preflight has found on a node.

    Attributes:
        name: the node's name in messages.
        host: its host name.
        check: the check that failed (`device`, `reach`); `silent`: no result in time; `leader`: the leader was lost.
        words: the problem and the fix, for people.
    """

    name: str
    host: str
    check: str
    words: str


class Preflighted(Event):
    """The result of a preflight on all nodes.

    Attributes:
        round: round of the preflight.
        then: what the attempt does next.
        nodes: number of nodes that took part.
        seconds: duration.
        bad: bad nodes.
        warnings: problems that do not exclude a node.
    """

    event: ClassVar[str] = "preflighted"
    round: int
    then: PreflightThen
    nodes: int
    seconds: float
    bad: tuple[Finding, ...] = ()
    warnings: tuple[Finding, ...] = ()


class Pace(Event):
    """Step times of the ranks of an agent.

    Attributes:
        round: number of the round.
        rank: first of these ranks.
        host: their host.
        seconds: seconds per step of each rank, without waiting; None: it reported none.
    """

    event: ClassVar[str] = "pace"
    round: int
    rank: int
    host: str
    seconds: tuple[float | None, ...]


class SlowRank(Event):
    """A rank has become slower than the others; see `launcher.runs.health.Straggler`."""

    event: ClassVar[str] = "straggler"
    round: int
    rank: int
    host: str
    ratio: float
    since: float


class AttachRequest(Event):
    """A request of a command to the agents; see `launcher.attach.requests`.

    Attributes:
        id: id of the request, and name of the folder with the replies.
        what: kind of the request.
        rank: rank that it concerns; None: all.
    """

    event: ClassVar[str] = "attach_request"
    id: str
    what: str
    rank: int | None = None


# -- its ranks


class Progress(Event):
    """Progress of the run.

    Attributes:
        step, total: steps that are done, and steps in all (0: unknown).
        values: metrics of the workload.
    """

    event: ClassVar[str] = "progress"
    step: float
    total: float
    values: Mapping[str, Any] | None = None


class Evaluated(Event):
    """The result of an evaluation.

    Attributes:
        step: step after which it ran.
        values: metrics of the workload.
    """

    event: ClassVar[str] = "evaluated"
    step: int
    values: Mapping[str, Any] | None = None


class Saved(Event):
    """A checkpoint is complete.

    Attributes:
        step: its step.
        bytes: its size.
        seconds: duration of the save; None: not measured.
        blocked: seconds for which the ranks waited; None: not measured.
        checkpoint: its path.
    """

    event: ClassVar[str] = "saved"
    step: int
    bytes: int = 0
    seconds: float | None = None
    blocked: float | None = None
    checkpoint: str = ""


class SaveFailed(Event):
    """A save failed; the training continues.

    Attributes:
        step: step of the checkpoint.
        exception: type of the exception.
        error: message of the exception.
        final: whether no save of this training can succeed.
    """

    event: ClassVar[str] = "save_failed"
    step: int
    exception: str = ""
    error: str = ""
    final: bool = False


class PassedOver(Event):
    """A checkpoint is damaged or does not fit, and was quarantined.

    Attributes:
        checkpoint: its name.
        step: its step.
        problems: messages of the ranks that read it.
    """

    event: ClassVar[str] = "passed_over"
    checkpoint: str
    step: int | None = None
    problems: tuple[str, ...] = ()


class Breakpoint(Event):
    """A rank waits in the debugger.

    Attributes:
        rank, host, pid, job: the rank's process.
        where: file, line and function where it stopped.
        socket: path of the debugger's socket on the host.
        post_mortem: whether it stopped after an uncaught exception.
    """

    event: ClassVar[str] = "breakpoint"
    rank: int
    host: str
    where: str
    socket: str
    pid: int | None = None
    job: str | None = None
    post_mortem: bool = False


class Continued(Event):
    """A rank leaves the debugger's prompt."""

    event: ClassVar[str] = "continued"
    rank: int


# -- failures, stops, and what follows


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


@dataclass(frozen=True)
class BoundRank(Open):
    """One rank of `Bound`.

    Attributes:
        rank: its number in the job.
        cpus: CPUs that it may run on (`0-7,64-71`).
        cores: number of cores of these.
        numa: NUMA nodes of these (`3`).
        gpu: PCI address of its accelerator; None: it has none, or its accelerator is unknown.
        gpu_numa: NUMA node nearest to the accelerator.
        nic: network device that is paired with the accelerator, or nearest to it.
    """

    rank: int
    cpus: str
    cores: int = 0
    numa: str = ""
    gpu: str | None = None
    gpu_numa: int | None = None
    nic: str | None = None


class Bound(Event):
    """The CPU binding of the ranks of an agent.

    Attributes:
        host: host of the agent.
        ranks: its ranks, in order.
        round: number of the round.
        node: description of the node's type.
        allowed: CPUs of the job on this node.
        numas: CPUs of each NUMA node that has any, by its number.
        unbound: why the ranks are not bound; None: they are.
    """

    event: ClassVar[str] = "bound"
    host: str
    ranks: tuple[BoundRank, ...]
    round: int = 0
    node: str = ""
    allowed: str = ""
    numas: Mapping[str, str] | None = None
    unbound: Unbound | None = None


E_ = TypeVar("E_", bound=Event)


def every(entries: Iterable[Mapping[str, Any]], kind: type[E_]) -> list[E_]:
    """Returns the events of one kind, in their order."""
    return [event for entry in entries if (event := as_kind(entry, kind)) is not None]


def last(entries: Sequence[Mapping[str, Any]], kind: type[E_]) -> E_ | None:
    """Returns the last event of a kind; None: there is none."""
    return next((event for entry in reversed(entries) if (event := as_kind(entry, kind)) is not None), None)


def first(entries: Iterable[Mapping[str, Any]], kind: type[E_]) -> E_ | None:
    """Returns the first event of a kind; None: there is none."""
    return next((event for entry in entries if (event := as_kind(entry, kind)) is not None), None)


def as_kind(entry: Mapping[str, Any], kind: type[E_]) -> E_ | None:
    """Returns a dict as an event of this kind; None: it is of another kind."""
    event = from_entry(entry) if entry["event"] == kind.event else None
    return event if isinstance(event, kind) else None


def first_fault(entries: Iterable[Mapping[str, Any]]) -> Fault | SetupFailed | None:
    """Returns the first fault or failed set-up line; None: there is none."""
    for entry in entries:
        if entry["event"] in (Fault.event, SetupFailed.event):
            return as_kind(entry, Fault) or as_kind(entry, SetupFailed)
    return None
