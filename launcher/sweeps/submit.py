"""From the points of a sweep to jobs: one array for all points that ask for the same, each point handed over once.

A sweep is made once. Whoever submits it again gets the points that are there, and completes a submission that was cut
short; points that it did not have are added.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher import redaction
from launcher.agent import payload
from launcher.config.schema import Config, ResumeHow
from launcher.environment import secrets as secret
from launcher.environment import snapshot
from launcher.errors import ConfigError, SubmissionError
from launcher.files import trusted_folders
from launcher.formatting import plural
from launcher.monitoring.live import queries, read_history
from launcher.monitoring.sweep import SweepMonitor, point_statuses
from launcher.own_module import own_module
from launcher.paths import default_runs_dir
from launcher.runs import sweep_directory
from launcher.runs.directory import Run, only_submitter, token_of
from launcher.runs.events import Submitted, every
from launcher.runs.journal import journal_events
from launcher.runs.sweep_directory import Manifest, Sweep
from launcher.schedulers import registry
from launcher.schedulers.executor import begun
from launcher.schedulers.idempotent_submit import Refused
from launcher.schedulers.queries import parts
from launcher.spec.plan import JobPlan, check_name
from launcher.submission.inputs import Inputs
from launcher.submission.interrupts import Interrupted, held_back
from launcher.submission.submit import (
    admitted,
    facts_of_here,
    held_by,
    jobs_before,
    journal_jobs,
    planned,
    require_commands,
    require_same,
    secrets_of,
    site_of,
    start,
    tried,
)
from launcher.sweeps import grouping

# What Slurm and PBS say when a user has as many jobs as one may have; later they take more.
LIMIT = re.compile(
    r"submit limit|MaxSubmit|MaxJobCount|max_queued|Maximum number of jobs|would exceed|exceeds .*limit on",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Wanted:
    """A point as it was asked for: its overrides, its config, and the config resolved."""

    overrides: tuple[str, ...]
    config: Config
    resolved: Mapping[str, Any]


@dataclass(frozen=True)
class PreparedSweep:
    """A sweep all of whose points have passed every check.

    Attributes:
        path: its directory.
        before: the manifest that is there; None: none.
        manifest: what it is to be.
        asked: the numbers of the points that were asked for, in that order.
        wanted: those points by their numbers.
        plans: their plans.
        groups: the plan of each array, and the points in it.
        parallelism: points that may run at once.
        notes: what the user should know.
        secrets: variables that are in no record.
    """

    path: Path
    before: Manifest | None
    manifest: Manifest
    asked: tuple[int, ...]
    wanted: Mapping[int, Wanted]
    plans: Mapping[int, JobPlan]
    groups: Sequence[tuple[JobPlan, tuple[int, ...]]]
    parallelism: int | None
    notes: tuple[str, ...]
    secrets: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class SubmittedSweep:
    """What came of a submission.

    Attributes:
        sweep: the sweep.
        jobs: the id of each job or array, and the points in it.
        there: points that had been submitted before.
        local: points that this machine runs, a few at a time.
        left: points that the scheduler does not take now, and its words.
    """

    sweep: Sweep
    jobs: tuple[tuple[str, tuple[int, ...]], ...]
    there: tuple[int, ...]
    local: tuple[int, ...]
    left: tuple[tuple[int, ...], str] = ((), "")


def id_of(command: Sequence[str], name: str) -> str:
    """The id of the sweep that a command means: the same for the same overrides, in whatever order. Pure."""
    kept = sorted(
        word for word in command
        if "=" in word
        and sweep_directory.key_of(word) not in sweep_directory.COMMAND_KEYS
        and not word.startswith(("-", "sweep."))
    )  # fmt: skip
    return f"{name}-{hashlib.sha256(repr(kept).encode()).hexdigest()[:8]}"


def prepare_sweep(
    wanted: Sequence[Wanted], command: Sequence[str], environ: Mapping[str, str] = os.environ
) -> PreparedSweep:
    """Plans and checks all points; nothing is written and nothing submitted.

    Raises:
        ConfigError: a point cannot be run; the text names it and the fix.
        RunError: the sweep that is there cannot be read.
    """
    first = wanted[0].config
    _refuse_keys_of_one(wanted)
    trusted_folders.require_in_files([each for one in wanted for each in one.config.cluster.trusted_folders])
    secrets, names = _secrets(wanted), redaction.all_patterns(first.env.secrets)
    command = secret.redact_overrides(command, names)
    wanted = [
        dataclasses.replace(
            each, overrides=tuple(secret.redact_overrides(each.overrides, names)),
            resolved=secret.redact_config(each.resolved, secrets),
        )
        for each in wanted
    ]  # fmt: skip
    hidden = {**redaction.secrets_in(environ, names), **secrets}
    for each in wanted:
        secret.require_absent({**each.resolved, "overrides": each.overrides}, hidden)
    name = first.name if all(each.config.name == first.name for each in wanted) else "sweep"
    sweep_id = id_of(command, check_name("name", name)) if first.sweep.id is None else first.sweep.id
    path = Path(first.runs_dir).expanduser().absolute() / check_name("sweep.id", sweep_id)
    before = Sweep(path).manifest() if Sweep(path).recorded() else None
    points = list(before.points) if before else []
    known = {overrides: index for index, overrides in enumerate(points)}
    by_index: dict[int, Wanted] = {}
    asked = []
    for each in wanted:
        overrides = sweep_directory.canonical(each.overrides)
        if overrides not in known:
            known[overrides] = len(points)
            points.append(overrides)
        asked.append(known[overrides])
        by_index.setdefault(known[overrides], each)
    objective = first.sweep.objective
    manifest = Manifest(
        name=name,
        command=before.command if before else tuple(command),
        points=tuple(points),
        objective=tuple([objective] if isinstance(objective, str) else objective or ()),
        best_is=first.sweep.best_is.value,
        parallelism=_parallelism(first),
    )
    plans, notes = _plans(by_index, manifest, sweep_id, environ)
    keys = sweep_directory.differing(points)
    found = grouping.groups(plans, sweep_id, path, lambda index: _naming(index, by_index[index].overrides, keys))
    for _, members in found:
        with _naming(members[0], by_index[members[0]].overrides, keys):
            config = by_index[members[0]].config
            notes.update(dict.fromkeys(admitted(plans[members[0]], config, environ, held_by(config, environ))))
    return PreparedSweep(
        path, before, manifest, tuple(asked), by_index, plans, found, manifest.parallelism, tuple(notes), secrets
    )


def _secrets(wanted: Sequence[Wanted]) -> dict[str, str]:
    """The secrets of all points.

    Raises:
        ConfigError: one has several values; points of an array have one environment.
    """
    found: dict[str, str] = {}
    for each in wanted:
        for name, value in secrets_of(each.config).items():
            if found.setdefault(name, value) != value:
                raise ConfigError(f"cluster.environment.{name} is a secret (env.secrets): all points have the same one")
    return found


def _parallelism(config: Config) -> int | None:
    if config.sweep.parallelism is not None and config.sweep.parallelism < 1:
        raise ConfigError(f"sweep.parallelism={config.sweep.parallelism}: it must be 1 or more")
    return config.sweep.parallelism


def _refuse_keys_of_one(wanted: Sequence[Wanted]) -> None:
    words = [word for each in wanted for word in each.overrides]
    if run_id := next((word for word in words if sweep_directory.key_of(word) == "run_id"), None):
        raise ConfigError(
            f"{run_id}: it names one run, and the points of a sweep are SWEEP/0, SWEEP/1, ...: use sweep.id"
        )
    differing = sweep_directory.differing([each.overrides for each in wanted])
    for key in differing:
        if key in sweep_directory.COMMAND_KEYS or key.startswith("sweep."):
            raise ConfigError(f"{key} is for the whole sweep, and cannot be another one in each point")


def _plans(
    wanted: Mapping[int, Wanted], manifest: Manifest, sweep_id: str, environ: Mapping[str, str]
) -> tuple[dict[int, JobPlan], dict[str, None]]:
    keys = sweep_directory.differing(manifest.points)
    plans: dict[int, JobPlan] = {}
    inputs = Inputs()
    notes: dict[str, None] = {}
    folders: dict[str, int] = {}
    for index, each in wanted.items():
        with _naming(index, each.overrides, keys):
            held = held_by(each.config, environ)
            plan, told = planned(each.config, site_of(each.config, f"{sweep_id}/{index}", held), inputs)
            if plan.queued and plan.resume.how == ResumeHow.chain.value:
                raise ConfigError("resume.how=chain is for single runs: use resubmit or requeue in a sweep")
            if (other := folders.setdefault(plan.checkpoint.dir, index)) != index:
                raise ConfigError(
                    f"checkpoint.dir={plan.checkpoint.dir} would be that of point {other} too: leave it out, and each "
                    "point has its own"
                )
        plans[index] = plan
        notes.update(dict.fromkeys(told))
    return plans, notes


@contextlib.contextmanager
def _naming(index: int, overrides: Sequence[str], keys: Sequence[str]) -> Iterator[None]:
    """Errors inside tell whose they are."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(
            f"point {index} ({sweep_directory.label(overrides, keys) or 'the only one'}): {error}"
        ) from None


