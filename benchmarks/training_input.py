"""Images per second of ddp_mnist's training loop, against the same model with a DataLoader.

    python -m benchmarks.training_input

Both loops run in this process in turns, with the same network, optimizer, batch size and number of threads. The result
for each data set is the median of the ratios. The plain loop has a `torch.utils.data.DataLoader` (no workers, default
collate) over a Dataset that returns one image as a normalised float tensor, and its label as an int. The data sets are
digits, and MNIST or Fashion-MNIST if it is on this machine, or else random images of that size.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

from benchmarks.measure import Result, interleaved, report
from launcher import Env, init
from launcher.config.schema import DDPMnist
from workloads import image_data
from workloads.ddp import Net, Trainer
from workloads.training import Data, Split, load

TARGET = 2.5  # least ratio of images per second


class SingleImages(Dataset[tuple[Tensor, int]]):
    """Returns one image at a time as torchvision's MNIST does, as a normalised float tensor, but without using PIL."""

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


def compare(data: Data, config: DDPMnist, env: Env, repeats: int, least: int) -> Result:
    """Trains in both ways in turns of at least `least` images; returns the median ratio of images per second."""

    class Prepared(Trainer):
        def load(self) -> tuple[image_data.Found, Data]:
            return image_data.find("digits"), data

    trainer = Prepared(config, env)
    model = Net(data.side, data.classes)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay, fused=True
    )
    images = trainer.sampler.steps_per_epoch * config.batch_size
    passes = -(-least // images)  # one epoch of a small data set is too short to be timed
    epochs = itertools.count()

    def ours() -> None:
        for _ in range(passes):
            memory_epoch(trainer, next(epochs))

    def plain() -> None:
        for _ in range(passes):
            plain_epoch(data, config, model, optimizer)

    seconds = interleaved({"ours": lambda: timed(ours), "plain": lambda: timed(plain)}, repeats)
    ratios = sorted(plain / mine for mine, plain in zip(seconds["ours"], seconds["plain"], strict=True))
    rates = {name: passes * images / statistics.median(taken) for name, taken in seconds.items()}
    return Result(
        f"images/s on images of {data.side}x{data.side} / DataLoader",
        statistics.median(ratios),
        TARGET,
        f"{rates['ours']:,.0f} images/s in memory, {rates['plain']:,.0f} with a DataLoader "
        f"({ratios[0]:.2f} to {ratios[-1]:.2f} in {repeats} rounds, batch {config.batch_size}, "
        f"{trainer.threads} thread(s))",
        at_least=True,
    )


def timed(function: Callable[[], None]) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def large_set(count: int) -> Data:
    """Returns `count` training images of MNIST or Fashion-MNIST, or random images if neither is on this machine."""
    try:
        found = image_data.find("auto")
        data = load(found)
    except image_data.DatasetError:
        data = None
    if data is None or data.side != 28:
        generator = torch.Generator().manual_seed(0)
        images = torch.randint(0, 256, (count, 28, 28), dtype=torch.uint8, generator=generator)
        split = Split(images, torch.randint(0, 10, (count,), generator=generator))
        return Data(10, split, split, 127.5, 73.9)
    return dataclasses.replace(data, train=Split(data.train.images[:count].clone(), data.train.labels[:count].clone()))


def results(
    batch_size: int = DDPMnist.batch_size, threads: int = 1, repeats: int = 9, images: int = 12_800
) -> list[Result]:
    config = DDPMnist(name="ddp_mnist", entry="", seed=0, batch_size=batch_size, threads=threads)
    env = init(backend="gloo", device="cpu")
    sets = load(image_data.find("digits")), large_set(images)
    return [compare(data, config, env, repeats, images) for data in sets]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=DDPMnist.batch_size, help="images per step")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of both loops")
    parser.add_argument("--repeats", type=int, default=9, help="epochs of each loop that are timed")
    parser.add_argument("--images", type=int, default=12_800, help="size of the 28x28 set that is used")
    options = parser.parse_args()
    return report(results(options.batch_size, options.threads, options.repeats, options.images))


if __name__ == "__main__":
    sys.exit(main())
