"""Base class of the launcher's submitit executors, which submit runs and job arrays, each job once.

The payload is dumped before the submission, and the job script renames it to the name that submitit looks for. So an
accepted job needs nothing more from the process that submitted it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

from submitit.core import core, utils

from launcher import redaction
from launcher.environment import secrets
from launcher.errors import ConfigError, SubmissionError, UnavailableError
from launcher.files.retried_reads import read_text, unwrap
from launcher.files.safe_io import make_folder, naming, write
from launcher.plan.plan import JobPlan
from launcher.processes import Process
from launcher.runs.directory import Run
from launcher.runs.events import ProcessStarted, Started, Submitted, Submitting, every, first, last
from launcher.runs.history import journal_events, process_of
from launcher.runs.job_file import exports
from launcher.runs.sweep_directory import element_id
from launcher.schedulers import registry
from launcher.schedulers.base import BY_HAND, JobState, Queries, QueryError, Queue, SchedulerJob
from launcher.schedulers.registry import job_environment
from launcher.schedulers.run_command import SubmissionRefused, submit_once

# submitit's state names for jobs that have not ended; submitit takes any other name for the end of a job.
NOT_OVER = {
    JobState.PENDING: "PENDING", JobState.RUNNING: "RUNNING", JobState.SUSPENDED: "RUNNING",
    JobState.UNKNOWN: "UNKNOWN",
}  # fmt: skip


KEPT_TRIES = 5  # jobs that are submitted behind others until the queue keeps one (`Queue.keeps`)
QUERY_TIMEOUT = 60.0  # seconds for each command about the state of jobs
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
        lines = read_now(self._files[job_id]).split() if job_id in self._files else []
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
        except QueryError:
            return  # the known states stay
        gone, ended = [now[job_id] for job_id in waiting if keys[job_id] not in known], dict[str, SchedulerJob]()
        if gone:
            with contextlib.suppress(QueryError):  # qacct may never answer in time: over is what is not listed twice
                ended = self._queries.ended_all(gone)
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
                current = self.current(job_id)
                job = self._queries.ended_all([current]).get(self._queries.key(current))
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


def read_now(file: Path) -> str:
    """Returns the text of a file, empty if there is none; raises QueryError if that is not known now."""
    try:
        return unwrap(read_text(file)) or ""
    except UnavailableError as error:
        raise QueryError(str(error)) from None


# -- Submits runs and job arrays


def _unused(*_: Any) -> Any:
    raise NotImplementedError


class OwnSubmission(core.PicklingExecutor):
    # Without the methods of submitit's executor for a single job: `_internal_process_submissions` does it all
    _make_submission_file_text: Any = _unused
    _make_submission_command: Any = _unused
    _get_job_id_from_submission_command: Any = _unused


class QueuedJob(core.Job[Any]):
    scheduler: ClassVar[Queue]
    watcher: JobWatcher

    def cancel(self, check: bool = True) -> None:
        """Cancels the latest job that continues this one; with `check`, raises QueryError."""
        try:
            self.scheduler.queries(QUERY_TIMEOUT).cancel(self.watcher.current(self.job_id))
        except QueryError:
            if check:
                raise


@functools.cache
def job_class(scheduler: str) -> type[core.Job[Any]]:
    queue = registry.queue(scheduler)
    return type("RunJob", (QueuedJob,), {"scheduler": queue, "watcher": JobWatcher(queue.queries(QUERY_TIMEOUT))})


class RunExecutor(OwnSubmission):
    """A submitit executor for the resources of one plan: `submit` of a run, or `map_array` of the runs of an array."""

    def __init__(
        self, run: Run, plan: JobPlan, token: str, throttle: int | None = None, *, scripts: Any,
        resumed: bool = False, elements: Sequence[Run] | None = None, submitting: Callable[[], None] | None = None,
        blocking_jobs: Callable[[], Sequence[str]] = tuple, by_hand: bool = False,
    ) -> None:  # fmt: skip
        """throttle: maximum number of array elements that run at once; None: no limit.
        resumed: whether an earlier process may have submitted this token; then existing jobs are queried first.
        elements: runs of the array elements, two or more; None: `run` is submitted.
        submitting: called just before the submission; None: a Submitting event is added to the run's journal.
        blocking_jobs: returns the ids of the jobs that must end before this one may start (`after`).
        by_hand: whether the user submits the job, with `command`; its id is BY_HAND.
        """
        super().__init__(run.submitit_folder)
        self.run, self.plan, self.token, self.throttle, self._resumed = run, plan, token, throttle, resumed
        self._scripts, self._elements = scripts, elements
        self._submitting = submitting or (lambda: run.journal(Submitting(token=token, by_hand=by_hand)))
        self._blocking_jobs, self._by_hand = blocking_jobs, by_hand
        self.command = ""
        if plan.queued and self.job_class is core.PicklingExecutor.job_class:
            self.job_class = job_class(plan.cluster.scheduler)

    def _num_tasks(self) -> int:
        return self.plan.nodes * self.plan.tasks_per_node

    @property
    def _commands(self) -> Queries:
        return registry.queue(self.plan.cluster.scheduler).queries(self.plan.cluster.submit_timeout)

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment of the command that submits. Everybody can read what qsub's -V or -v hands on."""
        if registry.scheduler(self.plan.cluster.scheduler).secrets_in_files:
            return redaction.without_secrets(os.environ, self.plan.env.secrets)
        return job_environment(os.environ, self.plan).environment

    def _write_environment(self, script: Path) -> None:
        # Secrets of the job go to a private folder of the user, the rest of its environment to the run directory, or
        # beside an array's script: later arrays of a sweep have others
        if not registry.scheduler(self.plan.cluster.scheduler).secrets_in_files:
            return
        environment, patterns = job_environment(os.environ, self.plan).environment, self.plan.env.secrets
        hidden = redaction.secrets_in(environment, patterns)
        public = exports(redaction.without_secrets(environment, patterns))
        public += "".join(f"# not here: {name}\n" for name in hidden)
        if self._elements is not None:
            write(script.with_suffix(".environment.sh"), public)
        else:
            self.run.write_environment(public)
        folder = self.plan.secrets_dir or str(secrets.folder())
        secrets.hand_over([str(each.path) for each in self._elements or [self.run]], hidden, exports(hidden), folder)

    def _send(self, script: Path) -> str:
        # An existing job is looked for at the scheduler, and in the files that a started job has written.
        try:
            registry.queue(self.plan.cluster.scheduler).check_secrets(os.environ, self.plan)
        except ConfigError as error:
            raise SubmissionRefused(str(error), definite=True) from None

        def send() -> str:
            self._write_environment(script)
            environment, jobs = self.environment, self._blocking_jobs()
            self._submitting()
            if self._by_hand:
                options = [*self._commands.terse, *self._commands.options(jobs)]
                self.command = self._commands.request(str(script), environment, *options).line(os.environ)
                return BY_HAND
            return self._submit_behind(script, environment, jobs)

        def look() -> str | None:
            try:
                known = begun_job(self.run) if self._elements is None else begun(self._elements)
                return known or self._commands.find(self.token, self.plan.name)
            except UnavailableError as error:  # a job may exist, so submit nothing until the files are readable
                raise QueryError(str(error)) from None

        return submit_once(send, look, before=self._resumed)

    def _submit_behind(self, script: Path, environment: Mapping[str, str], jobs: Sequence[str]) -> str:
        queue = registry.queue(self.plan.cluster.scheduler)
        for _ in range(KEPT_TRIES):
            job = self._commands.submit(str(script), environment, *self._commands.options(jobs))
            if not jobs or queue.keeps(job, self.plan.cluster.submit_timeout):
                return job
            before, jobs = jobs, self._blocking_jobs()
            if jobs == before:  # it ended for another reason
                return job
        raise SubmissionError(
            f"{queue.title} has deleted job {job}, because a job that it waits for had just ended: repeat the command"
        )

    def _internal_process_submissions(
        self, delayed_submissions: Sequence[utils.DelayedSubmission]
    ) -> list[core.Job[Any]]:
        for run, delayed in zip(self._elements or [self.run], delayed_submissions, strict=True):
            self._dump(delayed, run)
        return [self._submit()] if self._elements is None else self._submit_array(self._elements)

    def _submit_array(self, elements: Sequence[Run]) -> list[core.Job[Any]]:
        array = f"0-{len(elements) - 1}" + (f"%{self.throttle}" if self.throttle else "")
        folder, token = self.run.path / "arrays", self.token
        make_folder(folder)
        names = write(folder / token, "".join(f"{element.path.name}\n" for element in elements))
        script = folder / f"{token}.sh"
        self._scripts.write_array(self.plan, script, token=token, array=array, elements=names)
        # An element is resubmitted with its own script, even if the user's template has changed
        for element in elements if self.plan.cluster.template is not None else ():
            self._scripts.write(element, element.plan(), token=token)
        job_id, tasks = self._send(script), range(self._num_tasks())
        return [
            self.job_class(element.submitit_folder, element_id(job_id, index), tasks)
            for index, element in enumerate(elements)
        ]

    def _submit(self) -> core.Job[Any]:
        script = self._scripts.write(self.run, self.plan, token=self.token)
        return self.job_class(self.run.submitit_folder, self._send(script), range(self._num_tasks()))

    def _dump(self, delayed: utils.DelayedSubmission, run: Run) -> None:
        delayed.set_timeout(-(-self.plan.time // 60), self.max_num_timeout)
        path = run.submitit_folder / "payload.pkl"
        with naming(path):
            path.touch(mode=0o600)
            delayed.dump(path)


CLOCKS = 5.0  # seconds by which the clocks of a login node and a compute node may differ


def begun_job(run: Run) -> str | None:
    """Returns the id of a job that began after the last submission although the journal does not have it, else None."""
    journal = journal_events(run)
    known = {job for each in every(journal, Submitted) for job in (each.job, *each.chain)}
    submitting = last(journal, Submitting)
    since = 0.0 if submitting is None else submitting.time - CLOCKS
    for attempt in reversed(run.attempts()):
        started = first(attempt.latest_events(), Started)
        if started and started.job not in known and started.time >= since:
            return started.job
    return None


def begun(elements: Sequence[Run]) -> str | None:
    """Returns the id of a job array that started an element although its journal does not have the job; else None."""
    jobs = (job for job in map(begun_job, elements) if job and re.search(r"_\d+$", job))
    return next((job.rpartition("_")[0] for job in jobs), None)


# -- Runs job scripts as processes of this machine: with simulated nodes, or inside an existing allocation


class _NoWatcher(core.InfoWatcher):
    def update(self) -> None:
        pass


class LocalJob(core.Job[Any]):
    watcher = _NoWatcher()

    @property
    def _process(self) -> Process | None:
        return process_of(Run(Path(self.paths.folder).parent))

    @property
    def state(self) -> str:
        process = self._process
        return "RUNNING" if process and process.alive() else "FINISHED"

    def done(self, force_check: bool = False) -> bool:
        return self.state != "RUNNING"

    def cancel(self, check: bool = True) -> None:
        if process := self._process:
            process.signal(signal.SIGTERM)


class LocalExecutor(RunExecutor):
    """Starts a plan's job script in a new session, so that it survives the end of the submitting process."""

    job_class = LocalJob

    def _send(self, script: Path) -> str:
        job_id = f"local-{self.token}"
        environment = job_environment(os.environ, self.plan).environment
        self._submitting()
        output = os.open(self.run.path / f"output-{job_id}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(output, "wb") as log:
            process = subprocess.Popen(
                ["bash", str(script)], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                start_new_session=True, env={**environment, "LAUNCHER_JOB_ID": job_id},
            )  # fmt: skip
        started = Process.of(process.pid)
        try:
            self.run.journal(ProcessStarted(**asdict(started)))
        except OSError:  # for instance a full disk: no later command could find the process
            started.signal(signal.SIGKILL)
            process.wait()
            raise
        return job_id
