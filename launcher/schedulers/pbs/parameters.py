"""Parameters of functions that `PBSExecutor` submits, and their job script. Pure."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher import __version__, paths
from launcher.errors import ConfigError, near
from launcher.own_module import own_module
from launcher.schedulers.pbs import directives as qsub
from launcher.script import starters, templates
from launcher.script.quoting import Raw, command
from launcher.units import parse_size, parse_time

LEAST = {
    **{"nodes": 1, "tasks_per_node": 1, "cpus_per_task": 1, "ngpus": 0},
    **{"array_parallelism": 1, "signal_delay_s": 0},
}
GRACE = 8  # seconds between SIGTERM and SIGKILL of a job's tasks; PBS itself waits ten


@dataclass(frozen=True)
class Parameters:
    """Parameters of `PBSExecutor.update_parameters`; with AutoExecutor each has `pbs_` in front.

    Attributes:
        name: of the job: letters, digits and _ - + .
        queue, project, account: as qsub's -q, -P and -A.
        select: a whole select statement, instead of the one made of the numbers below.
        place: a place statement; default: scatter for several nodes.
        walltime: minutes, or a text such as 24:00:00; kept in seconds.
        nodes, tasks_per_node, cpus_per_task: how many; every task calls the function.
        ngpus: GPUs of each node.
        mem: memory of each node, such as 16G; kept in bytes.
        chunk: more resources of each node; None drops one of ours.
        resources: more resources of the whole job.
        filesystems: the resource of that name, which some sites want.
        directives: more options of qsub by their letter; a list gives one for each of its values.
        array_parallelism: elements of an array that may run at once.
        setup, teardown: shell lines around the tasks, on the first node.
        mpiexec: words that start the tasks instead of pbsdsh; {nodes}, {tasks}, {tasks_per_node} are filled in.
        stderr_to_stdout: one log file for both.
        signal_delay_s: seconds before the end of the wall time when a function that can is checkpointed.
        rerunnable: PBS may start the job again after it was preempted or lost a node.
    """

    name: str = "submitit"
    queue: str | None = None
    project: str | None = None
    account: str | None = None
    select: str | None = None
    place: str | None = None
    walltime: int = 300
    nodes: int = 1
    tasks_per_node: int = 1
    cpus_per_task: int = 1
    ngpus: int = 0
    mem: int | None = None
    chunk: Mapping[str, Any] = field(default_factory=dict)
    resources: Mapping[str, Any] = field(default_factory=dict)
    filesystems: str | None = None
    directives: Mapping[str, Any] = field(default_factory=dict)
    array_parallelism: int = 256
    setup: Sequence[str] = ()
    teardown: Sequence[str] = ()
    mpiexec: Sequence[str] = ()
    stderr_to_stdout: bool = False
    signal_delay_s: int = 90
    rerunnable: bool = True

    @classmethod
    def names(cls) -> set[str]:
        return {each.name for each in dataclasses.fields(cls)}

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Parameters:
        """Parses the parameters that a user has given.

        Raises:
            ValueError: there is no such parameter, or its value cannot be used.
        """
        for name in given:
            if name not in cls.names():
                known = ", ".join(sorted(cls.names()))
                raise ValueError(f"there is no parameter {name!r}.{near(name, cls.names())} Known: {known}")
        values = {name: value for name, value in given.items() if value is not None}
        try:
            if "walltime" in values:
                values["walltime"] = parse_time(str(values["walltime"]))
            if "mem" in values:
                values["mem"] = parse_size(str(values["mem"]))
            for name in ("name", "queue", "project", "account", "select", "place", "filesystems"):
                if not isinstance(values.get(name, ""), str):
                    raise ValueError(f"{name}={values[name]!r}: it must be a text")
            for name in ("chunk", "resources", "directives"):
                value = values.get(name, {})
                if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
                    raise ValueError(f"{name}={value!r}: it must be a dictionary with texts as keys")
            if "select" in values:
                for name in ("nodes", "ngpus", "mem", "chunk", "cpus_per_task"):
                    if name in values:
                        raise ValueError(f"{name} and select exclude each other: say it in select, or leave that out")
                values["nodes"] = qsub.chunks(values["select"])
            parameters = cls(**values)
            for name in ("setup", "teardown", "mpiexec"):
                if isinstance(getattr(parameters, name), str):
                    raise ValueError(f"{name}={getattr(parameters, name)!r}: it must be a list")
            for name, least in LEAST.items():
                value = getattr(parameters, name)
                if not isinstance(value, int) or isinstance(value, bool) or value < least:
                    raise ValueError(f"{name}={value!r}: it must be a whole number of {least} or more")
            for option, value in qsub.options(parameters._request("", "", None)):
                qsub.line(option, value)
            starters.spawn("python", 1, 1, 1, starter="mpiexec", mpiexec=parameters.mpiexec)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return parameters

    def script(
        self, *, folder: Path, payload: Path, environment: Path, python: str, token: str, indices: range, umask: int
    ) -> str:
        """Returns the script of a job or of an array.

        Args:
            folder: submitit's folder; may contain %j.
            payload: path of the payloads, without `_INDEX.pkl`.
            environment: the file with the environment of the job.
            python: shell command that starts Python.
            token: by which the job is found later.
            indices: of the elements; with a single one it is a plain job.
            umask: for files that the function writes.
        """
        whole = folder_of(folder)
        array = None
        if len(indices) > 1:
            limit = f"%{self.array_parallelism}" if self.array_parallelism < len(indices) else ""
            array = f"{indices[0]}-{indices[-1]}{limit}"
        tasks = self.nodes * self.tasks_per_node
        options = qsub.options(self._request(f"{whole}/", token, array))
        return templates.template("qsub_function.sh.j2").render(
            version=__version__,
            directives=[Raw(qsub.line(letter, value)) for letter, value in options],
            array=array,
            index=indices[0],
            whole=whole,
            folder=folder,
            payload=payload,
            environment=environment,
            umask=Raw(f"{umask:03o}"),
            workdir=os.getcwd(),
            code_root=paths.code_root(),
            seconds=self.walltime - min(self.signal_delay_s, self.walltime // 2),
            setup=[(Raw(line), f"set-up line {n}", "") for n, line in enumerate(self.setup, start=1)],
            teardown=[Raw(line) for line in self.teardown],
            tasks=tasks,
            start=starters.spawn(
                Raw(python), self.nodes, self.tasks_per_node, GRACE,
                starter="mpiexec" if self.mpiexec else "pbsdsh", mpiexec=self.mpiexec, keep_going=True,
            ),
            node=command([Raw(python), "-u", *own_module("launcher.schedulers.pbs.function")]),
            merge_output=self.stderr_to_stdout,
        )  # fmt: skip

    def _request(self, output: str, token: str, array: str | None) -> qsub.Request:
        chunk = qsub.chunk(
            ncpus=self.tasks_per_node * self.cpus_per_task, mpiprocs=self.tasks_per_node,
            ompthreads=self.cpus_per_task, ngpus=self.ngpus, mem=self.mem,
        )  # fmt: skip
        return qsub.Request(
            name=self.name,
            select=self.select or qsub.select(self.nodes, {**chunk, **self.chunk}),
            output=output,
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


def folder_of(folder: Path) -> Path:
    """Returns the part of submitit's folder that is the same for all jobs."""
    # Lazily: submitit takes 45 ms
    from submitit.core.utils import JobPaths

    return JobPaths.get_first_id_independent_folder(folder)
