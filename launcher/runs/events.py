"""Events with types: one class for each kind, whose fields are checked where a file is read, and written from the same.

A field that is missing and needed, or has another type, makes the event unreadable (`event_file.problems`); fields and
codes of a newer version do not, nor do kinds without a class here. Who reads many events looks into them as they stand
in the file (`progress`, `pace`); who acts by one has it as its class (`every`, `last`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from launcher.failures.codes import FaultCode, NextReason, PreflightThen, SetupPart, StopReason
from launcher.runs.event_json import Event, of

# -- the journal of a run, and of a sweep


class Submitting(Event):
    """A job is about to be handed over.

    Attributes:
        token: by which it can be found.
        points: of a sweep, that are its elements (`0-3,7`).
    """

    event: ClassVar[str] = "submitting"
    token: str
    points: str | None = None


class Submitted(Event):
    """The scheduler has taken it.

    Attributes:
        job: its id.
        chain: jobs that follow it.
        token: of an array.
    """

    event: ClassVar[str] = "submitted"
    job: str
    chain: tuple[str, ...] = ()
    token: str | None = None


class Refused(Event):
    """The scheduler did not take an array.

    Attributes:
        token: of it.
        error: in the scheduler's words; None: its submitter was killed, and there is no job.
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
    """Its job is to end, and not to go on in another one.

    Attributes:
        by: the user.
        host: where the command was given.
    """

    event: ClassVar[str] = "cancelled"
    by: str = ""
    host: str = ""


class CancelFailed(Event):
    """The scheduler did not end its job, so it is not cancelled.

    Attributes:
        error: in the scheduler's words.
    """

    event: ClassVar[str] = "cancel_failed"
    error: str = ""


# -- an attempt


class Started(Event):
    """The job's script begins an attempt.

    Attributes:
        job: its id.
        host: where.
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
class Awaited:
    """A run that another one has waited for.

    Attributes:
        id: of the run, or of the sweep.
        condition: ok, fail or any.
        state: in which it was.
    """

    OPEN: ClassVar[bool] = True
    id: str
    condition: str
    state: str


class ConditionsMet(Event):
    """All that the run has waited for has come about."""

    event: ClassVar[str] = "after"
    others: tuple[Awaited, ...]


# -- its agents


@dataclass(frozen=True, kw_only=True)
class Place:
    """An agent.

    Attributes:
        host: its host.
        node: number of its node in the job.
        task: number of its rank, where the scheduler starts each.
    """

    OPEN: ClassVar[bool] = True
    host: str
    node: int
    task: int | None = None


class Met(Event):
    """The agents of a round have met: each tells so.

    Attributes:
        ranks, members: of the round.
        round: its number.
        host: of the agent.
        port: of the ranks' store.
        interface: by which the agent reaches the others.
        source: where it has its own number from.
        torch: its version.
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
    """A round begins with others than the one before.

    Attributes:
        round: its number.
        members, world_size: agents and ranks that take part.
        size: agents that the job was started with.
        without: who does not take part any more.
        back: who takes part now, and did not before.
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
class CheckEnded:
    """A check of a preflight on one node; see `launcher.preflight.checks.Check`."""

    OPEN: ClassVar[bool] = True
    name: str
    level: str
    words: str = ""
    ms: float = 0.0


class NodeChecked(Event):
    """What the preflight has found on one node: each agent tells of its own.

    Attributes:
        round: the preflight's.
        host, node: which.
        fine: it takes part.
        seconds: that the preflight took.
        checks: all that were done.
    """

    event: ClassVar[str] = "preflight"
    round: int
    host: str
    node: int
    fine: bool
    seconds: float
    checks: tuple[CheckEnded, ...] = ()


@dataclass(frozen=True)
class Finding:
    """What a preflight has found of a node.

    Attributes:
        name: what to call the node.
        host: of it.
        check: by which (`device`, `reach`); `silent`: it said nothing in time; `leader`: it led, and was lost.
        words: what is wrong there, and what to do.
    """

    OPEN: ClassVar[bool] = True
    name: str
    host: str
    check: str
    words: str


class Preflighted(Event):
    """What a preflight comes to.

    Attributes:
        round: its.
        then: what is done.
        nodes: that took part.
        seconds: that it took.
        bad: nodes that are.
        warnings: what may become a problem.
    """

    event: ClassVar[str] = "preflighted"
    round: int
    then: PreflightThen
    nodes: int
    seconds: float
    bad: tuple[Finding, ...] = ()
    warnings: tuple[Finding, ...] = ()


class Pace(Event):
    """How fast the ranks of an agent are.

    Attributes:
        round: in which.
        rank: the first of them.
        host: theirs.
        seconds: for a step, of each; None: it told nothing.
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


