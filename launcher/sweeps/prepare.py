"""Plans and checks all points of a sweep, before anything is submitted, and divides them among job arrays or pilots.

Of a search, a few representative points are planned and checked instead.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib.util
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher import redaction
from launcher.config.errors import with_place
from launcher.config.overrides import require_cluster
from launcher.config.schema import BestIs, Config, LaunchMode, ResumeHow
from launcher.config.search_space import Goal, Method, Space, size
from launcher.config.search_space import overrides as overrides_of
from launcher.environment import container_command
from launcher.environment import secrets as secret
from launcher.errors import ConfigError, RunError
from launcher.paths import with_ending
from launcher.plan import limits
from launcher.plan.build import check_name, refuse_unusable
from launcher.plan.plan import PILOT_ENTRY, JobPlan, Workload, from_dict, keys_of, plan_misfit
from launcher.runs import directory, point_claims, sweep_directory
from launcher.runs.sweep_directory import Packing, SearchRecord, SearchSettings, Sweep, SweepManifest
from launcher.search.point_template import template_of
from launcher.search.progress import look
from launcher.submission import prepare, render
from launcher.submission.prepare import Inputs, check_capacity, held_allocation, planned, site_of
from launcher.submission.submit import OF_THE_COMMAND, different_keys, facts_of_here

# Keys and sections of a plan that only ranks read, so that they do not change the job script.
RANK_KEYS = (
    "workload", "train", "seed", "preflight", "resume.strict", "checkpoint.every", "checkpoint.every_steps",
    "checkpoint.keep", "checkpoint.best", "checkpoint.best_is", "checkpoint.background", "checkpoint.verify",
)  # fmt: skip


def array_plan(plan: JobPlan, sweep_id: str, folder: Path) -> JobPlan:
    """Returns the plan for the job script of a point's array, for which any point can stand: see RANK_KEYS."""
    own = plan.checkpoint.dir == f"{plan.run_dir}/checkpoints"
    checkpoints = f"{folder}/checkpoints" if own else plan.checkpoint.dir
    return dataclasses.replace(
        plan, run_id=sweep_id, run_dir=str(folder), checkpoint=dataclasses.replace(plan.checkpoint, dir=checkpoints)
    )


def groups(
    plans: Mapping[int, JobPlan], sweep_id: str, folder: Path,
    naming: Callable[[int], AbstractContextManager[object]] = nullcontext,
) -> list[tuple[JobPlan, tuple[int, ...]]]:  # fmt: skip
    """Groups points into arrays, each with its plan; naming: adds the point to errors in its block; ConfigError."""
    texts: dict[tuple[object, ...], str] = {}
    found: dict[str, tuple[JobPlan, list[int]]] = {}
    for index, plan in plans.items():
        shared = array_plan(plan, sweep_id, folder)
        key = _key(shared)
        if key not in texts:
            with naming(index):
                text = render.rendered(shared, token="", array="0-1", elements=folder / "arrays" / "0")
                texts[key] = text.script + text.job
        found.setdefault(texts[key], (shared, []))[1].append(index)
    return [(shared, tuple(members)) for shared, members in found.values()]


def _key(plan: JobPlan) -> tuple[object, ...]:
    own = (
        repr(value) if isinstance(value, (Mapping, list)) else value
        for name, value in keys_of(plan).items()
        if name not in RANK_KEYS and name.partition(".")[0] not in RANK_KEYS
    )
    return (*own, *container_command.srun_options(plan))  # these contain folders that RANK_KEYS set


