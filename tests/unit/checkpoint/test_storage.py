"""Our checkpoints through dcp.save and dcp.load; those of torch.distributed.checkpoint itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

from launcher import Env
from launcher.checkpoint import Checkpointer
from launcher.checkpoint import format as checkpoints
from launcher.checkpoint import inspect as inspection
from launcher.checkpoint.format import Misfit
from launcher.checkpoint.storage import LauncherReader, LauncherWriter
from tests.fakes.checkpoint_files import changed

# torch 2.4 has no `no_dist`, and newer ones warn without it.
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

ALONE = Env(0, 0, 1, 1, 0, 1, (), "here", "gloo", torch.device("cpu"), "test", (0,))


def state(value: float) -> dict[str, Any]:
    return {"model": {"weight": torch.full((4, 8), value), "bias": torch.full((3,), value)}, "step": int(value)}


def save(folder: Path, *steps: int, **changes: Any) -> None:
    for step in steps:
        dcp.save(state(step), storage_writer=LauncherWriter(folder, step, **changes))


def load(folder: Path, **changes: Any) -> int:
    into = state(-1)
    dcp.load(into, storage_reader=LauncherReader(folder, **changes))
    (value,) = {int(each) for tensor in into["model"].values() for each in tensor.unique().tolist()}
    assert into["step"] == value
    return value


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_dcp_saves_with_our_writer_is_one_of_our_checkpoints(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    save(folder, 1, 2, 3, keep=2, metrics={"loss": 0.5})
    assert names(folder) == ["step-000000002", "step-000000003"]
    path = folder / "step-000000003"
    assert changed(path) == [] and checkpoints.newest_step(folder) == 3
    manifest = checkpoints.read(path)
    assert (manifest.kind, manifest.world_size, manifest.metrics, manifest.parent) == ("dcp", 1, {"loss": 0.5}, 2)
    assert load(folder) == 3 and load(folder / "step-000000002") == 2
    into = {"model": state(-1)["model"]}
    checkpointer = Checkpointer(folder, ALONE, identity={})
    with pytest.raises(Misfit, match="step: a pickle in the checkpoint, which is not executed"):
        checkpointer.load(state(-1))
    loaded = checkpointer.load(into, only=["model"])
    checkpointer.close()
    assert loaded is not None and loaded.step == 3 and (into["model"]["weight"] == 3).all()
    assert torch.equal(inspection.whole(path, manifest)["model"]["bias"], torch.full((3,), 3.0))


def test_saves_that_overlap_do_not_disturb_each_other(tmp_path: Path) -> None:
    """As with two dcp.async_save: the second one begins before the first one has written anything."""
    save(tmp_path, 1)
    (tmp_path / ".saving-step-000000001-attempt-0-0a1b2c3d").mkdir()  # of a process that was killed

    class Second(LauncherWriter):
        def write_data(self, *args: Any) -> Any:
            save(tmp_path, 3)
            return super().write_data(*args)

    dcp.save(state(2), storage_writer=Second(tmp_path, 2, keep=3))
    assert {"step-000000002", "step-000000003"} <= set(names(tmp_path))
    assert load(tmp_path / "step-000000002") == 2 and load(tmp_path / "step-000000003") == 3


def test_what_is_damaged_is_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    save(folder, 1)
    with open(folder / "step-000000001" / "__0_0.distcp", "r+b") as file:
        file.seek(500)
        file.write(b"\xff")
    with pytest.raises(dcp.CheckpointException, match="has changed since it was written"):
        load(folder)


def test_a_save_that_fails_leaves_no_checkpoint(tmp_path: Path) -> None:
    def lost() -> None:
        raise RuntimeError("this attempt has lost the run")

    with pytest.raises(dcp.CheckpointException, match="lost the run"):
        save(tmp_path / "checkpoints", 1, fence=lost)
    assert checkpoints.candidates(tmp_path / "checkpoints") == []


def test_what_dcp_wrote_alone_is_not_passed_over(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    save(folder, 1)
    dcp.save(state(9), checkpoint_id=folder / "step-000000009")
    (folder / "step-000000009").chmod(0o700)
    checkpointer = Checkpointer(folder, ALONE, identity={}, read_timeout=0)
    with pytest.raises(Misfit, match=r"was written by torch.distributed.checkpoint alone, .* load it with dcp.load"):
        checkpointer.load({"model": state(0)["model"]})
    checkpointer.close()
    assert names(folder) == ["step-000000001", "step-000000009"]


def test_a_planner_that_drops_what_is_to_be_compared_is_refused(tmp_path: Path) -> None:
    class Careless(dcp.DefaultLoadPlanner):
        def finish_plan(self, new_plan: dcp.LoadPlan) -> dcp.LoadPlan:
            return dcp.LoadPlan(new_plan.items)

    folder = tmp_path / "checkpoints"
    save(folder, 1)
    with pytest.raises(dcp.CheckpointException, match=r"Careless\.finish_plan drops storage_data"):
        dcp.load(state(-1), storage_reader=LauncherReader(folder), planner=Careless())
    dcp.load(state(-1), storage_reader=LauncherReader(folder, verify=False), planner=Careless())
