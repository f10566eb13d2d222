"""The same by Lightning."""

import argparse
import os

import lightning
import torch
from samples import Samples
from torch import nn
from torch.utils.data import DataLoader


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 1)

    def training_step(self, batch, index):
        return (self.layer(batch["inputs"]) - batch["labels"]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--data", default="")
    args = parser.parse_args()
    trainer = lightning.Trainer(
        max_epochs=args.epochs,
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        strategy="ddp",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Model(), DataLoader(Samples(args.data), batch_size=4))


if __name__ == "__main__":
    main()
