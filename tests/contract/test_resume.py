"""What every scheduler must do with a run that stops: it saves, and resumes by itself or by `resume`."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.contract.schedulers import detached, local, on
from tests.launch import PYTHON, ROOT, Launcher
from tests.markers import ci, slow

STEPS = ("workload=collective", "workload.entry=tests.chaos.steps:main", "nodes=2")
SLOW_AT_FIRST = {"STEPS": "100", "STEP_TIME": "0.5", "RESUMED_STEP_TIME": "0"}


def submitted(launcher: Launcher, *overrides: str, run_id: str = "steps", **environment: str) -> Path:
    """Submits a small training; returns its run directory."""
    done = launcher.submit(*STEPS, f"run_id={run_id}", "wait=false", *overrides, **environment)
    assert done.returncode == 0, done.stderr
    return launcher.runs_dir / run_id


def state(launcher: Launcher) -> str:
    return str(launcher.status()["state"])


def begun(launcher: Launcher, step: int = 5) -> None:
    launcher.until(lambda: (launcher.status()["step"] or 0) >= step, f"step {step}")


def is_over(launcher: Launcher) -> None:
    over = ("done", "stopped", "failed", "cancelled", "lost")
    launcher.until(lambda: state(launcher) in over, "the end", timeout=150)


# A held allocation ends with its own time: test_allocation.py tests that.
@on("slurm", never=("third", "allocation"))
def test_a_run_resumes_by_itself_after_its_time_limit(launcher: Launcher) -> None:
    """100 steps take 50 s, and the first attempt has 25 s with its start (Slurm counts whole minutes)."""
    result = launcher.run(*STEPS, "time=2m", "resume.lead=95s", **SLOW_AT_FIRST)
    assert result.code == 0, result.output
    assert result.metrics["sum"] == [100.0] * 4
    assert int(str(result.metrics["attempt"])) >= 1
    assert int(str(result.metrics["begun"])) > 0
    attempts = result.run.attempts()
    stops = [event for attempt in attempts for event in attempt.events() if event["event"] == "stop"]
    assert [event["reason"] for event in stops] == ["time_limit"] * (len(attempts) - 1)
    assert not (result.run.path / "lease").exists()
    table = launcher("status", "latest").stdout
    assert "ATTEMPT" in table and "75 wall-time: its time is nearly up" in table


@detached("local", ci=("slurm", "sge"))
def test_a_stop_file_ends_a_run_and_resume_continues_it_at_another_size(launcher: Launcher) -> None:
    run_dir = submitted(launcher, STEPS="100000", STEP_TIME="0.05")
    begun(launcher)
    (run_dir / "stop").touch()
    is_over(launcher)
    row = launcher.status()
    assert row["state"] == "stopped"
    assert "asked to stop by its file `stop` at step" in row["cause"]
    assert launcher("wait", "latest", "-q").returncode == 75
    at = int(row["cause"].rpartition("step ")[2].partition(";")[0])
    resumed = launcher("resume", "steps", "nodes=1", "procs_per_node=3", "wait=true", STEPS=str(at + 5), STEP_TIME="0")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    metrics = launcher.last().result()
    assert metrics == {"steps": at + 5, "begun": at, "attempt": 1, "world_size": 3, "sum": [at + 5.0] * 4}
    again = launcher("resume", "steps")
    assert again.returncode == 1
    assert "is done: there is nothing to resume" in again.stderr


@local
def test_a_save_file_saves_and_the_run_continues(launcher: Launcher) -> None:
    run_dir = submitted(launcher, STEPS="100000", STEP_TIME="0.05")
    begun(launcher)
    (run_dir / "save").touch()
    launcher.until(lambda: list((run_dir / "checkpoints").glob("step-*/manifest.json")), "a checkpoint")
    assert not (run_dir / "save").exists()
    assert state(launcher) == "running"
    launcher("cancel", "steps")
    is_over(launcher)


@detached(ci=("slurm",))
def test_a_cancelled_run_saves_and_is_not_resumed(launcher: Launcher) -> None:
    run_dir = submitted(launcher, STEPS="100000", STEP_TIME="0.05")
    begun(launcher)
    refused = launcher("resume", "steps")
    assert refused.returncode == 1
    assert "is running" in refused.stderr
    launcher("cancel", "steps")
    is_over(launcher)
    assert state(launcher) == "cancelled"
    (saved,) = (run_dir / "checkpoints").glob("step-*")
    at = int(saved.name.removeprefix("step-"))
    assert at >= 5
    resumed = launcher("resume", "steps", "wait=true", STEPS=str(at + 3), STEP_TIME="0")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert (launcher.last().result() or {})["begun"] == at


@pytest.mark.slow
@local
def test_a_run_is_given_up_after_two_attempts_without_progress(launcher: Launcher) -> None:
    result = launcher.run(*STEPS, "time=1m", "resume.lead=55s", STEPS="100000", STEP_TIME="0.1", NEVER_SAVE="1")
    assert result.code == 93, result.output
    assert "two attempts in a row got no further than step 0" in result.output
    assert len(result.run.attempts()) == 2
    assert launcher.status()["state"] == "failed"


@local
def test_with_resume_how_never_a_run_stays_stopped(launcher: Launcher) -> None:
    result = launcher.run(*STEPS, "time=1m", "resume.lead=55s", "resume.how=never", STEPS="100000", STEP_TIME="0.1")
    assert result.code == 75, result.output
    assert "its time is nearly up" in launcher.status()["cause"]
    assert len(result.run.attempts()) == 1


@pytest.mark.parametrize(
    ("launcher", "how"),
    [slow("slurm", "resubmit"), slow("slurm", "chain"), slow("pbs", "chain"), ci("sge", "chain")],
    indirect=["launcher"],
)
def test_a_run_continues_in_other_jobs(launcher: Launcher, how: str) -> None:
    result = launcher.run(
        *STEPS,
        "time=2m",
        "resume.lead=95s",
        f"resume.how={how}",
        "resume.max_attempts=20",
        **SLOW_AT_FIRST,
    )
    assert result.code == 0, result.output
    assert result.metrics["sum"] == [100.0] * 4
    jobs = {
        event["job"] for attempt in result.run.attempts() for event in attempt.events() if event["event"] == "started"
    }
    assert len(jobs) == len(result.run.attempts()) >= 2
    shown = launcher("logs", "latest").stdout
    assert re.findall(r"^--- attempt (\d+), job \d+, ", shown, re.MULTILINE) == [str(n) for n in range(1, len(jobs))]
    first = launcher("logs", "latest", "--attempt", "0").stdout
    assert "[0] " in first and shown.startswith(first) and "--- attempt" not in first


@local
def test_a_resume_that_is_refused_changes_nothing(launcher: Launcher) -> None:
    result = launcher.run(
        "workload=collective", "workload.entry=tests.chaos.faults:stops_for_resume", "resume.how=never"
    )
    before = {path: path.read_bytes() for path in result.run.path.rglob("*") if path.is_file()}
    for word, told in (
        ("nods=4", "there is no key 'nods'. Did you mean nodes"),
        ("nodes=0", "nodes=0: it must be 1 or more"),
        ("nodes", "'nodes' is not KEY=VALUE"),
        ("run_id=other", "run_id is what makes it this run"),
        ("workload=p2p", "workload is what makes it this run"),
        ("resume.lead=2h", "resume.lead=2h is not less than time=1h"),
        ("min_nodes=9", "min_nodes=9 is more than nodes=1"),
    ):
        refused = launcher("resume", "latest", word)
        assert refused.returncode == 2, word
        assert told in refused.stderr
        assert {path: path.read_bytes() for path in result.run.path.rglob("*") if path.is_file()} == before


@local
def test_a_resumed_run_starts_where_it_was_submitted(launcher: Launcher, tmp_path: Path) -> None:
    """Not in the folder of `resume`, because the run imports modules from its own folder."""
    result = launcher.run(
        "workload=collective", "workload.entry=tests.chaos.faults:stops_for_resume", "resume.how=never"
    )
    before = result.run.plan()
    shown = subprocess.run(
        [PYTHON, "-m", "launcher", "resume", str(result.run.path), "nodes=2", "dry_run=true"], cwd=tmp_path,
        env={**launcher.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert shown.returncode == 0, shown.stderr
    assert f"launcher_workdir={before.workdir} " in shown.stdout
