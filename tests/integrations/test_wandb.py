"""W&B's own client writes what rank 0 reports, all attempts as one run, and a server that is not there harms nobody."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import wandb

from launcher.worker.tracking import WANDB_RUN, About, TrackerEntry, WandB
from tests.integrations.wandb_files import folders, history
from tests.launch import ROOT

KEY = "1" * 40


def about(folder: Path, attempt: int = 0, mode: str = "offline") -> About:
    return About(
        "sweep/1", folder, "job", "", folder, project="job", mode=mode, group="sweep",
        config={"workload.lr": "0.1"}, tags={"attempt": str(attempt)},
    )  # fmt: skip


def test_all_attempts_are_one_run_and_no_step_is_there_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    for attempt, steps, done in ((0, range(1, 6), False), (1, range(3, 7), True)):
        tracker = WandB(about(tmp_path, attempt))
        for step in steps:
            tracker.log([TrackerEntry(step, 1000.0 + step, {"train/loss": step + attempt / 10})])
        tracker.log([TrackerEntry(5, 1010.0, {"eval/accuracy": 0.9})])  # the first attempt's counts, as with MLflow
        tracker.close(done)
    wandb.teardown()  # as at the end of a process: W&B's own writes what is left
    first, second = (history(folder) for folder in folders(tmp_path))
    assert first[0] == second[0] == json.loads((tmp_path / WANDB_RUN).read_text())["id"]
    assert first[0].startswith("sweep-1-")
    rows = first[1] + second[1]
    assert [row["_step"] for row in rows] == [*range(7)]
    loss = [(row["step"], row["train/loss"]) for row in rows if "train/loss" in row]
    assert loss == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0), (5, 5.0), (6, 6.1)]
    assert [(row["step"], row["eval/accuracy"]) for row in rows if "eval/accuracy" in row] == [(5, 0.9)]
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in files if KEY.encode() in path.read_bytes()]


WORK = """
import sys, time
from pathlib import Path
from launcher.worker.tracking import About, TrackerQueues, WandB

folder = Path(sys.argv[1])
about = About("run", folder, "job", "", folder, project="p", mode=sys.argv[2])
tracking = TrackerQueues({"wandb": lambda: WandB(about)})
tracking.log("train", {"loss": 1.0}, 1)
while sys.argv[2] == "offline" and not list(folder.glob("wandb/*/*.wandb")):
    time.sleep(0.01)
tracking.log("train", {"loss": 2.0}, 2)
print("the work is over")
"""


def work(folder: Path, mode: str) -> subprocess.CompletedProcess[str]:
    """A process that tracks two steps and comes to its end."""
    own = {"PYTHONPATH": str(ROOT), "WANDB_API_KEY": KEY, "WANDB_BASE_URL": "http://127.0.0.1:9"}
    return subprocess.run(
        [sys.executable, "-c", WORK, str(folder), mode], env={**os.environ, **own}, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip


def test_what_waits_at_the_end_of_a_process_is_written_before_wandb_ends(tmp_path: Path) -> None:
    done = work(tmp_path, "offline")
    assert (done.returncode, "launcher:" in done.stderr) == (0, False), done.stderr
    [(_, rows)] = [history(folder) for folder in folders(tmp_path)]
    assert [row["train/loss"] for row in rows] == [1.0, 2.0]


def test_a_server_that_is_not_there_ends_no_work(tmp_path: Path) -> None:
    done = work(tmp_path, "online")
    assert (done.returncode, done.stdout) == (0, "the work is over\n"), done.stderr
    assert KEY not in done.stderr
    assert "launcher: wandb failed, the run continues" in done.stderr or "did not reach wandb" in done.stderr