class Asked(Event):
    """A command asks the agents; see `launcher.attach.requests`.

    Attributes:
        id: of the question, and of the folder of its answers.
        what: is asked.
        rank: of which.
    """

    event: ClassVar[str] = "asked"
    id: str
    what: str
    rank: int | None = None


# -- its ranks


class Progress(Event):
    """Steps that are done.

    Attributes:
        step, total: how many, and of how many; 0: nobody knows.
        values: the workload's own.
    """

    event: ClassVar[str] = "progress"
    step: float
    total: float
    values: Mapping[str, Any] | None = None


class Evaluated(Event):
    """What an evaluation has come to.

    Attributes:
        step: after which.
        values: the workload's own.
    """

    event: ClassVar[str] = "evaluated"
    step: int
    values: Mapping[str, Any] | None = None


class Saved(Event):
    """A checkpoint is whole.

    Attributes:
        step: its.
        bytes: of it.
        seconds: that the save took, and the ranks were `blocked`; None: nobody has measured.
        checkpoint: its path.
    """

    event: ClassVar[str] = "saved"
    step: int
    bytes: int = 0
    seconds: float | None = None
    blocked: float | None = None
    checkpoint: str = ""


class SaveFailed(Event):
    """A checkpoint was not saved; the training goes on.

    Attributes:
        step: its.
        exception: type of the error.
        error: in its words.
        final: no save of this training can succeed.
    """

    event: ClassVar[str] = "save_failed"
    step: int
    exception: str = ""
    error: str = ""
    final: bool = False


class PassedOver(Event):
    """A checkpoint cannot be used, and is kept under another name.

    Attributes:
        checkpoint: its name.
        step: its.
        problems: what is wrong with it, in the words of those who read it.
    """

    event: ClassVar[str] = "passed_over"
    checkpoint: str
    step: int | None = None
    problems: tuple[str, ...] = ()


