"""Checkpoints with files of torch.distributed.checkpoint: its own, and ours read by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.distributed.checkpoint as dcp

from launcher import Env
from launcher.checkpoint import Checkpointer
from launcher.checkpoint import format as checkpoints
from launcher.checkpoint import loading as inspection
from launcher.checkpoint.format import CheckpointError, Misfit

# torch 2.4 has no `no_dist`, and newer ones warn without it.
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

ALONE = Env(0, 0, 1, 1, 0, 1, (), "here", "gloo", torch.device("cpu"), "test", (0,))


def state(value: float) -> dict[str, Any]:
    return {"model": {"weight": torch.full((4, 8), value), "bias": torch.full((3,), value)}, "step": int(value)}


def by_dcp(folder: Path, step: int) -> Path:
    path = folder / checkpoints.name_of(step)
    dcp.save(state(step), checkpoint_id=path)
    folder.chmod(0o700)
    path.chmod(0o700)
    return path


def test_what_dcp_wrote_alone_is_not_passed_over(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    by_dcp(folder, 9)
    checkpointer = Checkpointer(folder, ALONE, identity={}, read_timeout=0)
    with pytest.raises(Misfit, match=r"was written by torch.distributed.checkpoint alone, .* load it with dcp.load"):
        checkpointer.load({"model": state(0)["model"]})
    checkpointer.close()
    assert [each.name for each in folder.iterdir()] == ["step-000000009"]


def test_dcp_reads_the_tensors_of_our_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.checkpoint.saving.SMALL", 0)
    checkpointer = Checkpointer(tmp_path / "checkpoints", ALONE, identity={})
    checkpointer.save(1, state(1), wait=True)
    checkpointer.close()
    into = {"model": state(-1)["model"]}
    dcp.load(into, checkpoint_id=tmp_path / "checkpoints" / "step-000000001")
    assert (into["model"]["weight"] == 1).all() and (into["model"]["bias"] == 1).all()


@pytest.mark.parametrize("small", [0, 1 << 20], ids=["sharded", "single"])
def test_a_gpu_that_fails_while_it_is_filled_damages_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: int
) -> None:  # fmt: skip
    monkeypatch.setattr("launcher.checkpoint.saving.SMALL", small)
    checkpointer = Checkpointer(tmp_path / "checkpoints", ALONE, identity={})
    checkpointer.save(1, {"weight": torch.ones(3)}, wait=True)
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "copy_", Mock(side_effect=RuntimeError("no kernel image is available")))
        with pytest.raises(CheckpointError, match="no kernel image is available"):
            checkpointer.load({"weight": torch.zeros(3)})
    loaded = checkpointer.load({"weight": torch.zeros(3)})
    assert loaded is not None and loaded.step == 1
    checkpointer.close()


def test_a_file_that_another_process_has_just_made_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "state.pt").write_text("another's")
    with pytest.raises(CheckpointError, match=r"state\.pt cannot be written: .*File exists"):
        inspection.save_plain(tmp_path / "state.pt", {})
    assert (tmp_path / "state.pt").read_text() == "another's"
