"""What a job costs before its ranks start: from the start of its script to the start of srun, against a bare Python.

    python -m benchmarks.job_start

The script, its set-up and the driver are one process all the way, whose CPU time is read while a stand-in for srun
waits. The script is the one that a submission writes; sbatch is a stand-in.
"""

from __future__ import annotations

import os
import resource
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from benchmarks.login_node import COMMAND, STAND_INS
from benchmarks.measure import Result, environment, interleaved, median_ratio, medians, python, report, stand_ins

BARE, JOB = "python -c pass", "job"
LIMIT = 60.0  # seconds within which srun must start


def results(repeats: int = 25) -> list[Result]:
    cpu: dict[str, list[float]] = {BARE: [], JOB: []}
    with tempfile.TemporaryDirectory() as scratch, _fifo(Path(scratch, "started")) as started:
        folder = Path(scratch)
        with _fifo(folder / "go") as go:
            srun = f'echo >"{folder}/started"\nread -r _ <"{folder}/go"\nexit 1'
            env = environment(LAUNCHER_RUNS_DIR=f"{folder}/runs", LAUNCHER_CONFIG_DIR=scratch, SLURM_JOB_ID="1")
            # The controller answers, or the driver would wait for it
            env["PATH"] = stand_ins(folder / "bin", {**STAND_INS, "srun": srun, "scontrol": "exit 0"})
            python(*COMMAND, env=env)
            script = (folder / "runs/latest").resolve() / "script.sh"

            def bare() -> float:
                before = resource.getrusage(resource.RUSAGE_CHILDREN)
                seconds = python("-c", "pass", env=env)[0]
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                cpu[BARE].append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
                return seconds

            def job() -> float:
                seconds, used = _until_srun(script, env, started, go)
                cpu[JOB].append(used)
                for attempt in (script.parent / "attempts").iterdir():
                    shutil.rmtree(attempt)
                return seconds

            wall = interleaved({BARE: bare, JOB: job}, repeats)
    cpu = {name: each[-repeats:] for name, each in cpu.items()}  # without the warm-up
    return [
        Result("job until srun / python -c pass, CPU", median_ratio(cpu, JOB, BARE), 5, medians(cpu)),
        Result("job until srun / python -c pass, time", median_ratio(wall, JOB, BARE), 6, medians(wall)),
    ]


def _until_srun(script: Path, env: Mapping[str, str], started: int, go: int) -> tuple[float, float]:
    """Runs a job; returns the seconds, and the seconds of CPU time, until its srun started."""
    begun = time.perf_counter()
    process = subprocess.Popen(["bash", script], env=env, cwd=script.parent, stderr=subprocess.PIPE, text=True)
    try:
        if not select.select([started], [], [], LIMIT)[0]:
            process.kill()
            raise RuntimeError(f"{script} did not start srun within {LIMIT:g} s: {process.communicate()[1]}")
        seconds = time.perf_counter() - begun
        used = time.clock_gettime(~process.pid << 3 | 2)  # the process's CPU clock, clock_getcpuclockid(3)
        os.read(started, 1)
        os.write(go, b"\n")
    finally:
        process.communicate()
    return seconds, used


@contextmanager
def _fifo(path: Path) -> Iterator[int]:
    os.mkfifo(path)
    descriptor = os.open(path, os.O_RDWR)  # does not wait for another process
    try:
        yield descriptor
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    sys.exit(report(results()))
