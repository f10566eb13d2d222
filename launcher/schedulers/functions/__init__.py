"""Submits users' functions through submitit (`submitit.AutoExecutor(folder, cluster="pbs")`) on PBS and Grid Engine.

`task` is the program of each task, which calls the function. Neither needs torch or Hydra.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import sys
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from submitit.core import core, plugins, utils

from launcher import __version__, paths
from launcher.errors import ConfigError, near
from launcher.files import folder_checks, safe_io
from launcher.files.json_types import as_json
from launcher.paths import own_module
from launcher.redaction import SECRETS, without_secrets
from launcher.runs.directory import require_private
from launcher.runs.job_file import FunctionFile, exports
from launcher.runs.sweep_directory import element_id
from launcher.schedulers import registry, tasks, templates
from launcher.schedulers.base import JobVariables, QueryError, parts
from launcher.schedulers.executor import OwnSubmission, QueuedJob, read_now
from launcher.schedulers.qsub import QsubScheduler, detect
from launcher.schedulers.run_command import SubmissionRefused, submit_once
from launcher.schedulers.templates import Raw, command
from launcher.units import parse_size, parse_time

if TYPE_CHECKING:
    from launcher.schedulers.functions.task import FunctionEnvironment

P = TypeVar("P", bound="Parameters")
GRACE = 8  # seconds between SIGTERM and SIGKILL of a job's tasks; PBS itself waits ten


@dataclass(frozen=True)
class Parameters(ABC):
    """Parameters of an executor of functions. In submitit.AutoExecutor they have a prefix, such as `pbs_queue`."""

    name: str = "submitit"  # job name
    queue: str | None = None  # qsub -q
    project: str | None = None  # qsub -P
    account: str | None = None  # qsub -A
    walltime: int = 300  # wall time in seconds; users give minutes, or a text such as 24:00:00
    nodes: int = 1  # number of nodes
    tasks_per_node: int = 1  # number of tasks on each node; every task calls the function
    cpus_per_task: int | None = None  # CPUs of each task; None: the scheduler's default
    ngpus: int = 0  # GPUs of each node
    mem: int | None = None  # memory of each node in bytes; users give a text such as 16G
    resources: Mapping[str, Any] = field(default_factory=dict)  # further resources of the whole job by name
    # further qsub options by name; a list adds the option once per value
    directives: Mapping[str, Any] = field(default_factory=dict)
    array_parallelism: int = 256  # maximum number of array elements that run at once
    setup: Sequence[str] = ()  # shell lines before the tasks, on the first node
    teardown: Sequence[str] = ()  # shell lines after the tasks, on the first node, in a shell of their own
    stderr_to_stdout: bool = False  # whether a task's stdout and stderr share one log file
    signal_delay_s: int = 90  # seconds before the end of the wall time at which the function is checkpointed
    rerunnable: bool = True  # whether the scheduler may requeue the job after a preemption or a node failure

    # Set by each scheduler: its job script template, the script's shell expressions, and its key of registry.STARTERS.
    template: ClassVar[str]
    shell: ClassVar[JobVariables]
    starter: ClassVar[str]

    @classmethod
    def of(cls: type[P], given: Mapping[str, Any], folder: Path = Path("/")) -> P:
        """Parses and checks the given parameters (None: the default), and the output's folder; raises ValueError."""
        names = {each.name for each in dataclasses.fields(cls)}
        if unknown := [name for name in given if name not in names]:
            hint = f"{near(unknown[0], names)} Known: {', '.join(sorted(names))}"
            raise ValueError(f"there is no parameter {unknown[0]!r}.{hint}")
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
        kinds = {each.name: str(each.type).partition(" ")[0].partition("[")[0] for each in dataclasses.fields(cls)}
        for name, value in values.items():
            kind, least = kinds[name], 0 if name in ("ngpus", "signal_delay_s") else 1
            if kind == "str" and not isinstance(value, str):
                raise ValueError(f"{name}={value!r}: it must be a text")
            if kind == "bool" and not isinstance(value, bool):
                raise ValueError(f"{name}={value!r}: it must be True or False")
            texts = isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
            if kind == "Mapping" and not texts:
                raise ValueError(f"{name}={value!r}: it must be a dictionary with texts as keys")
            if kind == "Sequence" and isinstance(value, str):
                raise ValueError(f"{name}={value!r}: it must be a list")
            if kind == "int" and (not isinstance(value, int) or isinstance(value, bool) or value < least):
                raise ValueError(f"{name}={value!r}: it must be a whole number of {least} or more")

    @classmethod
    @abstractmethod
    def _check_together(cls, values: dict[str, Any]) -> None:
        """Checks parameters that depend on each other, and adds derived values; raises ValueError, ConfigError."""

    @abstractmethod
    def directive_lines(self, folder: str, token: str, array: str | None) -> list[str]:
        """Returns the directive lines of the job script without their prefix (`#PBS`); raises ConfigError."""

    def _common(self, token: str, array: str | None) -> dict[str, Any]:
        # The fields of a `qsub.Request`
        names = ("name", "walltime", "queue", "project", "account", "rerunnable", "directives")
        return {"token": token, "array": array, **{name: getattr(self, name) for name in names}}

    def script(
        self, *, executor: str, folder: Path, payload: Path, environment: Path, python: str | None, token: str,
        indices: range, umask: int,
    ) -> tuple[str, FunctionFile]:  # fmt: skip
        """Returns the script of a job, or of an array of these indices, and what its driver reads in PAYLOAD.json.

        payload: path of the payload files, without their ending `_INDEX.pkl`.
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
        mpiexec: Sequence[str] = getattr(self, "mpiexec", ())
        return tasks.command(
            "", self.nodes, self.tasks_per_node, GRACE, starter="mpiexec" if mpiexec else self.starter,
            mpiexec=mpiexec, keep_going=True,
        )[1:]  # fmt: skip


def folder_of(folder: Path) -> Path:
    """Returns submitit's folder up to the first component with a job-specific placeholder (%j, %A, %a, %t)."""
    return utils.JobPaths.get_first_id_independent_folder(folder)


