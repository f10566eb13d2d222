"""The end of an attempt does not depend on a node's clock."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from launcher.agent import supervisor
from launcher.agent.supervisor import StopChecker
from launcher.failures.codes import StopReason
from launcher.runs import job_file
from launcher.runs.directory import Run
from launcher.runs.job_file import TimeLeft, judge_time
from launcher.worker.stop import settings
from tests.unit.plans import bare_plan
from tests.unit.sandbox import Sandbox

NOW, UP = 1_000_000.0, 5_000.0
HOUR = 3600.0
# A script that began a minute ago on machine `a`, with an hour left then.
TOLD = {
    "LAUNCHER_DEADLINE": f"{NOW - 60 + HOUR:.0f}", "LAUNCHER_TIME_LEFT": f"{HOUR:.0f}",
    "LAUNCHER_DEADLINE_UPTIME": f"a {UP - 60 + HOUR:.0f}",
}  # fmt: skip
ALONE = {"LAUNCHER_DEADLINE": TOLD["LAUNCHER_DEADLINE"]}


@pytest.mark.parametrize(
    ("environ", "off", "machine", "left"),
    [
        ({}, 0, ("a", UP), None),
        # On the script's machine, whatever its clock says meanwhile.
        *((TOLD, off, ("a", UP), TimeLeft(HOUR - 60, sure=True)) for off in (0, 900, -900)),
        # On others: a clock that is behind does not give more time than there was.
        (TOLD, 0, ("b", 7.0), TimeLeft(HOUR - 60, sure=False)),
        (TOLD, 900, ("b", 7.0), TimeLeft(HOUR - 960, sure=False)),
        (TOLD, -900, ("b", 7.0), TimeLeft(HOUR, sure=False)),
        (TOLD, 0, None, TimeLeft(HOUR - 60, sure=False)),
        # A template of the user's own.
        (ALONE, 0, ("a", UP), TimeLeft(HOUR - 60, sure=True)),
    ],
)
def test_what_is_left(
    environ: dict[str, str], off: float, machine: tuple[str, float] | None, left: TimeLeft | None
) -> None:
    assert judge_time(environ, NOW + off, machine) == left


def on_a_node(monkeypatch: pytest.MonkeyPatch, folder: Path, boot_id: str, off: float) -> dict[str, str]:
    """This machine is a node whose clock is off; the environment of a process there, with an hour left."""
    (folder / "boot_id").write_text(f"{boot_id}\n")
    (folder / "uptime").write_text("5000.00 1.0\n")
    monkeypatch.setattr(job_file, "BOOT_ID", folder / "boot_id")
    monkeypatch.setattr(job_file, "UPTIME", folder / "uptime")
    return {
        "LAUNCHER_DEADLINE": f"{time.time() - off + HOUR}", "LAUNCHER_TIME_LEFT": f"{HOUR}",
        "LAUNCHER_DEADLINE_UPTIME": f"a {5000 + HOUR}",
    }  # fmt: skip


AHEAD = 2 * HOUR


@pytest.mark.parametrize(
    ("boot_id", "first", "reason"),
    [("a", False, None), ("a", True, None), ("b", False, None), ("b", True, StopReason.TIME_LIMIT)],
)
def test_an_agent_whose_clock_is_ahead_does_not_end_the_attempt_while_others_know_better(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, boot_id: str, first: bool, reason: StopReason | None
) -> None:
    environ = on_a_node(monkeypatch, tmp_path, boot_id, AHEAD)
    plan = bare_plan(run_dir=str(tmp_path), resume={"lead": 60}, workload={"kind": "Program"})
    assert StopChecker(plan, environ, first=first, now=time.monotonic()).reason(time.monotonic()) is reason
    monkeypatch.setattr(supervisor, "STOP_LOOK", 0.0)
    if boot_id == "a":  # and it does when the time has come
        (tmp_path / "uptime").write_text(f"{5000 + HOUR - 59} 1.0\n")
        stop_checker = StopChecker(plan, environ, first=first, now=time.monotonic())
        assert stop_checker.reason(time.monotonic()) is StopReason.TIME_LIMIT


@pytest.mark.parametrize(
    ("boot_id", "rank", "left"), [("a", 0, HOUR), ("a", 3, HOUR), ("b", 0, HOUR - AHEAD), ("b", 3, None)]
)
def test_neither_does_a_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, boot_id: str, rank: int, left: float | None
) -> None:
    run = Run.create(tmp_path / "run")
    run.write_record(bare_plan(), {}, {})
    environ = on_a_node(monkeypatch, tmp_path, boot_id, AHEAD)
    for name, value in {
        **environ,
        "LAUNCHER_RUN_DIR": str(run.path),
        "LAUNCHER_ATTEMPT": "0",
        "RANK": str(rank),
    }.items():
        monkeypatch.setenv(name, value)
    deadline = settings().deadline
    assert (deadline is None) == (left is None)
    if deadline is not None and left is not None:
        assert deadline - time.time() == pytest.approx(left, abs=30)


# The times of Slurm's controller; this machine's clock is far from them.
CONTROLLER = 'echo "Configuration data as of 2026-11-21T08:00:00"; echo "AccountingStorageHost = x"'
END = "2026-11-21T08:10:00"


@pytest.mark.parametrize("answers", [True, False])
def test_a_jobs_script_goes_by_the_controllers_clock(tmp_path: Path, answers: bool) -> None:
    sandbox = Sandbox(tmp_path)
    for name, line in (("squeue", f'echo "{END}"'), ("scontrol", CONTROLLER if answers else "exit 1")):
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{line}\n")
        (tmp_path / "bin" / name).chmod(0o700)
    outcome = sandbox.execute(sandbox.plan())
    assert outcome.code == 0
    told = int(outcome.environment["LAUNCHER_TIME_LEFT"])
    if answers:
        assert told == 600
        left = job_file.time_left(outcome.environment)
        assert left is not None and left.sure
        assert left.seconds == pytest.approx(600, abs=60)
    else:
        by_clock = time.mktime(time.strptime(END, "%Y-%m-%dT%H:%M:%S")) - time.time()
        assert told == pytest.approx(by_clock, abs=60)


def test_without_slurms_word_the_wall_time_counts(tmp_path: Path) -> None:
    sandbox = Sandbox(tmp_path)
    outcome = sandbox.execute(sandbox.plan(time=1234))
    assert 1200 <= int(outcome.environment["LAUNCHER_TIME_LEFT"]) <= 1234  # less what the set-up lines took
