"""Submits a job exactly once, even if the scheduler's reply is lost."""

from __future__ import annotations

import sys
from collections.abc import Callable

from launcher.errors import SubmissionError
from launcher.files.shared_files import backoff
from launcher.schedulers.queries import QueryError

TIMEOUT = 120.0  # seconds of retrying while the scheduler does not answer
FIRST, LONGEST = 0.5, 20.0  # seconds between two attempts


class Refused(SubmissionError):
    """The scheduler refused the job, and a retry would not help.

    Attributes:
        definite: whether it is certain that no job was created, so that no query for one is needed.
        job_limit: whether the user has reached a limit on the number of jobs; others can be submitted when some end.
    """

    def __init__(self, words: str, *, definite: bool = False, job_limit: bool = False) -> None:
        super().__init__(words)
        self.definite = definite
        self.job_limit = job_limit


class NoAnswer(Exception):
    """The reply to a submission was lost, so it is unknown whether the scheduler accepted the job."""


def submit_once(
    send: Callable[[], str], find: Callable[[], str | None], *, before: bool = False, timeout: float = TIMEOUT
) -> str:
    """Submits a job unless it exists already, and returns its id.

    After a failed `send`, `find` must return None before `send` is repeated. While the scheduler does not answer, both
    are retried with exponential backoff.

    Args:
        send: submits the job and returns its id. Raises Refused or NoAnswer.
        find: returns the id of the job if it was submitted earlier, else None. Raises QueryError without an answer.
        before: whether to call `find` first, because an earlier process may have submitted the job.
        timeout: seconds after which retries end.

    Raises:
        Refused: the scheduler refused the job; the text has its message.
        SubmissionError: the scheduler did not answer within the timeout, so the job may or may not exist.
    """
    look = before

    def once() -> str:
        nonlocal look
        if look and (job_id := find()):
            return job_id
        look = True
        try:
            return send()
        except Refused as refused:
            # A site's wrapper script around sbatch may have failed after Slurm accepted the job.
            if not refused.definite and (job_id := find()):
                return job_id
            raise

    why = ""
    for _ in backoff(timeout, FIRST, LONGEST):
        try:
            return once()
        except (NoAnswer, QueryError) as error:
            if not why:
                print(f"launcher: no answer ({error}); retrying for up to {timeout:g} s", file=sys.stderr)
            why = str(error) or type(error).__name__
    raise SubmissionError(
        f"the scheduler did not answer for {timeout:g} s, so it is unknown whether it accepted the job ({why})"
    )
