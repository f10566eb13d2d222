"""What Slurm can tell of its jobs and of its site. A submission needs none of it, so it is loaded when it is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.schedulers.diagnosis import ExcludesNodes, ExplainsPending, Past, RemembersJobs
from launcher.schedulers.slurm.client import Slurm

if TYPE_CHECKING:
    from launcher.schedulers.explanation import Explanation, Waiting
    from launcher.spec.plan import JobPlan


class SlurmDiagnosis(ExplainsPending, RemembersJobs, ExcludesNodes):
    """Slurm."""

    def explain(self, waiting: Waiting, timeout: float) -> Explanation:
        from launcher.schedulers.slurm import pending
        from launcher.schedulers.slurm.facts import Facts

        return pending.explain(waiting, Facts(timeout))

    def history(self, job_id: str, timeout: float) -> list[Past]:
        from launcher.schedulers.slurm.history import history

        return history(Slurm(timeout), job_id)

    def without(self, plan: JobPlan, host: str) -> str:
        return f"\"cluster.exclude='{plan.exclude},{host}'\"" if plan.exclude else f"cluster.exclude={host}"
