"""Data in memory: IDX files as tensors, and which samples each rank takes at each step."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from launcher.datasets import DatasetError, Found, read_header


@dataclass(frozen=True)
class Split:
    """Images as uint8 [N, height, width] and their labels as int64 [N], on one device."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Data:
    """A whole data set on one device. `mean` and `std` are those of the training pixels (0 to 255)."""

    name: str
    classes: int
    train: Split
    test: Split
    mean: float
    std: float

    @property
    def side(self) -> int:
        """Height and width of an image in pixels."""
        return self.train.images.shape[1]

    def batch(self, split: Split, chosen: Tensor | slice) -> tuple[Tensor, Tensor]:
        """The chosen samples: normalised float32 images [n, 1, height, width] and int64 labels [n].

        The images stay bytes until they are used: a quarter of the memory, and turning a batch into floats costs less
        than a microsecond an image.
        """
        if isinstance(chosen, slice):
            images, labels = split.images[chosen], split.labels[chosen]
        else:
            images, labels = split.images.index_select(0, chosen), split.labels.index_select(0, chosen)
        return images.unsqueeze(1).to(torch.float32).sub_(self.mean).mul_(1 / self.std), labels


def read_idx(path: Path) -> Tensor:
    """An IDX file of bytes, plain or gzipped (`.gz`), as a uint8 tensor of 1 or 3 dimensions.

    Raises:
        DatasetError: it cannot be read, is no such file, or is not as long as its header says.
    """
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as stream:
            content = bytearray(stream.read())
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DatasetError(f"{path} cannot be unpacked: {error}") from error
    except OSError as error:
        raise DatasetError(f"{path} cannot be read: {error.strerror or error}") from error
    shape = read_header(bytes(content[:16]), path)
    start = 4 + 4 * len(shape)
    length = start + torch.Size(shape).numel()
    if len(content) != length:
        raise DatasetError(f"{path} has {len(content)} bytes, and its header says {length}")
    if length == start:
        raise DatasetError(f"{path} holds no samples")
    return torch.frombuffer(content, dtype=torch.uint8, offset=start).view(shape)


def load(found: Found, device: torch.device | str = "cpu") -> Data:
    """Read the data set onto the device.

    Raises:
        DatasetError: a file is damaged, or images and labels do not belong together.
    """
    classes = found.dataset.classes
    splits = []
    for images_path, labels_path in (found.files[:2], found.files[2:]):
        images, labels = read_idx(images_path), read_idx(labels_path)
        if images.dim() != 3 or images.shape[1] != images.shape[2]:
            raise DatasetError(f"{images_path} has the shape {tuple(images.shape)}, and images should be square")
        if labels.shape != images.shape[:1]:
            raise DatasetError(f"{labels_path} has the shape {tuple(labels.shape)} for {len(images)} images")
        if (highest := int(labels.max())) >= classes:
            raise DatasetError(f"{labels_path} has a label {highest}, and labels go from 0 to {classes - 1}")
        splits.append(Split(images.to(device), labels.to(device, torch.int64)))
    train, test = splits
    if train.images.shape[1:] != test.images.shape[1:]:
        raise DatasetError(f"{found.dir} has training and test images of different sizes")
    mean, std = _moments(train.images)
    return Data(found.name, classes, train, test, mean, std)


def _moments(images: Tensor) -> tuple[float, float]:
    """Mean and standard deviation of the pixels; from whole counts, so equal wherever they are computed."""
    counts = torch.bincount(images.flatten().cpu(), minlength=256)
    values = torch.arange(256)
    number = int(counts.sum())
    first, second = int((counts * values).sum()), int((counts * values * values).sum())
    variance = (second * number - first * first) / number**2
    return first / number, max(variance**0.5, 1.0)


