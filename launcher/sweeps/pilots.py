"""The pilots of a packed sweep: their number, plans, submission, cancelling and throttling.

A pilot is a run of its own, `SWEEP-pilot-K`, which is submitted, requeued and cancelled as any other. Its ranks are
slot managers (launcher/pilots), which claim points in the sweep's directory and run them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from launcher.config.schema import Config, LaunchMode
from launcher.environment import snapshot
from launcher.errors import ConfigError
from launcher.monitoring.packed import cancel_point
from launcher.monitoring.run_status import JobMonitor, RunStatus, cancelled, status_of
from launcher.monitoring.state import RunState
from launcher.monitoring.sweep import PointStatus, SweepMonitor, live_pilots, point_statuses
from launcher.paths import default_runs_dir
from launcher.runs import claims, event_file
from launcher.runs.claims import Claims, EntryKind, PointLog, State
from launcher.runs.directory import Run, token_of
from launcher.runs.events import ManagerEnded, ManagerIdle, every
from launcher.runs.events import Submitted as JobSubmitted
from launcher.runs.history import journal_events, read_history
from launcher.runs.lease import only_submitter
from launcher.runs.sweep_directory import Packing, Sweep
from launcher.schedulers.run_command import SubmissionRefused
from launcher.search.progress import look
from launcher.spec.plan import PILOT_ENTRY, JobPlan
from launcher.spec.sections import Workload
from launcher.submission.submit import SubmittedRun, facts_of_here, start, tried

ENDS = 20.0  # seconds to wait for the end of a pilot's job after its slot managers have ended
LEAVING = (ManagerIdle.event, ManagerEnded.event)  # a slot manager whose last event is one of these claims no more


def packing_of(config: Config, plan: JobPlan) -> Packing | None:
    """Returns how the points of a sweep, by config and plan of its first one, share pilots; None: they do not.

    Raises ConfigError: such points cannot share pilots, or keys of pilots are set in a sweep without pilots.
    """
    sweep = config.sweep
    if sweep.slots is None and sweep.pack is None:
        if sweep.nodes is not None or sweep.gpus is not None:
            key = "sweep.gpus" if sweep.gpus is not None else "sweep.nodes"
            raise ConfigError(f"{key} is of pilots, and this sweep has none: add sweep.slots or sweep.pack")
        return None
    for key, value in (("slots", sweep.slots), ("pack", sweep.pack), ("nodes", sweep.nodes)):
        if value is not None and value < 1:
            raise ConfigError(f"sweep.{key}={value}: it must be 1 or more")
    if sweep.parallelism is not None:
        raise ConfigError(
            "sweep.parallelism is for points with jobs of their own: in pilots sweep.pack x sweep.nodes x "
            "sweep.slots points run at once"
        )
    if plan.nodes > 1:
        fix = (
            "Use nodes=1, and sweep.nodes for the nodes of each pilot"
            if sweep.search is not None
            else "Leave sweep.slots, sweep.pack and sweep.nodes out: each point then has a job, or an element of a job "
            "array, on nodes of its own"
        )
        kind = "sweep.search" if sweep.search is not None else "sweep.slots, sweep.pack"
        raise ConfigError(f"{plan.nodes_key}={plan.nodes}: a point in a pilot ({kind}) runs on one node. {fix}")
    if plan.launch.mode == LaunchMode.tasks.value:
        raise ConfigError("launch=tasks: points in pilots (sweep.slots, sweep.pack) are started by agents")
    if plan.debugs:
        raise ConfigError(
            "debug.rank: points in pilots (sweep.slots, sweep.pack) cannot be debugged: submit one as a single run"
        )
    slots = sweep.slots or 1
    if sweep.gpus is not None and sweep.gpus > slots * plan.gpus_per_node:
        raise ConfigError(
            f"sweep.gpus={sweep.gpus} is more than {slots} slots of gpus_per_node={plan.gpus_per_node} can use"
        )
    if plan.gpus_per_node and sweep.gpus is not None and sweep.gpus < plan.gpus_per_node:
        raise ConfigError(f"sweep.gpus={sweep.gpus} is less than a point asks for: gpus_per_node={plan.gpus_per_node}")
    return Packing(
        pilots=sweep.pack or 1, nodes=sweep.nodes or 1, slots=slots,
        gpus=slots * plan.gpus_per_node if sweep.gpus is None else sweep.gpus, gpus_per_point=plan.gpus_per_node,
        cpus_per_point=plan.cpus_per_node, retries=sweep.retries, lease=claims.LEASE,
    )  # fmt: skip


def plan_of(point: JobPlan, sweep: Sweep, packing: Packing, number: int) -> JobPlan:
    """Returns the plan of a pilot, from that of any point: their job scripts differ in the run's id only."""
    run = sweep.pilot(number)
    params: dict[str, Any] = {
        "name": "pilot", "entry": PILOT_ENTRY, "min_ranks": 1, "backend": "gloo", "device": "cpu", "seed": point.seed,
        "hook": None, "target": None, "kwargs": {"sweep": str(sweep.path), "pilot": number}, "init": False,
        "checkpoint": f"{sweep.path}/{claims.CLAIMS}",  # so a new claim counts as progress when the pilot is requeued
    }  # fmt: skip
    workload = Workload(name="pilot", entry=PILOT_ENTRY, backend="gloo", device="cpu", kind="Function", params=params)
    return dataclasses.replace(
        point, run_id=run.path.name, run_dir=str(run.path), nodes=packing.nodes, min_nodes=1,
        gpus_per_node=packing.gpus, procs_per_node=1, cpus_per_proc=packing.slots * packing.cpus_per_point,
        mem=point.mem and point.mem * packing.slots, track=(), workload=workload,
        launch=dataclasses.replace(point.launch, bind="none", visible_devices="all"),
        checkpoint=dataclasses.replace(point.checkpoint, dir=f"{run.path}/checkpoints"),
    )  # fmt: skip


