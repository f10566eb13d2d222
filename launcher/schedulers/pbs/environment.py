"""The environment that a PBS job inherits, and the variables with its job id and array index."""

from __future__ import annotations

from collections.abc import Mapping

from launcher.schedulers.job_environment import Scrubbed, scrubbed
from launcher.schedulers.scheduler import JobVariables

SHELL = JobVariables(
    job_id="$PBS_JOBID", element_id=r"${PBS_ARRAY_ID/\[\]/}_$PBS_ARRAY_INDEX", index="PBS_ARRAY_INDEX",
    output="$PBS_JOBID.OU",
)  # fmt: skip
# Variables that PBS sets in each job: a folder on each node, the number of CPUs, and BATCH.
SET_ANEW = {"TMPDIR", "NCPUS", "ENVIRONMENT"}


def pbs_environment(environ: Mapping[str, str]) -> Scrubbed:
    """Returns the environment that a new job inherits from `environ`, without the variables that PBS itself sets."""
    # Within a job, PBS has set it to the job's CPUs; elsewhere the user has set it.
    threads = {"OMP_NUM_THREADS"} if "PBS_JOBID" in environ else set()
    return scrubbed(environ, own=SET_ANEW | threads)
