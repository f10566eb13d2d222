"""Ranks without a store compare what they are in their process group."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from launcher.worker.process_group import RankFacts, RanksDiffer, require_alike_in_group
from tests.processes.workload_ranks import run_ranks


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
