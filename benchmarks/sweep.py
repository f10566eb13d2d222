"""Submitting a sweep of 1000 points, against hydra-submitit-launcher 1.2.0; and an array of short points on Slurm.

    python -m benchmarks.sweep [--points 1000] [--elements 200]

Submitting: both launchers get the same command line with the same configs, and a stand-in for sbatch that returns at
once. Ours is measured from the start of the process to its exit, the median of three times. Theirs waits for its jobs,
so it is measured once, from the start of the process to its only call of sbatch. It is installed from PyPI for the
measurement.

The array: 200 points, each of which loads torch and sleeps for a second, on a real Slurm with four nodes on this
machine. `sbatch --array` starts the program with srun, as a user's script would. Ours starts it as the entry point of a
workload, with agent, rank, record and result. Both load torch once per point, request the same resources, and are timed
from the command until squeue shows no job. Short points are the worst case: the time that a launcher adds to a point
does not grow with the point.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.measure import ROOT, Result, environment, report, stand_ins
from tests.cluster.slurm_cluster import SlurmCluster

THEIRS = "hydra-submitit-launcher==1.2.0"
SEEDS = 25  # number of seeds for each learning rate
PATIENCE = 1800.0  # timeout until all jobs have ended, in seconds
STAND_INS = {
    "sbatch": 'date +%s.%N >"$STAMP"\ncase "$*" in *--parsable*) echo 1 ;; *) echo Submitted batch job 1 ;; esac',
    "sinfo": "echo 'batch*|infinite|infinite|1000|64|256000|gpu:8'",
    "scontrol": "echo 'MaxArraySize = 10001'",
    "squeue": "true",
    "sacct": "true",
    "scancel": "true",
    "srun": "true",  # submitit takes a machine with srun for a Slurm cluster
}
# A program that runs a command and prints its seconds, peak memory in KiB and CPU seconds. Small, since a child's peak
# memory is at least that of the process which forked it.
MEASURE = (
    "import resource, subprocess, sys, time\n"
    "begun = time.perf_counter()\n"
    "code = subprocess.call(sys.argv[1:], stdout=sys.stderr)\n"
    "usage = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
    "print(time.perf_counter() - begun, usage.ru_maxrss, usage.ru_utime + usage.ru_stime)\n"
    "sys.exit(code)\n"
)


def results(points: int = 1000, elements: int = 200, repeats: int = 3) -> list[Result]:
    """Runs the benchmark. `points` are submitted only, `elements` run as an array; 0 leaves out that part."""
    return [*(submitting(points, repeats) if points else ()), *(running(elements) if elements else ())]


def submitting(points: int, repeats: int) -> list[Result]:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        env = _stand_ins(folder)
        sweep = [
            "-m", "workload=ddp_mnist", "cluster=slurm",
            "workload.lr=" + ",".join(f"{number / 1000}" for number in range(1, points // SEEDS + 1)),
            f"seed=range({SEEDS})",
        ]  # fmt: skip
        points = points // SEEDS * SEEDS
        ours = [_ours(folder / f"runs-{number}", sweep, env) for number in range(repeats)]
        made = sum(len(files) + len(folders) for _, folders, files in os.walk(folder / "runs-0"))
        theirs = _theirs(folder, sweep, env)
    seconds = statistics.median(each[0] for each in ours)
    detail = (
        f"ours {seconds:.1f} s, {statistics.median(each[2] for each in ours):.1f} s of them computing, median of "
        f"{repeats}; {made / points:.1f} files and folders for each point"
    )
    memory = max(each[1] for each in ours) / 1024
    found = [Result(f"memory of submitting {points} points", memory, 300, detail, unit="MiB")]
    if theirs is not None:
        detail = f"{THEIRS} {theirs[0]:.1f} s to its sbatch, {theirs[1]:.1f} s of them computing, once; {detail}"
        ratio = theirs[0] / seconds
        found.append(Result(f"hydra-submitit-launcher / {points} points", ratio, 20, detail, at_least=True))
    return found


def _stand_ins(folder: Path) -> dict[str, str]:
    """Returns an environment in which all Slurm commands are stand-ins."""
    path = stand_ins(folder / "bin", STAND_INS)
    return environment(PATH=path, STAMP=f"{folder}/stamp", LAUNCHER_CONFIG_DIR=f"{folder}/config")


def _ours(runs: Path, sweep: Sequence[str], env: Mapping[str, str]) -> tuple[float, float, float]:
    """Submits the sweep with the launcher; returns the seconds of the command, its peak memory in KiB, and its CPU
    seconds."""
    command = [sys.executable, "-c", MEASURE, sys.executable, "-m", "launcher", *sweep]
    done = subprocess.run(
        command, env={**env, "LAUNCHER_RUNS_DIR": str(runs)}, cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"launcher exited with {done.returncode}:\n{done.stderr}")
    seconds, memory, computing = map(float, done.stdout.split())
    return seconds, memory, computing


def _theirs(folder: Path, sweep: Sequence[str], env: Mapping[str, str]) -> tuple[float, float] | None:
    """Submits the sweep with hydra-submitit-launcher; returns the seconds until it calls sbatch, and its CPU seconds.

    None: it cannot be installed.
    """
    if not install_theirs(folder / "theirs"):
        return None
    stamp = folder / "stamp"
    stamp.unlink(missing_ok=True)
    command = [
        sys.executable, str(ROOT / "benchmarks" / "sweep_hydra.py"), *sweep, "hydra/launcher=submitit_slurm",
        "hydra/sweeper=basic", f"hydra.sweep.dir={folder}/multirun",
    ]  # fmt: skip
    with (folder / "theirs.log").open("w") as log:
        begun = time.time()
        process = subprocess.Popen(
            command, env={**env, "PYTHONPATH": f"{folder}/theirs:{ROOT}"}, cwd=folder, stdout=log,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            while not (stamp.exists() and stamp.read_text().strip()):
                if process.poll() is not None or time.time() - begun > PATIENCE:
                    raise RuntimeError(f"{THEIRS} called no sbatch:\n{(folder / 'theirs.log').read_text()[-2000:]}")
                time.sleep(0.1)
        finally:
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    computing = usage.ru_utime + usage.ru_stime - before.ru_utime - before.ru_stime
    return float(stamp.read_text()) - begun, computing


def install_theirs(folder: Path) -> bool:
    """Installs hydra-submitit-launcher into a directory; returns whether that succeeded."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", f"--target={folder}", THEIRS]
    installed = subprocess.run(pip, capture_output=True, text=True, check=False)
    if installed.returncode:
        print(f"note: not compared with {THEIRS}: it cannot be installed: {installed.stderr.strip()}", file=sys.stderr)
    return not installed.returncode


