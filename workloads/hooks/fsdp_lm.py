"""The submission hook of fsdp_lm: finds the text, and checks the training's settings (`hooks.training`)."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING

from launcher import WorkloadHook
from workloads import texts
from workloads.hooks import training

if TYPE_CHECKING:
    from launcher.config.schema import Config, FSDPLm
    from launcher.spec.plan import JobPlan


class Hook(WorkloadHook):
    def __init__(self) -> None:
        self._find = functools.cache(texts.find)

    def prepare(self, config: Config) -> tuple[FSDPLm, tuple[str, ...]]:
        workload: FSDPLm = config.workload  # type: ignore[assignment]  # that of conf/workload/fsdp_lm.yaml
        text = self._find(workload.text)
        texts.check(workload, text, config.train.invariant)
        return dataclasses.replace(workload, text=text.name), (f"text: {text.name}, {text.length:,} bytes",)

    def check(self, plan: JobPlan) -> None:
        training.check(plan)
