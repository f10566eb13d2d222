"""A slot manager whose points are processes that end at once with a code."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from launcher.agent.signals import Signals
from launcher.pilots import follower, journal, manager
from launcher.pilots.follower import Follower
from launcher.pilots.manager import SlotManager, packing_of, stops_of
from launcher.pilots.slots import Group, Slot
from launcher.runs import event_file
from launcher.runs.claims import Claims, Manager
from launcher.runs.directory import Attempt, Run
from launcher.runs.events import Event, ManagerBegan, ManagerEnded, PartEnded, PointBegan, PointEnded, known
from launcher.runs.sweep_directory import Packing, Sweep
from tests.unit.plans import plan_of
from tests.unit.sweep_runs import make_sweep

PACKING = Packing(
    pilots=1, nodes=1, slots=1, gpus=0, gpus_per_point=0, cpus_per_point=1, retries=0, lease=90.0
)  # fmt: skip


class Points:
    """Starts processes in place of points.

    Attributes:
        codes: exit codes by point; of others 0. None: the process waits until it is killed.
        started: the points, in order.
        before: is called before each start.
    """

    def __init__(self, codes: Mapping[int, int | None], before: Callable[[int], None] = lambda point: None) -> None:
        self.codes, self.started, self.before = codes, list[int](), before

    def __call__(self, attempt: Attempt, slot: Slot, group: Group) -> int:
        point = int(attempt.run.path.name)
        self.started.append(point)
        self.before(point)
        if (pid := os.fork()) == 0:
            if (code := self.codes.get(point, 0)) is None:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                signal.pause()
            os._exit(code or 0)
        return pid


def packed_sweep(folder: Path, count: int, **packing: int) -> Sweep:
    plan = plan_of(cluster={"scheduler": "local"})
    sweep = make_sweep(folder, count, array=None, plan=plan, packing=dataclasses.replace(PACKING, **packing))
    Claims.create(sweep.path)
    return sweep


class Managed:
    """The slot manager of a pilot on one node, or on the first of several."""

    def __init__(self, manager: SlotManager, slots: int) -> None:
        self.manager, self._slots = manager, [Slot(number) for number in range(slots)]

    def run(self) -> dict[str, Any]:
        return self.manager.run(self._slots)


def pilot_attempt(sweep: Sweep, pilot: int, attempt: int) -> Attempt:
    """An attempt of a pilot."""
    run = sweep.pilot(pilot)
    if not run.recorded():
        Run.create(run.path)
        plan = plan_of(cluster={"scheduler": "local"})
        run.write_record(
            dataclasses.replace(plan, run_id=run.path.name, run_dir=str(run.path)), {}, {"launcher": "1", "token": "t"}
        )
    each = Attempt(run, attempt)
    (each.path / "events").mkdir(parents=True)
    return each


def slot_manager(
    sweep: Sweep, points: Points, monkeypatch: pytest.MonkeyPatch, *, pilot: int = 0, attempt: int = 0,
    signals: Signals | None = None, hosts: Sequence[str] = (),
) -> Managed:  # fmt: skip
    """The slot manager of a pilot.

    Args:
        hosts: of the group of nodes that it leads; empty: this one.
    """
    monkeypatch.setattr(manager, "TICK", 0.001)
    monkeypatch.setattr(journal, "use_large_pages", lambda: None)  # of the process of the tests
    each = pilot_attempt(sweep, pilot, attempt)
    mine = manager.manager_of(pilot, each, {})
    group = Group(mine, tuple(hosts or manager.hosts_of({})), 0)
    manifest = sweep.manifest()
    found = SlotManager(sweep, manifest, each, mine, group, {}, signals or Signals(), points)
    return Managed(found, packing_of(manifest).slots)


FIRST, SECOND = Manager(0, 0, 0, 0), Manager(0, 0, 0, 1)
BEGAN = ManagerBegan(host="a", job="1", slots=2, pid=1, start=1, namespace="elsewhere")


@dataclasses.dataclass
class Following:
    """A follower, and what the first node of its group writes: a step at each of its turns.

    Attributes:
        sweep: the sweep.
        points: the processes in place of parts.
        start: starts them.
        steps: functions that are called one after the other, each as soon as it returns something true.
    """

    sweep: Sweep
    points: Points
    steps: list[Callable[[], object]] = dataclasses.field(default_factory=list)
    signals: Signals = dataclasses.field(default_factory=Signals)
    start: Callable[[Attempt, Slot, Group], int] | None = None

    def leader(self, *events: PointBegan | PointEnded | ManagerBegan | ManagerEnded) -> bool:
        for event in events:
            Claims(self.sweep.path, 0).note(FIRST, event)
        return True

    def ends(self) -> list[tuple[int, int, int]]:
        """Point, attempt and exit code of the parts that have ended."""
        events = known(event_file.read(Claims(self.sweep.path, 0).journal(SECOND)))
        return [(event.point, event.attempt, event.code) for event in events if isinstance(event, PartEnded)]

    def run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(follower, "TICK", 0.001)
        stops = stops_of(self.sweep, SECOND)
        each = Follower(
            self.sweep, packing_of(self.sweep.manifest()), SECOND, Group(FIRST, ("a", "b"), 1), self.signals, stops,
            self.start or self.points,
        )  # fmt: skip
        wait = each._journal.wait

        def step(timeout: float) -> None:
            if self.steps and self.steps[0]():
                del self.steps[0]
            wait(timeout)

        monkeypatch.setattr(each._journal, "wait", step)
        each.run([Slot(0), Slot(1)])


@dataclasses.dataclass
class OtherNode:
    """The other node of a group of two: what its slot manager writes when a point begins.

    Attributes:
        sweep: the sweep.
        codes: exit codes of parts by point; None: the node is lost.
    """

    sweep: Sweep
    codes: Mapping[int, int | None]

    def __post_init__(self) -> None:
        self.note(ManagerBegan(host="b", job="1", slots=0, pid=1, start=1, namespace="elsewhere"))

    def note(self, event: Event) -> None:
        Claims(self.sweep.path, 0).note(SECOND, event)

    def __call__(self, point: int) -> None:
        code = self.codes.get(point, 0)
        attempt = self.sweep.run(point).attempts()[-1].number
        self.note(ManagerEnded() if code is None else PartEnded(point=point, attempt=attempt, code=code))


def grouped(folder: Path, count: int, codes: Mapping[int, int | None], **packing: int) -> tuple[Sweep, Points]:
    """A sweep whose points need two nodes, and end with these codes on both."""
    sweep = packed_sweep(folder, count, nodes=2, nodes_per_point=2, **packing)
    return sweep, Points(codes, before=OtherNode(sweep, codes))
