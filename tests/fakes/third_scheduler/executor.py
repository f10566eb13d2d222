"""The executor that submits runs to the third scheduler."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from submitit.core import core

from launcher.runs.directory import Run
from launcher.schedulers.executor import RunExecutor
from launcher.schedulers.job_environment import job_environment
from tests.fakes.third_scheduler import queue


class Watcher(core.InfoWatcher):
    """Does nothing, because the launcher reads the runs' own records."""

    def update(self) -> None:
        pass


class ThirdJob(core.Job[Any]):
    """A submitit job of the third scheduler."""

    watcher = Watcher()


class ThirdExecutor(RunExecutor):
    """Submits one plan to the third scheduler."""

    job_class = ThirdJob

    def _send(self, script: Path, token: str, run: Run) -> str:
        def send() -> str:
            self._submitting()
            environment = job_environment(os.environ, self.plan).environment
            return queue.submit(str(script), token, self.plan.name, list(self._blocking_jobs()), environment)

        return self._once(send, lambda: next((each["id"] for each in queue.jobs() if each["token"] == token), None))
