"""Kills commands that submit sweeps at random moments, and repeats each one until it ends.

    python -m tests.chaos.sweep_submitter --kills 30 --seed 1 --backend slurm

At the end each point must have been executed once, and the scheduler must have no job that the sweep does not know.
"""

from __future__ import annotations

import argparse
import contextlib
import getpass
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from launcher.paths import own_module
from launcher.runs import event_files
from launcher.runs.history import journal_events
from launcher.runs.sweep_directory import Sweep
from launcher.schedulers.pbs.client import short
from tests.cluster.slurm_cluster import SlurmCluster
from tests.launch import PYTHON, ROOT, Launcher
from tests.pbs.pbs_cluster import PbsCluster

# Overrides and number of points of each kind of sweep: one array, two arrays, and three single jobs.
SHAPES = ((("seed=range(4)",), 4), (("seed=range(2)", "time=10m,20m"), 4), (("seed=0", "time=10m,20m,30m"), 3))
WORDS = (
    "-m",
    "workload=collective",
    "workload.entry=tests.chaos.sweep_points:writes",
    "wait=false",
    "sweep.parallelism=3",
)
MOMENTS = ("any", "manifest", "points", "submitting", "submitted")
PATIENCE = 300.0  # timeout in seconds for a command, and for the points of a sweep


class PointLost(AssertionError):
    """A point was executed twice or never, the scheduler has an unknown job, or a command failed."""


@dataclass
class Siege:
    """Submits sweeps one after the other, and kills the commands that submit them.

    Attributes:
        launcher: the launcher for the sweeps.
        seed: the seed of all random choices.
        queue: returns the ids of all jobs that the scheduler knows; None: the launcher has no scheduler.
        hold, release: keep the scheduler from starting jobs, and let it start them.
        kills: the number of killed commands, by the moment of MOMENTS.
    """

    launcher: Launcher
    seed: int
    queue: Callable[[], set[str]] | None = None
    hold: Callable[[], object] = bool
    release: Callable[[], object] = bool
    kills: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.known: set[str] = set()
        self.length = 2.0  # seconds that the last command took

    def storm(self, kills: int) -> None:
        """Submits sweeps until so many commands were killed.

        Raises:
            PointLost: a point was not executed exactly once, a job is unknown, or a command failed.
        """
        number = 0
        while self.kills.total() < kills:
            shape, count = self.random.choice(SHAPES)
            self.sweep(f"storm-{number}", shape, count, min(self.random.randint(2, 5), kills - self.kills.total()))
            number += 1

    def sweep(self, name: str, shape: Sequence[str], count: int, kills: int) -> None:
        """Submits a sweep with a command that is killed up to `kills` times, and checks its points.

        Args:
            name: the sweep's id.
            shape: the overrides of the sweep.
            count: the number of its points.
            kills: the maximum number of kills.

        Raises:
            PointLost: a point was not executed exactly once, a job is unknown, or a command failed.
        """
        sweep = Sweep(self.launcher.runs_dir / name)
        command = [PYTHON, "-m", "launcher", *WORDS, *shape, f"sweep.id={name}", *self.launcher.overrides]
        self.hold()
        for _ in range(kills):
            if not self._killed(command, sweep):
                break
        begun = time.monotonic()
        done = self.launcher(*command[3:], timeout=PATIENCE)
        self.length = time.monotonic() - begun
        if done.returncode:
            raise PointLost(f"{name}: the last command exits with {done.returncode}: {done.stdout}{done.stderr}")
        self._require_known(sweep)
        self.release()
        waited = self.launcher("sweep", "wait", name, timeout=PATIENCE)
        if waited.returncode:
            raise PointLost(f"{name}: {waited.stdout}{waited.stderr}")
        self._require_known(sweep)
        executions = [_lines(point.run.path / "executed") for point in sweep.points()]
        if executions != [1] * count:
            raise PointLost(f"{name}: its points were executed {executions} times")

    def _killed(self, command: Sequence[str], sweep: Sweep) -> bool:
        """Runs a command and kills it at a random moment; returns whether it was killed, and did not end before."""
        moment, group = self.random.choice(MOMENTS), self.random.random() < 0.5
        before, pause = _seen(sweep), self.random.uniform(0, self.length if moment == "any" else 0.02)
        with subprocess.Popen(
            command, cwd=ROOT, env=self.launcher.environ, start_new_session=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        ) as process:  # fmt: skip
            deadline = time.monotonic() + PATIENCE
            while process.poll() is None and moment != "any" and _seen(sweep)[moment] == before[moment]:
                if time.monotonic() > deadline:
                    process.kill()
                    raise PointLost(f"{sweep.id}: a command does not come to its end")
                time.sleep(0.005)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(pause)
            if process.poll() is not None:
                return False
            # A kill of the process group also kills the sbatch that the command has started.
            (os.killpg if group else os.kill)(process.pid, signal.SIGKILL)
        for runner in _runners(sweep) if self.queue is None and self.random.random() < 0.5 else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(runner, signal.SIGKILL)
        self.kills[moment] += 1
        return True

    def _require_known(self, sweep: Sweep) -> None:
        """Checks that the scheduler has only jobs that this or an earlier sweep has recorded.

        Raises:
            PointLost: the scheduler has another job.
        """
        if self.queue is None:
            return
        journals = [entry for point in sweep.points() for entry in journal_events(point.run)]
        attempts = [attempt for point in sweep.points() for attempt in point.run.attempts()]
        # A job that started before its killed submitter could record it is known by its own event.
        events = [*journals, *(event for attempt in attempts for event in attempt.events())]
        jobs = {str(event["job"]) for event in events if event["event"] in ("submitted", "started")}
        self.known |= {_array(job) for job in jobs}
        if unknown := {_array(job) for job in self.queue()} - self.known:
            raise PointLost(f"{sweep.id}: nobody knows of the jobs {sorted(unknown)}; it has {sorted(self.known)}")


