"""Checks a plan against Slurm's partitions before submission.

Slurm would accept some of the jobs that are refused here, and leave them pending for ever, for instance a job that
exceeds the time limit of its partition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from launcher.errors import ConfigError, near
from launcher.formatting import format_time, plural
from launcher.schedulers.slurm.settings import SlurmSettings
from launcher.spec.limits import NodeGroup, too_much_for
from launcher.spec.plan import JobPlan, settings_of


@dataclass(frozen=True)
class Partition:
    """A live partition."""

    name: str  # name of the partition
    default: bool  # whether it is the site's default partition
    time: int | None  # time limit in seconds; None: no limit
    max_nodes: int | None  # maximum number of nodes of one job; None: no limit
    groups: tuple[NodeGroup, ...]  # the partition's nodes, grouped by their resources
    qos: str = ""  # name of the QOS from which `time` or `max_nodes` are; empty: they are the partition's own


@dataclass(frozen=True)
class Qos:
    """A QOS, whose flags may lift limits of the partition of its jobs (sacctmgr(1), PartitionTimeLimit).

    The flags of a partition's own QOS do not count (seen on 22.05).
    """

    name: str
    lifts_time: bool  # flag PartitionTimeLimit
    lifts_nodes: bool  # flag PartitionMaxNodes
    time: int | None = None  # its own limit in seconds; None: none, or Slurm enforces no limits of QOS
    max_nodes: int | None = None

    def limits(self, time: int | None, max_nodes: int | None) -> tuple[int | None, int | None]:
        """Returns these limits of a partition (seconds, nodes) as they are for jobs with this QOS."""
        return self.time if self.lifts_time else time, self.max_nodes if self.lifts_nodes else max_nodes

    def within(self, partition: Partition) -> Partition:
        """Returns the partition with the limits of jobs with this QOS."""
        time, max_nodes = self.limits(partition.time, partition.max_nodes)
        name = self.name if self.lifts_time or self.lifts_nodes else ""
        return replace(partition, time=time, max_nodes=max_nodes, qos=name)


def check_partition(plan: JobPlan, partitions: Sequence[Partition], default: str | None = None) -> None:
    """Checks that a plan's partition exists and could start the job.

    If the plan names several partitions (`cluster.partition=a,b`), one of them must be able to start the job.

    Args:
        plan: the run's plan.
        partitions: all partitions of the site.
        default: partition for a plan that names none; None: the site's default partition.

    Raises:
        ConfigError: a partition does not exist, or none of them could ever start the job.
    """
    known = {partition.name: partition for partition in partitions}
    partition = settings_of(plan, SlurmSettings).partition or default
    if partition is None:
        wanted = [partition for partition in partitions if partition.default]
        if not wanted:
            raise ConfigError(
                f"cluster.partition is not set and the site has no default partition: choose one of {', '.join(known)}"
            )
    else:
        names = partition.split(",")  # like sbatch, which takes a blank for a part of the name
        for name in names:
            if name not in known:
                raise ConfigError(
                    f"cluster.partition={name}: there is no such partition.{near(name, known)} "
                    f"Known: {', '.join(known)}"
                )
        wanted = [known[name] for name in names]
    problems = [_problem(plan, partition) for partition in wanted]
    if all(problems):
        others = [p.name for p in partitions if p not in wanted and _problem(plan, p) is None]
        hint = f"; or cluster.partition={others[0]}, which takes it as it is" if others else ""
        raise ConfigError(f"{problems[0]}{hint}")


def _problem(plan: JobPlan, partition: Partition) -> str | None:
    # Returns why a partition could never start the plan's job, with the fix, or None if it could
    where = f"partition {partition.name}" + (f" with QOS {partition.qos}" if partition.qos else "")
    total = sum(group.nodes for group in partition.groups)
    most = total if partition.max_nodes is None else min(total, partition.max_nodes)
    if most == 0:
        return f"cluster.partition={partition.name}: {where} gives nobody any nodes: choose another"
    if plan.nodes > most:
        return f"nodes={plan.nodes}: {where} gives a job at most {plural(most, 'node')}: use nodes={most} or less"
    if partition.time is not None and plan.time > partition.time:
        limit = format_time(partition.time)
        return f"time={format_time(plan.time)}: {where} ends jobs after {limit}: use time={limit} or less"
    return too_much_for(plan, partition.groups, where)
