"""A task of a submitit function: its environment, and the program that calls the function."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import socket
import sys
import threading
import time
import types
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from submitit.core import job_environment, logger, utils

from launcher import errors, processes
from launcher.errors import SubmissionError, is_transient
from launcher.files.retried_reads import exists, unwrap
from launcher.redaction import SECRETS, without_secrets
from launcher.runs.directory import require_private
from launcher.schedulers import registry, topology
from launcher.schedulers.functions import link_as, resubmissions
from launcher.schedulers.qsub import FIRST_JOB, QsubScheduler
from launcher.schedulers.run_command import submit_once

if TYPE_CHECKING:
    from submitit.core.utils import JobPaths


# -- submitit's environment of a function's task: its rank, and checkpoint and resubmission at the end of the wall time
# PBS sends no signal before it, and Grid Engine's s_rt would end a parallel job early. So the first task sets a timer,
# after which a function with a method `checkpoint` is checkpointed and resubmitted; the new job keeps the submitit id.
# On SIGTERM (qdel, preemption) it is only checkpointed, because the scheduler itself requeues preempted jobs.


TIMEOUT = 45.0  # seconds after which a resubmission fails; the job is about to end
QUERY_TIMEOUT = 15  # seconds for each scheduler command of the resubmission


class FunctionEnvironment(job_environment.JobEnvironment):
    """The rank and the nodes of this process, with the attributes that submitit reads."""

    scheduler: ClassVar[QsubScheduler]
    _env = {"job_id": "LAUNCHER_JOB_ID"}  # noqa: RUF012  submitit's

    @property
    def array_job_id(self) -> str | None:
        return self._element[1] if self._element else None

    @property
    def array_task_id(self) -> str | None:
        return self._element[2] if self._element else None

    @property
    def _element(self) -> re.Match[str] | None:
        return re.fullmatch(r"(.+)_(\d+)", self.raw_job_id)

    @functools.cached_property
    def _place(self) -> topology.Topology:
        return topology.derive(os.environ, socket.gethostname(), lambda path: Path(path).read_text())

    @property
    def hostnames(self) -> list[str]:
        return list(self._place.hosts) or [self.hostname]

    @property
    def num_tasks(self) -> int:
        return self._place.world_size

    @property
    def num_nodes(self) -> int:
        return self._place.nnodes

    @property
    def node(self) -> int:
        return self._place.node_rank

    @property
    def global_rank(self) -> int:
        return self._place.rank

    @property
    def local_rank(self) -> int:
        return self._place.local_rank

    def _handle_signals(self, paths: utils.JobPaths, submission: utils.DelayedSubmission) -> None:
        handler = _Handler(self, paths, submission)
        signal.signal(signal.SIGTERM, handler.handle_sigterm)
        signal.signal(self._usr_sig(), handler.checkpoint_and_try_requeue)
        if self.global_rank == 0 and hasattr(submission.function, "checkpoint"):
            alarm = threading.Timer(handler.deadline - time.time(), os.kill, (os.getpid(), self._usr_sig()))
            alarm.daemon = True
            alarm.start()

    def _requeue(self, countdown: int) -> None:
        self.scheduler.put_on_path()
        first, token = os.environ["LAUNCHER_JOB_ID"], f"launcher-{os.urandom(8).hex()}"
        queries = self.scheduler.queries(QUERY_TIMEOUT)
        script = os.fsdecode(Path(os.environ["LAUNCHER_SCRIPT"]).read_bytes())
        text, options = self.scheduler.resubmission(script, token, first)
        try:
            job_id = submit_once(
                lambda: queries.submit("-", without_secrets(os.environ, SECRETS), *options, text=text),
                lambda: queries.find(token, os.environ["LAUNCHER_JOB_NAME"]),
                timeout=TIMEOUT,
            )
        except SubmissionError as error:
            raise utils.UncompletedJobError(f"checkpointed, but not resubmitted: {error}") from None
        self.record_resubmission(job_id)
        logger.get_logger().info(f"{first} continues as job {job_id} ({countdown} remaining timeouts)")

    def record_resubmission(self, job_id: str) -> None:
        file = resubmissions(self.paths)
        known = ""
        with contextlib.suppress(FileNotFoundError):
            known = file.read_text()
        if job_id not in known.split():
            with open(file, "a") as lines:
                lines.write(f"{job_id}\n")


class _Handler(job_environment.SignalHandler):
    # submitit's, with the deadline from LAUNCHER_DEADLINE instead of an estimate

    env: FunctionEnvironment

    @functools.cached_property
    def deadline(self) -> float:
        return float(os.environ["LAUNCHER_DEADLINE"])

    def has_timed_out(self) -> bool:
        return time.time() >= self.deadline

    def handle_sigterm(self, signum: int, frame: types.FrameType | None = None) -> None:
        self._only_this_one()
        if self.env.global_rank:
            self._exit()  # the first task checkpoints
        self.checkpoint_and_exit(signum, frame)

    def checkpoint_and_try_requeue(self, signum: int, frame: types.FrameType | None = None) -> None:
        if self.env.scheduler.usr_signal_kills and not self.has_timed_out():
            self.handle_sigterm(signum, frame)  # raises SystemExit
        self._only_this_one()
        super().checkpoint_and_try_requeue(signum, frame)

    def _only_this_one(self) -> None:
        for number in (signal.SIGTERM, self.env._usr_sig()):
            signal.signal(number, signal.SIG_IGN)

    def _exit(self) -> None:
        sys.exit(errors.RESUME)


# -- The program of each task: python -m launcher.schedulers.functions.task SUBMITITS_FOLDER [--merge-output]


def main(folder: str, *options: str) -> int:
    """Calls the submitted function; returns DONE, NO_RETRY or RESUME (the folder), or raises the function's error."""
    processes.start_guard()
    os.umask(int(os.environ["LAUNCHER_UMASK"], 8))  # the starter of several tasks has another umask
    from submitit.core import plugins
    from submitit.core.submission import process_job
    from submitit.core.utils import JobPaths
    from submitit.local.debug import DebugJobEnvironment

    executor = registry.function_executor(os.environ["SUBMITIT_EXECUTOR"])
    environment, own_job = executor.environment(), os.environ["LAUNCHER_OWN_JOB"]
    # Else it reads the metadata of all packages. A function may call others in this process, with cluster="debug"
    plugins.get_job_environments = lambda: {executor.name(): environment, "debug": DebugJobEnvironment()}  # type: ignore[assignment]
    os.environ["SUBMITIT_FOLDER"] = folder
    paths = environment.paths
    try:
        require_private(JobPaths.get_first_id_independent_folder(folder))
    except (errors.RunError, OSError) as error:
        print(f"launcher: {environment.hostname}: {error}", file=sys.stderr)
        return errors.RESUME if is_transient(error) else errors.NO_RETRY
    paths.folder.mkdir(parents=True, exist_ok=True)
    _redirect(paths, merged="--merge-output" in options)
    if environment.global_rank == 0 and FIRST_JOB in os.environ:
        environment.record_resubmission(own_job)
    _clear_up(paths, first=environment.global_rank == 0)
    if FIRST_JOB not in os.environ:
        _name_payload(paths, executor.scheduler.array_of(own_job))
    sys.path.insert(0, os.getcwd())  # from here on the user's code is imported; see `own_module`
    process_job(folder)
    return errors.DONE


