"""The keys of `cluster` that only Slurm has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar

from launcher.config.schema import SchedulerSettings


class GpuDirective(Enum):
    """The sbatch option with which jobs request GPUs."""

    gres = "gres"  # --gres=gpu:TYPE:N
    gpus_per_node = "gpus_per_node"  # --gpus-per-node=TYPE:N
    none = "none"  # no option: the site allocates whole nodes


@dataclass
class SlurmSettings(SchedulerSettings):
    """The additional keys of a profile of Slurm."""

    POOLS = ("partition", "qos")
    INSTEAD: ClassVar[Mapping[str, str]] = {
        "queue": "use cluster.partition",
        "project": "use cluster.account",
        "place": "see cluster.directives",
        "chunk": "use cluster.constraint or cluster.directives",
        "resources": "use cluster.directives",
        "totals": "it counts by node",
        "mpiexec": "srun starts the tasks; see cluster.srun_args",
    }

    partition: str | None = None  # partition(s), comma-separated
    qos: str | None = None  # quality of service
    constraint: str | None = None  # node features, as --constraint
    reservation: str | None = None  # reservation to run in
    exclude: str | None = None  # nodes not to use, as --exclude (`node[3,7]`)
    gpu_directive: GpuDirective = GpuDirective.gres  # how GPUs are asked for: gres, gpus_per_node or none
    gpu_type: str | None = None  # GPU model in the site's words, e.g. a100
    srun_args: list[str] = field(default_factory=list)  # extra arguments of srun
