"""The keys of `cluster` on this machine, and in an allocation: those of other schedulers are ignored there."""

from __future__ import annotations

from dataclasses import dataclass, field

from launcher.config.schema import SchedulerSettings


@dataclass
class LocalSettings(SchedulerSettings):
    """This machine has no keys of its own."""

    IGNORES_OTHERS = True


@dataclass
class AllocationSettings(SchedulerSettings):
    """What the profile of an allocation has on top."""

    IGNORES_OTHERS = True

    srun_args: list[str] = field(default_factory=list)  # extra arguments of srun, which starts the tasks on Slurm
