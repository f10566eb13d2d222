"""Post-mortems of runs on this machine and on PBS; those of Slurm are in tests/cluster/test_post_mortem.py."""

from __future__ import annotations

import json
import subprocess
import time
from typing import Any

import pytest

from launcher.runs.directory import Run
from launcher.runs.history import journal_events
from tests.contract import schedulers
from tests.launch import Launcher

ENDS, FAULTS = "tests.chaos.ends", "tests.chaos.faults"


def submit(launcher: Launcher, run_id: str, entry: str, *overrides: str) -> Run:
    done = launcher.submit(
        "workload=collective", f"workload.entry={entry}", f"run_id={run_id}", "wait=false", "resume.how=never",
        "launch.grace=2", *overrides,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return Run(launcher.runs_dir / run_id)


def examined(launcher: Launcher, run_id: str) -> dict[str, Any]:
    """Returns the findings of `post-mortem` when the run is over."""
    told: dict[str, Any] = {}

    def over() -> bool:
        done = launcher("post-mortem", run_id, "--json")
        assert done.stdout, done.stderr
        told.update(json.loads(done.stdout))
        if done.returncode:
            time.sleep(1)  # to ask takes work as well, and the runs need it
        return done.returncode == 0

    launcher.until(over, f"{run_id} is over", 120)
    return dict(told["verdict"])


def asleep(run: Run) -> bool:
    return any("asleep" in path.read_text() for path in run.outputs())


@pytest.mark.parametrize("launcher", ["local"], indirect=True)
def test_ends_on_this_machine(launcher: Launcher) -> None:
    submit(launcher, "raises", f"{ENDS}:raises", "nodes=2", "procs_per_node=2")
    submit(launcher, "killed", f"{FAULTS}:is_killed", "procs_per_node=2")
    gone = submit(launcher, "gone", f"{ENDS}:sleeps")
    told = examined(launcher, "raises")
    assert (told["kind"], told["rank"], told["followed"]) == ("exception", 3, [0, 1, 2])
    assert told["cause"].endswith("ValueError: the loss is a banana")
    assert "raise ValueError" in told["traceback"]
    assert told["log"] == ["rank 3 is about to compute"]
    told = examined(launcher, "killed")
    assert (told["kind"], told["sure"], told["rank"]) == ("killed", False, 1)
    assert told["memory"]["largest"] > 10 << 20
    launcher.until(lambda: asleep(gone), "it is asleep")
    assert launcher("post-mortem", "gone").returncode == 1
    launcher("cancel", "gone")
    assert examined(launcher, "gone")["kind"] == "cancelled"


@schedulers.on(ci=("pbs",), never=("local", "slurm", "third", "allocation"))
def test_ends_where_qdel_ends_a_job(launcher: Launcher) -> None:
    submit(launcher, "late", f"{ENDS}:ignores_every_stop", "time=8s", "resume.lead=1s")
    deleted = submit(launcher, "deleted", f"{ENDS}:sleeps")
    submit(launcher, "raises", f"{ENDS}:raises", "nodes=2")
    submit(launcher, "killed", f"{FAULTS}:is_killed", "procs_per_node=2")
    launcher.until(lambda: asleep(deleted), "it is asleep")
    job = next(event["job"] for event in journal_events(deleted) if event["event"] == "submitted")
    subprocess.run(["qdel", job], env=launcher.environ, check=True)
    assert examined(launcher, "raises")["kind"] == "exception"
    assert examined(launcher, "killed")["kind"] == "killed"
    assert examined(launcher, "deleted")["kind"] in ("cancelled", "stopped")  # without history nobody knows who it was
    told = examined(launcher, "late")
    assert told["kind"] == "wall-time", told
    assert told["todo"][0]["command"] == "python -m launcher resume late time=00:00:16"
