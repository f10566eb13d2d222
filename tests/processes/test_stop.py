"""Ranks that have no agent agree on the step at which they stop."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist

from launcher import Env
from launcher.worker.stop import Settings, StopFlag
from tests.processes.workload_ranks import run_ranks


def stopped_at(config: dict[str, Any], env: Env) -> dict[str, Any]:
    """Steps until all have agreed to stop; one rank alone is told, at one of its steps."""
    flag = StopFlag(env, Settings(deadline=time.time() + 1000) if config["how"] == "deadline" else Settings())
    if config["how"] == "deadline" and env.rank == config["rank"]:
        flag._ends = time.monotonic()  # its clock is ahead of the others'
    saves = []
    for step in range(1, 2000):
        if step == config["at"] and env.rank == config["rank"] and config["how"] == "signal":
            os.kill(os.getpid(), signal.SIGTERM)
        if config["slow"]:
            flag._step_time = 1.0
        work = torch.ones(100)
        dist.all_reduce(work)  # what a signal finds most ranks in
        verdict = flag.boundary(step, save_due=env.rank == 1 and step >= 5 and not saves)
        if verdict.save:
            saves.append(step)
        if verdict.stop:
            flag.close()
            return {"step": step, "why": verdict.stop, "saves": saves}
    return {}


@pytest.mark.parametrize(("how", "slow"), [("signal", False), ("signal", True), ("deadline", True)])
@pytest.mark.parametrize("rank", [0, 2])
def test_ranks_that_hear_nothing_stop_at_the_same_step(how: str, slow: bool, rank: int) -> None:
    results = [each.metrics for each in run_ranks(stopped_at, {"how": how, "at": 20, "rank": rank, "slow": slow}, 3, 3)]
    assert results[0] and results == [results[0]] * 3
    assert results[0]["why"] == (
        f"asked to stop (rank {rank} on node{rank})" if how == "signal" else "its time is nearly up"
    )
    if how == "signal":
        assert results[0]["step"] >= 20
        assert len(results[0]["saves"]) == 1
    if slow and how == "signal":
        assert (results[0]["step"], results[0]["saves"]) == (20, [5])
