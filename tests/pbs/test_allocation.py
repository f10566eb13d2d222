"""Runs inside a PBS job that is already held: no submission, pbsdsh starts the tasks."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests import warm_python
from tests.contract.test_post_mortem import examined
from tests.contract.test_runs import PLACES, processes_of
from tests.launch import ROOT, Launcher
from tests.markers import ci
from tests.pbs.job import inside_job

pytestmark = pytest.mark.backend("allocation", "a stand-in pbsdsh")
NODES = (socket.gethostname(), "localhost")  # two names of this machine
COLLECTIVE = ("workload=collective", "procs_per_node=2")
InJob = Callable[..., Launcher]


@pytest.fixture
def in_job(tmp_path: Path) -> InJob:
    def make(node_file: Sequence[str] = NODES) -> Launcher:
        return Launcher(tmp_path / "runs", inside_job(tmp_path / "job", node_file), ["cluster=allocation"])

    return make


@pytest.mark.parametrize("mode", ["agent", ci("tasks")])
def test_ranks_fill_all_hosts_of_the_job_in_order(in_job: InJob, mode: str) -> None:
    launcher = in_job()
    result = launcher.run(*COLLECTIVE, "workload.entry=tests.chaos.faults:tells_places", f"launch={mode}")
    assert result.code == 0, result.output
    assert result.metrics["places"] == [dict(zip(PLACES, values, strict=True)) for values in (
        (0, 0, 4, 2, 0, 2), (1, 1, 4, 2, 0, 2), (2, 0, 4, 2, 1, 2), (3, 1, 4, 2, 1, 2),
    )]  # fmt: skip
    assert launcher.status()["state"] == "done"


def test_hosts_are_counted_and_not_lines(in_job: InJob) -> None:
    launcher = in_job([NODES[0], NODES[0], NODES[1], NODES[1]])
    result = launcher.fault("fine", "procs_per_node=1")
    assert result.metrics["world_size"] == 2
    job = json.loads((launcher.last().path / "job.json").read_text())
    assert " --pbsdsh 2 1 " in " ".join(job["start"])


@pytest.mark.slow
def test_fewer_hosts_are_used_when_fewer_are_asked_for(in_job: InJob) -> None:
    result = in_job().run(*COLLECTIVE, "workload.entry=tests.chaos.faults:fine", "nodes=1")
    assert result.metrics["world_size"] == 2


def test_more_nodes_than_it_holds_are_refused(in_job: InJob) -> None:
    launcher = in_job()
    done = launcher.submit(*COLLECTIVE, "nodes=3")
    assert done.returncode == 2
    assert "nodes=3: the allocation that this shell is in holds 2: use nodes=2" in done.stderr
    assert not launcher.runs_dir.exists()


def test_outside_of_a_job_both_ways_into_one_are_named(tmp_path: Path) -> None:
    done = Launcher(tmp_path / "runs", {}, ["cluster=allocation"]).submit(*COLLECTIVE)
    assert done.returncode == 2
    assert "salloc" in done.stderr
    assert "qsub -I" in done.stderr


def test_a_node_file_that_cannot_be_read_is_told(in_job: InJob, tmp_path: Path) -> None:
    launcher = in_job()
    (tmp_path / "job/nodefile").unlink()
    done = launcher.submit(*COLLECTIVE)
    assert done.returncode == 2
    assert "start the launcher on the job's first node" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "cause"), [("raises", "ValueError: the loss is a banana"), ("is_killed", "killed by SIGKILL")]
)
def test_a_failing_rank_ends_the_run_and_is_blamed(in_job: InJob, kind: str, cause: str) -> None:
    result = in_job().fault(kind)
    assert result.code == 1, result.output
    assert "rank 3 on localhost" in result.cause
    assert cause in result.cause
    assert cause in result.output


@pytest.mark.slow
def test_the_exit_code_comes_through(in_job: InJob) -> None:
    launcher = in_job()
    assert launcher.fault("stops_for_resume", "resume.how=never").code == 75
    assert launcher.status()["state"] == "stopped"


def test_a_task_that_cannot_start_ends_the_run_and_its_host_is_named(in_job: InJob) -> None:
    start = time.monotonic()
    launcher = in_job([NODES[0], "no-such-node"])
    result = launcher.fault("fine")
    assert result.code == 1, result.output
    assert "the task on no-such-node could not be started" in result.output
    assert "error 17002 on spawn" in result.output
    assert examined(launcher, "latest")["kind"] == "never-started"
    assert time.monotonic() - start < 40


@pytest.mark.slow
def test_a_run_that_may_lose_nodes_goes_on_without_one_that_cannot_start(in_job: InJob) -> None:
    result = in_job([NODES[0], "no-such-node"]).fault("fine", "min_nodes=1", "launch.rendezvous_timeout=6")
    assert result.code == 0, result.output
    assert result.metrics["world_size"] == 2


@pytest.mark.ci
def test_a_killed_agent_is_named_before_its_peers_complain(in_job: InJob) -> None:
    launcher = in_job()
    process = subprocess.Popen(
        [warm_python.python(), "-m", "launcher", *COLLECTIVE, "workload.iterations=100000", *launcher.overrides],
        env=launcher.environ, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    launcher.until(lambda: "rank 3/4" in launcher.printed(), "all ranks have started")
    os.killpg(int((launcher.last().attempts()[-1].path / "tasks/1.pid").read_text()), signal.SIGKILL)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    # The leading agent sees its connection closed, and whoever started the task sees how it ended: one is first.
    assert re.search(
        "failed: (localhost exited without an error report|the task on localhost: killed by SIGKILL)", said
    ), said
    assert examined(launcher, "latest")["kind"] in ("node-lost", "killed")


def test_all_that_is_exported_reaches_the_ranks_and_not_what_is_the_nodes_own(in_job: InJob) -> None:
    value = "two\nlines 'and' \"quotes\" $(id) `id` \\ größe"
    launcher = in_job()
    result = launcher.fault("tells", "cluster.setup=['export FROM_SETUP=yes']", FROM_SHELL=value)
    assert result.code == 0, result.output
    assert result.metrics["environments"] == [["yes", None, value]] * 4
    assert not list(result.run.path.rglob("environment.sh"))


@pytest.mark.slow
def test_nothing_is_left_to_the_output_of_mom(in_job: InJob, tmp_path: Path) -> None:
    result = in_job().run(*COLLECTIVE)
    assert result.code == 0, result.output
    assert "[3] rank 3/4 local 1 on " in result.output
    assert not (tmp_path / "job/by-mom").read_text()


@pytest.mark.slow
def test_files_of_a_run_are_private(in_job: InJob) -> None:
    run = in_job().fault("fine").run
    for path in [run.path, *run.path.rglob("*")]:
        if not path.is_symlink():
            assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


@pytest.mark.parametrize(("kind", "times"), [("sleeps", 1), ci("ignores_sigterm", 2)])
def test_ctrl_c_ends_the_run_and_twice_kills_it(in_job: InJob, kind: str, times: int) -> None:
    launcher = in_job()
    process = subprocess.Popen(
        [
            warm_python.python(), "-m", "launcher", *COLLECTIVE, f"workload.entry=tests.chaos.faults:{kind}",
            *launcher.overrides,
        ],
        env=launcher.environ, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    launcher.until(lambda: launcher.printed().count("asleep") == 4, "all ranks are asleep")
    assert process.stderr is not None
    for _ in range(times):
        os.kill(process.pid, signal.SIGINT)
        process.stderr.readline()
    assert process.wait(timeout=60) == 130, process.stderr.read()
    assert launcher.status()["state"] == "cancelled"
    launcher.until(lambda: not processes_of(launcher), "no process of the run is left", 15)
    assert not list(launcher.last().path.rglob("environment.sh"))
