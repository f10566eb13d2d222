"""Submits anybody's functions through submitit: `submitit.AutoExecutor(folder, cluster="pbs")`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from launcher.schedulers import functions
from launcher.schedulers.executor import JobWatcher
from launcher.schedulers.functions import FunctionExecutor, FunctionJob
from launcher.schedulers.functions.task import FunctionEnvironment
from launcher.schedulers.pbs import script
from launcher.schedulers.pbs.client import PBS
from launcher.schedulers.pbs.scheduler import PBSScheduler


@dataclass(frozen=True)
class Parameters(functions.Parameters):
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
    shell = PBSScheduler.shell
    starter: ClassVar[str] = "pbsdsh"

    @classmethod
    def _check_together(cls, values: dict[str, Any]) -> None:
        if "select" in values:
            for name in ("nodes", "ngpus", "mem", "chunk", "cpus_per_task"):
                if name in values:
                    raise ValueError(f"{name} and select exclude each other: say it in select, or leave that out")
            values["nodes"] = script.chunks(values["select"])
            cls._check_types(values)

    def directive_lines(self, folder: str, token: str, array: str | None) -> list[str]:
        chunk = script.chunk(
            ncpus=self.tasks_per_node * self.cpus_per_task, mpiprocs=self.tasks_per_node,
            ompthreads=self.cpus_per_task, ngpus=self.ngpus, mem=self.mem,
        )  # fmt: skip
        request = script.Request(
            **self._common(token, array),
            select=self.select or script.select(self.nodes, {**chunk, **self.chunk}),
            output=f"{folder.rstrip('/')}/",
            place=self.place or script.place(self.nodes),
            resources={"filesystems": self.filesystems, **self.resources},
        )
        return [script.line(letter, value) for letter, value in script.options(request)]


class PBSJobEnvironment(FunctionEnvironment):
    scheduler = PBSScheduler()


class PBSJob(FunctionJob):
    scheduler = PBSScheduler()
    watcher = JobWatcher(PBS())


class PBSExecutor(FunctionExecutor):
    job_class = PBSJob
    environment = PBSJobEnvironment
    scheduler = PBSScheduler()
    parameters_class = Parameters