# -- Submits users' functions
# Job ids are the scheduler's (`136.pbs-srv`); array elements have `150.pbs-srv_0` and so on. A job that checkpoints and
# is resubmitted keeps its first id here; ID_resubmitted.txt in submitit's folder lists the ids of the later jobs.


def resubmissions(paths: utils.JobPaths) -> Path:
    return Path(paths.submitted_pickle).with_name(f"{paths.job_id}_resubmitted.txt")


def link_as(file: Path, name: Path) -> None:
    """Makes a hard link `name` (a copy where links do not work) unless it exists; raises OSError."""
    safe_io.make_folder(name.parent)
    try:
        os.link(file, name)
    except FileExistsError:
        pass
    except OSError as error:
        if error.errno not in safe_io.WITHOUT_LINKS:
            raise
        if not name.exists():
            safe_io.replace(name, file.read_bytes())


def add_ours() -> None:
    """Appends registry.FUNCTIONS to submitit's list of plug-ins, while it loops over that and calls their `name()`."""
    if plugins._get_plugins.cache_info().currsize:
        executors, _ = plugins._get_plugins()
        executors += [each for each in map(registry.function_executor, registry.FUNCTIONS) if each not in executors]


class FunctionJob(QueuedJob):
    scheduler: ClassVar[QsubScheduler]

    def _register_in_watcher(self) -> None:
        if not self._tasks[0]:
            self.watcher.register(self.job_id, resubmissions(self.paths))

    def stderr(self) -> str | None:
        """Returns the task's standard error, the job script's output if no task has started, or None."""
        found: str | None = super().stderr()
        if found is not None or self._sub_jobs:
            return found
        with contextlib.suppress(OSError, QueryError):
            output = f"{self.scheduler.native_id(self.watcher.current(self.job_id))}.OU"
            return (folder_of(self.paths._folder) / output).read_text(errors="replace") or None
        return None