class GlobalBatchSampler:
    """Which samples are used when: the order is a pure function of (seed, epoch, step), whatever the world size.

    An epoch is a fresh permutation of all samples, cut into global batches of `batch_size`; what is left over at its
    end (fewer than `batch_size` samples) is not used in that epoch. Of each global batch a rank takes one contiguous
    share; shares differ by at most one sample.

    With `micro_batches` the global batch is cut into so many logical micro-batches, which differ by at most one sample
    and do not depend on the world size, and a rank takes whole ones.

    Raises:
        ValueError: the data set is smaller than one batch, the batch has fewer samples than there are ranks or
            micro-batches, or there are fewer micro-batches than ranks.
    """

    def __init__(
        self,
        size: int,
        batch_size: int,
        seed: int,
        rank: int,
        world_size: int,
        device: torch.device | str = "cpu",
        micro_batches: int | None = None,
    ) -> None:
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} is not one of {world_size} ranks")
        if batch_size < world_size:
            raise ValueError(
                f"workload.batch_size={batch_size} leaves some of the {world_size} ranks without a sample: "
                f"set it to {world_size} or more"
            )
        if micro_batches is not None and not world_size <= micro_batches <= batch_size:
            raise ValueError(
                f"train.micro_batches={micro_batches} must be from {world_size} (the number of ranks) to {batch_size} "
                "(workload.batch_size). A run keeps it for its whole life: the weights depend on it"
            )
        if size < batch_size:
            raise ValueError(
                f"the training set has {size} samples, fewer than workload.batch_size={batch_size}: "
                f"set it to {size} or less"
            )
        self.size, self.batch_size, self.seed = size, batch_size, seed
        self.rank, self.world_size, self.device = rank, world_size, device
        self.micro_batches = micro_batches
        self.steps_per_epoch = size // batch_size
        parts = world_size if micro_batches is None else micro_batches
        first, last = (rank, rank + 1) if micro_batches is None else share(micro_batches, rank, world_size)
        bounds = [share(batch_size, part, parts) for part in range(first, last)]
        self._first, self._last = bounds[0][0], bounds[-1][1]
        # Samples in each of this rank's micro-batches, or in its share.
        self.sizes = [end - begin for begin, end in bounds]
        self._order: tuple[int, Tensor] | None = None

    @property
    def weight(self) -> float:
        """What the sum of this rank's per-sample losses must be multiplied by.

        With it, the mean over ranks of their gradients is the gradient of the mean loss over the global batch, also
        where shares differ: mean_r(W / B x sum_r) = sum / B.
        """
        return self.world_size / self.batch_size

    def order(self, epoch: int) -> Tensor:
        """All samples in the order of that epoch, int64 [size]."""
        if self._order is None or self._order[0] != epoch:
            digest = hashlib.sha256(f"{self.seed}/{epoch}".encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))
            # Always drawn on the CPU: a GPU's generator gives another permutation for the same seed.
            self._order = epoch, torch.randperm(self.size, generator=generator).to(self.device)
        return self._order[1]

    def global_batch(self, epoch: int, step: int) -> Tensor:
        """The samples of all ranks at that step of the epoch, int64 [batch_size]."""
        if not 0 <= step < self.steps_per_epoch:
            raise IndexError(f"step {step} is not one of the {self.steps_per_epoch} steps of an epoch")
        return self.order(epoch)[step * self.batch_size : (step + 1) * self.batch_size]

    def batch(self, epoch: int, step: int) -> Tensor:
        """This rank's share of the global batch, int64 [its sizes' sum]."""
        return self.global_batch(epoch, step)[self._first : self._last]

    def batches(self, epoch: int, step: int = 0) -> Iterator[tuple[int, Tensor]]:
        """(step, this rank's share) for the rest of the epoch, from `step` on."""
        for following in range(step, self.steps_per_epoch):
            yield following, self.batch(epoch, following)

    def locate(self, global_step: int) -> tuple[int, int]:
        """(epoch, step in it) of the step that comes after `global_step` steps."""
        return divmod(global_step, self.steps_per_epoch)


def share(count: int, rank: int, world_size: int) -> tuple[int, int]:
    """The half-open range of `count` things that belongs to a rank; ranges are contiguous and differ by at most one."""
    return count * rank // world_size, count * (rank + 1) // world_size