@dataclass(frozen=True)
class SubmittedPilots:
    """The result of a submission of pilots."""

    jobs: Mapping[int, SubmittedRun]  # the pilots that were submitted, by their numbers
    left: int = 0  # number of pilots that the scheduler does not accept now
    words: str = ""  # the message with which the scheduler refused the pilots counted in `left`
    # how many pilots the points that are left can use, if these are fewer than asked for; None: as many
    enough: int | None = None


def submit(
    sweep: Sweep, packing: Packing, point: JobPlan, config: Mapping[str, Any], *, by_hand: bool = False
) -> SubmittedPilots:
    """Submits pilots until `packing.pilots` are live, or the points use no more; needs the submitter's lock.

    A pilot that failed or was stopped is submitted again; one that is done keeps its number, and a new one gets the
    next.
    Raises SubmissionError: the scheduler refused a pilot for another reason than a limit of jobs, or accepted none
        while no pilot is live, or did not respond.
    Raises RunError: the sweep is on a file system without hard links.
    """
    Claims.create(sweep.path)
    jobs: dict[int, SubmittedRun] = {}
    living, wanted = 0, packing.pilots
    if not chooses_more(sweep):
        left = sum(not each.over for each in point_statuses(sweep))
        wanted = min(wanted, math.ceil(left / dataclasses.replace(packing, pilots=1).at_once))
    enough = wanted if wanted < packing.pilots else None
    for number in count():
        if living == wanted:
            break
        run = sweep.pilot(number)
        if run.recorded() and read_history(run).job_id is not None:
            state = _state(sweep, number)
            living += not state.over and not is_leaving(run)
            if state is RunState.DONE or not state.over:
                continue
        try:
            jobs[number] = _submit(sweep, plan_of(point, sweep, packing, number), number, config, by_hand=by_hand)
        except SubmissionRefused as error:
            if not (jobs or living) or not error.job_limit:
                raise
            return SubmittedPilots(jobs, wanted - living, str(error), enough)
        living += 1
    return SubmittedPilots(jobs, enough=enough)


def _submit(sweep: Sweep, plan: JobPlan, number: int, config: Mapping[str, Any], *, by_hand: bool) -> SubmittedRun:
    # Submits a pilot, unless an interrupted submission has left a job of it
    run = sweep.pilot(number)
    if not run.recorded():
        Run.create(run.path)
        facts = {**facts_of_here(plan.submitted_in), **snapshot.facts(plan)}
        run.write_record(plan, config, {**facts, "token": token_of(plan.run_dir), "overrides": []})
    run.clear_marks()
    before = len(every(journal_events(run), JobSubmitted))
    token = token_of(plan.run_dir) + (f"-r{before}" if before else "")
    with only_submitter(run.path):
        submitted = start(run, plan, token, resumed=tried(run, token), by_hand=by_hand)
    with contextlib.suppress(OSError):  # a convenience: commands also take a path
        run.link(default_runs_dir())
    return submitted


