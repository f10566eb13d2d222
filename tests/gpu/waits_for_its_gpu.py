"""One process with NCCL, that waits in `.item()` for a collective behind a kernel of half a minute."""

from __future__ import annotations

import torch
import torch.distributed as dist

if __name__ == "__main__":
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=device)
    ones = torch.ones(8, device=device)
    dist.all_reduce(ones)
    torch.cuda.synchronize()
    torch.cuda._sleep(50_000_000_000)
    dist.all_reduce(ones)
    print("waits", flush=True)
    ones.sum().item()
