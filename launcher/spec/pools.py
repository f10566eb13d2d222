"""What a profile says for the partition, queue or QOS that a job asks for (`cluster.pools`). Pure."""

from __future__ import annotations

from dataclasses import replace

from launcher.config.schema import Cluster, Pool


def of(cluster: Cluster) -> dict[str, Pool]:
    """The pools that count for a job, by name.

    | the job asks for | counts |
    |---|---|
    | one partition, a queue (`queue@server` too), a QOS | the pool of each |
    | several partitions | none of them: the job may start in any |
    """
    partition = cluster.partition if "," not in (cluster.partition or "") else None
    names = (partition, (cluster.queue or "").partition("@")[0], cluster.qos)
    return {name: cluster.pools[name] for name in names if name in cluster.pools}


def into(cluster: Cluster) -> Cluster:
    """The cluster with the variables and the interface of its pools; its own count more."""
    environment, interface = dict(cluster.environment), cluster.interface
    for pool in of(cluster).values():
        environment = {**pool.environment, **environment}
        interface = interface or pool.interface
    return replace(cluster, environment=environment, interface=interface)
