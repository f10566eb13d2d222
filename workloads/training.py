"""Parts of a training loop that do not depend on the model: learning rate, losses, evaluation, seeds, threads."""

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

from launcher.worker import devices
from launcher.worker.devices import cores
from launcher.worker.global_batch import share
from workloads.data import Data
from workloads.ranks import WorkloadError

if TYPE_CHECKING:
    from launcher import Env

CHUNK = 256  # samples of the test set in one forward pass
WARM_UP = 0.2  # share of all steps in which the learning rate rises


def learning_rate(step: int, total: int, peak: float, warm_up: float = WARM_UP) -> float:
    """Returns the learning rate of a step: a linear rise to `peak`, then a linear fall to almost zero.

    The rate depends on the step alone, so a resumed run needs no state for it.

    step: index of the step, from 0 to `total` - 1.
    warm_up: share of all steps in which it rises.
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

    threads: `workload.threads`; None: not set.
    invariant: `train.invariant`.
    """
    variable = os.environ.get("OMP_NUM_THREADS", "")
    own = 1 if invariant else cores(os.environ, env.local_world_size)
    count = threads or (int(variable) if variable.isdecimal() and int(variable) else own)
    torch.set_num_threads(count)
    return count


def be_deterministic(device: torch.device) -> None:
    """Makes torch use only operations that compute the same bits each time on a GPU. CPUs do so in any case.

    See https://docs.pytorch.org/docs/stable/notes/randomness.html.
    """
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS is first used
        torch.backends.cudnn.benchmark = False  # it would choose algorithms by their speed
    if device.type != "cpu":
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def autocast_dtype(precision: str, device: torch.device) -> torch.dtype | None:
    """Returns the type for autocast; None: no autocast, since weights and computation are float32.

    precision: `workload.precision`: auto, float32 or bfloat16.
    Raises WorkloadError: bfloat16 was requested, and the device does not support it.
    """
    capable = devices.has_bfloat16(device)
    if precision == "bfloat16" and not capable:
        name = devices.name(device) or "the CPU"
        raise WorkloadError(
            f"workload.precision=bfloat16 needs a GPU that has it, and this rank computes on {name}: "
            "use workload.precision=auto or float32"
        )
    return torch.bfloat16 if capable and precision != "float32" else None


def weights_sha256(model: nn.Module) -> str:
    """Returns the SHA-256 over names, types, shapes and bytes of all parameters and buffers."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        here = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {here.dtype} {tuple(here.shape)}\n".encode())
        digest.update(ctypes.string_at(here.data_ptr(), here.numel() * here.element_size()))
    return digest.hexdigest()


@dataclass(frozen=True)
class Scores:
    """The result of an evaluation."""

    loss: float  # mean loss
    accuracy: float  # share of right answers, 0 to 1
    samples: int  # number of evaluated samples


@torch.no_grad()
def evaluate(
    model: nn.Module, data: Data, env: Env, chunk: int = CHUNK, between: Callable[[], None] = lambda: None
) -> Scores:
    """Returns the model's scores on the whole test set, bitwise the same at any world size.

    The test set is cut into chunks whose size does not depend on the world size, and each rank computes some of them.
    All ranks must call it.

    model: the model, [n, 1, side, side] -> [n, classes].
    between: called after each chunk, equally often on all ranks, for example to check for a stop.
    Raises WorkloadError: not every sample was counted once.
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

    parts: number of parts of a global batch, over all ranks.
    first: index of this rank's first part.
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
        """Records the losses of a step.

        step: index of the step in the run, from 0.
        sums: for each of this rank's parts of the batch, the sum of the losses of its samples.
        """
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
        """Returns the mean loss and the samples per second over all ranks since the last call. All ranks must call it.

        Raises WorkloadError: a loss was not finite (see `collect`).
        """
        self.collect()
        mean, elapsed = self._logged.value, time.perf_counter() - self._since
        speed = self._steps * self.batch_size / elapsed
        self._logged = _Mean()
        self.resume_clock()
        return mean, speed

    @property
    def mean(self) -> float:
        """Mean loss of the epoch's steps that are collected so far."""
        return self._epoch.value

    def begin_epoch(self) -> None:
        """Resets `mean` for the next epoch."""
        self._epoch = _Mean()

    def resume_clock(self) -> None:
        """Restarts the clock for the samples per second of the next `look`, for instance after an evaluation."""
        self._steps, self._since = 0, time.perf_counter()

    def state(self) -> dict[str, Any]:
        """Returns the state for a checkpoint in JSON types. All ranks must call it."""
        self.collect()
        return {"logged": [self._logged.sum, self._logged.steps], "epoch": [self._epoch.sum, self._epoch.steps]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores a state that `state` returned."""
        self._logged, self._epoch = _Mean(*state["logged"]), _Mean(*state["epoch"])


@dataclass
class _Mean:
    """A mean whose terms are added one by one, so that a resumed training gets bitwise the same mean."""

    sum: float = 0.0  # sum of the terms
    steps: int = 0  # number of the terms

    def add(self, value: float) -> None:
        self.sum += value
        self.steps += 1

    @property
    def value(self) -> float:
        return self.sum / max(1, self.steps)
