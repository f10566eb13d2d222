"""Events in the journal of a slot manager, which runs points in a pilot. For statistics: claims are the truth."""

from __future__ import annotations

from typing import ClassVar

from launcher.runs.event_json import Event


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
        attempt: number of the attempt; None: written by an old version, which ran each point on one node only.
    """

    event: ClassVar[str] = "point_began"
    point: int
    slot: int
    attempt: int | None = None


class PointEnded(Event):
    """A point's process has ended, or could not be started.

    Attributes:
        point: its number.
        slot: the slot that it ran in.
        code: its exit code; negative: the signal that killed it.
        kind: outcome of the point, a value of `launcher.runs.claims.Kind` (`done`, `failed`, `released` ...).
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
