"""Limits that a profile or the user sets: nodes, time, cost and jobs; pools of nodes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from launcher.binding import masks
from launcher.config.scheduler_table import settings_class
from launcher.config.schema import Cluster, Device, Form, Limits, Pool, ResumeHow, SchedulerSettings
from launcher.errors import ConfigError
from launcher.fast_dataclasses import Struct
from launcher.formatting import exact_time, format_size, format_time, number, plural
from launcher.plan.build import converted, resolved_value
from launcher.plan.plan import JobPlan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def pools_of(cluster: Cluster) -> dict[str, Pool]:
    """Returns the pools that apply to a job, by name.

    | the job requests | pools that apply |
    |---|---|
    | one partition, a queue (also `queue@server`), a QOS | the pool of each |
    | several partitions | no pool of a partition: the job may start in any of them |
    """
    settings = vars(cluster) if isinstance(cluster, SchedulerSettings) else {}
    keys = cluster.POOLS if isinstance(cluster, SchedulerSettings) else ()
    names = [(settings[key] or "").partition("@")[0] for key in keys]  # several partitions (`a,b`) match no pool
    return {name: cluster.pools[name] for name in names if name in cluster.pools}


def pools_by_key(plan: JobPlan) -> dict[str, str]:
    """Returns the partition, queue and QOS that a plan names, by config key (`partition`, `qos`)."""
    kind = settings_class(plan.cluster.scheduler)
    return {key: name for key in (kind.POOLS if kind else ()) if (name := plan.cluster.settings.get(key))}


def with_pool(cluster: Cluster) -> Cluster:
    """Returns the cluster with the variables and interface of the pools that apply, where the cluster has none."""
    environment, interface = dict(cluster.environment), cluster.interface
    for pool in pools_of(cluster).values():
        environment = {**pool.environment, **environment}
        interface = interface or pool.interface
    return replace(cluster, environment=environment, interface=interface)


# -- Compares a plan with the limits in the cluster's profile, before it is submitted
# Those of live partitions and queues are compared in launcher/schedulers.


class NodeGroup(Struct):
    nodes: int
    cpus: int  # of each node, as mem (in bytes) and gpus
    mem: int
    gpus: int
    gpu_types: tuple[str, ...] = ()  # names of the models of the nodes' GPUs, as the site spells them


def check_limits(plan: JobPlan, cluster: Cluster) -> None:
    """Raises ConfigError unless a plan is within the profile's limits, of the cluster and of its partition or queue."""
    _check(plan, cluster.limits, f"the profile of cluster={plan.cluster.name}", "cluster.limits")
    for name, pool in pools_of(cluster).items():
        _check(plan, pool.limits, f"{name} of cluster={plan.cluster.name}", f"cluster.pools.{name}.limits")


def limited_jobs(cluster: Cluster) -> dict[str, int]:
    """Returns the most jobs that a user may have, by partition, queue or QOS; the key "" is for all together."""
    found = {name: pool.limits.jobs for name, pool in pools_of(cluster).items()}
    return {name: most for name, most in {"": cluster.limits.jobs, **found}.items() if most is not None}


def crowded(plan: JobPlan) -> tuple[str, ...]:
    """Returns a note if a run on this machine would have more than eight ranks on each CPU."""
    cpus = len(os.sched_getaffinity(0))
    note = f"{plan.world_size} ranks share the {plural(cpus, 'CPU')} and the memory of this machine"
    return (note,) if plan.world_size > 8 * cpus else ()


def check_gpus(plan: JobPlan, environ: Mapping[str, str]) -> None:
    """Raises ConfigError if a run on this machine asks for more GPUs than its ranks would see."""
    asked = plan.gpus_per_node if plan.workload.device != Device.cpu.value else 0
    setup = plan.cluster.setup or plan.env.modules or plan.env.setup  # which may set other masks
    changed = {**environ, **plan.cluster.environment, **(dict.fromkeys(masks.NAMES) if setup else {})}
    given = {name: value for name, value in changed.items() if value is not None}
    if asked and (seen := masks.visible_here(given)) is not None and seen < asked:
        fix = f"use gpus_per_node={seen}" if seen else "leave it out, to compute on the CPU"
        raise ConfigError(
            f"gpus_per_node={asked}: this machine has {plural(seen, 'GPU')} that this shell may use: {fix}, or submit "
            "to a cluster (cluster=NAME); cluster.check=false leaves this check out",
            key="gpus_per_node",
        )


