"""A plan that no queue or node could ever take is refused before PBS sees it, with the limit and the fix."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.errors import ConfigError
from launcher.schedulers.pbs.client import PBS, PBSQueue, parse_nodes
from launcher.schedulers.pbs.limits import check_queue, compare, never, node_groups
from launcher.schedulers.pbs.settings import GpuDirective
from tests.unit.plans import plan_of

GIB = 1024**3


def queue(name: str, *, default: bool = False, accepts: bool = True, routes: bool = False, **limits: Any) -> PBSQueue:
    none = dict.fromkeys(("time", "nodes", "cpus", "gpus", "mem"))
    return PBSQueue(name, default, accepts, routes, **{**none, **limits})


PBS_SITE = [
    queue("workq", default=True, time=360000, nodes=4, cpus=64, gpus=8, mem=64 * GIB),
    queue("debug", time=600, nodes=1),
    queue("closed", accepts=False),
    queue("route", routes=True),
    queue("cpu", gpus=0, time=360000),
]
NO_DEFAULT_QUEUE = PBS_SITE[1:]


def check_pbs(name: str | None, keys: dict[str, Any], queues: list[PBSQueue]) -> None:
    check_queue(plan_of(cluster={"scheduler": "pbs", "queue": name}, **keys), queues)


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        (None, {}),
        (None, {"nodes": 4, "gpus_per_node": 2, "cpus_per_proc": 8, "mem": "16G", "time": "100h"}),
        ("workq@pbs-srv", {"nodes": 4}),
        ("debug", {"time": "10m", "procs_per_node": 999, "mem": "9T"}),
        ("route", {"nodes": 999, "time": "99d", "gpus_per_node": 9}),  # the limits of where it leads to count
        ("cpu", {"nodes": 999}),
    ],
)
def test_what_a_queue_takes_passes(name: str | None, keys: dict[str, Any]) -> None:
    check_pbs(name, keys, PBS_SITE)


def test_a_queue_of_another_server_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PBS, "queues", lambda _: PBS_SITE)
    (note,) = compare(plan_of(cluster={"scheduler": "pbs", "queue": "gpu@other"}), {})
    assert "cluster.queue=gpu@other is one of another server" in note


# Of one host with two vnodes, and of one that is down and has not told of anything yet.
TWO_VNODES = """\
n1
     Mom = n1
     state = free
     resources_available.host = n1
     resources_available.mem = 8388608kb
     resources_available.ncpus = 8
     resources_available.ngpus = 2
n1[0]
     state = free
     resources_available.host = n1
     resources_available.mem = 8388608kb
     resources_available.ncpus = 8
     resources_available.ngpus = 2
"""
PLAIN = """\
{name}
     Mom = {name}
     state = {state}
     resources_available.host = {name}
     resources_available.mem = 67108864kb
     resources_available.ncpus = 16
     resources_available.ngpus = 2
     resources_assigned.ncpus = 16
