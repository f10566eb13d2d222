"""Submitting functions through PBSExecutor, against qsub; and the number of qsub and qstat commands for many jobs.

    python -m benchmarks.pbs

Jobs are submitted to the PBS of this machine if there is one (held, and deleted at once), or else to the stand-in of
the tests, whose qsub takes about 25 ms.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.measure import Result, interleaved, median_ratio, medians, report
from launcher.schedulers.pbs.executor import PBSExecutor
from launcher.schedulers.qsub import detect
from tests.pbs.pbs_cluster import PbsCluster
from tests.pbs.real import RealPbs


def results(repeats: int = 5, batch: int = 100, many: int = 1000) -> list[Result]:
    """Runs the benchmark with batches of `batch` jobs, and an array of `many` jobs."""
    with tempfile.TemporaryDirectory() as scratch, _site(Path(scratch) / "site") as against:
        folder = Path(scratch)
        with _counted(folder / "bin") as calls:
            jobs = _executor(folder / "many").map_array(abs, range(many))
            qsubs, before = calls("qsub"), calls("qstat")
            pending = [job.state for job in jobs].count("PENDING")
            qstats = calls("qstat") - before
            _delete(jobs[0].job_id)
        if pending != many:
            raise RuntimeError(f"{pending} of {many} held jobs are pending")
        (folder / "bare.sh").write_text("#!/bin/bash\ntrue\n")
        (folder / "submits").mkdir(mode=0o700)
        seconds = interleaved(
            {
                "a batch": lambda: _batch(folder / "batches", batch),
                "one by one": lambda: _one_by_one(folder / "submits", batch),
                "bare qsub": lambda: _bare(folder / "bare.sh", batch),
            },
            repeats,
        )
    detail = f"{batch} held jobs; {medians(seconds)}; {against}"
    return [
        Result("PBSExecutor, a batch / bare qsub", median_ratio(seconds, "a batch", "bare qsub"), 1.5, detail),
        Result("PBSExecutor, one by one / bare qsub", median_ratio(seconds, "one by one", "bare qsub"), 1.5, detail),
        Result(f"array of {many} functions", qsubs, 1, against, unit="qsub"),
        Result(f"states of {many} jobs", qstats, 1, against, unit="qstat"),
    ]


def _executor(folder: Path) -> PBSExecutor:
    executor = PBSExecutor(folder)
    executor.update_parameters(directives={"h": True}, walltime=5)
    return executor


def _batch(folder: Path, count: int) -> float:
    executor = _executor(folder)
    started = time.perf_counter()
    with executor.batch():
        jobs = [executor.submit(abs, number) for number in range(count)]
    taken = time.perf_counter() - started
    _delete(jobs[0].job_id)
    return taken


def _one_by_one(folder: Path, count: int) -> float:
    executor = _executor(folder)
    started = time.perf_counter()
    jobs = [executor.submit(abs, number) for number in range(count)]
    taken = time.perf_counter() - started
    for job in jobs:
        _delete(job.job_id)
    return taken


def _bare(script: Path, count: int) -> float:
    started = time.perf_counter()
    ids = [
        subprocess.run(["qsub", "-h", str(script)], capture_output=True, text=True, check=True).stdout.strip()
        for _ in range(count)
    ]
    taken = time.perf_counter() - started
    for job_id in ids:
        _delete(job_id)
    return taken


def _delete(job_id: str) -> None:
    """Deletes a job, or the whole array of an array element."""
    number, _, server = job_id.partition(".")
    server, element, _ = server.partition("_")
    subprocess.run(["qdel", f"{number}{'[]' if element else ''}.{server}"], check=True)


@contextlib.contextmanager
def _site(folder: Path) -> Iterator[str]:
    """Provides the PBS of this machine or a stand-in; yields text about which of them."""
    if RealPbs.answers():
        yield RealPbs.described()
        return
    before = dict(os.environ)
    with PbsCluster(folder) as pbs:
        os.environ.update(pbs.environment)
        try:
            yield pbs.against
        finally:
            os.environ.clear()
            os.environ.update(before)


@contextlib.contextmanager
def _counted(folder: Path) -> Iterator[Callable[[str], int]]:
    """Puts scripts that count calls of qsub and qstat on PATH; yields a function that returns a command's number of
    calls."""
    folder.mkdir()
    real = Path(detect().path).parent
    for name in ("qsub", "qstat"):
        count = '[ "$1" = --version ] || ' if name == "qsub" else ""
        (folder / name).write_text(f'#!/bin/sh\n{count}echo >>{folder}/{name}.calls\nexec {real}/{name} "$@"\n')
        (folder / name).chmod(0o755)
        (folder / f"{name}.calls").touch()
    before, os.environ["PATH"] = os.environ["PATH"], f"{folder}:{os.environ['PATH']}"
    try:
        yield lambda name: len((folder / f"{name}.calls").read_text().splitlines())
    finally:
        os.environ["PATH"] = before


if __name__ == "__main__":
    sys.exit(report(results()))
