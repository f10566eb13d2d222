"""Train a small CNN on images of digits or clothes with data parallelism: the workload `ddp_mnist`."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, relu
from torch.nn.parallel import DistributedDataParallel

from launcher import datasets
from workloads import training
from workloads.buckets import GradientBuckets
from workloads.data import Data, GlobalBatchSampler, load
from workloads.ranks import WorkloadError, gather, introduce, raise_together, same_everywhere, say

if TYPE_CHECKING:
    from launcher.config import DDPMnist
    from launcher.node import Env

CHANNELS = 12


class Net(nn.Module):
    """One convolution and one linear layer for square images: [n, 1, side, side] -> scores [n, classes].

    Small on purpose: it learns digits in a second, and makes the launcher, not the arithmetic, what is measured. It
    has no batch normalisation, whose statistics would make the result depend on how the batch is shared out.
    """

    def __init__(self, side: int, classes: int) -> None:
        super().__init__()
        stride = 4 if side >= 16 else 2
        self.convolution = nn.Conv2d(1, CHANNELS, stride + 1, stride, stride // 2, bias=False)
        self.linear = nn.Linear(CHANNELS * ((side - 1) // stride + 1) ** 2, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.linear(relu(self.convolution(images), inplace=True).flatten(1))


class Trainer:
    """One training run on this rank: `run` reads like the run goes, the other methods are its parts."""

    def __init__(self, config: DDPMnist, env: Env) -> None:
        self.config, self.env = config, env
        self.found, self.data = self.load()
        self.epochs = config.epochs if config.epochs is not None else self.found.dataset.epochs
        if self.epochs < 1:
            raise WorkloadError(f"workload.epochs={self.epochs}: train for at least one")
        if config.log_every < 1:
            raise WorkloadError(f"workload.log_every={config.log_every}: it must be 1 or more")
        self.threads = training.set_threads(config.threads, env)
        self.dtype = training.autocast_dtype(config.precision.value, env.device)
        training.seed_everything(config.seed)
        self.build()

    def load(self) -> tuple[datasets.Found, Data]:
        """The data set, the same one on every rank.

        Raises:
            WorkloadError: it is missing or damaged on some rank, or `auto` finds different ones.
        """
        found, data, error = None, None, None
        try:
            found = datasets.find(self.config.dataset, self.config.data_dir)
            data = load(found, self.env.device)
        except datasets.DatasetError as failure:
            error = str(failure)
        raise_together(error, self.env)
        assert found is not None and data is not None  # else some rank had an error, and all have raised it
        same_everywhere("the data set (choose one with workload.dataset=...)", found.name, self.env)
        same_everywhere("the training data", (len(data.train), len(data.test), data.mean, data.std), self.env)
        return found, data

    def build(self) -> None:
        """Model, optimizer, and what averages gradients."""
        config, env = self.config, self.env
        try:
            self.sampler = GlobalBatchSampler(
                len(self.data.train), config.batch_size, config.seed, env.rank, env.world_size, env.device
            )
        except ValueError as error:
            raise WorkloadError(str(error)) from error
        self.total_steps = self.epochs * self.sampler.steps_per_epoch
        self.model = Net(self.data.side, self.data.classes).to(env.device)
        # Before DDP, which would overwrite other ranks' weights with rank 0's and hide that they differ.
        same_everywhere("the initial weights", training.weights_sha256(self.model), env)
        self.parallel: nn.Module = self.model
        self.buckets: GradientBuckets | None = None
        if env.world_size > 1:  # a single rank has nothing to average
            if config.sync.value == "ddp":
                ids = [env.device.index] if env.device.type == "cuda" else None
                self.parallel = DistributedDataParallel(self.model, device_ids=ids, bucket_cap_mb=config.bucket_mb)
            else:
                self.buckets = GradientBuckets(self.model.parameters(), config.bucket_mb)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(),
            lr=config.lr,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
            fused=True,  # one call for all parameters
        )
        self.weight = torch.tensor(self.sampler.weight, device=env.device)
        self.losses = training.LossLog(config.batch_size)

    def precision(self) -> AbstractContextManager[object]:
        """The arithmetic of the forward pass."""
        return torch.autocast(self.env.device.type, self.dtype) if self.dtype else nullcontext()

    def step(self, step: int, chosen: Tensor) -> None:
        """One optimizer step on this rank's share of the global batch; `step` counts from the start of the run."""
        for group in self.optimizer.param_groups:
            group["lr"] = training.learning_rate(step, self.total_steps, self.config.lr)
        images, labels = self.data.batch(self.data.train, chosen)
        with self.precision():
            scores = self.parallel(images)
        summed = cross_entropy(scores.float(), labels, reduction="sum")
        self.optimizer.zero_grad()
        summed.backward(self.weight)
        if self.buckets:
            self.buckets.average()
        self.optimizer.step()
        self.losses.add(step, summed)

    def log(self, step: int, epoch: int) -> tuple[float, float]:
        """(loss, images/s) since the last call, shown by rank 0. All ranks must call it.

        Raises:
            WorkloadError: the loss of a step was not finite.
        """
        from launcher.node import progress

        loss, speed = self.losses.look()
        if self.env.rank == 0:
            rate = self.optimizer.param_groups[0]["lr"]
            place = f"step {step + 1}/{self.total_steps} epoch {epoch + 1}/{self.epochs}"
            say(f"{place} loss {loss:.4f} lr {rate:.4f} {speed:,.0f} images/s")
            progress(step + 1, self.total_steps, epoch=epoch + 1, loss=round(loss, 4), images_per_s=round(speed))
        return loss, speed

    def evaluate(self, epoch: int) -> training.Scores:
        """Accuracy and loss on the test set, shown by rank 0. All ranks must call it."""
        scores = training.evaluate(self.model, self.data, self.env)
        if self.env.rank == 0:
            place = f"epoch {epoch + 1}/{self.epochs}"
            say(f"{place} test accuracy {scores.accuracy:.4f} loss {scores.loss:.4f} ({scores.samples} images)")
        return scores

    def run(self) -> dict[str, float | int | str]:
        """Train for all epochs; the metrics of the run."""
        started = time.perf_counter()
        training_time = 0.0
        self.announce()
        for epoch in range(self.epochs):
            sums = [0.0, 0.0]  # of the epoch's losses, and steps
            begun = time.perf_counter()
            self.losses.resume_clock()
            for inner, chosen in self.sampler.batches(epoch):
                step = epoch * self.sampler.steps_per_epoch + inner
                self.step(step, chosen)
                if (step + 1) % self.config.log_every == 0 or inner + 1 == self.sampler.steps_per_epoch:
                    loss, _ = self.log(step, epoch)
                    count = inner + 1 - sums[1]
                    sums = [sums[0] + loss * count, sums[1] + count]
            training_time += time.perf_counter() - begun
            scores = self.evaluate(epoch)
        weights = training.weights_sha256(self.model)
        same_everywhere("the final weights", weights, self.env)
        self.conclude(scores.accuracy)
        return {
            "accuracy": scores.accuracy,
            "loss": sums[0] / sums[1],
            "test_loss": scores.loss,
            "images_per_s": self.total_steps * self.config.batch_size / training_time,
            "epochs": self.epochs,
            "steps": self.total_steps,
            "dataset": self.found.name,
            "seconds": time.perf_counter() - started,
            "weights_sha256": weights,
        }

    def announce(self) -> None:
        """What is trained on what; the ranks' lines come first."""
        introduce(self.env)
        gather(None, self.env)
        if self.env.rank == 0:
            shares = "one process" if self.env.world_size == 1 else f"sync={self.config.sync.value}"
            say(
                f"data set {self.found.name} ({self.found.how}: {self.found.dir}), {len(self.data.train)} images for "
                f"training, {len(self.data.test)} for test"
            )
            say(
                f"{self.epochs} epochs of {self.sampler.steps_per_epoch} steps, "
                f"{self.config.batch_size} images a step, {shares}, "
                f"{self.dtype or torch.float32}, {self.threads} threads a rank"
            )

    def conclude(self, accuracy: float) -> None:
        """Rank 0's last line: the accuracy against the one to expect."""
        known = self.found.dataset
        if self.env.rank == 0:
            verdict = "reached" if accuracy >= known.accuracy else "not reached"
            say(
                f"accuracy {accuracy:.4f} on {known.name} after {self.epochs} epochs; expected with the defaults: "
                f"{known.accuracy:.2f} after {known.epochs} ({verdict})"
            )


def main(config: DDPMnist, env: Env) -> dict[str, float | int | str]:
    """Train and return accuracy, loss, images_per_s, epochs, steps, dataset, seconds, weights_sha256 and test_loss."""
    return Trainer(config, env).run()
