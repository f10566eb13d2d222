"""Ends the other jobs of a race when one has started: `python -m launcher.job.race RUN_DIR TOKEN_OF_THE_WINNER`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from launcher.errors import LauncherError
from launcher.plan.plan import JobPlan, race_token
from launcher.runs.directory import Run
from launcher.schedulers import registry
from launcher.schedulers.base import JOB_TIMEOUT


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
