"""Makes sweeps for tests: a manifest, and points in any state."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.config.search_space import Dimension, Goal, Method
from launcher.plan.plan import JobPlan
from launcher.runs import event_files
from launcher.runs import events as kinds
from launcher.runs.directory import Run
from launcher.runs.point_claims import Claims, EntryKind, Manager
from launcher.runs.sweep_directory import OVERRIDES, Packing, SearchRecord, SearchSettings, Sweep, SweepManifest
from tests.unit.plans import plan_of

TOKEN = "launcher-1"


def make_sweep(
    folder: Path, count: int = 4, *, name: str = "lr-1", array: str | None = "100", first: int = 0,
    plan: JobPlan | None = None, common: Sequence[str] = ("workload=collective",), made: int | None = None,
    **manifest: Any,
) -> Sweep:  # fmt: skip
    """Makes a sweep with points that differ in workload.lr.

    Args:
        folder: the folder of runs.
        count: the number of points.
        name: the id of the sweep.
        array: the job in which all points from `first` on were submitted; None: no point was submitted.
        first: see `array`.
        plan: the plan of its points, apart from their ids and directories.
        common: overrides that all points have before their own.
        made: how many points have a directory; None: all.
        manifest: other fields of the manifest.
    """
    sweep = Sweep.create(folder / name)
    points = tuple((*common, f"workload.lr={index / 10:g}") for index in range(count))
    sweep.write(SweepManifest("lr", ("-m", "workload.lr=..."), points, **manifest))
    plan = plan or plan_of()
    for each in sweep.points()[:made]:
        run = Run.create(each.run.path)
        own = dataclasses.replace(plan, run_id=run.id, run_dir=str(run.path))
        run.write_record(own, {}, {"launcher": "1", "token": TOKEN, "overrides": list(each.overrides)}, sync=False)
    if array is not None:
        submit_array(sweep, range(first, count), array)
    return sweep


def submit_array(sweep: Sweep, points: Sequence[int], job: str, token: str = TOKEN) -> None:
    """Records that points were submitted as an array."""
    sweep.submitting(token, points)
    sweep.submitted(token, job)


def begin(run: Run, job: str | None = None, *, number: int = 0, step: int | None = None) -> Path:
    """Records the start of an attempt, in the run's element of array 100; returns the folder of its events."""
    events = run.path / "attempts" / str(number) / "events"
    events.mkdir(parents=True)
    (events.parent / "logs").mkdir()
    event_files.append(events / "script.jsonl", kinds.Started(job=job or f"100_{run.path.name}", host="node1"))
    if step is not None:
        event_files.append(events / "rank-0.jsonl", kinds.Progress(step=step, total=100))
    return events


def end(
    run: Run, code: int = 0, *, metrics: Mapping[str, Any] | None = None, fault: str = "", rank: int = 0,
    host: str = "node1", **begun: Any,
) -> None:  # fmt: skip
    """Records the start and the end of an attempt."""
    events = begin(run, **begun)
    if fault:
        event_files.append(events / "node-0.jsonl", kinds.Fault(error=fault, rank=rank, host=host))
    if metrics is not None:
        run.write_result(metrics)
    event_files.append(events / "script.jsonl", kinds.Ended(code=code))


def make_search(folder: Path, done: int, *, points: int, name: str = "search-1") -> Sweep:
    """Makes a search whose pilots have chosen and done some points, and are gone; points: its budget."""
    sweep = Sweep.create(folder / name)
    packing = Packing(pilots=2, nodes=1, slots=1, gpus=0, gpus_per_point=0, cpus_per_point=1, retries=0, lease=90.0)
    sweep.write(SweepManifest("lr", (), (), objective=("accuracy",), packing=packing, search=True))
    allow_points(sweep, points)
    Claims.create(sweep.path)
    for point in range(done):
        choose(sweep, point, EntryKind.DONE)
    return sweep


def allow_points(sweep: Sweep, points: int) -> None:
    """Sets the budget of a search."""
    space = {"workload.lr": Dimension(low=0, high=1)}
    SearchRecord(sweep.path).create(SearchSettings(Method.random, "accuracy", Goal.maximize, space, points=points), {})


def choose(sweep: Sweep, point: int, ended: EntryKind | None = None) -> None:
    """Records that a pilot has chosen the next point, and claimed it; ended: how the point has ended, if it has."""
    trial = {"op_code": 4, "state": 0, "user_attrs": {OVERRIDES: [f"workload.lr=0.{point}"]}}
    with SearchRecord(sweep.path).journal_file.open("a") as file:
        file.write(json.dumps(trial) + "\n")
    claims, manager = Claims(sweep.path, 0), Manager(0, 0, 0, 0)
    claims.add(point, 0, EntryKind.CLAIMED, manager)
    if ended is not None:
        claims.add(point, 1, ended, manager)
