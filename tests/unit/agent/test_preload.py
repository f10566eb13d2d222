"""What an agent imports before it forks is ours, and never a user's."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch

from launcher.agent.workers import preload
from launcher.binding import hardware
from launcher.config.schema import FSDPLm
from launcher.worker import devices
from tests.unit.plans import plan_of
from workloads import fsdp


@pytest.mark.parametrize(
    ("entry", "modules"),
    [
        ("workloads.ddp:main", ("workloads.ddp",)),
        ("workloads.function:main", ("workloads.function",)),  # whose target is the user's, and is imported in the rank
        ("launcher.worker.main:run_rank", ()),
        ("my.module:main", ()),
        ("tests.chaos.counting:main", ()),
        ("workloads_of_mine.train:main", ()),
        ("workloads:main", ()),
    ],
)
def test_what_may_be_imported_before_the_fork(
    entry: str, modules: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    imported: list[str] = []
    monkeypatch.setattr(importlib, "import_module", imported.append)
    preload(entry)
    assert tuple(imported) == modules


def test_an_import_that_fails_is_left_to_the_ranks() -> None:
    preload("workloads.is_not_there:main")


def test_what_is_made_before_the_fork_asks_cuda_nothing_on_a_machine_with_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else CUDA is initialised in the agent, and each rank starts in an interpreter of its own."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: pytest.fail("it asks CUDA"))
    monkeypatch.setattr(devices, "torch_build", lambda: "cuda")
    monkeypatch.setattr(hardware, "device_files", lambda: [Path("/dev/nvidia0")])
    monkeypatch.setattr(fsdp, "_made", [])
    for gpus in (0, 2):
        fsdp.before_ranks(plan_of(workload=FSDPLm("fsdp_lm", "workloads.fsdp:main", seed=0), gpus_per_node=gpus))
    assert len(fsdp._made) == 2
