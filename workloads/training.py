"""Parts of a training loop that do not depend on the model: schedule, losses, evaluation, seeds, threads."""

from __future__ import annotations

import ctypes
import hashlib
import math
import os
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch._dynamo  # takes 1.7 s; otherwise DDP and optimizers load it at first use, in every rank and restart
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from launcher.worker import accelerator
from launcher.worker.global_batch import share
from launcher.worker.threads import cores
from workloads.data import Data
from workloads.ranks import WorkloadError

if TYPE_CHECKING:
    from launcher import Env

CHUNK = 256  # samples of the test set per forward pass
WARM_UP = 0.2  # part of all steps in which the learning rate rises


def learning_rate(step: int, total: int, peak: float, warm_up: float = WARM_UP) -> float:
    """The learning rate of step 0 <= `step` < `total`: a linear rise to `peak`, then a linear fall to almost zero.

    It depends on the step alone, so a resumed run needs no state for it.
    """
    rising = max(1.0, warm_up * total)
    return peak * min((step + 1) / rising, (total - step) / max(1.0, total - rising), 1.0)


def seed_everything(seed: int) -> None:
    """Seeds Python's and torch's generators, so that all ranks draw the same initial weights."""
    random.seed(seed)
    torch.manual_seed(seed)


def set_threads(threads: int | None, env: Env, invariant: bool = False) -> int:
    """Let torch use `threads` CPU threads, else what OMP_NUM_THREADS says, else as many as its own cores.

    Batch scripts set OMP_NUM_THREADS to cpus_per_proc, since not every site confines a job to the CPUs it asked for.
    Its own cores depend on the number of ranks, and the order of sums within an operation on the threads; so
    `invariant` takes one thread instead of it.
    """
    told = os.environ.get("OMP_NUM_THREADS", "")
    own = 1 if invariant else cores(os.environ, env.local_world_size)
    count = threads or (int(told) if told.isdecimal() and int(told) else own)
    torch.set_num_threads(count)
    return count


def be_deterministic(device: torch.device) -> None:
    """Makes a GPU compute the same bits each time; CPUs do so anyway.

    See https://docs.pytorch.org/docs/stable/notes/randomness.html.
    """
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS is first used
        torch.backends.cudnn.benchmark = False  # it would choose algorithms by their speed
    if device.type != "cpu":
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def autocast_dtype(precision: str, device: torch.device) -> torch.dtype | None:
    """The type to compute in, or None for the weights' float32.

    Raises:
        WorkloadError: bfloat16 is asked for, and the device does not have it.
    """
    capable = accelerator.has_bfloat16(device)
    if precision == "bfloat16" and not capable:
        name = accelerator.name(device) or "the CPU"
        raise WorkloadError(
            f"workload.precision=bfloat16 needs a GPU that has it, and this rank computes on {name}: "
            "use workload.precision=auto or float32"
        )
    return torch.bfloat16 if capable and precision != "float32" else None


def weights_sha256(model: nn.Module) -> str:
    """SHA-256 over names, types, shapes and bytes of all parameters and buffers."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        here = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {here.dtype} {tuple(here.shape)}\n".encode())
        digest.update(ctypes.string_at(here.data_ptr(), here.numel() * here.element_size()))
    return digest.hexdigest()


@dataclass(frozen=True)
class Scores:
    """The result of an evaluation over `samples` samples: mean loss, and accuracy from 0 to 1."""

    loss: float
    accuracy: float
    samples: int


@torch.no_grad()
def evaluate(
    model: nn.Module, data: Data, env: Env, chunk: int = CHUNK, between: Callable[[], None] = lambda: None
) -> Scores:
    """Test loss and accuracy over the whole test set, each sample counted once; bitwise the same at any world size.

    The test set is cut into chunks of `chunk` samples, whatever the world size; every rank takes some of them.
    `between` is called equally often on all ranks, after each chunk.
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
    """Each step's loss over the global batch, collected only every few steps.

    Losses stay on the device, and one all_reduce adds those of many steps over ranks, so that no step waits for another
    rank or for the GPU. So a loss that is not finite is found at the next `look`, on all ranks.

    Each part of a batch (a rank's share, or a micro-batch) has its own slot, so the reduction adds nothing but zeros,
    and the parts are added in float64 without rounding. The time of a `look` changes no bit of any loss.

    Args:
        batch_size: samples in a global batch.
        parts: of a global batch, over all ranks.
        first: number of this rank's first part.
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
        """Records the sums of per-sample losses at `step`, one for each of this rank's parts of the batch."""
        if not self._pending:
            self._oldest = step
        self._pending.append(sums[0].detach().view(1) if len(sums) == 1 else torch.stack(sums).detach())

    def collect(self) -> None:
        """Adds up the pending losses over ranks. All ranks must call it.

        Raises:
            WorkloadError: a loss was not finite; the text names the step, counted from 1 as in the log.
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
        """(mean loss since the last look, samples per second over all ranks). All ranks must call it.

        Raises:
            WorkloadError: as `collect`.
        """
        self.collect()
        mean, elapsed = self._logged.value, time.perf_counter() - self._since
        speed = self._steps * self.batch_size / elapsed
        self._logged = _Mean()
        self.resume_clock()
        return mean, speed

    @property
    def mean(self) -> float:
        """The mean loss of the epoch, as far as it is collected."""
        return self._epoch.value

    def begin_epoch(self) -> None:
        """Forgets the losses of the last epoch."""
        self._epoch = _Mean()

    def resume_clock(self) -> None:
        """Restarts the clock of the next `look`, so that an evaluation in between does not count."""
        self._steps, self._since = 0, time.perf_counter()

    def state(self) -> dict[str, Any]:
        """The state for a checkpoint (JSON types). All ranks must call it."""
        self.collect()
        return {"logged": [self._logged.sum, self._logged.steps], "epoch": [self._epoch.sum, self._epoch.steps]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores what `state` returned."""
        self._logged, self._epoch = _Mean(*state["logged"]), _Mean(*state["epoch"])


@dataclass
class _Mean:
    """A mean whose terms are added one by one, so that interruptions of the training do not change its bits."""

    sum: float = 0.0
    steps: int = 0

    def add(self, value: float) -> None:
        self.sum += value
        self.steps += 1

    @property
    def value(self) -> float:
        return self.sum / max(1, self.steps)
