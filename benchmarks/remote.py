"""Clusters behind ssh: a submission of code that is there already, against one on the login node; status of three.

    python -m benchmarks.remote

Both submit to a Slurm on this machine; sshd listens on a loopback address, so that round trips take no time. Of the
three clusters, one never answers: what listens there says nothing.
"""

from __future__ import annotations

import contextlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
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
                here.append(timed([*WORDS, "cluster=hpc"], laptop.environ, laptop.code))
                login.append(timed([*WORDS, "cluster=slurm", "env.snapshot=true"], there, laptop.code))
            with silent_host() as port:
                profile = laptop.profile.read_text().replace("timeout: 60\n", "")
                laptop.profile.with_name("second.yaml").write_text(profile)
                silent = profile.replace("ssh: login", f"ssh: ssh://silent@127.0.0.1:{port}")
                laptop.profile.with_name("silent.yaml").write_text(silent)
                status = [timed(["status"], laptop.environ, laptop.code) for _ in range(repeats)]
            laptop.close()
    ratios = [mine / other for mine, other in zip(here[1:], login[1:], strict=True)]
    detail = f"medians {statistics.median(here[1:]):.2f} s and {statistics.median(login[1:]):.2f} s, {repeats} in turns"
    three = f"median of {repeats}; slowest {max(status):.2f} s; {(repeats + 1) * 2} runs on each of two clusters"
    return [
        Result("remote: submission over ssh / on the login node", statistics.median(ratios), 1.3, detail),
        Result("remote: status of three clusters, one silent", statistics.median(status), 3, three, "s"),
    ]


@contextlib.contextmanager
def silent_host() -> Iterator[int]:
    """Listens on a port and never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


def timed(words: list[str], environment: dict[str, str], folder: Path) -> float:
    began = time.perf_counter()
    subprocess.run([PYTHON, "-m", "launcher", *words], env=environment, cwd=folder, check=True, capture_output=True)
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(report(results()))