class FunctionExecutor(OwnSubmission):
    """Submits functions to PBS or Grid Engine. `Parameters` documents the parameters of update_parameters()."""

    job_class: type[FunctionJob]
    environment: ClassVar[type[FunctionEnvironment]]
    scheduler: ClassVar[QsubScheduler]
    parameters_class: ClassVar[type[Parameters]]

    def __init__(
        self, folder: str | Path, max_num_timeout: int = 3, max_pickle_size_gb: float = 1.0, python: str | None = None
    ) -> None:
        """folder: of payloads, results and logs, on a file system that all nodes share. May contain %j.
        max_num_timeout: how many times a function with a checkpoint method is resubmitted after a timeout.
        max_pickle_size_gb: maximum size of all payloads of one call in GB.
        python: shell command that starts Python in the tasks; None: this interpreter.
        """
        super().__init__(folder, max_num_timeout, max_pickle_size_gb)
        if problem := detect().problem(self.scheduler.kind):
            raise RuntimeError(problem)
        self.parameters_class.of({}, folder_of(self.folder))
        self.python = python
        self._queries = self.scheduler.queries()

    @classmethod
    def name(cls) -> str:
        add_ours()
        return str(super().name())

    @classmethod
    def affinity(cls) -> int:
        return 2 if detect().kind is cls.scheduler.kind else -1

    @classmethod
    def _equivalence_dict(cls) -> core.EquivalenceDict:
        return {
            "name": "name", "timeout_min": "walltime", "mem_gb": "mem", "nodes": "nodes",
            "cpus_per_task": "cpus_per_task", "gpus_per_node": "ngpus", "tasks_per_node": "tasks_per_node",
        }  # fmt: skip

    @classmethod
    def _valid_parameters(cls) -> set[str]:
        return {each.name for each in dataclasses.fields(cls.parameters_class)}

    def _convert_parameters(self, params: dict[str, Any]) -> dict[str, Any]:
        params = super()._convert_parameters(params)
        if "mem" in params:
            params["mem"] = f"{round(params['mem'] * 1024)}M"
        return params

    def _internal_update_parameters(self, **kwargs: Any) -> None:
        self.parameters_class.of({**self.parameters, **kwargs})
        super()._internal_update_parameters(**kwargs)

    @property
    def _request(self) -> Parameters:
        return self.parameters_class.of(self.parameters)

    def _num_tasks(self) -> int:
        return self._request.nodes * self._request.tasks_per_node

    def _internal_process_submissions(
        self, delayed_submissions: Sequence[utils.DelayedSubmission]
    ) -> list[core.Job[Any]]:
        folder = folder_of(self.folder)
        folder_checks.require_safe_way(folder.parent, f"folder={folder}")
        safe_io.make_folder(folder)
        require_private(folder)
        jobs: list[core.Job[Any]] = []
        try:
            for part in parts(len(delayed_submissions), self._largest_array(len(delayed_submissions))):
                jobs += self._submit_part(folder, part, delayed_submissions)
        except BaseException:
            for job_id in {self.scheduler.array_of(job.job_id) for job in jobs}:  # the caller gets no job objects
                with contextlib.suppress(QueryError):
                    self._queries.cancel(job_id)
            raise
        return jobs

    def _largest_array(self, count: int) -> int | None:
        if count == 1:
            return None
        try:
            return self._queries.largest_array(self.parameters.get("queue"))
        except QueryError:  # qsub has a longer timeout, and refuses an array that is too large
            return None

    def _submit_part(
        self, folder: Path, part: range, submissions: Sequence[utils.DelayedSubmission]
    ) -> list[core.Job[Any]]:
        # PBS has no arrays of one element
        uid = uuid.uuid4().hex
        parameters = self._request
        script, job_file, id_file = (folder / f".{uid}.{kind}" for kind in ("sh", "json", "job"))
        payloads = [folder / f".{uid}_{index}.pkl" for index in part]
        try:
            for index, payload in zip(part, payloads, strict=True):
                submissions[index].set_timeout(-(-parameters.walltime // 60), self.max_num_timeout)
                payload.touch(mode=0o600)
                submissions[index].dump(payload)
                if payload == payloads[0]:
                    self._check_size(payload, len(submissions))
            text, for_driver = parameters.script(
                executor=self.name(),
                folder=self.folder,
                payload=folder / f".{uid}",
                environment=self._environment(folder),
                python=self.python,
                token=f"launcher-{uid}",
                indices=part,
                umask=_umask(),
            )
            safe_io.write(script, text)
            safe_io.write(job_file, json.dumps(as_json(for_driver), indent=1))
        except BaseException:
            _remove(script, job_file, *payloads)
            raise
        try:
            job_id = submit_once(
                # A site's default -V would show secrets. The function's environment is in a file with mode 0600.
                lambda: self._queries.submit(
                    str(script), without_secrets(os.environ, SECRETS), *self._queries.options([])
                ),
                lambda: read_now(id_file) or self._queries.find(f"launcher-{uid}", parameters.name),
            )
        except SubmissionRefused:
            _remove(script, job_file, *payloads)
            raise
        ids = [job_id] if len(part) == 1 else [element_id(job_id, index) for index in part]
        tasks = range(self._num_tasks())
        jobs: list[core.Job[Any]] = [self.job_class(self.folder, each, tasks) for each in ids]
        # The job looks for its payload under both names, and may have written a checkpoint under the new one already.
        for job, payload in zip(jobs, payloads, strict=True):
            link_as(payload, job.paths.submitted_pickle)
            payload.unlink()
        _remove(id_file)
        link_as(script, jobs[0].paths.submission_file)  # the hidden names stay: a resubmission reads them
        return jobs

    def _check_size(self, payload: Path, count: int) -> None:
        size = payload.stat().st_size / 1024**3
        if count * size > self.max_pickle_size_gb:
            raise RuntimeError(
                f"{count} x {size:.2f} GB, and max_pickle_size_gb={self.max_pickle_size_gb}: pass large data by file"
            )

    def _environment(self, folder: Path) -> Path:
        text = os.fsencode(exports(self.scheduler.inherited(dict(sorted(os.environ.items()))).environment))
        path = folder / f".environment-{hashlib.sha256(text).hexdigest()[:16]}.sh"
        if not path.exists():
            safe_io.replace(path, text, sync=False)
        return path


def _remove(*paths: Path) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _umask() -> int:
    # From /proc if possible: os.umask() would briefly change it for other threads
    with contextlib.suppress(OSError):
        if match := re.search(r"^Umask:\s*([0-7]+)", Path("/proc/self/status").read_text(), re.MULTILINE):
            return int(match[1], 8)
    umask = os.umask(0o077)
    os.umask(umask)
    return umask
