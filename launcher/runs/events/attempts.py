"""Events of an attempt: its script, its agents and its ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from launcher.binding.node import Unbound
from launcher.failures.codes import PreflightThen
from launcher.runs.event_json import Event, Open


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
    """Step times of an agent's ranks since its previous event of this kind.

    Attributes:
        round: number of the round.
        rank: the agent's first rank; `seconds` begins with it.
        host: the agent's host.
        seconds: median seconds per step of each rank, without the time it waited for other ranks; None: none reported.
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


# -- binding


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
