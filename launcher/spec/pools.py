"""Applies the profile's settings for a partition, queue or QOS (`cluster.pools`) to a job that uses it. Pure."""

from __future__ import annotations

from dataclasses import replace

from launcher.config.schema import Cluster, Pool


def of(cluster: Cluster) -> dict[str, Pool]:
    """Returns the pools that apply to a job, by name.

    | the job requests | pools that apply |
    |---|---|
    | one partition, a queue (also `queue@server`), a QOS | the pool of each |
    | several partitions | no pool of a partition: the job may start in any of them |
    """
    partition = cluster.partition if "," not in (cluster.partition or "") else None
    names = (partition, (cluster.queue or "").partition("@")[0], cluster.qos)
    return {name: cluster.pools[name] for name in names if name in cluster.pools}


def merged(cluster: Cluster) -> Cluster:
    """Returns the cluster with variables and interface of the pools that apply. The cluster's own take precedence."""
    environment, interface = dict(cluster.environment), cluster.interface
    for pool in of(cluster).values():
        environment = {**pool.environment, **environment}
        interface = interface or pool.interface
    return replace(cluster, environment=environment, interface=interface)
