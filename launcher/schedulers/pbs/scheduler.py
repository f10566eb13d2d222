"""The PBS scheduler."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from launcher.failures.codes import NextReason
from launcher.schedulers.base import JOB_TIMEOUT, Allocation, Ending, JobVariables, QueryError
from launcher.schedulers.pbs.client import PBS, native_id
from launcher.schedulers.pbs.settings import PBSSettings
from launcher.schedulers.qsub import FIRST_JOB, TOKEN, QsubKind, QsubScheduler, detect
from launcher.schedulers.registry import read_nodes
from launcher.schedulers.topology import hosts_in_node_file

if TYPE_CHECKING:
    from launcher.config.schema import Cluster
    from launcher.plan.plan import JobPlan

# Variables that PBS sets in each job, in addition to PBS_*: a folder on each node, the number of CPUs, and BATCH.
SET_ANEW = {"TMPDIR", "NCPUS", "ENVIRONMENT"}


class PBSScheduler(QsubScheduler):
    folder = __name__.rpartition(".")[0]
    name = "pbs"
    title = "PBS"
    template = "qsub.sh.j2"
    shell = JobVariables(
        job_id="$PBS_JOBID", element_id=r"${PBS_ARRAY_ID/\[\]/}_$PBS_ARRAY_INDEX", index="PBS_ARRAY_INDEX",
        output="$PBS_JOBID.OU", time_left="launcher.schedulers.pbs.in_job:seconds_left",
    )  # fmt: skip
    interactive = "qsub -I"
    allocation_variables = ("PBS_JOBID", "PBS_NODEFILE")
    # OpenPBS leaves them held for ever, and qalter cannot remove a dependency; it deletes them if the job waited itself
    frees_dependents = False
    no_requeue = "PBS lets only operators requeue, so a new job is submitted"
    kind = QsubKind.PBS
    of_server = ("PBS_SERVER", "PBS_DEFAULT", "PBS_CONF_FILE", "PBS_EXEC")
    job_variable = "PBS_JOBID"

    def allocation(self, environ: Mapping[str, str]) -> Allocation:
        hosts = hosts_in_node_file(read_nodes(environ, "PBS_NODEFILE"))
        return Allocation(len(hosts), "pbsdsh", job=environ["PBS_JOBID"])

    def starter(self, cluster: Cluster) -> str:
        return "mpiexec" if isinstance(cluster, PBSSettings) and cluster.mpiexec else "pbsdsh"

    def ending(self, plan: JobPlan, *, stop_requested: bool, left: float) -> Ending | None:
        found = super().ending(plan, stop_requested=stop_requested, left=left)
        if found is None and left > 0:  # after a crash of its MoM, PBS requeues the job, and asks it for nothing
            self.put_on_path()
            with contextlib.suppress(QueryError):
                state = (PBS(JOB_TIMEOUT).record(self.own_job(os.environ)) or {}).get("job_state", "R")
                return None if state == "R" else Ending(NextReason.SCHEDULER_ENDS, self.title, state)
        return found

    def queries(self, timeout: float = 60) -> PBS:
        return PBS(timeout)

    def of_a_job(self, name: str) -> bool:
        return name in SET_ANEW

    def resubmission(self, script: str, token: str, first: str) -> tuple[str, tuple[str, ...]]:
        plain = re.sub(r"^#PBS -J .*\n", "", script, flags=re.MULTILINE)
        return plain, ("-f", "-v", f"{FIRST_JOB}={first},{TOKEN}={token}")

    def can_be_waited_for(self, job_id: str) -> bool:
        return "[" not in native_id(job_id)  # qsub: illegal -W value

    def keeps(self, job_id: str, timeout: float) -> bool:
        return PBS(timeout).holds(job_id)

    def own_job(self, environ: Mapping[str, str]) -> str:
        return environ.get("PBS_JOBID", "")

    def memory(self, plan: JobPlan) -> int | None:
        return plan.mem and plan.mem * plan.nodes  # resources_used.mem, which `history` reads, is the sum of all nodes

    def found(self) -> str:
        qsub = detect()
        if qsub.kind is QsubKind.PBS:
            return f"PBS {qsub.version} ({qsub.path} --version says {qsub.evidence})"
        if qsub.kind in (QsubKind.NONE, QsubKind.GRID_ENGINE):
            return ""
        return f"a qsub that is not PBS's: {qsub.path}, {qsub.kind.value} ({qsub.evidence})"
