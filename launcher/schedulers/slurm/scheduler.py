"""Slurm as a scheduler."""

from __future__ import annotations

from launcher.schedulers.scheduler import Queue, Scheduler
from launcher.schedulers.slurm.client import Slurm
from launcher.schedulers.slurm.diagnosis import SlurmDiagnosis


class SlurmScheduler(Scheduler, Queue, SlurmDiagnosis):
    """Slurm."""

    name = "slurm"
    title = "Slurm"

    def queries(self, timeout: float) -> Slurm:
        return Slurm(timeout)
