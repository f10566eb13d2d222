"""What ranks find out together while they make their process group."""

from __future__ import annotations

import itertools
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.testing._internal.distributed.fake_pg  # registers the backend `fake`

from launcher.runs.directory import Run
from launcher.schedulers.topology import Nodes, Topology
from launcher.worker import process_group, stop
from launcher.worker.debugger import FOREVER
from launcher.worker.stop import Settings, settings
from tests.unit.plans import bare_plan
from tests.unit.workloads.test_training import env_of
from workloads.benchmark_keys import members_of


def place(rank: int, ranks_on: list[str]) -> Topology:
    """What mpirun lets a rank know of itself."""
    host = ranks_on[rank]
    world, local_world = len(ranks_on), ranks_on.count(host)
    return Topology(
        "openmpi", rank, ranks_on[:rank].count(host), rank // local_world, world, local_world, -(-world // local_world),
        (), "n1", None, "job", node_known=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("ranks_on", "nodes", "node_groups", "stride_groups"),
    [
        (["n1", "n2", "n1", "n2"], Nodes((0, 1, 0, 1), ("n1", "n2")), ((0, 2), (1, 3)), ((0, 1), (2, 3))),
        (["n1", "n1", "n2"], Nodes((0, 0, 1), ("n1", "n2")), ((0, 1), (2,)), ((0, 2), (1,))),
        (["n1"], Nodes((0,), ("n1",)), ((0,),), ((0,),)),
    ],
)
def test_ranks_tell_each_other_where_they_are(
    ranks_on: list[str], nodes: Nodes, node_groups: object, stride_groups: object
) -> None:
    store = dist.HashStore()
    store.set_timeout(timedelta(seconds=20))

    def rank(number: int) -> Nodes:
        mine = place(number, ranks_on)
        node, host = process_group._node_of(mine, ranks_on[number])
        facts = process_group.RankFacts(number, host, "cpu", "", "gloo", "2.13", "abc", "", node)
        return process_group._join(store, mine, facts, 20)

    with ThreadPoolExecutor(len(ranks_on)) as pool:
        assert list(pool.map(rank, range(len(ranks_on)))) == [nodes] * len(ranks_on)
    assert members_of("node", nodes.of_ranks) == node_groups
    assert members_of("stride", nodes.of_ranks) == stride_groups


def test_a_simulated_node_has_the_gpus_of_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks on one GPU are found, also if their nodes have names of their own."""
    place = Topology("launcher", 0, 0, 0, 2, 1, 2, ("simulated0", "simulated1"), "simulated0", None, "job")
    seen: list[process_group.RankFacts] = []

    def facts_of(rank: int, host: str, *_: object) -> process_group.RankFacts:
        return process_group.RankFacts(rank, host, "cuda", f"{host} PCI 0:1:0", "gloo", "2.13", "abc", "")

    def make_group(_: Topology, facts: process_group.RankFacts, *__: object) -> Nodes:
        seen.append(facts)
        return Nodes((0, 1), place.hosts)

    monkeypatch.setattr(process_group.topology, "derive", lambda *_: place)
    for name, value in (("facts_of", facts_of), ("_make_group", make_group), ("_env", None), ("_reporter", None)):
        monkeypatch.setattr(process_group, name, value)
    process_group.init("gloo", "cpu")
    assert (seen[0].host, seen[0].gpu) == ("simulated0", f"{socket.gethostname()} PCI 0:1:0")


def test_no_host_is_named_for_ranks_of_which_nobody_knows_where_they_are() -> None:
    unknown = place(0, ["n1", "n2", "n1"])
    assert [each.host for each in process_group._places(unknown, "n1")] == ["n1", "", ""]
    known = Topology("srun", 0, 0, 0, 3, 2, 2, ("n1", "n2"), "n1", None, "job", tasks_per_node=(2, 1))
    assert [(each.host, each.task) for each in process_group._places(known, "")] == [("n1", 0), ("n1", 1), ("n2", 2)]


@pytest.mark.parametrize(("timeout", "made_with"), [(None, None), (77.0, timedelta(seconds=77))])
def test_the_stop_group_has_the_timeout_of_the_run(
    monkeypatch: pytest.MonkeyPatch, handlers: None, timeout: float | None, made_with: timedelta | None
) -> None:
    made: list[object] = []
    monkeypatch.setattr(stop.dist, "new_group", lambda **options: made.append(options))
    stop.StopFlag(env_of(2, (0, 0), 2), Settings(timeout=timeout))
    assert made == [{"backend": "gloo", "timeout": made_with}]


@pytest.mark.parametrize("breakpoints", [(), ("train.py:7",)])
def test_the_timeout_of_the_run_is_that_of_its_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, breakpoints: tuple[str, ...]
) -> None:
    run = Run.create(tmp_path / "run")
    run.write_record(bare_plan(launch={"timeout": 77}), {}, {})
    monkeypatch.setenv("LAUNCHER_RUN_DIR", str(run.path))
    monkeypatch.setenv("LAUNCHER_ATTEMPT", "0")
    monkeypatch.setattr(type(run.plan()), "debugs", property(lambda _: bool(breakpoints)))
    assert settings().timeout == (FOREVER if breakpoints else 77.0)


def test_before_there_is_a_process_group_the_answer_of_rank_0_goes_through_the_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = dist.HashStore()
    monkeypatch.setattr(process_group, "_store", lambda *_: store)
    monkeypatch.setenv("LAUNCHER_SECRET", "the secret of a test's ranks")
    process_group._secret.cache_clear()
    for rank, given in enumerate((["first", Path("a")], ["second", None])):
        monkeypatch.setattr(process_group, "_broadcasts", itertools.count())  # each rank has its own
        monkeypatch.setattr(process_group.topology, "derive", lambda *_, rank=rank: place(rank, ["n1", "n2"]))
        assert [process_group.broadcast(given[each] if rank == 0 else None) for each in (0, 1)] == ["first", Path("a")]
    process_group._secret.cache_clear()


@pytest.mark.parametrize(("backend", "kind"), [("nccl", "cuda"), ("xccl", "xpu")])
def test_checkpoints_get_a_group_of_gloo_beside_that_of_the_accelerators(
    backend: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To which torch hands on the device that the default group is bound to, and gloo knows no XPU."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    init = dist.init_process_group

    def as_if(_: str, *, device_id: torch.device | None, **how: Any) -> None:
        init("fake", **how)
        assert dist.group.WORLD is not None
        dist.group.WORLD.bound_device_id = device_id

    monkeypatch.setattr(dist, "init_process_group", as_if)
    try:
        process_group.start(backend, dist.HashStore(), 0, 1, torch.device(kind, 0), 20)
        ones = torch.ones(2)
        dist.all_reduce(ones, group=process_group.gloo_group(1, 20))
        assert ones.tolist() == [1.0, 1.0]
    finally:
        process_group.close()
