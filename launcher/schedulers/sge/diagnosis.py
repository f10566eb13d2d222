"""Grid Engine's diagnosis capabilities: pending reasons, job history, doctor checks and site survey.

Imports the modules that implement them on use.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from launcher.schedulers.detect import Kind, detect
from launcher.schedulers.diagnosis import DescribesSite, ExplainsPending, JobExecution, RemembersJobs
from launcher.schedulers.sge.commands import SGE

if TYPE_CHECKING:
    from launcher.config.schema import Cluster
    from launcher.findings import Finding
    from launcher.schedulers.explanation import Explanation, Waiting
    from launcher.schedulers.sge.site import SGESite


class SGEDiagnosis(ExplainsPending, RemembersJobs, DescribesSite):
    """The diagnosis capabilities of Grid Engine."""

    command = "qsub"

    def explain(self, waiting: Waiting, timeout: float) -> Explanation:
        # Lazily: 8 ms, and states of jobs need none of it
        from launcher.schedulers.sge import pending
        from launcher.schedulers.sge.resource_queries import ResourceQueries

        return pending.explain(waiting, ResourceQueries(SGE(timeout)))

    def history(self, job_id: str, timeout: float) -> list[JobExecution]:
        # Lazily: 8 ms, and states of jobs need none of it
        from launcher.schedulers.sge.history import history

        return history(SGE(timeout), job_id)

    def found(self) -> str:
        qsub = detect()
        if qsub.kind is not Kind.GRID_ENGINE:
            return ""
        return f"Grid Engine {qsub.version} ({qsub.path} -help says {qsub.evidence})"

    def check(self, cluster: Cluster, timeout: float) -> Iterator[Finding]:
        # Lazily: 8 ms, and states of jobs need none of it
        from launcher.schedulers.sge import doctor

        return doctor.check(cluster, SGE(timeout), detect().version)

    def survey(self, timeout: float) -> SGESite:
        # Lazily: 8 ms, and states of jobs need none of it
        from launcher.schedulers.sge import site

        return site.survey(SGE(timeout), detect().version)
