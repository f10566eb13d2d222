"""A slow rank is told from those that wait for it, in trainings of two ranks."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import nn

from launcher import Env
from launcher.checkpoint import resumable
from launcher.config.schema import DDPMnist, FSDPLm, Sync
from launcher.worker import heartbeat
from launcher.worker.heartbeat import Pulse
from tests.processes.workload_ranks import run_ranks
from tests.torch_features import needs_fsdp_on_cpus
from tests.unit.plans import run_settings
from workloads import ddp, fsdp


def slow_forward(seconds: float, *modules: nn.Module) -> None:
    for module in modules:
        module.register_forward_pre_hook(lambda *_: time.sleep(seconds) if torch.is_grad_enabled() else None)


def train(config: Any, env: Env) -> dict[str, Any]:
    """A training whose rank 1 is slow; what each rank has told of its pace."""
    resumable.INTERVAL = 0.0
    signs = Pulse(1)
    heartbeat.take(signs.slot(0))
    medians: list[float] = []
    told = signs.slot(0).pace

    def keep(seconds: float, steps: int) -> None:
        medians.append(seconds)
        told(seconds, steps)

    invariant = isinstance(config, DDPMnist) and config.momentum == 0.0
    run = run_settings(invariant=invariant, micro_batches=4)
    trainer: Any = (ddp if isinstance(config, DDPMnist) else fsdp).Trainer(config, env, run)
    trainer.resumable.pace._slot.pace = keep
    if env.rank == 1:
        modules = [trainer.model.convolution] if isinstance(config, DDPMnist) else list(trainer.model.blocks)
        slow_forward(0.1, *[next(iter(each.children()), each) for each in modules])
    trainer.run()
    medians.sort()
    return {"median": medians[len(medians) // 2], "steps": signs.paces()[0][1]}


def mnist(**changes: Any) -> DDPMnist:
    return DDPMnist(**{"name": "m", "entry": "", "seed": 0, "dataset": "digits", "threads": 1, "epochs": 1, **changes})


LM = FSDPLm(
    "lm", "", seed=0, threads=1, layers=2, heads=2, width=16, context=16, steps=12, batch_size=4, eval_every=6,
    eval_windows=4, sample=0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("config", "steps"),
    [
        (mnist(), 10),
        (mnist(sync=Sync.manual), 10),
        (mnist(momentum=0.0), 10),
        (mnist(micro_batch_size=32), 10),
        pytest.param(LM, 9, marks=needs_fsdp_on_cpus),
    ],
    ids=["ddp", "manual", "invariant", "accumulated", "fsdp"],
)
def test_the_slow_rank_is_told_from_those_that_wait_for_it(config: Any, steps: int) -> None:
    """All take steps of the same time. The slow one sleeps 0.1 s or more; nobody else needs as much on its own."""
    fast, slow = (result.metrics for result in run_ranks(train, config, 2))
    assert fast["steps"] >= steps and slow["steps"] >= steps
    assert slow["median"] > 0.1 / (2 if config is not LM and config.momentum == 0.0 else 1)
    assert fast["median"] < slow["median"]
