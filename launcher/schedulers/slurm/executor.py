"""Submits runs to Slurm through submitit; reads job states without accounting."""

from __future__ import annotations

import time
from typing import Any

from submitit.slurm import slurm

from launcher.schedulers.base import QueryError
from launcher.schedulers.executor import NOT_OVER, RunExecutor
from launcher.schedulers.slurm.client import Slurm


class SlurmInfoWatcher(slurm.SlurmInfoWatcher):
    """Reads job states from squeue and sacct. A job that both have purged becomes `FORGOTTEN`, not `UNKNOWN`."""

    def __init__(self, delay_s: int = 60, slurm_commands: Slurm | None = None) -> None:
        super().__init__(delay_s)
        self._slurm = slurm_commands or Slurm()
        self._misses: dict[str, int] = {}

    def update(self) -> None:
        """Queries all registered jobs with one squeue, and the jobs that squeue has purged with one sacct."""
        waiting = sorted(self._registered - self._finished)
        self._num_calls += 1
        self._last_status_check = time.time()
        try:
            known = self._slurm.jobs(waiting)
            known |= self._slurm.accounting([job_id for job_id in waiting if job_id not in known])
        except QueryError:
            return  # the known states stay
        for job_id in waiting:
            if job_id in known:
                state = NOT_OVER.get(known[job_id].state, known[job_id].raw_state)
                self._info_dict[job_id] = {"JobID": job_id, "State": state, "NodeList": ""}
                self._misses.pop(job_id, None)
                continue
            self._misses[job_id] = self._misses.get(job_id, 0) + 1
            if self._misses[job_id] > 1:
                self._info_dict[job_id] = {"JobID": job_id, "State": "FORGOTTEN", "NodeList": ""}
        self._finished.update(job_id for job_id in waiting if self.is_done(job_id, mode="cache"))


class SlurmJob(slurm.SlurmJob[Any]):
    """A submitit job with a state that needs no accounting."""

    watcher = SlurmInfoWatcher()


class SlurmExecutor(RunExecutor, slurm.SlurmExecutor):
    """Submits the jobs of one plan with sbatch."""

    job_class = SlurmJob
