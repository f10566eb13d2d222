"""The same as with_lightning.py, by Hugging Face's Trainer: `with_transformers.py [EPOCHS [PAUSE]]`."""

from __future__ import annotations

import hashlib
import sys
import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed

from launcher import report
from launcher.integrations.transformers import LauncherCallback, checkpoint_dir, last_checkpoint


class Model(nn.Module):
    def __init__(self, pause: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 1))
        self.pause = pause

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        time.sleep(self.pause if self.training else 0)
        found = self.layers(inputs)
        return {"loss": (found - labels).square().mean(), "logits": found}


class Sums(Dataset[dict[str, torch.Tensor]]):
    def __init__(self) -> None:
        self.data = torch.randn(160, 8)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"inputs": self.data[index], "labels": self.data[index].sum(0, keepdim=True)}


def train(epochs: int, pause: float, callbacks: list[TrainerCallback], checkpoint: str | None) -> str:
    """Trains, and returns a digest of the weights."""
    set_seed(7)
    settings: dict[str, Any] = {
        "save_strategy": "no",
        "eval_strategy": "steps",
        "eval_steps": 20 * epochs,
        "report_to": "none",
    }
    arguments = TrainingArguments(
        str(checkpoint_dir("/tmp/sums")), num_train_epochs=epochs, per_device_train_batch_size=4, learning_rate=0.01,
        use_cpu=True, disable_tqdm=True, logging_steps=5, **settings,
    )  # fmt: skip
    model, samples = Model(pause), Sums()
    trainer = Trainer(model, arguments, train_dataset=samples, eval_dataset=samples, callbacks=callbacks)
    trainer.train(resume_from_checkpoint=checkpoint)
    weights = torch.cat([each.detach().flatten() for each in model.parameters()])
    return hashlib.sha256(weights.numpy().tobytes()).hexdigest()


def main(epochs: int = 4, pause: float = 0.0) -> None:
    report(weights=train(epochs, pause, [LauncherCallback()], last_checkpoint()))
    report(undisturbed=train(epochs, 0, [], None))


if __name__ == "__main__":
    main(*(kind(word) for kind, word in zip((int, float), sys.argv[1:], strict=False)))