def running(elements: int) -> list[Result]:
    if reason := SlurmCluster.missing():
        print(f"note: no array was run: {reason}", file=sys.stderr)
        return []
    with SlurmCluster() as cluster, tempfile.TemporaryDirectory() as scratch:
        own = {"LAUNCHER_RUNS_DIR": f"{scratch}/runs", "LAUNCHER_CONFIG_DIR": f"{scratch}/config"}
        env = {**environment(**cluster.env()), **own}
        script = Path(scratch) / "bare.sh"
        script.write_text(
            f"#!/bin/bash\n#SBATCH --nodes=1 --ntasks-per-node=1 --cpus-per-task=1 --time=5 --output={scratch}/%a.log\n"
            f"srun {sys.executable} {ROOT}/benchmarks/sweep_point.py && touch {scratch}/bare-$SLURM_ARRAY_TASK_ID\n"
        )
        bare = to_the_end(cluster, ["sbatch", f"--array=0-{elements - 1}", str(script)], env)
        ours = to_the_end(
            cluster,
            [
                sys.executable, "-m", "launcher", "-m", "workload=collective", "cluster=slurm", "time=5",
                "workload.entry=benchmarks.sweep_point:main", f"seed=range({elements})", "sweep.id=points",
            ],
            env,
        )  # fmt: skip
        done = sum(_returned(path) for path in Path(scratch, "runs", "points").glob("*/result.json"))
        bare_done = len(list(Path(scratch).glob("bare-*")))
    if done != elements or bare_done != elements:
        raise RuntimeError(f"{done} of {elements} points are done, and {bare_done} of the bare array")
    detail = f"ours {ours:.1f} s, bare {bare:.1f} s; Slurm {SlurmCluster.version()}, {os.cpu_count()} CPUs"
    return [Result(f"array of {elements} one-second points / bare array", ours / bare, 1.3, detail)]


def to_the_end(cluster: SlurmCluster, command: Sequence[str], env: Mapping[str, str]) -> float:
    """Submits jobs with a command; returns the seconds from its start until no job is left."""
    begun = time.perf_counter()
    subprocess.run(command, env=env, cwd=ROOT, check=True, capture_output=True)
    wait_until_idle(cluster, begun)
    return time.perf_counter() - begun


def wait_until_idle(cluster: SlurmCluster, begun: float) -> None:
    """Waits until squeue shows no job.

    Args:
        cluster: the Slurm cluster.
        begun: time.perf_counter() at the start of the timeout PATIENCE.

    Raises:
        RuntimeError: jobs are left after the timeout.
    """
    while cluster.run("squeue", "--noheader").strip():
        if time.perf_counter() - begun > PATIENCE:
            raise RuntimeError(f"jobs are left after {PATIENCE:.0f} s:\n{cluster.run('squeue')}")
        time.sleep(0.5)


def _returned(path: Path) -> bool:
    return "threads" in json.loads(path.read_text())


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--points", type=int, default=1000, help="of the sweep that is submitted; 0: none")
    parser.add_argument("--elements", type=int, default=200, help="of the array that runs; 0: none")
    options = parser.parse_args()
    return report(results(options.points, options.elements))


if __name__ == "__main__":
    sys.exit(main())
