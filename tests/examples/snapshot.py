"""A script as it is written for torchrun: it saves a snapshot after each epoch, and goes on from it when there is one.

It knows nothing of the launcher, of signals or of exit codes.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Trainer:
    def __init__(self, model, data, optimizer, snapshot_path):
        self.rank = int(os.environ["RANK"])
        self.data = data
        self.optimizer = optimizer
        self.epochs_run = 0
        self.snapshot_path = snapshot_path
        if os.path.exists(snapshot_path):
            snapshot = torch.load(snapshot_path, weights_only=True)
            model.load_state_dict(snapshot["MODEL_STATE"])
            self.epochs_run = snapshot["EPOCHS_RUN"]
            print(f"rank {self.rank} resumes at epoch {self.epochs_run}", flush=True)
        self.model = DistributedDataParallel(model)

    def run_epoch(self, epoch):
        self.data.sampler.set_epoch(epoch)
        for source, targets in self.data:
            self.optimizer.zero_grad()
            loss = nn.functional.mse_loss(self.model(source), targets)
            loss.backward()
            self.optimizer.step()
        return loss.item()

    def save(self):
        torch.save(
            {"MODEL_STATE": self.model.module.state_dict(), "EPOCHS_RUN": self.epochs_run}, f"{self.snapshot_path}.new"
        )
        os.replace(f"{self.snapshot_path}.new", self.snapshot_path)

    def train(self, epochs, pause):
        for epoch in range(self.epochs_run, epochs):
            loss = self.run_epoch(epoch)
            time.sleep(pause)
            self.epochs_run = epoch + 1
            if self.rank == 0:
                self.save()
                print(f"epoch {epoch} loss {loss:.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("epochs", type=int)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds that an epoch takes longer")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--snapshot", default="snapshot.pt")
    args = parser.parse_args()

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    torch.manual_seed(0)
    features = torch.randn(64, 8)
    data = TensorDataset(features, features.sum(1, keepdim=True))
    loader = DataLoader(
        data,
        args.batch_size,
        sampler=DistributedSampler(data),
        num_workers=args.workers,
        multiprocessing_context="spawn" if args.workers else None,
    )
    model = nn.Linear(8, 1)
    trainer = Trainer(model, loader, torch.optim.SGD(model.parameters(), lr=args.lr), args.snapshot)
    trainer.train(args.epochs, args.pause)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
