"""Runs that wait for others, on a real Slurm: what its dependencies do when the other run goes on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.launch import Launcher

STAGES = "workload.entry=tests.chaos.stages"


@pytest.fixture
def launcher(slurm: Any, tmp_path: Path) -> Iterator[Launcher]:
    yield Launcher(tmp_path / "runs", {"SLURM_CONF": slurm.env()["SLURM_CONF"]}, ["cluster=slurm"])
    slurm.reset()


def stage(launcher: Launcher, name: str, what: str, *overrides: str, **environment: str) -> str:
    """Submits a workload of tests/chaos/stages.py as a run; returns the output of the command."""
    done = launcher.submit("workload=collective", f"{STAGES}:{what}", f"run_id={name}", *overrides, **environment)
    assert done.returncode == 0 or "after" in done.stderr, done.stderr
    return done.stdout + done.stderr


def rows(launcher: Launcher) -> dict[str, dict[str, Any]]:
    return {row["run"]: row for row in json.loads(launcher("status", "--json").stdout)}


def begun(launcher: Launcher, name: str) -> float:
    return float(json.loads((launcher.runs_dir / name / "result.json").read_text())["begun"])


def test_followers_begin_when_the_whole_run_is_over_and_only_if_it_came_out_as_they_want(
    launcher: Launcher, slurm: Any, tmp_path: Path
) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    stage(launcher, "requeued", "goes_on", HOLD=str(hold))
    stage(launcher, "untold", "goes_on", "resume.how=resubmit", HOLD=str(hold))
    stage(launcher, "behind-untold", "works", "after=untold")
    stage(launcher, "broken", "breaks", HOLD=str(hold))
    stage(launcher, "behind-all", "works", "after=[requeued,any:broken]")
    stage(launcher, "wants-success", "works", "after=broken")
    launcher.submit(
        "-m", "workload=collective", f"{STAGES}:works", "seed=1,2", "sweep.after=requeued", "sweep.id=points"
    )
    assert "on slurm (submitted before)" in stage(launcher, "wants-success", "works", "after=ok:broken")
    assert "with other values of after" in stage(launcher, "wants-success", "works", "after=requeued")
    shutil.rmtree(launcher.runs_dir / "untold/followers")  # so nobody tells it of the new job

    def waiting() -> bool:  # of a job that has just been submitted Slurm says `None`
        return slurm.run("squeue", "--noheader", "--format=%r").split().count("Dependency") >= 4

    launcher.until(waiting, "four jobs that wait for others")
    hold.unlink()

    def over() -> bool:
        now = rows(launcher)
        return now.pop("points")["state"] == "2/2 done" and {row["state"] for row in now.values()} == {"done", "failed"}

    launcher.until(over, "the end of all", timeout=150)
    now = rows(launcher)
    failed = sorted(name for name, row in now.items() if row["state"] == "failed")
    assert failed == ["broken", "wants-success"]
    assert "it was not started: broken is failed" in launcher("status", "wants-success").stdout
    for name, other in (
        ("behind-all", "requeued"), ("points/0", "requeued"), ("points/1", "requeued"),
        ("behind-untold", "untold"),
    ):  # fmt: skip
        assert begun(launcher, name) > begun(launcher, other), name
        assert len(list((launcher.runs_dir / name / "attempts").iterdir())) == 1
    journal = (launcher.runs_dir / "behind-untold/journal.jsonl").read_text()
    assert journal.count('"submitted"') == 2, "it began, looked, and went back to wait"
    assert "would never start" in stage(launcher, "late", "works", "after=broken")
