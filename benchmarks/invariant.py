"""Step time with train.invariant=true, against an all_reduce of all gradients.

    python -m benchmarks.invariant

The same ranks train the same network in both ways in turns, a few steps each. The result for each number of ranks is
the median of the ratios of neighbouring turns. The plain way is one forward and backward pass over the rank's share of
the batch, and one all_reduce of all gradients (workload.sync=manual). The invariant way has 8 micro-batches.

The network is a CNN for 28x28 images with 0.4 million weights and a batch of 256, whose step is mostly computation. The
detail has the ratio for two networks whose step is not: one of linear layers, which has few operations for each of its
1.9 million weights but reads and adds all of them for each micro-batch; and that of ddp_mnist, with 6,000 weights,
whose step is mostly overhead of calls, which are made once for each micro-batch.
"""

from __future__ import annotations

import argparse
import statistics
import sys

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.measure import Result, interleaved, median_ratio, report
from benchmarks.ranks import in_ranks, slowest
from launcher import Env
from launcher.checkpoint.resumable import seed_generators, share
from workloads.ddp import Net
from workloads.invariant import GradientBuckets, InvariantGradients

TARGET = 1.15
LEAVES = 8


def cnn() -> nn.Module:
    """Returns a network of two convolutions and two linear layers, [n, 1, 28, 28] -> [n, 10]."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten(),
        nn.Linear(64 * 36, 160), nn.ReLU(), nn.Linear(160, 10),
    )  # fmt: skip


def linear() -> nn.Module:
    """Returns a network of three linear layers, [n, 1, 28, 28] -> [n, 10]."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
    )


def tiny() -> nn.Module:
    """Returns the network of ddp_mnist, [n, 1, 28, 28] -> [n, 10]."""
    return Net(28, 10)


NETWORKS = {"cnn": cnn, "linear": linear, "tiny": tiny}


class Way:
    """A way to compute gradients, with its own model and optimizer.

    Args:
        env: this rank.
        kind: name of the network, in NETWORKS.
        images: the global batch, [n, 1, 28, 28].
        labels: its labels, [n].
    """

    def __init__(self, env: Env, kind: str, images: Tensor, labels: Tensor) -> None:
        torch.manual_seed(0)
        self.env, self.images, self.labels = env, images, labels
        self.model = NETWORKS[kind]()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9, fused=True)
        self.taken = 0

    def backward(self, first: int, last: int, weight: float) -> None:
        summed = cross_entropy(self.model(self.images[first:last]), self.labels[first:last], reduction="sum")
        summed.backward(torch.tensor(weight))

    def step(self) -> None:
        raise NotImplementedError

    def steps(self, number: int) -> None:
        for _ in range(number):
            self.step()
            self.optimizer.step()
            self.taken += 1


class Plain(Way):
    def __init__(self, env: Env, kind: str, images: Tensor, labels: Tensor) -> None:
        super().__init__(env, kind, images, labels)
        self.buckets = GradientBuckets(self.model.parameters(), 1024)

    def step(self) -> None:
        self.optimizer.zero_grad()
        first, last = share(len(self.labels), self.env.rank, self.env.world_size)
        self.backward(first, last, self.env.world_size / len(self.labels))
        self.buckets.average()


class Invariant(Way):
    def __init__(self, env: Env, kind: str, images: Tensor, labels: Tensor) -> None:
        super().__init__(env, kind, images, labels)
        self.gradients = InvariantGradients(self.model.parameters(), LEAVES)

    def step(self) -> None:
        self.gradients.begin()
        for leaf in self.gradients.own_leaves:
            seed_generators(0, self.taken, leaf)
            self.backward(*share(len(self.labels), leaf, LEAVES), 1 / len(self.labels))
            self.gradients.leaf_done()
        self.gradients.end()


def compare(env: Env, kind: str, batch_size: int, number: int, repeats: int) -> dict[str, list[float]]:
    """Trains in both ways in turns of `number` steps; returns the seconds of a step in each turn, by "plain" and
    "invariant"."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(batch_size, 1, 28, 28, generator=generator)
    labels = torch.randint(0, 10, (batch_size,), generator=generator)
    plain, invariant = Plain(env, kind, images, labels), Invariant(env, kind, images, labels)
    return interleaved(
        {
            "plain": lambda: slowest(lambda: plain.steps(number)) / number,
            "invariant": lambda: slowest(lambda: invariant.steps(number)) / number,
        },
        repeats,
    )


def results(repeats: int = 15, batch_size: int = 256) -> list[Result]:
    found = []
    for world_size in (2, 4):
        seconds = in_ranks(compare, world_size, "cnn", batch_size, 2, repeats)
        worse = []
        for kind, number in (("linear", 3), ("tiny", 20)):
            others = in_ranks(compare, world_size, kind, batch_size, number, repeats)
            milliseconds = " and ".join(f"{statistics.median(taken) * 1e3:.1f}" for taken in others.values())
            worse.append(f"{kind} {median_ratio(others, 'invariant', 'plain'):.2f} x ({milliseconds} ms)")
        times = ", ".join(f"{name} {statistics.median(taken) * 1e3:.1f} ms" for name, taken in seconds.items())
        found.append(
            Result(
                f"step of train.invariant / plain all_reduce, {world_size} ranks",
                median_ratio(seconds, "invariant", "plain"),
                TARGET,
                f"{times} a step, median of {repeats} rounds, {LEAVES} micro-batches of {batch_size // LEAVES}; "
                f"other networks: {', '.join(worse)}",
            )
        )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15, help="turns of each way that are timed")
    parser.add_argument("--batch-size", type=int, default=256, help="images per step over all ranks together")
    options = parser.parse_args()
    return report(results(options.repeats, options.batch_size))


if __name__ == "__main__":
    sys.exit(main())
