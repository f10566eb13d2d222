"""Images per second of ddp_mnist's training loop against the same model fed by a plain DataLoader, in one run.

    python benchmarks/training_input.py

Both loops run in this one process with the same network, optimizer, batch size and threads, one after the other,
again and again; the line for each set gives the median of each and of their ratio. The plain loop is a
`torch.utils.data.DataLoader` (no workers, default collate) over a Dataset that returns one image as a normalised float
tensor and its label as an int. A real MNIST or Fashion-MNIST is used when there is one, else random bytes of that size.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import time
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from launcher import datasets
from launcher.config import DDPMnist
from launcher.node import Env, init
from workloads.data import Data, Split, load
from workloads.ddp import Net, Trainer


class SingleImages(Dataset[tuple[Tensor, int]]):
    """One image at a time, as torchvision's MNIST returns it but without the detour through PIL: float, normalised."""

    def __init__(self, data: Data) -> None:
        self.images, self.labels = data.train.images, data.train.labels
        self.mean, self.std = data.mean / 255, data.std / 255

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = self.images[index].unsqueeze(0).to(torch.float32).div(255)
        return image.sub(self.mean).div(self.std), int(self.labels[index])


def plain_epoch(data: Data, config: DDPMnist, model: Net, optimizer: torch.optim.Optimizer) -> None:
    for images, labels in DataLoader(SingleImages(data), config.batch_size, shuffle=True, drop_last=True):
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        optimizer.step()


def memory_epoch(trainer: Trainer, epoch: int) -> None:
    for step, chosen in trainer.sampler.batches(epoch):
        trainer.step(step, chosen)
    trainer.losses.look()


def compare(data: Data, config: DDPMnist, env: Env, repeats: int) -> float:
    """Print the line for one data set and return the median ratio."""

    class Prepared(Trainer):
        def load(self) -> tuple[datasets.Found, Data]:
            return datasets.find("digits"), data

    trainer = Prepared(config, env)
    model = Net(data.side, data.classes)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay, fused=True
    )
    images = trainer.sampler.steps_per_epoch * config.batch_size
    ours, theirs = [], []
    for repeat in range(repeats + 1):
        started = time.perf_counter()
        memory_epoch(trainer, repeat)
        between = time.perf_counter()
        plain_epoch(data, config, model, optimizer)
        ended = time.perf_counter()
        if repeat:  # the first one warms up
            ours.append(images / (between - started))
            theirs.append(images / (ended - between))
    ratios = sorted(mine / plain for mine, plain in zip(ours, theirs, strict=True))
    ratio = statistics.median(ratios)
    print(
        f"{data.name} {data.side}x{data.side}: {statistics.median(ours):,.0f} images/s in memory, "
        f"{statistics.median(theirs):,.0f} with a DataLoader: ratio {ratio:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}, "
        f"{repeats} times, batch {config.batch_size}, {trainer.threads} thread(s))"
    )
    return ratio


def large_set(count: int) -> Data:
    """`count` training images of a real 28x28 set if one is here, else of random bytes."""
    try:
        found = datasets.find("auto")
        data = load(found)
    except datasets.DatasetError:
        data = None
    if data is None or data.side != 28:
        generator = torch.Generator().manual_seed(0)
        images = torch.randint(0, 256, (count, 28, 28), dtype=torch.uint8, generator=generator)
        split = Split(images, torch.randint(0, 10, (count,), generator=generator))
        return Data("random", 10, split, split, 127.5, 73.9)
    return dataclasses.replace(data, train=Split(data.train.images[:count].clone(), data.train.labels[:count].clone()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=DDPMnist.batch_size, help="images per step")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of both loops")
    parser.add_argument("--repeats", type=int, default=9, help="epochs of each loop that are timed")
    parser.add_argument("--images", type=int, default=12_800, help="size of the 28x28 set that is used")
    parser.add_argument("--at-least", type=float, default=0.0, help="exit 1 if a ratio is below this")
    options = parser.parse_args()
    config = DDPMnist(name="ddp_mnist", entry="", seed=0, batch_size=options.batch_size, threads=options.threads)
    env = init(backend="gloo", device="cpu")
    sets = (load(datasets.find("digits")), large_set(options.images))
    ratios = [compare(data, config, env, options.repeats) for data in sets]
    return 0 if min(ratios) >= options.at_least else 1


if __name__ == "__main__":
    sys.exit(main())
