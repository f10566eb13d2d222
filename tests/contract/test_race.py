"""cluster.race with every scheduler that has a queue: one run, several jobs, and the first that starts runs it."""

from __future__ import annotations

from launcher.runs.directory import Run
from launcher.runs.events import Started, Submitted, every
from launcher.runs.history import journal_events
from tests.contract import schedulers
from tests.launch import Launcher

STEPS = ("workload=collective", "workload.entry=tests.chaos.steps:main", "nodes=2")
# Grid Engine and PBS have one queue here; Slurm takes whole minutes.
TIMES, PARTITIONS = "time=5m,time=6m,time=7m", "partition=gpu,partition=debug,partition=memory"


def races(run: Run) -> list[list[str]]:
    """The jobs of each race of a run."""
    return [[each.job, *each.chain] for each in every(journal_events(run), Submitted) if each.race]


def starts(run: Run) -> list[str]:
    return [each.job for attempt in run.attempts() for each in every(attempt.events(), Started)]


def was_raced(launcher: Launcher, attempts: int) -> None:
    run = launcher.last()
    began, raced = starts(run), races(run)
    assert len(began) == len(raced) >= attempts, "a job that has lost counts as no attempt"
    assert all(job in jobs for job, jobs in zip(began, raced, strict=True))
    shown = launcher.status()
    assert (shown["state"], shown["job"]) == ("done", began[-1])


@schedulers.detached(ci=("slurm",), never=("local", "allocation", "third"))
def test_one_job_runs_the_run_and_a_resumed_run_races_again(launcher: Launcher) -> None:
    asked = (*STEPS, f"cluster.race=[{TIMES}]", "run_id=raced", "wait=false")
    assert launcher.submit(*asked, STEPS="100000", STEP_TIME="0.05").returncode == 0
    launcher.until(lambda: (launcher.status()["step"] or 0) > 3, "some steps", timeout=120)
    (launcher.last().path / "stop").touch()
    launcher.until(lambda: launcher.status()["state"] == "stopped", "the stop", timeout=120)
    assert launcher("resume", "raced", "wait=true", STEPS="1", STEP_TIME="0.05").returncode == 0
    was_raced(launcher, 2)


@schedulers.detached(never=("local", "allocation", "third"))
def test_an_attempt_that_goes_on_in_a_new_job_races_again(launcher: Launcher) -> None:
    race = f"cluster.race=[{PARTITIONS if 'cluster=slurm' in launcher.overrides else 'time=60s,time=61s,time=62s'}]"
    done = launcher.run(
        *STEPS, race, "time=1m", "resume.how=resubmit", "resume.lead=45s", "resume.max_attempts=5",
        STEPS="400", STEP_TIME="0.05",
    )  # fmt: skip
    assert done.code == 0, done.output
    was_raced(launcher, 2)
