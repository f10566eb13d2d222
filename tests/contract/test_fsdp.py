"""fsdp_lm on every scheduler: a sharded training is stopped and resumed with another number of ranks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.launch import Launcher
from tests.torch_features import needs_fsdp_on_cpus

pytestmark = needs_fsdp_on_cpus

SMALL = (
    "workload=fsdp_lm", "workload.layers=2", "workload.heads=2", "workload.width=18", "workload.context=16",
    "workload.batch_size=7", "workload.log_every=2", "workload.eval_windows=8", "workload.sample=20",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["local"], indirect=True)
def test_a_language_model_is_trained_on_my_own_text(launcher: Launcher, tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "one.txt").write_text("all work and no play makes jack a dull boy\n" * 50)
    result = launcher.run(
        *SMALL, "nodes=2", "procs_per_node=2", f"workload.text={tmp_path / 'texts'}", "workload.steps=30",
        "workload.lr=0.02",
    )  # fmt: skip
    assert result.code == 0, result.output
    assert float(str(result.metrics["val_loss"])) < 3.5  # log(256) = 5.5, of a model that knows nothing
    assert result.metrics["text"] == str(tmp_path / "texts")
    assert "1,935 bytes for training, 215 for validation" in result.output
    assert "the model writes:" in result.output


@pytest.mark.ci
@pytest.mark.parametrize("launcher", ["local"], indirect=True)  # who starts the ranks is another suite's
def test_a_stopped_training_resumes_with_another_number_of_ranks(launcher: Launcher, ended: None) -> None:
    done = launcher.submit(
        *SMALL, "run_id=lm", "nodes=2", "procs_per_node=1", "workload.steps=100000", "wait=false", "resume.how=never"
    )
    assert done.returncode == 0, done.stderr
    first = stopped_after(launcher, step=4)
    resumed = launcher("resume", "lm", "nodes=1", "procs_per_node=3", "wait=false")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    second = stopped_after(launcher, step=first["step"] + 1)
    assert (first["world_size"], second["world_size"]) == (2, 3)
    begin = f"continues after step {first['step']} (step-{first['step']:09d}, saved by 2 ranks)"
    assert begin in launcher.printed()
    assert second["identity"] == first["identity"]
    read_without_ranks(launcher)


def stopped_after(launcher: Launcher, step: int) -> dict[str, Any]:
    """Stops the run `lm` after a number of steps; returns the manifest of its last checkpoint."""
    run_dir = launcher.runs_dir / "lm"
    launcher.until(lambda: (launcher.status()["step"] or 0) >= step, f"step {step}", timeout=120)
    (run_dir / "stop").touch()
    launcher.until(lambda: launcher.status()["state"] == "stopped", "the stop", timeout=120)
    newest = max((run_dir / "checkpoints").glob("step-*"))
    manifest: dict[str, Any] = json.loads((newest / "manifest.json").read_text())
    return manifest


def read_without_ranks(launcher: Launcher) -> None:
    """Checks that the checkpoint is sound, and has a state that can be read without ranks."""
    done = launcher("checkpoint", "extract", "lm", "-o", str(launcher.runs_dir.parent / "whole.pt"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert torch.load(launcher.runs_dir.parent / "whole.pt")["model"]


@pytest.fixture
def ended(launcher: Launcher) -> Iterator[None]:
    """Ends the run after the test."""
    yield
    launcher("cancel", "lm")


@pytest.mark.parametrize("launcher", ["local"], indirect=True)  # refused before any backend is asked
@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["workload.width=20", "workload.heads=3"], "workload.width=20 cannot be divided into workload.heads=3"),
        (["workload.text=/no/such/text"], "workload.text=/no/such/text: /no/such/text is not there"),
        (["workload.context=600000"], "too few for workload.context=600000"),
        (["procs_per_node=8"], "workload.batch_size=7 leaves some of the 8 ranks without a sample"),
        (["train.invariant=true"], "train.invariant=true is not offered by fsdp_lm"),
        (["workload.steps=0"], "workload.steps=0: it must be 1 or more"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_submission(
    launcher: Launcher, overrides: list[str], told: str
) -> None:
    done = launcher(*SMALL, *overrides)
    assert done.returncode == 2
    assert told in done.stderr
    assert not launcher.runs_dir.exists()
