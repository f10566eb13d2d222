"""The keys of `cluster` that only local and allocation have. Both ignore the keys of other schedulers."""

from __future__ import annotations

from dataclasses import dataclass, field

from launcher.config.schema import SchedulerSettings


@dataclass
class LocalSettings(SchedulerSettings):
    """The additional keys of a profile of this machine: none."""

    IGNORES_OTHERS = True


@dataclass
class AllocationSettings(SchedulerSettings):
    """The additional keys of a profile of an allocation."""

    IGNORES_OTHERS = True

    srun_args: list[str] = field(default_factory=list)  # extra arguments of srun, which starts the tasks on Slurm
