"""A submission that the system or the user cuts short: what is left behind, and what is told. Against stand-ins."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.config.schema import Scheduler
from launcher.errors import SubmissionError
from launcher.monitoring.live import read
from launcher.processes.groups import Process
from launcher.runs import event_file
from launcher.runs.directory import Run
from launcher.submission.submit import Submitted, prepare, submit
from tests.launch import PYTHON, ROOT, until
from tests.unit.faults import FileServer
from tests.unit.plans import make_config
from tests.unit.slurm_stand_in import SlurmStandIn


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SlurmStandIn:
    stand_in = SlurmStandIn(tmp_path / "slurm")
    monkeypatch.setenv("PATH", stand_in.path)
    monkeypatch.setenv("LAUNCHER_RUNS_DIR", str(tmp_path / "runs"))
    return stand_in


def handed_over(folder: Path, scheduler: Scheduler = Scheduler.slurm) -> Submitted:
    cluster = {"check": False, "submit_timeout": 10, "scheduler": scheduler}
    return submit(prepare(make_config(runs_dir=str(folder / "runs"), run_id="a", cluster=cluster)), {})


def full_for(event: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full when this event is to be written."""
    append = event_file.append

    def full(path: Path, name: str, **values: Any) -> None:
        if name == event:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        append(path, name, **values)

    monkeypatch.setattr(event_file, "append", full)


@pytest.mark.parametrize("part", [".record.json.", "payload.pkl", ".script.sh."])
def test_a_disk_that_is_full_before_the_job_is_handed_over_leaves_nothing(
    part: str, tmp_path: Path, slurm: SlurmStandIn, server: FileServer
) -> None:
    server.fail(part, number=errno.ENOSPC)
    with pytest.raises(SubmissionError, match=r"nothing was submitted: .*No space left on device.*make room there"):
        handed_over(tmp_path)
    assert slurm.calls() == 0
    assert not (tmp_path / "runs" / "a").exists()
    server.recover()
    assert handed_over(tmp_path).job_id == "100"


def test_a_disk_that_is_full_when_the_submission_is_noted_leaves_nothing(
    tmp_path: Path, slurm: SlurmStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_for("submitting", monkeypatch)
    with pytest.raises(SubmissionError, match=r"nothing was submitted: .*journal\.jsonl: No space left"):
        handed_over(tmp_path)
    assert slurm.calls() == 0
    assert not (tmp_path / "runs" / "a").exists()


def test_a_job_that_cannot_be_noted_is_found_by_the_next_command(
    tmp_path: Path, slurm: SlurmStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as disk:
        full_for("submitted", disk)
        with pytest.raises(SubmissionError, match=r"(?s)No space left.*Repeat the command with run_id=a"):
            handed_over(tmp_path)
    assert read(Run(tmp_path / "runs" / "a")).job_id is None
    assert handed_over(tmp_path).job_id == "100"
    assert len(slurm.jobs()) == 1


@pytest.mark.parametrize("event", ["process", "submitted"])
def test_a_process_of_this_machine_that_cannot_be_noted_is_ended(
    event: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_for(event, monkeypatch)
    started: list[Process] = []
    of = Process.of
    monkeypatch.setattr(Process, "of", lambda pid: started.append(of(pid)) or started[-1])
    with pytest.raises(SubmissionError, match=r"nothing was submitted: .*No space left"):
        handed_over(tmp_path, Scheduler.local)
    assert not (tmp_path / "runs" / "a").exists()
    assert len(started) == 1
    until(lambda: not started[0].alive(), "its process is gone")


ONE, SWEEP = ("run_id=a",), ("-m", "sweep.id=a", "seed=1,2")


@pytest.mark.parametrize(
    ("what", "times", "words", "then"),
    [
        (ONE, 1, "a was submitted as job 100, and goes on: ", "job        100 on slurm"),
        (ONE, 2, "nobody knows whether a was submitted: repeat the command", "job        100 on slurm"),
        (
            SWEEP,
            1,
            "2 points of a submitted, as 100: repeat the command to go on",
            "2 points had been submitted before: 2 queued",
        ),
        (
            SWEEP,
            2,
            "nobody knows which points of a were submitted: repeat",
            "2 points had been submitted before: 2 queued",
        ),
    ],
)
def test_ctrl_c_while_sbatch_runs_says_what_is_there(
    what: tuple[str, ...], times: int, words: str, then: str, tmp_path: Path, slurm: SlurmStandIn
) -> None:
    """sbatch hangs until the test lets it go on."""
    slurm.set(hold="")
    command = (
        PYTHON, "-m", "launcher", *what, "workload=collective", "cluster=slurm", "cluster.check=false",
        f"runs_dir={tmp_path}/runs",
    )  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "LAUNCHER_CONFIG_DIR": str(tmp_path / "config")}

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            command, cwd=tmp_path, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip

    process = start()
    assert process.stderr is not None
    until(lambda: slurm.calls() == 1, "sbatch runs")
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to whatever is in its foreground
    line_with(process.stderr.readline, "waiting for the scheduler's answer")
    if times == 1:
        slurm.set(hold=None)
    else:
        os.killpg(process.pid, signal.SIGINT)
    line_with(process.stderr.readline, words)
    assert process.wait(60) == 130
    slurm.set(hold=None)
    again = subprocess.run(command, cwd=tmp_path, env=environment, text=True, capture_output=True, check=False)
    assert then in again.stdout, again.stdout + again.stderr
    assert len(slurm.jobs()) == 1


def line_with(next_line: Callable[[], str], words: str) -> None:
    """Reads until a line has these words."""
    seen = []
    while line := next_line():
        seen.append(line)
        if words in line:
            return
    raise AssertionError(f"no {words!r} in {seen}")
