"""`python -m launcher -m KEY=A,B ...`: submits the points of a multirun. Called by the launcher's Hydra plug-in."""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hydra.core.config_loader import ConfigLoader
from hydra.core.utils import JobReturn, JobStatus
from omegaconf import DictConfig

from launcher.cli.output import confirm, print_commands, print_under, program
from launcher.cli.wait import follow_sweep
from launcher.config.compose_points import of_multirun, space_of
from launcher.config.errors import in_our_words
from launcher.config.overrides import key_of
from launcher.config.schema import Config
from launcher.config.search_space import size
from launcher.errors import FAILED, ConfigError, LauncherError
from launcher.formatting import plural, ranges
from launcher.monitoring.sweep_status import point_statuses
from launcher.plan import limits
from launcher.runs import sweep_directory
from launcher.runs.directory import Run, token_of
from launcher.runs.history import read_history
from launcher.submission import render
from launcher.sweeps import prepare
from launcher.sweeps.prepare import PreparedSweep, RequestedPoint, prepare_search
from launcher.sweeps.submit import SubmittedSweep, submit_sweep

if TYPE_CHECKING:
    from launcher.cli.submit import CommandLine

GRID = "PointSweeper"  # our sweeper
OF_SEARCHES = ("sweep.budget", "sweep.asha", "sweep.goal", "sweep.seed")  # a user's settings may have them for others
SEARCHES = (
    "Searches are sweep.search=tpe|random|grid|asha, whose pilots choose points while they run; docs/sweeps.md says "
    "what to write instead"
)


class Multirun:
    def __init__(self, command: CommandLine, loader: ConfigLoader, config: DictConfig) -> None:
        self._command = command
        self._compose = of_multirun(loader, config)
        if not (sweeper := str(config.hydra.sweeper._target_)).endswith(GRID):
            raise ConfigError(f"hydra/sweeper: {sweeper} is not used here. {SEARCHES}")

    def __call__(self, batch: Sequence[Sequence[str]]) -> list[JobReturn]:
        """Submits the points of a sweep; returns a JobReturn without a value for each."""
        if word := next((each for each in self._command.words if key_of(each).startswith(OF_SEARCHES)), None):
            raise ConfigError(f"{word} is for a search: add sweep.search=random, tpe, asha or grid, or leave it out")
        points = [self._requested(point, number, batch) for number, point in enumerate(batch)]
        prepared = prepare.prepare_sweep(points, self._command.words)
        self._submit(prepared, points[0].config)
        completed = JobStatus.COMPLETED
        return [JobReturn(list(prepared.points[index].overrides), status=completed) for index in prepared.order]

    def search(self, arguments: Sequence[str]) -> list[JobReturn]:
        """Submits a search (sweep.search): pilots, which choose points while they run. Returns no results."""
        space, fixed = space_of(arguments)
        batch = prepare.representatives(space, fixed)
        points = [self._requested(point, number, batch) for number, point in enumerate(batch)]
        points = [dataclasses.replace(each, config=prepare.with_search_defaults(each.config)) for each in points]
        self._submit(prepare_search(points, space, self._command.words), points[0].config)
        return []

    def _submit(self, prepared: PreparedSweep, config: Config) -> None:
        alone = ("the sweep has one point: several come from KEY=A,B",) if len(prepared.manifest.points) == 1 else ()
        for note in (*alone, *prepared.notes):
            print(f"note: {note}", file=sys.stderr)
        if config.dry_run:
            show(prepared)
            return
        if config.submit:
            self._ask(prepared, config.confirm_above)
        submitted = submit_sweep(prepared, by_hand=not config.submit)
        print_submitted(prepared, submitted)
        if submitted.is_partial:
            self._command.codes.append(FAILED)
        here = not any(plan.queued for plan in prepared.plans.values())  # also if all its points are over
        if here if config.wait is None else config.wait:
            points = None if prepared.settings else set(prepared.order)
            code = follow_sweep(submitted.sweep, points=points, foreground=bool(submitted.local))
            self._command.codes.append(code)

    def _ask(self, prepared: PreparedSweep, above: float | None) -> None:
        exists = prepared.existing is not None
        new = [
            plan for plan in (prepared.pilots or prepared.plans).values()
            if plan.queued
            and not (exists and (run := Run(Path(plan.run_dir))).recorded() and read_history(run).job_id is not None)
        ]  # fmt: skip
        if new:
            confirm(new, above, yes=self._command.yes)

    def _requested(self, overrides: Sequence[str], number: int, batch: Sequence[Sequence[str]]) -> RequestedPoint:
        try:
            with in_our_words(overrides):
                composed = self._compose(overrides, number)
        except LauncherError as error:
            label = sweep_directory.label(overrides, sweep_directory.differing(batch))
            raise ConfigError(f"point {number}{f' ({label})' if label else ''}: {error}") from None
        return RequestedPoint(tuple(overrides), composed.config, composed.resolved)


