"""Runs a function in several ranks: forked from this process, with a gloo process group over the loopback interface.

Ranks share the GPUs of this machine. The process itself must not have used a GPU before.
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
    """Calls `function(env, *arguments)` on `world_size` ranks with one thread each; returns rank 0's result."""
    with tempfile.TemporaryDirectory() as folder:
        context = mp.start_processes(
            _rank, (function, world_size, folder, arguments, device), world_size, join=False, start_method="fork"
        )
        while not context.join():
            pass
        return torch.load(f"{folder}/result", weights_only=True)


def device_of(rank: int, kind: str) -> torch.device:
    """Returns a rank's device of this kind, and makes it the current one. If there are too few GPUs, ranks share
    them."""
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
    """Calls a function on all ranks; returns the seconds on the slowest rank. All ranks must call it."""
    dist.barrier()
    began = time.perf_counter()
    function()
    seconds = torch.tensor([time.perf_counter() - began], dtype=torch.float64)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return seconds.item()
