"""Slurm as a scheduler."""

from __future__ import annotations

from launcher.schedulers.scheduler import Queue, Scheduler
from launcher.schedulers.slurm.client import Slurm


class SlurmScheduler(Scheduler, Queue):
    """Slurm."""

    name = "slurm"
    title = "Slurm"

    def queries(self, timeout: float) -> Slurm:
        return Slurm(timeout)
