"""The dependencies of a run (`after=ok:prepare`): the runs and sweeps that must be over before it starts.

| condition | dependency is done | dependency is over, but not done | dependency is not over, or its state is unknown |
|---|---|---|---|
| ok (the default) | start | never | wait |
| any | start | start | wait |
| failed | never | start | wait |

A sweep is over when all its points are. The scheduler holds the job until the jobs of the dependency have ended, with
any result (`afterany`), since a run may continue in another job. Then the job reads its record (job/wait_for_others).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from launcher.errors import ConfigError, RunError, SubmissionError, near
from launcher.fast_dataclasses import Struct
from launcher.files import folder_checks, safe_io
from launcher.files.retried_reads import list_names, read_text, unwrap
from launcher.monitoring import sweep_status
from launcher.monitoring.run_status import JobMonitor, RunState, queries, rerun, status_of
from launcher.plan.plan import JobPlan
from launcher.runs import lookup, sweep_directory
from launcher.runs.directory import Run
from launcher.runs.events import Awaited, ConditionsMet, every
from launcher.runs.history import read_history
from launcher.runs.sweep_directory import Sweep, element_id
from launcher.schedulers import registry
from launcher.schedulers.base import QueryError

CONDITIONS = ("ok", "any", "failed")
FOLLOWERS = "followers"  # folder in a run or sweep: a file for each run that depends on it, with that run's directory


class StartDecision(Enum):
    START = "start"
    WAIT = "wait"
    NEVER = "never"


class Dependency(Struct):
    """A run or sweep that another run depends on, with its present state."""

    condition: str
    id: str
    path: Path
    state: str
    done: bool  # of a sweep: all points are
    over: bool  # with any result
    uncertain: bool = False  # the state may soon be read differently, since shared file systems show changes late
    scheduler: str | None = None  # name of the scheduler that has the dependency's jobs; None: there are no jobs
    jobs: tuple[str, ...] = ()

    @property
    def decision(self) -> StartDecision:
        if not self.over:
            return StartDecision.WAIT
        met = self.condition == "any" or self.done == (self.condition == "ok")
        return StartDecision.START if met else StartDecision.NEVER

    @property
    def awaited(self) -> Awaited:
        return Awaited(id=self.id, condition=self.condition, state=self.state)


def decide(dependencies: Sequence[Dependency]) -> tuple[StartDecision, str]:
    """Returns what a run does next (NEVER if any dependency says so, else WAIT, else START), and why."""
    for decision in (StartDecision.NEVER, StartDecision.WAIT):
        if each := next((each for each in dependencies if each.decision is decision), None):
            asked = f", and after={each.condition}:{each.id} was asked for" if decision is StartDecision.NEVER else ""
            return decision, f"{each.id} is {each.state}{asked}"
    return StartDecision.START, ", ".join(f"{dependency.id} is {dependency.state}" for dependency in dependencies)


def parse(value: Any, key: str = "after") -> list[tuple[str, str]]:
    """Returns condition and name of each part of `after` (RUN, CONDITION:RUN, a list, None); raises ConfigError."""
    found = []
    for word in [] if value is None else value if isinstance(value, (list, tuple)) else [value]:
        text = str(word) if isinstance(word, (str, int)) and not isinstance(word, bool) else ""
        condition, colon, name = text.partition(":")
        if not colon or "/" in condition:  # a path may have a colon in it
            condition, name = "ok", text
        elif condition not in CONDITIONS:
            raise ConfigError(
                f"{key}={word}: {condition!r} is no condition.{near(condition, CONDITIONS)} "
                f"There are {', '.join(CONDITIONS)}: {key}=ok:RUN"
            )
        if not name:
            raise ConfigError(f"{key}={word}: name a run or sweep, or a list of them ([ok:one,any:other])")
        found.append((condition, name))
    return found


def resolve(value: Any, runs_dir: Path, key: str = "after") -> tuple[str, ...]:
    """Returns `CONDITION:DIRECTORY` of each run or sweep in `after`, by name in runs_dir; raises ConfigError."""
    return tuple(f"{condition}:{_find(name, runs_dir, f'{key}={name}')}" for condition, name in parse(value, key))


def _find(name: str, runs_dir: Path, setting: str) -> Path:
    try:
        return lookup.find(name, runs_dir).path
    except RunError as error:
        with contextlib.suppress(RunError):
            return lookup.find_sweep(name, runs_dir).path
        raise ConfigError(f"{setting}: {error}") from None


def read_dependencies(after: Sequence[str]) -> list[Dependency]:
    """Reads the state of a plan's dependencies (`CONDITION:DIRECTORY`), a query a scheduler; raises RunError."""
    live, parts = JobMonitor(), [each.partition(":") for each in after]
    return [_read_dependency(condition, Path(path), live) for condition, _, path in parts]


