"""The kinds of events, one class each. Event files are written from these classes, and checked against them.

An event is invalid if a required field is missing or has another type (`event_files.problems`). Unknown fields, codes
and kinds, which a newer version may have written, are valid. Events are read as dicts; `every`, `first` and `last`
convert those of one kind to its class, and code that reads many events (`progress`) uses the dicts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from launcher.failures import codes
from launcher.failures.codes import Unbound
from launcher.fast_dataclasses import Open, dataclass_transform
from launcher.files.json_types import as_json, from_json

TYPES: dict[str, type[Event]] = {}  # class of each kind of event
E_ = TypeVar("E_", bound="Event")


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Event(Open):
    """Base class of events. Fields that do not apply or are not known have their defaults."""

    event: ClassVar[str] = ""  # the kind (`started`), by which it is recognised in a file
    time: float = 0.0  # when it was written, in seconds since the epoch; 0: not yet

    def __init_subclass__(cls, kind: str) -> None:
        super().__init_subclass__()
        cls.event = kind
        TYPES[kind] = cls


# -- the journals of runs and sweeps: submissions and cancellations


class Submitting(Event, kind="submitting"):
    token: str  # by which the scheduler can find the job
    points: str | None = None  # of an array: the sweep's points that are its elements (`0-3,7`)
    by_hand: bool = False  # whether the user submits it, with the command that was printed (submit=false)


class Submitted(Event, kind="submitted"):
    job: str
    chain: tuple[str, ...] = ()  # with resume.how=chain the jobs that follow it, in a race the others
    race: bool = False  # whether the first of these jobs that starts runs the run (cluster.race)
    token: str | None = None  # of an array


class Refused(Event, kind="refused"):
    """The submission of a job or an array has led to no job."""

    token: str
    error: str | None = None  # the scheduler's message; None: the submitter was killed before


class ProcessStarted(Event, kind="process"):
    """The run's script was started without a scheduler; for the fields see `launcher.processes.Process`."""

    pid: int
    start: int
    host: str


class Cancelled(Event, kind="cancelled"):
    """The user cancelled the run: its job should end, and no other job may continue the run."""

    by: str = ""
    host: str = ""


class CancelFailed(Event, kind="cancel_failed"):
    """A cancellation failed: the scheduler did not end the job, so the run is not cancelled."""

    error: str = ""


class Pruned(Event, kind="pruned"):
    """The search of the sweep has decided to end this point early, because other points have a better objective."""

    step: int | None = None  # that the point had done


# -- an attempt: its driver, agents and ranks, and their CPU binding


class Started(Event, kind="started"):
    job: str
    host: str = ""
    output: int = 0  # bytes of the job's output, by earlier attempts of the job


class Ended(Event, kind="ended"):
    code: int


class Awaited(Open):
    """A run or sweep that another run waited for (config key `after`)."""

    id: str
    condition: str  # `ok`, `failed` or `any`
    state: str  # when the condition was met


class ConditionsMet(Event, kind="after"):
    """The conditions of the config key `after` are met, and the run starts."""

    others: tuple[Awaited, ...]


class Place(Open):
    host: str
    node: int  # its number in the job, from 0
    task: int | None = None  # the task's rank with launch.mode=tasks


class Met(Event, kind="met"):
    """The rendezvous of a round is complete; each agent writes this event."""

    ranks: int
    members: int
    round: int = 0
    host: str = ""
    port: int | None = None  # MASTER_PORT
    interface: str | None = None  # by which the agent reaches the others
    source: str | None = None  # variables from which the agent derived its rank
    torch: str | None = None


class Resized(Event, kind="resized"):
    """A round starts with other agents than the previous one, or continues after it has lost agents."""

    round: int
    members: int
    world_size: int
    size: int  # agents with which the job was started
    without: tuple[Place, ...] = ()  # agents that no longer take part
    back: tuple[Place, ...] = ()  # agents that did not take part in the previous round, and do now
    spares: int = 0  # agents that wait to take the place of a lost one


