"""A minimal training: each step adds 1 to a sum; it stops, saves and resumes as a real training does."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import torch
import torch.distributed as dist

from launcher import errors, progress
from launcher.checkpoint.checkpointer import Checkpointer
from launcher.runs import lease_and_locks
from launcher.worker.stop import StopFlag, settings


def main(config: Any, env: Any) -> dict[str, Any]:
    """Makes STEPS steps of STEP_TIME seconds, resumed from the newest checkpoint; saves every SAVE_EVERY steps.

    Steps after a checkpoint take RESUMED_STEP_TIME, if it is set: on any machine one attempt more ends the run then.
    """
    run = settings()
    assert run.checkpoint_dir is not None
    stop, total = StopFlag(env, run), int(os.environ.get("STEPS", "100"))
    saves = Checkpointer(
        run.checkpoint_dir,
        env,
        identity={"what": "steps"},
        attempt=run.attempt,
        fence=lease_and_locks.require,
        start_over=True,
    )  # start_over: the harness may damage all checkpoints
    state = {"sum": torch.zeros(4)}
    loaded = saves.load(state)
    step = begun = loaded.step if loaded else 0
    step_time = os.environ.get("STEP_TIME", "0.1")
    if loaded:
        step_time = os.environ.get("RESUMED_STEP_TIME", step_time)
    while step < total:
        time.sleep(float(step_time))
        one = torch.ones(4)
        dist.all_reduce(one)
        state["sum"] += one / env.world_size
        step += 1
        if env.rank == 0:
            progress(step, total)
        verdict = stop.boundary(step, save_due=step % int(os.environ.get("SAVE_EVERY", "1000000")) == 0)
        if (verdict.save or verdict.stop) and not os.environ.get("NEVER_SAVE"):
            saves.save(step, state, wait=True)
        if verdict.stop:
            print(f"stopped at {step}: {verdict.stop}", flush=True)
            stop.close()
            saves.close()
            sys.exit(errors.RESUME)
    stop.close()
    saves.close()
    return {
        "steps": step, "begun": begun, "attempt": run.attempt, "world_size": env.world_size,
        "sum": state["sum"].tolist(),
    }  # fmt: skip
