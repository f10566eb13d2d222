"""The keys of `cluster` that only Grid Engine has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar

from launcher.config.schema import Flat, Nat, SchedulerSettings


class GpuDirective(Enum):
    """The resource with which jobs request GPUs."""

    resource = "resource"  # the resource that cluster.gpu_resource names
    none = "none"  # none: the site allocates whole nodes


@dataclass
class SGESettings(SchedulerSettings):
    """The additional keys of a profile of Grid Engine."""

    POOLS = ("queue",)
    INSTEAD: ClassVar[Mapping[str, str]] = {
        "partition": "use cluster.queue",
        "qos": "Grid Engine has none; a queue or a project may stand for it",
        "constraint": "ask for a resource of the nodes (cluster.resources)",
        "reservation": "an advance reservation is an option of qsub: cluster.directives.ar=ID",
        "exclude": "ask for a resource of the good ones (cluster.resources.hostname='!(node3|node7)')",
        "place": "use cluster.parallel_environment",
        "chunk": "use cluster.resources, whose amounts count as qconf -sc says",
        "gpu_type": "ask for the site's resource for it (cluster.resources)",
        "srun_args": "qrsh starts the tasks",
        "mpiexec": "qrsh starts the tasks",
    }

    queue: str | None = None  # queue(s), comma-separated
    project: str | None = None  # project (-P); where the site charges projects as accounts, use account
    parallel_environment: str | None = None  # gives a job its slots on each node (-pe)
    slots: Nat | None = None  # slots on each node, as the parallel environment hands them out; empty: 1
    node_resource: str | None = None  # the site's resource of whole nodes, where it has one (-l NAME=NODES)
    group: str | None = None  # group that is charged, on Altair Grid Engine (qsub -g)
    gpu_directive: GpuDirective = GpuDirective.resource  # how GPUs are asked for: resource or none
    gpu_resource: str | None = None  # the site's resource for GPUs (gpu, ngpus), with gpu_directive=resource
    mem_resource: str | None = None  # the site's resource for memory (h_vmem, mem_free) that mem asks for
    per_node: list[str] = field(default_factory=list)  # resources (gpu, h_vmem) whose amount is a node's, not a slot's
    resources: Flat = field(default_factory=dict)  # more resources of the job, as -l NAME=VALUE

    @property
    def queue_names(self) -> list[str]:
        """The names in `queue`, without hosts (`all.q@node1`); some may be patterns."""
        return [name.partition("@")[0] for name in self.queue.split(",")] if self.queue else []
