"""Which CPUs each rank gets, on nodes of known types and on others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.binding import masks
from launcher.binding.hardware import CPUS, Core, Gpu, Nic, Node, no_topology
from launcher.binding.masks import Binding, BindingRefused, RankDevices, parse
from launcher.failures.codes import Unbound
from launcher.formatting import ranges
from launcher.units import parse_ranges
from tests.unit.binding import trees

# By node type: what each rank gets with one rank per GPU, and with four ranks where there is none.
AUTO = {
    "alps-gh200": ["0-71", "72-143", "144-215", "216-287"],
    "aurora": [
        "1-8,105-112", "9-17,113-121", "18-25,122-129", "26-34,130-138", "35-42,139-146", "43-51,147-155",
        "53-60,157-164", "61-69,165-173", "70-77,174-181", "78-86,182-190", "87-94,191-198", "95-103,199-207",
    ],
    "cpu-only": ["0-31,128-159", "32-63,160-191", "64-95,192-223", "96-127,224-255"],
    "derecho": ["48-63,112-127", "32-47,96-111", "16-31,80-95", "0-15,64-79"],
    # NUMA nodes 0, 2, 4 and 6 have no GPU; each is divided between the two ranks of a neighbour.
    "dgx-a100": [
        "32-39,48-55,160-167,176-183", "40-47,56-63,168-175,184-191", "0-7,16-23,128-135,144-151",
        "8-15,24-31,136-143,152-159", "96-103,112-119,224-231,240-247", "104-111,120-127,232-239,248-255",
        "64-71,80-87,192-199,208-215", "72-79,88-95,200-207,216-223",
    ],
    "dgx-h100": [
        "0-13,112-125", "14-27,126-139", "28-41,140-153", "42-55,154-167", "56-69,168-181", "70-83,182-195",
        "84-97,196-209", "98-111,210-223",
    ],
    # The masks of LUMI's own documentation, with both threads of each core.
    "frontier": [
        "49-55,113-119", "57-63,121-127", "17-23,81-87", "25-31,89-95", "1-7,65-71", "9-15,73-79", "33-39,97-103",
        "41-47,105-111",
    ],
    "juwels-booster": ["12-23,60-71", "0-11,48-59", "36-47,84-95", "24-35,72-83"],
    "lumi-g": [
        "49-55,113-119", "57-63,121-127", "17-23,81-87", "25-31,89-95", "1-7,65-71", "9-15,73-79", "33-39,97-103",
        "41-47,105-111",
    ],
    "miyabi-g": ["0-71"],
    "no-smt": [
        ",".join(map(str, range(0, 28, 2))), ",".join(map(str, range(28, 56, 2))), ",".join(map(str, range(1, 28, 2))),
        ",".join(map(str, range(29, 56, 2))),
    ],
    "perlmutter": ["48-63,112-127", "32-47,96-111", "16-31,80-95", "0-15,64-79"],
    "polaris": ["24-31,56-63", "16-23,48-55", "8-15,40-47", "0-7,32-39"],
}  # fmt: skip


def node_of(name: str) -> tuple[Node, list[int]]:
    return trees.read(name), trees.allowed(trees.description(name))


def shown(binding: Binding) -> list[str]:
    assert binding.bound, binding.unbound
    return [ranges(rank.cpus) for rank in binding.ranks]


@pytest.mark.parametrize("name", trees.NAMES)
def test_a_known_node_type_has_its_ranks_beside_their_gpus(name: str) -> None:
    node, allowed = node_of(name)
    ranks = masks.of_ranks(node, {}, range(len(node.gpus) or 4), gpus=bool(node.gpus))
    assert node.unbound is None
    assert shown(masks.bind(node, allowed, ranks, parse("auto"))) == AUTO[name]


LUMI_ORDER = [49, 57, 17, 25, 1, 9, 33, 41]


def test_one_core_each_on_lumi_is_the_order_of_its_documentation() -> None:
    node, allowed = node_of("lumi-g")
    without_threads = [cpu for cpu in allowed if cpu < 64]  # as with --hint=nomultithread
    ranks = masks.of_ranks(node, {}, range(8), gpus=True)
    assert shown(masks.bind(node, without_threads, ranks, parse("core"))) == [str(core) for core in LUMI_ORDER]


# -- other modes, and what the job may use


def flat(cores: int, *, numas: int = 1, sockets: int = 1, threads: int = 1) -> Node:
    """Neighbouring cores; the second threads follow after all first ones."""
    each = cores // numas
    return Node(tuple(
        Core(
            tuple(core + thread * cores for thread in range(threads)),
            core // each, core // each * sockets // numas, core // each * each,
        )
        for core in range(cores)
    ))  # fmt: skip


def gpu(numa: int | None) -> RankDevices:
    return RankDevices(Gpu(f"0000:{numa or 0:02x}:00.0", numa))


TWO_SOCKETS = flat(16, numas=4, sockets=2)


@pytest.mark.parametrize(
    ("bind", "numas", "asked", "expected"),
    [
        ("auto", [0, 3], 1, ["0-7", "8-15"]),  # the other NUMA node of each socket goes with it
        ("auto", [0], 1, ["0-7"]),  # and the other socket stays free
        ("auto", [0], 12, ["0-7,12-15"]),  # which it asked for
        ("numa", [0, 3], 1, ["0-3", "12-15"]),
        ("numa", [2, 2], 1, ["8-11", "8-11"]),
        ("socket", [0, 3], 1, ["0-7", "8-15"]),
        ("socket", [1, 0], 1, ["0-7", "0-7"]),
        ("core", [0, 3], 2, ["0-1", "12-13"]),
        ("auto", [None, None], 1, ["0-7", "8-15"]),
        ("auto", [None, None, None, None], 1, ["0-3", "4-7", "8-11", "12-15"]),
        ("numa", [None, None], 1, ["0-7", "8-15"]),
        ("core", [None, None], 3, ["0-2", "8-10"]),
        ("map:0-1:5", [0, 3], 1, ["0-1", "5"]),
        ("map:0-1:5:7", [0, 3], 1, ["0-1", "5"]),
    ],
)
def test_modes(bind: str, numas: list[int | None], asked: int, expected: list[str]) -> None:
    ranks = [RankDevices() if numa is None else gpu(numa) for numa in numas]
    assert shown(masks.bind(TWO_SOCKETS, range(16), ranks, parse(bind), cpus_per_rank=asked)) == expected


@pytest.mark.parametrize(
    ("node", "allowed", "ranks", "bind", "expected"),
    [
        (flat(2), "0-1", 2, "auto", [("0-1", 1), ("0-1", 1)]),
        (flat(2), "0-1", 2, "core", [("0", 1), ("1", 1)]),
        (flat(2, threads=2), "0-3", 2, "auto", [("0-3", 1), ("0-3", 1)]),  # two threads are one core
        (flat(4, numas=2), "0-3", 4, "auto", [("0-1", 1), ("0-1", 1), ("2-3", 1), ("2-3", 1)]),
        (flat(6, numas=2), "0-5", 4, "auto", [("0-2", 1), ("0-2", 2), ("3-5", 1), ("3-5", 2)]),
        (flat(8, numas=2), "0-7", 4, "auto", [("0-1", 2), ("2-3", 2), ("4-5", 2), ("6-7", 2)]),
        (flat(8, numas=2), "0-7", 4, "numa", [("0-3", 2), ("0-3", 2), ("4-7", 2), ("4-7", 2)]),
    ],
)
def test_no_rank_is_alone_on_a_single_core_unless_that_is_wanted(
    node: Node, allowed: str, ranks: int, bind: str, expected: list[tuple[str, int]]
) -> None:
    found = masks.bind(node, parse_ranges(allowed), [RankDevices()] * ranks, parse(bind))
    assert [(ranges(rank.cpus), rank.own) for rank in found.ranks] == expected
    assert found.bound


@pytest.mark.parametrize(
    ("allowed", "numas", "asked", "expected"),
    [
        ("0-3", [0, 3], 1, ["0-1", "2-3"]),  # no core of the job's is next to the second GPU
        ("0-11", [0, 3], 4, ["0-7", "8-11"]),
        ("0-7,12-13", [0, 3], 4, ["0-5", "6-7,12-13"]),  # as many as it asked for, from the other socket
        ("0-7,12-13", [0, 3], 1, ["0-7", "12-13"]),  # which it did not ask for
        ("1-15", [None, None], 1, ["1-7", "8-15"]),  # a core that the site keeps; the cut stays between the sockets
        ("0-6", [None, None, None], 2, ["0-1", "2-3", "4-6"]),
    ],
)
def test_what_the_job_may_use_is_all_that_is_used(
    allowed: str, numas: list[int | None], asked: int, expected: list[str]
) -> None:
    ranks = [RankDevices() if numa is None else gpu(numa) for numa in numas]
    found = masks.bind(TWO_SOCKETS, parse_ranges(allowed), ranks, parse("auto"), cpus_per_rank=asked)
    assert shown(found) == expected


def test_a_nic_that_the_site_pairs_decides_where_ranks_without_gpus_are() -> None:
    ranks = [RankDevices(None, Nic("hsn1", numa=3)), RankDevices(None, Nic("hsn0", numa=0))]
    assert shown(masks.bind(TWO_SOCKETS, range(16), ranks, parse("auto"))) == ["8-15", "0-7"]


def test_a_gpu_whose_memory_is_a_numa_node_without_cores_is_next_to_the_nearest_with() -> None:
    node = Node(TWO_SOCKETS.cores, distances={(9, 0): 80, (9, 1): 80, (9, 2): 40, (9, 3): 80})
    assert masks.bind(node, range(16), [gpu(9)], parse("numa")).ranks[0].numa == (2,)


FEW_CORES = Unbound("3 ranks and 2 cores")
NUMA_UNKNOWN = Unbound("the NUMA node of GPU 0000:00:00.0 is not known")
MIXED = Unbound("GPUs of different models")


@pytest.mark.parametrize(
    ("node", "ranks", "bind", "why"),
    [
        (flat(2), [RankDevices()] * 3, "auto", FEW_CORES),
        (flat(2, threads=2), [RankDevices()] * 3, "auto", FEW_CORES),  # hardware threads are no cores
        (flat(4), [RankDevices()] * 2, "none", Unbound("launch.bind=none")),
        (flat(4, numas=2), [gpu(None), gpu(0)], "auto", NUMA_UNKNOWN),
        (Node(unbound=MIXED), [RankDevices()] * 2, "auto", MIXED),
        (Node(flat(4).cores[:3]), [RankDevices()] * 2, "numa", no_topology(CPUS)),
    ],
)
def test_nothing_is_bound_and_the_reason_is_told(node: Node, ranks: list[RankDevices], bind: str, why: Unbound) -> None:
    allowed = range(sum(len(core.cpus) for core in node.cores) or 4) if len(node.cores) != 3 else range(4)
    found = masks.bind(node, allowed, ranks, parse(bind))
    assert (found.unbound, {rank.cpus for rank in found.ranks}) == (why, {tuple(allowed)})


@pytest.mark.parametrize(
    ("bind", "words"),
    [
        ("map:0-1:6-9", "local rank 1 the CPUs 8-9, which this job may not use here: it has 0-7"),
        ("map:0-1", "1 list of CPUs, and this node 2 ranks"),
    ],
)
def test_a_list_that_does_not_fit_is_refused(bind: str, words: str) -> None:
    with pytest.raises(BindingRefused, match=words):
        masks.bind(flat(16), range(8), [RankDevices(), RankDevices()], parse(bind))


@given(
    numas=st.integers(1, 4), each=st.integers(1, 6), threads=st.integers(1, 2), asked=st.integers(1, 8),
    homes=st.lists(st.integers(0, 3), min_size=1, max_size=8), with_gpus=st.booleans(), data=st.data(),
    bind=st.sampled_from(["auto", "core"]),
)  # fmt: skip
def test_no_core_is_shared_none_is_taken_that_is_not_the_jobs_and_nobody_goes_without(
    numas: int, each: int, threads: int, asked: int, homes: list[int], with_gpus: bool, data: st.DataObject, bind: str
) -> None:
    node = flat(numas * each, numas=numas, sockets=2 if numas == 4 else 1, threads=threads)
    allowed = data.draw(st.sets(st.sampled_from([cpu for core in node.cores for cpu in core.cpus]), min_size=1))
    ranks = [gpu(home % numas) if with_gpus else RankDevices() for home in homes]
    found = masks.bind(node, allowed, ranks, parse(bind), cpus_per_rank=asked)
    if not found.bound:
        return
    used = [cpu for rank in found.ranks for cpu in rank.cpus]
    assert set(used) <= allowed
    owners = {core: {place for place, rank in enumerate(found.ranks) if set(core.cpus) & set(rank.cpus)}
              for core in node.cores}  # fmt: skip
    alone = bind == "core" or min(rank.own for rank in found.ranks) >= masks.LONE
    assert all(len(places) <= 1 for places in owners.values()) or not alone
    assert sum(rank.own for rank in found.ranks) <= len(node.cores)
    assert all(rank.cpus for rank in found.ranks)
    if threads == 1:
        assert all(len(rank.cpus) >= min(asked, len(allowed) // len(ranks)) for rank in found.ranks)
