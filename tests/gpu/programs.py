"""What ranks run in the checks: each is called as `function(config, env)`, like a workload."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from launcher import Checkpointer, errors, progress, should_stop
from launcher.checkpoint import saving
from launcher.checkpoint.state import hash_of
from launcher.runs import lease_and_locks
from launcher.torch_compat import DTensor, Shard
from launcher.worker.stop import settings

CYCLES = 1_500_000_000  # about a second of a GPU's clock
FOR_EVER = 1 << 60  # cycles; decades
FLOATS = 64_000_000  # 256 MB: more than is copied at once
HELD = 0.85  # part of the free memory


def stages(config: Any, env: Any) -> dict[str, Any]:
    """Saves what a queued kernel is yet to write, and overwrites it as soon as it may; what was saved must be whole."""
    saves = _checkpointer(env, "stages")
    mesh = init_device_mesh(env.device.type, (env.world_size,))
    here = torch.zeros(FLOATS, device=env.device)
    wrong = 0
    for step in range(1, 4):
        if env.device.type == "cuda":
            torch.cuda._sleep(CYCLES)
        here.fill_(step + env.rank / 8)
        saves.save(step, {"x": DTensor.from_local(here, mesh, [Shard(0)])})
        saves.staged()
        here.fill_(-1)
        saves.wait()
        loaded = torch.zeros_like(here)
        assert saves.load({"x": DTensor.from_local(loaded, mesh, [Shard(0)])}) is not None
        wrong += int((loaded != step + env.rank / 8).sum())
    saves.close()
    return {"wrong": _sum(wrong, env)}


def is_killed_while_full(config: Any, env: Any) -> dict[str, Any]:
    """Holds most of its GPU's memory and is killed; started again it must get as much."""
    round_number, noted = int(os.environ["LAUNCHER_ROUND"]), Path(os.environ["LAUNCHER_RUN_DIR"], f"held-{env.rank}")
    if round_number == 0:
        noted.write_text(str(int(HELD * _free(env.device))))
    held = torch.ones(int(noted.read_text()), dtype=torch.uint8, device=env.device)
    for step in range(1, 21):
        _step(step, env)
        if step == 5 and round_number == 0 and env.rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    return {"round": round_number, "held": held.numel()}


