"""Events that the script, the agents and the ranks of an attempt write, except for failures and stops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from launcher.binding.node import Unbound
from launcher.runs.event_json import Event, Open


class Started(Event):
    """The job script starts an attempt.

    Attributes:
        job: id of the job.
        host: name of the host on which the script runs.
        output: size of the job's output file in bytes, written by earlier attempts of this job.
    """

    event: ClassVar[str] = "started"
    job: str
    host: str = ""
    output: int = 0


class Ended(Event):
    """The job script has ended an attempt.

    Attributes:
        code: exit code of the attempt.
    """

    event: ClassVar[str] = "ended"
    code: int


@dataclass(frozen=True, kw_only=True)
class Awaited(Open):
    """A run or sweep that another run waited for (config key `after`).

    Attributes:
        id: id of the run or sweep.
        condition: required end: `ok`, `failed` or `any`.
        state: state of the run or sweep when the condition was met.
    """

    id: str
    condition: str
    state: str


class ConditionsMet(Event):
    """The conditions of the config key `after` are met, and the run starts.

    Attributes:
        others: runs and sweeps that the run waited for.
    """

    event: ClassVar[str] = "after"
    others: tuple[Awaited, ...]


# -- its agents


@dataclass(frozen=True, kw_only=True)
class Place(Open):
    """Where an agent runs.

    Attributes:
        host: name of the agent's host.
        node: number of the host in the job, from 0.
        task: rank of the agent's task with launch.mode=tasks; else None.
    """

    host: str
    node: int
    task: int | None = None


class Met(Event):
    """The rendezvous of a round is complete; each agent writes this event.

    Attributes:
        ranks, members: number of ranks and of agents in the round.
        round: number of the round.
        host: name of the agent's host.
        port: TCP port of the store (MASTER_PORT) that the ranks use.
        interface: network interface by which the agent reaches the other agents.
        source: environment variables from which the agent derived its rank.
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
    """A round starts with other agents than the previous one, or continues after it has lost agents.

    Attributes:
        round: number of the round.
        members, world_size: number of agents and of ranks that take part.
        size: number of agents with which the job was started.
        without: agents that no longer take part.
        back: agents that did not take part in the previous round, and do now.
    """

    event: ClassVar[str] = "resized"
    round: int
    members: int
    world_size: int
    size: int
    without: tuple[Place, ...] = ()
    back: tuple[Place, ...] = ()


class Finished(Event):
    """All ranks of an agent have ended successfully."""

    event: ClassVar[str] = "finished"


class Pace(Event):
    """Step times of an agent's ranks since its previous `pace` event.

    Attributes:
        round: number of the round.
        rank: the agent's first rank, to which `seconds[0]` belongs.
        host: name of the agent's host.
        seconds: for each rank, median seconds per step without waiting for other ranks; None: the rank reported none.
    """

    event: ClassVar[str] = "pace"
    round: int
    rank: int
    host: str
    seconds: tuple[float | None, ...]


class SlowRank(Event):
    """A rank has become slower than the others; for the fields see `launcher.runs.health.Straggler`."""

    event: ClassVar[str] = "straggler"
    round: int
    rank: int
    host: str
    ratio: float
    since: float


class GpusUnused(Event):
    """No process of an agent's ranks has opened a GPU, though the run asked for some.

    Attributes:
        host: name of the agent's host.
        ranks: the ranks.
        gpus: GPUs per node that the run asked for.
        seconds: for how long the ranks had run.
        opened: whether one has opened a GPU since then, so that the event before this one no longer holds.
    """

    event: ClassVar[str] = "gpus_unused"
    host: str
    ranks: tuple[int, ...]
    gpus: int
    seconds: float
    opened: bool = False


class AttachRequest(Event):
    """A request of a user's command (`attach`) to the agents of a run; see `launcher.attach.requests`.

    Attributes:
        id: id of the request, and name of the folder for the replies.
        what: kind of the request.
        rank: rank that the request is about; None: all ranks.
    """

    event: ClassVar[str] = "attach_request"
    id: str
    what: str
    rank: int | None = None


# -- its ranks


class Progress(Event):
    """Progress of the run, reported by rank 0.

    Attributes:
        step, total: number of steps done, and total number of steps (0: unknown).
        values: metrics reported by the workload; None: it reported none.
    """

    event: ClassVar[str] = "progress"
    step: float
    total: float
    values: Mapping[str, Any] | None = None


class Evaluated(Event):
    """The result of an evaluation.

    Attributes:
        step: number of steps done when the evaluation ran.
        values: metrics reported by the workload; None: it reported none.
    """

    event: ClassVar[str] = "evaluated"
    step: int
    values: Mapping[str, Any] | None = None


class Saved(Event):
    """A checkpoint has been written completely.

    Attributes:
        step: number of steps done in the checkpoint.
        bytes: size of the checkpoint.
        seconds: duration of the save; None: not measured.
        blocked: seconds for which the save blocked the ranks; None: not measured.
        checkpoint: path of the checkpoint.
    """

    event: ClassVar[str] = "saved"
    step: int
    bytes: int = 0
    seconds: float | None = None
    blocked: float | None = None
    checkpoint: str = ""


class SaveFailed(Event):
    """Saving a checkpoint failed; the training continues.

    Attributes:
        step: number of steps done in the checkpoint.
        exception: name of the exception's type.
        error: message of the exception.
        final: whether later saves of this training cannot succeed either.
    """

    event: ClassVar[str] = "save_failed"
    step: int
    exception: str = ""
    error: str = ""
    final: bool = False


class PassedOver(Event):
    """A checkpoint is damaged or does not match the training, and was renamed so that it is not read again.

    Attributes:
        checkpoint: name of the checkpoint.
        step: number of steps done in the checkpoint; None: unknown.
        problems: error messages of the ranks that read the checkpoint.
    """

    event: ClassVar[str] = "passed_over"
    checkpoint: str
    step: int | None = None
    problems: tuple[str, ...] = ()


class Breakpoint(Event):
    """A rank waits in the debugger.

    Attributes:
        rank: the rank.
        host: name of the rank's host.
        where: file, line and function where the rank stopped.
        socket: path of the debugger's socket on the host.
        pid: process id of the rank.
        job: id of the job.
        post_mortem: whether the rank stopped after an uncaught exception.
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
    """A rank has left the debugger's prompt and continues."""

    event: ClassVar[str] = "continued"
    rank: int


# -- binding


@dataclass(frozen=True)
class BoundRank(Open):
    """The CPU binding of one rank; part of `Bound`.

    Attributes:
        rank: number of the rank in the job.
        cpus: CPUs on which the rank may run (`0-7,64-71`).
        cores: number of cores to which these CPUs belong.
        numa: NUMA nodes to which these CPUs belong (`3`).
        gpu: PCI address of the rank's accelerator; None: the rank has none, or it is unknown.
        gpu_numa: NUMA node nearest to the accelerator; None: unknown.
        nic: network device that is paired with the accelerator or nearest to it; None: unknown.
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
        host: name of the agent's host.
        ranks: bindings of the agent's ranks, in order.
        round: number of the round.
        node: description of the host's hardware type.
        allowed: CPUs that the job may use on the host (`0-63`).
        numas: CPUs of each NUMA node that has any, by the NUMA node's number.
        unbound: why the ranks are not bound; None: they are bound.
    """

    event: ClassVar[str] = "bound"
    host: str
    ranks: tuple[BoundRank, ...]
    round: int = 0
    node: str = ""
    allowed: str = ""
    numas: Mapping[str, str] | None = None
    unbound: Unbound | None = None
