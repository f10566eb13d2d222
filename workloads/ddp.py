"""Trains a small CNN on images of digits or clothes with data parallelism: the workload `ddp_mnist`."""

from __future__ import annotations

import dataclasses
import time
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, relu
from torch.nn.parallel import DistributedDataParallel

from launcher import Resumable, evaluated, progress
from launcher.checkpoint.resumable import GlobalBatchSampler, generators, restore_generators, seed_generators
from launcher.formatting import plural
from launcher.worker.stop import Settings, settings
from workloads import image_data, training
from workloads.across_ranks import WorkloadError, gather, introduce, same_everywhere, say, together
from workloads.invariant import GradientBuckets, InvariantGradients
from workloads.training import Data, load

if TYPE_CHECKING:
    from launcher import Env
    from launcher.config.schema import DDPMnist

CHANNELS = 12  # outputs of the convolution


class Net(nn.Module):
    """One convolution and one linear layer for square images: [n, 1, side, side] -> scores [n, classes].

    Small on purpose: it learns digits in a second, so that the launcher is measured and not the arithmetic. It has no
    batch normalisation, whose statistics would make the result depend on how the batch is split.
    """

    def __init__(self, side: int, classes: int) -> None:
        super().__init__()
        stride = 4 if side >= 16 else 2
        self.convolution = nn.Conv2d(1, CHANNELS, stride + 1, stride, stride // 2, bias=False)
        self.linear = nn.Linear(CHANNELS * ((side - 1) // stride + 1) ** 2, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.linear(relu(self.convolution(images), inplace=True).flatten(1))


class Trainer:
    """One training run on this rank. `run` is the training loop, and calls the other methods."""

    def __init__(self, config: DDPMnist, env: Env, run: Settings | None = None) -> None:
        self.config, self.env = config, env
        self.settings = settings() if run is None else run
        self.found, self.data = self.load()
        self.epochs = config.epochs if config.epochs is not None else self.found.dataset.epochs
        self.threads = training.set_threads(config.threads, env, self.settings.train.invariant)
        self.dtype = training.autocast_dtype(config.precision.value, env.device)
        training.be_deterministic(env.device)
        training.seed_everything(config.seed)
        self.build()

    def load(self) -> tuple[image_data.Found, Data]:
        """Finds and loads the data set; raises WorkloadError if any rank lacks it, or has a different one."""

        def read() -> tuple[image_data.Found, Data]:
            found = image_data.find(self.config.dataset, self.config.data_dir)
            return found, load(found, self.env.device)

        found, data = together(read, self.env)
        same_everywhere("the data set (choose one with workload.dataset=...)", found.name, self.env)
        same_everywhere("the training data", (len(data.train), len(data.test), data.mean, data.std), self.env)
        return found, data

    def build(self) -> None:
        config, env = self.config, self.env
        leaves = self.settings.train.micro_batches if self.settings.train.invariant else None
        try:
            self.sampler = GlobalBatchSampler(
                len(self.data.train), config.batch_size, config.seed, env.rank, env.world_size, env.device, leaves
            )
        except ValueError as error:
            raise WorkloadError(str(error)) from error
        self.total_steps = self.epochs * self.sampler.steps_per_epoch
        most, largest = config.micro_batch_size, max(self.sampler.sizes)
        if most is not None and leaves is not None and largest > most:
            raise WorkloadError(
                f"workload.micro_batch_size={most}, and train.micro_batches={leaves} makes micro-batches of {largest} "
                f"samples: set train.micro_batches={-(-config.batch_size // most)}"
            )
        self.model = Net(self.data.side, self.data.classes).to(env.device)
        # Before DDP, which would overwrite the weights of other ranks with those of rank 0 and so hide a difference.
        same_everywhere("the initial weights", training.weights_sha256(self.model), env)
        self.parallel: nn.Module = self.model
        self.buckets: GradientBuckets | None = None
        self.leaves: InvariantGradients | None = None
        if leaves is not None:
            self.leaves = InvariantGradients(self.model.parameters(), leaves)
        elif env.world_size > 1 and config.sync.value == "ddp":  # a single rank has nothing to average
            ids = [env.device.index] if env.device.type != "cpu" else None
            self.parallel = DistributedDataParallel(self.model, device_ids=ids, bucket_cap_mb=config.bucket_mb)
            self.settle_buckets()
        elif env.world_size > 1:
            self.buckets = GradientBuckets(self.model.parameters(), config.bucket_mb)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(),
            lr=config.lr,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
            fused=True,  # one call for all parameters
        )
        self.weight = torch.tensor(self.sampler.weight if leaves is None else 1 / config.batch_size, device=env.device)
        parts = (
            (env.world_size, env.rank)
            if self.leaves is None
            else (self.settings.train.micro_batches, self.leaves.own_leaves.start)
        )
        self.losses = training.LossLog(config.batch_size, *parts)
        self.steps = self.finished = 0  # steps done; epochs done, including their evaluation
        self.scores: training.Scores | None = None  # of the last evaluation
        self.resumable = Resumable(
            {"model": self.model, "optimizer": self.optimizer, "trainer": self}, identity=self.identity(),
            unlike=self.unlike(), seed=config.seed, env=env, run=self.settings,
        )  # fmt: skip

    def settle_buckets(self) -> None:
        """Runs two forward and backward passes, and discards their gradients.

        DistributedDataParallel rebuilds its buckets after the first pass, which changes the order of sums. Without this
        method it would do so after each resume, so one step would have another order than in a run that was never
        stopped, and with three ranks or more other weights.
        """
        before = generators(self.env.device)
        for _ in range(2):
            images, _ = self.data.batch(self.data.train, slice(0, 1))
            self.parallel(images).sum().backward()
        self.model.zero_grad()
        restore_generators(before, self.env.device)

    def state_dict(self) -> dict[str, Any]:
        """Returns the position of the training, but for the steps, for a checkpoint. All ranks must call it."""
        scores = None if self.scores is None else dataclasses.asdict(self.scores)
        return {"finished": self.finished, "losses": self.losses.state(), "scores": scores}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.finished = state["finished"]
        self.scores = training.Scores(**state["scores"]) if state["scores"] else None
        self.losses.restore(state["losses"])

    def identity(self) -> dict[str, Any]:
        """Returns facts about this training. A checkpoint with other values is refused."""
        config = self.config
        return {
            "model": {name: list(tensor.shape) for name, tensor in self.model.state_dict().items()},
            "optimizer": type(self.optimizer).__name__,
            "workload.lr": config.lr,
            "workload.momentum": config.momentum,
            "workload.weight_decay": config.weight_decay,
            "workload.dataset": self.found.name,
            "training images": len(self.data.train),
            "workload.batch_size": config.batch_size,
            "workload.seed": config.seed,
            "workload.epochs": self.epochs,  # the learning rate depends on it
            "workload.precision": str(self.dtype or torch.float32).removeprefix("torch."),
        }

    def unlike(self) -> dict[str, Any]:
        """Returns the config values that may change the order of sums, and so the last bits of the weights, by key."""
        if self.settings.train.invariant:
            return {}
        config = self.config
        return {
            "workload.micro_batch_size": config.micro_batch_size,
            "workload.sync": config.sync.value,
            "workload.bucket_mb": config.bucket_mb,
        }

    def precision(self) -> AbstractContextManager[object]:
        """Returns the context of a forward pass."""
        return torch.autocast(self.env.device.type, self.dtype) if self.dtype else nullcontext()

    def step(self, step: int, chosen: Tensor) -> None:
        """Does one optimizer step (of the run, from 0) on this rank's samples: their indices, int64 [n]."""
        for group in self.optimizer.param_groups:
            group["lr"] = training.learning_rate(step, self.total_steps, self.config.lr)
        sums = self.average(chosen) if self.leaves is None else self.add_up(self.leaves, step, chosen)
        self.optimizer.step()
        self.losses.add(step, *sums)
        self.steps = step + 1

    def average(self, chosen: Tensor) -> list[Tensor]:
        """Computes the mean gradients of the global batch; returns a list with the sum of this rank's losses."""
        most = self.config.micro_batch_size
        pieces = (chosen,) if most is None else chosen.tensor_split(-(-len(chosen) // most))
        self.optimizer.zero_grad()
        sums = []
        for number, piece in enumerate(pieces, 1):
            more = number < len(pieces)  # gradients are averaged once, after the last piece
            parallel = self.parallel
            with parallel.no_sync() if more and isinstance(parallel, DistributedDataParallel) else nullcontext():
                sums.append(self.backward(piece))
        if self.buckets:
            self.buckets.average()
        return [sums[0] if len(sums) == 1 else torch.stack(sums).sum()]

    def add_up(self, leaves: InvariantGradients, step: int, chosen: Tensor) -> list[Tensor]:
        """Computes them, bitwise the same at any world size; returns the sum of losses of each of its micro-batches."""
        sums = []
        leaves.begin()
        for leaf, piece in zip(leaves.own_leaves, chosen.split(self.sampler.sizes), strict=True):
            seed_generators(self.config.seed, step, leaf)
            sums.append(self.backward(piece))
            leaves.leaf_done()
        leaves.end()
        return sums

    def backward(self, chosen: Tensor) -> Tensor:
        """Adds to the gradients those of some samples; returns the sum of their losses."""
        images, labels = self.data.batch(self.data.train, chosen)
        with self.precision():
            scores = self.parallel(images)
        summed = cross_entropy(scores.float(), labels, reduction="sum")
        summed.backward(self.weight)
        return summed.detach()

    def log(self, step: int, epoch: int) -> tuple[float, float]:
        """Returns the mean loss and images/s since the last call; rank 0 prints them. All ranks must call it."""
        loss, speed = self.losses.look()
        if self.env.rank == 0:
            rate = self.optimizer.param_groups[0]["lr"]
            place = f"step {step + 1}/{self.total_steps} epoch {epoch + 1}/{self.epochs}"
            say(f"{place} loss {loss:.4f} lr {rate:.4f} {speed:,.0f} images/s")
            values = {"epoch": epoch + 1, "loss": round(loss, 4), "lr": round(rate, 6), "images_per_s": round(speed)}
            progress(step + 1, self.total_steps, **values)
        return loss, speed

    def evaluate(self, epoch: int) -> training.Scores:
        """Returns accuracy and loss on the test set; rank 0 prints them. All ranks must call it."""
        scores = training.evaluate(
            self.model, self.data, self.env, between=lambda: self.resumable.boundary(self.steps)
        )  # fmt: skip
        if self.env.rank == 0:
            place = f"epoch {epoch + 1}/{self.epochs}"
            say(f"{place} test accuracy {scores.accuracy:.4f} loss {scores.loss:.4f} ({scores.samples} images)")
            evaluated(self.steps, accuracy=round(scores.accuracy, 5), test_loss=round(scores.loss, 4))
        return scores

    def train(self, epoch: int) -> None:
        done = self.steps - epoch * self.sampler.steps_per_epoch
        if done == 0:
            self.losses.begin_epoch()
        self.losses.resume_clock()
        for inner, chosen in self.sampler.batches(epoch, done):
            step = self.steps
            self.step(step, chosen)
            if (step + 1) % self.config.log_every == 0 or inner + 1 == self.sampler.steps_per_epoch:
                self.log(step, epoch)
            self.resumable.boundary(step + 1)

    def run(self) -> dict[str, float | int | str]:
        """Trains for all remaining epochs; returns the metrics of the run (see `main`)."""
        started = time.perf_counter()
        training_time = 0.0
        self.announce()
        before = self.steps = self.resumable.load()
        for epoch in range(self.finished, self.epochs):
            begun = time.perf_counter()
            self.train(epoch)
            training_time += time.perf_counter() - begun
            self.scores = self.evaluate(epoch)
            self.finished = epoch + 1
            self.resumable.evaluated(self.steps, {"accuracy": self.scores.accuracy, "test_loss": self.scores.loss})
        assert self.scores is not None  # there is at least one epoch, evaluated now or by an earlier attempt
        weights = training.weights_sha256(self.model)
        same_everywhere("the final weights", weights, self.env)
        self.resumable.finish(self.steps)
        self.conclude(self.scores.accuracy)
        return {
            "accuracy": self.scores.accuracy,
            "loss": self.losses.mean,
            "test_loss": self.scores.loss,
            "images_per_s": (self.steps - before) * self.config.batch_size / max(training_time, 1e-9),
            "epochs": self.epochs,
            "steps": self.total_steps,
            "dataset": self.found.name,
            "seconds": time.perf_counter() - started,
            "weights_sha256": weights,
        }

    def announce(self) -> None:
        introduce(self.env)
        gather(None, self.env)
        if self.env.rank == 0:
            shares = "one process" if self.env.world_size == 1 else f"sync={self.config.sync.value}"
            if self.leaves is not None:
                shares = f"train.invariant=true with {self.settings.train.micro_batches} micro-batches"
            say(
                f"data set {self.found.name} ({self.found.how}: {self.found.dir}), {len(self.data.train)} images for "
                f"training, {len(self.data.test)} for test"
            )
            say(
                f"{plural(self.epochs, 'epoch')} of {plural(self.sampler.steps_per_epoch, 'step')}, "
                f"{plural(self.config.batch_size, 'image')} a step, {shares}, "
                f"{self.dtype or torch.float32}, {plural(self.threads, 'thread')} a rank"
            )

    def conclude(self, accuracy: float) -> None:
        known = self.found.dataset
        if self.env.rank == 0:
            verdict = "reached" if accuracy >= known.accuracy else "not reached"
            say(
                f"accuracy {accuracy:.4f} on {known.name} after {plural(self.epochs, 'epoch')}; expected with the "
                f"defaults: {known.accuracy:.2f} after {known.epochs} ({verdict})"
            )


def main(config: DDPMnist, env: Env) -> dict[str, float | int | str]:
    """Trains the model; returns the metrics of the run, of which images_per_s and seconds are of the last attempt."""
    return Trainer(config, env).run()
