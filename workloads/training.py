"""Parts of a training loop that do not depend on the model, and image data sets as tensors."""

from __future__ import annotations

import ctypes
import gzip
import hashlib
import math
import os
import random
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch._dynamo
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from launcher.checkpoint.resumable import share
from launcher.files.retried_reads import retry_read, unwrap_or
from launcher.worker import devices
from launcher.worker.devices import cores
from workloads.across_ranks import WorkloadError
from workloads.image_data import DatasetError, Found, read_header

if TYPE_CHECKING:
    from launcher import Env


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

    classes: int  # number of different labels
    train: Split
    test: Split
    mean: float  # of all pixels (0 to 255) of the training images, as `std`
    std: float

    @property
    def side(self) -> int:
        return self.train.images.shape[1]

    def batch(self, split: Split, chosen: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Returns normalised float32 images [n, 1, height, width] and int64 labels [n] of samples, by their indices."""
        if isinstance(chosen, slice):
            images, labels = split.images[chosen], split.labels[chosen]
        else:
            images, labels = split.images.index_select(0, chosen), split.labels.index_select(0, chosen)
        return images.unsqueeze(1).to(torch.float32).sub_(self.mean).mul_(1 / self.std), labels


def read_idx(path: Path) -> Tensor:
    """Returns the content of an IDX file, plain or gzipped (`.gz`), uint8 of 1 or 3 dimensions; raises DatasetError."""
    if (data := unwrap_or(DatasetError, retry_read(path.read_bytes, path))) is None:
        raise DatasetError(f"{path} is not there any more")
    try:
        content = bytearray(gzip.decompress(data) if path.suffix == ".gz" else data)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DatasetError(f"{path} cannot be unpacked: {error}") from error
    shape = read_header(bytes(content[:16]), path)
    start = 4 + 4 * len(shape)
    length = start + torch.Size(shape).numel()
    if len(content) != length:
        raise DatasetError(f"{path} has {len(content)} bytes, and its header says {length}")
    if length == start:
        raise DatasetError(f"{path} contains no samples")
    return torch.frombuffer(content, dtype=torch.uint8, offset=start).view(shape)


def load(found: Found, device: torch.device | str = "cpu") -> Data:
    """Reads a data set that was found onto a device; raises DatasetError for a damaged one."""
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
    return Data(classes, train, test, mean, std)


def _moments(images: Tensor) -> tuple[float, float]:
    counts = torch.bincount(images.flatten().cpu(), minlength=256)
    values = torch.arange(256)
    number = int(counts.sum())
    first, second = int((counts * values).sum()), int((counts * values * values).sum())
    variance = (second * number - first * first) / number**2
    return first / number, max(variance**0.5, 1.0)


# -- Parts of a training loop that do not depend on the model: learning rate, losses, evaluation, seeds, threads


CHUNK = 256  # samples of the test set in one forward pass
WARM_UP = 0.2  # share of all steps in which the learning rate rises


def learning_rate(step: int, total: int, peak: float, warm_up: float = WARM_UP) -> float:
    """Returns the learning rate of a step, from 0: it rises to `peak` for the share `warm_up` of all, and then falls.

    It depends on the step alone, so a resumed run needs no state for it.
    """
    rising = max(1.0, warm_up * total)
    return peak * min((step + 1) / rising, (total - step) / max(1.0, total - rising), 1.0)


def seed_everything(seed: int) -> None:
    """Seeds the generators of Python and torch, so that all ranks draw the same initial weights."""
    random.seed(seed)
    torch.manual_seed(seed)


def set_threads(threads: int | None, env: Env, invariant: bool = False) -> int:
    """Sets the number of CPU threads that torch uses, and returns it. The first row that applies decides.

    | case | threads |
    |---|---|
    | `threads` is set | `threads` |
    | OMP_NUM_THREADS is a number above 0 (job scripts set it to cpus_per_proc) | OMP_NUM_THREADS |
    | `invariant` | 1: the order of sums within an operation depends on the number of threads |
    | else | number of cores that belong to this rank |
    """
    variable = os.environ.get("OMP_NUM_THREADS", "")
    own = 1 if invariant else cores(os.environ, env.local_world_size)
    count = threads or (int(variable) if variable.isdecimal() and int(variable) else own)
    torch.set_num_threads(count)
    return count


def be_deterministic(device: torch.device) -> None:
    """Makes torch use only operations that compute the same bits each time on a GPU. CPUs do so in any case."""
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS is first used
        torch.backends.cudnn.benchmark = False  # it would choose algorithms by their speed
    if device.type != "cpu":
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def autocast_dtype(precision: str, device: torch.device) -> torch.dtype | None:
    """Returns the type for autocast; None: float32, without it. Raises WorkloadError: the device has no bfloat16."""
    capable = devices.has_bfloat16(device)
    if precision == "bfloat16" and not capable:
        name = devices.name(device) or "the CPU"
        raise WorkloadError(
            f"workload.precision=bfloat16 needs a GPU that has it, and this rank computes on {name}: "
            "use workload.precision=auto or float32"
        )
    return torch.bfloat16 if capable and precision != "float32" else None


def weights_sha256(model: nn.Module) -> str:
    """Returns the SHA-256 over names, types, shapes and bytes of all parameters and buffers.

    It does not depend on their sharding. All ranks of a sharded model must call it.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        here = whole.detach().cpu().contiguous()
        digest.update(f"{name} {here.dtype} {tuple(here.shape)}\n".encode())
        digest.update(ctypes.string_at(here.data_ptr(), here.numel() * here.element_size()))
    return digest.hexdigest()


@dataclass(frozen=True)
class Scores:
    loss: float  # mean loss
    accuracy: float  # share of right answers, 0 to 1
    samples: int  # number of evaluated samples


@torch.no_grad()
def evaluate(
    model: nn.Module, data: Data, env: Env, chunk: int = CHUNK, between: Callable[[], None] = lambda: None
) -> Scores:
    """Returns the model's scores on the whole test set, bitwise the same at any world size. All ranks must call it.

    The test set is cut into chunks whose size does not depend on the world size, and each rank computes some of them.
    model: [n, 1, side, side] -> [n, classes]. between: called after each chunk, equally often on all ranks.
    """
    count = -(-len(data.test) // chunk)
    first, last = share(count, env.rank, env.world_size)
    # Each chunk has its own slots, and integers are exact: adding the zeros of other ranks changes no bit.
    losses, right, samples = torch.zeros(3, count, dtype=torch.float64, device=env.device)
    model.eval()
    for number in range(first, first - (-count // env.world_size)):
        if number < last:
            images, labels = data.batch(data.test, slice(number * chunk, (number + 1) * chunk))
            scores = model(images).float()
            losses[number] = cross_entropy(scores, labels, reduction="sum")
            right[number] = (scores.argmax(1) == labels).sum()
            samples[number] = len(labels)
        between()
    model.train()
    table = torch.stack([losses, right, samples])
    dist.all_reduce(table)
    loss, correct, counted = (math.fsum(row) for row in table.tolist())
    if counted != len(data.test):
        raise WorkloadError(f"evaluation counted {counted:g} samples, and the test set has {len(data.test)}")
    return Scores(loss / counted, correct / counted, int(counted))


class LossLog:
    """The loss of each step over the global batch, collected from all ranks only every few steps.

    Losses stay on the device, and one all_reduce adds those of many steps over ranks, so that no step waits for another
    rank or for the GPU. So all ranks find a loss that is not finite only at the next `look`.

    Each part of a batch (a rank's share, or a micro-batch) has its own slot in the all_reduce, where the other ranks
    have zeros, and the parts are added in float64 without rounding. So the time of a call of `look` changes no loss.
    """

    def __init__(self, batch_size: int, parts: int = 1, first: int = 0) -> None:
        self.batch_size, self.parts, self.first = batch_size, parts, first
        self._pending: list[Tensor] = []
        self._oldest = 0  # the step of the oldest pending loss
        self._logged = _Mean()  # since the last look
        self._epoch = _Mean()
        self._steps = 0  # since the clock was started
        self._since = time.perf_counter()

    def add(self, step: int, *sums: Tensor) -> None:
        """Records, for each of this rank's parts of the batch of a step, the sum of the losses of its samples."""
        if not self._pending:
            self._oldest = step
        self._pending.append(sums[0].detach().view(1) if len(sums) == 1 else torch.stack(sums).detach())

    def collect(self) -> None:
        """Adds the losses of all ranks for the steps since the last call. All ranks must call it.

        Raises WorkloadError: a loss was not finite; the text names the step, counted from 1 as in the log.
        """
        if not self._pending:
            return
        mine = torch.stack(self._pending).double()
        table = mine.new_zeros(len(mine), self.parts)
        table[:, self.first : self.first + mine.shape[1]] = mine
        dist.all_reduce(table)
        for step, parts in enumerate(table.tolist(), self._oldest):
            loss = math.fsum(parts) / self.batch_size if all(map(math.isfinite, parts)) else sum(parts)
            if not math.isfinite(loss):
                raise WorkloadError(
                    f"the loss of step {step + 1} is {loss}: training cannot continue. "
                    "Try a smaller workload.lr, or workload.precision=float32"
                )
            self._logged.add(loss)
            self._epoch.add(loss)
        self._steps += len(self._pending)
        self._pending.clear()

    def look(self) -> tuple[float, float]:
        """Returns the mean loss and the samples per second of all ranks since the last call. All ranks must call it."""
        self.collect()
        mean, elapsed = self._logged.value, time.perf_counter() - self._since
        speed = self._steps * self.batch_size / elapsed
        self._logged = _Mean()
        self.resume_clock()
        return mean, speed

    @property
    def mean(self) -> float:
        return self._epoch.value

    def begin_epoch(self) -> None:
        self._epoch = _Mean()

    def resume_clock(self) -> None:
        """Restarts the clock for the samples per second of the next `look`, for instance after an evaluation."""
        self._steps, self._since = 0, time.perf_counter()

    def state(self) -> dict[str, Any]:
        """Returns the state for a checkpoint. All ranks must call it."""
        self.collect()
        return {"logged": [self._logged.sum, self._logged.steps], "epoch": [self._epoch.sum, self._epoch.steps]}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._logged, self._epoch = _Mean(*state["logged"]), _Mean(*state["epoch"])


@dataclass
class _Mean:
    # Terms are added one by one, so that a resumed training gets bitwise the same mean

    sum: float = 0.0
    steps: int = 0

    def add(self, value: float) -> None:
        self.sum += value
        self.steps += 1

    @property
    def value(self) -> float:
        return self.sum / max(1, self.steps)
