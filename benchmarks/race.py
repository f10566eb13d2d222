"""Races of three jobs (cluster.race) on four nodes of a Slurm cluster on this machine: how many runs started twice, and
how long the jobs that lost were there after the start.

    python -m benchmarks.race
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.measure import Result, report
from benchmarks.restart import percentile
from launcher.runs.directory import Run
from launcher.runs.events import Started, every
from tests.cluster.slurm_cluster import SlurmCluster
from tests.launch import Launcher

AT_ONCE = 4  # runs that are submitted one after the other before their end is awaited
PATIENCE = 120.0  # seconds for the end of all jobs of these runs
RACE = "cluster.race=[partition=gpu,partition=debug time=5m,partition=memory]"


def results(races: int = 500) -> list[Result]:
    twice, gone = 0, list[float]()
    with SlurmCluster() as slurm, tempfile.TemporaryDirectory() as folder:
        launcher = Launcher(Path(folder, "runs"), {"SLURM_CONF": slurm.env()["SLURM_CONF"]}, ["cluster=slurm"])
        for first in range(0, races, AT_ONCE):
            names = [f"race-{number}" for number in range(first, min(first + AT_ONCE, races))]
            for name in names:
                done = launcher.submit(
                    "workload=collective", "workload.entry=tests.chaos.faults:tells", "time=10m", RACE,
                    f"run_id={name}", f"name={name}",
                )  # fmt: skip
                assert done.returncode == 0, done.stderr
            last = last_seen(slurm, names)
            for name in names:
                run = Run(launcher.runs_dir / name)
                started = [each for attempt in run.attempts() for each in every(attempt.events(), Started)]
                twice += len(started) != 1
                # The winner itself runs on for a while: what counts are the two others.
                losers = [when for job, when in last[name].items() if job != started[0].job]
                gone.append(max([0.0, *(when - started[0].time for when in losers)]))
    slow = percentile(gone, 95)
    detail = f"{races} races of three jobs, {AT_ONCE} at a time; median {statistics.median(gone):.1f} s"
    return [
        Result("race: runs that did not start exactly once", twice, 0, detail, ""),
        Result("race: from the start until no other job is left (p95)", slow, 5.0, detail, "s"),
    ]


def last_seen(slurm: SlurmCluster, names: list[str]) -> dict[str, dict[str, float]]:
    """Waits until all jobs with these names are gone; returns when each was seen last, by its name and id."""
    last: dict[str, dict[str, float]] = {name: {} for name in names}
    end = time.monotonic() + PATIENCE
    while True:
        words = ["squeue", "--all", "--noheader", "--states=PENDING,RUNNING,COMPLETING", "--format=%i %j"]
        asked = subprocess.run(words, env={**os.environ, **slurm.env()}, capture_output=True, text=True, check=True)
        now, lines = time.time(), [line.split() for line in asked.stdout.splitlines()]
        for job, name in lines:
            last[name][job] = now
        if not lines:
            return last
        assert time.monotonic() < end, lines
        time.sleep(0.2)


if __name__ == "__main__":
    sys.exit(report(results(*map(int, sys.argv[1:]))))
