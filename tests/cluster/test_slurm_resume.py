"""Stops and resumption on a real Slurm: what only Slurm can do to a run."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.runs.directory import Run
from launcher.runs.history import read_history
from tests.cluster.daemons import running
from tests.launch import Launcher

STEPS = ("workload=collective", "workload.entry=tests.chaos.steps:main")
ENDLESS = {"STEPS": "100000", "STEP_TIME": "0.05"}


@pytest.fixture
def launcher(slurm: Any, tmp_path: Path) -> Iterator[Launcher]:
    yield Launcher(tmp_path / "runs", {"SLURM_CONF": slurm.env()["SLURM_CONF"]}, ["cluster=slurm"])
    slurm.reset()


def reached(launcher: Launcher, attempt: int, step: int = 5) -> None:
    """Waits until the run has reached a step in an attempt."""

    def come() -> bool:
        row = launcher.status()
        return row["attempt"] == attempt and (row["step"] or 0) >= step

    launcher.until(come, f"step {step} of attempt {attempt}", timeout=120)


def stopped_at(run: Run, attempt: int) -> int:
    events = run.attempts()[attempt].events()
    return int(next(event["step"] for event in events if event["event"] == "stop"))


@pytest.mark.parametrize(
    "partition", ["debug", pytest.param("gpu", marks=pytest.mark.slow)]
)  # with a GraceTime, and without
def test_a_preempted_run_loses_no_step(launcher: Launcher, slurm: Any, partition: str) -> None:
    launcher.submit(
        *STEPS, "nodes=2", f"cluster.partition={partition}", "time=9m", "run_id=low", "wait=false", **ENDLESS
    )
    reached(launcher, 0)
    urgent = ["--partition=urgent", "--nodes=4", "--exclusive", "--wrap=sleep 5", "--output=/dev/null"]
    slurm.run("sbatch", *urgent)
    reached(launcher, 1, step=1)
    assert re.search(r"\n0 .* 75 preempted: asked to stop", launcher("status", "low").stdout)
    run = launcher.last()
    next_ = [event["reason"] for event in run.attempts()[0].events() if event["event"] in ("continues", "stays")]
    # In the time of grace the job requeues itself; without one Slurm is ending it already, and requeues it.
    assert next_ == ["requeued" if partition == "debug" else "preempted"]
    saved = [event["step"] for event in run.attempts()[0].events() if event["event"] == "saved"]
    done = max(event["step"] for event in run.attempts()[0].events() if event["event"] == "progress")
    assert saved == [stopped_at(run, 0)]
    assert saved[0] >= done
    (run.path / "stop").touch()
    launcher.until(lambda: launcher.status()["state"] == "stopped", "the end")
    resumed = launcher("resume", "low", "wait=true", STEPS=str(stopped_at(run, 1) + 1), STEP_TIME="0")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert (run.result() or {})["sum"] == [float(stopped_at(run, 1) + 1)] * 4


@pytest.mark.slow
def test_a_run_goes_on_where_slurm_cancels_what_it_preempts(launcher: Launcher, slurm: Any) -> None:
    mode = slurm.run("scontrol", "show", "partition", "gpu").partition("PreemptMode=")[2].split()[0]
    slurm.run("scontrol", "update", "partitionname=gpu", "preemptmode=cancel")
    try:
        launcher.submit(*STEPS, "nodes=2", "cluster.partition=gpu", "time=9m", "run_id=low", "wait=false", **ENDLESS)
        reached(launcher, 0)
        urgent = ["--partition=urgent", "--nodes=4", "--exclusive", "--wrap=sleep 5", "--output=/dev/null"]
        slurm.run("sbatch", *urgent)
        reached(launcher, 1, step=1)
    finally:
        slurm.run("scontrol", "update", "partitionname=gpu", f"preemptmode={mode}")
    run = launcher.last()
    events = run.attempts()[0].events()
    (then,) = (event for event in events if event["event"] in ("continues", "stays"))
    assert (then["event"], then["job"]) == ("continues", launcher.status()["job"])
    assert [event["step"] for event in events if event["event"] == "saved"] == [stopped_at(run, 0)]


@pytest.mark.slow
def test_a_run_that_is_preempted_before_it_saves_is_not_given_up(launcher: Launcher, slurm: Any) -> None:
    launcher.submit(
        *STEPS, "nodes=2", "cluster.partition=debug", "time=9m", "run_id=early", "wait=false", STEP_TIME="1000"
    )  # fmt: skip
    run = launcher.last()
    for attempt in range(3):
        launcher.until(lambda number=attempt: len(run.attempts()) > number, f"attempt {attempt}", timeout=120)
        launcher.until(lambda: launcher.status()["state"] == "running", "it runs", timeout=120)
        if attempt < 2:
            urgent = ["--partition=urgent", "--nodes=4", "--exclusive", "--wrap=sleep 1", "--output=/dev/null"]
            slurm.run("sbatch", *urgent)
    ends = [[event for event in each.events() if event["event"] == "stopped"] for each in run.attempts()[:2]]
    assert [[(event["step"], event["preempted"]) for event in each] for each in ends] == [[(-1, True)]] * 2
    launcher("cancel", "early")


def test_a_job_that_its_owner_deletes_does_not_come_back(launcher: Launcher, slurm: Any) -> None:
    launcher.submit(*STEPS, "nodes=2", "run_id=deleted", "wait=false", **ENDLESS)
    reached(launcher, 0)
    slurm.run("scancel", launcher.status()["job"])
    launcher.until(lambda: launcher.status()["state"] in ("stopped", "cancelled"), "the end")
    run = launcher.last()
    (stays,) = (event for event in run.attempts()[0].events() if event["event"] == "stays")
    assert (stays["reason"], stays["scheduler"], stays["state"]) == ("scheduler_ends", "Slurm", "COMPLETING")
    assert [event["step"] for event in run.attempts()[0].events() if event["event"] == "saved"] == [stopped_at(run, 0)]
    assert len(run.attempts()) == 1


@pytest.mark.ci
def test_a_second_job_of_a_run_ends_while_the_first_one_lives(launcher: Launcher, slurm: Any) -> None:
    launcher.submit(*STEPS, "nodes=1", "run_id=twice", "wait=false", **ENDLESS)
    reached(launcher, 0)
    run = launcher.last()
    second = slurm.run("sbatch", "--parsable", str(run.path / "script.sh")).strip()
    output = run.path / f"output-{second}.log"
    launcher.until(lambda: output.exists() and "runs already, in job" in output.read_text(), "the second ends", 120)
    assert len(run.attempts()) == 1
    assert launcher.status()["state"] == "running"
    launcher("cancel", "twice")


@pytest.mark.slow
def test_a_start_that_outlives_the_loss_of_its_node_leaves_the_run_to_the_next_one(
    launcher: Launcher, slurm: Any
) -> None:  # fmt: skip
    """Its node's slurmd is gone, but its processes live; Slurm starts the job again elsewhere, with the same id."""
    launcher.submit(*STEPS, "nodes=1", "run_id=cut-off", "wait=false", **ENDLESS)
    reached(launcher, 0)
    run, job = launcher.last(), launcher.status()["job"]
    node = slurm.run("squeue", "--noheader", f"--jobs={job}", "--format=%N").strip()
    find = ["pgrep", "--full", f"^srun .*{run.path}"]
    sruns = sorted(map(int, subprocess.run(find, capture_output=True, text=True, check=True).stdout.split()))
    for srun in sruns:
        os.kill(srun, signal.SIGSTOP)  # it does not hear of the loss
    slurm.daemons.stop(node)
    for state in ("drain", "down"):
        slurm.run("scontrol", "update", f"nodename={node}", f"state={state}", "reason=lost")
    reached(launcher, 1)

    def events(kind: str) -> list[dict[str, Any]]:
        return [event for event in run.attempts()[0].events() if event["event"] == kind]

    launcher.until(lambda: events("stop"), "the end of its ranks", timeout=60)
    for srun in reversed(sruns):  # the first one's child would end the step with this id, which is the next start's
        os.kill(srun, signal.SIGKILL)
    launcher.until(lambda: events("ended"), "the end of the first start", timeout=60)
    assert [event["code"] for event in events("ended")] == [75]
    assert {event["reason"] for event in events("stop")} == {"lease_lost"}
    assert events("continues") + events("stays") == []
    reached(launcher, 1, step=int(launcher.status()["step"]) + 100)
    assert "Restarts=1 " in slurm.run("scontrol", "show", "job", job)
    launcher("cancel", "cut-off")