class Breakpoint(Event):
    """A rank waits in the debugger.

    Attributes:
        rank, host, pid, job: which.
        where: in its code.
        socket: by which it is reached there.
        post_mortem: after an exception.
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
class Accused:
    """Whose fault it seems: a node, or one of its ranks."""

    OPEN: ClassVar[bool] = True
    host: str
    rank: int | None = None


class Fault(Event):
    """Ranks failed, or could not be started.

    Attributes:
        cause: for people; programs read the other fields.
        code: what happened.
        host, node: where, as far as it is known; else of who tells it.
        rank: that failed first.
        exit_code: of its process.
        signal: that ended it, or by which it was asked to stop (`SIGKILL`).
        exception: type of its exception.
        error: what Python, the system or a library said, in its words.
        accused: whose fault it seems, where that is known: it need not be who tells it.
        limit: the key whose time was over, of a hang.
        step: steps of the run that were done; -1: none.
        traceback: of the rank.
        memory: bytes that were used and allowed, and kills; see `launcher.agent.memory`.
        stacks: folder with the stacks of all ranks, of a hang.
        ends_with: exit code of the attempt, if this ends it.
    """

    event: ClassVar[str] = "fault"
    cause: str
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
    step: int | None = None
    traceback: str | None = None
    memory: Mapping[str, int] | None = None
    stacks: str | None = None
    ends_with: int | None = None


class Restart(Fault):
    """The ranks start again in place, after what a fault says.

    Attributes:
        round: the one that begins.
        world_size: of the one before.
    """

    event: ClassVar[str] = "restart"
    round: int = 0
    world_size: int = 0


class SetupFailed(Event):
    """A set-up line failed.

    Attributes:
        line: its number among all, from 1.
        host: where.
        of: what it is for.
        number: its number among those, from 1.
        name: of the module, the environment or the folder that it is about.
        code: exit code.
    """

    event: ClassVar[str] = "setup_failed"
    line: int
    host: str
    of: SetupPart = SetupPart.UNKNOWN
    number: int = 0
    name: str = ""
    code: int | None = None


class Stop(Event):
    """An attempt ends early, and can be resumed.

    Attributes:
        cause: for people.
        reason: why.
        host, rank: who has seen it first, as far as it is known.
        ranks: that left with exit code 75, or not in time.
        signal: by which it was asked to stop.
        exit_code: of agents that were killed.
        step: steps of the run that are done.
    """

    event: ClassVar[str] = "stop"
    cause: str
    reason: StopReason = StopReason.UNKNOWN
    host: str = ""
    rank: int | None = None
    ranks: tuple[int, ...] = ()
    signal: str | None = None
    exit_code: int | None = None
    step: int | None = None


class StopRequested(Event):
    """Whoever waits for the tasks of a job was sent this signal."""

    event: ClassVar[str] = "stop_requested"
    signal: str
    host: str


class Stopped(Event):
    """What is there of a run after an attempt that stopped early.

    Attributes:
        step: steps that are safe; -1: none; None: nobody knows.
        saved: when a program wrote its newest file; -1: not looked for.
        preempted: its scheduler had begun to preempt its job.
    """

    event: ClassVar[str] = "stopped"
    step: int | None
    saved: int
    preempted: bool


class Again(Event):
    """The run goes on.

    Attributes:
        what: here, or elsewhere.
        why: for people.
        reason: how.
        job: the one in which it does, if that is known.
    """

    event: ClassVar[str] = "again"
    what: str
    why: str = ""
    reason: NextReason = NextReason.UNKNOWN
    job: str | None = None


class Stays(Event):
    """The run stays stopped, or is given up.

    Attributes:
        what: stays, or given_up.
        why: for people.
        reason: why.
        step: further than which it got in no attempt.
        attempts: that it has had.
        state: that the scheduler shows of its job.
    """

    event: ClassVar[str] = "stays"
    what: str
    why: str
    reason: NextReason = NextReason.UNKNOWN
    step: int | None = None
    attempts: int | None = None
    state: str | None = None


@dataclass(frozen=True)
class BoundRank:
    """One rank of `Bound`.

    Attributes:
        rank: its number in the job.
        cpus: those that it may run on (`0-7,64-71`).
        cores: how many cores these are.
        numa: their NUMA nodes (`3`).
        gpu: PCI address of its accelerator; None: it has none, or which one cannot be told.
        gpu_numa: the NUMA node that this is nearest to.
        nic: the network device that is paired with it, or nearest to it.
    """

    OPEN: ClassVar[bool] = True
    rank: int
    cpus: str
    cores: int = 0
    numa: str = ""
    gpu: str | None = None
    gpu_numa: int | None = None
    nic: str | None = None


class Bound(Event):
    """Which CPUs the ranks of an agent may run on.

    Attributes:
        host: of the agent.
        ranks: its own, in order.
        round: that they are of.
        node: what nodes of this type have in common.
        allowed: the CPUs of the job on this node.
        numas: the CPUs of each NUMA node that has any, by its number.
        why_not: why the ranks are not bound; empty: they are.
    """

    event: ClassVar[str] = "bound"
    host: str
    ranks: tuple[BoundRank, ...]
    round: int = 0
    node: str = ""
    allowed: str = ""
    numas: Mapping[str, str] | None = None
    why_not: str = ""


E_ = TypeVar("E_", bound=Event)


def every(entries: Iterable[Mapping[str, Any]], kind: type[E_]) -> list[E_]:
    """The events of one kind, in their order."""
    return [event for entry in entries if (event := as_kind(entry, kind)) is not None]


def last(entries: Sequence[Mapping[str, Any]], kind: type[E_]) -> E_ | None:
    """The last event of a kind."""
    return next((event for entry in reversed(entries) if (event := as_kind(entry, kind)) is not None), None)


def first(entries: Iterable[Mapping[str, Any]], kind: type[E_]) -> E_ | None:
    """The first event of a kind."""
    return next((event for entry in entries if (event := as_kind(entry, kind)) is not None), None)


def as_kind(entry: Mapping[str, Any], kind: type[E_]) -> E_ | None:
    """An entry as an event of this kind; None: it is of another one."""
    event = of(entry) if entry["event"] == kind.event else None
    return event if isinstance(event, kind) else None


def first_fault(entries: Iterable[Mapping[str, Any]]) -> Fault | SetupFailed | None:
    """The first of what ended an attempt."""
    for entry in entries:
        if entry["event"] in (Fault.event, SetupFailed.event):
            return as_kind(entry, Fault) or as_kind(entry, SetupFailed)
    return None