def _state(sweep: Sweep, number: int) -> RunState:
    # If all slot managers of a running pilot have stopped claiming points, it waits up to ENDS seconds for the job's
    # end, because such a pilot would not run points that are freed now.
    folder, run, give_up = Claims(sweep.path, 0), sweep.pilot(number), time.monotonic() + ENDS
    while True:
        seen = status_of(run, JobMonitor())
        if seen.state is not RunState.RUNNING or time.monotonic() >= give_up:
            return seen.state
        mine = [each for each in folder.managers() if (each.pilot, each.attempt) == (number, seen.history.attempt)]
        found = [events for each in mine if (events := event_file.first_and_last(folder.journal(each)))]
        if not found or any(events[-1]["event"] not in LEAVING for events in found):
            return seen.state
        time.sleep(0.2)


def is_leaving(run: Run) -> bool:
    """Returns whether a pilot was asked to stop or cancelled, so that it claims no more points."""
    return run.has("stop") or run.has("cancelled")


def clear_marks(run: Run) -> None:
    """Removes a point's marks `stop` and `cancelled`; keeps its lease, because the point may be running."""
    for name in ("stop", "cancelled"):
        run.unmark(name)


def start_again(sweep: Sweep, points: Sequence[int]) -> None:
    """Frees points that are over, so that pilots run them again; in a cancelled sweep, other points stay cancelled.

    Points that a slot manager holds are not freed: this command cannot tell whether the manager is alive, and if it is
    dead, another one takes over its points.
    """
    folder = Claims(sweep.path, 0)
    logs = folder.logs()
    if sweep.cancelled():  # the caller removes this mark, so points that it alone cancelled need an entry now
        for point in set(range(len(sweep.manifest().points))) - set(points) - logs.keys():
            folder.add(point, 0, EntryKind.CANCELLED, None)
    for point in points:
        clear_marks(sweep.run(point))
        log = logs.get(point, PointLog())
        if log.begun and log.state is not State.HELD:
            folder.add(point, log.next, EntryKind.AGAIN, None)


def cancel_points(sweep: Sweep, points: Collection[int] | None, packing: Packing) -> list[PointStatus]:
    """Cancels points of a packed sweep (None: all, once it is marked), but no pilot; needs the submitter's lock."""
    monitor = SweepMonitor()
    seen = [each for each in point_statuses(sweep, monitor, points, cancelled=False) if not each.over]
    board = monitor.boards.of(sweep, packing)
    for each in seen:
        if points is not None or board.log(each.point.index).begun:  # for others, the sweep's mark is enough
            each.point.run.journal(cancelled(), sync=False)
            cancel_point(each.point.run)
    return seen


def staying(sweep: Sweep, monitor: JobMonitor) -> list[RunStatus]:
    """Returns the pilots of a packed sweep that are not over, and were not asked to stop, sorted by number."""
    return [each for each in live_pilots(sweep, monitor) if not is_leaving(each.run)]


def throttle(sweep: Sweep, packing: Packing, most: int) -> SubmittedPilots:
    """Changes the number of pilots of a packed sweep: submits pilots or stops some; needs the submitter's lock.

    A surplus pilot is cancelled if it is queued. If it runs, it stops, and its points continue in other pilots.
    Raises SubmissionError, QueryError.
    """
    manifest, monitor = sweep.manifest(), JobMonitor()
    packing = dataclasses.replace(packing, pilots=most)
    sweep.write(dataclasses.replace(manifest, packing=packing))
    for seen in staying(sweep, monitor)[most:]:
        if seen.state is RunState.QUEUED:
            monitor.cancel(seen.run)
        else:
            seen.run.mark("stop")
    point = sweep.run(0)
    return submit(sweep, packing, point.plan(), point.record()["config"])


def chooses_more(sweep: Sweep) -> bool:
    """Returns whether a sweep is a search that may choose more points; raises RunError."""
    return sweep.manifest().search and not look(sweep)[1].over
