"""Slurm's diagnosis capabilities: pending reasons, job history, notices, doctor checks and site survey.

Imports the modules that implement them on use: a submission needs none, and `pending` and `site` take 15 ms each.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

from launcher.schedulers.diagnosis import (
    DescribesSite,
    ExplainsPending,
    JobExecution,
    OpensOutput,
    RemembersJobs,
    WritesNotices,
)
from launcher.schedulers.slurm.commands import Slurm

if TYPE_CHECKING:
    from launcher.config.schema import Cluster
    from launcher.findings import Finding
    from launcher.schedulers.explanation import Explanation, Waiting
    from launcher.schedulers.notices import Form
    from launcher.schedulers.slurm.site import SlurmSite


class SlurmDiagnosis(ExplainsPending, RemembersJobs, WritesNotices, OpensOutput, DescribesSite):
    """The diagnosis capabilities of Slurm."""

    command = "sbatch"
    output_signal = 53  # RaisedSignal:53(Real-time_signal_19)

    def explain(self, waiting: Waiting, timeout: float) -> Explanation:
        # Lazily: queries of job states do not need it
        from launcher.schedulers.slurm import pending
        from launcher.schedulers.slurm.resource_queries import ResourceQueries

        return pending.explain(waiting, ResourceQueries(timeout))

    def history(self, job_id: str, timeout: float) -> list[JobExecution]:
        # Lazily: queries of job states do not need it
        from launcher.schedulers.slurm.history import history

        return history(Slurm(timeout), job_id)

    def notices(self) -> tuple[Form, ...]:
        # Lazily: queries of job states do not need it
        from launcher.schedulers.slurm.notices import FORMS

        return FORMS

    def found(self) -> str:
        path = shutil.which(self.command)
        return f"Slurm (sbatch is {path})" if path else ""

    def check(self, cluster: Cluster, timeout: float) -> Iterator[Finding]:
        # Lazily: queries of job states do not need it
        from launcher.schedulers.slurm import doctor

        return doctor.check(cluster, Slurm(timeout))

    def survey(self, timeout: float) -> SlurmSite:
        # Lazily: queries of job states do not need it
        from launcher.schedulers.slurm import site

        return site.survey(Slurm(timeout))
