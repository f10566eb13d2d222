"""A minimal training that can be resumed: each step is an all_reduce, and its state is a JSON file.

Environment variables inject a fault. Each rank writes `RUN/chaos/rank-R` with its pid, its agent's pid and the round;
rank 0 writes `RUN/chaos/now` after each step.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from launcher import errors, progress
from launcher.worker import heartbeat

STEPS, STEP_TIME, SAVE_EVERY = "COUNTING_STEPS", "COUNTING_STEP_TIME", "COUNTING_SAVE_EVERY"


def main(config: Any, env: Any) -> dict[str, Any]:
    """Makes COUNTING_STEPS steps of COUNTING_STEP_TIME seconds. FAULT, FAULT_STEP and FAULT_RANK inject a fault.

    Returns:
        `step`: the steps done; `ranks`: the sum of the world sizes of all steps; `rounds`: [round, world size, first
        step] of each round; `world_size`: that of the last round.
    """
    folder = Path(os.environ["LAUNCHER_RUN_DIR"], "chaos")
    folder.mkdir(mode=0o700, exist_ok=True)
    slot, stopping = heartbeat.mine(), []
    assert slot is not None
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda number, _: stopping.append(number))
    slot.listen()
    round_number = int(os.environ["LAUNCHER_ROUND"])
    _write(folder / f"rank-{env.rank}", pid=os.getpid(), agent=os.getppid(), round=round_number, host=env.host)
    if child := os.environ.get("COUNTING_CHILD"):
        subprocess.Popen(["setsid", "sleep", child])
    if os.environ.get("COUNTING_PLAIN"):  # make a process group as a script without the launcher's API would
        dist.barrier()  # torch 2.15: a rank that is still connecting fails if another one takes its group away
        dist.destroy_process_group()
        dist.init_process_group("gloo")
    state = _load(folder)
    state["rounds"].append([round_number, env.world_size, state["step"]])
    total, pause = int(os.environ.get(STEPS, "50")), float(os.environ.get(STEP_TIME, "0.02"))
    every = int(os.environ.get(SAVE_EVERY, "1"))
    ones, flag = torch.ones(1), torch.zeros(1)
    while state["step"] < total:
        _go_wrong(env.rank, state["step"], folder)
        flag[0], ones[0] = float(bool(stopping)), 1.0
        dist.all_reduce(ones)
        if env.rank == 0:
            done = {"round": round_number, "step": state["step"] + 1, "time": time.time()}
            if not (folder / f"first-{round_number}").exists():
                _write(folder / f"first-{round_number}", **done)
        dist.all_reduce(flag)
        state["step"] += 1
        state["ranks"] += int(ones.item())
        slot.beat(state["step"])
        if env.rank == 0:
            progress(state["step"], total)
            if flag.item() or state["step"] % every == 0:
                _write(folder / "state", **state)
            _write(folder / "now", **done)  # last, because a test that sees this reads the state
        if flag.item():
            dist.barrier()
            sys.exit(errors.RESUME)
        time.sleep(pause)
    return {**state, "world_size": env.world_size}


def _go_wrong(rank: int, step: int, folder: Path) -> None:
    """Injects the fault FAULT on rank FAULT_RANK at step FAULT_STEP, at most FAULT_TIMES times in a run.

    FAULT is raise, refuse, hang, exit (with FAULT_CODE), `kill agent`, or the name of a signal to this rank.
    """
    kind = os.environ.get("FAULT")
    if kind is None or rank != int(os.environ.get("FAULT_RANK", "1")) or step != int(os.environ.get("FAULT_STEP", "5")):
        return
    before = len(list(folder.glob("fault-*")))
    if before >= int(os.environ.get("FAULT_TIMES", "1")):
        return
    (folder / f"fault-{before}").touch(mode=0o600)
    if kind == "raise":
        raise ValueError("the loss is a banana")
    if kind == "refuse":
        from workloads.across_ranks import WorkloadError

        raise WorkloadError("this will not do")
    if kind == "hang":
        while True:
            time.sleep(1)
    if kind == "exit":
        os._exit(int(os.environ["FAULT_CODE"]))
    if kind == "kill agent":
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)
    os.kill(os.getpid(), signal.Signals[kind])


def _write(path: Path, **values: Any) -> None:
    temporary = path.with_name(f".{path.name}-{os.getpid()}")
    temporary.write_text(json.dumps(values))
    temporary.chmod(0o600)
    temporary.replace(path)


def _load(folder: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((folder / "state").read_text()))
    except FileNotFoundError:
        return {"step": 0, "ranks": 0, "rounds": []}
