"""Checkpoints with files of torch.distributed.checkpoint: its own, those of a former launcher, and ours read by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

from launcher import Env
from launcher.checkpoint import Checkpointer
from launcher.checkpoint import format as checkpoints
from launcher.checkpoint import loading as inspection
from launcher.checkpoint.format import Manifest, Misfit
from tests.fakes.checkpoint_files import changed, file_of

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


def test_what_a_former_version_saved_by_dcp_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    path = by_dcp(folder, 3)
    manifest = Manifest(3, checkpoints.DCP, 1, 0, {}, {}, {}, {each.name: file_of(each) for each in path.iterdir()})
    (path / checkpoints.MANIFEST).write_text(manifest.text())
    assert changed(path) == [] and checkpoints.newest_step(folder) == 3
    into = {"model": state(-1)["model"]}
    checkpointer = Checkpointer(folder, ALONE, identity={})
    with pytest.raises(Misfit, match="step: a pickle in the checkpoint, which is not executed"):
        checkpointer.load(state(-1))
    loaded = checkpointer.load(into, only=["model"])
    checkpointer.close()
    assert loaded is not None and loaded.step == 3 and (into["model"]["weight"] == 3).all()
    assert torch.equal(inspection.whole(path, manifest)["model"]["bias"], torch.full((3,), 3.0))


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