class Finished(Event, kind="finished"):
    """All ranks of an agent have ended successfully."""


class GpusUnused(Event, kind="gpus_unused"):
    """No process of an agent's ranks has opened a GPU, though the run asked for some."""

    host: str
    ranks: tuple[int, ...]
    gpus: int  # GPUs per node that the run asked for
    seconds: float
    opened: bool = False  # whether one has opened a GPU since then, so that the event before this one no longer holds


class AttachRequest(Event, kind="attach_request"):
    """A request of a user's command (`attach`) to the agents of a run; see `launcher.attach`."""

    id: str  # id of the request, and name of the folder for the replies
    what: str
    rank: int | None = None  # None: all ranks


class Progress(Event, kind="progress"):
    step: float
    total: float
    values: Mapping[str, Any] | None = None  # metrics of the workload; None: it reported none


class Evaluated(Event, kind="evaluated"):
    step: int
    values: Mapping[str, Any] | None = None  # metrics of the workload; None: it reported none


class Saved(Event, kind="saved"):
    step: int
    bytes: int = 0
    seconds: float | None = None  # duration of the save; None: not measured
    blocked: float | None = None  # seconds for which the save blocked the ranks; None: not measured
    checkpoint: str = ""


class SaveFailure(Event, kind="save_failed"):
    """Saving a checkpoint failed; the training continues."""

    step: int
    exception: str = ""
    error: str = ""
    final: bool = False  # whether later saves of this training cannot succeed either


class Restored(Event, kind="restored"):
    """A training continues from a saved state."""

    step: int  # steps of the run that were done when the state was saved
    memory: bool = False  # whether copies in the memory of nodes were loaded, instead of a checkpoint
    redone: int | None = None  # steps after it that the attempt had done already; None: it is the first round
    seconds: float = 0.0
    received: int = 0  # copies that were sent from one rank to another one


class PassedOver(Event, kind="passed_over"):
    """A checkpoint is damaged or does not match the training, and was renamed so that it is not read again."""

    checkpoint: str
    step: int | None = None
    problems: tuple[str, ...] = ()  # messages of the ranks that read it


class Breakpoint(Event, kind="breakpoint"):
    """A rank waits in the debugger."""

    rank: int
    host: str
    where: str  # file, line and function where the rank stopped
    socket: str  # path of the debugger's socket on the host
    pid: int | None = None
    job: str | None = None
    post_mortem: bool = False


class Continued(Event, kind="continued"):
    """A rank has left the debugger's prompt and continues."""

    rank: int


class BoundRank(Open):
    rank: int
    cpus: str  # CPUs on which the rank may run (`0-7,64-71`)
    cores: int = 0  # to which these CPUs belong
    numa: str = ""  # NUMA nodes to which these CPUs belong (`3`)
    gpu: str | None = None  # PCI address of the rank's accelerator; None: the rank has none, or it is unknown
    gpu_numa: int | None = None  # NUMA node nearest to the accelerator; None: unknown
    nic: str | None = None  # network device that is paired with the accelerator or nearest to it; None: unknown


class Bound(Event, kind="bound"):
    host: str
    ranks: tuple[BoundRank, ...]
    round: int = 0
    node: str = ""  # description of the host's hardware type
    allowed: str = ""  # CPUs that the job may use on the host (`0-63`)
    numas: Mapping[str, str] | None = None  # CPUs of each NUMA node that has any, by the NUMA node's number
    unbound: Unbound | None = None


# -- preflights: what each check has measured or found wrong on a node, and the result for all nodes


class Observation(Open):
    text: str = ""  # as one line, with what to do about it


NOTHING = Observation()


class CheckEnded(Open):
    """The result of one check of a preflight on one node; see `launcher.agent.preflight_checks.NodeCheck`."""

    name: str
    level: str
    found: Observation = NOTHING
    ms: float = 0.0


