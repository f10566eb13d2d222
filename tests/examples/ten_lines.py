"""The script of plain.py, which stops in time, saves, and goes on where it was."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from launcher import should_stop


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--lr", type=float, default=1e-5)
    args = parser.parse_args()

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank = dist.get_rank()
    device = f"cuda:{os.environ['LOCAL_RANK']}" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(8, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    path = os.path.join(os.environ.get("LAUNCHER_CHECKPOINT_DIR", "."), "state.pt")
    saved = torch.load(path) if os.path.exists(path) else {"step": 0}
    model.load_state_dict(saved.get("model", model.state_dict()))
    optimizer.load_state_dict(saved.get("optimizer", optimizer.state_dict()))
    for step in range(saved["step"], args.steps):
        data = torch.randn(64, 8, device=device)
        loss = (model(data) - data.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and (step + 1) % (args.steps // 10) == 0:
            print(f"step {step + 1} loss {loss.item():.3g}", flush=True)
        if should_stop(step + 1):
            if rank == 0:
                torch.save({"step": step + 1, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
            raise SystemExit(75)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
