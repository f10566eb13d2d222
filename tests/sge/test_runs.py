"""Runs on Grid Engine: what only Grid Engine makes difficult. What every backend does is in tests/contract."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from launcher.runs.directory import Run
from launcher.runs.events import Submitted, every
from launcher.runs.history import journal_events
from launcher.runs.lookup import all_runs
from tests.contract.test_runs import processes_of
from tests.launch import Launcher, command_lines
from tests.sge.sge_cluster import SgeCluster

SLEEPS = ("workload=collective", "workload.entry=tests.chaos.faults:sleeps", "procs_per_node=2")
TWO_NODES = ("nodes=2", "cluster.parallel_environment=nodes")
STEPS = ("workload=collective", "workload.entry=tests.chaos.steps:main", "procs_per_node=2")


def jobs_of(run: Run) -> list[str]:
    return [event.job for event in every(journal_events(run), Submitted)]


def qdel(launcher: Launcher, job: str) -> None:
    subprocess.run(["qdel", job], env=launcher.environ, check=True, capture_output=True)


def test_a_run_that_is_deleted_records_its_end_before_it_is_killed(launcher: Launcher) -> None:
    """SIGUSR2 comes first (-notify), to the process group of the script alone."""
    launcher.submit(*SLEEPS, *TWO_NODES)
    launcher.until(lambda: launcher.printed().count("asleep") == 4, "all ranks are asleep")
    qdel(launcher, str(launcher.status()["job"]))
    launcher("wait", "latest", "-q")
    events = {event["event"]: event for event in launcher.last().attempts()[-1].events()}
    assert events["stop_requested"]["signal"] == "SIGTERM"
    assert events["ended"]["code"] == 143
    assert launcher.status()["state"] == "failed", "accounting does not tell who ended it"
    launcher.until(lambda: not processes_of(launcher), "no process of the run is left", 30)


def test_a_run_that_is_asked_to_stop_before_its_tasks_have_started_has_stopped(
    launcher: Launcher, sge: SgeCluster, tmp_path: Path
) -> None:
    """SIGUSR2 ends the shell in which Grid Engine starts a task, and qrsh exits with 140."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "qrsh").write_text(f'#!/bin/sh\nexec {sge.folder / "bin" / "qrsh"} "$1" "$2" "sleep 60; $3"\n')
    (folder / "qrsh").chmod(0o755)
    launcher.submit(*SLEEPS, *TWO_NODES, PATH=f"{folder}:{launcher.environ['PATH']}")
    launcher.until(lambda: "sleep 60 " in command_lines(), "a task is being started")
    qdel(launcher, str(launcher.status()["job"]))
    launcher("wait", "latest", "-q")
    events = launcher.last().attempts()[-1].events()
    assert [event["code"] for event in events if event["event"] == "ended"] == [75], events
    assert "task_not_started" not in [event.get("code") for event in events]
    assert launcher.status()["state"] == "stopped"


@pytest.mark.ci
@pytest.mark.waits
def test_a_run_that_ignores_its_end_is_killed_with_all_that_it_started(launcher: Launcher) -> None:
    launcher.submit(
        "workload=collective", "workload.entry=tests.chaos.ends:ignores_every_stop", "time=30s", "resume.lead=1s",
        "launch.grace=60", *TWO_NODES,
    )  # fmt: skip
    launcher("wait", "latest", "-q")
    launcher.until(lambda: not processes_of(launcher), "no process of the run is left", 30)
    told = launcher("post-mortem", "latest", "--json")
    assert '"wall-time"' in told.stdout, told.stdout


