"""The keys of `cluster` that only the third scheduler has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from launcher.config.schema import SchedulerSettings, Time


class Priority(Enum):
    """How a job stands in the queue."""

    low = "low"
    high = "high"


@dataclass
class ThirdSettings(SchedulerSettings):
    """What profiles of the third scheduler have on top."""

    POOLS = ("lane",)
    INSTEAD: ClassVar[Mapping[str, str]] = {"partition": "use cluster.lane"}

    lane: str | None = None  # lane of the queue
    priority: Priority = Priority.low  # how a job stands in its lane: low or high
    max_wait: Time = "1h"  # longest time that a job may wait
