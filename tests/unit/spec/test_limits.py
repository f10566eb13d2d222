"""A plan that the site could never run is refused before the scheduler sees it, with the limit and the fix."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.config.schema import (
    P2P,
    Backend,
    Collective,
    DDPMnist,
    FSDPLm,
    GpuDirective,
    LaunchMode,
    Limits,
    Scheduler,
    Workload,
)
from launcher.errors import ConfigError
from launcher.schedulers.pbs.facts import hosts_of, parse_nodes
from launcher.spec.limits import (
    NodeGroup,
    Partition,
    Queue,
    check_limits,
    check_names,
    check_nodes,
    check_partition,
    check_queue,
    check_sweep,
    check_training,
)
from tests.unit.plans import plan_of

GIB = 1024**3
LIMITS = Limits(nodes=4, gpus_per_node=2, cpus_per_node=8, mem_per_node="16G", time="2h")


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"nodes": 4, "gpus_per_node": 2, "cpus_per_proc": 4, "mem": "16G", "time": "2h"},
        {"procs_per_node": 8},
    ],
)
def test_what_the_profile_allows_passes(keys: dict[str, Any]) -> None:
    check_limits(plan_of(**keys), LIMITS)


def test_a_profile_without_limits_allows_everything() -> None:
    check_limits(plan_of(nodes=9999, gpus_per_node=99, mem="9P", time="99d"), Limits())


HERE = "the profile of cluster=here"


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"nodes": 5}, f"nodes=5: {HERE} allows 4 (cluster.limits.nodes): use nodes=4 or less"),
        ({"gpus_per_node": 3}, f"gpus_per_node=3: {HERE} has 2 on a node (cluster.limits.gpus_per_node): "
                               "use gpus_per_node=2 or less"),
        ({"procs_per_node": 3, "cpus_per_proc": 3}, f"procs_per_node=3 x cpus_per_proc=3 is 9 CPUs, and {HERE} has 8 "
                                                    "on a node: lower one of the two"),
        ({"mem": "17G"}, f"mem=17G: {HERE} has 16G on a node: ask for less"),
        ({"time": "121m"}, f"time=02:01:00: {HERE} allows 02:00:00: use time=02:00:00 or less"),
    ],
)  # fmt: skip
def test_more_than_the_profile_allows_is_refused(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        check_limits(plan_of(**keys), LIMITS)
    assert str(refusal.value) == words


@pytest.mark.parametrize("limits", [Limits(time="soon"), Limits(mem_per_node="lots")])
def test_limits_that_cannot_be_read_are_blamed_on_the_profile(limits: Limits) -> None:
    with pytest.raises(ConfigError, match=r"cluster\.limits of the profile of cluster=here: '(soon|lots)' is not"):
        check_limits(plan_of(), limits)


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
    check_partition(plan_of(cluster={"partition": partition}, **keys), SITE)


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
    with pytest.raises(ConfigError) as refusal:
        check_partition(plan_of(cluster={"partition": partition}, **keys), SITE)
    assert str(refusal.value) == words


def test_a_site_without_a_default_partition_needs_a_choice() -> None:
    with pytest.raises(ConfigError, match=r"no default partition: choose one of debug, mixed, small, gone"):
        check_partition(plan_of(), NO_DEFAULT)


def queue(name: str, *, default: bool = False, accepts: bool = True, routes: bool = False, **limits: int) -> Queue:
    none = dict.fromkeys(("time", "nodes", "cpus", "gpus", "mem"))
    return Queue(name, default, accepts, routes, **{**none, **limits})


PBS_SITE = [
    queue("workq", default=True, time=360000, nodes=4, cpus=64, gpus=8, mem=64 * GIB),
    queue("debug", time=600, nodes=1),
    queue("closed", accepts=False),
    queue("route", routes=True),
    queue("cpu", gpus=0, time=360000),
]
NO_DEFAULT_QUEUE = PBS_SITE[1:]


def check_pbs(name: str | None, keys: dict[str, Any], queues: list[Queue]) -> None:
    check_queue(plan_of(cluster={"scheduler": Scheduler.pbs, "queue": name}, **keys), queues)


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
    plan = plan_of(**{**keys, "cluster": {"scheduler": Scheduler.pbs, "gpu_directive": GpuDirective.ngpus,
                                          **keys.get("cluster", {})}})  # fmt: skip
    hosts = hosts_of(parse_nodes(text), plan, "workq")
    if words is None:
        check_nodes(plan, hosts)
        return
    with pytest.raises(ConfigError) as refusal:
        check_nodes(plan, hosts)
    assert str(refusal.value) == words


@pytest.mark.parametrize(
    ("name", "stays"), [(None, "workq"), ("cpu", "cpu"), ("workq@pbs-srv", "workq"), ("route", None)]
)
def test_nodes_are_those_of_the_queue_that_the_job_stays_in(name: str | None, stays: str | None) -> None:
    assert check_queue(plan_of(cluster={"scheduler": Scheduler.pbs, "queue": name}), PBS_SITE) == stays


@pytest.mark.parametrize("queues", [[], NO_DEFAULT_QUEUE])
def test_a_server_without_a_default_queue_has_rules_of_its_own(queues: list[Queue]) -> None:
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


@pytest.mark.parametrize(
    ("workload", "words"),
    [
        (P2P("p", "m:f", seed=0, pattern=["sned"]), r"workload\.pattern: .*sned.*send"),
        (P2P("p", "m:f", seed=0, sizes="lots"), r"workload\.sizes: 'lots' is not a size"),
        (Collective("c", "m:f", seed=0, sizes="1G:1M:2"), r"workload\.sizes: .* over the last: write 1M:1G:2"),
        (Collective("c", "m:f", seed=0, sizes=["1K", "0"]), r"workload\.sizes: '0' is no size at all"),
        (Collective("c", "m:f", seed=0, redop="men"), r"workload\.redop: 'men' is no redop.*Did you mean min"),
        (Collective("c", "m:f", seed=0, place="inn"), r"workload\.place: .*Did you mean in"),
        (Collective("c", "m:f", seed=0, budget="5"), r"workload\.budget: '5' is not a time: write it as 200ms"),
        (Collective("c", "m:f", seed=0, groups=["0-2"]), r"workload\.groups: '0-2': there is no rank 2.*ranks 0 to 1"),
        (P2P("p", "m:f", seed=0, dtype="flaot32"), r"workload\.dtype: .*flaot32.*float32"),
        (Collective("c", "m:f", seed=0, op="all_reduc"), r"workload\.op: .*all_reduc.*all_reduce"),
        (Collective("c", "m:f", seed=0, groups=["nod"]), r"workload\.groups: .*nod.*node"),
    ],
)
def test_names_that_a_workload_does_not_know_are_refused(workload: Workload, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_names(plan_of(workload=workload, nodes=2))


def collective(**keys: Any) -> Collective:
    return Collective(**{"name": "c", "entry": "m:f", "seed": 0, **keys})


@pytest.mark.parametrize(
    ("workload", "keys", "words"),
    [
        (collective(sizes="1M:1G:2"), {"mem": "1G", "procs_per_node": 2},
         "workload.sizes: 1G on each of procs_per_node=2 is more than mem=1G: use smaller sizes or more memory"),
        (P2P("p", "m:f", seed=0, sizes="2G"), {"mem": "1G"}, "workload.sizes: 2G on each of procs_per_node=1 is more"),
        (collective(iterations=0), {}, "workload.iterations=0, workload.warmup=1: at least 1 iteration"),
        (collective(tolerance=20), {}, "tolerance=20: it is the part of a speed that may be lost, more than 0"),
        (collective(root=2), {}, "workload.root=2: the smallest group of world has 2 ranks, so a root is 0 to 1"),
        (collective(root=1, groups=["world", "node"]), {}, "the smallest group of node has 1 rank, so a root is 0"),
        (collective(op="all_reduce", place="out"), {},
         "workload.place=out: torch.distributed has all_reduce only with place=in: use that, or both"),
        (collective(op=["all_gather", "send_recv"], place="in"), {}, "has send_recv only with place=out"),
        (collective(op="reduce", dtype="int8", redop="avg"), {},
         "workload.op=reduce: gloo has no reduce of int8 with redop=avg; nccl has it (workload.backend)"),
        (collective(op="reduce_scatter", backend=Backend.mpi), {"launch": {"mode": LaunchMode.tasks}},
         "mpi has no reduce_scatter of float32 with redop=sum; gloo, nccl have it"),
    ],
)  # fmt: skip
def test_benchmarks_that_could_not_run_are_refused(workload: Workload, keys: dict[str, Any], words: str) -> None:
    plan = plan_of(workload=workload, **{"nodes": 2, **keys})
    check_names(plan)
    with pytest.raises(ConfigError) as refusal:
        check_sweep(plan)
    assert words in str(refusal.value)


@pytest.mark.parametrize(
    ("workload", "keys"),
    [
        (collective(sizes="1G"), {"mem": "1G", "gpus_per_node": 1}),  # a GPU's memory is another one
        (collective(op="all", place="in", redop="avg", dtype="int8"), {}),  # what cannot be run is left out
        (collective(op="reduce", dtype="int8", redop="avg"), {"gpus_per_node": 1}),
        (collective(op="broadcast", dtype="int8", redop="avg"), {}),
        (collective(groups="0-1/2-3", root=1), {"procs_per_node": 2}),
    ],
)
def test_benchmarks_that_can_run_pass(workload: Workload, keys: dict[str, Any]) -> None:
    plan = plan_of(workload=workload, **{"nodes": 2, **keys})
    check_names(plan)
    check_sweep(plan)


@pytest.mark.parametrize("kind", [Workload, P2P, Collective, DDPMnist, FSDPLm])
def test_the_defaults_of_every_workload_pass(kind: type[Workload]) -> None:
    plan = plan_of(workload=kind("w", "m:f", seed=0))
    check_names(plan)
    check_sweep(plan)
    check_training(plan)


def test_a_limit_of_memory_without_a_unit_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"cluster\.limits of .*: '16' has no unit: write 16G, or 16M"):
        check_limits(plan_of(), Limits(mem_per_node="16"))


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"epochs": 0}, "workload.epochs=0: it must be 1 or more"),
        ({"micro_batch_size": 0}, "workload.micro_batch_size=0: it must be 1 or more"),
        ({"log_every": 0}, "workload.log_every=0: it must be 1 or more"),
        ({"threads": 0}, "workload.threads=0: it must be 1 or more"),
        ({"lr": 0.0}, "workload.lr=0: it must be above 0"),
        ({"lr": float("inf")}, "workload.lr=inf: it must be above 0"),
        ({"bucket_mb": 0.0}, "workload.bucket_mb=0: it must be above 0"),
    ],
)
def test_numbers_with_which_no_training_could_start_are_refused(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        check_training(plan_of(workload=DDPMnist("w", "workloads.ddp:main", seed=0, **keys)))
    assert words in str(refusal.value)


@pytest.mark.parametrize("kind", [DDPMnist, FSDPLm])
def test_a_batch_has_a_sample_for_each_rank(kind: type[DDPMnist | FSDPLm]) -> None:
    workload = kind("w", "workloads.training:main", seed=0, batch_size=7)
    check_training(plan_of(workload=workload, nodes=7))
    with pytest.raises(ConfigError, match=r"batch_size=7 leaves some of the 8 ranks without a sample: set it to 8"):
        check_training(plan_of(workload=workload, nodes=2, procs_per_node=4))


def test_a_function_of_the_users_own_may_mean_something_else_by_the_keys_of_a_training() -> None:
    check_training(plan_of(workload=DDPMnist("w", "mine:main", seed=0, lr=0.0, batch_size=1), nodes=2))