"""
DOWN = "n9\n     Mom = n9\n     state = state-unknown,down\n     resources_available.host = n9\n"
BUSY = PLAIN.format(name="n1", state="job-busy") + PLAIN.format(name="n2", state="offline")


@pytest.mark.parametrize(
    ("text", "keys", "words"),
    [
        (BUSY, {"nodes": 2, "gpus_per_node": 2, "procs_per_node": 2, "cpus_per_proc": 8, "mem": "64G"}, None),
        ("", {"nodes": 99, "gpus_per_node": 99}, None),  # it tells of none
        (BUSY, {"nodes": 3}, "nodes=3: this PBS has 2 nodes in all: use nodes=2 or less"),
        (BUSY, {"nodes": 3, "cluster": {"place": "free"}}, None),
        (BUSY, {"gpus_per_node": 3}, "gpus_per_node=3: the nodes of this PBS have at most 2: use gpus_per_node=2 or "
                                     "less"),
        (BUSY, {"cpus_per_proc": 20}, "procs_per_node=1 x cpus_per_proc=20 = 20 CPUs: the nodes of this PBS have at "
                                      "most 16: use fewer of either, 16 CPUs in all"),
        (BUSY, {"mem": "900G"}, "mem=900G: the nodes of this PBS have at most 64G: use mem=64G or less"),
        (BUSY, {"mem": "900G", "cluster": {"chunk": {"mem": "1gb"}}}, None),
        (BUSY, {"gpus_per_node": 3, "cluster": {"gpu_directive": GpuDirective.none}}, None),
        (BUSY.replace("     resources_available.ngpus = 2\n", ""), {"gpus_per_node": 1},
         "gpus_per_node=1: the nodes of this PBS have at most 0: use gpus_per_node=0 or less; where GPUs are not "
         "counted as ngpus, cluster.gpu_directive=none"),
        (BUSY + DOWN, {"nodes": 3}, None),
        (BUSY + DOWN, {"gpus_per_node": 3}, None),
        (TWO_VNODES, {"gpus_per_node": 4, "cpus_per_proc": 4, "mem": "16G"}, None),
        (TWO_VNODES, {"gpus_per_node": 5}, "gpus_per_node=5: the nodes of this PBS have at most 4: use "
                                           "gpus_per_node=4 or less"),
        (TWO_VNODES.replace("ngpus = 2", "ngpus = @n1"), {"gpus_per_node": 5}, None),
        (BUSY.replace("state = offline", "state = free\n     queue = gpu"), {"nodes": 2},
         "nodes=2: this PBS has 1 node in all: use nodes=1 or less"),
        (BUSY.replace("state = offline", "state = free\n     queue = gpu"),
         {"nodes": 2, "cluster": {"queue": "workq"}}, "nodes=2: queue workq has 1 node in all: use nodes=1 or less"),
    ],
)  # fmt: skip
def test_what_no_node_of_a_pbs_could_ever_hold_is_refused(text: str, keys: dict[str, Any], words: str | None) -> None:
    plan = plan_of(**{**keys, "cluster": {"scheduler": "pbs", "gpu_directive": GpuDirective.ngpus,
                                          **keys.get("cluster", {})}})  # fmt: skip
    hosts = node_groups(parse_nodes(text), plan, "workq")
    assert never(plan, hosts) == words


@pytest.mark.parametrize(
    ("name", "stays"), [(None, "workq"), ("cpu", "cpu"), ("workq@pbs-srv", "workq"), ("route", None)]
)
def test_nodes_are_those_of_the_queue_that_the_job_stays_in(name: str | None, stays: str | None) -> None:
    assert check_queue(plan_of(cluster={"scheduler": "pbs", "queue": name}), PBS_SITE) == stays


@pytest.mark.parametrize("queues", [[], NO_DEFAULT_QUEUE])
def test_a_server_without_a_default_queue_has_rules_of_its_own(queues: list[PBSQueue]) -> None:
    check_pbs(None, {"nodes": 999, "time": "99d"}, queues)


@pytest.mark.parametrize(
    ("name", "keys", "words"),
    [
        (None, {"nodes": 5}, "nodes=5: queue workq gives a job at most 4 nodes: ask for less; "
                             "or cluster.queue=cpu, which takes it as it is"),
        ("workq@pbs-srv", {"nodes": 5}, "nodes=5: queue workq gives a job at most 4 nodes: ask for less; "
                                        "or cluster.queue=cpu, which takes it as it is"),
        ("debug", {"time": "11m"}, "time=00:11:00: queue debug ends jobs after 00:10:00: use time=00:10:00 or less; "
                                   "or cluster.queue=workq, which takes it as it is"),
        (None, {"time": "101h"}, "time=101:00:00: queue workq ends jobs after 100:00:00: use time=100:00:00 or less"),
        (None, {"nodes": 3, "gpus_per_node": 3},
         "3 GPUs on nodes=3: queue workq gives a job at most 8 GPUs: ask for less"),
        ("cpu", {"gpus_per_node": 1}, "1 GPU on nodes=1: queue cpu gives a job at most 0 GPUs: ask for less; "
                                      "or cluster.queue=workq, which takes it as it is"),
        ("debug", {"nodes": 2, "time": "5m"}, "nodes=2: queue debug gives a job at most 1 node: ask for less; "
                                              "or cluster.queue=workq, which takes it as it is"),
        (None, {"nodes": 3, "procs_per_node": 2, "cpus_per_proc": 11},
         "22 CPUs on nodes=3: queue workq gives a job at most 64 CPUs: ask for less; "
         "or cluster.queue=cpu, which takes it as it is"),
        (None, {"nodes": 3, "mem": "22G", "time": "1h"},
         "mem=22G on nodes=3: queue workq gives a job at most 64G: ask for less; "
         "or cluster.queue=cpu, which takes it as it is"),
        ("closed", {"nodes": 999, "gpus_per_node": 1},
         "cluster.queue=closed: queue closed takes no jobs now: choose another"),
        ("closed", {}, "cluster.queue=closed: queue closed takes no jobs now: choose another; "
                       "or cluster.queue=workq, which takes it as it is"),
        ("dbug", {}, "cluster.queue=dbug: there is no such queue. Did you mean debug? "
                     "Known: workq, debug, closed, route, cpu"),
        ("workq,debug", {}, "cluster.queue=workq,debug: there is no such queue. Did you mean workq or debug? "
                            "Known: workq, debug, closed, route, cpu"),
        ("zzz@srv", {}, "cluster.queue=zzz@srv: there is no such queue. Known: workq, debug, closed, route, cpu"),
    ],
)  # fmt: skip
def test_what_a_queue_would_not_take_is_refused(name: str | None, keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        check_pbs(name, keys, PBS_SITE)
    assert str(refusal.value) == words


# As of a system that hands jobs on by their size.
BY_SIZE = [
    queue("prod", routes=True, destinations=("small", "large", "long")),
    queue("small", time=10800, least_nodes=10, nodes=24, least_time=300, inner=True),
    queue("large", time=86400, least_nodes=25, inner=True),
    queue("long", time=864000, least_gpus=1, gpus=4, inner=True),
    queue("far", routes=True, destinations=("small", "elsewhere@other")),
    queue("paused", routes=True, destinations=("stopped",)),
    queue("stopped", accepts=False, nodes=1),
]


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("prod", {"nodes": 10, "time": "3h"}),
        ("prod", {"nodes": 25, "time": "24h"}),
        ("prod", {"nodes": 1, "gpus_per_node": 4, "time": "99h"}),
        ("far", {"nodes": 1}),  # what another server has is not known
        ("paused", {"nodes": 9}),
    ],
)
def test_what_one_of_the_queues_behind_a_queue_takes_passes(name: str, keys: dict[str, Any]) -> None:
    check_pbs(name, keys, BY_SIZE)


@pytest.mark.parametrize(
    ("name", "keys", "words"),
    [
        ("prod", {"nodes": 2}, "nodes=2: queue prod (its small) wants 10 nodes at least: ask for more"),
        (
            "prod", {"nodes": 12, "time": "4h"},
            "time=04:00:00: queue prod (its small) ends jobs after 03:00:00: use time=03:00:00 or less",
        ),
        (
            "prod", {"nodes": 10, "time": "4m"},
            "time=00:04:00: queue prod (its small) wants 00:05:00 at least: use time=00:05:00",
        ),
        (
            "prod", {"nodes": 1, "gpus_per_node": 5, "time": "99h"},
            "5 GPUs on nodes=1: queue prod (its long) gives a job at most 4 GPUs: ask for less",
        ),
        ("small", {"nodes": 10}, "cluster.queue=small: users cannot submit to it: use cluster.queue=prod"),
    ],
)  # fmt: skip
def test_what_none_of_the_queues_behind_a_queue_takes_is_refused(name: str, keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        check_pbs(name, keys, BY_SIZE)
    assert str(refusal.value) == words
