"""The PBS scheduler. Modules that a submission does not need are imported on use."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from launcher.schedulers.allocation import Allocation, read_nodes
from launcher.schedulers.base import (
    JobExecution,
    Queue,
)
from launcher.schedulers.detect import QsubKind, detect
from launcher.schedulers.job_environment import Scrubbed
from launcher.schedulers.pbs.client import FORMS, PBS, SHELL, array_of, history, pbs_environment, pbs_id
from launcher.schedulers.pbs.settings import PBSSettings
from launcher.schedulers.topology import hosts_of

if TYPE_CHECKING:
    from launcher.config.schema import Cluster
    from launcher.findings import Finding
    from launcher.runs.directory import Run
    from launcher.schedulers.executor import RunExecutor
    from launcher.schedulers.pbs.limits import PBSSite
    from launcher.schedulers.pending import Explanation, Form, Waiting
    from launcher.spec.plan import JobPlan

# Variables that select the server for the commands.
SERVER = ("PBS_SERVER", "PBS_DEFAULT", "PBS_CONF_FILE", "PBS_EXEC")


class PBSScheduler(Queue):
    """PBS (OpenPBS or PBS Professional) as a scheduler. The modules that diagnosis needs are imported on use."""

    name = "pbs"
    title = "PBS"
    command = "qsub"
    template = "qsub.sh.j2"
    shell = SHELL
    interactive = "qsub -I"
    allocation_variables = ("PBS_JOBID", "PBS_NODEFILE")
    frees_dependents = False  # OpenPBS leaves them held for ever, and qalter cannot remove a dependency
    no_requeue = "PBS lets only operators requeue, so a new job is submitted"
    secrets_in_files = True

    def allocation(self, environ: Mapping[str, str]) -> Allocation:
        return Allocation(len(hosts_of(read_nodes(environ, "PBS_NODEFILE"))), "pbsdsh", job=environ["PBS_JOBID"])

    def executor(self) -> type[RunExecutor]:
        from launcher.schedulers.pbs.executor import PBSRunExecutor

        return PBSRunExecutor

    def starter(self, cluster: Cluster) -> str:
        return "mpiexec" if isinstance(cluster, PBSSettings) and cluster.mpiexec else "pbsdsh"

    def options(self, values: Mapping[str, Any]) -> dict[str, Any]:
        from launcher.schedulers.pbs import script

        return script.letters(values)

    def command_options(self) -> Mapping[str, bool | None]:
        from launcher.schedulers.pbs import script

        return script.command_options()

    def keys_of(self, option: str, value: str | None) -> Mapping[str, Any]:
        from launcher.schedulers.pbs import script

        return script.keys_of(option, value)

    def directives(self, plan: JobPlan, token: str, array: str | None, folder: str | None) -> list[str]:
        from launcher.schedulers.pbs import script

        return script.lines(plan, token, array, folder)

    def job_environment(self, environ: Mapping[str, str], plan: JobPlan) -> Scrubbed:
        return pbs_environment(environ)

    def problem(self) -> str | None:
        return detect().problem(QsubKind.PBS)

    def queries(self, timeout: float) -> PBS:
        return PBS(timeout)

    def here(self) -> bool:
        return detect().kind is QsubKind.PBS  # other schedulers have a qstat too

    def server(self) -> tuple[str | None, ...]:
        return (shutil.which("qstat"), *map(os.environ.get, SERVER))

    def array_of(self, job_id: str) -> str:
        return array_of(job_id)

    def can_be_waited_for(self, job_id: str) -> bool:
        return "[" not in pbs_id(job_id)  # qsub: illegal -W value

    def compare(self, plan: JobPlan, environ: Mapping[str, str]) -> tuple[str, ...]:
        from launcher.schedulers.pbs import limits

        return limits.compare(plan)

    def count_jobs(self, timeout: float) -> Mapping[str, int]:
        return PBS(timeout).count_jobs()

    def own_job(self, environ: Mapping[str, str]) -> str:
        return environ.get("PBS_JOBID", "")

    def environment_within(self, plan: JobPlan, run: Run) -> dict[str, str]:
        from launcher.schedulers import environment_file
        from launcher.schedulers.pbs import task_starters

        return environment_file.within_job(plan, run, task_starters.find("qsub"))

    def explain(self, waiting: Waiting, timeout: float) -> Explanation:
        from launcher.schedulers.pbs import pending
        from launcher.schedulers.pbs.capacity import ResourceQueries

        return pending.explain(waiting, ResourceQueries(PBS(timeout)))

    def history(self, job_id: str, timeout: float) -> list[JobExecution]:
        return history(PBS(timeout), job_id)

    def memory(self, plan: JobPlan) -> int | None:
        return plan.mem and plan.mem * plan.nodes  # resources_used.mem, which `history` reads, is the sum of all nodes

    def notices(self) -> tuple[Form, ...]:
        return FORMS

    def found(self) -> str:
        qsub = detect()
        if qsub.kind is QsubKind.PBS:
            return f"PBS {qsub.version} ({qsub.path} --version says {qsub.evidence})"
        if qsub.kind in (QsubKind.NONE, QsubKind.GRID_ENGINE):
            return ""
        return f"a qsub that is not PBS's: {qsub.path}, {qsub.kind.value} ({qsub.evidence})"

    def check(self, cluster: Cluster, timeout: float) -> Iterator[Finding]:
        from launcher.schedulers.pbs import limits

        return limits.check(cluster, PBS(timeout), detect().version)

    def survey(self, timeout: float) -> PBSSite:
        from launcher.schedulers.pbs import limits

        return limits.survey(PBS(timeout), detect().version)
