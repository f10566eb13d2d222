"""As it is written for torchrun."""

import argparse

import torch
import torch.distributed as dist
from samples import Samples
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--data", default="")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    data = Samples(args.data)
    model = DistributedDataParallel(nn.Linear(8, 1).to(args.device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(args.epochs):
        for batch in DataLoader(data, 4, sampler=DistributedSampler(data)):
            loss = (model(batch["inputs"]) - batch["labels"]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
