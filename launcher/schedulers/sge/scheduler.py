"""The Grid Engine scheduler. Modules that a submission does not need are imported on use."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.schedulers.base import Allocation, JobExecution, QueryError
from launcher.schedulers.qsub import FIRST_JOB, TOKEN, QsubKind, QsubScheduler, detect
from launcher.schedulers.registry import read_nodes
from launcher.schedulers.sge import client, script
from launcher.schedulers.sge.client import SGE, SHELL, array_of, history, hosts_of, sge_id

if TYPE_CHECKING:
    from launcher.config.schema import Cluster
    from launcher.findings import Finding
    from launcher.schedulers.pending import Explanation, Waiting
    from launcher.schedulers.sge.limits import SGESite
    from launcher.spec.plan import JobPlan

# Variables that Grid Engine sets in each job, in addition to SGE_* (submit(1), ENVIRONMENTAL VARIABLES).
OF_A_JOB = {
    *("ARC", "ENVIRONMENT", "JOB_ID", "JOB_NAME", "JOB_SCRIPT", "NHOSTS", "NQUEUES", "NSLOTS", "PE", "PE_HOSTFILE"),
    *("QUEUE", "REQUEST", "REQNAME", "RESTARTED", "TMPDIR", "TMP", "QRSH_PORT", "QRSH_COMMAND"),
}
# Variable of a job with the path of a file. If the file exists, the job script exits with 99, which requeues the job.
AGAIN = "LAUNCHER_SGE_AGAIN"


class SGEScheduler(QsubScheduler):
    """Grid Engine as a scheduler. The modules that diagnosis needs are imported on use."""

    name = "sge"
    title = "Grid Engine"
    requeues = True
    template = "sge.sh.j2"
    run_executor = "launcher.schedulers.sge.executor:SGERunExecutor"
    shell = SHELL
    interactive = "qrsh -pe NAME SLOTS bash"
    joins_values = False
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

    def options(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return script.names(values)

    def command_options(self) -> Mapping[str, bool | None]:
        return script.command_options()

    def keys_of(self, option: str, value: str | None) -> Mapping[str, Any]:
        return script.keys_of(option, value)

    def directives(self, plan: JobPlan, token: str, array: str | None, folder: str | None) -> list[str]:
        return script.lines(plan, token, array, folder)

    def queries(self, timeout: float = 60) -> SGE:
        return SGE(timeout)

    def native_id(self, job_id: str) -> str:
        return sge_id(job_id)

    def find(self, command: str) -> str | None:
        return client.find(command)

    def of_a_job(self, name: str) -> bool:
        return name in OF_A_JOB or (name.startswith("SGE_") and name not in self.kept)

    def resubmission(self, script: str, token: str, first: str) -> tuple[str, tuple[str, ...]]:
        plain = re.sub(r"^#\$ -tc? .*\n", "", script, flags=re.MULTILINE).replace("$JOB_ID.$TASK_ID.OU", "$JOB_ID.OU")
        return plain, ("-v", f"{FIRST_JOB}={first}", "-ac", f"{TOKEN}={token}")

    def array_of(self, job_id: str) -> str:
        return array_of(job_id)

    def compare(self, plan: JobPlan, environ: Mapping[str, str]) -> tuple[str, ...]:
        from launcher.schedulers.sge import limits

        return limits.compare(plan)

    def own_job(self, environ: Mapping[str, str]) -> str:
        return environ.get("LAUNCHER_JOB_ID", "")

    def can_be_waited_for(self, job_id: str) -> bool:
        return "_" not in job_id  # for an array element, -hold_jid would wait for the whole array

    def requeue(self, job_id: str) -> None:
        """Makes the job's script, which waits for this process, exit with 99, by which Grid Engine requeues it.

        Raises QueryError: the job has several nodes. Son of Grid Engine 8.1.9 never starts such a job a second time:
            `cannot run on host "node1" until clean up of a previous run has finished`.
        """
        if os.environ.get("NHOSTS", "1") != "1":
            raise QueryError("Grid Engine may never start a job of several nodes a second time")
        Path(os.environ[AGAIN]).touch()

    def explain(self, waiting: Waiting, timeout: float) -> Explanation:
        from launcher.schedulers.sge import pending

        return pending.explain(waiting, SGE(timeout))

    def history(self, job_id: str, timeout: float) -> list[JobExecution]:
        return history(SGE(timeout), job_id)

    def found(self) -> str:
        qsub = detect()
        if qsub.kind is not QsubKind.GRID_ENGINE:
            return ""
        return f"Grid Engine {qsub.version} ({qsub.path} -help says {qsub.evidence})"

    def check(self, cluster: Cluster, timeout: float) -> Iterator[Finding]:
        from launcher.schedulers.sge import limits

        return limits.check(cluster, SGE(timeout), detect().version)

    def survey(self, timeout: float) -> SGESite:
        from launcher.schedulers.sge import limits

        return limits.survey(SGE(timeout), detect().version)
