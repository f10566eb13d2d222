"""The time that Slurm leaves a job, as the job's driver asks for it."""

from __future__ import annotations

import calendar
import os
import stat
import time
from pathlib import Path

import pytest

from launcher.schedulers.slurm import in_job
from tests.unit.clock import Clock

CONFIG = "Configuration data as of 2026-11-24T10:00:05\nAccountingStorageBackupHost = (null)\n"


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "9", "HERE": str(tmp_path)}


def answers(folder: Path, name: str, text: str, code: int = 0) -> None:
    program = folder / name
    program.write_text(f'#!/bin/sh\necho "$@" >"$HERE/{name}.asked"\nprintf "%s" "{text}"\nexit {code}\n')
    program.chmod(stat.S_IRWXU)


@pytest.mark.parametrize(
    ("squeue", "scontrol", "left"),
    [
        ("2026-11-24T11:00:00\n", CONFIG, 3595.0),
        ("2026-11-24T09:59:05\n", CONFIG, -60.0),
        ("CLUSTER: 2026-01-01T00:00:00\n2026-11-24T11:00:00\n", CONFIG, 3595.0),
        ("NONE\n", CONFIG, None),  # no time limit
        ("", CONFIG, None),
        ("slurm_load_jobs error: Invalid job id specified\n", CONFIG, None),
    ],
)
def test_the_end_and_the_present_are_those_of_the_controller(
    tmp_path: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, squeue: str, scontrol: str,
    left: float | None,
) -> None:  # fmt: skip
    answers(tmp_path, "squeue", squeue)
    answers(tmp_path, "scontrol", scontrol)
    monkeypatch.setenv("PATH", environ["PATH"])
    assert in_job.seconds_left(environ) == left
    assert (tmp_path / "squeue.asked").read_text() == "-h -j 9 -o %e\n"


def test_what_the_user_wants_squeue_to_show_does_not_count(
    tmp_path: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(tmp_path, "squeue", "${SQUEUE_STATES:-2026-11-24T11:00:00}")
    answers(tmp_path, "scontrol", CONFIG)
    monkeypatch.setenv("PATH", environ["PATH"])
    assert in_job.seconds_left({**environ, "SQUEUE_STATES": "PENDING"}) == 3595.0


def test_an_element_of_an_array_asks_for_itself(
    tmp_path: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(tmp_path, "squeue", "2026-11-24T11:00:00\n")
    answers(tmp_path, "scontrol", CONFIG)
    monkeypatch.setenv("PATH", environ["PATH"])
    assert in_job.seconds_left({**environ, "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}) == 3595.0
    assert (tmp_path / "squeue.asked").read_text() == "-h -j 7_3 -o %e\n"


def test_without_the_controllers_clock_this_nodes_clock_counts(
    tmp_path: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch, in_job)
    clock.now = calendar.timegm((2026, 11, 24, 10, 0, 0))
    answers(tmp_path, "squeue", "2026-11-24T11:00:00\n")
    monkeypatch.setenv("PATH", f"{tmp_path}")
    (tmp_path / "sh").symlink_to("/bin/sh")
    assert in_job.seconds_left({**environ, "PATH": str(tmp_path)}) == 3600.0


@pytest.mark.parametrize("clock_known", [False, True])
def test_the_hour_that_comes_twice_when_clocks_are_set_back_counts_twice(
    tmp_path: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, clock_known: bool
) -> None:
    """Half past two in summer time is now, and the job ends at half past two in standard time."""
    now = calendar.timegm((2026, 10, 25, 0, 30, 0))
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    try:
        Clock(monkeypatch, in_job).now = now
        answers(tmp_path, "squeue", f"$(date -d @{now + 3600} +%FT%T)")
        answers(tmp_path, "scontrol", f"as of $(date -d @{now} +%FT%T)" if clock_known else "")
        monkeypatch.setenv("PATH", environ["PATH"])
        assert in_job.seconds_left({**environ, "TZ": os.environ["TZ"]}) == 3600.0
    finally:
        monkeypatch.undo()
        time.tzset()


def test_outside_of_slurm_there_is_no_end() -> None:
    assert in_job.seconds_left({}) is None
    assert in_job.kill_wait({}) is None


@pytest.mark.parametrize(("state", "asked"), [("RUNNING", True), ("COMPLETING", False), ("", False)])
def test_only_a_job_that_ends_by_itself_is_not_started_again(
    tmp_path: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, state: str, asked: bool
) -> None:
    """`scontrol requeue`, and a preemption, bring it back."""
    answers(tmp_path, "squeue", state)
    answers(tmp_path, "scontrol", "")
    monkeypatch.setenv("PATH", environ["PATH"])
    in_job.end_for_good(environ)
    assert ((tmp_path / "scontrol.asked").read_text() == "update JobId=9 Requeue=0\n") == asked


@pytest.mark.parametrize(
    ("state", "config", "seconds"),
    [
        ("COMPLETING\n", f"{CONFIG}KillWait                = 30 sec\n", 30.0),
        ("RUNNING\n", f"{CONFIG}KillWait                = 30 sec\n", None),  # a user has sent SIGTERM
        ("CLUSTER: test\nRUNNING\n", f"{CONFIG}KillWait                = 30 sec\n", None),
        ("COMPLETING\n", "", None),
    ],
)
def test_only_a_job_that_slurm_ends_is_killed_after_sigterm(
    tmp_path: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, state: str, config: str,
    seconds: float | None,
) -> None:  # fmt: skip
    answers(tmp_path, "squeue", state)
    answers(tmp_path, "scontrol", config)
    monkeypatch.setenv("PATH", environ["PATH"])
    assert in_job.kill_wait(environ) == seconds