def _redirect(paths: JobPaths, *, merged: bool) -> None:
    for descriptor, path in ((1, paths.stdout), (2, paths.stdout if merged else paths.stderr)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(file, descriptor)
        os.close(file)


def _name_payload(paths: JobPaths, job: str) -> None:
    # While the payload has its first name, also writes the job's id to a file, where a submitting process that lost the
    # scheduler's reply finds it.
    payload = Path(os.environ["LAUNCHER_PAYLOAD"])
    if unwrap(exists(payload)):
        Path(os.environ["LAUNCHER_SCRIPT"]).with_suffix(".job").write_text(job)
    if not unwrap(exists(paths.submitted_pickle)):
        with contextlib.suppress(FileNotFoundError):  # the submitter does it at the same time
            link_as(payload, paths.submitted_pickle)


def _clear_up(paths: JobPaths, *, first: bool) -> None:
    # submitit removes a file before it renames its new version. So if only the new version exists, it is complete and
    # is renamed here.
    Path(f"{paths.result_pickle}.save_tmp").unlink(missing_ok=True)
    left = Path(f"{paths.submitted_pickle}.save_tmp")
    if first and unwrap(exists(left)):
        if unwrap(exists(paths.submitted_pickle)):
            left.unlink()
        else:
            left.rename(paths.submitted_pickle)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
