"""The submitit executor that submits users' functions; its jobs and their states."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from submitit.core import core, plugins, utils

from launcher.environment import secrets
from launcher.errors import UnavailableError
from launcher.files import ownership, run_files
from launcher.files.json_types import as_json
from launcher.files.shared_files import read_text, unwrap
from launcher.redaction import SECRETS
from launcher.runs.directory import require_private
from launcher.runs.sweep_directory import element_id
from launcher.schedulers import registry
from launcher.schedulers.base import JobState, Queries, QueryError, SchedulerJob, parts
from launcher.schedulers.detect import detect
from launcher.schedulers.executor import NOT_OVER
from launcher.schedulers.functions.scheduler import FunctionScheduler, Parameters, folder_of
from launcher.schedulers.functions.task import FunctionEnvironment, link_as, resubmissions
from launcher.schedulers.run_command import SubmissionRefused, submit_once

# -- Registers all executors of `registry.FUNCTIONS` with submitit, which loads only one per entry point `executor`


def add_ours() -> None:
    """Appends the executors of registry.FUNCTIONS to submitit's list of plug-ins once that is loaded.

    `submitit.core.plugins.get_executors` loops over the list and calls `name()` of each executor.
    `FunctionExecutor.name` calls this function, so the same loop also reaches the executors appended here.
    """
    if plugins._get_plugins.cache_info().currsize:
        executors, _ = plugins._get_plugins()
        executors += [each for each in map(registry.function_executor, registry.FUNCTIONS) if each not in executors]


# -- The submitit executor that submits users' functions; its jobs and their states
# executor = submitit.AutoExecutor("logs", cluster="pbs")
#     executor.update_parameters(timeout_min=60, nodes=2, tasks_per_node=4, pbs_queue="gpu")
#     job = executor.submit(function, 3)
#     print(job.results())
#
# Job ids are the scheduler's (`136.pbs-srv`); array elements have `150.pbs-srv_0` and so on. A job that checkpoints and
# is resubmitted keeps its first id here; ID_resubmitted.txt in submitit's folder lists the ids of the later jobs.
#
# This module and its imports need neither torch nor Hydra.


OVER = "OVER"  # state of an ended job with an outcome that has not been queried yet


class JobWatcher(core.InfoWatcher):
    """Reads the states of all jobs with one query, and then queries the records of the jobs that it does not list."""

    def __init__(self, queries: Queries, delay_s: int = 60) -> None:
        super().__init__(delay_s)
        self._queries = queries
        self._files: dict[str, Path] = {}
        self._misses: dict[str, int] = {}

    def register(self, job_id: str, file: Path) -> None:
        """Watches a job, and the jobs that continue it, whose ids are appended to `file` (`resubmissions`)."""
        self._files[job_id] = file
        self.register_job(job_id)

    def current(self, job_id: str) -> str:
        """Returns the id of the latest job that continues this job, or `job_id`. Raises QueryError: unknown now."""
        lines = _read_optional(self._files[job_id]).split() if job_id in self._files else []
        return lines[-1] if lines else job_id

    def update(self) -> None:
        waiting = sorted(self._registered - self._finished)
        if not waiting:
            return
        self._num_calls += 1
        self._last_status_check = time.time()
        try:
            known = self._queries.jobs()
            # Read after the query: a job that had ended by then has recorded its successor already.
            now = {job_id: self.current(job_id) for job_id in waiting}
            keys = {job_id: self._queries.key(now[job_id]) for job_id in waiting}
            gone = [now[job_id] for job_id in waiting if keys[job_id] not in known]
            ended = self._queries.ended_all(gone) if gone else {}
        except QueryError:
            return  # the known states stay
        for job_id in waiting:
            self._learn(job_id, known.get(keys[job_id]) or ended.get(keys[job_id]))
        self._finished.update(job_id for job_id in waiting if self.is_done(job_id, mode="cache"))

    def _learn(self, job_id: str, job: SchedulerJob | None) -> None:
        if job is None:  # ended and forgotten by the server; or the query was too early, so a second one is needed
            self._misses[job_id] = self._misses.get(job_id, 0) + 1
            if self._misses[job_id] < 2:
                return
            state, reason = OVER, ""
        else:
            self._misses.pop(job_id, None)
            state = NOT_OVER.get(job.state) or (OVER if job.state is JobState.GONE else job.raw_state)
            reason = job.reason
        self._info_dict[job_id] = {"JobID": job_id, "State": state, "Reason": reason}

    def get_state(self, job_id: str, mode: str = "standard") -> str:
        """Returns the first job's state in Slurm's names; FORGOTTEN: ended, no record. Mode `cache` queries nothing."""
        info = self.get_info(job_id, mode)
        if info.get("State") == OVER and mode != "cache":
            try:
                job = self._queries.ended(self.current(job_id))
            except QueryError:
                return "UNKNOWN"
            info.update(State=job.raw_state if job else "FORGOTTEN", Reason=job.reason if job else "")
        return info.get("State") or "UNKNOWN"

    def is_done(self, job_id: str, mode: str = "standard") -> bool:
        state = self.get_info(job_id, mode).get("State") or "UNKNOWN"
        return state not in NOT_OVER.values()

    def clear(self) -> None:
        super().clear()
        self._misses = {}


class FunctionJob(core.Job[Any]):
    """A submitit job of PBS or Grid Engine that runs a function."""

    _cancel_command = "qdel"
    scheduler: ClassVar[FunctionScheduler]
    watcher: JobWatcher

    def _register_in_watcher(self) -> None:
        if not self._tasks[0]:
            self.watcher.register(self.job_id, resubmissions(self.paths))

    def stderr(self) -> str | None:
        """Returns the task's standard error, or the job script's output if no task has started; None without either."""
        found: str | None = super().stderr()
        if found is not None or self._sub_jobs:
            return found
        with contextlib.suppress(OSError, QueryError):
            output = self.scheduler.output(self.watcher.current(self.job_id))
            return (folder_of(self.paths._folder) / output).read_text(errors="replace") or None
        return None

    def cancel(self, check: bool = True) -> None:
        """Cancels the latest job that continues this one; with `check`, raises QueryError."""
        try:
            self.scheduler.queries().cancel(self.watcher.current(self.job_id))
        except QueryError:
            if check:
                raise


class FunctionExecutor(core.PicklingExecutor):
    """Submits functions to PBS or Grid Engine. `Parameters` documents the parameters of update_parameters()."""

    job_class: type[FunctionJob]
    environment: ClassVar[type[FunctionEnvironment]]
    scheduler: ClassVar[FunctionScheduler]

    def __init__(
        self,
        folder: str | Path,
        max_num_timeout: int = 3,
        max_pickle_size_gb: float = 1.0,
        python: str | None = None,
    ) -> None:
        """
        Args:
            folder: directory of payloads, results and logs, on a file system that all nodes share. May contain %j.
            max_num_timeout: how many times a function with a checkpoint method is resubmitted after a timeout.
            max_pickle_size_gb: maximum size of all payloads of one call in GB.
            python: shell command that starts Python in the tasks; None: this interpreter.

        Raises:
            RuntimeError: the qsub on PATH belongs to another scheduler; the text names it.
            ValueError: the folder's name cannot be written in the scheduler's directives.
        """
        super().__init__(folder, max_num_timeout, max_pickle_size_gb)
        if problem := detect().problem(self.scheduler.kind):
            raise RuntimeError(problem)
        self.scheduler.parameters.of({}, folder_of(self.folder))
        self.python = python
        self._queries = self.scheduler.queries()

    @classmethod
    def name(cls) -> str:
        add_ours()
        return str(super().name())

    @classmethod
    def affinity(cls) -> int:
        """Returns this executor's priority for submitit: 2 (as Slurm's) if the scheduler's qsub is on PATH, else -1."""
        return 2 if detect().kind is cls.scheduler.kind else -1

    @classmethod
    def _equivalence_dict(cls) -> core.EquivalenceDict:
        return {
            "name": "name",
            "timeout_min": "walltime",
            "mem_gb": "mem",
            "nodes": "nodes",
            "cpus_per_task": "cpus_per_task",
            "gpus_per_node": "ngpus",
            "tasks_per_node": "tasks_per_node",
        }

    @classmethod
    def _valid_parameters(cls) -> set[str]:
        return cls.scheduler.parameters.names()

    def _convert_parameters(self, params: dict[str, Any]) -> dict[str, Any]:
        params = super()._convert_parameters(params)
        if "mem" in params:
            params["mem"] = f"{round(params['mem'] * 1024)}M"
        return params

    def _internal_update_parameters(self, **kwargs: Any) -> None:
        self.scheduler.parameters.of({**self.parameters, **kwargs})
        super()._internal_update_parameters(**kwargs)

    @property
    def _request(self) -> Parameters:
        return self.scheduler.parameters.of(self.parameters)

    def _num_tasks(self) -> int:
        return self._request.nodes * self._request.tasks_per_node

    def _internal_process_submissions(
        self, delayed_submissions: Sequence[utils.DelayedSubmission]
    ) -> list[core.Job[Any]]:
        folder = folder_of(self.folder)
        ownership.require_safe_way(folder.parent, f"folder={folder}")
        run_files.make_folder(folder)
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
            return self.scheduler.largest_array(self.parameters.get("queue"))
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
            for path, content in ((script, text), (job_file, json.dumps(as_json(for_driver), indent=1))):
                path.touch(mode=0o600)
                path.write_text(content)
        except BaseException:
            _remove(script, job_file, *payloads)
            raise
        try:
            job_id = submit_once(
                # A site's default -V would show secrets. The function's environment is in a file with mode 0600.
                lambda: self._queries.submit(str(script), secrets.without(os.environ, SECRETS)),
                lambda: _read_optional(id_file) or self._queries.find(f"launcher-{uid}", parameters.name),
            )
        except SubmissionRefused:
            _remove(script, job_file, *payloads)
            raise
        ids = [job_id] if len(part) == 1 else [element_id(job_id, index) for index in part]
        jobs: list[core.Job[Any]] = [self.job_class(self.folder, each, range(self._num_tasks())) for each in ids]
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
                f"about {count} x {size:.2f} GB of functions and arguments would be submitted, and "
                f"max_pickle_size_gb={self.max_pickle_size_gb}: pass large data by file, or raise it"
            )

    def _environment(self, folder: Path) -> Path:
        # Equal environments share a file
        text = os.fsencode(self.scheduler.exports(dict(sorted(os.environ.items()))))
        path = folder / f".environment-{hashlib.sha256(text).hexdigest()[:16]}.sh"
        if not path.exists():
            run_files.replace(path, text, sync=False)
        return path

    # Abstract methods of submitit's executor that are never called: `_submit_part` submits.

    def _make_submission_file_text(self, command: str, uid: str) -> str:
        raise NotImplementedError

    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        raise NotImplementedError

    @staticmethod
    def _get_job_id_from_submission_command(string: bytes | str) -> str:
        raise NotImplementedError


def _read_optional(file: Path) -> str:
    try:
        return unwrap(read_text(file)) or ""
    except UnavailableError as error:
        raise QueryError(str(error)) from None


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
