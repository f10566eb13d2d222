"""What both contestants of benchmarks/start_up.py run: one all_reduce, and the time at which rank 0 had its result."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

STAMP = "BENCHMARK_STAMP"  # the variable with the file that the time goes into


def main(config: Any = None, env: Any = None) -> None:
    """The workload for the launcher, which has made the process group already."""
    total = torch.ones(1)
    dist.all_reduce(total)
    now = time.time()
    assert total.item() == dist.get_world_size()
    if dist.get_rank() == 0:
        Path(os.environ[STAMP]).write_text(repr(now))


if __name__ == "__main__":  # under torchrun
    dist.init_process_group("gloo")
    main()
    dist.destroy_process_group()
