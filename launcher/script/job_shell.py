"""What the script of a job knows of its job, which each scheduler tells in variables of its own."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class JobShell:
    """Shell text, as it stands within double quotes.

    Attributes:
        job_id: the job's id.
        element_id: of an element of an array: ARRAY_INDEX.
        index: the variable with its number, from 0.
        output: the file that it prints to, beside those of the others.
        ends: a template that tells (`ends_in`) when the scheduler ends the job; None: it does not tell.
        limited: the job ends when the time is over that was asked for.
    """

    job_id: str = "${LAUNCHER_JOB_ID:-}"
    element_id: str = "${LAUNCHER_JOB_ID:-}"
    index: str = "LAUNCHER_ARRAY_INDEX"
    output: str = "output-$LAUNCHER_JOB_ID.log"
    ends: str | None = None
    limited: bool = True
