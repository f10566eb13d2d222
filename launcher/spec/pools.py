"""Applies the profile's settings for a partition, queue or QOS (`cluster.pools`) to a job that uses it."""

from __future__ import annotations

from dataclasses import replace

from launcher.config.scheduler_table import settings_class
from launcher.config.schema import Cluster, Pool, SchedulerSettings
from launcher.spec.plan import JobPlan


def of(cluster: Cluster) -> dict[str, Pool]:
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


def named(plan: JobPlan) -> dict[str, str]:
    """Returns the partition, queue and QOS that a plan names, by config key (`partition`, `qos`)."""
    kind = settings_class(plan.cluster.scheduler)
    return {key: plan.cluster.settings[key] for key in (kind.POOLS if kind else ()) if plan.cluster.settings[key]}


def merged(cluster: Cluster) -> Cluster:
    """Returns the cluster with the variables and interface of the pools that apply, where the cluster has none."""
    environment, interface = dict(cluster.environment), cluster.interface
    for pool in of(cluster).values():
        environment = {**pool.environment, **environment}
        interface = interface or pool.interface
    return replace(cluster, environment=environment, interface=interface)
