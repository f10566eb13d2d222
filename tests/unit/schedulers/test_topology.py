"""Who a process is, from the variables of whatever started it."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.schedulers.topology import (
    SOURCES,
    Nodes,
    Topology,
    TopologyError,
    assign_nodes,
    derive,
    nodes_in_order,
)
from tests.unit.operations import Counted

NODE_FILES = {
    "/aux/two": "n1.site\nn1.site\nn2.site\nn2.site\n\n",
    "/aux/one": "n1.site\n",
    "/aux/empty": "",
}


def read(path: str) -> str:
    if path not in NODE_FILES:
        raise FileNotFoundError(path)
    return NODE_FILES[path]


def place(environ: dict[str, str], hostname: str = "here") -> Topology:
    return derive(environ, hostname, read)


LOCAL = {
    "LAUNCHER_TASK": "3",
    "LAUNCHER_TASKS": "4",
    "LAUNCHER_NODE": "1",
    "LAUNCHER_HOSTS": "h,h",
    "LAUNCHER_JOB": "j",
}
TORCHRUN = {
    "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "m", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "id",
}  # fmt: skip
# From a real Slurm 22.05: `sbatch --nodes=2`, in it `srun -N2 -n3`, `srun -N1 -n2`, and the script itself.
BATCH = {
    "SLURM_JOB_ID": "41", "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_JOB_NUM_NODES": "2", "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0", "SLURM_PROCID": "0", "SLURM_TASKS_PER_NODE": "1(x2)",
}  # fmt: skip
SRUN = {
    **BATCH, "SLURM_LOCALID": "0", "SLURM_NODEID": "1", "SLURM_PROCID": "2", "SLURM_STEP_ID": "1",
    "SLURM_STEP_NODELIST": "node[1-2]", "SLURM_STEP_NUM_TASKS": "3", "SLURM_STEP_TASKS_PER_NODE": "2,1",
}  # fmt: skip
SMALL_STEP = {
    **BATCH, "SLURM_LOCALID": "1", "SLURM_NODEID": "0", "SLURM_PROCID": "1", "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "node2", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "2",
}  # fmt: skip
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": "ns",
}  # fmt: skip
PALS = {
    "PALS_RANKID": "2", "PALS_LOCAL_RANKID": "0", "PALS_NODEID": "1", "PALS_LOCAL_SIZE": "2", "PMI_SIZE": "4",
    "PALS_APID": "ap", "PBS_NODEFILE": "/aux/two",
}  # fmt: skip
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2", "SLURM_JOB_ID": "9"}
PBS = {"PBS_NODEFILE": "/aux/two", "PBS_NODENUM": "1", "PBS_TASKNUM": "20000001", "PBS_JOBID": "8.srv"}
OTHER_NODE = {"PBS_NODEFILE": "/aux/on-the-first-node"}
TWO = {"SLURM_JOB_NODELIST": "n[1-2]"}
N12, S12 = ("n1", "n2"), ("n1.site", "n2.site")
FIELDS = ("rank", "local_rank", "node_rank", "world_size", "local_world_size", "nnodes", "hosts", "master", "job")


@pytest.mark.parametrize(
    ("source", "environ", "hostname", "expected"),
    [
        ("plain", {}, "here", (0, 0, 0, 1, 1, 1, ("here",), "here", "plain")),
        ("launcher", LOCAL, "x", (3, 1, 1, 4, 2, 2, ("h", "h"), "h", "j")),
        ("torchrun", TORCHRUN, "x", (5, 1, 1, 8, 4, 2, (), "m", "id")),
        ("torchrun", {**TORCHRUN, **TWO}, "x", (5, 1, 1, 8, 4, 2, N12, "m", "id")),
        ("torchrun", {**TORCHRUN, **TWO, "LAUNCHER_HOSTS": "a,b"}, "x", (5, 1, 1, 8, 4, 2, ("a", "b"), "m", "id")),
        ("torchrun", {**TORCHRUN, **TWO, "LAUNCHER_HOSTS": "a"}, "x", (5, 1, 1, 8, 4, 2, N12, "m", "id")),
        ("srun", SRUN, "x", (2, 0, 1, 3, 1, 2, ("node1", "node2"), "node1", "slurm-41.1")),
        ("srun", SMALL_STEP, "x", (1, 1, 0, 2, 2, 1, ("node2",), "node2", "slurm-41.0")),
        ("plain", BATCH, "node1", (0, 0, 0, 1, 1, 1, ("node1",), "node1", "plain")),
        ("openmpi", {**OPENMPI, **TWO}, "n2", (3, 1, 1, 4, 2, 2, N12, "n1", "openmpi-ns")),
        ("openmpi", {**OPENMPI, **TWO}, "n1.site", (3, 1, 0, 4, 2, 2, N12, "n1", "openmpi-ns")),  # mapped by its host
        ("openmpi", {**OPENMPI, **TWO}, "elsewhere", (3, 1, 1, 4, 2, 2, N12, "n1", "openmpi-ns")),
        ("openmpi", {**OPENMPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, "h", (3, 1, 0, 4, 4, 1, ("h",), "h", "openmpi-ns")),
        ("pals", PALS, "x", (2, 0, 1, 4, 2, 2, S12, "n1.site", "pals-ap")),
        ("pals", {**PALS, **OTHER_NODE, "LAUNCHER_HOSTS": "a,b"}, "x", (2, 0, 1, 4, 2, 2, ("a", "b"), "a", "pals-ap")),
        ("launcher", {**LOCAL, **OTHER_NODE}, "x", (3, 1, 1, 4, 2, 2, ("h", "h"), "h", "j")),
        ("mpich", {**MPICH, **TWO}, "n1", (1, 1, 0, 4, 2, 2, N12, "n1", "mpich-9")),
        ("mpich", {**MPICH, "MPI_LOCALNRANKS": "4"}, "h", (1, 1, 0, 4, 4, 1, ("h",), "h", "mpich-9")),
        ("pbs", PBS, "x", (1, 0, 1, 2, 1, 2, S12, "n1.site", "pbs-8.srv")),
        ("pbs", {**PBS, "PBS_NODENUM": "0", "PBS_TASKNUM": "2"}, "x", (0, 0, 0, 2, 1, 2, S12, "n1.site", "pbs-8.srv")),
        ("plain", {**PBS, "PBS_NODENUM": "0", "PBS_TASKNUM": "1"}, "n1", (0, 0, 0, 1, 1, 1, ("n1",), "n1", "plain")),
    ],
)  # fmt: skip
def test_every_source_tells_the_place(
    source: str, environ: dict[str, str], hostname: str, expected: tuple[object, ...]
) -> None:
    topology = place(environ, hostname)
    assert topology.source == source
    assert dict(zip(FIELDS, expected, strict=True)) == {name: getattr(topology, name) for name in FIELDS}


ALL = {
    "launcher": LOCAL,
    "torchrun": TORCHRUN,
    "srun": SRUN,
    "openmpi": OPENMPI,
    "pals": PALS,
    "mpich": MPICH,
    "pbs": PBS,
}


@pytest.mark.parametrize("first", range(len(ALL)))
def test_the_innermost_of_several_sources_counts(first: int) -> None:
    """torchrun within srun within PBS: each launcher leaves the outer one's variables in place."""
    assert list(ALL) == list(SOURCES)
    environ: dict[str, str] = {}
    for name in reversed(list(ALL)[first:]):
        environ |= ALL[name]
    assert place(environ, "node1").source == list(ALL)[first]


