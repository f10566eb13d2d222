"""Prepares and submits a search: a sweep whose pilots choose its points while they run (sweep.search).

The submitter composes a few representative points with Hydra: it changes one key at a time to each of its choices, or
to the smallest and the largest number (`Dimension.ends`). They are planned and checked as the points of any sweep. From
their records it makes the template from which slot managers make the record of every point. It also chooses and makes
the first point.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.config.schema import BestIs, Config
from launcher.config.search_space import Goal, Method, Space, overrides, size
from launcher.environment import secrets as secret
from launcher.environment import snapshot
from launcher.errors import ConfigError, SubmissionError
from launcher.paths import default_runs_dir
from launcher.runs import directory
from launcher.runs.directory import Run
from launcher.runs.search_record import SearchRecord, SearchSettings
from launcher.runs.submitter_lock import only_submitter
from launcher.runs.sweep_directory import Sweep
from launcher.search.points import template_of
from launcher.search.progress import look
from launcher.spec.plan import JobPlan
from launcher.submission.inputs import Inputs
from launcher.submission.prepare import held_allocation, planned, site_of
from launcher.submission.submit import facts_of_here, require_commands
from launcher.sweeps.prepare import PreparedSweep, RequestedPoint, prepare_sweep
from launcher.sweeps.submit import SubmittedSweep, submit_pilots


@dataclass(frozen=True)
class PreparedSearch:
    """A search that has passed every check and can be submitted."""

    sweep: PreparedSweep  # the prepared sweep with the representative points; the manifest in it has no points
    settings: SearchSettings  # what is searched, and how
    template: Mapping[str, Any]  # template for the records of points; see `launcher.search.points`


def representatives(space: Space, fixed: Sequence[str]) -> list[tuple[str, ...]]:
    """Returns the overrides of the representative points.

    The first point has the first value of each key. Each further point differs from it in one key (`Dimension.ends`).

    space: the keys that are searched, each with its possible values.
    """
    first = {key: each.ends()[0] for key, each in space.items()}
    others = [{**first, key: text} for key, each in space.items() for text in each.ends()[1:]]
    return [overrides(values, fixed) for values in (first, *others)]


def with_search_defaults(config: Config) -> Config:
    """Returns a point's config with the keys of `sweep` that a search needs.

    | key | set to |
    |---|---|
    | sweep.goal | if it is empty: maximize for best_is=max, minimize for best_is=min |
    | sweep.best_is | max for goal=maximize, min for goal=minimize |
    | sweep.pack | if pack and slots are empty: 1, which is one pilot |

    Raises:
        ConfigError: Optuna is not installed, the config does not have exactly one objective, or a value is not valid.
    """
    sweep = config.sweep
    assert sweep.search is not None
    if importlib.util.find_spec("optuna") is None:
        raise ConfigError(f"sweep.search={sweep.search.value} needs Optuna: pip install 'launcher[optuna]'")
    if not isinstance(sweep.objective, str):
        raise ConfigError(
            f"sweep.search={sweep.search.value} compares points by a metric that they report: sweep.objective=accuracy"
        )
    if sweep.asha.reduction_factor < 2:
        raise ConfigError(f"sweep.asha.reduction_factor={sweep.asha.reduction_factor}: it must be 2 or more")
    if sweep.budget.gpu_hours is not None and sweep.budget.gpu_hours <= 0:
        raise ConfigError(f"sweep.budget.gpu_hours={sweep.budget.gpu_hours}: it must be more than 0")
    for key, value in (("budget.points", sweep.budget.points), ("asha.min_steps", sweep.asha.min_steps)):
        if value is not None and value < 1:
            raise ConfigError(f"sweep.{key}={value}: it must be 1 or more")
    goal = sweep.goal or (Goal.maximize if sweep.best_is is BestIs.max else Goal.minimize)
    best_is = BestIs.max if goal is Goal.maximize else BestIs.min
    pack = 1 if sweep.slots is None and sweep.pack is None else sweep.pack
    return dataclasses.replace(config, sweep=dataclasses.replace(sweep, goal=goal, best_is=best_is, pack=pack))


def prepare_search(
    points: Sequence[RequestedPoint], space: Space, command: Sequence[str], environ: Mapping[str, str] = os.environ
) -> PreparedSearch:
    """Plans and checks a search. It writes no file and submits nothing.

    points: the representative points, which are checked instead of all: their overrides are the result of
        `representatives`, in the same order, and their configs are from `with_search_defaults`.
    space: the keys that are searched, each with its possible values.
    command: arguments of the launcher's command line that asks for the search, for the manifest.
    Raises ConfigError: a point cannot run, the points cannot share pilots, the search would never end or its budget is
        spent, or a sweep of the same id exists and is not this search; the message says how to fix it.
    Raises RunError: a sweep of the same id exists, and cannot be read.
    """
    config = points[0].config
    prepared = prepare_sweep(points, command, environ)
    first = prepared.points[prepared.order[0]]
    fixed = tuple(each for each in first.overrides if each.partition("=")[0] not in space)
    settings = _settings(config, prepared.plans[prepared.order[0]], space, fixed)
    if settings.method is Method.grid and size(space) is None:
        raise ConfigError("sweep.search=grid needs keys with a list of values: 'workload.lr=0.1,0.01'")
    if size(space) is None and settings.points is None and settings.gpu_hours is None:
        raise ConfigError(
            "the search would never end: set sweep.budget.points=100, or sweep.budget.gpu_hours=50 (without GPUs: node-"
            "hours)"
        )
    _require_room(prepared, settings)
    manifest = dataclasses.replace(prepared.manifest, points=(), search=True)
    template = _template(prepared, space)
    return PreparedSearch(dataclasses.replace(prepared, manifest=manifest), settings, template)


def submit_search(prepared: PreparedSearch) -> SubmittedSweep:
    """Makes the sweep's directory with its first point, and submits pilots until as many are live as needed.

    Raises ConfigError: the directory cannot be made.
    Raises SubmissionError: the scheduler refused a pilot or did not respond, or another command has changed the sweep.
        A second call submits the remaining pilots.
    """
    # Lazily: Optuna takes 0.2 s
    from launcher.search.points import SearchPoints

    base = prepared.sweep
    plan = base.plans[base.order[0]]
    with secret.exported(base.secrets):
        require_commands(plan)
        sweep = Sweep.create(base.path)
        with only_submitter(sweep.path):
            if sweep.recorded() != (base.existing is not None):
                raise SubmissionError(f"{sweep.id} was changed by another command meanwhile: repeat this one")
            sweep.write(base.manifest)
            snapshot.take(plan)
            SearchRecord(sweep.path).create(prepared.settings, prepared.template)
            sweep.mark_cancelled(False)
            points = SearchPoints(sweep)
            if not points.count():
                points.more()
            run = points.made(0)
            submitted = submit_pilots(sweep, run.plan(), run.record()["config"], (0,))
        with contextlib.suppress(OSError):  # a convenience: commands also take a path
            Run(sweep.path).link(default_runs_dir())
    return submitted


def _settings(config: Config, plan: JobPlan, space: Space, fixed: tuple[str, ...]) -> SearchSettings:
    sweep = config.sweep
    assert sweep.search is not None
    assert sweep.goal is not None
    return SearchSettings(
        method=sweep.search, objective=sweep.objective, goal=sweep.goal, space=space, fixed=fixed,
        points=sweep.budget.points, gpu_hours=sweep.budget.gpu_hours, seed=sweep.seed,
        devices=plan.nodes * (plan.gpus_per_node or 1), devices_are_gpus=plan.gpus_per_node > 0,
        min_steps=sweep.asha.min_steps, reduction_factor=sweep.asha.reduction_factor,
    )  # fmt: skip


def _require_room(prepared: PreparedSweep, settings: SearchSettings) -> None:
    existing, record = prepared.existing, SearchRecord(prepared.path)
    if existing is None:
        return
    if not existing.search:
        raise ConfigError(f"{prepared.path.name} is a sweep with a list of points: choose another sweep.id")
    before, journal = record.settings(), record.journal()
    for name in ("objective", "goal", "space"):
        if getattr(before, name) != getattr(settings, name):
            raise ConfigError(f"{prepared.path.name} is a search with another {name}: choose another sweep.id")
    over = all(each.state.over for each in journal.trials)
    spent = look(Sweep(prepared.path))[1].hours
    if over and settings.points is not None and len(journal.trials) >= settings.points:
        raise ConfigError(
            f"sweep.budget.points={settings.points} is spent: {prepared.path.name} has {len(journal.trials)}; raise it "
            "to have more chosen"
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
            facts.update({**facts_of_here(plan.submitted_in), **snapshot.facts(plan)})
        values = directory.record_of(plan, point.resolved, facts)
        found: dict[str, Any] = json.loads(json.dumps(values))
        return found

    first, moved = record(points[0], 0), record(points[0], 1)
    rest = iter(points[1:])
    others = {
        key: {text: first if number == 0 else record(next(rest), 0) for number, text in enumerate(each.ends())}
        for key, each in space.items()
    }
    return template_of(first, moved, others, space, (f"{sweep_id}/0", f"{sweep_id}/1"))
