"""Parts of a training loop that do not depend on the model: schedule, losses, evaluation, seeds, threads."""

from __future__ import annotations

import ctypes
import hashlib
import os
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from workloads.data import Data, share
from workloads.ranks import WorkloadError

if TYPE_CHECKING:
    from launcher.node import Env

WARM_UP = 0.2  # part of all steps in which the learning rate rises


def learning_rate(step: int, total: int, peak: float, warm_up: float = WARM_UP) -> float:
    """The rate of step 0 <= `step` < `total`: a straight rise to `peak`, then a straight fall to almost zero.

    A function of the step alone, so a resumed run needs no state for it.
    """
    rising = max(1.0, warm_up * total)
    return peak * min((step + 1) / rising, (total - step) / max(1.0, total - rising), 1.0)


def seed_everything(seed: int) -> None:
    """Seed Python's and torch's generators, so that all ranks draw the same initial weights."""
    random.seed(seed)
    torch.manual_seed(seed)


def set_threads(threads: int | None, env: Env) -> int:
    """Let torch use `threads` CPU threads, else what OMP_NUM_THREADS says, else a fair share of this node's CPUs.

    Batch scripts set OMP_NUM_THREADS to cpus_per_proc, since not every site confines a job to the CPUs it asked for.
    """
    if threads is not None and threads < 1:
        raise WorkloadError(f"workload.threads={threads}: a rank needs at least one")
    told = os.environ.get("OMP_NUM_THREADS", "")
    share = len(os.sched_getaffinity(0)) // env.local_world_size
    count = threads or (int(told) if told.isdecimal() and int(told) else max(1, share))
    torch.set_num_threads(count)
    return count


def autocast_dtype(precision: str, device: torch.device) -> torch.dtype | None:
    """The type to compute in, or None for the weights' own float32.

    Raises:
        WorkloadError: bfloat16 is asked for, and the device does not have it.
    """
    capable = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    if precision == "bfloat16" and not capable:
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU"
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
def evaluate(model: nn.Module, data: Data, env: Env, chunk: int = 1024) -> Scores:
    """Test loss and accuracy over the whole test set, each sample counted once at any world size.

    Every rank takes a contiguous share, in pieces of `chunk` samples; sums are added over ranks.
    """
    first, last = share(len(data.test), env.rank, env.world_size)
    # float64 holds every count that occurs here exactly, so one all_reduce carries them all.
    sums = torch.zeros(3, dtype=torch.float64, device=env.device)
    model.eval()
    for start in range(first, last, chunk):
        images, labels = data.batch(data.test, slice(start, min(start + chunk, last)))
        scores = model(images).float()
        sums[0] += cross_entropy(scores, labels, reduction="sum")
        sums[1] += (scores.argmax(1) == labels).sum()
        sums[2] += len(labels)
    model.train()
    dist.all_reduce(sums)
    loss, right, samples = sums.tolist()
    if samples != len(data.test):
        raise WorkloadError(f"evaluation counted {samples:g} samples, and the test set has {len(data.test)}")
    return Scores(loss / samples, right / samples, int(samples))


class LossLog:
    """Each step's loss over the global batch, looked at only every few steps.

    Losses stay on the device and are added over ranks in one all_reduce for many steps, so that no step waits for
    another rank's or the GPU's number. A loss that is not finite is therefore found at the next look, and on all ranks.
    """

    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size
        self._pending: list[Tensor] = []
        self._first = 0  # the step of the oldest pending loss
        self._since = time.perf_counter()

    def add(self, step: int, summed: Tensor) -> None:
        """Note the sum of this rank's per-sample losses at `step`."""
        if not self._pending:
            self._first = step
        self._pending.append(summed.detach())

    def look(self) -> tuple[float, float]:
        """(mean loss, samples per second over all ranks) of the steps since the last look. All ranks must call it.

        Raises:
            WorkloadError: a loss was not finite; the text names the step, counted from 1 as in the log.
        """
        losses = torch.stack(self._pending).double() / self.batch_size
        dist.all_reduce(losses)
        means = losses.tolist()
        elapsed = time.perf_counter() - self._since
        for step, loss in enumerate(means, self._first):
            if not -float("inf") < loss < float("inf"):
                raise WorkloadError(
                    f"the loss of step {step + 1} is {loss}: training cannot go on. "
                    "Try a smaller workload.lr, or workload.precision=float32"
                )
        self._pending.clear()
        self.resume_clock()
        return sum(means) / len(means), len(means) * self.batch_size / elapsed

    def resume_clock(self) -> None:
        """Start the time of the next look now, so that an evaluation in between does not count."""
        self._since = time.perf_counter()
