"""The shell expressions by which a script finds the id, element, output and end of its job, on each scheduler."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class JobVariables:
    """Shell text for use within double quotes.

    Attributes:
        job_id: the job's id.
        element_id: the id of an element of an array: ARRAY_INDEX.
        index: the name of the variable with the element's number, from 0.
        output: the name of the file with the element's output.
        ends: a template that defines `ends_in`, which prints the seconds until the scheduler ends the job; None: the
            scheduler does not say.
        signals: the names of the signals by which the scheduler asks the script to end.
        limited: whether the scheduler ends the job after the requested time.
    """

    job_id: str = "${LAUNCHER_JOB_ID:-}"
    element_id: str = "${LAUNCHER_JOB_ID:-}"
    index: str = "LAUNCHER_ARRAY_INDEX"
    output: str = "output-$LAUNCHER_JOB_ID.log"
    ends: str | None = None
    signals: str = "TERM INT"
    limited: bool = True
