"""A training by Lightning with the launcher's callback, and without it: `with_lightning.py [EPOCHS [PAUSE]]`."""

from __future__ import annotations

import hashlib
import os
import sys
import time

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from launcher import report
from launcher.integrations.lightning import LauncherCallback, last_checkpoint


class Model(lightning.LightningModule):
    def __init__(self, pause: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 1))
        self.pause = pause

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        time.sleep(self.pause)
        loss = (self.layers(batch[0]) - batch[1]).square().mean()
        self.log("doubled", 2 * loss)
        return loss

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        self.log("val_loss", (self.layers(batch[0]) - batch[1]).square().mean(), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


def train(epochs: int, pause: float, callbacks: list[lightning.Callback], checkpoint: str | None) -> str:
    """Trains, and returns a digest of the weights."""
    lightning.seed_everything(7)
    data = torch.randn(160, 8)
    samples = TensorDataset(data, data.sum(1, keepdim=True))
    trainer = lightning.Trainer(
        max_epochs=epochs, accelerator="cpu", devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")), strategy="ddp",
        callbacks=callbacks, log_every_n_steps=5, check_val_every_n_epoch=epochs, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    model = Model(pause)
    ready = DataLoader(samples, batch_size=4, shuffle=True), DataLoader(samples, batch_size=40)
    trainer.fit(model, *ready, ckpt_path=checkpoint)
    weights = torch.cat([each.detach().flatten() for each in model.parameters()])
    return hashlib.sha256(weights.numpy().tobytes()).hexdigest()


def main(epochs: int = 4, pause: float = 0.0) -> None:
    report(weights=train(epochs, pause, [LauncherCallback()], last_checkpoint()))
    report(undisturbed=train(epochs, 0, [], None))


if __name__ == "__main__":
    main(*(kind(word) for kind, word in zip((int, float), sys.argv[1:], strict=False)))
