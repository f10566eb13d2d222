"""The environment for a job of Grid Engine, and what its script finds there. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from launcher.schedulers.job_environment import Scrubbed, scrubbed
from launcher.script.job_variables import JobVariables

SHELL = JobVariables(
    job_id="$JOB_ID", element_id="${JOB_ID}_$((SGE_TASK_ID - 1))", index="SGE_TASK_ID - 1",
    output="output-${JOB_ID}_$SGE_TASK_ID.log", signals="TERM INT USR2",
)  # fmt: skip
# The cell and its qmaster: a job that submits another one needs them, too.
KEPT = ("SGE_ROOT", "SGE_CELL", "SGE_CLUSTER_NAME", "SGE_QMASTER_PORT", "SGE_EXECD_PORT", "SGE_ARCH", "SGE_ND")
# What Grid Engine sets anew in each job (submit(1), ENVIRONMENTAL VARIABLES).
OF_A_JOB = {
    *("ARC", "ENVIRONMENT", "JOB_ID", "JOB_NAME", "JOB_SCRIPT", "NHOSTS", "NQUEUES", "NSLOTS", "PE", "PE_HOSTFILE"),
    *("QUEUE", "REQUEST", "REQNAME", "RESTARTED", "TMPDIR", "TMP", "QRSH_PORT", "QRSH_COMMAND"),
}


def sge_environment(environ: Mapping[str, str]) -> Scrubbed:
    """Returns the environment for a new job, without the variables that Grid Engine sets in each job."""
    own = {name for name in environ if name in OF_A_JOB or (name.startswith("SGE_") and name not in KEPT)}
    # In a job it is the number of CPUs of that job, elsewhere a setting of the user.
    threads = {"OMP_NUM_THREADS"} if "JOB_ID" in environ else set()
    return scrubbed(environ, kept=KEPT, own=own | threads)