def check_jobs(cluster: Cluster, more: int, there: Mapping[str, int]) -> None:
    """Raises ConfigError if `more` jobs, with those `there` (by pool; "": all), are more than the profile's limits."""
    for name, most in limited_jobs(cluster).items():
        have = there.get(name, 0)
        if have + more <= most:
            continue
        where = f"{name} of cluster={cluster.name}" if name else f"cluster={cluster.name}"
        takes = f"{where} takes {plural(most, 'job')} of a user, waiting or running"
        if more > most:
            raise ConfigError(f"{takes}, and this would be {more}: submit fewer, or use cluster=allocation")
        over = "it is over" if have == 1 else "they are over"
        raise ConfigError(f"{takes}, and you have {have}: wait until {over}, or use another partition or queue")


def _check(plan: JobPlan, limits: Limits, where: str, source: str) -> None:
    _at_most(plan.nodes_key, plan.nodes, limits.nodes, f"{where} allows {limits.nodes}", f"{source}.nodes")
    _at_least("nodes", plan.nodes, limits.min_nodes, where)
    has = f"{where} has {limits.gpus_per_node} on a node"
    _at_most("gpus_per_node", plan.gpus_per_node, limits.gpus_per_node, has, f"{source}.gpus_per_node")
    _at_least("gpus_per_node", plan.gpus_per_node, limits.min_gpus_per_node, where)
    gpus = plan.gpus_per_node * plan.nodes
    if limits.gpus is not None and gpus > limits.gpus:
        raise ConfigError(
            f"gpus_per_node={plan.gpus_per_node} x {plan.nodes_key}={plan.nodes} is {gpus} GPUs, and {where} allows "
            f"{limits.gpus}: lower one of the two"
        )
    cpus = plural(plan.cpus_per_node, "CPU")
    cpus = f"procs_per_node={plan.procs_per_node} x cpus_per_proc={plan.cpus_per_proc} is {cpus}"
    if limits.cpus_per_node is not None and plan.cpus_per_node > limits.cpus_per_node:
        raise ConfigError(f"{cpus}, and {where} has {limits.cpus_per_node} on a node: lower one of the two")
    fewest = (limits.cpus_per_gpu or 0) * plan.gpus_per_node
    if plan.cpus_per_node < fewest:
        raise ConfigError(
            f"{cpus}, and {where} wants {limits.cpus_per_gpu} with each GPU: use "
            f"cpus_per_proc={-(-fewest // plan.procs_per_node)}"
        )
    names = ("mem_per_node", "time", "min_time")
    mem, longest, shortest = (resolved_value(limits, name, f"{source}.") for name in names)
    key = f"{source}.time_by_nodes"
    by_nodes = {least: converted(Form.time, key, text) for least, text in limits.time_by_nodes.items()}
    if mem is not None and plan.mem is not None and plan.mem > mem:
        raise ConfigError(f"mem={format_size(plan.mem)}: {where} has {format_size(mem)} on a node: ask for less")
    time = f"time={format_time(plan.time)}"
    if longest is not None and plan.time > longest:
        raise ConfigError(f"{time}: {where} allows {format_time(longest)}: use time={format_time(longest)} or less")
    _at_least("time", plan.time, shortest, where, format_time)
    if problem := _too_long_for_nodes(plan, by_nodes, where):
        raise ConfigError(f"{time}: {problem}")
    hours = plan.nodes * plan.time / 3600
    if limits.node_hours is not None and hours > limits.node_hours:
        raise ConfigError(
            f"{plan.nodes_key}={plan.nodes} x {time} is {hours:g} node-hours, and {where} allows "
            f"{limits.node_hours:g}: lower one of the two"
        )


def _too_long_for_nodes(plan: JobPlan, by_nodes: Mapping[int, int], where: str) -> str | None:
    steps = sorted(by_nodes)
    step = next((least for least in reversed(steps) if plan.nodes >= least), None)
    if step is None or plan.time <= by_nodes[step]:
        return None
    longest = format_time(by_nodes[step])
    more = next((least for least in steps if by_nodes[least] >= plan.time), None)
    to = f" to fewer than {next(least for least in steps if least > step)} nodes" if step != steps[-1] else ""
    return f"{where} allows {longest}{to}: use time={longest} or less" + (f", or nodes={more}" if more else "")


def _at_least(key: str, value: int, limit: int | None, where: str, shown: Callable[[int], str] = str) -> None:
    if limit is not None and value < limit:
        least = shown(limit)
        raise ConfigError(f"{key}={shown(value)}: {where} wants {least} at least: use {key}={least}", key=key)


def _at_most(key: str, value: int, limit: int | None, reason: str, source: str) -> None:
    if limit is not None and value > limit:
        raise ConfigError(f"{key}={value}: {reason} ({source}): use {key}={limit} or less", key=key)