def submit_sweep(prepared: PreparedSweep) -> SubmittedSweep:
    """Makes the sweep's directory and hands all points over that have no job yet.

    Raises:
        ConfigError: the directory cannot be made, or a point that is there has another config.
        SubmissionError: the scheduler refused, or did not answer. Repeat it: it takes what is there, and goes on.
    """
    with secret.exported(prepared.secrets):
        return _submit_sweep(prepared)


def _submit_sweep(prepared: PreparedSweep) -> SubmittedSweep:
    for plan, _ in prepared.groups:
        require_commands(plan)
    sweep = Sweep.create(prepared.path)
    with only_submitter(sweep.path):
        now = sweep.manifest() if sweep.recorded() else None
        if now != prepared.before:
            raise SubmissionError(f"{sweep.id} was changed by another command meanwhile: repeat this one")
        if now != prepared.manifest:
            sweep.write(prepared.manifest)
        made = _make_points(sweep, prepared)
        sweep.mark_cancelled(False)
        recover(sweep, {index: prepared.plans[index] for index in prepared.plans})
        there = {index for each in sweep.submissions() for index in each.points} & set(prepared.plans)
        there |= {i for i in prepared.plans if i not in made | there and read_history(sweep.run(i)).job_id is not None}
        for index in set(prepared.plans) - there - made:
            sweep.run(index).clear_marks()  # it may have been cancelled before it was handed over
        handing = _Handing(sweep, prepared.groups, prepared.plans, prepared.parallelism)
        submitted = handing.over(set(prepared.plans) - there)
    with contextlib.suppress(OSError):  # a convenience: commands also take a path
        Run(sweep.path).link(default_runs_dir())
    return dataclasses.replace(submitted, there=tuple(sorted(there)))


