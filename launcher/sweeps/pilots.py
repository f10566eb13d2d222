"""The pilots of a packed sweep: how many, what each asks for, and their submission.

A pilot is a run of its own, `SWEEP-pilot-K`, which is submitted, requeued and cancelled as any other. Its ranks are
slot managers (launcher/pilots), which take the points from the sweep's directory.
"""

from __future__ import annotations

import contextlib
import dataclasses
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
from launcher.monitoring.sweep import SweepMonitor, live_pilots, point_statuses
from launcher.paths import default_runs_dir
from launcher.runs import claims, event_file
from launcher.runs.claims import Claims, Kind, PointLog, State
from launcher.runs.directory import Run, token_of
from launcher.runs.events import ManagerEnded, ManagerIdle, Submitted, every
from launcher.runs.history import read_history
from launcher.runs.journal import journal_events
from launcher.runs.submitter_lock import only_submitter
from launcher.runs.sweep_directory import Packing, Sweep
from launcher.schedulers.idempotent_submit import Refused
from launcher.search.progress import look
from launcher.spec.plan import PILOT_ENTRY, JobPlan
from launcher.spec.sections import Workload
from launcher.submission.submit import facts_of_here, journal_jobs, start, tried

ENDS = 20.0  # seconds in which the job of a pilot whose slot managers have ended is over
LEAVING = (ManagerIdle.event, ManagerEnded.event)  # last events of slot managers that take no more points


