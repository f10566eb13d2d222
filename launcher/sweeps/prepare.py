"""Plans and checks all points of a sweep, before anything is submitted, and divides them among job arrays."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher import redaction
from launcher.config.schema import Config, ResumeHow
from launcher.environment import containers
from launcher.environment import secrets as secret
from launcher.errors import ConfigError
from launcher.files import ownership
from launcher.runs import sweep_directory
from launcher.runs.sweep_directory import Sweep, SweepManifest
from launcher.spec import limits
from launcher.spec.build import check_name
from launcher.spec.plan import JobPlan, keys_of
from launcher.submission import render
from launcher.submission.prepare import Inputs, check_capacity, held_allocation, planned, secrets_of, site_of
from launcher.sweeps import pilots

# Keys and sections of a plan that only ranks read, so that they do not change the job script.
RANK_KEYS = (
    "workload", "train", "seed", "preflight", "resume.strict", "checkpoint.every", "checkpoint.every_steps",
    "checkpoint.keep", "checkpoint.best", "checkpoint.best_is", "checkpoint.background", "checkpoint.verify",
)  # fmt: skip


def array_plan(plan: JobPlan, sweep_id: str, folder: Path) -> JobPlan:
    """Returns the plan for the job script of a point's array: the point's plan, with the sweep's id and directory.

    Any point of the array can stand for all: their plans differ only in values that are not in the job script (see
    `RANK_KEYS`), which each element's ranks read from their own point's record.
    """
    own = plan.checkpoint.dir == f"{plan.run_dir}/checkpoints"
    checkpoints = f"{folder}/checkpoints" if own else plan.checkpoint.dir
    return dataclasses.replace(
        plan, run_id=sweep_id, run_dir=str(folder), checkpoint=dataclasses.replace(plan.checkpoint, dir=checkpoints)
    )


def groups(
    plans: Mapping[int, JobPlan], sweep_id: str, folder: Path,
    naming: Callable[[int], AbstractContextManager[object]] = nullcontext,
) -> list[tuple[JobPlan, tuple[int, ...]]]:  # fmt: skip
    """Groups points into arrays: each with its plan and its points, in order of `plans`.

    naming: returns, for a point, a context manager that adds it to errors raised in its block.
    Raises ConfigError: no job script can be made from a plan (extra options that collide with keys).
    """
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
    return (*own, *containers.srun_options(plan))  # these contain folders that RANK_KEYS set


def shares(parallelism: int | None, sizes: Sequence[int]) -> list[int | None]:
    """Divides the number of points that may run at once (None: no limit) among arrays of these sizes.

    Each array gets at least one, because otherwise it would never end; the rest is divided in proportion to size.
    """
    if parallelism is None:
        return [None] * len(sizes)
    rest, total = max(parallelism - len(sizes), 0), sum(sizes)
    shares = [min(1 + rest * size // total, size) for size in sizes]
    largest = sorted(range(len(sizes)), key=lambda index: -sizes[index])
    while (left := min(parallelism, total) - sum(shares)) > 0:
        for index in [index for index in largest if shares[index] < sizes[index]][:left]:
            shares[index] += 1
    return list(shares)


# -- The points


@dataclass(frozen=True)
class RequestedPoint:
    """A point that the user's command line asks for."""

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
    parallelism: int | None  # number of points that may run at once; None: no limit
    notes: tuple[str, ...]  # messages for the user
    # environment variables that must not be written to files
    secrets: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)
    # plans of the pilots that run the points, by number; empty: each point has a job of its own
    pilots: Mapping[int, JobPlan] = dataclasses.field(default_factory=dict)

    @property
    def jobs(self) -> dict[int, JobPlan]:
        """Plans of the jobs that the scheduler gets: of the pilots or, without pilots, of the points; by number."""
        return dict(self.pilots or self.plans)


def id_of(command: Sequence[str], name: str) -> str:
    """Returns the id of the sweep that a command line asks for: `NAME-` and a hash of its overrides, sorted."""
    kept = sorted(
        each for each in command
        if "=" in each
        and sweep_directory.key_of(each) not in sweep_directory.COMMAND_KEYS
        and not each.startswith(("-", "sweep."))
    )  # fmt: skip
    return f"{name}-{hashlib.sha256(repr(kept).encode()).hexdigest()[:8]}"


