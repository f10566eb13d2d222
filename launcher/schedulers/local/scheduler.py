"""This machine, and an allocation that the shell holds, as schedulers: a job starts at once or not at all."""

from __future__ import annotations

from launcher.schedulers.scheduler import Scheduler


class LocalScheduler(Scheduler):
    """This machine."""

    name = "local"
    title = "this machine"


class AllocationScheduler(Scheduler):
    """The allocation of Slurm or PBS in which the command was typed."""

    name = "allocation"
    title = "this allocation"
