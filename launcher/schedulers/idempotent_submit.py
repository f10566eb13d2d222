"""Submits a job exactly once, although the answer of the scheduler may be lost."""

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
        definite: no job can exist, so there is no need to look for one.
        job_limit: the user has as many jobs as are allowed, and the scheduler accepts more when some have ended.
    """

    def __init__(self, words: str, *, definite: bool = False, job_limit: bool = False) -> None:
        super().__init__(words)
        self.definite = definite
        self.job_limit = job_limit


class NoAnswer(Exception):
    """The answer was lost, so it is unknown whether the scheduler accepted the job."""


def submit_once(
    send: Callable[[], str], find: Callable[[], str | None], *, before: bool = False, timeout: float = TIMEOUT
) -> str:
    """Submits a job unless it exists already, and returns its id.

    A failed `send` is never repeated before `find` has returned that there is no job. While the scheduler does not
    answer, both are retried with exponential backoff.

    Args:
        send: submits the job and returns its id. Raises Refused or NoAnswer.
        find: the id of a job submitted earlier, or None. Raises QueryError when the scheduler does not answer.
        before: call `find` first, because an earlier process may have submitted the job.
        timeout: seconds of retrying.

    Raises:
        Refused: the scheduler refused the job; with its message.
        SubmissionError: it did not answer within the timeout; it is unknown whether there is a job.
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
            # A script of the site around sbatch may have failed after the job was taken.
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
