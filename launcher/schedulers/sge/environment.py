"""The environment that a Grid Engine job inherits, and the variables with its job id and array index."""

from __future__ import annotations

from collections.abc import Mapping

from launcher.schedulers.job_environment import Scrubbed, scrubbed
from launcher.schedulers.scheduler import JobVariables

SHELL = JobVariables(
    job_id="$JOB_ID", element_id="${JOB_ID}_$((SGE_TASK_ID - 1))", index="SGE_TASK_ID - 1",
    output="output-${JOB_ID}_$SGE_TASK_ID.log", signals="TERM INT USR2",
    again=("LAUNCHER_SGE_AGAIN", 99),
)  # fmt: skip
# Variables that select the cell and its qmaster; kept, because a job that submits another one needs them.
KEPT = ("SGE_ROOT", "SGE_CELL", "SGE_CLUSTER_NAME", "SGE_QMASTER_PORT", "SGE_EXECD_PORT", "SGE_ARCH", "SGE_ND")
# Variables that Grid Engine sets in each job (submit(1), ENVIRONMENTAL VARIABLES).
OF_A_JOB = {
    *("ARC", "ENVIRONMENT", "JOB_ID", "JOB_NAME", "JOB_SCRIPT", "NHOSTS", "NQUEUES", "NSLOTS", "PE", "PE_HOSTFILE"),
    *("QUEUE", "REQUEST", "REQNAME", "RESTARTED", "TMPDIR", "TMP", "QRSH_PORT", "QRSH_COMMAND"),
}


def sge_environment(environ: Mapping[str, str]) -> Scrubbed:
    """Returns the environment that a new job inherits from `environ`, without the variables that Grid Engine sets."""
    own = {name for name in environ if name in OF_A_JOB or (name.startswith("SGE_") and name not in KEPT)}
    # Within a job, Grid Engine has set it to the job's CPUs; elsewhere the user has set it.
    threads = {"OMP_NUM_THREADS"} if "JOB_ID" in environ else set()
    return scrubbed(environ, kept=KEPT, own=own | threads)
