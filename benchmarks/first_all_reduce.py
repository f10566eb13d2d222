"""The program that both contestants of `benchmarks.start_up` run: one all_reduce; rank 0 writes the time of its end."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

STAMP = "BENCHMARK_STAMP"  # environment variable with the path of the file for the time


def main(config: Any = None, env: Any = None) -> None:
    """Does the all_reduce. As the launcher's workload it finds the process group initialized."""
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
