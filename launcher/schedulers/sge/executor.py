"""Submits runs, and anybody's functions (`submitit.AutoExecutor(folder, cluster="sge")`), through submitit."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from launcher import redaction
from launcher.errors import ConfigError
from launcher.runs.directory import Run
from launcher.schedulers import environment_file
from launcher.schedulers import tasks as task_group
from launcher.schedulers.detect import QsubKind
from launcher.schedulers.executor import RunExecutor
from launcher.schedulers.exports import exports
from launcher.schedulers.functions import scheduler
from launcher.schedulers.functions.executor import FunctionExecutor, FunctionJob, JobWatcher
from launcher.schedulers.functions.scheduler import FIRST_JOB, FunctionScheduler
from launcher.schedulers.functions.task import FunctionEnvironment
from launcher.schedulers.run_command import SubmissionRefused
from launcher.schedulers.sge import client, qrsh
from launcher.schedulers.sge import script as qsub
from launcher.schedulers.sge.client import SGE, SHELL, TOKEN, array_of, sge_environment, sge_id
from launcher.schedulers.sge.settings import SGESettings

# -- The resources and options of a submitit function's job on Grid Engine, and its #$ lines


@dataclass(frozen=True)
class Parameters(scheduler.Parameters):
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
    texts = (*scheduler.Parameters.texts, "parallel_environment", "gpu_resource", "mem_resource", "per_node")
    numbers = {**scheduler.Parameters.numbers, "slots": 1}  # noqa: RUF012  a constant

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


# -- The interface of schedulers/functions/ for Grid Engine, with which submitit functions are submitted


class SGEFunctions(FunctionScheduler):
    """Grid Engine as a scheduler of submitit functions."""

    kind = QsubKind.GRID_ENGINE
    parameters = Parameters
    usr_signal_kills = True  # -notify

    def queries(self, timeout: float = 60) -> SGE:
        return SGE(timeout)

    def array_of(self, job_id: str) -> str:
        return array_of(job_id)

    def exports(self, environ: Mapping[str, str]) -> str:
        return exports(sge_environment(environ).environment)

    def largest_array(self, queue: str | None) -> int | None:
        return SGE().max_array_size()

    def output(self, job_id: str) -> str:
        return f"{sge_id(job_id)}.OU"

    def find(self, command: str) -> str | None:
        return client.find(command)

    def resubmission(self, script: str, token: str, first: str) -> tuple[str, tuple[str, ...]]:
        plain = re.sub(r"^#\$ -tc? .*\n", "", script, flags=re.MULTILINE).replace("$JOB_ID.$TASK_ID.OU", "$JOB_ID.OU")
        return plain, ("-v", f"{FIRST_JOB}={first}", "-ac", f"{TOKEN}={token}")


# -- submitit's executor and job classes for Grid Engine: `submitit.AutoExecutor(folder, cluster="sge")`
# See `launcher.schedulers.functions.executor`.


class SGEJob(FunctionJob):
    """A submitit job on Grid Engine."""

    scheduler = SGEFunctions()
    watcher = JobWatcher(SGE())


class SGEJobEnvironment(FunctionEnvironment):
    """The rank and the nodes of this process in a Grid Engine job, with the attributes that submitit reads."""

    scheduler = SGEFunctions()


class SGEExecutor(FunctionExecutor):
    """Submits functions with Grid Engine's qsub; `parameters.Parameters` documents the parameters."""

    job_class = SGEJob
    environment = SGEJobEnvironment
    scheduler = SGEFunctions()


# -- Submits runs to Grid Engine through submitit


class SGERunExecutor(RunExecutor):
    """Submits the jobs of one plan with qsub."""

    job_class = SGEJob

    def _send(self, script: Path, token: str, run: Run) -> str:
        hidden = redaction.secrets_in(os.environ, self.plan.env.secrets)
        tasks = task_group.environments([""], self.plan.tasks_per_node)
        try:
            qrsh.line_of(str(run.path), hidden, tasks, str(run.path))
        except ConfigError as error:
            raise SubmissionRefused(str(error), definite=True) from None
        return super()._send(script, token, run)

    def _environment(self, run: Run) -> Mapping[str, str]:
        # Not qsub -V, with which all users could read the whole environment (qstat -j).
        return environment_file.write(run, self._handed or [run], self.plan, exports)
