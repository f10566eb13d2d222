"""`from launcher import init` in a script of the user's own, started in every way there is here."""

from __future__ import annotations

import subprocess
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests import warm_python
from tests.launch import ROOT, Launcher

SCRIPT = """
import os
from launcher import init, rank_zero
env = init()
import torch, torch.distributed as dist
total = torch.tensor([float(env.rank)])
dist.all_reduce(total)
words = "told", env.source, env.rank, env.world_size, env.node_rank, int(total), rank_zero()
os.write(1, (" ".join(map(str, words)) + "\\n").encode())  # in one piece: ranks share the pipe
"""


def told(command: list[str], environ: dict[str, str], tmp_path: Path) -> list[list[str]]:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [*command, str(script)], env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (line.split("told ")[1].split() for line in done.stdout.splitlines() if "told " in line)
    return sorted(lines, key=lambda words: int(words[1]))


@pytest.mark.backend("init()", "python, torchrun")
@pytest.mark.parametrize(
    ("command", "source", "ranks"),
    [
        ([], "plain", 1),
        (["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"], "torchrun", 2),
    ],
)
def test_without_a_scheduler(command: list[str], source: str, ranks: int, tmp_path: Path) -> None:
    environ = Launcher(tmp_path, {"TMPDIR": str(tmp_path)}).environ  # where torchrun leaves a folder of logs
    assert told([warm_python.python(), *command], environ, tmp_path) == expected(source, ranks, nodes=1)


@pytest.mark.backend("init()", "srun of {slurm}")
def test_under_srun(slurm: Any, tmp_path: Path) -> None:
    environ = Launcher(tmp_path, {"SLURM_CONF": slurm.env()["SLURM_CONF"]}).environ
    command = ["srun", "--nodes=2", "--ntasks-per-node=2", warm_python.python()]
    assert told(command, environ, tmp_path) == expected("srun", 4, nodes=2)
    slurm.reset()


NODES = """
import os
from launcher import init
env = init()
if env.rank == 0:
    print("nodes", *env.node_ranks, *env.hosts, os.environ.get("SLURM_DISTRIBUTION", "-"), flush=True)
"""


@pytest.mark.backend("init()", "srun of {slurm}")
@pytest.mark.parametrize(
    ("options", "node_ranks"),
    [
        (["--ntasks=3"], "0 0 1"),
        (["--ntasks-per-node=2", "--distribution=cyclic"], "0 1 0 1"),
        (["--ntasks=3", "--distribution=cyclic"], "0 1 0"),
    ],
)
def test_ranks_know_the_node_of_each(slurm: Any, tmp_path: Path, options: list[str], node_ranks: str) -> None:
    environ = Launcher(tmp_path, {"SLURM_CONF": slurm.env()["SLURM_CONF"]}).environ
    (tmp_path / "train.py").write_text(NODES)
    done = subprocess.run(
        ["srun", "--nodes=2", *options, warm_python.python(), str(tmp_path / "train.py")], env=environ, cwd=tmp_path,
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert f"nodes {node_ranks} " in done.stdout, done.stdout + done.stderr
    slurm.reset()


CLOCKS = """\
export TZ=ABC-5  # all three follow it
sleep 3
squeue -h -j "$SLURM_JOB_ID" -o %e
scontrol show config | sed -n '1s/^Configuration data as of //p'
date +%Y-%m-%dT%H:%M:%S
"""


@pytest.mark.backend("time left", "batch script of {slurm}")
def test_the_controller_tells_its_clock(slurm: Any, tmp_path: Path) -> None:
    """What is left of an attempt is the end, less this: both are the controller's (schedulers/slurm/in_job.py)."""
    environ = Launcher(tmp_path, {"SLURM_CONF": slurm.env()["SLURM_CONF"]}).environ
    (tmp_path / "job.sh").write_text(f"#!/bin/bash\n{CLOCKS}")
    output = tmp_path / "out"
    subprocess.run(
        ["sbatch", "--wait", "--time=10", f"--output={output}", str(tmp_path / "job.sh")], env=environ, cwd=ROOT,
        check=True, timeout=100, capture_output=True,
    )  # fmt: skip
    end, controller, here = map(datetime.fromisoformat, output.read_text().split())
    assert abs((controller - here).total_seconds()) <= 5  # one machine, and not the time of the configuration
    assert 500 <= (end - controller).total_seconds() <= 597
    slurm.reset()


@pytest.mark.backend("init()", "batch script of {slurm}")
def test_in_a_batch_script_without_srun(slurm: Any, tmp_path: Path) -> None:
    """The script is on the first node alone, whatever the job's size: a world of one."""
    environ = Launcher(tmp_path, {"SLURM_CONF": slurm.env()["SLURM_CONF"]}).environ
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "job.sh").write_text(f"#!/bin/bash\n{warm_python.python()} {tmp_path}/train.py\n")
    output = tmp_path / "out"
    subprocess.run(
        ["sbatch", "--wait", "--nodes=2", f"--output={output}", str(tmp_path / "job.sh")], env=environ, cwd=ROOT,
        check=True, timeout=100, capture_output=True,
    )  # fmt: skip
    assert "told plain 0 1 0 0 True" in output.read_text()
    slurm.reset()


def expected(source: str, ranks: int, nodes: int) -> list[list[str]]:
    total = sum(range(ranks))
    return [
        [source, str(rank), str(ranks), str(rank * nodes // ranks), str(total), str(rank == 0)] for rank in range(ranks)
    ]
