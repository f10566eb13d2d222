"""Checkpoints of any size: what is saved is sound, and what is loaded is what was saved."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from launcher import Env
from launcher.checkpoint import Checkpointer, storage
from launcher.checkpoint import format as checkpoints
from launcher.checkpoint import loading as inspection
from launcher.checkpoint.format import SHARDED, SINGLE, VALUES_FILE, Manifest
from launcher.checkpoint.loading import read_contents
from launcher.checkpoint.saving import SMALL

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

ALONE = Env(0, 0, 1, 1, 0, 1, (), "here", "gloo", torch.device("cpu"), "test", (0,))
DOUBLINGS = [1000 << power for power in range(16)] + [60_000_000]


def tensor(size: int) -> torch.Tensor:
    return torch.arange(size // 4, dtype=torch.int32)


def text(size: int) -> str:
    return "0123456789" * (size // 10)


MADE = {
    "tensor": lambda size: {"state": {"value": tensor(size)}},
    "text": lambda size: {"state": {"value": text(size)}},
    "list": lambda size: {"state": {"value": [text(1000)] * (size // 1000) + [1, 2.5, None]}},
    "rank_state": lambda size: {"state": {}, "rank_state": {"value": [tensor(size // 2), text(size // 2)]}},
}


def cycle(folder: Path, state: dict[str, Any], rank_state: Any = None) -> tuple[str, dict[str, Any], Any]:
    """Saves, verifies and loads; returns the kind of the checkpoint, the state, and the rank_state."""
    state = {**state, "weight": torch.ones(3)}
    checkpointer = Checkpointer(folder, ALONE, identity={}, keep=1, background=False)
    checkpointer.save(1, state, rank_state=rank_state)
    path = folder / "step-000000001"
    assert inspection.verify(path) == []
    into = {name: torch.zeros_like(each) if isinstance(each, torch.Tensor) else None for name, each in state.items()}
    loaded = checkpointer.load(into)
    checkpointer.close()
    assert loaded is not None and loaded.passed_over == ()
    return checkpoints.read(path).kind, {**into, **loaded.values}, loaded.rank_state


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@pytest.mark.parametrize("what", MADE)
@pytest.mark.parametrize("size", DOUBLINGS)
def test_save_verify_and_load_agree(tmp_path: Path, what: str, size: int) -> None:
    given = MADE[what](size)
    kind, state, rank_state = cycle(tmp_path / "checkpoints", **given)
    assert kind == (SHARDED if what in ("tensor", "rank_state") and size > SMALL else SINGLE)
    del state["weight"]
    assert same(given, {"state": state, **({"rank_state": rank_state} if rank_state is not None else {})})


@pytest.mark.slow
@pytest.mark.parametrize("what", ["tensor", "text"])
def test_a_gigabyte_comes_back(tmp_path: Path, what: str) -> None:
    given = MADE[what](1_000_000_000)
    _, state, _ = cycle(tmp_path / "checkpoints", **given)
    assert same(given["state"]["value"], state["value"])


def metadata_of(tensors: int, shards: int) -> Metadata:
    """The metadata of tensors of `shards` rows, each row of another rank."""
    entries, places = {}, {}
    for number in range(tensors):
        name, row = f"model.layers.{number}.weight", torch.Size([1, 8])
        chunks = [ChunkStorageMetadata(torch.Size([rank, 0]), row) for rank in range(shards)]
        entries[name] = TensorStorageMetadata(TensorProperties(torch.float32), torch.Size([shards, 8]), chunks)
        for rank in range(shards):
            index = MetadataIndex(name, torch.Size([rank, 0]), rank)
            places[index] = _StorageInfo(f"__{rank}_0.distcp", 32 * number, 32)
    return Metadata(entries, storage_data=places)


@pytest.mark.parametrize(
    ("tensors", "shards"), [(100, 1000), pytest.param(100, 10_000, marks=pytest.mark.slow)], ids=["100,000", "million"]
)
def test_metadata_of_many_shards_is_read(tmp_path: Path, tensors: int, shards: int) -> None:
    with open(tmp_path / ".metadata", "wb") as file:
        pickle.dump(metadata_of(tensors, shards), file)
    found = storage.read_metadata(tmp_path)
    assert len(found.storage_data) == tensors * shards
    paths = {name: (name,) for name in found.state_dict_metadata}
    storage.save_file(tmp_path / VALUES_FILE, {"paths": paths, "values": {}, "lists": {}}, {})
    contents = read_contents(tmp_path, Manifest(1, SHARDED, shards, 0, {}, {}, {}, {}))
    assert [len(entry["shards"]) for entry in inspection.entries(contents)] == [shards] * tensors


def test_metadata_is_unpickled_as_a_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".metadata").write_bytes(pickle.dumps(metadata_of(10, 1000)))
    asked: list[int] = []

    class Stream(io.BufferedReader):
        def read(self, size: int | None = -1) -> bytes:
            asked.append(-1 if size is None else size)
            return super().read(size)

        def readinto(self, buffer: Any) -> int:
            asked.append(len(buffer))
            return super().readinto(buffer)

    monkeypatch.setattr(storage.io, "BufferedReader", Stream)
    storage.read_metadata(tmp_path)
    assert asked and 0 < max(asked) < 1 << 20 < (tmp_path / ".metadata").stat().st_size
    assert min(asked) >= 0
