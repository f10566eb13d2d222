"""Lightning and Hugging Face's Trainer with our callbacks, FSDP2 and accelerate with Resumable: stopped and killed,
they go on as if nothing had happened."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from launcher.runs.directory import Run
from tests.launch import Launcher
from tests.torch_features import needs_fsdp_on_cpus

SAVED = {
    "lightning": "launcher-step-{:09d}.ckpt", "transformers": "checkpoint-{}", "fsdp": "step-{:09d}",
    "accelerate": "step-{:09d}",
}  # fmt: skip
EVALUATION = {"lightning": "val_loss", "transformers": "eval_loss"}


@pytest.fixture
def launcher(tmp_path: Path) -> Launcher:
    return Launcher(tmp_path / "runs", {}, ["cluster=local"])


@pytest.mark.ci
@pytest.mark.backend("local", "this machine")
@pytest.mark.parametrize(
    "framework",
    [
        "lightning",
        pytest.param("transformers", marks=pytest.mark.slow),
        pytest.param("fsdp", marks=[needs_fsdp_on_cpus, pytest.mark.slow]),
        pytest.param("accelerate", marks=pytest.mark.slow),
    ],
)
def test_a_training_that_is_killed_and_stopped_ends_with_the_weights_of_an_undisturbed_one(
    framework: str, launcher: Launcher, tmp_path: Path
) -> None:
    script = f"workload.script=tests/examples/with_{framework}.py"
    keys = ["workload=program", script, "procs_per_node=2", "run_id=elastic", "workload.args=[4,0.3]"]
    keys += ["checkpoint.memory=1"] if framework in EVALUATION else []
    (tmp_path / "tmp").mkdir()
    done = launcher.submit(*keys, "wait=false", TMPDIR=str(tmp_path / "tmp"))
    assert done.returncode == 0, done.stderr
    run = launcher.last()
    launcher.until(lambda: (launcher.status()["step"] or 0) >= 3, "its first steps", timeout=180)
    (run.path / "save").touch()
    saved = SAVED[framework].partition("{")[0]
    launcher.until(lambda: any((run.path / "checkpoints").glob(f"{saved}*")), "a save", timeout=60)
    saved_at = launcher.status()
    assert saved_at["state"] == "running"  # it has saved and goes on
    launcher.until(lambda: launcher.status()["step"] > saved_at["step"] + 1, "steps after the save", timeout=60)
    os.kill(process_of_rank(run, 1), signal.SIGKILL)
    launcher.until(lambda: goes_on(run), "steps of the ranks' second round", timeout=180)
    if framework in EVALUATION:
        (restored,) = [event for event in run.attempts()[0].events() if event["event"] == "restored"]
        assert restored["memory"] and restored["redone"] <= 1
        files = lambda: list((tmp_path / "tmp").glob("launcher-memory-*"))  # noqa: E731  which the trainer has loaded
        launcher.until(lambda: not files(), "the end of the files of the copies", timeout=30)
    (run.path / "stop").touch()
    assert launcher("wait", "elastic", "-q").returncode == 75
    (stop,) = [event for event in run.attempts()[0].events() if event["event"] == "stop"]
    assert stop["reason"] == "stop_file" and 3 < stop["step"] < 80
    assert (run.path / "checkpoints" / SAVED[framework].format(stop["step"])).exists()
    resumed = launcher("resume", "elastic", "workload.args=[4,0]", "wait=true")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    result = run.result() or {}
    assert result["weights"] == result["undisturbed"]
    assert launcher.status()["step"] == 80
    assert_steps_continue(run, stop["step"])
    if framework in EVALUATION:
        assert result["steps"] == 80 and isinstance(result[EVALUATION[framework]], float)
        evaluated = [
            event["step"] for each in run.attempts() for event in each.events() if event["event"] == "evaluated"
        ]
        assert evaluated == [80]


def process_of_rank(run: Run, rank: int) -> int:
    """The process of a rank of a run on this machine."""
    wanted = {f"RANK={rank}".encode(), b"LAUNCHER_RUN_DIR=" + os.fsencode(run.path)}
    (found,) = (
        int(folder.name)
        for folder in Path("/proc").glob("[0-9]*")
        if b"tests/examples/with_" in read(folder / "cmdline") and wanted <= set(read(folder / "environ").split(b"\0"))
    )
    return found


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # the process has ended
        return b""


def goes_on(run: Run) -> bool:
    """Whether the ranks of the second round have reported a step."""
    met = [event["time"] for event in run.attempts()[0].events() if event["event"] == "met"]
    last = [event["time"] for event in run.attempts()[0].events() if event["event"] == "progress"][-1]
    return len(met) == 2 and last > met[1]


def assert_steps_continue(run: Run, stopped: int) -> None:
    """The second attempt begins after the first one's last step; values where the framework logs some."""
    first, second = [[event for event in each.events() if event["event"] == "progress"] for each in run.attempts()]
    assert first[-1]["step"] <= stopped < second[0]["step"] <= stopped + 5  # of many, two a second are kept
    assert {event["total"] for event in second} <= {80, 0} and second[-1]["step"] == second[-1]["total"] == 80
    logged = {event["step"] for event in first + second if "loss" in event.get("values", {})}
    assert logged == {*range(5, 81, 5)}