class NodeChecked(Event, kind="preflight"):
    round: int
    host: str
    node: int
    fine: bool  # whether the node takes part in the round
    seconds: float
    checks: tuple[CheckEnded, ...] = ()


class NodeFinding(Open):
    """A problem that a preflight has found on a node."""

    name: str  # in messages
    host: str
    check: str  # that failed (`device`, `reach`); `silent`: no result in time; `leader`: the leading agent was lost
    found: Observation = NOTHING


class Preflighted(Event, kind="preflighted"):
    round: int
    then: codes.PreflightThen
    nodes: int
    seconds: float
    bad: tuple[NodeFinding, ...] = ()
    warnings: tuple[NodeFinding, ...] = ()  # problems that do not exclude a node


# -- failures, restarts and stops, and how the run continues after them


class Accused(Open):
    """A node or rank that probably caused a fault."""

    host: str  # empty: unknown
    rank: int | None = None  # None: the whole node
    node: int | None = None


class Fault(Event, kind="fault"):
    """Ranks failed, or could not be started; `launcher.failures.messages.of_fault` returns its text for the user."""

    code: codes.FaultCode = codes.FaultCode.UNKNOWN
    host: str = ""  # where the fault happened or, if that is unknown, was reported
    node: int | None = None  # where the fault happened or, if that is unknown, was reported
    rank: int | None = None  # rank that failed first
    exit_code: int | None = None
    signal: str | None = None  # signal that ended the process, or that asked it to stop (`SIGKILL`)
    exception: str | None = None  # name of the type of the rank's exception
    error: str | None = None  # message of Python, the system or a library
    message: str = ""  # all of it as one line, by its writer, who knew more; empty: it follows from the other fields
    reading: str = ""  # path of the checkpoint that the rank was loading when its exception was raised; empty: none
    accused: tuple[Accused, ...] = ()  # who probably caused the fault, and need not have reported it
    limit: str | None = None  # config key of the timeout that expired
    seconds: float | None = None
    step: int | None = None  # that the run had done; None: none, or not known
    traceback: str | None = None
    memory: Mapping[str, int] | None = None  # bytes used and allowed, number of kills; see `agent.rank_watch`
    ends_with: int | None = None  # the attempt's exit code; None: the fault does not end it


class Restart(Fault, kind="restart"):
    """The ranks are restarted inside the attempt, after the fault that the inherited fields describe."""

    round: int = 0
    world_size: int = 0  # world size of the previous round


class SetupFailed(Event, kind="setup_failed"):
    """A shell line that sets up the job's environment (modules, virtual environment, user's own lines) failed."""

    line: int  # its number among all set-up lines, from 1
    host: str
    message: str = "a set-up line failed"
    code: int | None = None


class Stop(Event, kind="stop"):
    """An attempt ends early, and can be resumed; `failures.messages.of_stop` makes text for the user from it."""

    reason: codes.StopReason = codes.StopReason.UNKNOWN
    host: str = ""  # that noticed the reason first
    rank: int | None = None  # that noticed the reason first
    ranks: tuple[int, ...] = ()  # ranks that exited with code 75, or did not stop in time
    signal: str | None = None  # signal that asked the attempt to stop
    exit_code: int | None = None  # exit code of agents that were killed
    step: int | None = None
    error: str | None = None
    killed_on: str | None = None  # a host on which ranks were killed because they did not exit in time
    grace: float | None = None  # seconds that these ranks had to exit


class StopRequested(Event, kind="stop_requested"):
    """The process that waits for the tasks of a job received a signal to stop the attempt."""

    signal: str
    host: str


class Stopped(Event, kind="stopped"):
    """What a run has saved, recorded after an attempt that stopped early, to see whether attempts make progress."""

    step: int | None  # of the newest checkpoint; -1: there is none; None: unknown
    saved: int  # of a user's program, mtime in ns of its newest checkpoint file; -1: not looked for, or unknown
    preempted: bool


