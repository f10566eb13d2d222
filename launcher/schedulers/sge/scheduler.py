"""The Grid Engine scheduler. Modules that a submission does not need are imported on use."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.schedulers.allocation import Allocation, read_nodes
from launcher.schedulers.base import (
    JobExecution,
    QueryError,
    Queue,
)
from launcher.schedulers.detect import QsubKind, detect
from launcher.schedulers.job_environment import Scrubbed
from launcher.schedulers.sge.client import SGE, SHELL, array_of, find, history, hosts_of, sge_environment

if TYPE_CHECKING:
    from launcher.config.schema import Cluster
    from launcher.findings import Finding
    from launcher.runs.directory import Run
    from launcher.schedulers.executor import RunExecutor
    from launcher.schedulers.pending import Explanation, Waiting
    from launcher.schedulers.sge.limits import SGESite
    from launcher.spec.plan import JobPlan

# Variables that select the cell, and the port of its qmaster.
SERVER = ("SGE_ROOT", "SGE_CELL", "SGE_QMASTER_PORT")
# Variable of a job with the path of a file. If the file exists, the job script exits with 99, which requeues the job.
AGAIN = "LAUNCHER_SGE_AGAIN"


class SGEScheduler(Queue):
    """Grid Engine as a scheduler. The modules that diagnosis needs are imported on use."""

    name = "sge"
    title = "Grid Engine"
    requeues = True
    command = "qsub"
    template = "sge.sh.j2"
    shell = SHELL
    interactive = "qrsh -pe NAME SLOTS bash"
    joins_values = False
    allocation_variables = ("JOB_ID", "PE_HOSTFILE")
    secrets_in_files = True

    def allocation(self, environ: Mapping[str, str]) -> Allocation:
        return Allocation(len(hosts_of(read_nodes(environ, "PE_HOSTFILE"))), "qrsh", job=environ["JOB_ID"])

    def executor(self) -> type[RunExecutor]:
        from launcher.schedulers.sge.executor import SGERunExecutor

        return SGERunExecutor

    def starter(self, cluster: Cluster) -> str:
        return "qrsh"

    def options(self, values: Mapping[str, Any]) -> dict[str, Any]:
        from launcher.schedulers.sge import script

        return script.names(values)

    def command_options(self) -> Mapping[str, bool | None]:
        from launcher.schedulers.sge import script

        return script.command_options()

    def keys_of(self, option: str, value: str | None) -> Mapping[str, Any]:
        from launcher.schedulers.sge import script

        return script.keys_of(option, value)

    def directives(self, plan: JobPlan, token: str, array: str | None, folder: str | None) -> list[str]:
        from launcher.schedulers.sge import script

        return script.lines(plan, token, array, folder)

    def job_environment(self, environ: Mapping[str, str], plan: JobPlan) -> Scrubbed:
        return sge_environment(environ)

    def problem(self) -> str | None:
        return detect().problem(QsubKind.GRID_ENGINE)

    def queries(self, timeout: float) -> SGE:
        return SGE(timeout)

    def here(self) -> bool:
        return detect().kind is QsubKind.GRID_ENGINE

    def server(self) -> tuple[str | None, ...]:
        return (shutil.which("qstat"), *map(os.environ.get, SERVER))

    def array_of(self, job_id: str) -> str:
        return array_of(job_id)

    def compare(self, plan: JobPlan, environ: Mapping[str, str]) -> tuple[str, ...]:
        from launcher.schedulers.sge import limits

        return limits.compare(plan)

    def count_jobs(self, timeout: float) -> Mapping[str, int]:
        return SGE(timeout).count_jobs()

    def own_job(self, environ: Mapping[str, str]) -> str:
        return environ.get("LAUNCHER_JOB_ID", "")

    def environment_within(self, plan: JobPlan, run: Run) -> dict[str, str]:
        from launcher.schedulers import environment_file

        return environment_file.within_job(plan, run, find("qsub"))

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
        from launcher.schedulers.sge.capacity import ResourceQueries

        return pending.explain(waiting, ResourceQueries(SGE(timeout)))

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