@pytest.mark.slow
def test_weights_are_those_of_an_undisturbed_run_after_three_attempts(launcher: Launcher) -> None:
    """About 2000 steps with a pause each take three attempts of 25 s; the whole run has no pauses."""
    ddp = ("workload=ddp_mnist", "workload.dataset=digits", "workload.epochs=180", "workload.log_every=500", "nodes=2")
    slowly = ("workload.entry=tests.chaos.slowly:main", "time=2m", "resume.lead=95s")
    weights = {}
    for run_id, more in (("disturbed", slowly), ("whole", ())):
        launcher.submit(*ddp, *more, f"run_id={run_id}", "wait=false")
        ended = launcher("wait", run_id, "-q", timeout=280)
        assert ended.returncode == 0, ended.stderr + launcher.printed()
        weights[run_id] = (launcher.last().result() or {})["weights_sha256"]
        assert len(launcher.last().attempts()) in (range(3, 20) if run_id == "disturbed" else [1])
    assert weights["disturbed"] == weights["whole"]


@pytest.mark.slow
def test_a_run_goes_on_at_other_sizes_with_the_same_weights(launcher: Launcher) -> None:
    """train.invariant: 2 ranks, then 3, then 1."""
    ddp = ("workload=ddp_mnist", "workload.dataset=digits", "workload.epochs=300", "train.invariant=true")
    whole = launcher.run(*ddp, "nodes=1", "run_id=whole")
    assert whole.code == 0, whole.output
    launcher.submit(*ddp, "nodes=2", "run_id=resized", "wait=false")
    for attempt, size in enumerate((["nodes=1", "procs_per_node=3"], ["nodes=1", "procs_per_node=1"])):
        reached(launcher, attempt, step=100 * (attempt + 1))
        run = launcher.last()
        (run.path / "stop").touch()
        launcher.until(lambda: launcher.status()["state"] == "stopped", "the end")
        assert launcher("resume", "resized", *size).returncode == 0
    assert launcher("wait", "resized", "-q", timeout=300).returncode == 0
    met = [event for each in run.attempts() for event in each.events() if event["event"] == "met"]
    sizes = [event["ranks"] for event in met if event["writer"] == "node-0"]
    assert sizes == [2, 3, 1]
    assert json.loads((run.path / "result.json").read_text())["weights_sha256"] == whole.metrics["weights_sha256"]


