"""Submits a sweep: one job array where points ask for the same job, jobs of their own, pilots, or a search.

If the same command is run a second time, it finds the existing sweep, and submits only points that have no job yet: new
points, and points that an interrupted submission left out.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.agent import payload
from launcher.config.schema import BestIs, Config
from launcher.config.search_space import Goal, Method, Space, overrides, size
from launcher.environment import secrets as secret
from launcher.environment import snapshot
from launcher.errors import ConfigError, SubmissionError
from launcher.formatting import plural
from launcher.monitoring.run_status import queries
from launcher.monitoring.sweep import SweepMonitor, point_statuses
from launcher.own_module import own_module
from launcher.paths import default_runs_dir
from launcher.runs import directory, events, live_index
from launcher.runs.directory import Run, token_of
from launcher.runs.events import Submitted, every
from launcher.runs.history import journal_events, read_history
from launcher.runs.lease import only_submitter
from launcher.runs.sweep_directory import SearchRecord, SearchSettings, Sweep
from launcher.schedulers import registry
from launcher.schedulers.base import BY_HAND, parts
from launcher.schedulers.executor import begun
from launcher.schedulers.run_command import SubmissionRefused
from launcher.search.points import template_of
from launcher.search.progress import look
from launcher.spec.plan import JobPlan
from launcher.submission import dependencies, render
from launcher.submission.prepare import Inputs, held_allocation, planned, site_of
from launcher.submission.submit import (
    Interrupted,
    delayed_interrupt,
    facts_of_here,
    require_commands,
    require_same,
    start,
    tried,
)
from launcher.sweeps import pilots, prepare
from launcher.sweeps.prepare import PreparedSweep, RequestedPoint, prepare_sweep


@dataclass(frozen=True)
class SubmittedSweep:
    """The result of a submission. Points are given by their numbers."""

    sweep: Sweep  # the sweep
    # id of each job or array that was submitted, and the points of this job or array
    jobs: tuple[tuple[str, tuple[int, ...]], ...]
    already_submitted: tuple[int, ...]  # points that were submitted by an earlier command
    local: tuple[int, ...]  # points that run on this machine without a scheduler, a few at a time
    not_accepted: tuple[int, ...] = ()  # points that the scheduler does not accept now, because of a limit of jobs
    limit: str = ""  # the message with which the scheduler refused the points in `not_accepted`
    pilots: pilots.SubmittedPilots | None = None  # result of the submission of pilots; None: the sweep has no pilots
    commands: tuple[str, ...] = ()  # with submit=false: the commands with which the user submits jobs and arrays


def submit_sweep(prepared: PreparedSweep, *, by_hand: bool = False) -> SubmittedSweep:
    """Makes the sweep's directory, and submits all points that have no job yet.

    Raises ConfigError: the directory cannot be made, or an existing point has another config.
    Raises SubmissionError: the scheduler refused points or did not respond, or another command has changed the sweep. A
        second call submits the remaining points.
    """
    with secret.exported(prepared.secrets):
        return _submit_sweep(prepared, by_hand=by_hand)


def _submit_sweep(prepared: PreparedSweep, *, by_hand: bool) -> SubmittedSweep:
    for plan, _ in prepared.groups:
        require_commands(plan)
    sweep = Sweep.create(prepared.path)
    with only_submitter(sweep.path):
        now = sweep.manifest() if sweep.recorded() else None
        if now is not None and now.search:
            raise ConfigError(f"{sweep.id} is a search (sweep.search): choose another sweep.id for a list of points")
        if now != prepared.existing:
            raise SubmissionError(f"{sweep.id} was changed by another command meanwhile: repeat this one")
        if now != prepared.manifest:
            sweep.write(prepared.manifest)
        made = _make_points(sweep, prepared)
        sweep.mark_cancelled(False)
        recover(sweep, prepared.plans)
        done = {index for each in sweep.submissions() for index in each.points} & set(prepared.plans)
        done |= {i for i in prepared.plans if i not in made | done and read_history(sweep.run(i)).job_id is not None}
        clear_marks = pilots.clear_marks if prepared.pilots else Run.clear_marks
        for index in set(prepared.plans) - done - made:
            clear_marks(sweep.run(index))  # it may have been cancelled before it was submitted
        if prepared.pilots:
            done, point = set(prepared.plans) - made, prepared.order[0]
            resolved = prepared.points[point].resolved
            submitted = submit_pilots(sweep, prepared.plans[point], resolved, prepared.order, by_hand=by_hand)
        else:
            submitter = _ArraySubmitter(sweep, prepared.groups, prepared.plans, prepared.parallelism, by_hand=by_hand)
            submitted = submitter.submit(set(prepared.plans) - done)
    with contextlib.suppress(OSError):  # a convenience: commands also take a path
        Run(sweep.path).link(default_runs_dir())
    return dataclasses.replace(submitted, already_submitted=tuple(sorted(done)))


def submit_pilots(
    sweep: Sweep, point: JobPlan, config: Mapping[str, Any], points: Sequence[int], *, by_hand: bool = False
) -> SubmittedSweep:
    """Submits pilots until as many are live as the manifest says; the caller holds the submitter's lock.

    points: `local` in the result if the pilots run without a scheduler.
    """
    live_index.add(sweep.path)
    packing = sweep.manifest().packing
    assert packing is not None, "the sweep is packed"
    submitted = pilots.submit(sweep, packing, point, config, by_hand=by_hand)
    commands = tuple(each.command for each in submitted.jobs.values() if each.command)
    return SubmittedSweep(sweep, (), (), () if point.queued else tuple(points), pilots=submitted, commands=commands)


def resubmit(
    sweep: Sweep, points: Sequence[int], secrets: Callable[[Run], Mapping[str, str]] = lambda _: {}
) -> SubmittedSweep:
    """Submits points that are over, or were never submitted; they continue from checkpoints. SubmissionError.

    secrets: returns the secrets that the config of a point sets; others are in this process's environment.
    """
    plans = {index: sweep.run(index).plan() for index in points}
    groups = prepare.groups(plans, sweep.id, sweep.path)
    found: dict[str, str] = {}
    for plan, members in groups:
        require_commands(plan)
        if plan.secret_variables:
            found |= secrets(sweep.run(members[0]))
            secret.require(plan.secret_variables, {**os.environ, **found})
    with secret.exported(found), only_submitter(sweep.path):
        packed = sweep.manifest().packing is not None
        if packed:
            pilots.start_again(sweep, points)
        sweep.mark_cancelled(False)
        if packed:
            return submit_pilots(sweep, plans[points[0]], sweep.run(points[0]).record()["config"], points)
        for index in points:
            sweep.run(index).clear_marks()
        submitter = _ArraySubmitter(sweep, groups, plans, sweep.manifest().parallelism, restart=True)
        return submitter.submit(set(points))


def _make_points(sweep: Sweep, prepared: PreparedSweep) -> set[int]:
    # Does not wait until the files are on disk, because a lost directory can be made again from the manifest
    facts: dict[str, Any] | None = None
    made = set()
    for plan in prepared.plans.values():
        snapshot.take(plan)  # all points share one snapshot
    for index, each in prepared.points.items():
        run, plan = sweep.run(index), prepared.plans[index]
        if run.recorded():
            require_same(run, plan)
            continue
        facts = facts or {**facts_of_here(plan.submitted_in), **snapshot.facts(plan)}
        Run.create(run.path)
        overrides = prepared.manifest.points[index]
        record = {**facts, "token": token_of(plan.run_dir), "overrides": list(overrides)}
        run.write_record(plan, each.resolved, record, sync=False)
        made.add(index)
    return made


def recover(sweep: Sweep, plans: Mapping[int, JobPlan]) -> None:
    """Looks up the job of each array that a killed command may have submitted, and records it, or that there is none.

    The caller holds the submitter's lock. plans: those that have been read already, by point.
    """
    for each in sweep.submissions():
        if each.job is None:
            plan = plans[each.points[0]] if each.points[0] in plans else sweep.run(each.points[0]).plan()
            job = begun([sweep.run(index) for index in each.points]) or queries(plan).find(each.token, plan.name)
            if job is None:
                sweep.refused(each.token)
            else:
                sweep.submitted(each.token, job)


@dataclass(frozen=True)
class _PrecedingJob:
    # It must end before a later job of the sweep may start, because of sweep.parallelism

    sweep: Sweep  # the sweep
    scheduler: str  # name of the job's scheduler
    job: str  # id of the job or array
    points: tuple[int, ...]  # numbers of its points

    def live(self) -> bool:
        return not all(each.over for each in point_statuses(self.sweep, SweepMonitor(), self.points))


def _dependencies(plan: JobPlan, preceding: _PrecedingJob | None) -> list[str]:
    # Returns the ids of the jobs that are not over and must end before a job with this plan may start
    jobs = dependencies.blocking_jobs(plan)
    if preceding is not None and preceding.scheduler == plan.cluster.scheduler and preceding.live():
        jobs.append(preceding.job)
    return jobs


class _ArraySubmitter:
    # Array by array

    def __init__(
        self, sweep: Sweep, groups: Sequence[tuple[JobPlan, tuple[int, ...]]], plans: Mapping[int, JobPlan],
        parallelism: int | None, *, restart: bool = False, by_hand: bool = False,
    ) -> None:  # fmt: skip
        self._sweep, self._groups, self._plans, self._restart = sweep, groups, plans, restart
        self._parallelism, self._by_hand = parallelism, by_hand
        self._commands: list[str] = []
        self._serial = len(sweep.tokens())
        self._jobs: list[tuple[str, tuple[int, ...]]] = []
        self._limit = ""  # the scheduler's last message about too many jobs

    def submit(self, points: set[int]) -> SubmittedSweep:
        """Submits these points; starts a background process for points that run without a scheduler."""
        queued = [(plan, tuple(i for i in members if i in points)) for plan, members in self._groups if plan.queued]
        arrays = [
            (plan, members[part.start : part.stop])
            for plan, members in queued
            if members
            for part in parts(len(members), self._largest(plan, len(members)))
        ]
        if self._by_hand and self._parallelism is not None and self._parallelism < len(arrays):
            raise ConfigError(
                f"submit=false: with sweep.parallelism={self._parallelism} some of {len(arrays)} jobs and arrays wait "
                "for others, whose ids are not known yet: leave one of the two out"
            )
        throttles = prepare.shares(self._parallelism, [len(members) for _, members in arrays])
        not_accepted: list[int] = []
        full: list[JobPlan] = []  # plans of arrays of which the scheduler accepts no more jobs
        last: list[_PrecedingJob | None] = []  # by array: its last job; None: none of its points was submitted
        for number, ((plan, members), throttle) in enumerate(zip(arrays, throttles, strict=True)):
            before = number - (self._parallelism or len(arrays))  # so that at most `parallelism` arrays run at once
            preceding = None if before < 0 else last[before]
            submitted = len(self._jobs)
            rest = list(members) if plan in full else self._submit_in_parts(plan, members, throttle, preceding)
            last.append(self._last_job(plan) if len(self._jobs) > submitted else None)
            full += [plan] if rest else []
            not_accepted += rest
        local = tuple(
            index for plan, members in self._groups if not plan.queued for index in members if index in points
        )
        if local:
            self._sweep.request_local(local, restart=self._restart)
            start_local_runner(self._sweep)
        return SubmittedSweep(
            self._sweep, tuple(self._jobs), (), local, tuple(not_accepted), self._limit, commands=tuple(self._commands)
        )

    def _largest(self, plan: JobPlan, count: int) -> int | None:
        return queries(plan).max_array_size(plan) if count > 1 else None

    def _last_job(self, plan: JobPlan) -> _PrecedingJob:
        return _PrecedingJob(self._sweep, plan.cluster.scheduler, *self._jobs[-1])

    def _submit_in_parts(
        self, plan: JobPlan, members: tuple[int, ...], throttle: int | None, preceding: _PrecedingJob | None
    ) -> list[int]:
        try:
            with self._interrupted():
                if len(members) == 1:
                    self._submit_single(members[0], preceding)
                else:
                    self._submit_array(plan, members, throttle, preceding)
            return []
        except SubmissionRefused as refused:
            if not refused.job_limit:
                raise self._partial_refusal(refused) from None
            self._limit = str(refused)
            if len(members) == 1:
                return list(members)
            first, rest = members[: len(members) // 2], members[len(members) // 2 :]
            throttles = prepare.shares(throttle, [len(first), len(rest)])
            if refused_points := self._submit_in_parts(plan, first, throttles[0], preceding):
                return [*refused_points, *rest]
            if throttle == 1:
                preceding = self._last_job(plan)
            return self._submit_in_parts(plan, rest, throttles[1], preceding)

    @contextlib.contextmanager
    def _interrupted(self) -> Iterator[None]:
        # Delays Ctrl-C until the end of the block, in which an array is submitted, so that the job is recorded
        then = f"repeat the command to submit the rest, or end the sweep with `launcher cancel {self._sweep.id}`"
        try:
            with delayed_interrupt() as interrupted:
                yield
        except KeyboardInterrupt:
            raise Interrupted(f"it is not known which points of {self._sweep.id} were submitted: {then}") from None
        if interrupted:
            count = plural(sum(len(points) for _, points in self._jobs), "point")
            jobs = ", ".join(job for job, _ in self._jobs)
            raise Interrupted(f"{count} of {self._sweep.id} submitted, as {jobs}: {then}")

    def _partial_refusal(self, refused: SubmissionRefused) -> SubmissionError:
        if not self._jobs:
            return refused
        jobs = ", ".join(job for job, _ in self._jobs)
        count = sum(len(points) for _, points in self._jobs)
        return SubmissionError(
            f"{refused}\n{count} other points were submitted before, as {jobs}; repeat the command to submit the rest"
        )

    def _submit_single(self, index: int, preceding: _PrecedingJob | None) -> None:
        run, plan = self._sweep.run(index), self._plans[index]
        journal = journal_events(run)
        before = len(every(journal, Submitted))
        token = token_of(plan.run_dir) + (f"-r{before}" if before else "")
        try:
            submitted = start(
                run, plan, token, tried(run, token), lambda: _dependencies(plan, preceding), by_hand=self._by_hand
            )
        except SubmissionRefused as refusal:
            run.journal(events.Refused(token=token, error=str(refusal)))
            raise
        self._submitted(submitted.job_id, submitted.command, (index,))

    def _submit_array(
        self, plan: JobPlan, members: tuple[int, ...], throttle: int | None, preceding: _PrecedingJob | None
    ) -> None:
        token = f"{token_of(str(self._sweep.path))}-{self._serial}"
        self._serial += 1
        runs = [self._sweep.run(index) for index in members]
        executor = registry.scheduler(plan.cluster.scheduler).executor()(
            Run(self._sweep.path), plan, token, throttle, scripts=render, elements=runs, by_hand=self._by_hand,
            submitting=lambda: self._sweep.submitting(token, members, by_hand=self._by_hand),
            blocking_jobs=lambda: _dependencies(plan, preceding),
        )  # fmt: skip
        try:
            jobs = executor.map_array(payload.run, [str(run.path) for run in runs])
        except SubmissionRefused as refusal:
            self._sweep.refused(token, str(refusal))
            raise
        job_id = jobs[0].job_id.rpartition("_")[0]
        if job_id != BY_HAND:
            self._sweep.submitted(token, job_id)
        self._submitted(job_id, executor.command, members)

    def _submitted(self, job_id: str, command: str, members: tuple[int, ...]) -> None:
        if job_id == BY_HAND:
            self._commands.append(command)
        else:
            self._jobs.append((job_id, members))


def start_local_runner(sweep: Sweep) -> None:
    """Starts a process that runs the sweep's requested points on this machine, in the allocation if there is one."""
    output = os.open(sweep.path / "points.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(output, "wb") as log:
        subprocess.Popen(
            [sys.executable, *own_module("launcher.sweeps.local_points"), str(sweep.path)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip


# -- Prepares and submits a search: a sweep whose pilots choose its points while they run (sweep.search)
#
# The submitter composes a few representative points with Hydra: it changes one key at a time to each of its choices, or
# to the smallest and the largest number (`Dimension.ends`). They are planned and checked as the points of any sweep.
# From their records it makes the template from which slot managers make the record of every point. It also chooses and
# makes the first point.


@dataclass(frozen=True)
class PreparedSearch:
    """A search that has passed every check and can be submitted."""

    sweep: PreparedSweep  # the prepared sweep with the representative points; the manifest in it has no points
    settings: SearchSettings  # what is searched, and how
    template: Mapping[str, Any]  # template for the records of points; see `launcher.search.points`


def representatives(space: Space, fixed: Sequence[str]) -> list[tuple[str, ...]]:
    """Returns the overrides of a search's representative points.

    The first point has the first value of each key. Each further point differs from it in one key (`Dimension.ends`).
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

    points: those of `representatives`, in its order, with configs from `with_search_defaults`; checked instead of all.
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


def submit_search(prepared: PreparedSearch, *, by_hand: bool = False) -> SubmittedSweep:
    """Makes the sweep's directory with its first point, and submits pilots until as many are live as needed.

    Raises ConfigError: the directory cannot be made.
    Raises SubmissionError: the scheduler refused a pilot or did not respond, or another command has changed the sweep.
        A second call submits the remaining pilots.
    """
    from launcher.search.search import SearchPoints

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
            submitted = submit_pilots(sweep, run.plan(), run.record()["config"], (0,), by_hand=by_hand)
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
