"""`why` and `doctor` on a real Slurm: one run that waits for one reason after the other."""

from __future__ import annotations

import getpass
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.schedulers.slurm.client import Slurm
from launcher.schedulers.slurm.limits import survey
from tests import warm_python
from tests.launch import ROOT, Launcher, until
from tests.terminal import Terminal

RUN = ("workload=collective", "workload.entry=tests.chaos.faults:fine", "nodes=4", "cpus_per_proc=4", "time=20m")


@pytest.fixture
def launcher(slurm: Any, tmp_path: Path) -> Iterator[Launcher]:
    yield Launcher(tmp_path / "runs", {"SLURM_CONF": slurm.env()["SLURM_CONF"]}, ["cluster=slurm"])
    slurm.reset()


def why(launcher: Launcher) -> dict[str, Any]:
    done = launcher("why", "latest", "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_run_that_waits_says_why_and_what_would_start_sooner(launcher: Launcher, slurm: Any) -> None:
    # Three nodes are in use for an hour, the fourth is idle.
    other = slurm.run(
        "sbatch", "--parsable", "--nodes=3", "--exclusive", "--time=60", "--output=/dev/null", "--wrap=sleep 600"
    )
    assert launcher.submit(*RUN).returncode == 0
    job = launcher.status()["job"]

    def reason() -> str:
        return str(slurm.run("squeue", "--noheader", f"--jobs={job}", "--format=%r")).strip()

    until(lambda: reason() == "Resources", "Slurm has looked at it", details=reason)
    found = why(launcher)
    assert (found["code"], found["state"], found["job"]) == ("Resources", "queued", job)
    assert "in use" in found["why"]
    assert found["tried"][0]["overrides"] == []
    assert ["nodes=1"] in [each["overrides"] for each in found["options"]]
    assert found["commands"][1].endswith(f"resume {launcher.last().id} {' '.join(found['options'][0]['overrides'])}")

    shown = launcher("why", "latest").stdout
    assert "reason  Resources" in shown
    assert max(map(len, shown.splitlines())) < 80 + len(str(launcher.runs_dir))

    slurm.run("scontrol", "uhold", job)
    until(lambda: reason() == "JobHeldUser", "it is held", details=reason)
    assert why(launcher)["do"] == f"`scontrol release {job}` lets it go on"

    # Its nodes are drained, and its partition's limit is lowered.
    slurm.run("scontrol", "update", "nodename=node4", "state=drain", "reason=bad GPU 2")  # else the job might start
    try:
        slurm.run("scontrol", "release", job)
        slurm.run("scancel", other.strip())
        until(lambda: "DRAINED" in reason() or "NotAvail" in reason(), "Slurm tells of the node", details=reason)
        found = why(launcher)
        assert any("node4" in text and "drain" in text and "bad GPU 2" in text for text in found["nodes"])
        assert found["options"]
        slurm.run("scontrol", "update", "partitionname=gpu", "MaxTime=10")
        until(lambda: reason() == "PartitionTimeLimit", "Slurm tells of the limit", details=reason)
        found = why(launcher)
        assert "partition gpu: MaxTime=00:10:00, and it asks for 00:20:00" in found["limits"]
        assert found["tried"][0]["starts"] is None
    finally:
        slurm.run("scontrol", "update", "partitionname=gpu", "MaxTime=120")
        slurm.run("scontrol", "update", "nodename=node4", "state=resume")

    # What was said of smaller runs is true: it starts at once.
    launcher("cancel", "latest")
    assert why(launcher)["state"] == "cancelled"
    assert launcher("resume", "latest", "nodes=1").returncode == 0
    launcher.until(lambda: why(launcher)["state"] in ("running", "done"), "it starts")


def test_at_a_terminal_a_submission_says_when_the_job_would_start(launcher: Launcher, slurm: Any) -> None:
    other = slurm.run(
        "sbatch", "--parsable", "--nodes=3", "--exclusive", "--time=60", "--output=/dev/null", "--wrap=sleep 600"
    )
    until(lambda: "RUNNING" in slurm.run("squeue", "--noheader", "--format=%T"), "the other job runs")
    terminal = Terminal([warm_python.python(), "-m", "launcher", *RUN, *launcher.overrides], launcher.environ, ROOT)
    try:
        terminal.expect("sooner     now with nodes=1: ")
        assert terminal.end() == 0
    finally:
        terminal.hang_up()
        slurm.run("scancel", other.strip())


def test_doctor_tells_partitions_and_which_the_profile_uses(launcher: Launcher) -> None:
    done = launcher("doctor", "--cluster", "slurm", "--json")
    found = json.loads(done.stdout)["findings"]
    says = [row["says"] for row in found]
    assert any("Slurm 2" in text and "answered in" in text for text in says), says
    assert any(text.startswith("gpu (default, this profile's): nodes: 4 of 4 CPUs") for text in says), says
    assert [row for row in found if row["level"] == "problem"] == []
    assert done.returncode == 0


def test_the_default_account_is_told(slurm_with_accounting: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm, me = slurm_with_accounting, getpass.getuser()
    monkeypatch.setenv("SLURM_CONF", slurm.env()["SLURM_CONF"])
    for words in (["account", "abacus"], ["user", me, "account=abacus"]):
        slurm.run("sacctmgr", "--immediate", "add", *words)
    try:
        default = "root" if me == "root" else "abacus"
        site = survey(Slurm())
        assert site.accounts[0] == site.default_account == default
    finally:
        slurm.run("sacctmgr", "--immediate", "delete", "user", me, "account=abacus")
        slurm.run("sacctmgr", "--immediate", "delete", "account", "abacus")


def test_nothing_is_offered_that_the_partition_does_not_take(launcher: Launcher, slurm: Any) -> None:
    """An hour in a partition of ten minutes: Slurm queues it, and its trials say when it would start."""
    words = ("nodes=2", "time=1h", "cluster.partition=debug", "cluster.check=false")
    assert launcher.submit("workload=collective", *words).returncode == 0
    found: dict[str, Any] = {}

    def looked_at() -> bool:
        found.update(why(launcher))
        return bool(found["code"])

    until(looked_at, "Slurm has looked at it")  # 22.05 does when it takes the job, 26.05 a moment later
    assert found["code"].startswith("Partition"), found  # PartitionConfig at first
    offered = [" ".join(each["overrides"]) for each in found["tried"][1:]]
    assert offered[0] == "time=00:10:00"
    assert all("time=00:10:00" in each or "cluster.partition=" in each for each in offered), offered
