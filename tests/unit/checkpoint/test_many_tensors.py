"""Saving and loading many tensors: ten times as many are ten times the work. Counts calls, not seconds."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from launcher import Env
from launcher.checkpoint import Checkpointer, saving, storage
from tests.unit.operations import operations

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

ALONE = Env(0, 0, 1, 1, 0, 1, (), "here", "gloo", torch.device("cpu"), "test", (0,))


@pytest.mark.parametrize("small", [0, saving.SMALL], ids=["sharded", "single"])
def test_ten_times_the_tensors_are_ten_times_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: int
) -> None:
    monkeypatch.setattr(saving, "SMALL", small)

    def work(count: int) -> tuple[int, int]:
        checkpointer = Checkpointer(tmp_path / str(count), ALONE, identity={}, background=False)
        state = {"model": {f"layer{number}": torch.full((2, 3), number) for number in range(count)}}
        checkpointer.save(1, state)  # the first one imports modules, and compares replicas
        saved = operations(lambda: checkpointer.save(2, state))
        loaded = operations(lambda: checkpointer.load(state))
        checkpointer.close()
        return saved, loaded

    few, many = work(40), work(400)
    assert all(0 < more <= 15 * less for less, more in zip(few, many, strict=True))


def test_small_tensors_are_written_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.save makes some forty writes for each."""
    sizes: list[int] = []
    write = os.write

    def count(descriptor: int, data: Any) -> int:
        sizes.append(len(data))
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", count)
    written: dict[str, Any] = {}
    storage.write_tensors(tmp_path, {f"layer{number}": torch.ones(3) for number in range(300)}, 0, written)
    ((name, file),) = written.items()
    assert name == "__0_0.distcp" and sum(sizes) == file.size == (tmp_path / name).stat().st_size
    assert len(sizes) <= 2 + file.size // storage._PIECE


def test_a_tensor_of_which_a_part_is_missing_is_refused_by_name(tmp_path: Path) -> None:
    written: dict[str, Any] = {}
    ((index, place, data),) = storage.write_tensors(tmp_path, {"w": torch.ones(3)}, 0, written)
    with pytest.raises(storage.CheckpointError, match=r"w: the ranks have written 3 of its 6 elements"):
        storage.write_metadata(tmp_path, [(index, place, replace(data, size=torch.Size([6])))], written)