@pytest.mark.parametrize(
    ("source", "left_out"),
    [(source, name) for source, environ in ALL.items() for name in environ if name not in BATCH or source == "srun"],
)
def test_a_source_that_lacks_a_variable_gives_way_or_is_still_right(source: str, left_out: str) -> None:
    complete = {**ALL[source], **TWO} if source in ("openmpi", "mpich", "torchrun") else ALL[source]
    part = {name: value for name, value in complete.items() if name != left_out}
    try:
        topology = place(part, "n1")
    except TopologyError:
        return
    whole = place(complete, "n1")
    same = (topology.rank, topology.local_rank, topology.world_size) == (whole.rank, whole.local_rank, whole.world_size)
    assert topology.source == "plain" or same


def test_a_source_that_lacks_a_variable_gives_way_whatever_the_others_are() -> None:
    assert place({"MPI_LOCALNRANKS": "auto"}, "n1").source == "plain"


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({**SRUN, "SLURM_PROCID": "7", "SLURM_DISTRIBUTION": "cyclic"}, "rank 7 of 3"),
        ({**SRUN, "SLURM_LOCALID": "1"}, "rank 3 of 3"),
        ({**SRUN, "SLURM_NODEID": "2"}, "node 2"),
        ({**SRUN, "SLURM_STEP_TASKS_PER_NODE": "2"}, "2 hosts .* 1 task counts"),
        ({**SRUN, "SLURM_LOCALID": "two"}, "SLURM_LOCALID='two' is not a number"),
        ({**SRUN, "SLURM_STEP_NODELIST": "node[1-2"}, "brackets do not match"),
        ({**SRUN, "SLURM_STEP_TASKS_PER_NODE": "2,one"}, "contradict"),
        ({**TORCHRUN, "RANK": "8"}, "rank 8 of 8"),
        ({**TORCHRUN, "RANK": "-1"}, "rank -1 of 8"),
        ({**TORCHRUN, "MASTER_PORT": "http"}, "MASTER_PORT='http' is not a number"),
        ({**LOCAL, "LAUNCHER_TASKS": "1"}, "contradict"),
        ({**OPENMPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "0"}, "contradict"),
        ({**PBS, "PBS_NODENUM": "2"}, "2 of 2"),
        ({**PBS, "PBS_NODEFILE": "/aux/empty"}, "PBS_NODEFILE=/aux/empty, .* is not there or is empty"),
        ({**PBS, "PBS_NODEFILE": "/aux/missing"}, "PBS_NODEFILE=/aux/missing, .* is not there or is empty"),
        ({"MASTER_ADDR": "m", "MASTER_PORT": "x"}, "MASTER_PORT='x' is not a number"),
    ],
)
def test_contradictions_are_told(environ: dict[str, str], words: str) -> None:
    with pytest.raises(TopologyError, match=words):
        place(environ)


