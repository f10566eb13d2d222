"""Run a workload in N ranks on this machine: gloo over the loopback, a FileStore, and a hard time limit."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

# The ranks are forked from a server that has loaded what they need: cheap, and free of pytest's threads.
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.processes.preloaded"])


@dataclass(frozen=True)
class RankResult:
    """What one rank did: its metrics or its error, all it printed, and its calls of progress()."""

    metrics: dict[str, Any]
    error: str
    printed: str
    progress: list[tuple[int, int]]


class RanksFailedError(AssertionError):
    """Some rank raised, died or was too slow."""


def run_ranks(
    function: Callable[..., Any],
    config: Any,
    world_size: int,
    nnodes: int = 1,
    prepare: Callable[..., None] | None = None,
    fails: bool = False,
    timeout: float = 60,
) -> list[RankResult]:
    """Call `function(config, env)` in every rank of a fresh process group, after `prepare(env)` if given.

    Ranks fill the nodes in order, and node i is called `node<i>`. `function` and `prepare` must be importable.

    Raises:
        RanksFailedError: a rank raised (unless `fails`), died, or did not end within `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    with tempfile.TemporaryDirectory() as folder:
        pipes, processes = [], []
        for rank in range(world_size):
            ours, theirs = _context.Pipe(duplex=False)
            arguments = (function, config, rank, world_size, nnodes, prepare, folder, theirs)
            process = _context.Process(target=_rank, args=arguments, daemon=True)
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        try:
            results = [_receive(pipe, rank, deadline, folder) for rank, pipe in enumerate(pipes)]
        finally:
            for process in processes:
                process.join(max(0.1, min(5, deadline - time.monotonic())))
                if process.is_alive():
                    process.kill()
                    process.join()
    errors = [f"rank {rank}: {result.error}" for rank, result in enumerate(results) if result.error]
    if errors and not fails:
        raise RanksFailedError("\n".join(errors))
    if fails and not errors:
        raise RanksFailedError(f"no rank failed: {[result.metrics for result in results]}")
    return results


def _receive(pipe: Connection, rank: int, deadline: float, folder: str) -> RankResult:
    if wait([pipe], max(0, deadline - time.monotonic())):
        try:
            metrics, error, progress = pipe.recv()
        except EOFError:
            raise RanksFailedError(f"rank {rank} died:\n{_printed(folder, rank, 'err')}") from None
        return RankResult(metrics, error, _printed(folder, rank), progress)
    raise RanksFailedError(f"rank {rank} did not end in time:\n{_printed(folder, rank)}{_printed(folder, rank, 'err')}")


def _printed(folder: str, rank: int, name: str = "out") -> str:
    path = Path(folder, f"{name}{rank}")
    return path.read_text() if path.exists() else ""


def _rank(
    function: Callable[..., Any],
    config: Any,
    rank: int,
    world_size: int,
    nnodes: int,
    prepare: Callable[..., None] | None,
    folder: str,
    pipe: Connection,
) -> None:
    for name, descriptor in (("out", 1), ("err", 2)):
        os.dup2(os.open(f"{folder}/{name}{rank}", os.O_CREAT | os.O_WRONLY, 0o600), descriptor)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    os.environ["LAUNCHER_SECRET"] = "the secret of a test's ranks"
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    from launcher import Env
    from launcher.torch_compat import destroy_without_gil
    from launcher.worker.tracking import Reporter

    calls: list[tuple[int, int]] = []
    Reporter.progress = lambda self, step, total, values: calls.append((step, total))  # type: ignore[assignment]
    per_node = world_size // nnodes
    env = Env(
        rank=rank,
        local_rank=rank % per_node,
        world_size=world_size,
        local_world_size=per_node,
        node_rank=rank // per_node,
        nnodes=nnodes,
        hosts=tuple(f"node{node}" for node in range(nnodes)),
        host=f"node{rank // per_node}",
        backend="gloo",
        device=torch.device("cpu"),
        source="test",
        node_ranks=tuple(other // per_node for other in range(world_size)),
    )
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=30))
    destroy_without_gil(dist.group.WORLD)
    dist.barrier()  # a rank that ends at once would end the others while they still connect
    metrics, error = {}, ""
    try:
        if prepare:
            prepare(env)
        metrics = function(config, env)
    except Exception as failure:
        error = f"{type(failure).__name__}: {failure}"
        traceback.print_exc()
    try:
        dist.destroy_process_group()
    finally:
        pipe.send((metrics, error, calls))
        pipe.close()