def resubmit(
    sweep: Sweep, points: Sequence[int], secrets: Callable[[Run], Mapping[str, str]] = lambda _: {}
) -> SubmittedSweep:
    """Hands points over once more that are over, or were never handed over; they go on from their checkpoints.

    Args:
        sweep: the sweep.
        points: which.
        secrets: composes those that a point's config sets; others are in this process's environment.

    Raises:
        SubmissionError: the scheduler refused, or did not answer.
    """
    plans = {index: sweep.run(index).plan() for index in points}
    groups = grouping.groups(plans, sweep.id, sweep.path)
    found: dict[str, str] = {}
    for plan, members in groups:
        require_commands(plan)
        if plan.secret_variables:
            found |= secrets(sweep.run(members[0]))
            secret.require(plan.secret_variables, {**os.environ, **found})
    with secret.exported(found), only_submitter(sweep.path):
        sweep.mark_cancelled(False)
        for index in points:
            sweep.run(index).clear_marks()
        return _Handing(sweep, groups, plans, sweep.manifest().parallelism, again=True).over(set(points))


def _make_points(sweep: Sweep, prepared: PreparedSweep) -> set[int]:
    """The directories of the points that have none, which are returned.

    They can be made again from the manifest, so nobody waits for the disk.
    """
    facts: dict[str, Any] | None = None
    made = set()
    for plan in prepared.plans.values():
        snapshot.take(plan)  # all share one
    for index, each in prepared.wanted.items():
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
    """Finds out what became of arrays whose submitter was killed before it knew."""
    for each in sweep.submissions():
        if each.job is None:
            plan = plans[each.points[0]] if each.points[0] in plans else sweep.run(each.points[0]).plan()
            job = begun([sweep.run(index) for index in each.points]) or queries(plan).find(each.token, plan.name)
            if job is None:
                sweep.refused(each.token)
            else:
                sweep.submitted(each.token, job)


