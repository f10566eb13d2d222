"""IDX files become tensors or an error; the order of samples does not depend on who trains."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from launcher.checkpoint.resumable import GlobalBatchSampler, share
from workloads.image_data import DatasetError, Found, find
from workloads.training import load, read_idx

IMAGES = struct.pack(">4I", 0x803, 3, 2, 2) + bytes(range(12))
LABELS = struct.pack(">2I", 0x801, 3) + bytes([7, 0, 9])


def store(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_idx_files_are_read(tmp_path: Path, ending: str) -> None:
    images = read_idx(store(tmp_path, f"images{ending}", IMAGES))
    assert images.dtype == torch.uint8
    assert images.tolist() == [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8, 9], [10, 11]]]
    assert read_idx(store(tmp_path, f"labels{ending}", LABELS)).tolist() == [7, 0, 9]


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda content: content[:-1], "has 27 bytes, and its header says 28"),
        (lambda content: content + b"x", "has 29 bytes, and its header says 28"),
        (lambda content: b"\1" + content[1:], "is not an IDX file of bytes"),
        (lambda content: content[:3] + b"\2" + content[4:], "is not an IDX file of bytes"),
        (lambda content: content[:2], "is not an IDX file of bytes"),
        (lambda content: content[:12], "ends within its header"),
        (lambda content: struct.pack(">4I", 0x803, 0, 2, 2), "contains no samples"),
    ],
)
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_damaged_idx_file_is_named(tmp_path: Path, ending: str, damage: Callable[[bytes], bytes], text: str) -> None:
    path = store(tmp_path, f"images{ending}", damage(IMAGES))
    with pytest.raises(DatasetError, match=text) as told:
        read_idx(path)
    assert str(path) in str(told.value)


@pytest.mark.parametrize("damage", [lambda c: c[:-9], lambda c: c[:25] + bytes([c[25] ^ 8]) + c[26:], lambda c: b"no"])
def test_a_damaged_gzip_file_is_named(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = store(tmp_path, "images.gz", IMAGES)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DatasetError, match=str(path)):
        read_idx(path)
    with pytest.raises(DatasetError, match=r"absent\.gz is not there any more"):
        read_idx(tmp_path / "absent.gz")


@pytest.mark.parametrize(
    ("files", "text"),
    [
        ((IMAGES, LABELS[:4] + struct.pack(">I", 2) + LABELS[8:10]), r"has the shape \(2,\) for 3 images"),
        ((IMAGES, LABELS[:-1] + b"\x0a"), "has a label 10, and labels go from 0 to 9"),
        ((LABELS, LABELS), "images should be square"),
        ((IMAGES[:8] + struct.pack(">2I", 1, 4) + IMAGES[16:], LABELS), "images should be square"),
    ],
)
def test_images_and_labels_must_fit(tmp_path: Path, files: tuple[bytes, bytes], text: str) -> None:
    good = store(tmp_path, "a", IMAGES), store(tmp_path, "b", LABELS)
    bad = store(tmp_path, "c", files[0]), store(tmp_path, "d", files[1])
    for paths in ((*good, *bad), (*bad, *good)):
        with pytest.raises(DatasetError, match=text):
            load(Found("digits", tmp_path, "", paths))


def test_the_digits_are_whole_and_normalised() -> None:
    data = load(find("digits"))
    assert (len(data.train), len(data.test), data.side, data.classes) == (1437, 360, 8, 10)
    assert torch.bincount(data.test.labels).tolist() == [36] * 10
    images, labels = data.batch(data.train, torch.arange(1437))
    assert images.shape == (1437, 1, 8, 8)
    assert images.dtype == torch.float32 and labels.dtype == torch.int64
    assert images.mean().item() == pytest.approx(0, abs=1e-4)
    assert images.std().item() == pytest.approx(1, abs=1e-3)
    some, named = data.batch(data.train, torch.tensor([5, 0]))
    assert torch.equal(some, images[[5, 0]]) and torch.equal(named, labels[[5, 0]])
    assert torch.equal(data.batch(data.train, slice(2, 4))[0], images[2:4])


sizes = st.integers(1, 200)


@given(size=sizes, batch=sizes, seed=st.integers(), epoch=st.integers(0, 9), worlds=st.tuples(sizes, sizes))
def test_every_world_size_takes_the_same_global_batches(
    size: int, batch: int, seed: int, epoch: int, worlds: tuple[int, int]
) -> None:
    size, batch = max(size, batch), min(size, batch)
    seen = []
    for world in (min(world, batch) for world in worlds):
        samplers = [GlobalBatchSampler(size, batch, seed, rank, world) for rank in range(world)]
        steps = samplers[0].steps_per_epoch
        assert steps == size // batch  # what is left over is not used
        shares = [[sampler.batch(epoch, step) for sampler in samplers] for step in range(steps)]
        lengths = {len(part) for parts in shares for part in parts}
        assert max(lengths) - min(lengths) <= 1 and min(lengths) >= 1
        seen.append([torch.cat(parts).tolist() for parts in shares])
        assert seen[-1] == [samplers[0].global_batch(epoch, step).tolist() for step in range(steps)]
    assert seen[0] == seen[1]
    used = [sample for step in seen[0] for sample in step]
    assert len(used) == len(set(used)) and set(used) <= set(range(size))


@given(seed=st.integers(0, 50), start=st.tuples(st.integers(0, 4), st.integers(0, 4)))
def test_the_order_is_a_function_of_seed_epoch_and_step(seed: int, start: tuple[int, int]) -> None:
    epoch, step = start
    through = GlobalBatchSampler(103, 20, seed, 1, 3)
    whole = [[part.tolist() for _, part in through.batches(number)] for number in range(5)]
    resumed = GlobalBatchSampler(103, 20, seed, 1, 3)
    assert [(number, part.tolist()) for number, part in resumed.batches(epoch, step)] == [*enumerate(whole[epoch])][
        step:
    ]
    assert resumed.batch(0, 0).tolist() == whole[0][0]  # going back is no different
    assert resumed.locate(epoch * 5 + step) == (epoch, step)
    assert whole[0] != whole[1]
    assert whole[0][0] != GlobalBatchSampler(103, 20, seed + 1, 1, 3).batch(0, 0).tolist()


@given(batch=st.integers(1, 40), world=st.integers(1, 40))
def test_the_mean_of_the_ranks_gradients_is_that_of_the_global_batch(batch: int, world: int) -> None:
    world = min(world, batch)
    features = torch.randn(60, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(batch))

    def gradient(chosen: torch.Tensor, weight: float) -> torch.Tensor:
        parameter = torch.ones(3, dtype=torch.float64, requires_grad=True)
        (((features[chosen] @ parameter) ** 2).sum() * weight).backward()
        assert parameter.grad is not None
        return parameter.grad

    samplers = [GlobalBatchSampler(60, batch, 0, rank, world) for rank in range(world)]
    parts = [gradient(sampler.batch(0, 0), sampler.weight) for sampler in samplers]
    assert torch.allclose(torch.stack(parts).mean(0), gradient(samplers[0].global_batch(0, 0), 1 / batch))


@given(count=st.integers(0, 1000), world=st.integers(1, 50))
def test_shares_cover_everything_once(count: int, world: int) -> None:
    parts = [range(*share(count, rank, world)) for rank in range(world)]
    assert [thing for part in parts for thing in part] == list(range(count))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((10, 11, 0, 0, 1), "has 10 samples, fewer than workload.batch_size=11: set it to 10 or less"),
        ((10, 2, 0, 0, 3), "batch_size=2 leaves some of the 3 ranks without a sample: set it to 3 or more"),
        ((10, 5, 0, 3, 3), "rank 3 is not one of 3 ranks"),
    ],
)
def test_impossible_batches_are_refused(arguments: tuple[int, int, int, int, int], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        GlobalBatchSampler(*arguments)


def test_a_step_beyond_the_epoch_is_refused() -> None:
    with pytest.raises(IndexError, match="step 2 is not one of the 2 steps"):
        GlobalBatchSampler(10, 4, 0, 0, 1).batch(0, 2)


@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 40))
def test_micro_batches_do_not_depend_on_the_world_size(micro_batches: int, world_size: int, more: int) -> None:
    batch_size = micro_batches + more
    if world_size > micro_batches:
        return
    whole = GlobalBatchSampler(100, batch_size, 0, 0, 1, micro_batches=micro_batches)
    expected = [leaf.tolist() for leaf in whole.batch(1, 0).split(whole.sizes)]
    assert len(expected) == micro_batches
    found = []
    for rank in range(world_size):
        sampler = GlobalBatchSampler(100, batch_size, 0, rank, world_size, micro_batches=micro_batches)
        found += [leaf.tolist() for leaf in sampler.batch(1, 0).split(sampler.sizes)]
    assert found == expected


@pytest.mark.parametrize("micro_batches", [2, 11])
def test_micro_batches_that_do_not_fit_are_refused(micro_batches: int) -> None:
    with pytest.raises(ValueError, match=r"train\.micro_batches=\d+ must be from 3 .* to 10"):
        GlobalBatchSampler(100, 10, 0, 0, 3, micro_batches=micro_batches)