@pytest.mark.parametrize("environ", [OPENMPI, MPICH])
def test_an_unknown_master_is_an_error_that_names_the_cure(environ: dict[str, str]) -> None:
    with pytest.raises(TopologyError, match="set MASTER_ADDR"):
        place(environ)
    assert place({**environ, "MASTER_ADDR": "m"}).master == "m"


@pytest.mark.parametrize("source", ["launcher", "srun", "openmpi", "pals", "mpich", "pbs"])
def test_the_users_word_on_the_master_counts(source: str) -> None:
    asked = place({**ALL[source], "MASTER_ADDR": "m", "MASTER_PORT": "1234"})
    assert (asked.master, asked.master_port) == ("m", 1234)
    asked = place({**ALL[source], "MASTER_ADDR": "m"})
    assert (asked.master, asked.master_port) == ("m", None)
    rest = {**asdict(asked), "master": "", "hosts": ()}
    if source not in ("openmpi", "mpich"):
        assert rest == {**asdict(place(ALL[source])), "master": "", "hosts": ()}


def test_all_ranks_of_a_step_agree() -> None:
    """Three nodes with 2, 1 and 2 tasks: every rank is there once, and all see the same world."""
    common = {
        "SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "n[1-3]", "SLURM_STEP_NUM_TASKS": "5",
        "SLURM_STEP_TASKS_PER_NODE": "2,1,2",
    }  # fmt: skip
    places = [(0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 2, 0), (4, 2, 1)]
    ranks = [
        place({**common, "SLURM_PROCID": str(rank), "SLURM_NODEID": str(node), "SLURM_LOCALID": str(local)})
        for rank, node, local in places
    ]
    assert [(each.rank, each.node_rank, each.local_rank) for each in ranks] == places
    assert {(each.world_size, each.nnodes, each.hosts, each.master, each.job) for each in ranks} == {
        (5, 3, ("n1", "n2", "n3"), "n1", "slurm-1.0")
    }


