"""A slot manager whose points are processes that end at once with a code."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from launcher import processes
from launcher.agent.leader_connection import Signals
from launcher.pilots import manager
from launcher.pilots.manager import SlotManager
from launcher.pilots.point_fork import Slot
from launcher.runs.directory import Attempt, Run
from launcher.runs.point_claims import Claims
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

    def __call__(self, attempt: Attempt, slot: Slot, host: str) -> int:
        point = int(attempt.run.path.name)
        self.started.append(point)
        self.before(point)
        code = self.codes.get(point, 0)
        does = "exec sleep infinity" if code is None else f"exit {code}"
        # a fork of this process, which has torch, takes fifty times as long
        return os.posix_spawn("/bin/sh", ["sh", "-c", does], {}, setsigdef=[signal.SIGTERM])


def packed_sweep(folder: Path, count: int, **packing: float) -> Sweep:
    plan = plan_of(cluster={"scheduler": "local"})
    sweep = make_sweep(folder, count, array=None, plan=plan, packing=dataclasses.replace(PACKING, **packing))
    Claims.create(sweep.path)
    return sweep


class Managed:
    """The slot manager of a pilot on one node."""

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
    signals: Signals | None = None,
) -> Managed:  # fmt: skip
    """The slot manager of a pilot."""
    monkeypatch.setattr(processes, "LONE", 0.0)  # pytest-xdist's threads do not end
    monkeypatch.setattr(manager, "TICK", 0.001)
    monkeypatch.setattr(manager, "SOONEST", 0.01)
    monkeypatch.setattr(processes, "use_large_pages", lambda: None)  # of the process of the tests
    each = pilot_attempt(sweep, pilot, attempt)
    mine = manager.manager_of(pilot, each, {})
    manifest = sweep.manifest()
    packing = manifest.packing
    assert packing is not None
    found = SlotManager(
        sweep, len(manifest.points), packing, each, mine, socket.gethostname(), {}, signals or Signals(), points
    )
    return Managed(found, packing.slots)
