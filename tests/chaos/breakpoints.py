"""A workload with two breakpoints: the built-in breakpoint() on all ranks, and torch.distributed's on rank 1."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


def main(config: Any, env: Any) -> dict[str, float]:
    """Returns the sum over ranks of `factor` * (rank + 1); a test changes `factor` at the debugger."""
    factor = 1.0
    breakpoint()
    total = torch.tensor([factor * (env.rank + 1)])
    dist.all_reduce(total)
    dist.breakpoint(rank=1)
    return {"total": total.item()}
