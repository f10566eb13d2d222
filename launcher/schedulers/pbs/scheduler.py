"""The PBS scheduler. Modules that a submission does not need are imported on use."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from launcher.schedulers.base import Allocation, JobExecution
from launcher.schedulers.pbs import client, script
from launcher.schedulers.pbs.client import FORMS, PBS, SHELL, array_of, history, pbs_id
from launcher.schedulers.pbs.settings import PBSSettings
from launcher.schedulers.qsub import FIRST_JOB, TOKEN, QsubKind, QsubScheduler, detect
from launcher.schedulers.registry import read_nodes
from launcher.schedulers.topology import hosts_of

if TYPE_CHECKING:
    from launcher.config.schema import Cluster
    from launcher.findings import Finding
    from launcher.schedulers.pbs.limits import PBSSite
    from launcher.schedulers.pending import Explanation, Form, Waiting
    from launcher.spec.plan import JobPlan

# Variables that PBS sets in each job, in addition to PBS_*: a folder on each node, the number of CPUs, and BATCH.
SET_ANEW = {"TMPDIR", "NCPUS", "ENVIRONMENT"}


class PBSScheduler(QsubScheduler):
    """PBS (OpenPBS or PBS Professional) as a scheduler. The modules that diagnosis needs are imported on use."""

    name = "pbs"
    title = "PBS"
    template = "qsub.sh.j2"
    run_executor = "launcher.schedulers.pbs.executor:PBSRunExecutor"
    shell = SHELL
    interactive = "qsub -I"
    allocation_variables = ("PBS_JOBID", "PBS_NODEFILE")
    frees_dependents = False  # OpenPBS leaves them held for ever, and qalter cannot remove a dependency
    no_requeue = "PBS lets only operators requeue, so a new job is submitted"
    kind = QsubKind.PBS
    of_server = ("PBS_SERVER", "PBS_DEFAULT", "PBS_CONF_FILE", "PBS_EXEC")
    job_variable = "PBS_JOBID"

    def allocation(self, environ: Mapping[str, str]) -> Allocation:
        return Allocation(len(hosts_of(read_nodes(environ, "PBS_NODEFILE"))), "pbsdsh", job=environ["PBS_JOBID"])

    def starter(self, cluster: Cluster) -> str:
        return "mpiexec" if isinstance(cluster, PBSSettings) and cluster.mpiexec else "pbsdsh"

    def options(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return script.letters(values)

    def command_options(self) -> Mapping[str, bool | None]:
        return script.command_options()

    def keys_of(self, option: str, value: str | None) -> Mapping[str, Any]:
        return script.keys_of(option, value)

    def directives(self, plan: JobPlan, token: str, array: str | None, folder: str | None) -> list[str]:
        return script.lines(plan, token, array, folder)

    def queries(self, timeout: float = 60) -> PBS:
        return PBS(timeout)

    def native_id(self, job_id: str) -> str:
        return pbs_id(job_id)

    def find(self, command: str) -> str | None:
        return client.find(command)

    def of_a_job(self, name: str) -> bool:
        return name in SET_ANEW

    def resubmission(self, script: str, token: str, first: str) -> tuple[str, tuple[str, ...]]:
        plain = re.sub(r"^#PBS -J .*\n", "", script, flags=re.MULTILINE)
        return plain, ("-f", "-v", f"{FIRST_JOB}={first},{TOKEN}={token}")

    def array_of(self, job_id: str) -> str:
        return array_of(job_id)

    def can_be_waited_for(self, job_id: str) -> bool:
        return "[" not in pbs_id(job_id)  # qsub: illegal -W value

    def keeps(self, job_id: str, timeout: float) -> bool:
        return PBS(timeout).holds(job_id)

    def compare(self, plan: JobPlan, environ: Mapping[str, str]) -> tuple[str, ...]:
        from launcher.schedulers.pbs import limits

        return limits.compare(plan)

    def own_job(self, environ: Mapping[str, str]) -> str:
        return environ.get("PBS_JOBID", "")

    def explain(self, waiting: Waiting, timeout: float) -> Explanation:
        from launcher.schedulers.pbs import pending

        return pending.explain(waiting, PBS(timeout))

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
