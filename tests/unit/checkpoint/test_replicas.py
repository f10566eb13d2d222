"""Ranks compare what they have under one name by sums: what they exchange does not grow with the tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from launcher.checkpoint import state
from launcher.checkpoint.state import ReplicaTable, replica_conflicts


def tables(ranks: int, shards: int, changed: dict[tuple[int, int], int], names: int = 3) -> list[ReplicaTable]:
    """Returns tables of a tensor that all ranks have, and others that are divided by `shards` and copied else."""
    copies = ranks // shards
    found = []
    for rank in range(ranks):
        kinds = {f"w{name}": "float32 (4,)" for name in range(names)}
        values = {name: changed.get((rank, number), 7) for number, name in enumerate(kinds)}
        parts = {name: ((0 if name == "w0" else rank % shards,), value) for name, value in values.items()}
        places = {name: (rank // shards, copies) for name in kinds if name != "w0"}
        found.append(ReplicaTable(kinds, parts, places))
    return found


def sums(found: list[ReplicaTable]) -> list[dict[int, int]]:
    return [table.differences(rank, len(found)) for rank, table in enumerate(found)]


@given(st.sampled_from([1, 2, 4]), st.dictionaries(st.tuples(st.integers(0, 7), st.integers(0, 2)), st.integers(7, 8)))
def test_the_sum_is_zero_where_no_rank_has_another_part_than_its_copies(
    shards: int, changed: dict[tuple[int, int], int]
) -> None:
    found = tables(8, shards, changed)
    total = sum(value for each in sums(found) for value in each.values()) % (1 << 64)
    assert (total == 0) == (replica_conflicts(found) == [])


def test_only_what_differs_is_sent() -> None:
    found = tables(4, 2, {(3, 900): 8}, names=1000)
    each = sums(found)

    def total(mine: Tensor) -> Tensor:
        assert len(mine) == state.BUCKETS
        for other in each[1:]:
            for bucket, value in other.items():
                mine[bucket] += value - (value >> 63 << 64)
        return mine

    buckets = state.unequal_buckets(each[0], total)
    sent = [table.only(buckets, ()) for table in found]
    assert replica_conflicts(sent) == replica_conflicts(found) == ["w900: other values on each of rank 1 / rank 3"]
    assert all(1 <= len(table.kinds) < 10 for table in sent)
    assert [*found[0].only([], ["w5"]).parts] == ["w5"]


def test_a_copy_on_the_host_of_a_tensor_on_a_full_device_has_the_hash_that_other_ranks_compute_on_theirs() -> None:
    words = torch.arange(-3, 1000, dtype=torch.int32)
    table = ReplicaTable.of({"w": torch.empty(1003, dtype=torch.int32, device="meta")}, {"w": words})
    expected = sum(word * (place * state._ODD | 1) for place, word in enumerate(words.tolist()))
    assert (table.parts["w"][1] - expected) % (1 << 64) == 0


class LargestResult(TorchDispatchMode):
    """Notes the bytes of the largest tensor that an operation makes, views left out."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        known = {each.untyped_storage().data_ptr() for each in args if isinstance(each, Tensor)}
        if isinstance(made, Tensor) and made.untyped_storage().data_ptr() not in known:
            self.bytes = max(self.bytes, made.nbytes)
        return made


@pytest.mark.parametrize("unaligned", [0, 1])
def test_a_hash_on_a_device_takes_little_of_its_memory_whatever_the_size(
    unaligned: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training may have filled the device, and goes on while the first save compares its tensors."""
    monkeypatch.setattr(state, "_PIECE", 1 << 10)
    weights = torch.arange(1 << 18, dtype=torch.int16)[unaligned:]
    with LargestResult() as largest:
        hashed = state.hash_of(weights, torch.device("meta"))
    assert hashed != 0
    assert largest.bytes <= 8 << 10  # a piece as int64
