"""cluster.race with every scheduler that has a queue: one run, several jobs, and the first that starts runs it."""

from __future__ import annotations

import json

from launcher.runs.directory import Run
from launcher.runs.events import Started, Submitted, every
from launcher.runs.history import journal_events
from tests.contract import schedulers
from tests.launch import Launcher


def races(run: Run) -> list[list[str]]:
    """The jobs of each race of a run."""
    return [[each.job, *each.chain] for each in every(journal_events(run), Submitted) if each.race]


def starts(run: Run) -> list[str]:
    return [each.job for attempt in run.attempts() for each in every(attempt.events(), Started)]


@schedulers.detached("slurm", "pbs", "sge", never=("local", "allocation", "third"))
def test_one_job_runs_the_run_and_a_later_attempt_races_again(launcher: Launcher) -> None:
    # Slurm takes whole minutes, and has several partitions.
    slurm = "cluster=slurm" in launcher.overrides
    race = "partition=gpu,partition=debug,partition=memory" if slurm else "time=60s,time=61s,time=62s"
    done = launcher.run(
        "workload=collective", "workload.entry=tests.chaos.steps:main", "nodes=2", "resume.how=resubmit",
        "resume.lead=55s", "time=1m", f"cluster.race=[{race}]", STEPS="160", STEP_TIME="0.05",
    )  # fmt: skip
    assert done.code == 0, done.output
    began, raced = starts(done.run), races(done.run)
    assert len(began) == len(raced) > 1, "a job that has lost counts as no attempt"
    assert all(job in jobs for job, jobs in zip(began, raced, strict=True))
    shown = json.loads(launcher("status", "latest", "--json").stdout)[0]
    assert (shown["state"], shown["job"]) == ("done", began[-1])