def test_a_requeue_is_told_once_and_as_what_it_is(launcher: Launcher) -> None:
    """Slurm ends the processes of a job that it requeues, the one that asked for it too."""
    launcher.fault("stops_for_resume", "nodes=1", "procs_per_node=1", "resume.how=requeue", "run_id=requeued")
    first, last = launcher.last().attempts()
    told = [[event for event in each.events() if event["event"] in ("continues", "stays")] for each in (first, last)]
    assert [(event["event"], event["what"]) for event in told[0]] == [("continues", "elsewhere")]
    assert [(event["event"], event["what"]) for event in told[1]] == [("stays", "given_up")]


@pytest.mark.slow
def test_a_run_whose_agents_are_to_start_while_the_controller_restarts_starts_when_it_is_back(
    launcher: Launcher, slurm: Any, tmp_path: Path
) -> None:
    loaded = tmp_path / "loaded"
    waits = f"until [ -e {loaded} ]; do sleep 0.2; done"
    launcher.submit(*STEPS, f"cluster.setup=['{waits}']", "time=9m", "wait=false", STEPS="3", STEP_TIME="0")
    launcher.until(lambda: launcher.status()["state"] == "running", "its set-up lines")
    with slurm.without_controller():
        loaded.touch()
        launcher.until(lambda: "the scheduler does not answer" in launcher.printed(), "srun fails")
    # srun may wait for a minute more, until the controller has heard of all nodes
    launcher.until(lambda: launcher.status()["state"] == "done", "the end", timeout=300)
    assert len(launcher.last().attempts()) == 1


@pytest.mark.slow
def test_a_chain_whose_job_is_killed_without_a_word_is_queued_and_goes_on(launcher: Launcher, slurm: Any) -> None:
    chain = ("resume.how=chain", "resume.max_attempts=2")
    launcher.submit(*STEPS, *chain, "nodes=2", "time=9m", "wait=false", STEPS="100", STEP_TIME="0.05")
    reached(launcher, 0)
    slurm.run("sbatch", "--nodes=4", "--exclusive", "--nice=-100", "--output=/dev/null", "--wrap=sleep 10")
    run = launcher.last()
    killed, following = launcher.status()["job"], read_history(run).waiting[0]
    for process in running():
        words = (Path("/proc") / str(process.pid) / "cmdline").read_bytes()
        if f"LAUNCHER_RUN_DIR={run.path}" in process.environment() and b"launcher/job/__main__.py" in words:
            process.send(signal.SIGKILL)
    launcher.until(lambda: launcher.status()["job"] != killed, "the next job")
    assert (launcher.status()["state"], launcher.status()["job"]) == ("queued", following)
    launcher.until(lambda: launcher.status()["state"] == "done", "the end", timeout=120)
    assert len(run.attempts()) == 2


@pytest.mark.slow
def test_a_run_of_which_a_node_cannot_start_its_agent_goes_on(launcher: Launcher, slurm: Any, tmp_path: Path) -> None:
    loaded = tmp_path / "loaded"
    waits = f"until [ -e {loaded} ]; do sleep 0.2; done"
    launcher.submit(
        *STEPS, "nodes=2", f"cluster.setup=['{waits}']", "time=9m", "wait=false", STEPS="3", STEP_TIME="0"
    )  # fmt: skip
    launcher.until(lambda: launcher.status()["state"] == "running", "its set-up lines")
    slurm.daemons.stop("node2")  # Slurm has not noticed that
    loaded.touch()
    launcher.until(lambda: "continues: its job was requeued" in launcher.printed(), "srun fails", timeout=120)
    slurm.restore_node("node2")
    launcher.until(lambda: launcher.status()["state"] == "done", "the end", timeout=200)
    first, _ = launcher.last().attempts()
    assert [event["reason"] for event in first.events() if event["event"] == "stop"] == ["killed"]
