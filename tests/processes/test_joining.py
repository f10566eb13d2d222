"""Ranks make their process group: they compare what they are, and none leaves before all are connected."""

from __future__ import annotations

import os
import resource
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from launcher.worker import process_group
from launcher.worker.process_group import RankFacts, RanksDiffer, require_alike_in_group
from tests.processes.workload_ranks import _context, run_ranks


def in_group(config: Any, env: Any) -> dict[str, Any]:
    mine = RankFacts(env.rank, "node0", "cuda", f"GPU-{env.rank}", "nccl", "2.13.0", "abc", "2.27.3")
    require_alike_in_group(mine)
    try:
        require_alike_in_group(replace(mine, torch=f"2.{env.rank}"))
    except RanksDiffer as refused:
        return {"refused": str(refused)}
    return {}


def test_ranks_without_a_store_compare_in_their_group() -> None:
    outcome = run_ranks(in_group, None, 2)
    assert [each.metrics for each in outcome] == [outcome[0].metrics] * 2
    assert "2.0 on rank 0 (node0); 2.1 on rank 1 (node0)" in outcome[0].metrics["refused"]


RANKS = 3


def join_and_leave(rank: int, folder: str) -> None:
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS), LOCAL_WORLD_SIZE=str(RANKS), GROUP_RANK="0",
        GROUP_WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="1", GLOO_SOCKET_IFNAME="lo",
    )  # fmt: skip
    store, start, left = dist.FileStore(f"{folder}/store", RANKS), process_group.start, False

    def slow_start(*arguments: Any) -> None:
        nonlocal left
        start(*arguments)
        if rank == RANKS - 1:  # as if it had yet to see that it is connected
            time.sleep(1)
            left = store.check(["left"])

    process_group._store, process_group.start = lambda *_: store, slow_start  # type: ignore[assignment]
    process_group.init("gloo", "cpu")
    store.set("left", "")
    os._exit(left)


def test_no_rank_leaves_while_others_connect(tmp_path: Path) -> None:
    ranks = [_context.Process(target=join_and_leave, args=(rank, str(tmp_path))) for rank in range(RANKS)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join()
    assert [each.exitcode for each in ranks] == [0] * RANKS


def more_groups(config: Any, env: Any) -> dict[str, Any]:
    soft, hard = len([*Path("/proc/self/fd").iterdir()]) + 2, resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    total = torch.ones(1)
    dist.all_reduce(total, group=process_group.gloo_group(RANKS, 30.0))
    return {"total": int(total)}


def test_groups_are_made_under_a_soft_limit_of_open_files_that_is_lower_than_they_need() -> None:
    """Each has a connection to each other rank: 1,024 are too few for two groups of 600 ranks."""
    assert [each.metrics for each in run_ranks(more_groups, None, RANKS)] == [{"total": RANKS}] * RANKS
