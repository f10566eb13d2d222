"""cluster.race on a real Slurm: one run with several jobs, of which the first that starts runs it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.runs.directory import Run
from launcher.runs.events import Started, Submitted, every
from launcher.runs.history import journal_events
from tests.cluster.slurm_cluster import SlurmCluster
from tests.launch import Launcher, until

RACE = "cluster.race=[partition=gpu,partition=debug time=5m,partition=memory]"
FULL = ("workload=collective", "workload.entry=tests.chaos.faults:tells", "time=10m")


@pytest.fixture
def launcher(slurm: SlurmCluster, tmp_path: Path) -> Iterator[Launcher]:
    yield Launcher(
        tmp_path / "runs", {"SLURM_CONF": slurm.env()["SLURM_CONF"]}, ["cluster=slurm"], hosts=("node1", "node2")
    )
    slurm.reset()


def queue(slurm: SlurmCluster) -> dict[str, str]:
    """The state of each job by its id."""
    words = ["squeue", "--all", "--noheader", "--format=%i %T"]
    asked = subprocess.run(words, env=slurm.env(), capture_output=True, text=True, check=True).stdout
    return dict(line.split() for line in asked.splitlines())


def starts(run: Run) -> list[Started]:
    return [each for attempt in run.attempts() for each in every(attempt.events(), Started)]


def test_the_first_job_that_starts_runs_it_and_the_others_are_gone(launcher: Launcher, slurm: SlurmCluster) -> None:
    done = launcher.submit(*FULL, RACE, "wait=true")
    assert done.returncode == 0, done.stdout + done.stderr
    run = launcher.last()
    (submitted,) = every(journal_events(run), Submitted)
    assert submitted.race and len(submitted.chain) <= 2
    (started,) = starts(run)
    assert started.job in (submitted.job, *submitted.chain)
    until(lambda: not queue(slurm), "the end of the other jobs", 30)
    assert launcher.status()["state"] == "done"


def test_jobs_that_wait_are_shown_and_cancelled_together(launcher: Launcher, slurm: SlurmCluster) -> None:
    held = "cluster.directives.hold=true"
    assert launcher.submit(*FULL, RACE, held).returncode == 0
    assert len(queue(slurm)) == 3
    run = launcher.last()
    assert launcher.status()["state"] == "queued"
    (submitted,) = every(journal_events(run), Submitted)
    second = submitted.chain[0]
    named = (
        (submitted.job, "partition=gpu"),
        (second, "partition=debug time=5m"),
        (submitted.chain[1], "partition=memory"),
    )
    for told in (launcher("why", run.id).stdout, launcher("status", run.id).stdout):
        for job, name in named:
            assert re.search(rf"job\s+{job}\s+\({name.replace(' ', '.+')}\):\s+PENDING", told, re.DOTALL), told
    subprocess.run(["scontrol", "release", second], env=slurm.env(), check=True)
    assert launcher("wait", "latest").returncode == 0
    assert [each.job for each in starts(run)] == [second]
    until(lambda: not queue(slurm), "the end of the other jobs", 30)

    assert launcher.submit(*FULL, RACE, held, "run_id=again").returncode == 0
    assert launcher("cancel", "again").returncode == 0
    until(lambda: not queue(slurm), "the cancellation", 30)
    assert launcher.status()["state"] == "cancelled"


def test_the_plan_that_a_job_of_the_race_runs_with_is_its_own(launcher: Launcher, slurm: SlurmCluster) -> None:
    shown = launcher.submit(*FULL, RACE, "dry_run=true").stdout
    assert re.findall(r"#SBATCH --partition=(\w+)", shown) == ["gpu", "debug", "memory"]
    assert re.findall(r"#SBATCH --time=(\S+)", shown)[1] == "00:05:00"


@pytest.mark.parametrize(
    ("race", "told"),
    [
        ("[partition=gpu]", "name two different jobs or more"),
        ("[partition=gpu,partition=gpu]", "name two different jobs or more"),
        ("[partition=gpu,nodes=2]", "'nodes=2' is none of profile, time, mem or a key of cluster"),
        ("[partition=gpu,partitoin=short]", "Did you mean partition?"),
        ("[partition=gpu,partition=nothing]", "cluster.race: cluster.partition=nothing: "),
        ("[partition=gpu,profile=local]", "all jobs of a race are of one scheduler with a queue, not local"),
        ("[partition=gpu,partition=debug time=100d]", "cluster.race: cluster.partition=debug time=100d: "),
    ],
)
def test_a_race_that_cannot_be_run_is_refused_by_name(
    launcher: Launcher, slurm: SlurmCluster, race: str, told: str
) -> None:
    done = launcher.submit(*FULL, f"cluster.race={race}")
    assert (done.returncode, told in done.stderr) == (2, True), done.stderr
    assert not queue(slurm)