class Continues(Event, kind="continues"):
    """The run continues with another attempt. `launcher.failures.messages.of_next` makes its text."""

    what: str  # `here` (in this job) or `elsewhere` (in another job)
    reason: codes.NextReason = codes.NextReason.UNKNOWN
    job: str | None = None  # in which the run continues; None: unknown


class Stays(Event, kind="stays"):
    """The run does not continue by itself. `launcher.failures.messages.of_next` makes its text."""

    what: str  # `stays` (as wanted, or it cannot continue now) or `given_up` (no progress, or too many attempts)
    reason: codes.NextReason = codes.NextReason.UNKNOWN
    step: int | None = None  # the highest of any attempt
    attempts: int | None = None
    scheduler: str | None = None
    state: str | None = None  # the job's, according to the scheduler
    limit: int | None = None  # for NO_PROGRESS, the job's wall time (config key `time`) in seconds
    saves_in: str | None = None  # for NO_PROGRESS of a user's program, where its checkpoint files were looked for
    error: str | None = None  # that prevents another attempt


# -- the journal of a slot manager (launcher/runs/point_claims.py decides the state of a point)


class ManagerBegan(Event, kind="manager_began"):
    host: str
    job: str
    slots: int  # points at once
    pid: int  # see `launcher.processes.Process`
    start: int  # see `launcher.processes.Process`
    namespace: str  # see `launcher.processes.namespace`


class PointBegan(Event, kind="point_began"):
    """A slot manager has claimed a point, and starts it."""

    point: int
    slot: int
    attempt: int


class PointEnded(Event, kind="point_ended"):
    """A point's process has ended, or could not be started."""

    point: int
    slot: int
    code: int  # exit code of the process; -N: signal N killed it
    kind: str  # a value of `launcher.runs.point_claims.EntryKind` (`done`, `failed`, `released`)


class NodeLeftOut(Event, kind="node_left_out"):
    """A slot manager claims no more points, because several points have failed on its node."""

    points: tuple[int, ...]


class ManagerIdle(Event, kind="manager_idle"):
    """A slot manager has found no point to claim. It will end, unless a point becomes free at the same moment."""


class ManagerEnded(Event, kind="manager_ended"):
    """A slot manager has ended; the last event of its journal."""


# -- conversion from and to the dicts that `event_files.read` yields


def from_entry(entry: Mapping[str, Any]) -> Event:
    """Converts a dict from `event_files.read` to an event. Raises KeyError if this version does not know its kind."""
    return from_json(entry, TYPES[entry["event"]])


def known(entries: Iterable[Mapping[str, Any]]) -> Iterator[Event]:
    """Converts dicts from `event_files.read` to events, and yields those of kinds that this version knows."""
    return (from_entry(entry) for entry in entries if entry["event"] in TYPES)


def values(event: Event) -> dict[str, Any]:
    """Returns the fields of an event as JSON types, without the time and without fields that have their default."""
    found: dict[str, Any] = as_json(event, defaults=False)
    return {name: value for name, value in found.items() if name != "time"}


def every(entries: Iterable[Mapping[str, Any]], kind: type[E_]) -> list[E_]:
    return [event for entry in entries if (event := as_kind(entry, kind)) is not None]


def last(entries: Sequence[Mapping[str, Any]], kind: type[E_]) -> E_ | None:
    return next((event for entry in reversed(entries) if (event := as_kind(entry, kind)) is not None), None)


def first(entries: Iterable[Mapping[str, Any]], kind: type[E_]) -> E_ | None:
    return next((event for entry in entries if (event := as_kind(entry, kind)) is not None), None)


def as_kind(entry: Mapping[str, Any], kind: type[E_]) -> E_ | None:
    """Returns a dict as an event of class `kind`; None: the event is of another kind."""
    event = from_entry(entry) if entry["event"] == kind.event else None
    return event if isinstance(event, kind) else None