def _read_dependency(condition: str, path: Path, live: JobMonitor) -> Dependency:
    run = Run(path)
    sweep = Sweep(path) if Sweep(path).recorded() else sweep_directory.sweep_of(run)
    if sweep is None:
        seen = status_of(run, live)
        waiting = () if seen.history.cancelled else seen.history.waiting  # they were deleted
        jobs = (seen.history.job_id, *waiting) if seen.plan.queued and not seen.state.over else ()
        return Dependency(
            condition, run.id, path, seen.state.value, seen.state is RunState.DONE, seen.state.over,
            seen.state in (RunState.UNKNOWN, RunState.LOST), seen.plan.cluster.scheduler if seen.plan.queued else None,
            tuple(job for job in jobs if job),
        )  # fmt: skip
    points = sweep_status.point_statuses(sweep, live, [int(path.name)] if sweep.path != path else None)
    found = sweep_status.counts(points)
    done = sum(found.get(each.value, 0) for each in (RunState.DONE, RunState.PRUNED)) == len(points)
    state = points[0].state if sweep.path != path else "done" if done else sweep_status.summary(found)
    plans = [(each.seen.plan, each.seen.history.job_id) for each in points if each.live and each.seen]
    if sweep.manifest().packing is not None and not all(each.over for each in points):
        plans = [(each.plan, each.history.job_id) for each in sweep_status.live_pilots(sweep, live)]
    held = [(plan, job) for plan, job in plans if plan.queued and job]
    schedulers = {plan.cluster.scheduler for plan, _ in held}
    whole = sweep.path == path
    return Dependency(
        condition, sweep.id if whole else run.id, path, state, done, all(each.over for each in points),
        any(each.state in (RunState.UNKNOWN.value, RunState.LOST.value) for each in points),
        min(schedulers, default=None),
        tuple(dict.fromkeys(_blocking_job(plan, job, whole=whole) for plan, job in held)),
    )  # fmt: skip


def _blocking_job(plan: JobPlan, job: str, *, whole: bool) -> str:
    # The array's id for a whole sweep, as it is short, and with schedulers that cannot wait for one of its elements
    scheduler = registry.queue(plan.cluster.scheduler)
    return scheduler.array_of(job) if whole or not scheduler.can_be_waited_for(job) else job


def check_dependencies(plan: JobPlan) -> tuple[str, ...]:
    """Returns notes on a plan's dependencies; raises ConfigError: never met, or of another scheduler."""
    if plan.after and "dependency" in plan.cluster.directives:
        raise ConfigError("cluster.directives.dependency and after exclude each other: leave one of them out")
    if conditions_met(Run(Path(plan.run_dir))):
        return ()
    notes = []
    for dependency in _dependencies_of(plan):
        setting = f"after={dependency.condition}:{dependency.id}"
        if str(dependency.path) in (plan.run_dir, str(Path(plan.run_dir).parent)):
            raise ConfigError(f"{setting}: a run cannot wait for itself")
        if dependency.decision is StartDecision.NEVER:
            sweep = Sweep(dependency.path).recorded()
            again = f"sweep rerun {dependency.id}" if sweep else rerun(Run(dependency.path))
            retry = "" if dependency.done else f"`{again or f'resume {dependency.id}'}` first, or "
            do = f"{retry}use after=any:{dependency.id}"
            raise ConfigError(f"{setting}: it is {dependency.state}, so this would never start: {do}")
        if dependency.decision is StartDecision.START:
            continue
        if not plan.queued:
            notes.append(f"waits until {dependency.id} is over: it is {dependency.state}")
        elif dependency.scheduler != plan.cluster.scheduler:
            raise ConfigError(
                f"{setting}: it is {dependency.state} on {dependency.scheduler or 'this machine'}, and a job of "
                f"{plan.cluster.scheduler} cannot wait for that: `wait {dependency.id}` first, and submit without after"
            )
        elif not dependency.jobs:
            raise ConfigError(f"{setting}: it is {dependency.state}, and has no job to wait for: submit it first")
    return tuple(notes)


