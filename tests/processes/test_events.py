"""Trainings tell the numbers that the report draws."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.config.schema import DDPMnist, FSDPLm
from tests.processes.workload_ranks import run_ranks
from tests.torch_features import needs_fsdp_on_cpus


def in_events(config: Any, env: Any) -> dict[str, Any]:
    """Trains, and returns the names of the numbers that rank 0 told, by event."""
    from launcher.worker.tracking import Reporter
    from workloads import ddp, fsdp

    told: dict[str, list[str]] = {}
    Reporter.progress = lambda self, step, total, values: told.update(progress=sorted(values))  # type: ignore
    Reporter.evaluated = lambda self, step, values: told.update(evaluated=sorted(values))  # type: ignore
    (ddp if isinstance(config, DDPMnist) else fsdp).main(config, env)
    return told


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (
            DDPMnist("ddp_mnist", "", seed=0, dataset="digits", threads=1, epochs=1),
            {"progress": ["epoch", "images_per_s", "loss", "lr"], "evaluated": ["accuracy", "test_loss"]},
        ),
        pytest.param(
            FSDPLm("fsdp_lm", "", seed=0, layers=1, heads=2, width=8, context=8, steps=2, sample=0, threads=1),
            {"progress": ["loss", "lr", "tokens_per_s"], "evaluated": ["perplexity", "val_loss"]},
            marks=needs_fsdp_on_cpus,
        ),
    ],
    ids=["ddp_mnist", "fsdp_lm"],
)
def test_trainings_tell_the_numbers_that_the_report_draws(config: Any, told: dict[str, list[str]]) -> None:
    assert run_ranks(in_events, config, 1)[0].metrics == told
