"""Loops as users write them, drawn at random, are stopped and killed and end bitwise as if nothing had happened.

A loop is an optimizer x a scheduler x a precision x a wrapper x the numbers of ranks of its three attempts. `make test`
draws a few; `make test-slow` the hundred.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import json
import os
import random
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import lr_scheduler as schedules
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from launcher import Env, Resumable, torch_compat
from launcher.torch_compat import DTensor
from tests.markers import slow
from tests.processes.workload_ranks import run_ranks
from tests.torch_features import needs_fsdp_on_cpus

EVERY, STEPS = 3, 12

OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, amsgrad=True),
    "adamw-foreach": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, foreach=True),
    "adamw-tensor-rate": lambda parameters: torch.optim.AdamW(parameters, lr=torch.tensor(0.01)),
    "nadam": lambda parameters: torch.optim.NAdam(parameters, lr=0.01),
    "radam": lambda parameters: torch.optim.RAdam(parameters, lr=0.01),
    "adamax": lambda parameters: torch.optim.Adamax(parameters, lr=0.01),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.05),
    "adadelta": lambda parameters: torch.optim.Adadelta(parameters, lr=0.5),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, lr=0.01, momentum=0.5, centered=True),
    "asgd": lambda parameters: torch.optim.ASGD(parameters, lr=0.01, t0=4),
    "rprop": lambda parameters: torch.optim.Rprop(parameters, lr=0.01),
    "lbfgs": lambda parameters: torch.optim.LBFGS(parameters, lr=0.1, max_iter=3, history_size=4),
}
SCHEDULERS = {
    "none": lambda _: None,
    "step": lambda optimizer: schedules.StepLR(optimizer, 3, 0.5),
    "cosine": lambda optimizer: schedules.CosineAnnealingLR(optimizer, STEPS),
    "restarts": lambda optimizer: schedules.CosineAnnealingWarmRestarts(optimizer, 4),
    "one-cycle": lambda optimizer: schedules.OneCycleLR(optimizer, 0.1, STEPS + 1, cycle_momentum=False),
    "plateau": lambda optimizer: schedules.ReduceLROnPlateau(optimizer, patience=1),
    "lambda": lambda optimizer: schedules.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    "warm-up": lambda optimizer: schedules.SequentialLR(
        optimizer, [schedules.LinearLR(optimizer, 0.1, total_iters=4), schedules.PolynomialLR(optimizer, STEPS)], [4]
    ),
    "chained": lambda optimizer: schedules.ChainedScheduler(
        [schedules.ConstantLR(optimizer, 0.5, 5), schedules.ExponentialLR(optimizer, 0.9)]
    ),
}
PRECISIONS = ("float32", "float64", "bfloat16", "autocast", "scaler")
WRAPPERS = ("none", "ddp", "fsdp", "ema", "frozen", "batch-norm", "two-groups")


@dataclass(frozen=True)
class Loop:
    """A loop; `own_data`: each rank has samples and dropout of its own, so that the number of ranks stays."""

    optimizer: str
    scheduler: str
    precision: str
    wrapper: str
    world_sizes: tuple[int, ...]
    stops: tuple[tuple[int, str], ...]  # of each attempt but the last: the step, and `stop` or `kill`
    own_data: bool


def drawn(count: int) -> Iterator[Loop]:
    """Each optimizer, scheduler, precision and wrapper comes about as often; what torch cannot do is left out."""
    choose = random.Random(28)
    options = [list(OPTIMIZERS), list(SCHEDULERS), list(PRECISIONS), list(WRAPPERS)]
    queues: list[list[str]] = [[] for _ in options]
    for _ in range(count):
        names = []
        for queue, option in zip(queues, options, strict=True):
            if not queue:
                queue += choose.sample(option, len(option))
            names.append(queue.pop())
        optimizer, scheduler, precision, wrapper = names
        if optimizer == "lbfgs":  # it flattens its parameters, takes one group, and evaluates several times a step
            precision = "float32" if precision in ("scaler", "bfloat16") else precision
            wrapper = "ddp" if wrapper in ("fsdp", "two-groups", "frozen") else wrapper
        if optimizer == "rprop" and wrapper == "fsdp":  # DTensor has no index_put_
            wrapper = "ddp"
        if optimizer == "adamw-tensor-rate" and scheduler == "plateau":  # 2.4 puts a number where the tensor was
            scheduler = "step"
        own_data = choose.random() < 0.4 and wrapper != "batch-norm"  # rank 0's statistics are the ones that are saved
        size = choose.choice((1, 2))
        sizes = (size,) * 3 if own_data else tuple(choose.choice((1, 2, 4)) for _ in range(3))
        if wrapper in ("none", "ema", "frozen", "two-groups") and own_data:
            sizes = (1,) * 3  # without DDP the ranks would drift apart
        first = choose.randrange(1, STEPS - 2)
        stops = (
            (first, choose.choice(("stop", "kill"))),
            (choose.randrange(first, STEPS), choose.choice(("stop", "kill"))),
        )
        yield Loop(optimizer, scheduler, precision, wrapper, sizes, stops, own_data)


class Killed(Exception):
    pass


class Data:
    """Samples in an order of its own, as a stateful data loader."""

    def __init__(self, seed: int, dtype: torch.dtype) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.dtype, self.count = dtype, 0

    def batch(self) -> torch.Tensor:
        self.count += 1
        return torch.randn(8, 6, generator=self.generator).to(self.dtype)

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self.generator.get_state(), "count": self.count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.generator.set_state(state["generator"])
        self.count = state["count"]


def train(loop: Loop, env: Env, folder: Path | None, stop: tuple[int, str] | None) -> str | None:
    """One attempt; returns a digest of all that there is at the end, or None if it was stopped or killed.

    A short loop may be over before its ranks have agreed on the step at which they stop.
    """
    torch.manual_seed(1 if not loop.own_data else 1 + env.rank)
    fresh = torch.Generator().manual_seed(5)
    dtype = {"float64": torch.float64, "bfloat16": torch.bfloat16}.get(loop.precision, torch.float32)
    hidden = nn.BatchNorm1d(8) if loop.wrapper == "batch-norm" else nn.LayerNorm(8)
    model = nn.Sequential(nn.Linear(6, 8), hidden, nn.Tanh(), nn.Dropout(0.2 * loop.own_data), nn.Linear(8, 2))
    with torch.no_grad():
        for parameter in model.parameters():  # the same on all ranks
            parameter.copy_(torch.randn(parameter.shape, generator=fresh) / 3)
    model.to(dtype)
    if loop.wrapper == "frozen":
        model[0].requires_grad_(False)
    wrapped: nn.Module = model
    if loop.wrapper in ("ddp", "batch-norm") and env.world_size > 1:
        wrapped = DistributedDataParallel(model)
    if loop.wrapper == "fsdp":
        mesh = torch.distributed.init_device_mesh("cpu", (env.world_size,))
        wrapped = torch_compat.fully_shard(model, mesh=mesh)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9)) if loop.wrapper == "ema" else None
    parameters: Any = [each for each in model.parameters() if each.requires_grad]
    if loop.wrapper == "two-groups":
        parameters = [{"params": parameters[:2]}, {"params": parameters[2:], "weight_decay": 0.0}]
    optimizer = OPTIMIZERS[loop.optimizer](parameters)
    scheduler = SCHEDULERS[loop.scheduler](optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=4) if loop.precision == "scaler" else None
    data = Data(9 + env.rank * loop.own_data, dtype)
    counts = {"seen": 0, "lowest": float("inf"), "history": [0.0]}
    parts = {"average": average, "scheduler": scheduler, "scaler": scaler}
    state = {"model": wrapped, "optimizer": optimizer, "counts": counts}
    state |= {name: part for name, part in parts.items() if part is not None}
    own = {"data": data} if loop.own_data else {}
    shared = {} if loop.own_data else {"data": data}
    training = Resumable({**state, **shared}, own, folder=folder, every_steps=EVERY, env=env)

    def closure(inputs: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=loop.precision in ("autocast", "scaler")):
            loss = (wrapped(inputs) - inputs[:, :2]).square().mean()
        (scaler.scale(loss) if scaler else loss).backward()
        return loss

    try:
        for step in range(training.load(), STEPS):
            inputs = data.batch()
            if loop.optimizer == "lbfgs":
                loss = optimizer.step(functools.partial(closure, inputs))
            else:
                loss = closure(inputs)
                if scaler:
                    scaler.step(optimizer)
                    scaler.update()
                else:
                    optimizer.step()
            value = float(loss.detach())
            if scheduler is not None:
                scheduler.step(*([1 / (1 + step // 4)] if loop.scheduler == "plateau" else []))
            if average is not None:
                average.update_parameters(model)
            counts["seen"] += 8
            if not loop.own_data:  # ranks with samples of their own have losses of their own
                counts["lowest"] = min(counts["lowest"], value)
                counts["history"] = [*counts["history"], value]
            if stop is not None and step + 1 == stop[0]:
                if stop[1] == "kill":
                    raise Killed
                if env.rank == 0:
                    os.kill(os.getpid(), signal.SIGTERM)
            training.boundary(step + 1)
        return digest(
            {name: part.state_dict() if hasattr(part, "state_dict") else part for name, part in state.items()}
        )
    except (SystemExit, Killed) as leave:
        assert isinstance(leave, Killed) or leave.code == 75
        return None
    finally:
        training.close()


def digest(value: Any) -> str:
    """A digest of tensors, whole where they are sharded, and of all other values; bit by bit."""
    found = hashlib.sha256()

    def add(part: Any) -> None:
        if isinstance(part, DTensor):
            part = part.full_tensor()
        if isinstance(part, torch.Tensor):
            found.update(repr((part.dtype, tuple(part.shape))).encode())
            found.update(part.detach().flatten().view(torch.uint8).numpy().tobytes())
        elif isinstance(part, Mapping):
            for key in sorted(part, key=str):
                found.update(repr(key).encode())
                add(part[key])
        elif isinstance(part, (list, tuple)):
            found.update(f"{type(part).__name__}{len(part)}".encode())
            for item in part:
                add(item)
        else:
            found.update(repr(part).encode())

    add(copy.copy(value))
    return found.hexdigest()


def attempts(case: dict[str, Any], env: Env) -> dict[str, Any]:
    """The same attempt of each of these loops; the last one returns the digests of it and of an undisturbed loop."""
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    for number, loop in case["loops"].items():
        last = case["attempt"] == len(loop.stops)
        stop = None if last else loop.stops[case["attempt"]]
        try:
            results[str(number)] = train(loop, env, case["folder"] / str(number), stop)
            if last:
                results[str(number)] = [results[str(number)], train(loop, env, None, None)]
        except Exception as error:
            raise AssertionError(f"loop {number}, {loop}: {type(error).__name__}: {error}") from error
    return results


@needs_fsdp_on_cpus
@pytest.mark.parametrize("count", [4, slow(12), pytest.param(100, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_loops_drawn_at_random_lose_nothing(tmp_path: Path, count: int) -> None:
    loops = dict(enumerate(drawn(count)))
    different = []
    for attempt in range(3):
        for size in (1, 2, 4):
            chosen = {number: loop for number, loop in loops.items() if loop.world_sizes[attempt] == size}
            if not chosen:
                continue
            case = {"loops": chosen, "attempt": attempt, "folder": tmp_path}
            for rank, result in enumerate(run_ranks(attempts, case, size, timeout=300)):
                for number, found in result.metrics.items():
                    if attempt == 2 and found[0] != found[1]:
                        different.append((rank, loops[int(number)]))
    assert not different, json.dumps([str(each) for each in different], indent=1)
