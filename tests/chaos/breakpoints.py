"""A workload with breakpoints: of the launcher's kind on all ranks, and torch's on rank 1."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


def main(config: Any, env: Any) -> dict[str, float]:
    """The sum over ranks of what a user at the debugger makes of `factor`."""
    factor = 1.0
    breakpoint()
    total = torch.tensor([factor * (env.rank + 1)])
    dist.all_reduce(total)
    dist.breakpoint(rank=1)
    return {"total": total.item()}
