"""The keys of `cluster` that only PBS has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar

from launcher.config.schema import Flat, SchedulerSettings


class GpuDirective(Enum):
    """The resource with which jobs request GPUs."""

    ngpus = "ngpus"  # ngpus=N in the chunk of a node
    none = "none"  # none, or a resource of the site that the profile names in chunk


@dataclass
class PBSSettings(SchedulerSettings):
    """The additional keys of a profile of PBS."""

    POOLS = ("queue",)
    INSTEAD: ClassVar[Mapping[str, str]] = {
        "partition": "use cluster.queue",
        "qos": "PBS has none; a queue may stand for it (cluster.queue)",
        "constraint": "name a resource of the nodes in cluster.chunk",
        "reservation": "a reservation of PBS is a queue (cluster.queue)",
        "exclude": "PBS cannot exclude nodes; name a resource of the good ones in cluster.chunk",
        "gpu_type": "name the site's resource for it in cluster.chunk",
        "srun_args": "see cluster.mpiexec",
    }

    queue: str | None = None  # queue, or a reservation's
    project: str | None = None  # project (-P); where the site charges projects as accounts, use account
    place: str | None = None  # the place statement; empty: scatter for several nodes
    chunk: Flat = field(default_factory=dict)  # more resources of each chunk (node); null drops ours
    resources: Flat = field(default_factory=dict)  # more resources of the whole job, as -l NAME=VALUE
    totals: bool = False  # ask for CPUs, GPUs and memory of all nodes together, without a select statement
    gpu_directive: GpuDirective = GpuDirective.ngpus  # how GPUs are asked for: ngpus or none
    mpiexec: list[str] = field(default_factory=list)  # what starts the tasks instead of pbsdsh; see docs/pbs.md