def openmpi(ranks_on: list[str], *, allocation: str) -> list[tuple[str, Topology]]:
    """What mpirun tells each rank, and the host it is on."""
    found = []
    for rank, host in enumerate(ranks_on):
        environ = {
            "OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": str(len(ranks_on)),
            "OMPI_COMM_WORLD_LOCAL_RANK": str(ranks_on[:rank].count(host)),
            "OMPI_COMM_WORLD_LOCAL_SIZE": str(ranks_on.count(host)), "SLURM_JOB_NODELIST": allocation,
        }  # fmt: skip
        found.append((host, place(environ, host)))
    return found


@pytest.mark.parametrize(
    ("ranks_on", "of_ranks"),
    [
        (["n1", "n1", "n2", "n2"], (0, 0, 1, 1)),
        (["n1", "n2", "n1", "n2"], (0, 1, 0, 1)),  # mpirun --map-by node
        (["n1", "n1", "n2"], (0, 0, 1)),
        (["n1", "n2", "n2"], (0, 1, 1)),
        (["n1", "n2", "n3", "n1"], (0, 1, 2, 0)),
        (["n1", "n1", "n1"], (0, 0, 0)),
    ],
)
def test_where_mpis_ranks_are_is_what_they_tell_each_other(ranks_on: list[str], of_ranks: tuple[int, ...]) -> None:
    told = [
        (each.node_rank if each.node_known else None, host) for host, each in openmpi(ranks_on, allocation="n[1-3]")
    ]
    hosts = tuple(dict.fromkeys(ranks_on))
    assert assign_nodes(told) == Nodes(of_ranks, hosts)
    masters = {each.master for _, each in openmpi(ranks_on, allocation=f"n[1-{len(hosts)}]")}
    assert masters == {"n1"}


def srun(counts: str, places: list[int], **more: str) -> list[Topology]:
    """What srun tells each rank of these nodes."""
    common = {
        "SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": f"n[1-{max(places) + 1}]",
        "SLURM_STEP_NUM_TASKS": str(len(places)), "SLURM_STEP_TASKS_PER_NODE": counts, **more,
    }  # fmt: skip
    return [
        place({
            **common, "SLURM_PROCID": str(rank), "SLURM_NODEID": str(node),
            "SLURM_LOCALID": str(places[:rank].count(node)),
        })
        for rank, node in enumerate(places)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("counts", "places", "more", "before"),
    [
        ("2,1", [0, 0, 1], {}, [(0, 0, 1)] * 3),
        ("2(x2)", [0, 0, 1, 1], {}, [(0, 0, 1, 1)] * 4),
        ("2,1", [0, 1, 0], {"SLURM_DISTRIBUTION": "cyclic"}, [()] * 3),
        ("2(x2)", [0, 1, 0, 1], {"SLURM_DISTRIBUTION": "cyclic"}, [()] * 4),
        ("2(x2)", [0, 1, 0, 1], {"SLURM_DISTRIBUTION": "cyclic:block"}, [()] * 4),
        ("2(x2)", [0, 1, 0, 1], {"SLURM_DISTRIBUTION": "plane", "SLURM_DIST_PLANESIZE": "1"}, [()] * 4),
        ("2(x2)", [0, 0, 1, 1], {"SLURM_DISTRIBUTION": "plane", "SLURM_DIST_PLANESIZE": "2"}, [()] * 4),
        *(
            ("2(x2)", [0, 0, 1, 1], {"SLURM_DISTRIBUTION": words}, [(0, 0, 1, 1)] * 4)
            for words in ("block", "block:cyclic", "block,nopack")
        ),
    ],
)
def test_where_sruns_ranks_are(
    counts: str, places: list[int], more: dict[str, str], before: list[tuple[int, ...]]
) -> None:
    ranks = srun(counts, places, **more)
    hosts = ranks[0].hosts
    assert [nodes_in_order(each) for each in ranks] == before
    assert assign_nodes([(each.node_rank, hosts[each.node_rank]) for each in ranks], hosts) == Nodes(
        tuple(places), hosts
    )