def shares(parallelism: int | None, sizes: Sequence[int]) -> list[int | None]:
    """Divides how many points may run at once among arrays in proportion; each gets one, or it would never end."""
    if parallelism is None:
        return [None] * len(sizes)
    rest, total = max(parallelism - len(sizes), 0), sum(sizes)
    shares = [min(1 + rest * size // total, size) for size in sizes]
    largest = sorted(range(len(sizes)), key=lambda index: -sizes[index])
    while (left := min(parallelism, total) - sum(shares)) > 0:
        open_ = [index for index in largest if shares[index] < sizes[index]]
        for index in open_[:left]:
            shares[index] = min(shares[index] + max(left // len(open_), 1), sizes[index])
    return list(shares)


# -- The points


@dataclass(frozen=True)
class RequestedPoint:
    overrides: tuple[str, ...]  # overrides of the point
    config: Config  # config of the point
    resolved: Mapping[str, Any]  # the config as plain mappings, with all interpolations resolved


@dataclass(frozen=True)
class PreparedSweep:
    """A sweep that has passed every check and can be submitted."""

    path: Path  # directory of the sweep
    existing: SweepManifest | None  # the manifest of an earlier command in the directory; None: the sweep is new
    manifest: SweepManifest  # the manifest to write: the existing points, then the new ones
    order: tuple[int, ...]  # numbers of the points that the command line asks for, in its order
    points: Mapping[int, RequestedPoint]  # the points that the command line asks for, by number
    plans: Mapping[int, JobPlan]  # plan of each point in `points`, by number
    groups: Sequence[tuple[JobPlan, tuple[int, ...]]]  # plan of each array, and the numbers of its points
    notes: tuple[str, ...]  # messages for the user
    secrets: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)  # are not written to files
    pilots: Mapping[int, JobPlan] = dataclasses.field(default_factory=dict)  # empty: each point has a job of its own
    # Of a search, whose points are representative ones, and whose manifest has none:
    settings: SearchSettings | None = None  # what is searched, and how; None: it is no search
    template: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # for the records of its points


def id_of(command: Sequence[str], name: str) -> str:
    """Returns the id of the sweep that a command line asks for: `NAME-` and a hash of its overrides, sorted."""
    kept = sorted(
        each for each in command
        if ("=" in each or each.startswith("~"))
        and (key := sweep_directory.key_of(each)) not in sweep_directory.COMMAND_KEYS
        and not key.startswith(("-", "sweep."))
    )  # fmt: skip
    return with_ending(name, f"-{hashlib.sha256(repr(kept).encode()).hexdigest()[:8]}")


def prepare_sweep(points: Sequence[RequestedPoint], command: Sequence[str]) -> PreparedSweep:
    """Plans and checks all points of a command line, without writing files. Raises ConfigError: it cannot run."""
    points = [dataclasses.replace(each, config=prepare.with_pool(each.config)) for each in points]
    first = points[0].config
    require_cluster(command, first.cluster.scheduler)
    refuse_unusable("sweep.", first.sweep)
    _refuse_keys_of_one(points)
    secrets = secret.in_common(prepare.secrets_of(each.config) for each in points)
    names = redaction.all_patterns(first.env.secrets)
    command = secret.redact_overrides(command, names)
    points = [
        dataclasses.replace(
            each, overrides=tuple(secret.redact_overrides(each.overrides, names)),
            resolved=secret.redact_config(each.resolved, names),
        )
        for each in points
    ]  # fmt: skip
    hidden = {**redaction.secrets_in(os.environ, names), **secrets}
    for each in points:
        secret.require_absent({**each.resolved, "overrides": each.overrides}, hidden)
    name = first.name if all(each.config.name == first.name for each in points) else "sweep"
    sweep_id = id_of(command, check_name("name", name)) if first.sweep.id is None else first.sweep.id
    path = prepare.folder_of(first, check_name("sweep.id", sweep_id))
    existing = Sweep(path).manifest() if Sweep(path).recorded() else None
    recorded = list(existing.points) if existing else []
    known = {overrides: index for index, overrides in enumerate(recorded)}
    by_index: dict[int, RequestedPoint] = {}
    order = []
    for each in points:
        overrides = sweep_directory.canonical(each.overrides)
        if overrides not in known:
            known[overrides] = len(recorded)
            recorded.append(overrides)
        order.append(known[overrides])
        by_index.setdefault(known[overrides], each)
    objective = first.sweep.objective
    manifest = SweepManifest(
        name=name,
        command=existing.command if existing else tuple(command),
        points=tuple(recorded),
        objective=tuple([objective] if isinstance(objective, str) else objective or ()),
        best_is=first.sweep.best_is.value,
        parallelism=first.sweep.parallelism,
    )
    if existing is not None:  # what the command does not set stays as it is
        if objective is None:
            manifest = dataclasses.replace(manifest, objective=existing.objective, best_is=existing.best_is)
        if first.sweep.parallelism is None:
            manifest = dataclasses.replace(manifest, parallelism=existing.parallelism)
    sweep_directory.text_of(manifest)  # refused here, before anything is written
    plans, notes = _plans(by_index, manifest, sweep_id, os.environ)
    keys = sweep_directory.differing(recorded)
    arrays = groups(plans, sweep_id, path, lambda index: _naming(index, by_index[index].overrides, keys))
    asking, manifest = _pilots(first, manifest, existing, arrays, plans, Sweep(path))
    packing = manifest.packing
    for _, members in arrays:
        plan, point = asking[0] if asking else plans[members[0]], by_index[members[0]]
        config, slots = point.config, packing.slots if packing else 0
        named = _naming(members[0], point.overrides, keys, slots)
        with named, with_place(point.overrides):
            held, jobs = held_allocation(config, os.environ), 0 if existing else 1  # the rest can be submitted later
            notes.update(dict.fromkeys(check_capacity(plan, config, os.environ, held, jobs)))
    return PreparedSweep(
        path, existing, manifest, tuple(order), by_index, plans, arrays, tuple(notes), secrets, asking
    )  # fmt: skip


def _pilots(
    config: Config, manifest: SweepManifest, existing: SweepManifest | None,
    arrays: Sequence[tuple[JobPlan, tuple[int, ...]]], plans: Mapping[int, JobPlan], sweep: Sweep,
) -> tuple[dict[int, JobPlan], SweepManifest]:  # fmt: skip
    number = arrays[0][1][0]
    point = plans[number]
    packing = packing_of(config, point)
    if existing is not None and (existing.packing is None) != (packing is None):
        there, fix = ("have jobs of their own", "leave sweep.slots and sweep.pack out") if packing else (
            "share pilots", "set sweep.slots or sweep.pack as well"
        )  # fmt: skip
        raise ConfigError(f"the points of {sweep.id} are there already and {there}: {fix}, or choose another sweep.id")
    if packing is None:
        return {}, manifest
    if existing is not None and existing.packing is not None and config.sweep.pack is None:
        packing = dataclasses.replace(packing, pilots=existing.packing.pilots)
    earlier = existing is None or not existing.search  # those of a search are compared in `_require_room`
    if len(arrays) == 1 and 0 not in plans and earlier and sweep.run(0).recorded():  # they share the pilots, too
        of_command = {each.partition(".")[0] for each in OF_THE_COMMAND}
        before = dataclasses.replace(sweep.run(0).plan(), **{name: getattr(point, name) for name in of_command})
        arrays = groups({0: before, number: point}, sweep.id, sweep.path)
    if len(arrays) > 1:
        one, other = arrays[0][1][0], arrays[1][1][0]
        raise ConfigError(
            f"points {one} and {other} ask for different jobs, and cannot share pilots (sweep.slots, sweep.pack): only "
            "what ranks see may differ (workload, train, seed, ...); make a sweep of each"
        )
    found = {number: plan_of(point, sweep, packing, number) for number in range(packing.pilots)}
    with _naming(0, (), (), packing.slots):
        limits.check_limits(found[0], config.cluster)
    render.script(found[0], token="")
    return found, dataclasses.replace(manifest, packing=packing)


def _refuse_keys_of_one(points: Sequence[RequestedPoint]) -> None:
    overrides = [override for each in points for override in each.overrides]
    if run_id := next((each for each in overrides if sweep_directory.key_of(each) == "run_id"), None):
        raise ConfigError(f"{run_id} names one run, and a sweep's points are SWEEP/0, SWEEP/1, ...: use sweep.id")
    differing = sweep_directory.differing([each.overrides for each in points])
    for key in differing:
        if key in sweep_directory.COMMAND_KEYS or key.startswith("sweep."):
            raise ConfigError(f"{key} is for the whole sweep: it cannot differ between points")


def _plans(
    points: Mapping[int, RequestedPoint], manifest: SweepManifest, sweep_id: str, environ: Mapping[str, str]
) -> tuple[dict[int, JobPlan], dict[str, None]]:
    keys = sweep_directory.differing(manifest.points)
    plans: dict[int, JobPlan] = {}
    inputs = Inputs()
    notes: dict[str, None] = {}
    folders: dict[str, int] = {}
    for index, each in points.items():
        with _naming(index, each.overrides, keys), with_place(each.overrides):
            held = held_allocation(each.config, environ)
            plan, plan_notes = planned(each.config, site_of(each.config, f"{sweep_id}/{index}", held), inputs)
            if plan.queued and plan.resume.how == ResumeHow.chain.value:
                raise ConfigError("resume.how=chain is for single runs: use resubmit or requeue in a sweep")
            if each.config.cluster.race:
                raise ConfigError("cluster.race is for single runs: leave it out of a sweep")
            if (other := folders.setdefault(plan.checkpoint.dir, index)) != index:
                raise ConfigError(f"checkpoint.dir={plan.checkpoint.dir}: point {other} has the same one: leave it out")
        plans[index] = plan
        notes.update(dict.fromkeys(plan_notes))
    return plans, notes


@contextlib.contextmanager
def _naming(index: int, overrides: Sequence[str], keys: Sequence[str], slots: int = 0) -> Iterator[None]:
    # Names a point in errors, or what its pilots (of so many slots) ask for
    try:
        yield
    except ConfigError as error:
        who = f"point {index} ({sweep_directory.label(overrides, keys) or 'the only one'})"
        who = f"sweep.slots={slots}: a pilot asks for {slots} times what a point does" if slots else who
        raise ConfigError(f"{who}: {error}") from None


# -- The pilots of a packed sweep
#
# A pilot is a run of its own, `SWEEP-pilot-K`, which is submitted, requeued and cancelled as any other. Its ranks are
# slot managers (launcher/pilots), which claim points in the sweep's directory and run them.


def packing_of(config: Config, plan: JobPlan) -> Packing | None:
    """Returns how points share pilots, by config and plan of the first; None: they do not; ConfigError: they cannot."""
    sweep = config.sweep
    if sweep.slots is None and sweep.pack is None and sweep.search is None:
        if sweep.nodes is not None or sweep.gpus is not None:
            key = "sweep.gpus" if sweep.gpus is not None else "sweep.nodes"
            raise ConfigError(f"{key} is for pilots, and this sweep has none: add sweep.slots or sweep.pack")
        return None
    if sweep.parallelism is not None:
        at_once = "sweep.pack x sweep.nodes x sweep.slots points run at once"
        raise ConfigError(f"sweep.parallelism is for points with jobs of their own: in pilots {at_once}")
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
        raise ConfigError("debug.rank: points in pilots cannot be debugged: submit one as a single run")
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
        cpus_per_point=plan.cpus_per_node, retries=sweep.retries, lease=point_claims.LEASE,
    )  # fmt: skip


def plan_of(point: JobPlan, sweep: Sweep, packing: Packing, number: int) -> JobPlan:
    """Returns the plan of a pilot, from that of any point: their job scripts differ in the run's id only."""
    run = sweep.pilot(number)
    params: dict[str, Any] = {
        "name": "pilot", "entry": PILOT_ENTRY, "min_ranks": 1, "backend": "gloo", "device": "cpu", "seed": point.seed,
        "hook": None, "target": None, "kwargs": {"sweep": str(sweep.path), "pilot": number}, "init": False,
        "checkpoint": f"{sweep.path}/{point_claims.CLAIMS}",  # new claims count as progress when the pilot is requeued
    }  # fmt: skip
    workload = Workload(name="pilot", entry=PILOT_ENTRY, backend="gloo", device="cpu", kind="Function", params=params)
    return dataclasses.replace(
        point, run_id=run.path.name, run_dir=str(run.path), nodes=packing.nodes, min_nodes=1,
        gpus_per_node=packing.gpus, procs_per_node=1, cpus_per_proc=packing.slots * packing.cpus_per_point,
        mem=point.mem and point.mem * packing.slots, track=(), workload=workload,
        launch=dataclasses.replace(point.launch, bind="none", visible_devices="all"),
        checkpoint=dataclasses.replace(point.checkpoint, dir=f"{run.path}/checkpoints"),
    )  # fmt: skip


# -- Prepares a search: a sweep whose pilots choose its points while they run (sweep.search). Representative points are
# planned and checked; from their records comes the template for those of all points (search/point_template.py)


def representatives(space: Space, fixed: Sequence[str]) -> list[tuple[str, ...]]:
    """Returns representative points: the first has the first value of each key, the others differ in one key."""
    first = {key: each.ends()[0] for key, each in space.items()}
    others = [{**first, key: text} for key, each in space.items() for text in each.ends()[1:]]
    return [overrides_of(values, fixed) for values in (first, *others)]


def with_search_defaults(config: Config) -> Config:
    """Returns a point's config with sweep.goal, by default as sweep.best_is says, and best_is as the goal says.

    Raises ConfigError: Optuna is not installed, there is not exactly one objective, or a value is not valid.
    """
    sweep = config.sweep
    assert sweep.search is not None
    if importlib.util.find_spec("optuna") is None:
        raise ConfigError(f"sweep.search={sweep.search.value} needs Optuna: pip install 'launcher[optuna]'")
    if not isinstance(sweep.objective, str):
        raise ConfigError(f"sweep.search={sweep.search.value} compares points by a metric: sweep.objective=accuracy")
    if sweep.asha.reduction_factor < 2:
        raise ConfigError(f"sweep.asha.reduction_factor={sweep.asha.reduction_factor}: it must be 2 or more")
    if sweep.budget.gpu_hours is not None and sweep.budget.gpu_hours <= 0:
        raise ConfigError(f"sweep.budget.gpu_hours={sweep.budget.gpu_hours}: it must be more than 0")
    goal = sweep.goal or (Goal.maximize if sweep.best_is is BestIs.max else Goal.minimize)
    best_is = BestIs.max if goal is Goal.maximize else BestIs.min
    return dataclasses.replace(config, sweep=dataclasses.replace(sweep, goal=goal, best_is=best_is))


def prepare_search(points: Sequence[RequestedPoint], space: Space, command: Sequence[str]) -> PreparedSweep:
    """Plans and checks the `representatives` of a search, instead of all points; ConfigError: it cannot run, or end."""
    config = points[0].config
    prepared = prepare_sweep(points, command)
    first = prepared.points[prepared.order[0]]
    fixed = tuple(each for each in first.overrides if each.partition("=")[0] not in space)
    settings = _settings(config, prepared.plans[prepared.order[0]], space, fixed)
    if settings.method is Method.grid and size(space) is None:
        raise ConfigError("sweep.search=grid needs keys with a list of values: 'workload.lr=0.1,0.01'")
    if size(space) is None and settings.points is None and settings.gpu_hours is None:
        raise ConfigError("the search would never end: set sweep.budget.points=100, or sweep.budget.gpu_hours=50")
    template = _template(prepared, space)
    _require_room(prepared, settings, template)
    manifest = dataclasses.replace(prepared.manifest, points=(), search=True)
    return dataclasses.replace(prepared, manifest=manifest, settings=settings, template=template)


def _settings(config: Config, plan: JobPlan, space: Space, fixed: tuple[str, ...]) -> SearchSettings:
    sweep = config.sweep
    assert sweep.search is not None and sweep.goal is not None
    return SearchSettings(
        method=sweep.search, objective=sweep.objective, goal=sweep.goal, space=space, fixed=fixed,
        points=sweep.budget.points, gpu_hours=sweep.budget.gpu_hours, seed=sweep.seed,
        devices=plan.nodes * (plan.gpus_per_node or 1), devices_are_gpus=plan.gpus_per_node > 0,
        min_steps=sweep.asha.min_steps, reduction_factor=sweep.asha.reduction_factor,
    )  # fmt: skip


def _require_room(prepared: PreparedSweep, settings: SearchSettings, template: Mapping[str, Any]) -> None:
    existing, record = prepared.existing, SearchRecord(prepared.path)
    if existing is None:
        return
    if not existing.search:
        raise ConfigError(f"{prepared.path.name} is a sweep with a list of points: choose another sweep.id")
    before, journal = record.settings(), record.journal()
    for name in ("objective", "goal", "space"):
        if getattr(before, name) != getattr(settings, name):
            raise ConfigError(f"{prepared.path.name} is a search with another {name}: choose another sweep.id")
    theirs = record.template()["record"]["plan"]
    if wrong := plan_misfit(theirs):
        raise RunError(f"{record.folder}/template.json was written by another version: {wrong}")
    found = different_keys(from_dict(template["record"]["plan"]), from_dict(theirs))
    if different := [key for key in found if key not in OF_THE_COMMAND]:
        words = f"other values of {', '.join(different)}"
        raise ConfigError(f"{prepared.path.name} is a search with {words}: choose another sweep.id")
    over = all(each.state.over for each in journal.trials)
    spent = look(Sweep(prepared.path))[1].hours
    if over and settings.points is not None and len(journal.trials) >= settings.points:
        raise ConfigError(
            f"sweep.budget.points={settings.points} is spent: {prepared.path.name} has {len(journal.trials)}: raise it"
        )
    if over and settings.gpu_hours is not None and spent >= settings.gpu_hours:
        raise ConfigError(f"sweep.budget.gpu_hours={settings.gpu_hours:g} is spent ({spent:.3g}): raise it to go on")


def _template(prepared: PreparedSweep, space: Space) -> dict[str, Any]:
    inputs, sweep_id = Inputs(), prepared.path.name
    points = [prepared.points[index] for index in prepared.order]
    facts: dict[str, Any] = {}

    def record(point: RequestedPoint, number: int) -> dict[str, Any]:
        site = site_of(point.config, f"{sweep_id}/{number}", held_allocation(point.config, os.environ))
        plan, _ = planned(point.config, site, inputs)
        if not facts:
            facts.update(facts_of_here(plan.submitted_in))
        found: dict[str, Any] = json.loads(json.dumps(directory.record_of(plan, point.resolved, facts)))
        return found

    first, moved = record(points[0], 0), record(points[0], 1)
    rest = iter(points[1:])
    others = {
        key: {text: first if number == 0 else record(next(rest), 0) for number, text in enumerate(each.ends())}
        for key, each in space.items()
    }
    return template_of(first, moved, others, space, (f"{sweep_id}/0", f"{sweep_id}/1"))
