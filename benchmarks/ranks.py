"""Ranks for a benchmark: forked from this process, which has loaded torch, with gloo over the loopback.

On GPUs ranks share what there is, and the benchmark's own process must not have used one.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from launcher import Env


def in_ranks(function: Callable[..., Any], world_size: int, *arguments: Any, device: str = "cpu") -> Any:
    """What `function(env, *arguments)` gives on rank 0, called on so many ranks with one thread each."""
    with tempfile.TemporaryDirectory() as folder:
        context = mp.start_processes(
            _rank, (function, world_size, folder, arguments, device), world_size, join=False, start_method="fork"
        )
        while not context.join():
            pass
        return torch.load(f"{folder}/result", weights_only=True)


def device_of(rank: int, kind: str) -> torch.device:
    """The device of a rank, which becomes the current one; ranks share GPUs when there are fewer."""
    if kind == "cpu":
        return torch.device(kind)
    device = torch.device(kind, rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def _rank(
    rank: int, function: Callable[..., Any], world_size: int, folder: str, arguments: tuple[Any, ...], device: str
) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    env = Env(
        rank, rank, world_size, world_size, 0, 1, (), "here", "gloo", device_of(rank, device), "benchmark",
        (0,) * world_size,
    )  # fmt: skip
    result = function(env, *arguments)
    if rank == 0:
        torch.save(result, f"{folder}/result")
    dist.barrier()
    dist.destroy_process_group()


def slowest(function: Callable[[], object]) -> float:
    """Seconds that a call takes on the rank where it takes longest. All ranks must call it."""
    dist.barrier()
    began = time.perf_counter()
    function()
    seconds = torch.tensor([time.perf_counter() - began], dtype=torch.float64)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return seconds.item()
