"""cluster.race: one run with several jobs, for other partitions, accounts or profiles. The first that starts runs it.

Each job has a plan, a script and a token of its own. The job that holds the run's lease first writes its id into a mark
of this race (`runs.lease_and_locks.win`); any other reads it, and ends without an attempt. A later attempt races again.
The winner takes the others out of the queue with `python -m launcher.submission.race RUN_DIR TOKEN_OF_THE_WINNER`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.config.keys import all_keys
from launcher.config.overrides import as_typed, opened
from launcher.environment import secrets
from launcher.errors import ConfigError, LauncherError, near
from launcher.plan.plan import JobPlan, as_dict, keys_of, member_plan, race_token
from launcher.runs.directory import Run
from launcher.schedulers import registry
from launcher.schedulers.base import JOB_TIMEOUT

if TYPE_CHECKING:
    from launcher.submission.prepare import Prepared

# What is the same in all jobs: the run, and what its checkpoints and results depend on.
SAME = ("run_dir", "nodes", "min_nodes", "procs_per_node", "gpus_per_node", "workload", "train", "seed", "checkpoint")


def overrides_of(race: Sequence[str]) -> list[list[str]]:
    """Returns the overrides of each job: `partition=gpu time=1h` is cluster.partition=gpu and time=1h; ConfigError."""
    found = [opened(map(_full, member.split())) for member in race]
    if len(found) < 2 or len({tuple(sorted(each)) for each in found}) < len(found) or not all(found):
        raise ConfigError(f"cluster.race={list(race)}: name two different jobs or more ([partition=a, partition=b])")
    return found


def _full(word: str) -> str:
    key, equals, value = word.partition("=")
    if key == "profile":
        return f"cluster={value}"
    full = key if key in ("time", "mem") or key.startswith("cluster.") else f"cluster.{key}"
    known = {each.removeprefix("cluster.") for each in all_keys() if each.startswith("cluster.")}
    if not equals or (full.startswith("cluster.") and full.split(".")[1] not in known):
        raise ConfigError(
            f"cluster.race: {word!r} is none of profile, time, mem or a key of cluster with its value "
            f"(partition=gpu).{near(key, known, keys=True)}"
        )
    return f"{full}={value}"


def prepared(
    race: Sequence[str], prepare: Callable[[Sequence[str]], Prepared], check: Callable[[int, JobPlan, int], object]
) -> Prepared:
    """Returns the first job's plan, which has all of them; ConfigError names the job.

    prepare: makes a job's plan from more overrides. check: refuses a job, by its number and plan, if so many like it
    are too many.
    """
    made: list[Prepared] = []
    for words in overrides_of(race):
        more = [f"run_id={made[0].plan.run_id}"] if made else []
        try:
            made.append(prepare([*words, *more]))
            _require_alike(made[0].plan, made[-1].plan)
        except ConfigError as error:
            raise ConfigError(f"cluster.race: {' '.join(map(as_typed, words))}: {error}") from None
    plans = [each.plan for each in made]
    for number, plan in enumerate(plans):
        if (alike := sum(each.cluster.settings == plan.cluster.settings for each in plans)) > 1:
            check(number, plan, alike)
    differ = [key for key in as_dict(plans[0]) if len({repr(getattr(each, key)) for each in plans}) > 1]
    members = tuple({key: value for key, value in as_dict(plan).items() if key in differ} for plan in plans)
    notes = tuple(dict.fromkeys(note for each in made for note in each.notes))
    found = secrets.in_common(each.secrets for each in made)
    return replace(made[0], plan=replace(plans[0], race=members), notes=notes, secrets=found)


def _require_alike(first: JobPlan, other: JobPlan) -> None:
    if first.cluster.scheduler != other.cluster.scheduler or not first.queued:
        raise ConfigError(f"all jobs of a race are of one scheduler with a queue, not {other.cluster.scheduler}")
    if first.resume.how == "chain":
        raise ConfigError("resume.how=chain submits all jobs at once: use resubmit")
    mine, theirs = keys_of(first), keys_of(other)
    if changed := [key for key in mine if mine[key] != theirs.get(key) and key.split(".")[0] in SAME]:
        raise ConfigError(f"it changes {', '.join(changed)}, which all jobs of a run share: leave the change out")


def submit_all(
    plan: JobPlan, token: str, submit: Callable[[JobPlan, str], str], won: Callable[[], bool], refused: type[Exception]
) -> list[str]:
    """Submits the jobs of a race until one has started; returns ids; leaves out what is `refused`, unless all are."""
    jobs: list[str] = []
    problems: list[Exception] = []
    for number in range(len(plan.race)):
        if jobs and won():
            break
        try:
            jobs.append(submit(member_plan(plan, number), race_token(token, number)))
        except refused as error:
            problems.append(error)
    if not jobs:
        raise problems[0]
    for each in problems:
        print(f"launcher: one job of the race was not accepted, and the others wait: {each}", file=sys.stderr)
    return jobs


# -- Ends the other jobs of a race when one has started


def others(plan: JobPlan, token: str) -> Iterator[str]:
    race = token.removesuffix(f"-m{plan.member}") if plan.member else token
    yield from (race_token(race, number) for number in range(len(plan.race)) if number != plan.member)


def main(run_dir: str, token: str) -> int:
    plan = Run(Path(run_dir)).plan()
    queries = registry.queue(plan.cluster.scheduler).queries(JOB_TIMEOUT)
    try:
        found = [queries.find(each, plan.name) for each in others(plan, token)]
        if jobs := [job for job in found if job is not None]:
            queries.cancel(*jobs)
    except LauncherError as error:
        print(f"launcher: the other jobs of the race end when they start: {error}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
