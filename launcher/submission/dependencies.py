"""Runs that start when others are over: what `after=ok:prepare` means, and whether it has come about.

| condition | the other is done | is over, and not done | is not over, or nobody can tell |
|---|---|---|---|
| ok (the default) | start | never | wait |
| any | start | start | wait |
| failed | never | start | wait |

A sweep is over when all its points are, and done when all are done.

The scheduler is only told to hold the job until the other's jobs have ended, however they did (`afterany`). What
became of the other is read from its record, by the job itself when it begins (launcher/job/wait_for_others.py): a job
may end and its run go on in another, and then `afterok` would have failed for good, and PBS deleted the job that waits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from launcher.errors import ConfigError, RunError, near
from launcher.files import ownership, run_files
from launcher.files.shared_files import list_names, read_text, unwrap
from launcher.monitoring import sweep as sweep_live
from launcher.monitoring.live import queries, read_history, status_of
from launcher.monitoring.state import RunState
from launcher.monitoring.sweep import SweepMonitor
from launcher.runs import lookup, sweep_directory
from launcher.runs.directory import Run
from launcher.runs.events import Awaited, ConditionsMet, every
from launcher.runs.sweep_directory import Sweep
from launcher.schedulers import registry
from launcher.schedulers.queries import QueryError
from launcher.spec.plan import JobPlan

CONDITIONS = ("ok", "any", "failed")
FOLLOWERS = "followers"  # folder of a run or sweep: whose jobs look, when they begin, for what became of it


class Word(Enum):
    """What a run that waits is to do."""

    START = "start"
    WAIT = "wait"
    NEVER = "never"


@dataclass(frozen=True)
class Other:
    """A run or sweep that is waited for, as it is now.

    Attributes:
        condition: one of CONDITIONS.
        id: of the run, the point or the sweep.
        path: its directory.
        state: in a word or two.
        done: whether it is done.
        over: whether it is over, in whatever way.
        unsure: whether the next look may tell otherwise, although nothing happens meanwhile.
        scheduler: of its jobs; None: it has none.
        jobs: those of its jobs that are not over.
    """

    condition: str
    id: str
    path: Path
    state: str
    done: bool
    over: bool
    unsure: bool = False
    scheduler: str | None = None
    jobs: tuple[str, ...] = ()

    @property
    def word(self) -> Word:
        """By the table above."""
        if not self.over:
            return Word.WAIT
        return Word.START if self.condition == "any" or self.done == (self.condition == "ok") else Word.NEVER

    @property
    def awaited(self) -> Awaited:
        """What is told of it once all that is waited for has come about."""
        return Awaited(id=self.id, condition=self.condition, state=self.state)


def decide(others: Sequence[Other]) -> tuple[Word, str]:
    """What somebody who waits for all of these is to do, and why. Pure."""
    for word in (Word.NEVER, Word.WAIT):
        for other in others:
            if other.word is word:
                return word, f"{other.id} is {other.state}" + (
                    f", and after={other.condition}:{other.id} was asked for" if word is Word.NEVER else ""
                )
    return Word.START, ", ".join(f"{other.id} is {other.state}" for other in others)


# -- what the user wrote


def parse(value: Any, key: str = "after") -> list[tuple[str, str]]:
    """Condition and name of each run in a value of the key `after`. Pure.

    Raises:
        ConfigError: it is neither a text nor a list of texts, or has a condition that there is not.
    """
    found = []
    for word in [] if value is None else value if isinstance(value, (list, tuple)) else [value]:
        text = str(word) if isinstance(word, (str, int)) and not isinstance(word, bool) else ""
        condition, colon, name = text.partition(":")
        if not colon:
            condition, name = "ok", text
        elif condition not in CONDITIONS and "/" not in condition:
            raise ConfigError(
                f"{key}={word}: {condition!r} is no condition.{near(condition, CONDITIONS)} "
                f"There are {', '.join(CONDITIONS)}: {key}=ok:RUN"
            )
        elif condition not in CONDITIONS:
            condition, name = "ok", text  # a path with a colon in it
        if not name:
            raise ConfigError(f"{key}={word}: name a run or sweep, or a list of them ([ok:one,any:other])")
        found.append((condition, name))
    return found


def resolve(value: Any, runs_dir: Path, key: str = "after") -> tuple[str, ...]:
    """The same with directories for names (`ok:/runs/prepare`), as a plan keeps it.

    Raises:
        ConfigError: as for `parse`, or a name fits no run and no sweep, or several.
    """
    return tuple(f"{condition}:{_find(name, runs_dir, f'{key}={name}')}" for condition, name in parse(value, key))


def _find(name: str, runs_dir: Path, told: str) -> Path:
    try:
        return lookup.find(name, runs_dir).path
    except RunError as error:
        with contextlib.suppress(RunError):
            return lookup.find_sweep(name, runs_dir).path
        raise ConfigError(f"{told}: {error}") from None


# -- the others as they are now


def look_at(after: Sequence[str]) -> list[Other]:
    """Those that a plan's `after` names, with one question to each scheduler.

    Raises:
        UnavailableError: one cannot be read now.
        RunError: a directory is gone, or damaged.
    """
    live = SweepMonitor()
    return [_look_at(condition, Path(path), live) for condition, _, path in (each.partition(":") for each in after)]


def _look_at(condition: str, path: Path, live: SweepMonitor) -> Other:
    run = Run(path)
    sweep = Sweep(path) if Sweep(path).recorded() else sweep_directory.sweep_of(run)
    if sweep is None:
        seen = status_of(run, live)
        jobs = (seen.history.job_id, *seen.history.waiting) if seen.plan.queued and not seen.state.over else ()
        return Other(
            condition, run.id, path, seen.state.value, seen.state is RunState.DONE, seen.state.over,
            seen.state in (RunState.UNKNOWN, RunState.LOST), seen.plan.cluster.scheduler if seen.plan.queued else None,
            tuple(job for job in jobs if job),
        )  # fmt: skip
    points = sweep_live.point_statuses(sweep, live, [int(path.name)] if sweep.path != path else None)
    found = sweep_live.counts(points)
    done = sum(found.get(each.value, 0) for each in (RunState.DONE, RunState.PRUNED)) == len(points)
    state = points[0].state if sweep.path != path else "done" if done else sweep_live.summary(found)
    plans = [(each.seen.plan, each.seen.history.job_id) for each in points if each.live and each.seen]
    held = [(plan, job) for plan, job in plans if plan.queued and job]
    schedulers = {plan.cluster.scheduler for plan, _ in held}
    whole = sweep.path == path
    return Other(
        condition, sweep.id if whole else run.id, path, state, done, all(each.over for each in points),
        any(each.state in (RunState.UNKNOWN.value, RunState.LOST.value) for each in points),
        min(schedulers, default=None),
        tuple(dict.fromkeys(_to_wait_for(plan, job, whole=whole) for plan, job in held)),
    )  # fmt: skip


def _to_wait_for(plan: JobPlan, job: str, *, whole: bool) -> str:
    """A job, or for an element the array: of many it is shorter, and some can be waited for as a whole only."""
    scheduler = registry.queue(plan.cluster.scheduler)
    return scheduler.array_of(job) if whole or not scheduler.can_be_waited_for(job) else job


# -- submission


def admitted(plan: JobPlan) -> tuple[str, ...]:
    """Checks that what a plan waits for can still come about; what its user should know.

    Raises:
        ConfigError: it cannot, or the plan's scheduler cannot wait for it.
    """
    if plan.after and "dependency" in plan.cluster.directives:
        raise ConfigError("cluster.directives.dependency and after exclude each other: leave one of them out")
    if passed(Run(Path(plan.run_dir))):
        return ()
    notes = []
    for other in _others(plan):
        told = f"after={other.condition}:{other.id}"
        if str(other.path) in (plan.run_dir, str(Path(plan.run_dir).parent)):
            raise ConfigError(f"{told}: a run cannot wait for itself")
        if other.word is Word.NEVER:
            raise ConfigError(
                f"{told}: it is {other.state}, so this would never start: "
                + (f"`resume {other.id}` first, or use after=any:{other.id}" if not other.done else "leave it out")
            )
        if other.word is Word.START or not plan.queued:
            notes += [] if other.word is Word.START else [f"waits until {other.id} is over: it is {other.state}"]
        elif other.scheduler != plan.cluster.scheduler:
            where = "this machine" if other.scheduler is None else other.scheduler
            raise ConfigError(
                f"{told}: it is {other.state} on {where}, and a job of {plan.cluster.scheduler} cannot wait for that: "
                f"`wait {other.id}` first, and then submit without after"
            )
        elif not other.jobs:
            raise ConfigError(f"{told}: it is {other.state}, and has no job to wait for: submit it (again) first")
    return tuple(notes)


def _others(plan: JobPlan) -> list[Other]:
    try:
        return look_at(plan.after)
    except RunError as error:
        raise ConfigError(f"after: {error}") from None


def jobs_of(others: Sequence[Other]) -> list[str]:
    """The jobs that have to end first. Pure."""
    return list(dict.fromkeys(job for other in others if other.word is Word.WAIT for job in other.jobs))


def held_by(plan: JobPlan) -> list[str]:
    """The jobs that have to end before the job of this plan may start; the others are told who looks for them then."""
    if not plan.after or passed(Run(Path(plan.run_dir))):
        return []
    others = _others(plan)
    for other in others:
        if other.word is not Word.NEVER and ownership.is_own(other.path):
            with contextlib.suppress(OSError):  # then it looks itself, when it begins
                (other.path / FOLLOWERS).mkdir(mode=0o700, exist_ok=True)
                run_files.write(other.path / FOLLOWERS / plan.run_id.replace("/", "_"), plan.run_dir)
    return jobs_of(others)


def passed(run: Run) -> bool:
    """Whether an attempt of the run has found that all it waited for had come about."""
    return any(every(attempt.events(), ConditionsMet) for attempt in run.attempts())


# -- when a run goes on in another job


def repoint(path: Path) -> list[str]:
    """Has those who wait for the run in this directory wait for its present jobs; what could not be done.

    Who is not reached looks itself when it begins, which costs it a start.
    """
    problems = []
    try:
        homes = [path, path.parent] if Run(path).is_point else [path]
        files = [home / FOLLOWERS / name for home in homes for name in unwrap(list_names(home / FOLLOWERS)) or ()]
    except RunError as error:
        return [str(error)]
    for file in files:
        if file.name.startswith("."):
            continue
        try:
            _repoint(Path((unwrap(read_text(file)) or "").strip()))
        except (OSError, RunError, ConfigError, QueryError) as error:
            problems.append(f"{file.name}: {error}")
    return problems


def _repoint(follower: Path) -> None:
    run = Run(follower)
    sweep = Sweep(follower)
    if sweep.recorded():
        arrays = [(each.job_of(each.points[0]), sweep.run(each.points[0]).plan()) for each in sweep.submissions()]
        waiting = {_to_wait_for(plan, job, whole=True): plan for job, plan in arrays if job}
    elif run.attempts():
        return  # it has begun
    else:
        job = read_history(run).job_id
        waiting = {job: run.plan()} if job else {}
    for job_id, plan in waiting.items():
        if jobs := jobs_of(look_at(plan.after)):
            queries(plan).wait_for(job_id, jobs)


def with_latest(value: Any) -> bool:
    """Whether the same words may mean another run when they are said again."""
    return any(name == "latest" for _, name in parse(value))
