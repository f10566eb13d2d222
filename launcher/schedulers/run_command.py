"""Runs a scheduler's command with a timeout; submits a job exactly once, and the next job of a run."""

from __future__ import annotations

import contextlib
import os
import selectors
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import IO

from launcher import io_bounds
from launcher.errors import NOT_ON_PATH, SubmissionError
from launcher.fast_dataclasses import Struct
from launcher.files.retried_reads import backoff
from launcher.formatting import long_size
from launcher.plan.plan import JobPlan
from launcher.schedulers import registry
from launcher.schedulers.base import AnswerTooLong, NoCommand, QueryError, QueryTimeout


class OutputTooLong(subprocess.SubprocessError): ...


def query(
    *command: str, timeout: float, environment: Mapping[str, str], good: Collection[int] = (0,)
) -> subprocess.CompletedProcess[str]:
    """Returns the output of a scheduler's command (no submission); raises QueryTimeout, AnswerTooLong, QueryError."""
    try:
        done = run(command, timeout=timeout, environment=environment)
    except NOT_ON_PATH:
        raise NoCommand(f"{command[0]} is not on this machine's PATH") from None
    except OSError as error:  # too many processes, say
        raise QueryError(f"{command[0]} cannot be started: {error.strerror or error}") from None
    except subprocess.TimeoutExpired:
        raise QueryTimeout(f"{command[0]} did not answer within {timeout:g} s") from None
    except OutputTooLong as error:
        raise AnswerTooLong(str(error)) from None
    if done.returncode not in good:
        raise QueryError(f"{command[0]} failed (exit {done.returncode}): {done.stderr.strip() or 'no message'}")
    return done


class SubmitCommand(Struct):
    command: Sequence[str]
    environment: Mapping[str, str]  # of the command
    text: str | None = None  # standard input; None: empty
    umask: int = -1  # of the command; -1: that of this process

    def line(self, environ: Mapping[str, str]) -> str:
        """Returns the command as a line for a shell that has the environment `environ`."""
        gone = sorted(environ.keys() - self.environment.keys())
        unset = ["env", *(word for name in gone for word in ("-u", name))] if gone else []
        line = shlex.join([*unset, *self.command])
        return line if self.umask < 0 else f"(umask {self.umask:03o}; {line})"


def run_submission(request: SubmitCommand, *, timeout: float) -> subprocess.CompletedProcess[str]:
    """Runs a command that submits a job, and returns its output. A nonzero exit code raises nothing.

    It inherits the lock of `lease.only_submitter`, and has a session of its own, to survive Ctrl-C and the end of this
    process, which could leave a job with an unrecorded id. Raises SubmissionRefused (not on PATH), or NoAnswer.
    """
    command = request.command
    try:
        return run(
            command, timeout=timeout, environment=request.environment, text=request.text, umask=request.umask,
            submits=True,
        )  # fmt: skip
    except NOT_ON_PATH:
        raise SubmissionRefused(
            f"{command[0]} is not on this machine's PATH: submit from a login node", definite=True
        ) from None
    except subprocess.TimeoutExpired as expired:
        words = (expired.stderr or b"").decode(errors="replace").strip()
        raise NoAnswer(f"{command[0]} did not answer within {timeout:g} s{words and ': '}{words}") from None
    except OutputTooLong as error:
        raise NoAnswer(str(error)) from None


