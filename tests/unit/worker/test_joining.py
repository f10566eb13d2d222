"""Ranks that cannot work together are refused by name, on every one of them, while they join."""

from __future__ import annotations

import json
import mmap
import threading
from collections import Counter
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from launcher import errors
from launcher.rendezvous.rounds import RendezvousError
from launcher.schedulers import topology
from launcher.worker import heartbeat, process_group
from launcher.worker.process_group import RankFacts, RanksDiffer, compare, facts_of, gpu_identity


def rank(number: int, **changes: Any) -> RankFacts:
    """A rank on a node of two, with a GPU of its own."""
    facts = RankFacts(number, f"node{number // 2}", "cuda", f"GPU-{number}", "nccl", "2.13.0", "abc", "2.27.3")
    return replace(facts, **changes)


@pytest.mark.parametrize(
    ("facts", "texts"),
    [
        ([rank(0), rank(1), rank(2)], []),
        ([], []),
        (
            [rank(0), rank(1), rank(2, device="cpu", gpu="")],
            ["The ranks have different devices: cuda on ranks 0-1 (node0); cpu on rank 2 (node1). "],
        ),
        (
            [rank(0, backend="gloo"), rank(1), rank(2)],
            ["The ranks have different backends: nccl on ranks 1-2 (node0, node1); gloo on rank 0 (node0). "],
        ),
        (
            [rank(0), rank(1, torch="2.12.1", git="d")],
            ["The ranks have different versions of torch: 2.13.0 on rank 0 (node0); 2.12.1 on rank 1 (node0). "],
        ),
        ([rank(0), rank(1, git="other")], ["The ranks have torch of the same version, built from different commits"]),
        ([rank(0), rank(1, nccl="2.20.5")], ["The ranks have different versions of NCCL: 2.27.3 on rank 0 "]),
        (
            [rank(0), rank(1, gpu="GPU-0"), rank(2)],
            ["Several ranks use one GPU: GPU-0 on ranks 0-1 (node0). Use as many ranks as GPUs"],
        ),
        ([rank(0, gpu="MIG-1"), rank(1, gpu="MIG-2")], []),
        ([rank(0, gpu=""), rank(1, gpu="")], []),  # they cannot be told apart
        (
            [rank(0), rank(1, gpu="GPU-0", nccl="2")],
            ["The ranks have different versions of NCCL", "Several ranks use one GPU"],
        ),
        (
            [rank(number, torch=f"2.{number}") for number in range(6)],
            ["2.3 on rank 3 (node1); and 2 more. "],
        ),
        (
            [rank(number, torch="2.12" if number else "2.13") for number in range(20)],
            ["2.12 on ranks 1-19 (node0, node1, node2, node3 and 6 more nodes); 2.13 on rank 0 (node0). "],
        ),
    ],
)
def test_what_is_refused(facts: list[RankFacts], texts: list[str]) -> None:
    found = compare(facts)
    assert len(found) == len(texts)
    assert all(text in full for text, full in zip(texts, found, strict=True)), found


@pytest.mark.parametrize(
    ("properties", "index", "mask", "identity"),
    [
        ({"uuid": "8f2c"}, 0, "", "8f2c"),
        ({"uuid": "8f2c"}, 1, "MIG-a,MIG-b", "MIG-b"),
        ({"uuid": "8f2c"}, 0, "GPU-8f2c", "8f2c"),
        ({"pci_domain_id": 0, "pci_bus_id": 26, "pci_device_id": 0}, 0, "0,1", "node1 PCI 0:1a:0"),
        ({"pci_bus_id": 26}, 0, "", "node1 PCI 0:1a:0"),
        ({}, 0, "", ""),
    ],
)
def test_what_tells_gpus_apart(properties: dict[str, Any], index: int, mask: str, identity: str) -> None:
    assert gpu_identity(SimpleNamespace(**properties), index, mask, "node1") == identity


def test_the_facts_of_a_rank_on_the_cpu() -> None:
    facts = facts_of(3, "node1", torch.device("cpu"), "gloo", {})
    assert facts == RankFacts(3, "node1", "cpu", "", "gloo", torch.__version__, torch.version.git_version, "")


class CountingStore(dist.Store):
    """Counts the requests to a store that ranks in threads share."""

    def __init__(self, store: dist.Store, ranks: int = 1) -> None:
        # ranks: so many begin to wait together, however long each of them took until then
        super().__init__()
        self.store, self.requests, self.values = store, Counter[str](), 0
        self.waiting = threading.Barrier(ranks)

    def set(self, key: str, value: str) -> None:
        self.requests["set"] += 1
        self.store.set(key, value)

    def add(self, key: str, amount: int) -> int:
        self.requests["add"] += 1
        return self.store.add(key, amount)

    def get(self, key: str) -> bytes:
        self.requests["get"] += 1
        self.values += 1
        return self.store.get(key)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        self.requests["multi_get"] += 1
        self.values += len(keys)
        return self.store.multi_get(keys)

    def check(self, keys: list[str]) -> bool:
        self.requests["check"] += 1
        return self.store.check(keys)

    def wait(self, keys: list[str], *timeout: Any) -> None:
        self.requests["wait"] += 1
        if keys == ["all joined"]:
            self.waiting.wait()
        self.store.wait(keys, *timeout)


