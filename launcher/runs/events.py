"""Events with types: one class for each kind, whose fields are checked where a file is read, and written from the same.

A field that is missing and needed, or has another type, makes the event unreadable (`event_file.problems`); fields and
codes of a newer version do not. Kinds without a class here are read as they stand in the file.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, ClassVar, TypeVar, Union, get_args, get_origin, get_type_hints

from launcher.failures.codes import FaultCode, NextReason, StopReason


@dataclass(frozen=True, kw_only=True)
class Event:
    """One event.

    Attributes:
        time: seconds since the epoch; of one that is yet to be written, 0.
    """

    event: ClassVar[str] = ""
    time: float = 0.0


@dataclass(frozen=True)
class Accused:
    """Whose fault it seems: a node, or one of its ranks."""

    OPEN: ClassVar[bool] = True
    host: str
    rank: int | None = None


@dataclass(frozen=True, kw_only=True)
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


@dataclass(frozen=True, kw_only=True)
class Restart(Fault):
    """The ranks start again in place, after what a fault says.

    Attributes:
        round: the one that begins.
        world_size: of the one before.
    """

    event: ClassVar[str] = "restart"
    round: int = 0
    world_size: int = 0


@dataclass(frozen=True, kw_only=True)
class SetupFailed(Event):
    """A set-up line failed.

    Attributes:
        line: its number among all, from 1.
        host: where.
        what: for people.
        code: exit code.
    """

    event: ClassVar[str] = "setup_failed"
    line: int
    host: str
    what: str = ""
    code: int | None = None


@dataclass(frozen=True, kw_only=True)
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


@dataclass(frozen=True, kw_only=True)
class StopRequested(Event):
    """Whoever waits for the tasks of a job was sent this signal."""

    event: ClassVar[str] = "stop_requested"
    signal: str
    host: str


@dataclass(frozen=True, kw_only=True)
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


@dataclass(frozen=True, kw_only=True)
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


@dataclass(frozen=True, kw_only=True)
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


@dataclass(frozen=True, kw_only=True)
class Bound(Event):
    """Which CPUs the ranks of an agent may run on.

    Attributes:
        host: of the agent.
        ranks: its own, in order.
        round: that they are of.
        node: what nodes of this type have in common.
        allowed: the CPUs of the job on this node.
        why_not: why the ranks are not bound; empty: they are.
    """

    event: ClassVar[str] = "bound"
    host: str
    ranks: tuple[BoundRank, ...]
    round: int = 0
    node: str = ""
    allowed: str = ""
    why_not: str = ""


TYPES: Mapping[str, type[Event]] = {
    each.event: each for each in (Fault, Restart, SetupFailed, Stop, StopRequested, Stopped, Again, Stays, Bound)
}
E_ = TypeVar("E_", bound=Event)


def of(entry: Mapping[str, Any]) -> Event:
    """The event in an entry of a file that `event_file.read` has checked; KeyError: its kind has no class."""
    kind: Any = TYPES[entry["event"]]
    hints = _hints(kind)
    event: Event = kind(**{name: _typed(hints[name], value) for name, value in entry.items() if name in hints})
    return event


def every(entries: Iterable[Mapping[str, Any]], kind: type[E_]) -> list[E_]:
    """The events of one kind, in their order."""
    return [event for entry in entries if entry["event"] == kind.event and isinstance(event := of(entry), kind)]


def last(entries: Iterable[Mapping[str, Any]], kind: type[E_]) -> E_ | None:
    """The last event of a kind."""
    return next(reversed(every(entries, kind)), None)


def first_fault(entries: Iterable[Mapping[str, Any]]) -> Fault | SetupFailed | None:
    """The first of what ended an attempt."""
    for entry in entries:
        if entry["event"] in (Fault.event, SetupFailed.event):
            event = of(entry)
            assert isinstance(event, (Fault, SetupFailed))
            return event
    return None


def values(event: Event) -> dict[str, Any]:
    """What is written of an event: all fields but the time that are not as if they were missing."""
    return {
        each.name: _plain(value)
        for each in fields(event)
        if each.name != "time" and ((value := getattr(event, each.name)) != each.default or each.default is MISSING)
    }


def checks() -> dict[str, tuple[tuple[str, Any, bool], ...]]:
    """Of each kind, each field but its time: its name, what JSON must have there, and whether it must be there."""
    return {
        name: tuple(
            (each.name, _of_json(hints[each.name]), each.default is MISSING)
            for each in fields(kind)
            if each.name != "time"
        )
        for name, kind in TYPES.items()
        for hints in (get_type_hints(kind),)
    }


@cache
def _hints(kind: Any) -> Mapping[str, Any]:
    """The types of a kind's fields."""
    hints = get_type_hints(kind)
    return {each.name: hints[each.name] for each in fields(kind)}


def _of_json(kind: Any) -> Any:
    """The type of a field as JSON has it: codes are texts."""
    if isinstance(kind, type) and issubclass(kind, Enum):
        return str
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return Union[tuple(map(_of_json, arguments))]  # noqa: UP007  made of parts
    if origin is tuple:
        return list[_of_json(arguments[0])]  # type: ignore[misc]
    return kind


def _typed(kind: Any, value: Any) -> Any:
    """A value of JSON that fits as the field's type has it."""
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    if is_dataclass(kind):
        names = {each.name for each in fields(kind)}
        return kind(**{name: each for name, each in value.items() if name in names})  # type: ignore[operator]
    if get_origin(kind) is tuple:
        return tuple(_typed(get_args(kind)[0], each) for each in value)
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value):
        return {
            each.name: _plain(inner) for each in fields(value) if (inner := getattr(value, each.name)) != each.default
        }
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return dict(value) if isinstance(value, Mapping) else value
