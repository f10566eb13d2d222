"""Submits runs to Grid Engine through submitit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from launcher.runs.directory import Run
from launcher.schedulers import environment_file
from launcher.schedulers.executor import RunExecutor
from launcher.schedulers.exports import exports
from launcher.schedulers.sge.commands import SGE, dependency
from launcher.schedulers.sge.submitit_executor import SGEJob
from launcher.spec.plan import JobPlan


class SGERunExecutor(RunExecutor):
    """Submits the jobs of one plan with qsub."""

    job_class = SGEJob

    def __init__(self, run: Run, plan: JobPlan, *arguments: Any, **options: Any) -> None:
        super().__init__(run, plan, *arguments, **options)
        self._sge = SGE(plan.cluster.submit_timeout)

    def _send(self, script: Path, token: str, run: Run) -> str:
        def send() -> str:
            # Not qsub -V, with which all users could read the whole environment (qstat -j).
            own = environment_file.write(run, self._handed or [run], self.plan, exports)
            options = dependency(self._blocking_jobs())
            self._submitting()
            return self._sge.submit(str(script), own, *options)

        return self._once(send, lambda: self._sge.find(token, self.plan.name))

    def _largest_array(self) -> int | None:
        return self._sge.max_array_size()
