"""The resources and options of a submitit function's job on Grid Engine, and its #$ lines. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from launcher.schedulers.functions import parameters
from launcher.schedulers.sge import directives as qsub
from launcher.schedulers.sge.environment import SHELL
from launcher.schedulers.sge.settings import SGESettings


@dataclass(frozen=True)
class Parameters(parameters.Parameters):
    """Parameters of `SGEExecutor.update_parameters`, in addition to those of all schedulers."""

    parallel_environment: str | None = None  # parallel environment that gives the job its slots on each node (-pe)
    slots: int | None = None  # slots on each node; None: the CPUs of its tasks if cpus_per_task is given, else 1
    gpu_resource: str | None = None  # name of the site's resource with which `ngpus` is requested
    mem_resource: str | None = None  # name of the site's resource with which `mem` is requested
    # those of the two whose amount counts once for a node, not for each slot (qconf -sc: consumable is not YES), comma-
    # separated
    per_node: str | None = None

    template: ClassVar[str] = "sge.sh.j2"
    shell = replace(SHELL, output="$SGE_STDOUT_PATH")
    starter: ClassVar[str] = "qrsh"
    texts = (*parameters.Parameters.texts, "parallel_environment", "gpu_resource", "mem_resource", "per_node")
    numbers = {**parameters.Parameters.numbers, "slots": 1}  # noqa: RUF012  a constant

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
            mem_resource=self.mem_resource, per_node=(self.per_node or "").split(","), resources=dict(self.resources),
        )  # fmt: skip
        asked = qsub.Amounts(settings, self.nodes, self.ngpus, self.mem, prefix="sge_")
        request = qsub.Request(
            name=self.name,
            folder=folder,
            output="$JOB_ID.$TASK_ID.OU" if array else "$JOB_ID.OU",
            token=token,
            walltime=self.walltime,
            queue=self.queue,
            project=self.project,
            account=self.account,
            amounts=asked,
            array=array,
            rerunnable=self.rerunnable,
            directives=self.directives,
        )
        return qsub.lines_of(request)
