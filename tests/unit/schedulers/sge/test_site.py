"""What a real Son of Grid Engine 8.1.9 tells of its site: parsers, checks, and a profile."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from launcher.config.schema import Cluster
from launcher.errors import ConfigError
from launcher.schedulers.sge import client, limits, script
from launcher.schedulers.sge.client import (
    ClusterQueue,
    Complex,
    ParallelEnvironment,
    QueueInstance,
    attributes,
    environment_of,
    hosts_of,
    parse_complexes,
    parse_hosts,
    parse_instances,
    queue_of,
    records,
)
from launcher.schedulers.sge.limits import SGESite, compared, environment, resources
from tests.unit.plans import make_cluster, sge_plan

RECORDED = Path(__file__).parent / "recorded"
NODES = ParallelEnvironment("nodes", 999, "1", starts_tasks=True)
FOUR = ParallelEnvironment("four", 999, "4", starts_tasks=True)
SMP = ParallelEnvironment("smp", 999, "$pe_slots", starts_tasks=True)
FILL = ParallelEnvironment("fill", 999, "$fill_up", starts_tasks=True)
LOOSE = ParallelEnvironment("loose", 999, "1", starts_tasks=False)


def recorded(name: str) -> str:
    return (RECORDED / name).read_text()


def test_what_qconf_tells() -> None:
    assert environment_of(attributes(recorded("qconf-sp.txt"))) == NODES
    queue = queue_of(attributes(recorded("qconf-sq.txt")))
    assert queue == ClusterQueue("all.q", None, ("nodes", "smp", "fill"))
    values = {"qname": "q", "h_rt": "24:00:00", "pe_list": "mpi,smp", "user_lists": "staff"}
    assert queue_of(values) == ClusterQueue("q", 24 * 3600, ("mpi", "smp"), restricted=True)
    assert queue_of({**values, "s_rt": "12:00:00"}).time == 12 * 3600, "which ends parallel jobs"
    complexes = {each.name: each for each in parse_complexes(recorded("qconf-sc.txt"))}
    assert complexes["gpu"] == Complex("gpu", "gpu", "INT", requestable=True, consumed="YES")
    assert limits.gpu_resources(list(complexes.values())) == ["gpu"]


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("86400", 86400), ("30:00", 1800), ("100:00:00", 360_000), (":10:", 600), ("0:0:0", 0), ("infinity", None)],
)
def test_a_time_is_in_seconds_unless_it_has_colons(written: str, seconds: int | None) -> None:
    assert queue_of({"qname": "q", "h_rt": written}).time == seconds


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"h_rt": "01:00:00,[@gpu=INFINITY]"}, None),
        ({"h_rt": "INFINITY,[@short=01:00:00]"}, None),
        ({"h_rt": "01:00:00,[@gpu=02:00:00],[node2=00:30:00]"}, 7200),
        ({"h_rt": "01:00:00,[@gpu=INFINITY]", "s_rt": "INFINITY,[@gpu=02:00:00],[node2=00:30:00]"}, None),
        ({"h_rt": "01:00:00,[@gpu=INFINITY]", "s_rt": "00:50:00"}, 3000),
    ],
)
def test_the_longest_time_of_a_queue_is_that_of_one_of_its_hosts(values: dict[str, str], expected: int | None) -> None:
    """`qconf -sq` of Son of Grid Engine 8.1.9, after `qconf -mattr queue h_rt 01:00:00,[@gpu=INFINITY] all.q`."""
    assert queue_of({"qname": "q", **values}).time == expected


def test_the_environments_and_users_of_a_queue_are_those_of_its_hosts() -> None:
    values = {"qname": "q", "pe_list": "make smp,[@gpu=mpi smp],[node1=NONE]"}
    assert queue_of(values).environments == ("make", "smp", "mpi")
    assert not queue_of({**values, "user_lists": "NONE,[@gpu=staff]"}).restricted
    assert not queue_of({**values, "user_lists": "staff,[@gpu=NONE]"}).restricted
    assert queue_of({**values, "user_lists": "staff,[@gpu=others]"}).restricted


@pytest.mark.parametrize(
    ("row", "per_node", "nodes", "asked", "refusal"),
    [
        ("gpu gpu INT <= YES YES 0 0", [], 1, "gpu=1", None),
        ("gpu gpu INT <= YES HOST 0 0", ["gpu"], 2, "gpu=4", None),
        ("gpu gpu INT <= YES JOB 0 0", ["gpu"], 1, "gpu=4", None),
        ("gpu gpu INT <= YES JOB 0 0", ["gpu"], 2, "gpu=4", "only the first node of a job gives it"),
        ("gpu gpu INT <= YES HOST 0 0", [], 1, "gpu=1", "once for a node (qconf -sc: consumable HOST): use "
                                                        "cluster.per_node=[gpu]"),
        ("gpu gpu INT <= YES JOB 0 0", ["mem_free"], 1, "gpu=1", "use cluster.per_node=[mem_free,gpu]"),
        ("gpu gpu INT <= YES YES 0 0", ["gpu"], 1, "gpu=4", "for each slot (qconf -sc: consumable YES): use "
                                                            "cluster.per_node=[]"),
        ("mem_free mf MEMORY <= YES NO 0 0", ["mem_free"], 1, "mem_free=4194304K", None),
        ("mem_free mf MEMORY <= YES NO 0 0", [], 1, "mem_free=1048576K", "use cluster.per_node=[mem_free]"),
        ("h_vmem h_vmem MEMORY <= YES NO 0 0", [], 1, "h_vmem=1048576K", None),
        ("h_vmem h_vmem MEMORY <= YES JOB 0 0", ["h_vmem"], 1, "h_vmem=4194304K", None),
    ],
)  # fmt: skip
def test_an_amount_is_divided_by_slots_where_it_counts_for_each(
    row: str, per_node: list[str], nodes: int, asked: str, refusal: str | None
) -> None:
    """Rows of `qconf -sc`. Seen: 4 slots with jgpu=4 (JOB) take 4; h_vmem=400M (NO) of 4 slots limits to 1600M."""
    (resource,) = parse_complexes(row)
    key = "gpu_resource" if resource.type == "INT" else "mem_resource"
    amount = {"gpus_per_node": 4} if resource.type == "INT" else {"mem": 4 << 30}
    settings = {"parallel_environment": "four", "slots": 4, key: resource.name, "per_node": per_node}
    plan = sge_plan(nodes=nodes, cluster=settings, **amount)
    assert f"-l {asked}" in script.lines(plan, "token")
    complexes = [resource, Complex("h_rt", "h_rt", "TIME", requestable=True, consumed="NO")]
    if refusal is None:
        limits.check_resources(plan, complexes)
    else:
        with pytest.raises(ConfigError) as caught:
            limits.check_resources(plan, complexes)
        assert refusal in str(caught.value)


def test_a_resource_that_counts_for_a_node_is_so_in_a_profile() -> None:
    host = dataclasses.replace(site(), complexes=(Complex("gpu", "gpu", "INT", requestable=True, consumed="HOST"),))
    assert "per_node: [gpu]  # its amount counts once for a node, not for each slot" in [
        *host.profile("here", None, "2026-11-24")
    ]


def test_what_qhost_and_qstat_tell() -> None:
    hosts = parse_hosts(recorded("qhost.xml"))
    assert [(host.name, host.cpus, host.consumables) for host in hosts] == [
        ("node1", 2, {"gpu": 2.0}), ("node2", 2, {"gpu": 2.0}),
    ]  # fmt: skip
    assert all(host.mem and host.mem > 1 << 30 for host in hosts)
    instances = parse_instances(recorded("qstat-f.xml"))
    assert instances == [QueueInstance("all.q", "node1", 0, 8, "d"), QueueInstance("all.q", "node2", 0, 8, "")]
    assert [each.broken for each in instances] == [True, False]


def test_hosts_of_a_job() -> None:
    text = "node2 1 all.q@node2 UNDEFINED\nnode1 1 all.q@node1 UNDEFINED\nnode2 1 other.q@node2 UNDEFINED\n"
    assert hosts_of(text) == ["node2", "node1"]


@pytest.mark.parametrize(
    ("pe", "nodes", "slots", "told"),
    [
        (NODES, 2, None, None), (NODES, 1, None, None), (FOUR, 2, 4, None), (SMP, 1, 8, None), (FILL, 1, None, None),
        (NODES, 2, 4, "use cluster.slots=1"), (FOUR, 2, None, "use cluster.slots=4"),
        (SMP, 2, None, "use cluster.parallel_environment=nodes"), (FILL, 2, None, "does not give each of 2 nodes"),
        (FILL, 1, 2, "may spread 2 slots"), (LOOSE, 2, None, "control_slaves FALSE"), (LOOSE, 1, None, None),
        (dataclasses.replace(NODES, slots=1), 2, None, "it has 1 slot in all"),
    ],
)  # fmt: skip
def test_a_parallel_environment_gives_each_node_its_slots(
    pe: ParallelEnvironment, nodes: int, slots: int | None, told: str | None
) -> None:
    plan = sge_plan(nodes=nodes, min_nodes=nodes, cluster={"parallel_environment": pe.name, "slots": slots})
    if told is None:
        limits.check_environment(plan, pe, [NODES, SMP])
        return
    with pytest.raises(ConfigError) as caught:
        limits.check_environment(plan, pe, [NODES, SMP])
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("pattern", "told"),
    [
        ("no*", None), ("*", "its allocation_rule is"), ("x*", "there is no such parallel environment"),
        ("smq", "parallel environment. Known: nodes, smp; use cluster.parallel_environment=nodes"),  # not smp: one node
    ],
)  # fmt: skip
def test_a_pattern_stands_for_parallel_environments_that_all_fit(
    monkeypatch: pytest.MonkeyPatch, pattern: str, told: str | None
) -> None:
    answers = {"environments": [NODES, SMP], "queues": [ClusterQueue("q", None, ("nodes",))], "instances": []}
    for name, answer in {**answers, "complexes": parse_complexes(recorded("qconf-sc.txt"))}.items():
        monkeypatch.setattr(client.SGE, name, lambda _, answer=answer: answer)
    monkeypatch.setattr(client.SGE, "environment", lambda *_: None)
    plan = sge_plan(nodes=2, min_nodes=2, cluster={"parallel_environment": pattern})
    if told is None:
        limits.compare(plan, {})
        return
    with pytest.raises(ConfigError) as caught:
        limits.compare(plan, {})
    assert told in str(caught.value)


def test_more_nodes_than_the_queues_have_hosts_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = [QueueInstance(queue, host, 0, 4) for queue, host in (("q", "a"), ("q", "b"), ("other", "c"))]
    answers = {"queues": [ClusterQueue("q", None, ("nodes",)), ClusterQueue("other", None, ())], "instances": hosts}
    for name, answer in {**answers, "complexes": parse_complexes(recorded("qconf-sc.txt"))}.items():
        monkeypatch.setattr(client.SGE, name, lambda _, answer=answer: answer)
    monkeypatch.setattr(client.SGE, "environment", lambda *_: NODES)
    limits.compare(sge_plan(nodes=2, cluster={"parallel_environment": "nodes"}), {})
    with pytest.raises(ConfigError, match="nodes=3: queue q has 2 hosts: use nodes=2 or less"):
        limits.compare(sge_plan(nodes=3, cluster={"parallel_environment": "nodes"}), {})


def test_without_a_usable_one_it_says_what_to_ask_the_administrator_for() -> None:
    plan = sge_plan(nodes=2, cluster={"parallel_environment": "fill"})
    with pytest.raises(ConfigError, match=r"ask the administrator .* `allocation_rule 1` and `control_slaves TRUE`"):
        limits.check_environment(plan, FILL, [FILL, SMP])
    assert "ask the administrator" in limits.instead(())


def test_queues_and_resources_are_compared() -> None:
    queues = [ClusterQueue("short", 3600, ("smp",)), ClusterQueue("long", None, ("nodes",))]
    assert limits.check_queue(sge_plan(time=7200), queues) == [queues[1]]
    for changes, told in (
        ({"cluster": {"queue": "shirt"}}, "Did you mean short?"),
        ({"cluster": {"queue": "short"}, "time": 7200}, "use time=01:00:00 or less"),
        ({"cluster": {"queue": "short", "parallel_environment": "nodes"}}, "It has: smp"),
    ):
        with pytest.raises(ConfigError) as caught:
            limits.check_queue(sge_plan(**changes), queues)
        assert told in str(caught.value)
    complexes = parse_complexes(recorded("qconf-sc.txt"))
    limits.check_resources(sge_plan(cluster={"resources": {"s_core": 1, "gpu": 1}}), complexes)
    with pytest.raises(ConfigError, match="gpus: the site has no such resource"):
        limits.check_resources(sge_plan(cluster={"resources": {"gpus": 1}}), complexes)


@pytest.mark.parametrize(
    ("queue", "time", "usable"),
    [
        ("short,lo*", 7200, ["long"]), ("short@node1,long@@big", 7200, ["long"]), ("s*", 60, ["short"]),
        ("[ls]o*", 7200, ["long"]), ("!long", 7200, ["short", "long"]), ("x*", 7200, ["short", "long"]),
    ],
)  # fmt: skip
def test_a_pattern_stands_for_the_queues_that_it_matches(queue: str, time: int, usable: list[str]) -> None:
    queues = [ClusterQueue("short", 3600, ()), ClusterQueue("long", None, ())]
    found = limits.check_queue(sge_plan(cluster={"queue": queue}, time=time), queues)
    assert [each.name for each in found] == usable
    with pytest.raises(ConfigError, match="ends jobs after 01:00:00"):
        limits.check_queue(sge_plan(cluster={"queue": "sh*"}, time=7200), queues)


def test_all_times_that_a_job_ran() -> None:
    past = {job: client.of_records(times) for job, times in records(recorded("qacct.txt")).items()}
    assert [each.raw_state for each in past["21"]] == ["REQUEUED", "FAILED"]
    assert [each.raw_state for each in past["22"]] == ["TIMEOUT"]
    assert past["6_0"][0].begin == "2026-11-22T18:04:33"
    assert past["6_0"][0].used == int(4.137 * 1024**2)


def site(*used: int) -> SGESite:
    """Args: used: slots on each of the two hosts."""
    return SGESite(
        "default", "Grid Engine 8.1.9", (), (queue_of(attributes(recorded("qconf-sq.txt"))),), (NODES, SMP, FILL),
        tuple(parse_complexes(recorded("qconf-sc.txt"))), tuple(parse_hosts(recorded("qhost.xml"))),
        tuple(QueueInstance("all.q", f"node{n}", slots, 8) for n, slots in enumerate(used or (0, 0), start=1)),
    )  # fmt: skip


def test_a_profile_says_where_each_value_came_from() -> None:
    lines = list(site().profile("here", None, "2026-11-22"))
    for line in (
        "queue: all.q  # qconf -sq: the only one for anybody",
        "parallel_environment: nodes  # qconf -sp: allocation_rule 1",
        "slots: 1  # on each node",
        "# for one node: cluster.parallel_environment=smp cluster.slots=N  # $pe_slots",
        "gpu_resource: gpu  # qconf -sc: INT, consumable YES",
        "  nodes: 2  # qstat -f: hosts of the queue",
        "  gpus_per_node: 2  # qhost -F: gpu of a host without jobs",
        "  cpus_per_node: 2  # qhost: NCPU",
    ):
        assert line in lines
    with pytest.raises(ConfigError, match=r"Did you mean all\.q\?"):
        list(site().profile("here", "al.q", "2026-11-22"))


@pytest.mark.parametrize(("used", "known"), [((0, 1), True), ((1, 8), False)])
def test_what_jobs_have_taken_is_no_limit_of_the_site(used: tuple[int, int], known: bool) -> None:
    """qhost shows what is left of a resource."""
    lines = list(site(*used).profile("here", None, "2026-11-22"))
    assert any(line.startswith("  gpus_per_node:") for line in lines) is known


def cluster(**values: object) -> Cluster:
    return make_cluster("sge", **{"gpu_resource": "gpu", "parallel_environment": "nodes", **values})


def told(values: Cluster) -> str:
    here = site()
    findings = [
        *compared(values, here.queues), *environment(values, here.environments), *resources(values, here.complexes)
    ]  # fmt: skip
    return "\n".join(f"{each.says} {each.do}" for each in findings)


def test_a_profile_is_compared_with_the_site() -> None:
    assert "runs on any number of nodes" in told(cluster())
    assert "Did you mean nodes?" in told(cluster(parallel_environment="node"))
    assert "set cluster.slots=1" in told(cluster(slots=4))
    assert "allocation_rule $fill_up" in told(cluster(parallel_environment="fill"))
    assert "runs on one node" in told(cluster(parallel_environment="smp", slots=4))
    assert "runs have one slot on one node" in told(cluster(parallel_environment=None))
    assert "there is no such queue" in told(cluster(queue="gpu.q"))
    assert "set cluster.gpu_resource=gpu" in told(cluster(gpu_resource=None))
    assert "the site has no resource gpus" in told(cluster(gpu_resource="gpus"))
