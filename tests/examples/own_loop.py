"""A training loop of one's own that stops in time, saves, and goes on where it was, with all that it consists of."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from launcher import Resumable, progress


class Loader:
    """Batches of this rank's samples in a random order, from wherever it was: as torchdata's StatefulDataLoader."""

    def __init__(self, samples, batch_size, seed):
        self.samples, self.batch_size = samples, batch_size
        self.generator = torch.Generator().manual_seed(seed)
        self.order, self.next = torch.empty(0, dtype=torch.int64), 0

    def __next__(self):
        if self.next + self.batch_size > len(self.order):
            self.order, self.next = torch.randperm(len(self.samples), generator=self.generator), 0
        chosen = self.order[self.next : self.next + self.batch_size]
        self.next += self.batch_size
        return self.samples[chosen]

    def state_dict(self):
        return {"order": self.order, "next": self.next, "generator": self.generator.get_state()}

    def load_state_dict(self, state):
        self.order, self.next = state["order"], state["next"]
        self.generator.set_state(state["generator"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--folder", help="for checkpoints outside of a run")
    args = parser.parse_args()

    if "RANK" in os.environ:
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank = dist.get_rank() if dist.is_initialized() else 0
    device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1)).to(device)
    parallel = DistributedDataParallel(model) if dist.is_initialized() else model
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.steps)
    scaler = torch.amp.GradScaler(device.partition(":")[0], init_scale=1024.0, growth_interval=20)
    loader = Loader(torch.randn(256, 8), 16, seed=rank)
    counts = {"samples": 0, "lowest": float("inf")}

    training = Resumable(
        {
            "model": model,
            "average": average,
            "optimizer": optimizer,
            "scheduler": scheduler,
            "scaler": scaler,
            "counts": counts,
        },
        {"loader": loader},
        folder=args.folder,
    )
    for step in range(training.load(), args.steps):
        data = next(loader).to(device)
        loss = (parallel(data) - data.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        average.update_parameters(model)
        if dist.is_initialized():
            dist.all_reduce(loss.detach_(), dist.ReduceOp.AVG if torch.cuda.is_available() else dist.ReduceOp.SUM)
        counts["samples"] += len(data)
        counts["lowest"] = min(counts["lowest"], loss.item())
        if rank == 0:
            progress(step + 1, args.steps, loss=loss.item())
        training.boundary(step + 1)
    training.finish(args.steps)

    if rank == 0:
        weights = torch.cat([each.detach().flatten().cpu() for each in (*model.parameters(), *average.parameters())])
        print(f"ends with {weights.double().sum().item().hex()} {counts}", flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