def is_killed_under_a_queue(config: Any, env: Any) -> dict[str, Any]:
    """Copies its state into memory while kernels are queued, and is killed; what comes back must be bitwise whole."""
    round_number, saves = int(os.environ["LAUNCHER_ROUND"]), _checkpointer(env, "queue", memory=1)
    state = {"large": torch.zeros(FLOATS, device=env.device), "small": torch.zeros(3, device=env.device)}
    loaded = saves.load(state)
    begun = 0 if loaded is None else loaded.step
    wrong = sum(int((tensor != begun).sum()) for tensor in state.values())
    for step in range(begun + 1, 9):
        _step(step, env)
        saves.staged()
        if env.device.type == "cuda":
            torch.cuda._sleep(CYCLES // 4)
        for tensor in state.values():
            tensor += 1
        saves.keep(step, state)
        state["small"] += 0  # it may change at once
        if step == 5 and round_number == 0 and env.rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    saves.close()
    memory = loaded is not None and loaded.path is None
    return {"round": round_number, "begun": begun, "memory": memory, "wrong": _sum(wrong, env)}


def has_a_kernel_that_never_ends(config: Any, env: Any) -> dict[str, Any]:
    """The last rank waits for a kernel that does not end, and so do the others; started again it has none."""
    round_number = int(os.environ["LAUNCHER_ROUND"])
    for step in range(1, 21):
        if step == 5 and round_number == 0 and env.rank == env.world_size - 1:
            if env.device.type == "cuda":
                torch.cuda._sleep(FOR_EVER)
            else:
                time.sleep(600)
        _step(step, env)
    return {"round": round_number}


def stays_away(config: Any, env: Any) -> dict[str, Any]:
    """The last rank does not call the collective in which the others wait; started again it does."""
    round_number = int(os.environ["LAUNCHER_ROUND"])
    for step in range(1, 21):
        if step == 5 and round_number == 0 and env.rank == env.world_size - 1:
            time.sleep(600)
        _step(step, env)
    return {"round": round_number}


def takes_memory_for_a_save(config: Any, env: Any) -> dict[str, Any]:
    """How many bytes of the GPU comparing a tensor takes, and how many of pinned memory copies take uncounted."""
    weights = {"w": torch.ones(FLOATS, device=env.device), "odd": torch.ones(FLOATS // 3, device=env.device)}
    if env.device.type != "cuda":
        return {"gpu": 0, "uncounted": 0}
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    hash_of(weights["w"])
    gpu = torch.cuda.max_memory_allocated() - before
    staging = saving.Staging()
    staging.start(weights).finish(list(weights))
    stats = getattr(torch.cuda, "host_memory_stats", dict)()  # not in torch 2.4
    return {"gpu": gpu, "uncounted": max(0, stats.get("active_bytes.current", 0) - saving.pinned(weights))}


def makes_tensors_on_its_gpu(config: Any, env: Any) -> dict[str, Any]:
    """Saves, copies into memory and loads in a program that calls torch.set_default_device."""
    torch.set_default_device(env.device)
    generator = torch.Generator(device="cpu").manual_seed(3)
    mine = {"w": torch.ones(3), "on the CPU": torch.ones(3, device="cpu"), "generator": generator}
    saves = _checkpointer(env, "default device", memory=1)
    saves.save(1, mine, wait=True)
    saves.keep(2, mine)
    saves.staged()
    saves.wait()
    drawn = torch.rand(3, generator=generator, device="cpu").tolist()
    loaded = saves.load(mine)
    same = torch.rand(3, generator=generator, device="cpu").tolist() == drawn
    saves.close()
    torch.set_default_device(None)
    return {"loaded": 0 if loaded is None else loaded.step, "same": same}


def keeps_a_large_state(config: Any, env: Any) -> dict[str, Any]:
    """Adds ones to GPU_CHECK_BYTES of state in GPU_CHECK_STEPS steps; saves when it is stopped, and can resume."""
    total, size = int(os.environ["GPU_CHECK_STEPS"]), int(os.environ["GPU_CHECK_BYTES"])
    saves = _checkpointer(env, "large")
    parts = max(1, size // 1_000_000_000)
    state = {f"part{n}": torch.zeros(size // parts // 4, device=env.device) for n in range(parts)}
    loaded = saves.load(state)
    step = begun = loaded.step if loaded else 0
    wrong = sum(int((part != step).sum()) for part in state.values())
    while step < total:
        for part in state.values():
            part += 1
        time.sleep(0.05)
        step += 1
        progress(step, total)
        if should_stop(step):
            saves.save(step, state, wait=True)
            saves.close()
            sys.exit(errors.RESUME)
    saves.close()
    return {"begun": begun, "wrong": wrong}


def _checkpointer(env: Any, what: str, memory: int = 0) -> Checkpointer:
    run = settings()
    assert run.checkpoint_dir is not None
    return Checkpointer(
        run.checkpoint_dir, env, identity={"what": what}, keep=1, attempt=run.attempt, fence=lease_and_locks.require,
        memory=memory,
    )  # fmt: skip


def _step(step: int, env: Any) -> None:
    """One step of all ranks, which waits for the GPU as `loss.item()` does."""
    one = torch.ones(1, device=env.device)
    dist.all_reduce(one)
    assert one.item() == env.world_size
    progress(step, 20)
    if should_stop(step):
        sys.exit(errors.RESUME)


def _sum(value: int, env: Any) -> int:
    total = torch.tensor([value], device=env.device)
    dist.all_reduce(total)
    return int(total.item())


def _free(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 100_000_000
