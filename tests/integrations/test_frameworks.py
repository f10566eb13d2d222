"""Lightning and Hugging Face's Trainer with our callbacks: stopped, they go on as if nothing had happened."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.runs.directory import Run
from tests.launch import Launcher

SAVED = {"lightning": "launcher-step-{:09d}.ckpt", "transformers": "checkpoint-{}"}
EVALUATION = {"lightning": "val_loss", "transformers": "eval_loss"}


@pytest.fixture
def launcher(tmp_path: Path) -> Launcher:
    return Launcher(tmp_path / "runs", {}, ["cluster=local"])


@pytest.mark.backend("local", "this machine")
@pytest.mark.parametrize("framework", ["lightning", "transformers"])
def test_a_training_that_is_stopped_ends_with_the_weights_of_an_undisturbed_one(
    framework: str, launcher: Launcher
) -> None:
    script = f"workload.script=tests/examples/with_{framework}.py"
    keys = ("workload=program", script, "procs_per_node=2", "run_id=elastic", "workload.args=[4,0.3]")
    done = launcher.submit(*keys, "wait=false")
    assert done.returncode == 0, done.stderr
    run = launcher.last()
    launcher.until(lambda: (launcher.status()["step"] or 0) >= 3, "its first steps", timeout=180)
    (run.path / "save").touch()
    launcher.until(lambda: any((run.path / "checkpoints").iterdir()), "a save", timeout=60)
    assert launcher.status()["state"] == "running"  # it has saved and goes on
    (run.path / "stop").touch()
    assert launcher("wait", "elastic", "-q").returncode == 75
    (stop,) = [event for event in run.attempts()[0].events() if event["event"] == "stop"]
    assert stop["reason"] == "stop_file" and 3 < stop["step"] < 80
    assert (run.path / "checkpoints" / SAVED[framework].format(stop["step"])).exists()
    resumed = launcher("resume", "elastic", "workload.args=[4,0]", "wait=true")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    result = run.result() or {}
    assert result["steps"] == 80 and result["weights"] == result["undisturbed"]
    assert isinstance(result[EVALUATION[framework]], float)
    assert launcher.status()["step"] == 80
    assert_steps_once(run, stop["step"])


def assert_steps_once(run: Run, stopped: int) -> None:
    """Each step in one attempt only, with the number of all of them; values where the framework logs some."""
    first, second = [[event for event in each.events() if event["event"] == "progress"] for each in run.attempts()]
    assert first[-1]["step"] <= stopped < second[0]["step"] == stopped + 1  # of many, two a second are kept
    assert {event["total"] for event in second} <= {80, 0} and second[-1]["step"] == second[-1]["total"] == 80
    logged = [event["step"] for event in first + second if "loss" in event.get("values", {})]
    assert logged == [*range(5, 81, 5)]
    evaluated = [event["step"] for each in run.attempts() for event in each.events() if event["event"] == "evaluated"]
    assert evaluated == [80]
