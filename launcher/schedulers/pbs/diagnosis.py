"""PBS's diagnosis capabilities: pending reasons, job history, notices, doctor checks and site survey.

Imports the modules that implement them on use: a submission needs none, and `pending` and `site` take 15 ms each.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from launcher.schedulers.detect import Kind, detect
from launcher.schedulers.diagnosis import DescribesSite, ExplainsPending, JobExecution, RemembersJobs, WritesNotices
from launcher.schedulers.pbs.commands import PBS

if TYPE_CHECKING:
    from launcher.config.schema import Cluster
    from launcher.findings import Finding
    from launcher.schedulers.explanation import Explanation, Waiting
    from launcher.schedulers.notices import Form
    from launcher.schedulers.pbs.site import PBSSite
    from launcher.spec.plan import JobPlan


class PBSDiagnosis(ExplainsPending, RemembersJobs, WritesNotices, DescribesSite):
    """The diagnosis capabilities of PBS."""

    command = "qsub"

    def explain(self, waiting: Waiting, timeout: float) -> Explanation:
        # Lazily: queries of job states do not need it
        from launcher.schedulers.pbs import pending
        from launcher.schedulers.pbs.resource_queries import ResourceQueries

        return pending.explain(waiting, ResourceQueries(PBS(timeout)))

    def history(self, job_id: str, timeout: float) -> list[JobExecution]:
        # Lazily: queries of job states do not need it
        from launcher.schedulers.pbs.history import history

        return history(PBS(timeout), job_id)

    def memory(self, plan: JobPlan) -> int | None:
        return plan.mem and plan.mem * plan.nodes  # resources_used.mem, which `history` reads, is the sum of all nodes

    def notices(self) -> tuple[Form, ...]:
        # Lazily: queries of job states do not need it
        from launcher.schedulers.pbs.notices import FORMS

        return FORMS

    def found(self) -> str:
        qsub = detect()
        if qsub.kind is Kind.PBS:
            return f"PBS {qsub.version} ({qsub.path} --version says {qsub.evidence})"
        if qsub.kind in (Kind.NONE, Kind.GRID_ENGINE):
            return ""
        return f"a qsub that is not PBS's: {qsub.path}, {qsub.kind.value} ({qsub.evidence})"

    def check(self, cluster: Cluster, timeout: float) -> Iterator[Finding]:
        # Lazily: queries of job states do not need it
        from launcher.schedulers.pbs import doctor

        return doctor.check(cluster, PBS(timeout), detect().version)

    def survey(self, timeout: float) -> PBSSite:
        # Lazily: queries of job states do not need it
        from launcher.schedulers.pbs import site

        return site.survey(PBS(timeout), detect().version)
