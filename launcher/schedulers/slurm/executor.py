"""Submits runs to Slurm through submitit; states need no accounting."""

from __future__ import annotations

from typing import Any

from submitit.slurm import slurm

from launcher.schedulers.executor import JobWatcher, RunExecutor
from launcher.schedulers.slurm.client import Slurm


class SlurmJob(slurm.SlurmJob[Any]):
    """A submitit job of a run on Slurm."""

    watcher = JobWatcher(Slurm())  # type: ignore[assignment]  # any InfoWatcher will do


class SlurmExecutor(RunExecutor, slurm.SlurmExecutor):
    """Submits the jobs of one plan with sbatch."""

    job_class = SlurmJob