@pytest.mark.parametrize("nodes", [1, pytest.param(2, marks=pytest.mark.slow)])  # several: as contract/test_resume.py
def test_a_run_that_is_out_of_time_is_requeued_on_one_node_and_resubmitted_on_several(
    launcher: Launcher, nodes: int
) -> None:
    """A job of several nodes would wait for ever: see SGEScheduler.requeue."""
    size = TWO_NODES if nodes == 2 else ("nodes=1",)
    launcher.submit(*STEPS, *size, "time=1m", "resume.lead=35s", STEPS="100", STEP_TIME="0.3")
    done = launcher("wait", "latest", "-q", timeout=280)
    assert done.returncode == 0, launcher.printed()
    run = launcher.last()
    assert len(run.attempts()) > 1
    assert len(jobs_of(run)) == (1 if nodes == 1 else len(run.attempts()))
    assert not list(run.path.glob(".again-*"))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nodes=2"], ["nodes=2", "set cluster.parallel_environment"]),
        (["nodes=2", "cluster.parallel_environment=node"], ["Did you mean nodes?", "Known: fill, nodes, smp"]),
        (["nodes=2", "cluster.parallel_environment=smp"],
         ["allocation_rule is $pe_slots", "use cluster.parallel_environment=nodes"]),
        (["nodes=2", "cluster.parallel_environment=nodes", "cluster.slots=4"],
         ["gives each node 1 slot", "use cluster.slots=1"]),
        (["nodes=1", "cluster.parallel_environment=fill", "cluster.slots=4"],
         ["may spread 4 slots", "use cluster.parallel_environment=smp"]),
        (["cluster.queue=al.q"], ["there is no such queue", "Did you mean all.q?"]),
        (["+cluster.resources={gpus: 1}"], ["the site has no such resource", "Did you mean gpu?"]),
        (["gpus_per_node=1"], ["cluster.gpu_resource=gpu"]),
        (["mem=1G"], ["cluster.mem_resource=h_vmem"]),
        (["name=1st"], ["with a letter or _ first"]),
        (["cluster.partition=gpu"], ["cluster.partition is a key for slurm", "use cluster.queue"]),
    ],
)  # fmt: skip
def test_what_cannot_run_is_refused_before_it_is_submitted(
    launcher: Launcher, words: list[str], told: list[str]
) -> None:
    done = launcher.submit("workload=collective", *words)
    assert done.returncode == 2, done.stdout + done.stderr
    for each in told:
        assert each in done.stderr
    assert not launcher.runs_dir.exists()


def test_what_qsub_refuses_leaves_no_run(launcher: Launcher) -> None:
    done = launcher.submit("workload=collective", "cluster.queue=al.q", "cluster.check=false")
    assert done.returncode == 1
    assert 'qsub refused the job: Job was rejected because job requests unknown queue "al.q"' in done.stderr
    assert not all_runs(launcher.runs_dir)


def test_a_job_that_no_queue_may_run_is_one_job(launcher: Launcher, sge: SgeCluster) -> None:
    """qsub warns, submits, and exits with 1."""
    queue = sge.run("qconf", "-sq", "all.q")
    try:
        sge.load("-Mq", re.sub(r"(?m)^user_lists .*$", "user_lists arusers", queue))
        done = launcher.submit("workload=collective", "wait=false")
        assert done.returncode == 0, done.stdout + done.stderr
        assert len(jobs_of(launcher.last())) == 1
        assert launcher.status()["state"] == "queued"
        why = launcher("why", "latest")
        assert "all.q" in why.stdout, why.stdout
    finally:
        sge.load("-Mq", queue)


def test_without_a_qmaster_nothing_is_submitted_and_the_answer_is_waited_for(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = launcher.submit("workload=collective", "dry_run=true", SGE_QMASTER_PORT="1")
    assert done.returncode == 0
    assert "not compared with the live queues" in done.stdout + done.stderr


def test_a_lost_answer_makes_no_second_job(launcher: Launcher, sge: SgeCluster, tmp_path: Path) -> None:
    """The job is there, and qsub is killed before it says so."""
    folder = tmp_path / "bin"
    folder.mkdir()
    real = sge.folder / "bin" / "qsub"
    (folder / "qsub").write_text(
        f'#!/bin/sh\ncase $1 in -help|--version) exec {real} "$@" ;; esac\n'
        f'[ -e {folder}/sent ] || {{ {real} "$@" >/dev/null; touch {folder}/sent\n'
        f'echo "error: commlib error: got read error" >&2; exit 1; }}\nexec {real} "$@"\n'
    )
    (folder / "qsub").chmod(0o755)
    done = launcher.submit(*SLEEPS, "nodes=1", PATH=f"{folder}:{launcher.environ['PATH']}")
    assert done.returncode == 0, done.stdout + done.stderr
    numbers = re.findall(r"^ *(\d+) ", sge.run("qstat", "-u", "*"), re.MULTILINE)
    assert jobs_of(launcher.last()) == numbers
    assert len(numbers) == 1


def test_secrets_are_in_nothing_that_others_can_ask_grid_engine_for(launcher: Launcher, sge: SgeCluster) -> None:
    launcher.submit(*SLEEPS, *TWO_NODES, WANDB_API_KEY="very-secret-key", HARMLESS="told")
    launcher.until(lambda: launcher.printed().count("asleep") == 4, "all ranks are asleep")
    job = jobs_of(launcher.last())[0]
    assert "very-secret-key" not in sge.run("qstat", "-j", job)
    spooled = [path for path in (sge.folder / "spool").rglob("*") if path.is_file()]
    assert spooled
    assert not [path for path in spooled if b"very-secret-key" in path.read_bytes()]
    launcher("cancel", "latest")
