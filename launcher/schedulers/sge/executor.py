"""Submits runs to Grid Engine through submitit."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from launcher import redaction
from launcher.errors import ConfigError
from launcher.runs.directory import Run
from launcher.schedulers import environment_file, task_group
from launcher.schedulers.executor import RunExecutor
from launcher.schedulers.exports import exports
from launcher.schedulers.idempotent_submit import Refused
from launcher.schedulers.sge import qrsh
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
        hidden = redaction.secrets_in(os.environ, self.plan.env.secrets)
        tasks = task_group.environments([""], self.plan.tasks_per_node)
        try:
            qrsh.line_of(str(run.path), hidden, tasks, str(run.path))
        except ConfigError as error:
            raise Refused(str(error), definite=True) from None

        def send() -> str:
            # Not qsub -V, with which all users could read the whole environment (qstat -j).
            own = environment_file.write(run, self._handed or [run], self.plan, exports)
            options = dependency(self._blocking_jobs())
            self._submitting()
            return self._sge.submit(str(script), own, *options)

        return self._once(send, lambda: self._sge.find(token, self.plan.name))

    def _largest_array(self) -> int | None:
        return self._sge.max_array_size()
