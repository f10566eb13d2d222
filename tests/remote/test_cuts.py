"""A connection that is cut during a submission: one job or none, never two; the same command again says which."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.slurm_cluster import SlurmCluster
from tests.launch import ROOT
from tests.remote.conftest import require_sshd
from tests.remote.site import Laptop, login_node

ALL = 100


@pytest.fixture
def laptop(slurm: SlurmCluster, tmp_path: Path) -> Iterator[Laptop]:
    require_sshd()
    environment = {name: value for name, value in slurm.env().items() if name == "SLURM_CONF"}
    with login_node(tmp_path / "node", environment) as node:
        made = Laptop(tmp_path / "laptop", node, "slurm")
        yield made
        made.close()
    slurm.reset()


def jobs(slurm: SlurmCluster, laptop: Laptop) -> list[str]:
    asked = subprocess.run(["squeue", "--all", "--noheader", "--format=%i %j"], env={**laptop.environ, **slurm.env()},
                           capture_output=True, text=True, check=True)  # fmt: skip
    return asked.stdout.splitlines()


def through_relay(laptop: Laptop, up: int, down: int) -> str:
    """Lets ssh connect by the relay, and returns the wrapper as it was."""
    wrapper = laptop.folder / "bin/ssh"
    before = wrapper.read_text()
    proxy = f"env PYTHONPATH={ROOT} {sys.executable} -m tests.remote.relay 127.0.0.1 {laptop.node.port} {up} {down}"
    wrapper.write_text(before.replace(' "$@"', f" -o ProxyCommand='{proxy}' \"$@\""))
    return before


@pytest.mark.parametrize(
    "cuts",
    [pytest.param(6, marks=pytest.mark.ci), pytest.param(ALL, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])],
)
def test_there_is_one_job_or_none_and_the_same_command_again_finds_it(
    slurm: SlurmCluster, laptop: Laptop, cuts: int
) -> None:
    (laptop.code / "train.py").write_text("import time\ntime.sleep(600)\n")
    given = ("run", "train.py", "cluster=hpc", "time=10m")
    submitted = 0
    for number in range(cuts):
        # The sizes of a whole submission: the key exchange takes the first 3 kB, the last bytes are its answer.
        reach = int(10_000 * (number // 2 + 1) / (cuts / 2))
        before = through_relay(laptop, *((-1, reach) if number % 2 else (reach, -1)))
        name = f"cut-{number}"
        done = laptop(*given, f"run_id={name}", f"name={name}")
        (laptop.folder / "bin/ssh").write_text(before)
        laptop.end_connections()
        there = [line for line in jobs(slurm, laptop) if line.split()[1] == name]
        assert len(there) <= 1, done.stderr
        if done.returncode:
            assert done.returncode == 1, done.stderr
            assert f"Repeat the command with run_id={name}" in done.stderr or not there
        again = laptop(*given, f"run_id={name}", f"name={name}")
        assert again.returncode == 0, again.stderr
        submitted += "(submitted before)" in again.stdout
        (job,) = [line for line in jobs(slurm, laptop) if line.split()[1] == name]
        found = re.search(r"^job +(\d+)", again.stdout, re.MULTILINE)
        assert found is not None and found[1] == job.split()[0], again.stdout
        assert laptop("cancel", name).returncode == 0
    assert 0 < submitted < cuts, "the cuts were all too early, or all too late"