def _array(job: str) -> str:
    """Returns the number of a job, or of the array to which an element with this id belongs."""
    return short(job).partition("[")[0]


def _seen(sweep: Sweep) -> dict[str, int]:
    """Returns how many records of a submission exist, by the moments of MOMENTS."""
    events = [
        event["event"]
        for path in (sweep.path, *sweep.path.glob("[0-9]*"))
        for event in event_files.read(path / "journal.jsonl")
    ]
    return {
        "manifest": int(sweep.recorded()), "points": len(list(sweep.path.glob("[0-9]*/record.json"))),
        "submitting": events.count("submitting"), "submitted": events.count("submitted"),
    }  # fmt: skip


def _lines(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


def _runners(sweep: Sweep) -> list[int]:
    """Returns the pids of processes that start points of a sweep on this machine."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                if words[1:5] == [*own_module("launcher.sweeps.local_runner"), str(sweep.path)]:
                    found.append(int(entry.name))
    return found


def on_slurm(folder: Path, slurm: SlurmCluster, seed: int) -> Siege:
    """Returns a siege of sweeps on a real Slurm, which lists jobs until some minutes after their end."""

    def queue() -> set[str]:
        return set(slurm.run("squeue", "--noheader", "--states=all", "--format=%F").split()) - before

    before: set[str] = set()
    before |= queue()
    return Siege(Launcher(folder, {"SLURM_CONF": slurm.env()["SLURM_CONF"]}, ["cluster=slurm"]), seed, queue)


def on_pbs(folder: Path, pbs: PbsCluster, seed: int) -> Siege:
    """Returns a siege of sweeps on the stand-in for PBS.

    It does not list jobs that are over, so no job starts before all are submitted.
    """
    launcher = Launcher(folder, pbs.environment, ["cluster=pbs"], hosts=pbs.hosts)

    def queue() -> set[str]:
        return set(pbs.run("qselect", "-u", getpass.getuser()).stdout.split())

    return Siege(launcher, seed, queue, pbs.freeze_scheduler, pbs.thaw)


def on_this_machine(folder: Path, seed: int) -> Siege:
    """Returns a siege of sweeps on this machine. Half of the kills also kill the process that starts points."""
    return Siege(Launcher(folder, {}, ["cluster=local"]), seed)


def report(siege: Siege, kills: int) -> int:
    """Submits sweeps until so many commands were killed, prints the result, and returns the exit code."""
    try:
        siege.storm(kills)
    except PointLost as lost:
        print(f"LOST with seed {siege.seed} after {dict(siege.kills)}: {lost}")
        return 1
    print(f"{siege.kills.total()} kills {dict(siege.kills)}: each point was executed once, and every job is known")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", choices=("local", "slurm", "pbs"), default="local")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="siege-") as name:
        runs = Path(name) / "runs"
        if options.backend == "slurm":
            with SlurmCluster() as slurm:
                return report(on_slurm(runs, slurm, options.seed), options.kills)
        if options.backend == "pbs":
            with PbsCluster(Path(name) / "site") as pbs:
                return report(on_pbs(runs, pbs, options.seed), options.kills)
        return report(on_this_machine(runs, options.seed), options.kills)


if __name__ == "__main__":
    sys.exit(main())
