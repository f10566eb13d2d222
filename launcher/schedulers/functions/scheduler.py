"""What a scheduler implements so that submitit functions can be submitted to it; the resources of their jobs."""

from __future__ import annotations

import dataclasses
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from launcher import __version__, paths
from launcher.errors import ConfigError, near
from launcher.own_module import own_module
from launcher.runs.job_file import FunctionFile
from launcher.schedulers import tasks, templates
from launcher.schedulers.base import JobVariables, Queries
from launcher.schedulers.detect import QsubKind
from launcher.schedulers.templates import Raw, command
from launcher.units import parse_size, parse_time

# -- The interface that a scheduler implements so that submitit functions can be submitted to it


FIRST_JOB = "LAUNCHER_FIRST_JOB"  # variable of a resubmitted job with the id of the first job


class FunctionQueries(Queries, Protocol):
    """Queries and commands of a scheduler, with a command that submits a script."""

    def submit(self, script: str, environment: Mapping[str, str], *arguments: str, text: str | None = None) -> str:
        """Submits a job script (`-`: `text` through stdin), and returns the job's id.

        Raises SubmissionRefused: the scheduler refused the job.
        Raises NoAnswer: the reply was lost, so the job may or may not exist.
        """


class FunctionScheduler(ABC):
    """A scheduler to which functions are submitted through submitit.

    Attributes:
        kind: scheduler that the qsub on PATH must belong to.
        parameters: class of the parameters that users can set.
        usr_signal_kills: whether the scheduler sends SIGUSR2 as a warning before it kills a job (Grid Engine: -notify).
    """

    kind: QsubKind
    parameters: type[Parameters]
    usr_signal_kills = False

    @abstractmethod
    def queries(self, timeout: float = 60) -> FunctionQueries:
        """Returns the scheduler's queries and commands; each command has this timeout in seconds."""

    @abstractmethod
    def array_of(self, job_id: str) -> str:
        """Returns the array id of an array element's job id; the id of a plain job is returned unchanged."""

    @abstractmethod
    def exports(self, environ: Mapping[str, str]) -> str:
        """Returns shell text that sets this environment in a job, except variables that the scheduler sets."""

    @abstractmethod
    def largest_array(self, queue: str | None) -> int | None:
        """Returns the maximum number of elements of an array, or None without a limit.

        Args:
            queue: name of the queue; None: the default queue.

        Raises:
            QueryError: the scheduler does not answer.
        """

    @abstractmethod
    def output(self, job_id: str) -> str:
        """Returns the name of a job script's output file."""

    @abstractmethod
    def find(self, command: str) -> str | None:
        """Returns the path of a scheduler command on a job's node, or None if the node does not have it."""

    @abstractmethod
    def resubmission(self, script: str, token: str, first: str) -> tuple[str, tuple[str, ...]]:
        """Returns the script and the qsub options of a plain job that continues a job or array element.

        token: unique text that is stored with the new job, so that a later query can find it.
        first: id of the first job of the chain, by which submitit knows all its jobs; passed on in FIRST_JOB.
        """


# -- The resources and options of a submitit function's job, the same for all schedulers, and its job script


P = TypeVar("P", bound="Parameters")
GRACE = 8  # seconds between SIGTERM and SIGKILL of a job's tasks; PBS itself waits ten