def joined(
    facts: list[RankFacts], store: dist.Store, *, world_size: int | None = None, timeout: float = 30
) -> list[Exception | None]:
    """What joining raised on each rank, all of them at once; world_size: with ranks that never join."""
    outcome: list[Exception | None] = [None] * len(facts)

    def join(each: RankFacts) -> None:
        environ = {
            "RANK": str(each.rank), "WORLD_SIZE": str(world_size or len(facts)),
            "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": "node0", "MASTER_PORT": "1",
        }  # fmt: skip
        place = topology.derive(environ, "node0", lambda path: "")
        try:
            process_group._join(store, place, each, timeout)
        except Exception as error:
            outcome[each.rank] = error

    threads = [threading.Thread(target=join, args=(each,)) for each in facts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcome


@pytest.mark.parametrize("world_size", [1, 64])
def test_the_cost_is_linear_in_ranks(world_size: int) -> None:
    store = CountingStore(dist.HashStore())
    assert joined([rank(number) for number in range(world_size)], store) == [None] * world_size
    assert store.requests.total() <= 4 * world_size + 2
    assert store.values == 2 * world_size  # the facts once, and the verdict once for each


def test_what_each_rank_reads_is_less_than_a_byte_a_rank() -> None:
    store, ranks = dist.HashStore(), 8_192
    environ = {
        "RANK": "0", "WORLD_SIZE": str(ranks), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "8", "MASTER_ADDR": "node00000",
        "MASTER_PORT": "1",
    }  # fmt: skip
    place = topology.derive(environ, "node00000", str)
    for number in range(ranks):
        facts = rank(number, host=f"node{number // 8:05d}.cluster.example.org", node=number // 8, gpu=f"GPU-{number}")
        store.set(f"joined/{number}", json.dumps(asdict(facts)))
    store.add("joined", ranks - 1)
    nodes = process_group._join(store, place, rank(0, host="node00000.cluster.example.org", node=0), 30)
    assert (len(nodes.hosts), nodes.of_ranks[-1]) == (1024, 1023)
    assert len(store.get("all joined")) < ranks


def test_ranks_that_wait_in_vain_name_who_is_missing_with_one_look() -> None:
    store = CountingStore(dist.HashStore(), 62)
    outcome = joined([rank(number) for number in range(62)], store, world_size=64, timeout=0.5)
    assert {type(error) for error in outcome} == {RendezvousError}
    for error in outcome:
        assert isinstance(error, RendezvousError)
        assert [each.rank for each in error.fault.accused] == [62, 63]
    assert store.requests["check"] == 64 + 62


def test_the_agents_name_who_is_missing_before_the_ranks_that_they_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: dict[bool, float] = {}

    def join(store: object, place: object, facts: object, timeout: float, longer: float) -> None:
        waited[watched] = timeout + longer

    monkeypatch.setattr(process_group, "_store", lambda *_: dist.HashStore())
    monkeypatch.setattr(process_group, "start", lambda *_: None)
    monkeypatch.setattr(process_group, "_join", join)
    place = topology.derive({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}, "a", str)
    for watched in (True, False):
        slot = heartbeat.RankSlot(mmap.mmap(-1, mmap.PAGESIZE), 0) if watched else None
        monkeypatch.setattr(heartbeat, "mine", lambda slot=slot: slot)
        process_group._make_group(place, rank(0), torch.device("cpu"), 30, 60)
    assert waited == {True: 30 + process_group.AFTER_AGENTS, False: 30}


def test_every_rank_is_refused_with_the_same_words() -> None:
    outcome = joined([rank(0), rank(1, device="cpu", gpu="", backend="gloo"), rank(2)], dist.HashStore())
    assert {type(error) for error in outcome} == {RanksDiffer}
    assert len({str(error) for error in outcome}) == 1
    assert "cpu on rank 1 (node0)" in str(outcome[0])
    assert isinstance(outcome[0], errors.LauncherError)
    assert outcome[0].exit_code == errors.NO_RETRY


def test_two_ranks_on_one_gpu_are_refused_on_every_rank() -> None:
    outcome = joined([rank(0), rank(1), rank(2, gpu="GPU-0")], dist.HashStore())
    assert all("Several ranks use one GPU: GPU-0 on ranks 0,2 (node0, node1)" in str(error) for error in outcome)
