"""What a real Son of Grid Engine 8.1.9 tells of its site: parsers, checks, and a profile."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from launcher.config.schema import Cluster
from launcher.errors import ConfigError
from launcher.findings import Finding
from launcher.schedulers.sge import doctor, history, limits
from launcher.schedulers.sge.commands import records
from launcher.schedulers.sge.hosts import hosts_of
from launcher.schedulers.sge.resource_queries import (
    ClusterQueue,
    Complex,
    ParallelEnvironment,
    QueueInstance,
    attributes,
    environment_of,
    parse_complexes,
    parse_hosts,
    parse_instances,
    queue_of,
)
from launcher.schedulers.sge.site import SGESite
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
    values = {"qname": "q", "h_rt": "24:00:00,[node1=INFINITY]", "pe_list": "mpi,smp", "user_lists": "staff"}
    assert queue_of(values) == ClusterQueue("q", 24 * 3600, ("mpi", "smp"), restricted=True)
    assert queue_of({**values, "s_rt": "12:00:00"}).time == 12 * 3600, "which ends parallel jobs"
    complexes = {each.name: each for each in parse_complexes(recorded("qconf-sc.txt"))}
    assert complexes["gpu"] == Complex("gpu", "gpu", "INT", requestable=True, consumed="YES")
    assert doctor.gpus(list(complexes.values())) == ["gpu"]


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("86400", 86400), ("30:00", 1800), ("100:00:00", 360_000), (":10:", 600), ("0:0:0", 0), ("infinity", None)],
)
def test_a_time_is_in_seconds_unless_it_has_colons(written: str, seconds: int | None) -> None:
    assert queue_of({"qname": "q", "h_rt": written}).time == seconds


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
        (dataclasses.replace(NODES, slots=1), 2, None, "it has 1 slots in all"),
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


def test_without_a_usable_one_it_says_what_to_ask_the_administrator_for() -> None:
    plan = sge_plan(nodes=2, cluster={"parallel_environment": "fill"})
    with pytest.raises(ConfigError, match=r"ask the administrator .* `allocation_rule 1` and `control_slaves TRUE`"):
        limits.check_environment(plan, FILL, [FILL, SMP])
    assert "ask the administrator" in doctor.instead(())


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
    limits.check_resources(sge_plan(), ["h_rt", "s_rt", "gpu"], complexes)
    with pytest.raises(ConfigError, match="gpus: the site has no such resource"):
        limits.check_resources(sge_plan(), ["gpus"], complexes)


def test_all_times_that_a_job_ran() -> None:
    past = {job: history.of_records(times) for job, times in records(recorded("qacct.txt")).items()}
    assert [each.raw_state for each in past["21"]] == ["REQUEUED", "FAILED"]
    assert [each.raw_state for each in past["22"]] == ["TIMEOUT"]
    assert past["6_0"][0].begin == "2026-11-22T18:04:33"
    assert past["6_0"][0].used == round(4.137 * 1024**2)


def site(*used: int) -> SGESite:
    """Args: used: slots on each of the two hosts."""
    return SGESite(
        "default", "8.1.9", (queue_of(attributes(recorded("qconf-sq.txt"))),), (NODES, SMP, FILL),
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
    findings: list[Finding] = list(site().differences(values))
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
