"""Runs inside an allocation that is already held."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import warm_python
from tests.launch import ROOT, Launcher
from tests.markers import ci

pytestmark = pytest.mark.backend("allocation", "srun --pty and salloc of {slurm}, real nodes")
FINE = ["workload=collective", "workload.entry=tests.chaos.faults:fine", "cluster=allocation"]


@pytest.fixture
def launcher(slurm: Any, tmp_path: Path) -> Iterator[Launcher]:
    yield Launcher(tmp_path / "runs", {"SLURM_CONF": slurm.env()["SLURM_CONF"]}, ["cluster=allocation"])
    slurm.reset()


def inside(
    launcher: Launcher, command: list[str], *overrides: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, warm_python.python(), "-m", "launcher", *FINE, *overrides], env=launcher.environ | environment,
        cwd=ROOT, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("command", [["salloc", "--quiet", "--nodes=3"], ci(["srun", "--nodes=3", "--pty"])])
def test_all_nodes_of_the_allocation_are_used_by_default(launcher: Launcher, command: list[str]) -> None:
    done = inside(launcher, command)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (launcher.last().result() or {})["world_size"] == 3


@pytest.mark.ci
def test_fewer_nodes_are_used_when_fewer_are_asked_for(launcher: Launcher) -> None:
    two_nodes = ["nodes=2", "procs_per_node=2", "launch=tasks"]
    done = inside(launcher, ["salloc", "--quiet", "--nodes=3", "--ntasks-per-node=2"], *two_nodes)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (launcher.last().result() or {})["world_size"] == 4


def test_more_nodes_than_it_holds_are_refused(launcher: Launcher) -> None:
    done = inside(launcher, ["salloc", "--quiet", "--nodes=2"], "nodes=3")
    assert done.returncode == 2
    assert "nodes=3: the allocation that this shell is in holds 2: use nodes=2" in done.stderr
    assert not launcher.runs_dir.exists()


@pytest.mark.parametrize("gpus", [(), ("--gres=gpu:1",)])
def test_more_cpus_than_it_holds_are_refused(launcher: Launcher, gpus: tuple[str, ...]) -> None:
    """With GPUs, srun of 24.05 and later would wait until the allocation ends."""
    salloc = ["salloc", "--quiet", "--nodes=2", "--cpus-per-task=2", *gpus]
    done = inside(launcher, salloc, "procs_per_node=2", "cpus_per_proc=2")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "are 4 CPUs on each of 2 nodes, and the allocation that this shell is in has 2" in done.stderr
    assert not launcher.runs_dir.exists()


def test_outside_of_an_allocation_it_is_refused(launcher: Launcher) -> None:
    done = inside(launcher, [])
    assert done.returncode == 2
    assert "this shell is in no allocation. Commands that get one" in done.stderr
    assert "salloc (SLURM_JOB_ID)" in done.stderr


def test_a_run_saves_before_its_allocation_ends_and_can_be_resumed_in_another(launcher: Launcher) -> None:
    """The allocation has a minute, of which the lead leaves 15 s; 5000 steps would take 250."""
    steps = ("workload.entry=tests.chaos.steps:main", "resume.lead=45s", "run_id=steps")
    salloc = ["salloc", "--quiet", "--nodes=2"]
    done = inside(launcher, [*salloc, "--time=1"], *steps, STEPS="5000", STEP_TIME="0.05")
    assert done.returncode == 75, done.stdout + done.stderr
    assert "steps stopped: its time is nearly up" in done.stderr
    assert "; the time of its allocation is nearly up" in done.stderr
    resume = [*salloc, warm_python.python(), "-m", "launcher", "resume", "steps"]
    done = subprocess.run(
        resume, env=launcher.environ | {"STEPS": "1", "STEP_TIME": "0"}, cwd=ROOT, capture_output=True, text=True,
        timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert (launcher.last().result() or {})["begun"] > 0


def test_ctrl_c_ends_the_run_and_leaves_nothing(launcher: Launcher) -> None:
    process = subprocess.Popen(
        ["salloc", "--quiet", "--nodes=2", warm_python.python(), "-m", "launcher", "workload=collective",
         "workload.entry=tests.chaos.faults:sleeps", "cluster=allocation"],
        env=launcher.environ, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    launcher.until(lambda: launcher.printed().count("asleep") == 2, "both ranks are asleep")
    # A terminal's Ctrl-C goes to the command, which salloc has put into a process group of its own.
    (command,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(command), signal.SIGINT)
    assert process.wait(timeout=60) == 130
    assert launcher.status()["state"] == "cancelled"
