"""The submission hook of ddp_mnist: finds the data set, and checks the training's settings (`hooks.training`)."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING

from launcher import WorkloadHook
from launcher.errors import ConfigError
from workloads import datasets
from workloads.hooks import training

if TYPE_CHECKING:
    from launcher.config.schema import Config, DDPMnist
    from launcher.spec.plan import JobPlan


class Hook(WorkloadHook):
    def __init__(self) -> None:
        self._find = functools.cache(_found)

    def prepare(self, config: Config) -> tuple[DDPMnist, tuple[str, ...]]:
        workload: DDPMnist = config.workload  # type: ignore[assignment]  # that of conf/workload/ddp_mnist.yaml
        found = self._find(workload.dataset, workload.data_dir)
        chosen = dataclasses.replace(workload, dataset=found.name, data_dir=str(found.dir))
        return chosen, (f"data set: {found.name}, {found.how}",)

    def check(self, plan: JobPlan) -> None:
        training.check(plan)

    def data_sets(self) -> tuple[datasets.Dataset, ...]:
        return tuple(datasets.KNOWN.values())


def _found(name: str, folder: str | None) -> datasets.Found:
    try:
        return datasets.find(name, folder)
    except datasets.DatasetError as error:
        raise ConfigError(f"workload.dataset={name}: {error}") from None
