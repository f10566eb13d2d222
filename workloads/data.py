"""Loads image data sets (IDX files) as tensors."""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from workloads.datasets import DatasetError, Found, read_header


@dataclass(frozen=True)
class Split:
    """The training or test samples of a data set, on one device."""

    images: Tensor  # uint8 [n, height, width]
    labels: Tensor  # int64 [n]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Data:
    """A data set on one device."""

    name: str  # name of the data set
    classes: int  # number of different labels
    train: Split  # training samples
    test: Split  # test samples. mean, std: mean and standard deviation of all pixels (0 to 255) of the training images
    mean: float
    std: float

    @property
    def side(self) -> int:
        """Height and width of an image in pixels."""
        return self.train.images.shape[1]

    def batch(self, split: Split, chosen: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Returns normalised float32 images [n, 1, height, width] and int64 labels [n] of some samples.

        Images are stored as bytes, which takes a quarter of the memory of floats. Converting them takes less than a
        microsecond per image.

        chosen: indices of the samples, int64 [n], or a slice of them.
        """
        if isinstance(chosen, slice):
            images, labels = split.images[chosen], split.labels[chosen]
        else:
            images, labels = split.images.index_select(0, chosen), split.labels.index_select(0, chosen)
        return images.unsqueeze(1).to(torch.float32).sub_(self.mean).mul_(1 / self.std), labels


def read_idx(path: Path) -> Tensor:
    """Returns the content of an IDX file of bytes, plain or gzipped (`.gz`), as a uint8 tensor of 1 or 3 dimensions.

    Raises DatasetError: the file cannot be read, is not an IDX file, or its length does not match its header.
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
        raise DatasetError(f"{path} contains no samples")
    return torch.frombuffer(content, dtype=torch.uint8, offset=start).view(shape)


def load(found: Found, device: torch.device | str = "cpu") -> Data:
    """Reads a data set that was found onto a device, and returns it.

    Raises DatasetError: a file is damaged, or images and labels do not match.
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
    counts = torch.bincount(images.flatten().cpu(), minlength=256)
    values = torch.arange(256)
    number = int(counts.sum())
    first, second = int((counts * values).sum()), int((counts * values * values).sum())
    variance = (second * number - first * first) / number**2
    return first / number, max(variance**0.5, 1.0)
