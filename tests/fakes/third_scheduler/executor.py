"""The executor that submits runs to the third scheduler."""

from __future__ import annotations

from typing import Any

from submitit.core import core

from launcher.schedulers.executor import RunExecutor


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
