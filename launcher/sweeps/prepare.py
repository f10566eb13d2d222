"""Plans and checks all points of a sweep, before anything is written or submitted."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher import redaction
from launcher.config.schema import Config, ResumeHow
from launcher.environment import record_redaction
from launcher.errors import ConfigError
from launcher.files import ownership
from launcher.runs import sweep_directory
from launcher.runs.sweep_directory import Manifest, Sweep
from launcher.spec import limits
from launcher.spec.build import check_name
from launcher.spec.plan import JobPlan
from launcher.submission import render
from launcher.submission.inputs import Inputs
from launcher.submission.prepare import check_capacity, held_allocation, planned, secrets_of, site_of
from launcher.sweeps import grouping, pilots


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
    existing: Manifest | None  # the manifest of an earlier command in the directory; None: the sweep is new
    manifest: Manifest  # the manifest to write: the existing points, then the new ones
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
    """Returns the id of the sweep that a command line asks for: `NAME-` and a hash of its overrides, sorted.

    name: name of the runs (config key `name`).
    """
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
    """Plans and checks all points. It writes no file and submits nothing.

    command: arguments of the launcher's command line that asks for the points, for the sweep's id and manifest.
    Raises ConfigError: a point cannot run; the message says which one, and how to fix it.
    Raises RunError: a sweep of the same id exists, and cannot be read.
    """
    first = points[0].config
    _refuse_keys_of_one(points)
    ownership.require_in_files([folder for each in points for folder in each.config.cluster.trusted_folders])
    secrets, names = _secrets(points), redaction.all_patterns(first.env.secrets)
    command = record_redaction.redact_overrides(command, names)
    points = [
        dataclasses.replace(
            each, overrides=tuple(record_redaction.redact_overrides(each.overrides, names)),
            resolved=record_redaction.redact_config(each.resolved, secrets),
        )
        for each in points
    ]  # fmt: skip
    hidden = {**redaction.secrets_in(environ, names), **secrets}
    for each in points:
        record_redaction.require_absent({**each.resolved, "overrides": each.overrides}, hidden)
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
    manifest = Manifest(
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
    arrays = grouping.groups(plans, sweep_id, path, lambda index: _naming(index, by_index[index].overrides, keys))
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
    config: Config, manifest: Manifest, groups: Sequence[tuple[JobPlan, tuple[int, ...]]],
    plans: Mapping[int, JobPlan], sweep: Sweep,
) -> tuple[dict[int, JobPlan], Manifest]:  # fmt: skip
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
    points: Mapping[int, RequestedPoint], manifest: Manifest, sweep_id: str, environ: Mapping[str, str]
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
