"""Submission to a cluster behind ssh, with code that is there already, against the same submission on its login node.

    python -m benchmarks.remote

Both submit to a Slurm on this machine; sshd listens on a loopback address, so that round trips take no time.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.measure import Result, report
from tests.cluster.slurm_cluster import SlurmCluster
from tests.launch import PYTHON
from tests.remote.site import Laptop, login_node

WORDS = ("run", "train.py", "time=1m", "cluster.directives.hold=true", "wait=false")


def results(repeats: int = 15) -> list[Result]:
    with SlurmCluster() as slurm, tempfile.TemporaryDirectory() as folder:
        environment = {"SLURM_CONF": slurm.env()["SLURM_CONF"]}
        with login_node(Path(folder, "node"), environment) as node:
            laptop = Laptop(Path(folder, "laptop"), node, "slurm")
            there = {**laptop.environ, **environment, "LAUNCHER_RUNS_DIR": str(node.runs_dir)}
            here, login = list[float](), list[float]()
            for _ in range(repeats + 1):  # the first sends the code
                here.append(timed(["cluster=hpc"], laptop.environ, laptop.code))
                login.append(timed(["cluster=slurm", "env.snapshot=true"], there, laptop.code))
            laptop.close()
    ratios = [mine / other for mine, other in zip(here[1:], login[1:], strict=True)]
    detail = f"medians {statistics.median(here[1:]):.2f} s and {statistics.median(login[1:]):.2f} s, {repeats} in turns"
    return [Result("remote: submission over ssh / on the login node", statistics.median(ratios), 1.3, detail)]


def timed(words: list[str], environment: dict[str, str], folder: Path) -> float:
    began = time.perf_counter()
    subprocess.run(
        [PYTHON, "-m", "launcher", *WORDS, *words], env=environment, cwd=folder, check=True, capture_output=True
    )
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(report(results()))