@dataclass(frozen=True)
class _Before:
    """A job of a sweep that has to end before another one starts, where no more points may run at once."""

    sweep: Sweep
    scheduler: str
    job: str
    points: tuple[int, ...]

    def live(self) -> bool:
        return not all(each.over for each in point_statuses(self.sweep, SweepMonitor(), list(self.points)))


def _jobs_before(plan: JobPlan, behind: _Before | None) -> list[str]:
    """The jobs that have to end before a job of this plan may start, as they are now."""
    jobs = jobs_before(plan)
    if behind is not None and behind.scheduler == plan.cluster.scheduler and behind.live():
        jobs.append(behind.job)
    return jobs


class _Handing:
    """Hands points over, array by array."""

    def __init__(
        self, sweep: Sweep, groups: Sequence[tuple[JobPlan, tuple[int, ...]]], plans: Mapping[int, JobPlan],
        parallelism: int | None, *, again: bool = False,
    ) -> None:  # fmt: skip
        self._sweep, self._groups, self._plans, self._again = sweep, groups, plans, again
        self._parallelism = parallelism
        self._serial = len(sweep.tokens())
        self._jobs: list[tuple[str, tuple[int, ...]]] = []
        self._words = ""

    def over(self, points: set[int]) -> SubmittedSweep:
        """Hands these over; those of this machine to a process that runs a few at a time."""
        queued = [(plan, tuple(i for i in members if i in points)) for plan, members in self._groups if plan.queued]
        arrays = [
            (plan, members[part.start : part.stop])
            for plan, members in queued
            if members
            for part in parts(len(members), self._largest(plan, len(members)))
        ]
        throttles = grouping.shares(self._parallelism, [len(members) for _, members in arrays])
        left: list[int] = []
        full: list[JobPlan] = []  # groups of which the scheduler takes no more
        for number, ((plan, members), throttle) in enumerate(zip(arrays, throttles, strict=True)):
            before = number - (self._parallelism or len(arrays))  # no more arrays at once than points may run
            behind = None if before < 0 else self._last_job(arrays[before])
            rest = list(members) if plan in full else self._hand_over(plan, members, throttle, behind)
            full += [plan] if rest else []
            left += rest
        local = tuple(
            index for plan, members in self._groups if not plan.queued for index in members if index in points
        )
        if local:
            self._sweep.request_local(local, again=self._again)
            start_here(self._sweep)
        return SubmittedSweep(self._sweep, tuple(self._jobs), (), local, (tuple(left), self._words))

    def _largest(self, plan: JobPlan, count: int) -> int | None:
        """Most elements of one array."""
        return queries(plan).max_array_size(plan.cluster.queue) if count > 1 else None

    def _last_job(self, array: tuple[JobPlan, tuple[int, ...]]) -> _Before | None:
        """The last job that was submitted for these points."""
        plan, points = array
        found = [(job, members) for job, members in self._jobs if set(members) <= set(points)]
        return _Before(self._sweep, plan.cluster.scheduler, *found[-1]) if found else None

    def _hand_over(
        self, plan: JobPlan, members: tuple[int, ...], throttle: int | None, behind: _Before | None
    ) -> list[int]:
        """Hands members over, in smaller arrays where the user may have no more jobs; those that remain.

        Args:
            plan: of the first of them.
            members: indices of points.
            throttle: how many of them may run at once.
            behind: the job that has to end before they may start.
        """
        try:
            with self._interrupted():
                if len(members) == 1:
                    self._single(members[0], behind)
                else:
                    self._array(plan, members, throttle, behind)
            return []
        except Refused as refused:
            if not LIMIT.search(str(refused)):
                raise self._halfway(refused) from None
            self._words = str(refused)
            if len(members) == 1:
                return list(members)
            first, rest = members[: len(members) // 2], members[len(members) // 2 :]
            throttles = grouping.shares(throttle, [len(first), len(rest)])
            if left := self._hand_over(plan, first, throttles[0], behind):
                return [*left, *rest]
            return self._hand_over(plan, rest, throttles[1], self._last_job((plan, first)) if throttle == 1 else behind)

    @contextlib.contextmanager
    def _interrupted(self) -> Iterator[None]:
        """Ctrl-C inside does not cut the submission of an array short, and tells what has been submitted.

        Raises:
            Interrupted: after it, or at the second Ctrl-C.
        """
        then = f"repeat the command to go on, or end it with `launcher cancel {self._sweep.id}`"
        try:
            with held_back() as interrupted:
                yield
        except KeyboardInterrupt:
            raise Interrupted(f"nobody knows which points of {self._sweep.id} were submitted: {then}") from None
        if interrupted:
            count = plural(sum(len(points) for _, points in self._jobs), "point")
            jobs = ", ".join(job for job, _ in self._jobs)
            raise Interrupted(f"{count} of {self._sweep.id} submitted, as {jobs}: {then}")

    def _halfway(self, refused: Refused) -> SubmissionError:
        """The refusal, and what was submitted before it."""
        if not self._jobs:
            return refused
        jobs = ", ".join(job for job, _ in self._jobs)
        count = sum(len(points) for _, points in self._jobs)
        return SubmissionError(
            f"{refused}\n{count} other points were submitted before, as {jobs}; repeat the command to go on"
        )

    def _single(self, index: int, behind: _Before | None) -> None:
        run, plan = self._sweep.run(index), self._plans[index]
        journal = journal_events(run)
        submitted = len(every(journal, Submitted))
        token = token_of(plan.run_dir) + (f"-r{submitted}" if submitted else "")
        job = start(run, plan, token, resumed=tried(run, token), held_by=lambda: _jobs_before(plan, behind))
        journal_jobs(run, plan, job.job_id, token)
        self._jobs.append((job.job_id, (index,)))

    def _array(self, plan: JobPlan, members: tuple[int, ...], throttle: int | None, behind: _Before | None) -> None:
        token = f"{token_of(str(self._sweep.path))}-{self._serial}"
        self._serial += 1
        runs = [self._sweep.run(index) for index in members]
        executor = registry.scheduler(plan.cluster.scheduler).executor()(
            Run(self._sweep.path), plan, token, throttle, elements=runs,
            submitting=lambda: self._sweep.submitting(token, members), held_by=lambda: _jobs_before(plan, behind),
        )  # fmt: skip
        try:
            jobs = executor.map_array(payload.run, [str(run.path) for run in runs])
        except Refused as refusal:
            self._sweep.refused(token, str(refusal))
            raise
        job_id = jobs[0].job_id.rpartition("_")[0]
        self._sweep.submitted(token, job_id)
        self._jobs.append((job_id, members))


def start_here(sweep: Sweep) -> None:
    """Starts the process that runs points on this machine, or in the allocation that is held; it goes on without us."""
    output = os.open(sweep.path / "points.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(output, "wb") as log:
        subprocess.Popen(
            [sys.executable, *own_module("launcher.sweeps.local_points"), str(sweep.path)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