def packing_of(config: Config, plan: JobPlan) -> Packing | None:
    """How the points of a sweep share pilots, from the config and the plan of its first point. Pure.

    Returns:
        None: each point has a job of its own, for neither sweep.slots nor sweep.pack is set.

    Raises:
        ConfigError: such points cannot share pilots, or keys of pilots are set where there are none.
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
            "sweep.parallelism is for points with jobs of their own: in pilots sweep.pack x sweep.nodes / nodes x "
            "sweep.slots points run at once"
        )
    nodes = sweep.nodes or plan.nodes
    if nodes % plan.nodes:
        few, many = nodes - nodes % plan.nodes, nodes - nodes % plan.nodes + plan.nodes
        fits = " or ".join(f"sweep.nodes={each}" for each in (few, many) if each)
        raise ConfigError(f"sweep.nodes={nodes}: points of nodes={plan.nodes} need a multiple of that: use {fits}")
    if plan.min_nodes < plan.nodes:
        raise ConfigError(
            f"min_nodes={plan.min_nodes}: a point in a pilot (sweep.slots, sweep.pack) has all of nodes={plan.nodes}; "
            "leave min_nodes out: a pilot goes on with the nodes that are left"
        )
    if plan.launch.mode == LaunchMode.tasks.value:
        raise ConfigError("launch=tasks: points in pilots (sweep.slots, sweep.pack) are started by agents")
    if plan.debugs:
        raise ConfigError("debug.rank: points in pilots (sweep.slots, sweep.pack) cannot be debugged: run one alone")
    slots = sweep.slots or 1
    if sweep.gpus is not None and sweep.gpus > slots * plan.gpus_per_node:
        raise ConfigError(
            f"sweep.gpus={sweep.gpus} is more than {slots} slots of gpus_per_node={plan.gpus_per_node} can use"
        )
    if plan.gpus_per_node and sweep.gpus is not None and sweep.gpus < plan.gpus_per_node:
        raise ConfigError(f"sweep.gpus={sweep.gpus} is less than a point asks for: gpus_per_node={plan.gpus_per_node}")
    return Packing(
        pilots=sweep.pack or 1, nodes=nodes, slots=slots, nodes_per_point=plan.nodes,
        gpus=slots * plan.gpus_per_node if sweep.gpus is None else sweep.gpus, gpus_per_point=plan.gpus_per_node,
        cpus_per_point=plan.cpus_per_node, retries=sweep.retries, lease=claims.LEASE,
    )  # fmt: skip


def plan_of(point: JobPlan, sweep: Sweep, packing: Packing, number: int) -> JobPlan:
    """The plan of a pilot. Pure.

    Args:
        point: the plan of a point; scripts of all points are the same but for the run.
        sweep: the sweep.
        packing: see `packing_of`.
        number: of the pilot.
    """
    run = sweep.pilot(number)
    params: dict[str, Any] = {
        "name": "pilot", "entry": PILOT_ENTRY, "min_ranks": 1, "backend": "gloo", "device": "cpu", "seed": point.seed,
        "hook": None, "target": None, "kwargs": {"sweep": str(sweep.path), "pilot": number}, "init": False,
        "checkpoint": f"{sweep.path}/{claims.CLAIMS}",  # a new claim is progress, for whoever requeues the pilot
    }  # fmt: skip
    workload = Workload(name="pilot", entry=PILOT_ENTRY, backend="gloo", device="cpu", kind="Function", params=params)
    return dataclasses.replace(
        point, run_id=run.path.name, run_dir=str(run.path), nodes=packing.nodes, min_nodes=packing.nodes_per_point,
        gpus_per_node=packing.gpus, procs_per_node=1, cpus_per_proc=packing.slots * packing.cpus_per_point,
        mem=point.mem and point.mem * packing.slots, track=(), workload=workload,
        launch=dataclasses.replace(point.launch, bind="none", visible_devices="all"),
        checkpoint=dataclasses.replace(point.checkpoint, dir=f"{run.path}/checkpoints"),
    )  # fmt: skip


@dataclass(frozen=True)
class SubmittedPilots:
    """What came of a submission.

    Attributes:
        jobs: the job of each pilot that was submitted, by its number.
        left: number of pilots that the scheduler does not take now.
        words: its words.
        over: whether none is needed, for all points are over, and no more will be chosen.
    """

    jobs: Mapping[int, str]
    left: int = 0
    words: str = ""
    over: bool = False


def submit(sweep: Sweep, packing: Packing, point: JobPlan, config: Mapping[str, Any]) -> SubmittedPilots:
    """Submits pilots until as many are live as the sweep is to have; the submitter's lock is held.

    A pilot that has ended with all points over is done, and a new one has another number.

    Args:
        sweep: the sweep, with its points.
        packing: of the sweep.
        point: the plan of a point.
        config: the resolved config of that point, for the record.

    Raises:
        SubmissionError: the scheduler refused the first one, or did not answer.
        RunError: the sweep is on a file system without hard links.
    """
    Claims.create(sweep.path)
    jobs: dict[int, str] = {}
    living = 0
    for number in count():
        if living == packing.pilots:
            break
        run = sweep.pilot(number)
        if run.recorded() and read_history(run).job_id is not None:
            state = _state(sweep, number)
            living += not state.over and not is_leaving(run)
            if state is RunState.DONE or not state.over:
                continue
        try:
            jobs[number] = _submit(sweep, plan_of(point, sweep, packing, number), number, config)
        except Refused as error:
            if not (jobs or living) or not error.job_limit:
                raise
            return SubmittedPilots(jobs, packing.pilots - living, str(error))
        living += 1
    return SubmittedPilots(jobs)


def _submit(sweep: Sweep, plan: JobPlan, number: int, config: Mapping[str, Any]) -> str:
    """Submits a pilot, or takes the job that an interrupted submission has left; its id."""
    run = sweep.pilot(number)
    if not run.recorded():
        Run.create(run.path)
        facts = {**facts_of_here(plan.submitted_in), **snapshot.facts(plan)}
        run.write_record(plan, config, {**facts, "token": token_of(plan.run_dir), "overrides": []})
    run.clear_marks()
    before = len(every(journal_events(run), Submitted))
    token = token_of(plan.run_dir) + (f"-r{before}" if before else "")
    with only_submitter(run.path):
        job = start(run, plan, token, resumed=tried(run, token))
        journal_jobs(run, plan, job.job_id, token)
    with contextlib.suppress(OSError):  # a convenience: commands also take a path
        run.link(default_runs_dir())
    return job.job_id


def _state(sweep: Sweep, number: int) -> RunState:
    """The state of a pilot; one whose slot managers have ended, and so see no points that are free now, is awaited."""
    folder, run, give_up = Claims(sweep.path, 0), sweep.pilot(number), time.monotonic() + ENDS
    while True:
        seen = status_of(run, JobMonitor())
        if seen.state is not RunState.RUNNING or time.monotonic() >= give_up:
            return seen.state
        mine = [each for each in folder.managers() if (each.pilot, each.attempt) == (number, seen.history.attempt)]
        ends = [event_file.first_and_last(folder.journal(each)) for each in mine]
        claiming = [events for events in ends if events and events[0].get("slots")]
        if not claiming or any(events[-1]["event"] not in LEAVING for events in claiming):
            return seen.state
        time.sleep(0.2)


def is_leaving(run: Run) -> bool:
    """Whether a pilot that is not over was asked to end, and so takes no more points."""
    return run.has("stop") or run.has("cancelled")


def clear_marks(run: Run) -> None:
    """Removes the marks that keep a point from running. It may run now, so it keeps its lease."""
    for name in ("stop", "cancelled"):
        run.unmark(name)


def start_again(sweep: Sweep, points: Sequence[int]) -> None:
    """Frees points that are over, so that pilots run them again. The others of a cancelled sweep stay cancelled.

    Points that a slot manager holds stay as they are: whether it is alive is not known by this machine's clock, and if
    it is dead, another one takes them over.
    """
    folder = Claims(sweep.path, 0)
    logs = folder.logs()
    if sweep.cancelled():  # for points that had not begun this mark was enough, and the caller removes it
        for point in set(range(len(sweep.manifest().points))) - set(points) - logs.keys():
            folder.add(point, 0, Kind.CANCELLED, None)
    for point in points:
        clear_marks(sweep.run(point))
        log = logs.get(point, PointLog())
        if log.begun and log.state is not State.HELD:
            folder.add(point, log.next, Kind.AGAIN, None)


def cancel(sweep: Sweep, points: Collection[int] | None, packing: Packing, *, kill: bool = False) -> dict[int, str]:
    """Ends points of a packed sweep; the submitter's lock is held.

    Args:
        sweep: the sweep; if all its points are meant, it is marked as cancelled.
        points: which; None: all.
        packing: of the sweep.
        kill: at once, where pilots run on this machine.

    Returns:
        What each was before; those that were over already are left out.

    Raises:
        RunError: a pilot runs on another machine.
        QueryError: a scheduler does not answer.
    """
    monitor = SweepMonitor()
    seen = [each for each in point_statuses(sweep, monitor, points, cancelled=False) if not each.over]
    board = monitor.boards.of(sweep, packing)
    for each in seen:
        if points is not None or board.log(each.point.index).begun:  # of others the sweep's mark is enough
            each.point.run.journal(cancelled(), sync=False)
            cancel_point(each.point.run)
    if points is None:
        for pilot in live_pilots(sweep, monitor):
            monitor.cancel(pilot.run, kill=kill)
    return {each.point.index: each.state for each in seen}


def staying(sweep: Sweep, monitor: JobMonitor) -> list[RunStatus]:
    """The pilots that are not over, and were not asked to end."""
    return [each for each in live_pilots(sweep, monitor) if not is_leaving(each.run)]


def throttle(sweep: Sweep, packing: Packing, most: int) -> SubmittedPilots:
    """Changes the number of pilots; the submitter's lock is held.

    Pilots that are too many stop: their points are stopped, and go on in the others. A pilot that waits is cancelled.

    Args:
        sweep: the sweep.
        packing: of the sweep.
        most: number of pilots.

    Raises:
        SubmissionError: the scheduler refused, or did not answer.
        QueryError: a scheduler does not answer.
    """
    manifest, monitor = sweep.manifest(), JobMonitor()
    packing = dataclasses.replace(packing, pilots=most)
    sweep.write(dataclasses.replace(manifest, packing=packing))
    for seen in staying(sweep, monitor)[most:]:
        if seen.state is RunState.QUEUED:
            monitor.cancel(seen.run)
        else:
            seen.run.mark("stop")
    if not chooses_more(sweep) and all(each.over for each in point_statuses(sweep)):
        return SubmittedPilots({}, over=True)
    point = sweep.run(0)
    return submit(sweep, packing, point.plan(), point.record()["config"])


def chooses_more(sweep: Sweep) -> bool:
    """Whether a search may choose more points; False also where there is none.

    Raises:
        UnavailableError, RunError: its files cannot be read now, or are damaged.
    """
    return sweep.manifest().search and not look(sweep)[1].over
