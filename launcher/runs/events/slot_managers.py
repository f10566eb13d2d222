"""Events in the journal of a slot manager, which runs points in a pilot.

They serve statistics and messages. The state of a point is decided by the claims alone (launcher/runs/claims.py).
"""

from __future__ import annotations

from typing import ClassVar

from launcher.runs.event_json import Event


class ManagerBegan(Event):
    """A slot manager has started.

    Attributes:
        host: name of the slot manager's node.
        job: id of the pilot's job.
        slots: number of points that the manager runs at once; 0: the manager claims no points, but runs its node's
            part of the points that the first node of its group claims.
        pid, start: process id and start time, see `launcher.processes.groups.Process`.
        namespace: machine and PID namespace of the process, see `launcher.processes.groups.namespace`.
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
        point: number of the point.
        slot: number of the slot in which the point runs.
        attempt: number of the point's attempt; None: an old version, without points on several nodes, wrote the event.
    """

    event: ClassVar[str] = "point_began"
    point: int
    slot: int
    attempt: int | None = None


class PointEnded(Event):
    """A point's process has ended, or could not be started.

    Attributes:
        point: number of the point.
        slot: number of the slot in which the point ran.
        code: exit code of the process; a negative number -N: signal N killed it.
        kind: outcome of the point, a value of `launcher.runs.claims.Kind` (`done`, `failed`, `released`, ...).
    """

    event: ClassVar[str] = "point_ended"
    point: int
    slot: int
    code: int
    kind: str


class PartEnded(Event):
    """The process of a point on this node, one of the further nodes of the group on which the point runs, has ended.

    Attributes:
        point, attempt: number of the point, and of its attempt.
        code: exit code of the process; a negative number -N: signal N killed it.
    """

    event: ClassVar[str] = "part_ended"
    point: int
    attempt: int
    code: int


class GroupBroken(Event):
    """A slot manager claims no more points, because other nodes of its group are lost.

    Attributes:
        lost: host names of the lost nodes.
    """

    event: ClassVar[str] = "group_broken"
    lost: tuple[str, ...]


class NodeLeftOut(Event):
    """A slot manager claims no more points, because several points have failed on its node.

    Attributes:
        points: numbers of the failed points.
    """

    event: ClassVar[str] = "node_left_out"
    points: tuple[int, ...]


class ManagerIdle(Event):
    """A slot manager has found no point to claim. It will end, unless a point becomes free at the same moment."""

    event: ClassVar[str] = "manager_idle"


class ManagerEnded(Event):
    """A slot manager has ended; the last event of its journal."""

    event: ClassVar[str] = "manager_ended"
