"""What a scheduler is to the rest of the launcher: one class per scheduler, found by `registry.scheduler(name)`.

What not every scheduler can do is a class of its own, and `isinstance` tells who can. Nothing outside of a scheduler's
folder asks for its name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from launcher.schedulers.base import Queries


class Scheduler(ABC):
    """A scheduler.

    Attributes:
        name: as in cluster.scheduler.
        title: as people write it.
    """

    name: str
    title: str


class Queue(ABC):
    """A scheduler that takes jobs, which wait until there is room."""

    @abstractmethod
    def queries(self, timeout: float) -> Queries:
        """Its commands, each of which may take this many seconds."""
