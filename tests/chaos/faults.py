"""Workloads that fail, each in its own way, on the rank FAULT_RANK (default: the last one)."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from typing import Any

import torch.distributed as dist

from launcher.worker.stop import StopFlag


def _mine(env: Any) -> bool:
    return env.rank == int(os.environ.get("FAULT_RANK", env.world_size - 1))


def _work(env: Any) -> dict[str, Any]:
    """Waits for all ranks at a barrier, as the ranks without a fault do."""
    dist.barrier()
    return {}


def raises(config: Any, env: Any) -> dict[str, Any]:
    if _mine(env):
        raise ValueError("the loss is a banana")
    return _work(env)


def exits(config: Any, env: Any) -> dict[str, Any]:
    if _mine(env):
        os._exit(7)
    return _work(env)


def leaves(config: Any, env: Any) -> dict[str, Any]:
    if _mine(env):
        os._exit(0)
    return _work(env)


def calls_sys_exit(config: Any, env: Any) -> dict[str, Any]:
    if _mine(env):
        sys.exit("no such file: weights.pt")
    return _work(env)


def is_killed(config: Any, env: Any) -> dict[str, Any]:
    if _mine(env):
        os.kill(os.getpid(), signal.SIGKILL)
    return _work(env)


def segfaults(config: Any, env: Any) -> dict[str, Any]:
    if _mine(env):
        ctypes.string_at(0)
    return _work(env)


def stops_for_resume(config: Any, env: Any) -> dict[str, Any]:
    dist.barrier()
    sys.exit(75)


def kills_its_agent(config: Any, env: Any) -> dict[str, Any]:
    if env.node_rank == 1:
        os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)
    return {}


def sleeps(config: Any, env: Any) -> dict[str, Any]:
    print("asleep", flush=True)
    time.sleep(600)
    return {}


def ignores_sigterm(config: Any, env: Any) -> dict[str, Any]:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return sleeps(config, env)


def says_that_it_was_told(config: Any, env: Any) -> dict[str, Any]:
    def told(*_: object) -> None:
        print("told to stop", flush=True)
        os._exit(143)

    signal.signal(signal.SIGTERM, told)
    return sleeps(config, env)


def hides_a_process(config: Any, env: Any) -> dict[str, Any]:
    subprocess.Popen(["setsid", "sleep", os.environ["HIDDEN"]])
    return sleeps(config, env)


def fine(config: Any, env: Any) -> dict[str, Any]:
    dist.barrier()
    return {"rank": env.rank, "world_size": env.world_size, "source": env.source}


def tells_places(config: Any, env: Any) -> dict[str, Any]:
    names = ("rank", "local_rank", "world_size", "local_world_size", "node_rank", "nnodes")
    places: list[Any] = [None] * env.world_size
    dist.all_gather_object(places, {name: getattr(env, name) for name in names})
    return {"places": places}


def tells(config: Any, env: Any) -> dict[str, Any]:
    """Returns the `places`, the `environments` and the `umasks` of all ranks."""
    umask = os.umask(0)
    os.umask(umask)
    variables = [os.environ.get(f"FROM_{place}") for place in ("SETUP", "PROFILE", "SHELL")]
    told: list[Any] = [None] * env.world_size
    dist.all_gather_object(told, (variables, f"{umask:03o}"))
    environments, umasks = map(list, zip(*told, strict=True))
    return {**tells_places(config, env), "environments": environments, "umasks": umasks}


def hangs_before_its_first_step(config: Any, env: Any) -> dict[str, Any]:
    """Hangs one rank before its first step, after all ranks have declared that they handle stop requests."""
    StopFlag(env)
    if _mine(env):
        time.sleep(600)
    return _work(env)