@dataclass(frozen=True)
class Parameters(ABC):
    """Parameters of an executor of functions. In submitit.AutoExecutor they have a prefix, such as `pbs_queue`.

    Attributes:
        name: job name.
        queue: qsub -q.
        project: qsub -P.
        account: qsub -A.
        walltime: wall time in seconds; users give minutes, or a text such as 24:00:00.
        nodes: number of nodes.
        tasks_per_node: number of tasks on each node; every task calls the function.
        cpus_per_task: CPUs of each task; None: the scheduler's default.
        ngpus: GPUs of each node.
        mem: memory of each node in bytes; users give a text such as 16G.
        resources: further resources of the whole job by name.
        directives: further qsub options by name; a list adds the option once per value.
        array_parallelism: maximum number of array elements that run at once.
        setup: shell lines before the tasks, on the first node.
        teardown: shell lines after the tasks, on the first node, in a shell of their own.
        stderr_to_stdout: whether a task's stdout and stderr share one log file.
        signal_delay_s: seconds before the end of the wall time at which the function is checkpointed.
        rerunnable: whether the scheduler may requeue the job after a preemption or a node failure.
    """

    name: str = "submitit"
    queue: str | None = None
    project: str | None = None
    account: str | None = None
    walltime: int = 300
    nodes: int = 1
    tasks_per_node: int = 1
    cpus_per_task: int | None = None
    ngpus: int = 0
    mem: int | None = None
    resources: Mapping[str, Any] = field(default_factory=dict)
    directives: Mapping[str, Any] = field(default_factory=dict)
    array_parallelism: int = 256
    setup: Sequence[str] = ()
    teardown: Sequence[str] = ()
    stderr_to_stdout: bool = False
    signal_delay_s: int = 90
    rerunnable: bool = True

    # Set by each scheduler: its job script template, the script's shell expressions, and its key of registry.STARTERS.
    template: ClassVar[str]
    shell: ClassVar[JobVariables]
    starter: ClassVar[str]
    # The parameters of each type, for validation; numbers with their minimum.
    texts: ClassVar[tuple[str, ...]] = ("name", "queue", "project", "account")
    mappings: ClassVar[tuple[str, ...]] = ("resources", "directives")
    lists: ClassVar[tuple[str, ...]] = ("setup", "teardown")
    numbers: ClassVar[Mapping[str, int]] = {
        "nodes": 1, "tasks_per_node": 1, "cpus_per_task": 1, "ngpus": 0, "array_parallelism": 1, "signal_delay_s": 0,
    }  # fmt: skip

    @classmethod
    def names(cls) -> set[str]:
        return {each.name for each in dataclasses.fields(cls)}

    @classmethod
    def of(cls: type[P], given: Mapping[str, Any], folder: Path = Path("/")) -> P:
        """Parses and validates the parameters that a user has given; None selects the default.

        folder: directory of the job's output, whose name is validated too.
        Raises ValueError: a parameter does not exist, or its value or the folder's name is invalid.
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
            cls._check_types(values)
            cls._check_together(values)
            parameters = cls(**values)
            parameters.directive_lines(str(folder), "", None)
            parameters._start()
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return parameters

    @classmethod
    def _check_types(cls, values: Mapping[str, Any]) -> None:
        for name in cls.texts:
            if not isinstance(values.get(name, ""), str):
                raise ValueError(f"{name}={values[name]!r}: it must be a text")
        for name in cls.mappings:
            value = values.get(name, {})
            if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
                raise ValueError(f"{name}={value!r}: it must be a dictionary with texts as keys")
        for name in cls.lists:
            if isinstance(values.get(name), str):
                raise ValueError(f"{name}={values[name]!r}: it must be a list")
        for name, least in cls.numbers.items():
            value = values.get(name, least)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"{name}={value!r}: it must be a whole number of {least} or more")

    @classmethod
    @abstractmethod
    def _check_together(cls, values: dict[str, Any]) -> None:
        """Checks parameters that depend on each other, and adds derived values to `values`.

        Raises:
            ValueError: parameters contradict each other.
            ConfigError: an option or resource is invalid.
        """

    @abstractmethod
    def directive_lines(self, folder: str, token: str, array: str | None) -> list[str]:
        """Returns the directive lines of the job script without their prefix (`#PBS`), with quoted values.

        folder: directory of the job script's output; array: indices and throttle (`0-14%4`); None: a plain job.
        Raises ConfigError: a value cannot be written in a line, or `directives` has an option of another parameter.
        """

    def script(
        self, *, executor: str, folder: Path, payload: Path, environment: Path, python: str | None, token: str,
        indices: range, umask: int,
    ) -> tuple[str, FunctionFile]:  # fmt: skip
        """Returns the script of a job or of an array, and what its driver reads in PAYLOAD.json.

        folder: submitit's folder; may contain %j.
        payload: path of the payload files, without their ending `_INDEX.pkl`.
        environment: path of the shell file with the job's environment.
        python: shell command that starts Python in the tasks; None: this interpreter.
        indices: indices of the array elements; a single index gives a plain job.
        umask: umask of the function's process.
        """
        templates.quote(folder)  # refuses control characters
        whole, workdir = folder_of(folder), os.getcwd()
        array = None
        if len(indices) > 1:
            limit = f"%{self.array_parallelism}" if self.array_parallelism < len(indices) else ""
            array = f"{indices[0]}-{indices[-1]}{limit}"
        main, begin = (paths.PACKAGE / "job" / name for name in ("__main__.py", "begin.sh"))
        text = templates.template(self.template).render(
            plan=None,
            heading=Raw(f"# Made by launcher {__version__} for submitit. What this file does: docs/job-script.md"),
            directives=[Raw(line) for line in self.directive_lines(str(whole), token, array)],
            shell=templates.shell_text(self.shell),
            array=array,
            driver=command([sys.executable, "-I", main, "functions", f"{payload}.json"]),
            workdir=workdir,
            umask=Raw(f"{umask:03o}"),
            environment_file=environment,
            begin=begin,
            modules=Raw("yes" if self.setup else ""),
            setup=[Raw(line) for line in self.setup],
        )
        words = [sys.executable] if python is None else ["bash", "-c", f'{python} "$@"', "python"]
        job = FunctionFile(
            folder=str(whole),
            payload=str(payload),
            index=indices[0],
            start=(*words, *self._start()) if self.nodes * self.tasks_per_node > 1 else (),
            task=(
                *words, "-u", *own_module("launcher.schedulers.functions.task"), str(folder),
                *(["--merge-output"] if self.stderr_to_stdout else []),
            ),
            variables={
                "LAUNCHER_JOB_NAME": self.name, "LAUNCHER_SCRIPT": f"{payload}.sh", "LAUNCHER_UMASK": f"{umask:03o}",
                "SUBMITIT_EXECUTOR": executor,
            },
            signals=tuple(self.shell.signals.split()),
            seconds=self.walltime - min(self.signal_delay_s, self.walltime // 2),
            workdir=workdir,
            environment=str(environment),
            teardown=tuple(self.teardown),
            code_root=None if (root := paths.code_root()) is None else str(root),
        )  # fmt: skip
        return text, job

    def _start(self) -> list[str]:
        return tasks.command(
            "", self.nodes, self.tasks_per_node, GRACE, starter="mpiexec" if self._mpiexec else self.starter,
            mpiexec=self._mpiexec, keep_going=True,
        )[1:]  # fmt: skip

    @property
    def _mpiexec(self) -> Sequence[str]:
        return ()


def folder_of(folder: Path) -> Path:
    """Returns submitit's folder up to the first component with a job-specific placeholder (%j, %A, %a, %t)."""
    from submitit.core.utils import JobPaths

    return JobPaths.get_first_id_independent_folder(folder)
