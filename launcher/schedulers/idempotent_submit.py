"""Handing a job over exactly once, although the answer may get lost on the way."""

from __future__ import annotations

import sys
from collections.abc import Callable

from launcher.errors import SubmissionError
from launcher.files.shared_files import backoff
from launcher.schedulers.queries import QueryError

TIMEOUT = 120.0  # seconds of retrying while the scheduler does not answer
FIRST, LONGEST = 0.5, 20.0  # seconds between two tries


class Refused(SubmissionError):
    """The scheduler said no; asking again would not help.

    `definite` when no job can have come of it, so that it need not be looked for.
    """

    def __init__(self, words: str, *, definite: bool = False) -> None:
        super().__init__(words)
        self.definite = definite


class NoAnswer(Exception):
    """Nobody heard whether the scheduler took the job."""


def submit_once(
    send: Callable[[], str], find: Callable[[], str | None], *, before: bool = False, timeout: float = TIMEOUT
) -> str:
    """The id of the one job there is in the end.

    A failed `send` is never repeated before `find` has said that there is no job yet. While neither answers, both are
    tried again with growing pauses.

    Args:
        send: submits the job and returns its id. Raises Refused or NoAnswer.
        find: the id of a job submitted earlier, or None. Raises QueryError when the scheduler does not answer.
        before: look first: an earlier process may have submitted it.
        timeout: seconds until giving up.

    Raises:
        Refused: the scheduler's own words.
        SubmissionError: it did not answer in time; whether there is a job is unknown.
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
                print(f"launcher: no answer ({error}); trying again for up to {timeout:g} s", file=sys.stderr)
            why = str(error) or type(error).__name__
    raise SubmissionError(
        f"the scheduler did not answer for {timeout:g} s, so nobody knows whether it took the job ({why})"
    )