def run(
    command: Sequence[str], *, timeout: float, environment: Mapping[str, str] | None = None, text: str | None = None,
    umask: int = -1, submits: bool = False,
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """Runs a command; kills it after the timeout or io_bounds.QUERY_BYTES bytes; submits: see `run_submission`."""
    end = time.monotonic() + timeout
    with contextlib.ExitStack() as stack:
        stdin: int | IO[bytes] = subprocess.DEVNULL
        if text is not None:  # a file: writing to a pipe could block
            stdin = stack.enter_context(tempfile.TemporaryFile())
            stdin.write(os.fsencode(text))
            stdin.seek(0)
        process = subprocess.Popen(
            command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, umask=umask,
            close_fds=not submits, start_new_session=submits,
        )  # fmt: skip
    try:
        output, errors = _printed(process, command, timeout, end)
        code = process.wait(max(0.0, end - time.monotonic()))
    except BaseException as error:
        is_endless = isinstance(error, (subprocess.TimeoutExpired, OutputTooLong))
        if submits and is_endless:  # where sbatch or qsub is a site's wrapper, what it has started could submit later
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        if is_endless or not submits:
            with process:
                process.kill()
        raise
    with process:  # closes its pipes
        return subprocess.CompletedProcess(command, code, output, errors)


def _printed(process: subprocess.Popen[bytes], command: Sequence[str], timeout: float, end: float) -> list[str]:
    assert process.stdout is not None
    assert process.stderr is not None
    texts = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
    with selectors.DefaultSelector() as selector:
        for each in texts:
            selector.register(each, selectors.EVENT_READ)
        while selector.get_map():
            left = end - time.monotonic()
            if left <= 0:
                raise subprocess.TimeoutExpired(list(command), timeout, stderr=bytes(texts[process.stderr.fileno()]))
            for key, _ in selector.select(left):
                data = os.read(key.fd, 1 << 16)
                texts[key.fd] += data
                if not data:
                    selector.unregister(key.fd)
                if sum(map(len, texts.values())) > io_bounds.QUERY_BYTES:
                    most = long_size(io_bounds.QUERY_BYTES)
                    raise OutputTooLong(f"{command[0]} printed more than {most}, which is no answer")
    return [bytes(each).decode(errors="replace").replace("\r\n", "\n") for each in texts.values()]


# -- Submits a job exactly once, even if the scheduler's reply is lost


TIMEOUT = 120.0  # seconds of retrying while the scheduler does not answer
FIRST, LONGEST = 0.5, 20.0  # seconds between two attempts


class SubmissionRefused(SubmissionError):
    """The scheduler refused the job, and a retry would not help."""

    def __init__(self, words: str, *, definite: bool = False, job_limit: bool = False, slow: bool = False) -> None:
        super().__init__(words)
        self.definite = definite  # whether it is certain that no job was created, so that no query for one is needed
        self.job_limit = job_limit  # whether the user has too many jobs; others can be submitted when some end
        self.slow = slow  # whether this took minutes to learn, so that nobody wants to learn it of each part


class NoAnswer(Exception):
    """The reply to a submission was lost, so it is unknown whether the scheduler accepted the job."""

    def __init__(self, words: str, *, job_limit: bool = False) -> None:
        super().__init__(words)
        self.job_limit = job_limit  # whether the scheduler said that it has too many jobs now


def submit_once(
    send: Callable[[], str], find: Callable[[], str | None], *, before: bool = False, timeout: float = TIMEOUT
) -> str:
    """Submits a job unless it exists already, and returns its id; raises SubmissionRefused, SubmissionError.

    After a failed `send` (SubmissionRefused, NoAnswer), or `before`, `find` must return None before `send` is called.
    While the scheduler does not answer, both are retried with exponential backoff for `timeout` seconds.
    """
    look = before

    def once() -> str:
        nonlocal look
        if look and (job_id := find()):
            return job_id
        look = True
        try:
            return send()
        except SubmissionRefused as refused:
            # A site's wrapper script around sbatch may have failed after Slurm accepted the job.
            if not refused.definite and (job_id := find()):
                return job_id
            raise

    why, full = "", False
    for _ in backoff(timeout, FIRST, LONGEST):
        try:
            return once()
        except (NoAnswer, QueryError) as error:
            if not why:
                print(f"launcher: no answer ({error}); retrying for up to {timeout:g} s", file=sys.stderr)
            why = str(error) or type(error).__name__
            full = isinstance(error, NoAnswer) and error.job_limit
    if full:
        with contextlib.suppress(QueryError):
            if job_id := find():
                return job_id
            raise SubmissionRefused(f"the scheduler takes no more jobs now: {why}", job_limit=True, slow=True)
    raise SubmissionError(
        f"the scheduler did not answer for {timeout:g} s, so it is unknown whether it accepted the job ({why})"
    )


def submit_behind(
    plan: JobPlan, jobs: Sequence[str], script: str, token: str, environment: Mapping[str, str], timeout: float,
    before: bool = False,
) -> str:  # fmt: skip
    """Submits a run's script again, to start when `jobs` have ended; before: it may have been submitted already.

    If no job can depend on them, it starts at once, and waits for the run's lease. Raises SubmissionError.
    """
    queue = registry.queue(plan.cluster.scheduler)
    asks, jobs = queue.queries(timeout), list(filter(queue.can_be_waited_for, jobs))

    def send() -> str:
        job = asks.submit(script, environment, *asks.options(jobs, token))
        if jobs and not queue.keeps(job, timeout):
            why = f"it has deleted job {job}, because a job that it waits for had just ended"
            raise SubmissionRefused(f"{plan.cluster.scheduler} did not keep the job: {why}", definite=True)
        return job

    return submit_once(send, lambda: asks.find(token, plan.name), before=before)
