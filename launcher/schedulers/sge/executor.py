"""Submits runs to Grid Engine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from submitit.core import core

from launcher import redaction
from launcher.environment import secrets
from launcher.runs.directory import Run
from launcher.schedulers.executor import RunExecutor
from launcher.schedulers.exports import exports
from launcher.schedulers.job_environment import job_environment
from launcher.schedulers.sge.commands import SGE, dependency
from launcher.spec.plan import JobPlan


class Watcher(core.InfoWatcher):
    """The runs' own records are enough for the launcher."""

    def update(self) -> None:
        pass


class SGEJob(core.Job[Any]):
    """A submitit job on Grid Engine."""

    watcher = Watcher()


class SGERunExecutor(RunExecutor):
    """Submits one plan with qsub."""

    job_class = SGEJob

    def __init__(self, run: Run, plan: JobPlan, *arguments: Any, **options: Any) -> None:
        super().__init__(run, plan, *arguments, **options)
        self._sge = SGE(plan.cluster.submit_timeout)

    def _send(self, script: Path, token: str, run: Run) -> str:
        def send() -> str:
            # -V would put all of it where everybody can read it (qstat -j).
            environment = job_environment(os.environ, self.plan).environment
            hidden = redaction.secrets_in(environment, self.plan.env.secrets)
            public = secrets.without(environment, self.plan.env.secrets)
            run.write_environment(exports(public) + "".join(f"# not here: {name}\n" for name in hidden))
            elements = [str(each.path) for each in self._handed or [run]]
            secrets.hand_over(elements, hidden, exports(hidden), self.plan.secrets_dir or str(secrets.folder()))
            options = dependency(self._blocking_jobs())
            self._submitting()
            own = secrets.without(os.environ, self.plan.env.secrets)  # a site's sge_request may have -V
            return self._sge.submit(str(script), own, *options)

        return self._once(send, lambda: self._sge.find(token, self.plan.name))

    def _largest_array(self) -> int | None:
        return self._sge.max_array_size()
