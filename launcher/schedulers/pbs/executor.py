"""Submits runs to PBS through submitit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from launcher.runs.directory import Run
from launcher.runs.sweep_directory import element_id
from launcher.schedulers import environment_file
from launcher.schedulers.executor import RunExecutor
from launcher.schedulers.pbs import commands
from launcher.schedulers.pbs.submitit_executor import PBSJob
from launcher.schedulers.pbs.task import exports
from launcher.spec.plan import JobPlan


class PBSRunExecutor(RunExecutor):
    """Submits the jobs of one plan with qsub."""

    job_class = PBSJob

    def __init__(self, run: Run, plan: JobPlan, *arguments: Any, **options: Any) -> None:
        super().__init__(run, plan, *arguments, **options)
        self._pbs = commands.PBS(plan.cluster.submit_timeout)

    def _send(self, script: Path, token: str, run: Run) -> str:
        def send() -> str:
            # Not qsub -v, which changes some values, and shows all of them to other users.
            own = environment_file.write(run, self._handed or [run], self.plan, exports)
            options = commands.dependency(self._blocking_jobs())
            self._submitting()
            job = self._pbs.submit(str(script), own, "-f", *options)
            # PBS deletes a job at once if it depends on a job that PBS has forgotten.
            if options and not self._pbs.holds(job) and not self._blocking_jobs():
                return self._pbs.submit(str(script), own, "-f")
            return job

        return self._once(send, lambda: self._pbs.find(token, self.plan.name))

    def _element_id(self, job_id: str, index: int) -> str:
        return element_id(job_id, index)

    def _largest_array(self) -> int | None:
        return self._pbs.max_array_size(self.plan)