def _dependencies_of(plan: JobPlan) -> list[Dependency]:
    try:
        return read_dependencies(plan.after)
    except RunError as error:
        raise ConfigError(f"after: {error}") from None


def jobs_to_wait_for(dependencies: Sequence[Dependency]) -> list[str]:
    waiting = [each for each in dependencies if each.decision is StartDecision.WAIT]
    return list(dict.fromkeys(job for each in waiting for job in each.jobs))


def blocking_jobs(plan: JobPlan) -> list[str]:
    """Returns the jobs that must end before that of a plan may start; writes the run into their FOLLOWERS."""
    if not plan.after or conditions_met(Run(Path(plan.run_dir))):
        return []
    dependencies = _dependencies_of(plan)
    for dependency in dependencies:
        if dependency.decision is not StartDecision.NEVER and folder_checks.is_own(dependency.path):
            with contextlib.suppress(OSError):  # without the file, the job reads the state when it starts
                (dependency.path / FOLLOWERS).mkdir(mode=0o700, exist_ok=True)
                safe_io.write(dependency.path / FOLLOWERS / plan.run_id.replace("/", "_"), plan.run_dir)
    return jobs_to_wait_for(dependencies)


def conditions_met(run: Run) -> bool:
    """Returns whether an attempt of a run has recorded that the conditions of all its dependencies are met."""
    return any(every(attempt.written_by("after"), ConditionsMet) for attempt in run.attempts())


Release = Callable[[Run, JobPlan, str, Sequence[str]], None]


def update_followers(*paths: Path, release: Release | None = None) -> list[str]:
    """Makes the jobs of runs that wait for these runs or sweeps wait for their present jobs; returns what failed.

    A waiting job that cannot be changed starts too early, and then waits again after it has read the state.
    release: called with a waiting run, its plan, its job and those that are left to wait for, if none is, or if the
    scheduler has deleted its job: PBS does so with all that wait for a job that is deleted while it waits itself.
    """
    problems: list[str] = []
    followers: dict[Path, str] = {}  # each once, though it may wait for many points, or their sweep
    try:
        homes = [home for path in paths for home in ([path, path.parent] if Run(path).is_point else [path])]
    except RunError as error:
        return [str(error)]
    for home in dict.fromkeys(homes):
        try:
            for name, follower in followers_of(home):
                followers.setdefault(follower, name)
        except RunError as error:
            problems.append(str(error))
    for follower, name in followers.items():
        try:
            _update_follower(follower, release)
        except (OSError, RunError, ConfigError, QueryError, SubmissionError) as error:
            problems.append(f"{name}: {error}")
    return problems


def followers_of(home: Path) -> Iterator[tuple[str, Path]]:
    """Yields the id (with _ for /) and the directory of each run or sweep that depends on this run or sweep."""
    for name in unwrap(list_names(home / FOLLOWERS)) or ():
        if not name.startswith("."):
            yield name, Path((unwrap(read_text(home / FOLLOWERS / name)) or "").strip())


def _update_follower(follower: Path, release: Release | None) -> None:
    run = Run(follower)
    sweep = Sweep(follower)
    if sweep.recorded():
        arrays = [(each.job, sweep.run(each.points[0]).plan()) for each in sweep.submissions() if each.job]
        waiting = {_blocking_job(plan, element_id(job, 0), whole=True): plan for job, plan in arrays}
    elif run.attempts():
        return  # it has started
    else:
        job = read_history(run).job_id
        waiting = {job: run.plan()} if job else {}
    for job_id, plan in waiting.items():
        jobs = jobs_to_wait_for(read_dependencies(plan.after))
        if release is not None and not (jobs and is_kept(plan, job_id)):
            release(run, plan, job_id, jobs)
        elif jobs:
            queries(plan).wait_for(job_id, jobs)


def is_kept(plan: JobPlan, job_id: str) -> bool:
    """Returns whether the scheduler has not deleted a job that waited for others; raises QueryError."""
    return registry.queue(plan.cluster.scheduler).keeps(job_id, plan.cluster.submit_timeout)