@pytest.mark.parametrize(
    ("counts", "places"), [("1(x4)", [2, 3, 0, 1]), ("2(x3)", [1, 1, 2, 2, 0, 0]), ("2,1", [1, 0, 0])]
)
def test_ranks_are_counted_along_the_list_where_srun_follows_the_topology(counts: str, places: list[int]) -> None:
    """As in 26.05 with topology/tree or topology/block whose switches are in another order than the nodes' names."""
    ranks = sorted(srun(counts, places), key=lambda each: each.rank)
    assert [each.rank for each in ranks] == list(range(len(places)))
    assert [each.node_rank for each in ranks] == sorted(places)
    assert {(each.master, nodes_in_order(each)) for each in ranks} == {("n1", tuple(sorted(places)))}
    assert ranks[0].node_rank == 0


def test_with_an_arbitrary_distribution_the_host_of_rank_0_must_be_told() -> None:
    """Of four ranks on the hosts n2, n1, n2, n1 (SLURM_HOSTFILE): the list of nodes is n[1-2]."""
    with pytest.raises(TopologyError, match=r"srun does not tell the host of rank 0: set MASTER_ADDR to it"):
        srun("2(x2)", [1, 0, 1, 0], SLURM_DISTRIBUTION="arbitrary")
    told = srun("2(x2)", [1, 0, 1, 0], SLURM_DISTRIBUTION="arbitrary", MASTER_ADDR="n2")
    assert {(each.master, nodes_in_order(each)) for each in told} == {("n2", ())}
    (alone,) = srun("1", [0], SLURM_DISTRIBUTION="arbitrary")
    assert (alone.master, nodes_in_order(alone)) == ("n1", ())


@pytest.mark.parametrize("known", [False, True])
def test_the_nodes_of_many_ranks_are_looked_up_and_not_searched_for(known: bool) -> None:
    nodes = [Counted(number) for number in range(100)]
    reports = [(node if known else None, node) for node in nodes for _ in range(8)]
    Counted.compared = 0
    assert len(assign_nodes(reports).hosts) == 100  # type: ignore[arg-type]
    assert Counted.compared < 10 * len(reports)


def test_simulated_nodes_share_a_host_and_are_several() -> None:
    assert assign_nodes([(0, "h"), (0, "h"), (1, "h"), (1, "h")], ("h", "h")) == Nodes((0, 0, 1, 1), ("h", "h"))


def test_an_agent_that_is_gone_leaves_its_node_with_fewer_ranks() -> None:
    """With launch=tasks: the numbers of nodes are those that are left, and their names those that they tell."""
    assert assign_nodes([(0, "a"), (2, "c"), (2, "c")], ("a", "b", "c")) == Nodes((0, 1, 1), ("a", "c"))


VARIABLES = sorted({name for environ in ALL.values() for name in environ} | {"PMI_LOCAL_SIZE", "NODE_RANK"})
VALUES = ["", "0", "1", "2", "3", "8", "-1", "x", "n1", "n[1-2]", "n[1-", "2(x2)", "2(x", "2,1", "a,b"]


@given(st.dictionaries(st.sampled_from(VARIABLES), st.sampled_from(VALUES)), st.sampled_from([*ALL.values(), {}]))
def test_any_environment_gives_a_place_or_an_error_of_ours(changes: dict[str, str], start: dict[str, str]) -> None:
    environ = {**start, **changes}
    try:
        topology = derive(environ, "n1", lambda path: path)
    except TopologyError:
        return
    assert 0 <= topology.rank < topology.world_size
    assert 0 <= topology.local_rank < topology.local_world_size
    assert 0 <= topology.node_rank < topology.nnodes
    assert topology.master
