"""Runs that wait for others, on PBS, where a run goes on in a new job each time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.launch import Launcher

STAGES = "workload.entry=tests.chaos.stages"


def stage(launcher: Launcher, name: str, what: str, *overrides: str, **environment: str) -> None:
    done = launcher.submit("workload=collective", f"{STAGES}:{what}", f"run_id={name}", *overrides, **environment)
    assert done.returncode == 0, done.stderr


def begun(launcher: Launcher, name: str) -> float:
    return float(json.loads((launcher.runs_dir / name / "result.json").read_text())["begun"])


@pytest.mark.ci
def test_who_waits_for_a_run_that_is_cancelled_before_it_starts_does_not_wait_for_ever(launcher: Launcher) -> None:
    """PBS leaves its job held. A run that waits for a run that waits is told of the new job."""
    stage(launcher, "first", "works", "cluster.directives.h=true")
    stage(launcher, "whatever", "works", "after=any:first")
    stage(launcher, "wants-success", "works", "after=first")
    stage(launcher, "behind", "works", "after=whatever")
    sweep = ("-m", "workload=collective", f"{STAGES}:works", "sweep.after=any:first")
    launcher.submit(*sweep, "seed=1,2", "sweep.id=points")
    launcher.submit(*sweep, "seed=1,2,3", "sweep.id=turns", "sweep.parallelism=1")
    done = launcher("cancel", "first")
    assert (done.returncode, done.stderr) == (0, "")

    def states() -> dict[str, str]:
        return {row["run"]: row["state"] for row in json.loads(launcher("status", "--json").stdout)}

    expected = {
        "first": "cancelled", "whatever": "done", "wants-success": "failed", "behind": "done", "points": "2/2 done",
        "turns": "3/3 done",
    }  # fmt: skip
    launcher.until(lambda: states() == expected, "the end of all", timeout=90)
    assert begun(launcher, "behind") > begun(launcher, "whatever")
    assert "first is cancelled, and after=ok:first was asked for" in launcher("status", "wants-success").stdout


@pytest.mark.ci
@pytest.mark.parametrize("more", [(), ("sweep.pack=1",)], ids=["jobs", "pilots"])
def test_who_waits_for_a_sweep_that_is_cancelled_is_submitted_again_once_and_not_if_it_was_cancelled(
    launcher: Launcher, more: tuple[str, ...]
) -> None:
    held = ("cluster.directives.h=true", "sweep.id=points", *more)
    launcher.submit("-m", "workload=collective", f"{STAGES}:works", "seed=1,2,3", *held)
    for name in ("behind", "unwanted"):
        stage(launcher, name, "works", "after=any:points")
    assert launcher("cancel", "unwanted").returncode == 0
    done = launcher("cancel", "points")
    assert (done.returncode, done.stderr) == (0, "")

    def jobs(name: str) -> int:
        return (launcher.runs_dir / name / "journal.jsonl").read_text().count('"submitted"')

    assert (jobs("behind"), jobs("unwanted")) == (2, 1)

    def state(name: str) -> str:
        return str(json.loads(launcher("status", name, "--json").stdout)[0]["state"])

    launcher.until(lambda: state("behind") == "done", "the end of it", timeout=60)
    assert state("unwanted") == "cancelled"


@pytest.mark.ci
def test_who_waits_for_a_chain_that_is_cancelled_while_it_runs_begins(launcher: Launcher, tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    stage(launcher, "first", "goes_on", "resume.how=chain", "resume.max_attempts=3", HOLD=str(hold))
    stage(launcher, "behind", "works", "after=any:first")

    def state(name: str) -> str:
        return str(json.loads(launcher("status", name, "--json").stdout)[0]["state"])

    launcher.until(lambda: state("first") == "running", "its start", timeout=60)
    done = launcher("cancel", "first")
    assert (done.returncode, done.stderr) == (0, "")
    launcher.until(lambda: state("behind") == "done", "the end of it", timeout=60)


def test_followers_begin_when_the_whole_run_is_over(launcher: Launcher, tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    stage(launcher, "first", "goes_on", HOLD=str(hold))
    stage(launcher, "broken", "breaks", HOLD=str(hold))
    stage(launcher, "second", "works", "after=[first,any:broken]")
    launcher.submit("-m", "workload=collective", f"{STAGES}:works", "seed=1,2", "sweep.after=first", "sweep.id=points")
    stage(launcher, "third", "works", "after=points")
    stage(launcher, "wants-success", "works", "after=broken")
    hold.unlink()

    def over() -> bool:
        rows = {row["run"]: row["state"] for row in json.loads(launcher("status", "--json").stdout)}
        return rows.pop("points") == "2/2 done" and set(rows.values()) == {"done", "failed"}

    launcher.until(over, "the end of all", timeout=150)
    for name, other in (
        ("second", "first"), ("points/0", "first"), ("points/1", "first"), ("third", "points/0"), ("third", "points/1"),
    ):  # fmt: skip
        assert begun(launcher, name) > begun(launcher, other), name
        journal = launcher.runs_dir / name / "journal.jsonl"
        jobs = journal.read_text().count('"submitted"') if journal.exists() else 0  # an array's are in the sweep's
        assert jobs <= 1, "it was told of the new job, and did not begin in vain"
    assert not (launcher.runs_dir / "wants-success/result.json").exists()
    assert "it was not started: broken is failed" in launcher("status", "wants-success").stdout
    assert "would never start" in launcher.submit("workload=collective", "after=broken").stderr
