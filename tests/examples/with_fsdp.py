"""The same as with_lightning.py, sharded by FSDP2 in a loop of one's own: `with_fsdp.py [EPOCHS [PAUSE]]`."""

from __future__ import annotations

import hashlib
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from launcher import Resumable, init, progress, report

SAMPLES, BATCH = 160, 4


def train(epochs: int, pause: float, *, resumable: bool) -> str:
    """Trains, and returns a digest of the weights."""
    env = init()
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 1)).to(env.device)
    data = torch.randn(SAMPLES, 8)
    for layer in (model[0], model[2], model):
        fully_shard(layer)
    torch.manual_seed(env.rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, epochs * SAMPLES)
    training = Resumable({"model": model, "optimizer": optimizer, "scheduler": scheduler}) if resumable else None
    steps_of_epoch = SAMPLES // (BATCH * env.world_size)
    steps = epochs * steps_of_epoch
    for step in range(training.load() if training else 0, steps):
        epoch, place = divmod(step, steps_of_epoch)
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(epoch))
        mine = data[order[env.rank :: env.world_size][place * BATCH : (place + 1) * BATCH]].to(env.device)
        loss = (model(mine) - mine.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        time.sleep(pause)
        if training:
            if (step + 1) % 5 == 0:
                progress(step + 1, steps, loss=float(loss.detach()))
            training.boundary(step + 1)
    if training:
        training.finish(steps)
    weights = torch.cat([each.full_tensor().detach().flatten().cpu() for each in model.parameters()])
    return hashlib.sha256(weights.numpy().tobytes()).hexdigest()


def main(epochs: int = 4, pause: float = 0.0) -> None:
    report(weights=train(epochs, pause, resumable=True))
    report(undisturbed=train(epochs, 0.0, resumable=False))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*(kind(word) for kind, word in zip((int, float), sys.argv[1:], strict=False)))
