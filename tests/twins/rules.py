"""The rules of real sites, as they publish them: one file rules/NAME.yaml for each, all in one format.

Where the rules come from stands in the site's profile, conf/cluster/NAME.yaml. A twin is a scheduler of the tests that
has been told to keep them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parent / "rules"


@dataclass(frozen=True)
class Pool:
    """A partition or a queue.

    Attributes:
        default: a job that names none is here.
        time: longest wall time.
        times: longest wall time from this many nodes on, where that grows with their number.
        min_time: shortest.
        nodes, min_nodes: of one job.
        gpus, min_gpus: of one job, all nodes together.
        jobs: most of one user, waiting or not.
        routes: the queues that a job is handed on to, the first that takes it; users name none of these.
    """

    default: bool = False
    time: str | None = None
    times: Mapping[int, str] = field(default_factory=dict)
    min_time: str | None = None
    nodes: int | None = None
    min_nodes: int | None = None
    gpus: int | None = None
    min_gpus: int | None = None
    jobs: int | None = None
    routes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Node:
    """What each node has: memory in MiB; `whole` nodes are given to one job, with all that they have."""

    cpus: int
    gpus: int
    mem: int = 64000
    gpu_type: str = ""
    features: str = ""
    whole: bool = False


@dataclass(frozen=True)
class Refusal:
    """What the site refuses.

    Attributes:
        asks: overrides on top of those of `fits`.
        drops: of `fits` that are left out (`cluster.account`).
        beside: overrides of another run, which waits there at that time; empty: there is none.
        ours: a part of what the launcher says before it submits.
        theirs: a part of what sbatch or qsub says when it does not.
    """

    ours: str
    theirs: str
    asks: str = ""
    drops: str = ""
    beside: str = ""


@dataclass(frozen=True)
class Rules:
    """A site's.

    Attributes:
        name: of its profile.
        scheduler: slurm, pbs or sge.
        node: of the nodes.
        pools: partitions or queues.
        qos: Slurm's, with their longest wall time; empty: none.
        accounts: that the user may charge; empty: the site does not ask.
        wants: what a job must ask for: account, project, group, time, gpus, or a resource of the whole job.
        resources: that the site has defined.
        cpus_per_gpu: CPUs that a job must ask for with each GPU, at least.
        totals: resources are asked for all nodes together, without a select statement.
        suffix: what is appended to the nodes' names for their fast network.
        fits: overrides of a p2p on two nodes that runs there.
        refused: what does not.
        untold: what a profile made from the twin lacks, for no scheduler tells it.
        init: options of `site init`, where the site has no default partition or queue.
    """

    name: str
    scheduler: str
    node: Node
    pools: Mapping[str, Pool]
    fits: str
    refused: tuple[Refusal, ...]
    qos: Mapping[str, str | None] = field(default_factory=dict)
    accounts: tuple[str, ...] = ()
    wants: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    cpus_per_gpu: int = 0
    totals: bool = False
    suffix: str = ""
    untold: str = ""
    init: str = ""

    @property
    def told(self) -> str:
        """How many rules of which kind, for a table."""
        counts = [
            (len(self.pools), "pool", "pools"), (len(self.qos), "QOS", "QOS"),
            (len(self.accounts), "account", "accounts"), (len(self.wants), "wanted", "wanted"),
        ]  # fmt: skip
        flags = {
            "whole nodes": self.node.whole, "CPUs per GPU": self.cpus_per_gpu, "totals": self.totals,
            "suffix": self.suffix,
        }  # fmt: skip
        counted = [f"{count} {one if count == 1 else many}" for count, one, many in counts if count]
        return ", ".join([*counted, *(name for name, has in flags.items() if has)])


def sites() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load(name: str) -> Rules:
    """The rules of a site; TypeError: its file has a key that nobody knows."""
    values: dict[str, Any] = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    pools = {key: Pool(**{**(pool or {}), "routes": tuple((pool or {}).get("routes", ()))})
             for key, pool in values.pop("pools").items()}  # fmt: skip
    lists = {key: tuple(values.pop(key)) for key in ("accounts", "wants", "resources") if key in values}
    refused = tuple(Refusal(**each) for each in values.pop("refused"))
    return Rules(name=name, node=Node(**values.pop("node")), pools=pools, refused=refused, **lists, **values)
