"""A training that is stopped and resumed ends with the same weights as an uninterrupted one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from launcher.runs.directory import Run
from tests.launch import Launcher

TRAINING = ("workload=ddp_mnist", "workload.dataset=digits", "nodes=1", "cpus_per_proc=1", "workload.log_every=5")

pytestmark = pytest.mark.parametrize("launcher", ["local"], indirect=True)  # who starts the ranks is another suite's


def undisturbed(launcher: Launcher, ranks: int, *overrides: str) -> dict[str, Any]:
    done = launcher.run(*TRAINING, f"procs_per_node={ranks}", *overrides, f"run_id=whole-{ranks}")
    assert done.code == 0, done.output
    return of_the_run(done.metrics)


def of_the_run(metrics: dict[str, Any]) -> dict[str, Any]:
    return {name: metrics[name] for name in ("weights_sha256", "loss", "test_loss", "accuracy", "steps")}


def stop(launcher: Launcher, run: Run, after: int) -> int:
    """Stops the run by its stop file after a number of steps; returns the step at which it stopped."""
    launcher.until(lambda: (launcher.status()["step"] or 0) >= after, f"step {after}", timeout=120)
    (run.path / "stop").touch()
    launcher.until(lambda: launcher.status()["state"] == "stopped", "the stop", timeout=120)
    events = [event for event in run.attempts()[-1].events() if event["event"] == "stop"]
    assert [event["reason"] for event in events] == ["stop_file"]
    return int(events[0]["step"])


def begin(launcher: Launcher, *overrides: str) -> Run:
    done = launcher.submit(*TRAINING, "run_id=elastic", "wait=false", *overrides)
    assert done.returncode == 0, done.stderr
    return launcher.last()


def resume(launcher: Launcher, *overrides: str) -> None:
    done = launcher("resume", "elastic", *overrides)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_a_stopped_and_resumed_training_equals_an_uninterrupted_one(launcher: Launcher) -> None:
    long = "workload.epochs=300"
    whole = undisturbed(launcher, 2, long)
    run = begin(launcher, "procs_per_node=2", long)
    step = stop(launcher, run, 200)
    assert 200 <= step < 3300
    assert Path(run.path, "checkpoints", f"step-{step:09d}").is_dir()
    resume(launcher, "wait=true")
    assert of_the_run(dict(run.result() or {})) == whole
    printed = launcher.printed()
    assert f"stopped after step {step}: asked to stop by its file `stop`" in printed
    assert f"continues after step {step} (step-{step:09d}, saved by 2 ranks)" in printed
    progress = [event["step"] for event in run.attempts()[-1].events() if event["event"] == "progress"]
    assert progress == sorted(progress) and progress[0] > step and progress[-1] == 3300


@pytest.mark.slow
def test_an_invariant_training_resumed_at_other_sizes_has_the_same_weights(launcher: Launcher) -> None:
    keys = ("workload.epochs=100", "train.invariant=true")
    whole = undisturbed(launcher, 1, *keys)
    run = begin(launcher, "procs_per_node=2", "track=[tensorboard,mlflow]", *keys)
    first = stop(launcher, run, 50)
    resume(launcher, "procs_per_node=3", "wait=false")
    second = stop(launcher, run, first + 20)
    assert first < second < 1100
    resume(launcher, "procs_per_node=1", "resume.strict=true", "wait=true")
    assert of_the_run(dict(run.result() or {})) == whole
    assert "world size 3 -> 1: the weights stay bitwise equal" in launcher.printed()
    assert_tracked_once(run)


def assert_tracked_once(run: Run) -> None:
    """Checks that one TensorBoard log and one run of MLflow have the steps of all attempts, each step once."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = EventAccumulator(str(run.path / "tensorboard"))
    log.Reload()
    shown = [event.step for event in log.Scalars("train/loss")]
    events = [event for attempt in run.attempts() for event in attempt.events() if event["event"] == "progress"]
    assert shown == [event["step"] for event in events] == sorted({*shown}) and len(run.attempts()) == 3
    _, _, number = (run.path / "mlflow_run").read_text().strip().rpartition(" ")
    (metric,) = run.path.parent.glob(f"mlflow/*/{number}/metrics/train/loss")
    assert [int(line.split()[2]) for line in metric.read_text().splitlines()] == shown


@pytest.mark.slow
def test_a_resumed_training_with_another_learning_rate_is_refused(launcher: Launcher) -> None:
    run = begin(launcher, "procs_per_node=1", "workload.epochs=3000")
    stop(launcher, run, 20)
    done = launcher("resume", "elastic", "workload.lr=0.3", "wait=true")
    assert done.returncode != 0
    assert "workload.lr" in launcher.printed() + done.stdout + done.stderr
    assert "0.3" in launcher.printed() + done.stdout + done.stderr
