"""A plan that no partition could ever run is refused before Slurm sees it, with the limit and the fix."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.plan.limits import NodeGroup
from launcher.schedulers.slurm.limits import Partition, refusal
from tests.unit.plans import plan_of

GIB = 1024**3


def part(
    name: str, *groups: NodeGroup, default: bool = False, time: int | None = 7200, most: int | None = None
) -> Partition:
    return Partition(name, default, time, most, groups)


FEW = NodeGroup(nodes=2, cpus=4, mem=8 * GIB, gpus=0)
BIG = NodeGroup(nodes=1, cpus=64, mem=512 * GIB, gpus=8)
SITE = [
    part("gpu", NodeGroup(4, 4, 6 * GIB, 2), default=True),
    part("debug", FEW, time=600),
    part("mixed", FEW, BIG, time=None),
    part("small", NodeGroup(100, 2, GIB, 0), most=3, time=None),
    part("gone", time=None),
]
NO_DEFAULT = SITE[1:]


@pytest.mark.parametrize(
    ("partition", "keys"),
    [
        (None, {"nodes": 4, "gpus_per_node": 2, "mem": "6G", "time": "2h", "cpus_per_proc": 2}),
        ("debug", {"nodes": 2, "time": "10m"}),
        ("mixed", {"nodes": 3, "time": "90d"}),
        ("mixed", {"nodes": 1, "gpus_per_node": 8, "mem": "512G"}),
        ("small", {"nodes": 3}),
        ("debug,gpu", {"nodes": 4}),
        ("small,mixed,debug", {"gpus_per_node": 8}),
    ],
)
def test_what_a_partition_can_run_passes(partition: str | None, keys: dict[str, Any]) -> None:
    assert refusal(plan_of(cluster={"partition": partition}, **keys), SITE) is None


@pytest.mark.parametrize(
    ("partition", "keys", "words"),
    [
        ("gpu", {"nodes": 5}, "nodes=5: partition gpu gives a job at most 4 nodes: use nodes=4 or less"),
        (None, {"nodes": 5}, "nodes=5: partition gpu gives a job at most 4 nodes: use nodes=4 or less"),
        ("small", {"nodes": 4}, "nodes=4: partition small gives a job at most 3 nodes: use nodes=3 or less; "
                                "or cluster.partition=gpu, which takes it as it is"),
        ("debug", {"time": "11m"}, "time=00:11:00: partition debug ends jobs after 00:10:00: use time=00:10:00 or "
                                   "less; or cluster.partition=gpu, which takes it as it is"),
        ("debug", {"gpus_per_node": 1, "time": "5m"},
         "gpus_per_node=1: the nodes of partition debug have at most 0: use gpus_per_node=0 or less; "
         "or cluster.partition=gpu, which takes it as it is"),
        ("gpu", {"procs_per_node": 5},
         "procs_per_node=5 x cpus_per_proc=1 = 5 CPUs: the nodes of partition gpu have at most 4: "
         "use fewer of either, 4 CPUs in all; or cluster.partition=mixed, which takes it as it is"),
        ("gpu", {"mem": "7G"}, "mem=7G: the nodes of partition gpu have at most 6G: use mem=6G or less; "
                               "or cluster.partition=mixed, which takes it as it is"),
        ("mixed", {"nodes": 2, "gpus_per_node": 8},
         "gpus_per_node=8: partition mixed has only 1 node with that much, and nodes=2: use nodes=1"),
        ("mixed", {"nodes": 2, "mem": "9G"}, "mem=9G: partition mixed has only 1 node with that much, and nodes=2: "
                                             "use nodes=1"),
        ("small,debug", {"nodes": 4, "time": "5m"}, "nodes=4: partition small gives a job at most 3 nodes: "
                                                    "use nodes=3 or less; or cluster.partition=gpu, which takes it as "
                                                    "it is"),
        ("gone", {}, "cluster.partition=gone: partition gone gives nobody any nodes: choose another; "
                     "or cluster.partition=gpu, which takes it as it is"),
        ("gpux", {}, "cluster.partition=gpux: there is no such partition. Did you mean gpu? "
                     "Known: gpu, debug, mixed, small, gone"),
        ("gpu,debgu", {}, "cluster.partition=debgu: there is no such partition. Did you mean debug? "
                          "Known: gpu, debug, mixed, small, gone"),
        ("gpu, debug", {}, "cluster.partition= debug: there is no such partition. Did you mean debug? "  # sbatch's too
                           "Known: gpu, debug, mixed, small, gone"),
    ],
)  # fmt: skip
def test_what_no_partition_of_them_could_ever_run_is_refused(
    partition: str | None, keys: dict[str, Any], words: str
) -> None:
    assert refusal(plan_of(cluster={"partition": partition}, **keys), SITE) == words


def test_a_site_without_a_default_partition_needs_a_choice() -> None:
    why = refusal(plan_of(), NO_DEFAULT)
    assert why and why.endswith("no default partition: choose one of debug, mixed, small, gone")
