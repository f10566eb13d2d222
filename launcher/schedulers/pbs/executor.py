"""Submits runs, and anybody's functions (`submitit.AutoExecutor(folder, cluster="pbs")`), through submitit."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from launcher.runs.directory import Run
from launcher.runs.sweep_directory import element_id
from launcher.schedulers import environment_file
from launcher.schedulers.detect import QsubKind
from launcher.schedulers.executor import RunExecutor
from launcher.schedulers.functions import scheduler
from launcher.schedulers.functions.executor import FunctionExecutor, FunctionJob, JobWatcher
from launcher.schedulers.functions.scheduler import FIRST_JOB, FunctionScheduler
from launcher.schedulers.functions.task import FunctionEnvironment
from launcher.schedulers.pbs import script as qsub
from launcher.schedulers.pbs import task_starters
from launcher.schedulers.pbs.client import PBS, SHELL, TOKEN, array_of, pbs_environment, pbs_id
from launcher.schedulers.pbs.task_starters import exports

# -- The resources and options of a submitit function's job on PBS, and its #PBS lines


@dataclass(frozen=True)
class Parameters(scheduler.Parameters):
    """Parameters of `PBSExecutor.update_parameters`, in addition to those of all schedulers."""

    cpus_per_task: int = 1
    select: str | None = None  # complete select statement; None: made from nodes, tasks, CPUs, GPUs, memory and chunk
    place: str | None = None  # place statement; None: scatter for several nodes
    # resources to add to each node's chunk or to replace in it; the value None removes a default
    chunk: Mapping[str, Any] = field(default_factory=dict)
    filesystems: str | None = None  # value of PBS's resource `filesystems`, which some sites require
    # argv of a command that starts the tasks instead of pbsdsh, with the placeholders {nodes}, {tasks} and
    # {tasks_per_node}
    mpiexec: Sequence[str] = ()

    template: ClassVar[str] = "qsub.sh.j2"
    shell = SHELL
    starter: ClassVar[str] = "pbsdsh"
    texts = (*scheduler.Parameters.texts, "select", "place", "filesystems")
    mappings = ("chunk", *scheduler.Parameters.mappings)
    lists = (*scheduler.Parameters.lists, "mpiexec")

    @classmethod
    def _check_together(cls, values: dict[str, Any]) -> None:
        if "select" in values:
            for name in ("nodes", "ngpus", "mem", "chunk", "cpus_per_task"):
                if name in values:
                    raise ValueError(f"{name} and select exclude each other: say it in select, or leave that out")
            values["nodes"] = qsub.chunks(values["select"])
            cls._check_types(values)

    def directive_lines(self, folder: str, token: str, array: str | None) -> list[str]:
        chunk = qsub.chunk(
            ncpus=self.tasks_per_node * self.cpus_per_task, mpiprocs=self.tasks_per_node,
            ompthreads=self.cpus_per_task, ngpus=self.ngpus, mem=self.mem,
        )  # fmt: skip
        request = qsub.Request(
            name=self.name,
            select=self.select or qsub.select(self.nodes, {**chunk, **self.chunk}),
            output=f"{folder.rstrip('/')}/",
            token=token,
            place=self.place or qsub.place(self.nodes),
            walltime=self.walltime,
            queue=self.queue,
            project=self.project,
            account=self.account,
            resources={"filesystems": self.filesystems, **self.resources},
            array=array,
            rerunnable=self.rerunnable or array is not None,  # PBS requires it for arrays
            directives=self.directives,
        )
        return [qsub.line(letter, value) for letter, value in qsub.options(request)]

    @property
    def _mpiexec(self) -> Sequence[str]:
        return self.mpiexec


# -- The interface of schedulers/functions/ for PBS, with which submitit functions are submitted


class PBSFunctions(FunctionScheduler):
    """PBS as a scheduler of submitit functions."""

    kind = QsubKind.PBS
    parameters = Parameters

    def queries(self, timeout: float = 60) -> PBS:
        return PBS(timeout)

    def array_of(self, job_id: str) -> str:
        return array_of(job_id)

    def exports(self, environ: Mapping[str, str]) -> str:
        return exports(pbs_environment(environ).environment)

    def largest_array(self, queue: str | None) -> int | None:
        return PBS().max_subjobs(queue)

    def output(self, job_id: str) -> str:
        return f"{pbs_id(job_id)}.OU"

    def find(self, command: str) -> str | None:
        return task_starters.find(command)

    def resubmission(self, script: str, token: str, first: str) -> tuple[str, tuple[str, ...]]:
        plain = re.sub(r"^#PBS -J .*\n", "", script, flags=re.MULTILINE)
        return plain, ("-f", "-v", f"{FIRST_JOB}={first},{TOKEN}={token}")


# -- submitit's environment of a task of a function on PBS


class PBSJobEnvironment(FunctionEnvironment):
    """The rank and the nodes of this process in a PBS job, with the attributes that submitit reads."""

    scheduler = PBSFunctions()


# -- submitit's executor and job classes for PBS: `submitit.AutoExecutor(folder, cluster="pbs")`
# See `launcher.schedulers.functions.executor`.


class PBSJob(FunctionJob):
    """A submitit job on PBS."""

    scheduler = PBSFunctions()
    watcher = JobWatcher(PBS())


class PBSExecutor(FunctionExecutor):
    """Submits functions with PBS's qsub; `parameters.Parameters` documents the parameters."""

    job_class = PBSJob
    environment = PBSJobEnvironment
    scheduler = PBSFunctions()


# -- Submits runs to PBS through submitit


class PBSRunExecutor(RunExecutor):
    """Submits the jobs of one plan with qsub."""

    job_class = PBSJob

    def _environment(self, run: Run) -> Mapping[str, str]:
        # Not qsub -v, which changes some values, and shows all of them to other users.
        return environment_file.write(run, self._handed or [run], self.plan, exports)

    def _submit_behind(self, script: Path, environment: Mapping[str, str], jobs: Sequence[str]) -> str:
        job = super()._submit_behind(script, environment, jobs)
        # PBS deletes a job at once if it depends on a job that PBS has forgotten.
        if jobs and not PBS(self.plan.cluster.submit_timeout).holds(job) and not self._blocking_jobs():
            return super()._submit_behind(script, environment, ())
        return job

    def _element_id(self, job_id: str, index: int) -> str:
        return element_id(job_id, index)
