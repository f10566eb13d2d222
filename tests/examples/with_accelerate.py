"""The same as with_lightning.py, by a loop with Hugging Face's accelerate: `with_accelerate.py [EPOCHS [PAUSE]]`."""

from __future__ import annotations

import hashlib
import sys
import time

import torch
import torch.distributed as dist
from accelerate import Accelerator, DataLoaderConfiguration, skip_first_batches
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader

from launcher import Resumable, progress, report


def train(accelerator: Accelerator, epochs: int, pause: float, *, resumable: bool) -> str:
    """Trains, and returns a digest of the weights."""
    set_seed(7)
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 1))
    # With a generator of its own, a loader that begins again in the middle of an epoch draws no other random number.
    loader = DataLoader(torch.randn(160, 8), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    set_seed(7, device_specific=True)
    training = Resumable({"model": model, "optimizer": optimizer, "scheduler": scheduler}) if resumable else None
    done, steps = training.load() if training else 0, epochs * len(loader)
    for epoch in range(done // len(loader), epochs):
        loader.set_epoch(epoch)
        for inputs in skip_first_batches(loader, done - epoch * len(loader)):
            loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            done += 1
            time.sleep(pause)
            if training:
                if done % 5 == 0:
                    progress(done, steps, loss=float(loss.detach()))
                training.boundary(done)
    if training:
        training.finish(steps)
    weights = torch.cat([each.detach().flatten() for each in accelerator.unwrap_model(model).parameters()])
    return hashlib.sha256(weights.cpu().numpy().tobytes()).hexdigest()


def main(epochs: int = 4, pause: float = 0.0) -> None:
    order = DataLoaderConfiguration(use_seedable_sampler=True)
    accelerator = Accelerator(cpu=not torch.cuda.is_available(), dataloader_config=order)
    report(weights=train(accelerator, epochs, pause, resumable=True))
    report(undisturbed=train(accelerator, epochs, 0.0, resumable=False))
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*(kind(word) for kind, word in zip((int, float), sys.argv[1:], strict=False)))
