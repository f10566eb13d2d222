"""The Grid Engine scheduler."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from launcher import redaction
from launcher.schedulers.base import Allocation, JobVariables, QueryError
from launcher.schedulers.qsub import FIRST_JOB, TOKEN, QsubKind, QsubScheduler, detect
from launcher.schedulers.registry import read_nodes
from launcher.schedulers.sge.client import SGE, hosts_of

if TYPE_CHECKING:
    from launcher.config.schema import Cluster
    from launcher.plan.plan import JobPlan

# Variables that Grid Engine sets in each job, in addition to SGE_* (submit(1), ENVIRONMENTAL VARIABLES).
OF_A_JOB = {
    *("ARC", "ENVIRONMENT", "JOB_ID", "JOB_NAME", "JOB_SCRIPT", "NHOSTS", "NQUEUES", "NSLOTS", "PE", "PE_HOSTFILE"),
    *("QUEUE", "REQUEST", "REQNAME", "RESTARTED", "TMPDIR", "TMP", "QRSH_PORT", "QRSH_COMMAND"),
}
# Variable of a job with the path of a file. If the file exists, the job script exits with 99, which requeues the job.
AGAIN = "LAUNCHER_SGE_AGAIN"


class SGEScheduler(QsubScheduler):
    folder = __name__.rpartition(".")[0]
    name = "sge"
    title = "Grid Engine"
    requeues = True
    template = "sge.sh.j2"
    shell = JobVariables(
        job_id="$JOB_ID", element_id="${JOB_ID}_$((SGE_TASK_ID - 1))", index="SGE_TASK_ID - 1",
        output="output-${JOB_ID}_$SGE_TASK_ID.log", signals="TERM INT USR2", again=(AGAIN, 99),
    )  # fmt: skip
    interactive = "qrsh -pe NAME SLOTS bash"
    allocation_variables = ("JOB_ID", "PE_HOSTFILE")
    kind = QsubKind.GRID_ENGINE
    of_server = ("SGE_ROOT", "SGE_CELL", "SGE_QMASTER_PORT")
    job_variable = "JOB_ID"
    kept = ("SGE_ROOT", "SGE_CELL", "SGE_CLUSTER_NAME", "SGE_QMASTER_PORT", "SGE_EXECD_PORT", "SGE_ARCH", "SGE_ND")
    usr_signal_kills = True  # -notify

    def allocation(self, environ: Mapping[str, str]) -> Allocation:
        return Allocation(len(hosts_of(read_nodes(environ, "PE_HOSTFILE"))), "qrsh", job=environ["JOB_ID"])

    def starter(self, cluster: Cluster) -> str:
        return "qrsh"

    def queries(self, timeout: float = 60) -> SGE:
        return SGE(timeout)

    def of_a_job(self, name: str) -> bool:
        return name in OF_A_JOB or (name.startswith("SGE_") and name not in self.kept)

    def resubmission(self, script: str, token: str, first: str) -> tuple[str, tuple[str, ...]]:
        plain = re.sub(r"^#\$ -tc? .*\n", "", script, flags=re.MULTILINE).replace("$JOB_ID.$TASK_ID.OU", "$JOB_ID.OU")
        return plain, ("-v", f"{FIRST_JOB}={first}", "-ac", f"{TOKEN}={token}")

    def own_job(self, environ: Mapping[str, str]) -> str:
        return environ.get("LAUNCHER_JOB_ID", "")

    def can_be_waited_for(self, job_id: str) -> bool:
        return "_" not in job_id  # for an array element, -hold_jid would wait for the whole array

    def check_secrets(self, environ: Mapping[str, str], plan: JobPlan) -> None:
        from launcher.schedulers.sge import qrsh
        from launcher.schedulers.tasks import environments

        hidden = redaction.secrets_in(environ, plan.env.secrets)
        qrsh.line_of(plan.run_dir, hidden, environments([""], plan.tasks_per_node), plan.run_dir)

    def requeue(self, job_id: str) -> None:
        """Makes the job's script, which waits for this process, exit with 99, by which Grid Engine requeues it.

        SGE 8.1.9 never starts a job of several nodes again: `cannot run ... until clean up of a previous run`.
        """
        if os.environ.get("NHOSTS", "1") != "1":
            raise QueryError("Grid Engine may never start a job of several nodes a second time")
        Path(os.environ[AGAIN]).touch()

    def found(self) -> str:
        qsub = detect()
        if qsub.kind is not QsubKind.GRID_ENGINE:
            return ""
        return f"Grid Engine {qsub.version} ({qsub.path} -help says {qsub.evidence})"