def too_much_for(plan: JobPlan, groups: Sequence[NodeGroup], where: str) -> str | None:
    """Returns why the plan does not fit on these nodes of `where` even if all are idle, with the fix, or None."""
    for what, wanted, each_has, shown, fix in (
        (
            f"gpus_per_node={plan.gpus_per_node}", plan.gpus_per_node, [g.gpus for g in groups], str,
            "gpus_per_node={} or less",
        ),
        (
            f"procs_per_node={plan.procs_per_node} x cpus_per_proc={plan.cpus_per_proc} = {plan.cpus_per_node} CPUs",
            plan.cpus_per_node, [g.cpus for g in groups], str, "fewer of either, {} CPUs in all",
        ),
        (f"mem={format_size(plan.mem or 0)}", plan.mem or 0, [g.mem for g in groups], format_size, "mem={} or less"),
    ):  # fmt: skip
        best = max(each_has, default=0)
        if wanted > best:
            return f"{what}: the nodes of {where} have at most {shown(best)}: use {fix.format(shown(best))}"
        count = sum(group.nodes for group, has in zip(groups, each_has, strict=True) if has >= wanted)
        if count < plan.nodes:
            few, nodes = plural(count, "node"), plan.nodes_key
            return f"{what}: {where} has only {few} with that much, and {nodes}={plan.nodes}: use {nodes}={count}"
    return None


# -- Computes the cost of a submission in node-hours, GPU-hours and core-hours
# Hours are those of the requested wall time: the most that may be charged, not what will be used.


class Cost(Struct):
    node_hours: float = 0.0  # number of nodes times the requested wall time in hours
    gpu_hours: float = 0.0
    core_hours: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.node_hours + other.node_hours, self.gpu_hours + other.gpu_hours, self.core_hours + other.core_hours
        )

    @property
    def counted(self) -> tuple[float, str]:
        """The number that `confirm_above` limits, and its unit: GPU-hours or, without GPUs, node-hours."""
        return (self.gpu_hours, "GPU-hours") if self.gpu_hours else (self.node_hours, "node-hours")

    def __str__(self) -> str:
        """`24 node-hours, 96 GPU-hours`; without GPUs, node-hours and core-hours."""
        second = _hours_of(self.gpu_hours, "GPU") if self.gpu_hours else _hours_of(self.core_hours, "core")
        return f"{_hours_of(self.node_hours, 'node')}, {second}"


def of_plan(plan: JobPlan) -> Cost:
    """Returns the cost of one attempt; for resume.how=chain, which submits all jobs at once, that of all attempts."""
    hours = plan.time / 3600 * (plan.resume.max_attempts if plan.resume.how == ResumeHow.chain.value else 1)
    return Cost(plan.nodes * hours, plan.nodes * plan.gpus_per_node * hours, plan.nodes * plan.cpus_per_node * hours)


def of_plans(plans: Iterable[JobPlan]) -> Cost:
    return sum((of_plan(plan) for plan in plans), Cost())


def lines(plans: Sequence[JobPlan]) -> list[str]:
    """Returns lines on the cost of a run or of a sweep's jobs, and on their attempts.

    `2 nodes x 4 GPUs x 12h = 24 node-hours, 96 GPU-hours`; of 15 points `15 x 1 node x 1 GPU x 1h = ...`.
    """
    shapes = {_shape(plan) for plan in plans}
    same = f"{len(plans)} x " if len(plans) > 1 else ""
    what = f"{same}{shapes.pop()}" if len(shapes) == 1 else f"{len(plans)} points"
    most = max((plan.resume.max_attempts for plan in plans if _continues(plan)), default=1)
    attempts = [f"per attempt, up to {most} attempts (resume.max_attempts)"] if most > 1 else []
    return [f"{what} = {of_plans(plans)}", *attempts]


def _continues(plan: JobPlan) -> bool:
    # Whether an attempt may follow by itself; the jobs of a chain are counted in its shape
    ends = plan.workload.kind == "Program" and not plan.program_resumes
    return plan.resume.how not in (ResumeHow.never.value, ResumeHow.chain.value) and not ends


def _shape(plan: JobPlan) -> str:
    jobs = f"{plural(plan.resume.max_attempts, 'job')} x " if plan.resume.how == ResumeHow.chain.value else ""
    many, what = (plan.gpus_per_node, "GPU") if plan.gpus_per_node else (plan.cpus_per_node, "CPU")
    return f"{jobs}{plural(plan.nodes, 'node')} x {plural(many, what)} x {exact_time(plan.time)}"


def _hours_of(value: float, what: str) -> str:
    text = number(value)  # compared as it is shown: six times ten minutes are 0.9999… hours
    return f"{text} {what}-hour" + ("" if text == "1" else "s")
