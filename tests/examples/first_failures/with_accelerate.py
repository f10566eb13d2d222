"""The same by a loop with Hugging Face's accelerate."""

import argparse

import torch
from accelerate import Accelerator
from samples import Samples
from torch import nn
from torch.utils.data import DataLoader


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--data", default="")
    args = parser.parse_args()
    accelerator = Accelerator(cpu=True)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(Samples(args.data), batch_size=4))
    for _ in range(args.epochs):
        for batch in loader:
            loss = (model(batch["inputs"]) - batch["labels"]).square().mean()
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
    accelerator.end_training()


if __name__ == "__main__":
    main()
