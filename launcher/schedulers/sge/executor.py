"""Submits anybody's functions through submitit: `submitit.AutoExecutor(folder, cluster="sge")`."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from launcher.schedulers import functions
from launcher.schedulers.executor import JobWatcher
from launcher.schedulers.functions import FunctionExecutor, FunctionJob
from launcher.schedulers.functions.task import FunctionEnvironment
from launcher.schedulers.sge import script
from launcher.schedulers.sge.client import SGE
from launcher.schedulers.sge.scheduler import SGEScheduler
from launcher.schedulers.sge.settings import SGESettings


@dataclass(frozen=True)
class Parameters(functions.Parameters):
    """Parameters of `SGEExecutor.update_parameters`, in addition to those of all schedulers."""

    parallel_environment: str | None = None  # parallel environment that gives the job its slots on each node (-pe)
    slots: int | None = None  # slots on each node; None: the CPUs of its tasks if cpus_per_task is given, else 1
    gpu_resource: str | None = None  # name of the site's resource with which `ngpus` is requested
    mem_resource: str | None = None  # name of the site's resource with which `mem` is requested
    per_node: str | None = None  # those of the two that count once for a node, not for each slot, comma-separated

    template: ClassVar[str] = "sge.sh.j2"
    shell = replace(SGEScheduler.shell, output="$SGE_STDOUT_PATH")
    starter: ClassVar[str] = "qrsh"

    @classmethod
    def _check_together(cls, values: dict[str, Any]) -> None:
        if "slots" in values and "cpus_per_task" in values:
            raise ValueError("cpus_per_task and slots exclude each other: say it in slots, or leave that out")
        if values.get("ngpus") and "gpu_resource" not in values:
            raise ValueError(f"ngpus={values['ngpus']}: name the site's resource for GPUs (gpu_resource=gpu)")

    def directive_lines(self, folder: str, token: str, array: str | None) -> list[str]:
        slots = self.slots or self.tasks_per_node * (self.cpus_per_task or 0) or 1
        settings = SGESettings(
            parallel_environment=self.parallel_environment, slots=slots, gpu_resource=self.gpu_resource,
            mem_resource=self.mem_resource, per_node=re.split(r"[,\s]+", self.per_node or ""),
            resources=dict(self.resources),
        )  # fmt: skip
        asked = script.Amounts(settings, self.nodes, self.ngpus, self.mem, prefix="sge_")
        request = script.Request(
            **self._common(token, array), folder=folder, amounts=asked,
            output="$JOB_ID.$TASK_ID.OU" if array else "$JOB_ID.OU",
        )  # fmt: skip
        return script.lines_of(request)


class SGEJobEnvironment(FunctionEnvironment):
    scheduler = SGEScheduler()


class SGEJob(FunctionJob):
    scheduler = SGEScheduler()
    watcher = JobWatcher(SGE())


class SGEExecutor(FunctionExecutor):
    job_class = SGEJob
    environment = SGEJobEnvironment
    scheduler = SGEScheduler()
    parameters_class = Parameters
