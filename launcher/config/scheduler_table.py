"""The table of schedulers: by name, where the class of each is, and where its keys of `cluster` are.

Both are imported on first use: nothing is loaded of a scheduler that was not chosen. Another package adds a scheduler
with entry points of two groups; the second one is needed only if it has keys of its own:

    [project.entry-points."launcher.schedulers"]
    lsf = "launcher_lsf:LSFScheduler"

    [project.entry-points."launcher.scheduler_settings"]
    lsf = "launcher_lsf.settings:LSFSettings"
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, TypeVar

from launcher.config.schema import Cluster, SchedulerSettings
from launcher.errors import ConfigError

S = TypeVar("S", bound=SchedulerSettings)
SCHEDULERS = "launcher.schedulers"
SETTINGS = "launcher.scheduler_settings"


class Place(NamedTuple):
    """A scheduler of ours.

    Attributes:
        scheduler, settings: where its class is, and where that of its settings is, each as `module:Class`.
        command: a command that every installation of a scheduler with a queue has on PATH; empty: it has no queue.
        prefixes: of the variables that it sets in a job, or that are options of a submission.
        kept: variables with such a prefix by which its commands find the site.
    """

    scheduler: str
    settings: str
    command: str = ""
    prefixes: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()


OURS = {
    "local": Place("launcher.schedulers.local.scheduler:LocalScheduler",
                   "launcher.schedulers.local.settings:LocalSettings"),
    "slurm": Place("launcher.schedulers.slurm.scheduler:SlurmScheduler",
                   "launcher.schedulers.slurm.settings:SlurmSettings", "squeue",
                   ("SLURM_", "SLURMD_", "SBATCH_"), ("SLURM_CONF",)),
    "pbs": Place("launcher.schedulers.pbs.scheduler:PBSScheduler",
                 "launcher.schedulers.pbs.settings:PBSSettings", "qsub",
                 ("PBS_",), ("PBS_CONF_FILE", "PBS_EXEC", "PBS_SERVER", "PBS_DEFAULT")),
    "sge": Place("launcher.schedulers.sge.scheduler:SGEScheduler",
                 "launcher.schedulers.sge.settings:SGESettings", "qsub"),
    "allocation": Place("launcher.schedulers.local.scheduler:AllocationScheduler",
                        "launcher.schedulers.local.settings:AllocationSettings"),
}  # fmt: skip


@cache
def entry_points_of(group: str) -> dict[str, str]:
    """Returns the places that other packages add to a group, by name. Names of ours are left out."""
    # Lazily: 15 ms, and ours need none of it
    from importlib.metadata import entry_points

    return {point.name: point.value for point in entry_points(group=group) if point.name not in OURS}


def names() -> tuple[str, ...]:
    """Returns the names of all schedulers, which are the values of cluster.scheduler."""
    return (*OURS, *sorted(entry_points_of(SCHEDULERS)))


def load(place: str) -> Any:
    """Returns what a place (`module:Class`) names."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


@cache
def settings_class(name: str) -> type[SchedulerSettings] | None:
    """Returns the class with the keys of `cluster` that only this scheduler has; None: there is no such scheduler.

    Raises:
        ConfigError: the package that adds it cannot be imported.
    """
    if name in OURS:
        return load(OURS[name].settings)
    if name not in entry_points_of(SCHEDULERS):
        return None
    place = entry_points_of(SETTINGS).get(name)
    try:
        return load(place) if place else SchedulerSettings
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"cluster.scheduler={name}: {place}, an entry point of another package, cannot be loaded "
            f"({type(error).__name__}: {error}): install that package again, or remove it"
        ) from error


@cache
def cluster_class(name: str) -> type[Cluster] | None:
    """Returns the class of a profile of this scheduler: the keys of every cluster, and its own. None: see above.

    Raises:
        ConfigError: see `settings_class`.
    """
    settings = settings_class(name)
    return (
        None if settings is None else dataclass(type(settings.__name__, (settings, Cluster), {"__module__": __name__}))
    )


def own_settings(cluster: Cluster, kind: type[S]) -> S:
    """Returns a profile as an object of the class of its scheduler's settings.

    Raises:
        TypeError: it is another scheduler's.
    """
    if not isinstance(cluster, kind):
        raise TypeError(f"cluster={cluster.name} has no {kind.__name__}")
    return cluster


def scheduler_of(kind: type | None) -> str | None:
    """Returns the name of the scheduler of a class that `cluster_class` has returned."""
    return next((name for name in names() if cluster_class(name) is kind), None)


def schedulers_with(key: str) -> list[str]:
    """Returns the names of the schedulers with a queue that have a key of their own with this name (`partition`)."""
    found = []
    for name in names():
        settings = settings_class(name)
        if settings is not None and not settings.IGNORES_OTHERS and key in settings.__dataclass_fields__:
            found.append(name)
    return found
