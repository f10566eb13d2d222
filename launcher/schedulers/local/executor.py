"""Runs job scripts as processes of this machine: with simulated nodes, or inside an existing allocation."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

from submitit.core import core

from launcher.processes import Process
from launcher.runs.directory import Run
from launcher.runs.events import ProcessStarted
from launcher.runs.history import process_of
from launcher.schedulers.executor import RunExecutor
from launcher.schedulers.job_environment import job_environment


class _NoWatcher(core.InfoWatcher):
    # Without a query: a local job's state is read from its process

    def update(self) -> None:
        pass


class LocalJob(core.Job[Any]):
    """A submitit job that is a process group on this machine."""

    watcher = _NoWatcher()

    @property
    def _process(self) -> Process | None:
        return process_of(Run(Path(self.paths.folder).parent))

    @property
    def state(self) -> str:
        """`RUNNING` while the job script's process exists, else `FINISHED`."""
        process = self._process
        return "RUNNING" if process and process.alive() else "FINISHED"

    def done(self, force_check: bool = False) -> bool:
        return self.state != "RUNNING"

    def cancel(self, check: bool = True) -> None:
        if process := self._process:
            process.signal(signal.SIGTERM)


class LocalExecutor(RunExecutor):
    """Starts a plan's job script in a new session, so that it survives the end of the submitting process."""

    job_class = LocalJob

    def _send(self, script: Path, token: str, run: Run) -> str:
        job_id = f"local-{token}"
        environment = job_environment(os.environ, self.plan).environment
        self._submitting()
        output = os.open(run.path / f"output-{job_id}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(output, "wb") as log:
            process = subprocess.Popen(
                ["bash", str(script)], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                start_new_session=True, env={**environment, "LAUNCHER_JOB_ID": job_id},
            )  # fmt: skip
        started = Process.of(process.pid)
        try:
            run.journal(ProcessStarted(**asdict(started)))
        except OSError:  # for instance a full disk: no later command could find the process
            started.signal(signal.SIGKILL)
            process.wait()
            raise
        return job_id

    def _largest_array(self) -> int:
        if self.throttle:
            raise ValueError("jobs of this machine are not throttled: leave it out")
        return 1  # each element is its own process group