def prepare_sweep(
    points: Sequence[RequestedPoint], command: Sequence[str], environ: Mapping[str, str] = os.environ
) -> PreparedSweep:
    """Plans and checks all points of a command line. It writes no file and submits nothing.

    Raises ConfigError: a point cannot run; the message says which one, and how to fix it.
    Raises RunError: a sweep of the same id exists, and cannot be read.
    """
    first = points[0].config
    _refuse_keys_of_one(points)
    ownership.require_in_files([folder for each in points for folder in each.config.cluster.trusted_folders])
    secrets, names = _secrets(points), redaction.all_patterns(first.env.secrets)
    command = secret.redact_overrides(command, names)
    points = [
        dataclasses.replace(
            each, overrides=tuple(secret.redact_overrides(each.overrides, names)),
            resolved=secret.redact_config(each.resolved, secrets),
        )
        for each in points
    ]  # fmt: skip
    hidden = {**redaction.secrets_in(environ, names), **secrets}
    for each in points:
        secret.require_absent({**each.resolved, "overrides": each.overrides}, hidden)
    name = first.name if all(each.config.name == first.name for each in points) else "sweep"
    sweep_id = id_of(command, check_name("name", name)) if first.sweep.id is None else first.sweep.id
    path = Path(first.runs_dir).expanduser().absolute() / check_name("sweep.id", sweep_id)
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
        parallelism=_parallelism(first),
    )
    sweep_directory.text_of(manifest)  # refused here, before anything is written
    plans, notes = _plans(by_index, manifest, sweep_id, environ)
    keys = sweep_directory.differing(recorded)
    arrays = groups(plans, sweep_id, path, lambda index: _naming(index, by_index[index].overrides, keys))
    asking, manifest = _pilots(first, manifest, arrays, plans, Sweep(path))
    packing = manifest.packing
    for _, members in arrays:
        plan, point = asking[0] if asking else plans[members[0]], by_index[members[0]]
        with _naming_pilots(packing.slots) if packing else _naming(members[0], point.overrides, keys):
            config = point.config
            held, jobs = held_allocation(config, environ), 0 if existing else 1  # the rest can be submitted later
            notes.update(dict.fromkeys(check_capacity(plan, config, environ, held, jobs)))
    return PreparedSweep(
        path, existing, manifest, tuple(order), by_index, plans, arrays, manifest.parallelism, tuple(notes), secrets,
        asking,
    )  # fmt: skip


def _pilots(
    config: Config, manifest: SweepManifest, groups: Sequence[tuple[JobPlan, tuple[int, ...]]],
    plans: Mapping[int, JobPlan], sweep: Sweep,
) -> tuple[dict[int, JobPlan], SweepManifest]:  # fmt: skip
    point = plans[groups[0][1][0]]
    packing = pilots.packing_of(config, point)
    if packing is None:
        return {}, manifest
    if len(groups) > 1:
        one, other = groups[0][1][0], groups[1][1][0]
        raise ConfigError(
            f"points {one} and {other} ask for different jobs, and cannot share pilots (sweep.slots, sweep.pack): only "
            "what ranks see may differ (workload, train, seed, ...); make a sweep of each"
        )
    found = {number: pilots.plan_of(point, sweep, packing, number) for number in range(packing.pilots)}
    with _naming_pilots(packing.slots):
        limits.check_limits(found[0], config.cluster)
    render.script(found[0], token="")
    return found, dataclasses.replace(manifest, packing=packing)


def _secrets(points: Sequence[RequestedPoint]) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in points:
        for name, value in secrets_of(each.config).items():
            if found.setdefault(name, value) != value:
                raise ConfigError(
                    f"cluster.environment.{name} is a secret (env.secrets): it must be the same everywhere"
                )
    return found


def _parallelism(config: Config) -> int | None:
    if config.sweep.parallelism is not None and config.sweep.parallelism < 1:
        raise ConfigError(f"sweep.parallelism={config.sweep.parallelism}: it must be 1 or more")
    return config.sweep.parallelism


def _refuse_keys_of_one(points: Sequence[RequestedPoint]) -> None:
    overrides = [override for each in points for override in each.overrides]
    if run_id := next((each for each in overrides if sweep_directory.key_of(each) == "run_id"), None):
        raise ConfigError(
            f"{run_id}: it names one run, and the points of a sweep are SWEEP/0, SWEEP/1, ...: use sweep.id"
        )
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
        with _naming(index, each.overrides, keys):
            held = held_allocation(each.config, environ)
            plan, plan_notes = planned(each.config, site_of(each.config, f"{sweep_id}/{index}", held), inputs)
            if plan.queued and plan.resume.how == ResumeHow.chain.value:
                raise ConfigError("resume.how=chain is for single runs: use resubmit or requeue in a sweep")
            if each.config.cluster.race:
                raise ConfigError("cluster.race is for single runs: leave it out of a sweep")
            if (other := folders.setdefault(plan.checkpoint.dir, index)) != index:
                raise ConfigError(
                    f"checkpoint.dir={plan.checkpoint.dir} is that of point {other} too: leave the key out, and each "
                    "point gets a folder of its own"
                )
        plans[index] = plan
        notes.update(dict.fromkeys(plan_notes))
    return plans, notes


@contextlib.contextmanager
def _naming(index: int, overrides: Sequence[str], keys: Sequence[str]) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        raise ConfigError(
            f"point {index} ({sweep_directory.label(overrides, keys) or 'the only one'}): {error}"
        ) from None


@contextlib.contextmanager
def _naming_pilots(slots: int) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"sweep.slots={slots}: a pilot asks for {slots} times what a point does: {error}") from None