def show(prepared: PreparedSweep) -> None:
    """Prints a dry run: each job array of a sweep with its points and job script; for a search, its pilots."""
    keys = sweep_directory.differing(prepared.manifest.points)
    queued = [len(members) for plan, members in prepared.groups if plan.queued]
    throttles, serial = iter(prepare.shares(prepared.manifest.parallelism, queued)), 0
    print(f"sweep      {prepared.path.name}: {_what(prepared)}")
    print(f"directory  {prepared.path}")
    if asking := [plan for plan in (prepared.pilots or prepared.plans).values() if plan.queued]:
        print_under("requests", limits.lines(asking))
    if prepared.pilots:
        pilot = prepared.pilots[0]
        print(f"\n# {plural(len(prepared.pilots), 'pilot')} on {pilot.cluster.name}, {_at_once(prepared)}")
        print(render.script(pilot, token=token_of(pilot.run_dir)), end="")
        return
    for plan, members in prepared.groups:
        most = next(throttles) if plan.queued else None
        print(f"\n# {plural(len(members), 'point')} on {plan.cluster.name}: {ranges(members)}")
        for index in members[:3]:
            print(f"#   {index}: {sweep_directory.label(prepared.points[index].overrides, keys)}")
        if len(members) > 3:
            print(f"#   ... {members[-1]}: {sweep_directory.label(prepared.points[members[-1]].overrides, keys)}")
        if len(members) == 1 or not plan.queued:
            alone = prepared.plans[members[0]]
            print(render.script(alone, token=token_of(alone.run_dir)), end="")
            continue
        token, serial = f"{token_of(str(prepared.path))}-{serial}", serial + 1
        array = f"0-{len(members) - 1}" + (f"%{most}" if most else "")
        print(render.script(plan, token=token, array=array, elements=prepared.path / "arrays" / token), end="")


def print_submitted(prepared: PreparedSweep, submitted: SubmittedSweep) -> None:
    sweep = submitted.sweep
    if submitted.commands:
        print_commands(submitted.commands, f"sweep status {sweep.id}")
        return
    print(f"sweep      {sweep.id}: {_what(prepared)}")
    for job, points in submitted.jobs:
        cluster = prepared.plans[points[0]].cluster.name
        print(f"job        {job} on {cluster}: {plural(len(points), 'point')} ({ranges(points)})")
    if submitted.pilots is not None:
        cluster = next(iter(prepared.plans.values())).cluster.name
        for number, pilot in submitted.pilots.jobs.items():
            print(f"pilot      {sweep.pilot(number).id}: job {pilot.job_id} on {cluster}")
        if left := submitted.pilots.left:
            print(f"           {plural(left, 'pilot')} could not be submitted: {submitted.pilots.words}")
        print(f"           {_at_once(prepared)}")
    elif submitted.local:
        print(f"here       {plural(len(submitted.local), 'point')}, {prepared.manifest.parallelism or 1} at a time")
    if before := set(submitted.already_submitted):
        states = Counter(seen.state for seen in point_statuses(sweep) if seen.point.index in before)
        shown = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
        print(f"           {plural(len(before), 'point')} had been submitted before: {shown}")
    print(f"directory  {sweep.path}")
    print_under("next", (f"{program()} sweep {action} {sweep.id}" for action in ("status", "results", "cancel")))
    if submitted.not_accepted:
        print(
            f"launcher: {plural(len(submitted.not_accepted), 'point')} could not be submitted yet: {submitted.limit}\n"
            f"Repeat the command with sweep.id={sweep.id} when some of the others are over: it submits the rest",
            file=sys.stderr,
        )


def _what(prepared: PreparedSweep) -> str:
    # The number of its points or, of a search, `asha, maximize accuracy: at most 27 points`
    settings = prepared.settings
    if settings is None:
        return plural(len(prepared.points), "point")
    points = min((each for each in (settings.points, size(settings.space)) if each is not None), default=None)
    limits = [] if points is None else [f"at most {plural(points, 'point')}"]
    if settings.gpu_hours is not None:
        limits.append(f"{settings.gpu_hours:g} {'GPU' if settings.devices_are_gpus else 'node'}-hours")
    return f"{settings.method.value}, {settings.goal.value} {settings.objective}: {', '.join(limits)}"


def _at_once(prepared: PreparedSweep) -> str:
    packing = prepared.manifest.packing
    assert packing is not None, "it has pilots"
    nodes = f"{plural(packing.nodes, 'node')} of {plural(packing.slots, 'slot')}"
    return f"each with {nodes}: {plural(packing.at_once, 'point')} at once"
