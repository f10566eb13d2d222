"""The schedulers that there are. A scheduler's module is loaded when the scheduler is asked for.

The table below has ours; a package of somebody else's adds one with an entry point of the group `launcher.schedulers`:

    [project.entry-points."launcher.schedulers"]
    lsf = "launcher_lsf:LSFScheduler"
"""

from __future__ import annotations

import contextlib
import importlib
from functools import cache
from typing import TYPE_CHECKING, Any

from launcher.errors import ConfigError, near
from launcher.schedulers.scheduler import Queue, Scheduler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from launcher.schedulers.task_group import TaskRequest

GROUP = "launcher.schedulers"
OURS = {
    "local": "launcher.schedulers.local.scheduler:LocalScheduler",
    "slurm": "launcher.schedulers.slurm.scheduler:SlurmScheduler",
    "pbs": "launcher.schedulers.pbs.scheduler:PBSScheduler",
    "allocation": "launcher.schedulers.local.scheduler:AllocationScheduler",
}
# What starts tasks on the nodes of a job where srun does not, by its name in a plan.
STARTERS = {
    "pbsdsh": "launcher.schedulers.pbs.pbsdsh:run",
    "mpiexec": "launcher.schedulers.pbs.mpiexec:run",
}


@cache
def _others() -> dict[str, str]:
    # Lazily: 15 ms, and ours need none of it
    from importlib.metadata import entry_points

    return {point.name: point.value for point in entry_points(group=GROUP) if point.name not in OURS}


def names() -> tuple[str, ...]:
    """All schedulers that cluster.scheduler may name."""
    return (*OURS, *sorted(_others()))


def _load(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def starter(name: str) -> Callable[[TaskRequest], int]:
    """What starts the tasks that are wanted, and stays until they have ended; it returns their exit status.

    Raises:
        ConfigError: there is none of this name.
    """
    place = STARTERS.get(name)
    if place is None:
        raise ConfigError(f"{name} starts no tasks. Known: {', '.join(STARTERS)}")
    found: Callable[[TaskRequest], int] = _load(place)
    return found


@cache
def scheduler(name: str) -> Scheduler:
    """The scheduler of this name.

    Raises:
        ConfigError: there is none, or the package that brings it is broken.
    """
    place = OURS.get(name) or _others().get(name)
    if place is None:
        raise ConfigError(
            f"cluster.scheduler={name}: there is no such scheduler.{near(name, names())} Known: {', '.join(names())}"
        )
    try:
        found: Scheduler = _load(place)()
    except (ImportError, AttributeError, TypeError) as error:
        if name in OURS:
            raise
        raise ConfigError(
            f"cluster.scheduler={name}: {place}, an entry point of another package, cannot be loaded "
            f"({type(error).__name__}: {error}): install that package again, or remove it"
        ) from error
    return found


def queue(name: str) -> Queue:
    """The scheduler of this name, which takes jobs.

    Raises:
        ConfigError: there is none, or it starts jobs at once.
    """
    found = scheduler(name)
    if not isinstance(found, Queue):
        raise ConfigError(f"cluster.scheduler={name}: it starts jobs at once, and has no queue")
    return found


def schedulers(wanted: Iterable[str] | None = None) -> list[Scheduler]:
    """Those of these names that can be loaded, or all, in the order of `names()`; `isinstance` tells what each can do.

    Entry points are looked at only where a name is not ours.
    """
    found = []
    for name in names() if wanted is None else wanted:
        with contextlib.suppress(ConfigError):  # another package's is broken: whoever uses it is told
            found.append(scheduler(name))
    return found


def queues_here(others: Iterable[str] = ()) -> dict[str, Queue]:
    """The schedulers that take jobs and whose commands are on this machine, by name: ours, and these of `others`."""
    wanted = dict.fromkeys((*OURS, *others))
    return {each.name: each for each in schedulers(wanted) if isinstance(each, Queue) and each.here()}
