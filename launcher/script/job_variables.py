"""The shell expressions with which a job script finds its job's id, array element, output file and end."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class JobVariables:
    """The shell expressions of one scheduler. `job_id`, `element_id` and `output` are used within double quotes.

    Attributes:
        job_id: expression for the id of the job.
        element_id: expression for the id of an array's element (ARRAY_INDEX).
        index: name of the variable with the number of the element, from 0.
        output: expression for the name of the element's output file.
        time_left: `module:function` that takes the job's environment and returns the seconds until the scheduler ends
            the job, or None if that is not known; None: the scheduler does not tell. The module needs the standard
            library only.
        again: variable with the path of a file, and the exit code with which the script ends if that file exists, so
            that the scheduler starts the job again; None: the scheduler does not do so.
        signals: names of the signals by which the scheduler stops the script.
        limited: whether the scheduler ends the job after the requested time.
    """

    job_id: str = "${LAUNCHER_JOB_ID:-}"
    element_id: str = "${LAUNCHER_JOB_ID:-}"
    index: str = "LAUNCHER_ARRAY_INDEX"
    output: str = "output-$LAUNCHER_JOB_ID.log"
    time_left: str | None = None
    again: tuple[str, int] | None = None
    signals: str = "TERM INT"
    limited: bool = True
