"""The table of schedulers: the import paths of each scheduler's class, and of the class with its keys of `cluster`.

Both are imported on first use, so the code of a scheduler that was not chosen is never loaded. Another package adds a
scheduler with entry points of two groups. The second one is needed only if the scheduler has keys of its own:

    [project.entry-points."launcher.schedulers"]
    lsf = "launcher_lsf:LSFScheduler"

    [project.entry-points."launcher.scheduler_settings"]
    lsf = "launcher_lsf.settings:LSFSettings"
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, TypeVar

from launcher.config.schema import Cluster, SchedulerSettings
from launcher.errors import ConfigError

S = TypeVar("S", bound=SchedulerSettings)
SCHEDULERS = "launcher.schedulers"
SETTINGS = "launcher.scheduler_settings"


class SchedulerEntry(NamedTuple):
    # scheduler, settings: import paths (`module:Class`) of the scheduler's class and of its settings class
    scheduler: str
    settings: str
    command: str = ""  # command that is on PATH wherever the scheduler is installed; empty: the scheduler has no queue
    # prefixes of environment variables that the scheduler sets in a job, or reads as submission options
    prefixes: tuple[str, ...] = ()
    # variables with these prefixes that the scheduler's commands need to find the site's server
    kept: tuple[str, ...] = ()


OURS = {
    "local": SchedulerEntry("launcher.schedulers.registry:LocalScheduler",
                   "launcher.schedulers.registry:LocalSettings"),
    "slurm": SchedulerEntry("launcher.schedulers.slurm.scheduler:SlurmScheduler",
                   "launcher.schedulers.slurm.settings:SlurmSettings", "squeue",
                   ("SLURM_", "SLURMD_", "SBATCH_", "SRUN_"), ("SLURM_CONF", "SLURM_CONF_SERVER")),
    "pbs": SchedulerEntry("launcher.schedulers.pbs.scheduler:PBSScheduler",
                 "launcher.schedulers.pbs.settings:PBSSettings", "qsub",
                 ("PBS_",), ("PBS_CONF_FILE", "PBS_EXEC", "PBS_SERVER", "PBS_DEFAULT")),
    "sge": SchedulerEntry("launcher.schedulers.sge.scheduler:SGEScheduler",
                 "launcher.schedulers.sge.settings:SGESettings", "qsub"),
    "allocation": SchedulerEntry("launcher.schedulers.registry:AllocationScheduler",
                        "launcher.schedulers.registry:AllocationSettings"),
}  # fmt: skip


@cache
def entry_points_of(group: str) -> dict[str, str]:
    """Returns the entry points of other packages in a group: import paths by name, without names of our schedulers."""
    from importlib.metadata import entry_points

    return {point.name: point.value for point in entry_points(group=group) if point.name not in OURS}


def names() -> tuple[str, ...]:
    """Returns the names of all schedulers: the possible values of cluster.scheduler."""
    return (*OURS, *sorted(entry_points_of(SCHEDULERS)))


def load(place: str) -> Any:
    """Imports and returns the object at an import path (`module:Class`)."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


@contextlib.contextmanager
def loading(name: str, place: str) -> Iterator[None]:
    """Turns errors of loading an entry point of another package, of the scheduler `name`, into a ConfigError."""
    try:
        yield
    except (ImportError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"cluster.scheduler={name}: {place}, an entry point of another package, cannot be loaded "
            f"({type(error).__name__}: {error}): install that package again, or remove it",
            key="cluster.scheduler",
        ) from error


@cache
def settings_class(name: str) -> type[SchedulerSettings] | None:
    """Returns the class of the keys of `cluster` that only this scheduler has, or None; raises ConfigError."""
    if name in OURS:
        return load(OURS[name].settings)
    if name not in entry_points_of(SCHEDULERS):
        return None
    place = entry_points_of(SETTINGS).get(name)
    if place is None:
        return SchedulerSettings
    with loading(name, place):
        return load(place)


@cache
def cluster_class(name: str) -> type[Cluster] | None:
    """Returns the class of a scheduler's profiles, all keys of theirs, or None; raises ConfigError."""
    settings = settings_class(name)
    return (
        None if settings is None else dataclass(type(settings.__name__, (settings, Cluster), {"__module__": __name__}))
    )


def own_settings(cluster: Cluster, kind: type[S]) -> S:
    """Returns a profile, typed as the settings class of its scheduler; TypeError: it is of another one."""
    if not isinstance(cluster, kind):
        raise TypeError(f"cluster={cluster.name} has no {kind.__name__}")
    return cluster


def scheduler_of(kind: type | None) -> str | None:
    """Returns the name of the scheduler for which `cluster_class` returns this class; None: of no scheduler."""
    return next((name for name in names() if cluster_class(name) is kind), None)


def schedulers_with(key: str) -> list[str]:
    """Returns the names of the schedulers that submit jobs and have a key of their own with this name (`partition`)."""
    found = []
    for name in names():
        settings = settings_class(name)
        if settings is not None and not settings.IGNORES_OTHERS and key in settings.__dataclass_fields__:
            found.append(name)
    return found
