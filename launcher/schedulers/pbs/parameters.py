"""The resources and options of a submitit function's job on PBS, and its #PBS lines. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from launcher.schedulers.functions import parameters
from launcher.schedulers.pbs import directives as qsub
from launcher.schedulers.pbs.environment import SHELL


@dataclass(frozen=True)
class Parameters(parameters.Parameters):
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
    texts = (*parameters.Parameters.texts, "select", "place", "filesystems")
    mappings = ("chunk", *parameters.Parameters.mappings)
    lists = (*parameters.Parameters.lists, "mpiexec")

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
