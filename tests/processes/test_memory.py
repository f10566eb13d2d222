"""Copies of states in memory, in real ranks: what the next round loads after ranks, nodes or bytes were lost."""

from __future__ import annotations

import errno
import os
import signal
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from launcher import Env
from launcher.checkpoint import format as checkpoints
from launcher.checkpoint import memory_copies as memory_module
from launcher.checkpoint.checkpointer import Checkpointer
from launcher.checkpoint.format import CannotRead
from launcher.checkpoint.memory_copies import MemoryCheckpoints
from launcher.checkpoint.memory_format import HEADER, OWN, PEER, REPLICA, SINGLE, MemorySlot, Pair
from launcher.integrations import trainers
from launcher.integrations.trainers import TrainerMemory
from launcher.torch_compat import DTensor, Shard, distribute_tensor
from launcher.worker import shared_with_agent
from launcher.worker.stop import CHECKPOINT, Settings
from tests.markers import ci
from tests.processes.workload_ranks import RanksFailedError, run_ranks

SIZE = 30  # elements of the large tensor; divides by no number of ranks but 2, 3 and 5


@dataclass(frozen=True)
class Life:
    """One round of a training: it loads, does steps up to `last`, and makes a copy after each."""

    folder: Path
    memories: tuple[str, ...]  # the file of each node's agent
    round: int = 0
    last: int = 5
    kind: str = "whole"
    save_at: int = -1  # step at which it saves to disk
    peers: bool = True
    every: int | None = 1
    half: int = -1  # step in which rank 1 dies when it has changed a part of the state


def life(it: Life, env: Env) -> dict[str, Any]:
    file = os.open(it.memories[env.node_rank], os.O_RDWR)
    os.environ["LAUNCHER_ROUND"], os.environ["GROUP_RANK"] = str(it.round), str(env.node_rank)
    shared_with_agent.share_memory(file, env.local_rank)
    table, compared = memory_module.ReplicaTable.of, list[int]()
    memory_module.ReplicaTable.of = lambda *of: compared.append(1) or table(*of)  # type: ignore[func-returns-value, method-assign]
    saved = Checkpointer(it.folder, env, identity={}, memory=it.every, peers=it.peers, check_replicas=True, timeout=20)
    counter = {"steps": 0}
    large: Any = torch.zeros(SIZE)
    if it.kind == "shards":
        large = distribute_tensor(large, init_device_mesh("cpu", (env.world_size,)), [Shard(0)])
    state: dict[str, Any] = {"large": large, "small": torch.zeros((), dtype=torch.float64), "counter": counter}
    state["norm"] = {"running_mean": torch.zeros(2)}  # which no rank compares
    if it.kind == "single":
        state["large"] = large + 1000 * env.rank
    loaded = saved.load(state)
    own = None if loaded is None or loaded.rank_state is None else dict(loaded.rank_state)
    if own and "noise" in own:
        own["noise"] = own["noise"].tolist()
    before, mean = _facts(state), state["norm"]["running_mean"].tolist()
    step = 0 if loaded is None else loaded.step
    start = step
    while step < it.last:
        ones = torch.ones(1)
        dist.all_reduce(ones)
        saved.staged()
        step += 1
        with torch.no_grad():
            state["large"] += step
            if step == it.half and env.rank == 1:
                die()
            state["small"] += step
            state["norm"]["running_mean"].fill_(1000 * env.rank + step)
        counter["steps"] = step
        saved.keep(step, state, rank_state={"rank": env.rank, "noise": torch.full((3,), env.rank + step)})
        if step == it.save_at:
            saved.save(step, state, rank_state={"rank": env.rank}, wait=True)
    memory = saved._memory
    assert memory is not None
    memory.wait()
    return {
        "start": start, "own": own, "before": before, "memory": loaded is not None and loaded.path is None,
        "values": None if loaded is None else loaded.values, "every": memory.every, "single": memory._mode == SINGLE,
        "compared": len(compared), "mean": mean,
    }  # fmt: skip


def _facts(state: dict[str, Any]) -> dict[str, Any]:
    large = state["large"].full_tensor() if isinstance(state["large"], DTensor) else state["large"]
    return {"large": large.tolist(), "small": float(state["small"])}


def memory() -> str:
    return f"/proc/{os.getpid()}/fd/{shared_with_agent.make_memory()}"


@pytest.fixture
def first(tmp_path: Path) -> Life:
    return Life(tmp_path / "checkpoints", (memory(), memory()))


def total(step: int) -> int:
    return sum(range(step + 1))


def rounds(first: Life, then: Life, ranks: int = 4, nodes: int = 2) -> list[dict[str, Any]]:
    """What each rank found in the second of two rounds of which the first has four ranks on two nodes."""
    run_ranks(life, first, 4, 2)
    return [each.metrics for each in run_ranks(life, then, ranks, nodes)]


@pytest.mark.parametrize("kind", ["whole", "shards", "single"])
def test_ranks_that_start_again_continue_at_the_same_step_with_what_is_their_own(first: Life, kind: str) -> None:
    first = replace(first, kind=kind)
    for rank, found in enumerate(rounds(first, replace(first, round=1, last=7))):
        assert (found["start"], found["memory"], found["single"]) == (5, True, kind == "single")
        assert found["compared"] == 0  # what was loaded is equal where it was
        assert found["own"]["rank"] == rank
        assert found["own"]["noise"] == [rank + 5] * 3
        assert found["values"] == {"counter": {"steps": 5}}
        assert found["before"]["small"] == total(5)
        assert found["before"]["large"] == [total(5) + (1000 * rank if kind == "single" else 0)] * SIZE


@pytest.mark.parametrize("lost", [0, ci(1)])
@pytest.mark.parametrize("kind", ["whole", "shards", "single"])
def test_a_node_that_takes_the_place_of_a_lost_one_gets_everything_from_the_other(
    first: Life, kind: str, lost: int
) -> None:
    first = replace(first, kind=kind)
    memories = tuple(memory() if node == lost else path for node, path in enumerate(first.memories))
    for rank, found in enumerate(rounds(first, replace(first, memories=memories, round=1))):
        assert (found["start"], found["memory"]) == (5, True)
        assert found["own"]["rank"] == rank
        assert found["mean"] == [1000 * rank + 5] * 2
        assert found["before"]["large"] == [total(5) + (1000 * rank if kind == "single" else 0)] * SIZE


@pytest.mark.parametrize("kind", ["whole", "shards"])
@pytest.mark.parametrize("lost", [0, 1])
def test_a_node_that_has_taken_a_place_is_enough_before_it_has_made_a_copy(first: Life, lost: int, kind: str) -> None:
    first = replace(first, kind=kind)
    run_ranks(life, first, 4, 2)
    new = tuple(memory() if node == lost else path for node, path in enumerate(first.memories))
    run_ranks(life, replace(first, memories=new, round=1), 4, 2)  # makes no step
    left = tuple(path if node == lost else memory() for node, path in enumerate(new))
    for rank, found in enumerate(run_ranks(life, replace(first, memories=left, round=2), 4, 2)):
        assert (found.metrics["start"], found.metrics["memory"], found.metrics["own"]["rank"]) == (5, True, rank)


def test_nodes_that_change_places_send_each_other_what_is_theirs(first: Life) -> None:
    first = replace(first, kind="single")
    for rank, found in enumerate(rounds(first, replace(first, memories=first.memories[::-1], round=1))):
        assert (found["start"], found["memory"], found["own"]["rank"]) == (5, True, rank)
        assert found["before"]["large"] == [total(5) + 1000 * rank] * SIZE


@pytest.mark.parametrize(("ranks", "nodes"), [(2, 1), ci(3, 1), (6, 2)])
@pytest.mark.parametrize("kind", ["whole", "shards"])
def test_another_number_of_ranks_continues_as_well(first: Life, kind: str, ranks: int, nodes: int) -> None:
    first = replace(first, kind=kind)
    then = replace(first, memories=first.memories[:nodes] if kind == "whole" else first.memories, round=1)
    if kind == "shards" and nodes == 1:  # the peers' copies are on the node that is left
        then = replace(then, memories=first.memories[:1])
    for found in rounds(first, then, ranks, nodes):
        assert (found["start"], found["memory"], found["own"]) == (5, True, None)
        assert found["before"] == {"large": [total(5)] * SIZE, "small": total(5)}


@pytest.mark.parametrize(
    ("kind", "peers", "memory_left"), [("whole", False, False), ("shards", False, False), ("shards", True, False)]
)
def test_without_all_copies_the_disk_is_used(first: Life, kind: str, peers: bool, memory_left: bool) -> None:
    first = replace(first, kind=kind, peers=peers, save_at=3)
    memories = (memory(), memory() if peers else first.memories[1])  # with peers both copies are lost
    for found in rounds(first, replace(first, memories=memories, round=1)):
        assert (found["start"], found["memory"]) == (3, memory_left)


@pytest.mark.parametrize("lacks", ["memory", "addresses"])
def test_the_disk_is_used_if_a_node_has_no_memory_for_what_it_would_get(first: Life, lacks: str) -> None:
    first = replace(first, save_at=3)
    run_ranks(life, first, 4, 2)
    then = replace(first, memories=(first.memories[0], memory()), round=1, last=3)
    for found in run_ranks(life, then, 4, 2, prepare=partial(cannot_receive, lacks)):
        assert (found.metrics["start"], found.metrics["memory"]) == (3, False)
        if "in memory are not used" in found.printed:
            assert ("they need" if lacks == "memory" else "Cannot allocate memory") in found.printed


def cannot_receive(lacks: str, env: Env) -> None:
    if env.node_rank == 0:
        return
    mapped = MemorySlot._mapped

    def fails(self: MemorySlot, size: int) -> torch.Tensor:
        if size > HEADER:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        return mapped(self, size)

    if lacks == "memory":
        little_memory(env)
    else:
        MemorySlot._mapped = fails  # type: ignore[method-assign]


def test_a_newer_checkpoint_on_disk_comes_before_copies(first: Life) -> None:
    first = replace(first, save_at=5, every=3)  # copies at steps 1 and 4
    for found in rounds(first, replace(first, round=1)):
        assert (found["start"], found["memory"]) == (5, False)


def test_a_failed_round_without_steps_loses_nothing_and_a_third_round_continues(first: Life) -> None:
    run_ranks(life, first, 4, 2)
    run_ranks(life, replace(first, round=1, last=5), 4, 2)  # makes no step
    run_ranks(life, replace(first, round=2, last=6), 4, 2)
    for found in run_ranks(life, replace(first, round=3), 4, 2):
        assert found.metrics["start"] == 6


def test_half_a_copy_and_older_ones_do_not_count(first: Life) -> None:
    # Of step 5 rank 2 has erased its own copy, as if it had died while it was being made
    run_ranks(life, first, 4, 2)
    file = os.open(first.memories[1], os.O_RDWR)
    own = Pair(file, 2)
    own.slots[own.last].erase()
    peer = Pair(os.open(first.memories[0], os.O_RDWR), 4)
    peer.slots[peer.last].erase()
    for found in run_ranks(life, replace(first, round=1, last=8), 4, 2):
        assert (found.metrics["start"], found.metrics["memory"]) == (4, True)
    for found in run_ranks(life, replace(first, round=2), 4, 2):  # copies of the abandoned step 5 are gone
        assert found.metrics["start"] == 8


@pytest.mark.parametrize("kind", [REPLICA, OWN, PEER])
def test_a_changed_byte_is_named_and_the_next_best_is_taken(first: Life, kind: str) -> None:
    run_ranks(life, first, 4, 2)
    number = {REPLICA: 0, OWN: 2, PEER: 4}[kind]
    pair = Pair(os.open(first.memories[0], os.O_RDWR), number)
    slot = pair.slots[pair.last]
    header = slot.header()
    assert header is not None
    slot.body(header.size)[header.index // 2 if kind == REPLICA else header.size // 2] ^= 1
    results = run_ranks(life, replace(first, round=1), 4, 2)
    for rank, found in enumerate(results):
        assert (found.metrics["start"], found.metrics["memory"]) == (5, True)
        assert found.metrics["own"]["rank"] == rank
        assert found.metrics["before"]["large"] == [total(5)] * SIZE
    said = "changed since" in results[0].printed
    assert said == (kind != PEER)  # of a copy that nobody needs nothing is read
    assert header.size < HEADER or kind == REPLICA


def test_copies_that_would_not_fit_are_refused_with_the_number(first: Life) -> None:
    for found in run_ranks(life, first, 4, 2, prepare=little_memory):
        assert found.metrics["every"] == 0
    (line,) = [line for line in run_ranks(life, first, 2, 2, prepare=little_memory)[0].printed.splitlines() if line]
    assert "no copies in memory from here on, only checkpoints on disk: they need 504 B on a node, over 90 % of" in line


def little_memory(env: Env) -> None:
    from launcher.binding import hardware

    hardware.free_memory = lambda *_: 100  # type: ignore[assignment]
    MemoryCheckpoints._held_bytes = lambda _: 0  # type: ignore[method-assign]


def test_a_copy_that_fails_on_one_rank_is_given_up_on_all_and_a_later_one_is_made(first: Life) -> None:
    for found in run_ranks(odd_life, first, 4, 2):
        assert found.metrics == {"begun": 0, "every": 1}
    for found in run_ranks(odd_life, replace(first, round=1), 4, 2):
        assert found.metrics["begun"] == 7  # the next ones are tried at step 3, and at 7


def odd_life(it: Life, env: Env) -> dict[str, Any]:
    os.environ["LAUNCHER_ROUND"], os.environ["GROUP_RANK"] = str(it.round), str(env.node_rank)
    shared_with_agent.share_memory(os.open(it.memories[env.node_rank], os.O_RDWR), env.local_rank)
    saved = Checkpointer(it.folder, env, identity={}, memory=1, timeout=20)
    state = {"tensor": torch.zeros(3)}
    loaded = saved.load(state)
    for step in range(1, 8):
        saved.keep(step, {**state, "odd": object()} if (env.rank, step) in ((2, 1), (1, 3)) else state)
    assert saved._memory is not None
    saved.close()
    return {"begun": 0 if loaded is None else loaded.step, "every": saved._memory.every}


def test_several_nodes_that_lack_everything_pass_on_what_they_get(first: Life) -> None:
    run_ranks(life, replace(first, memories=tuple(memory() for _ in range(4))), 4, 4)
    four = replace(first, memories=tuple(memory() for _ in range(4)))
    run_ranks(life, four, 4, 4)
    two_lost = replace(four, memories=(four.memories[0], memory(), four.memories[2], memory()), round=1)
    for rank, found in enumerate(run_ranks(life, two_lost, 4, 4)):
        assert (found.metrics["start"], found.metrics["own"]["rank"]) == (5, rank)
    alone = replace(first, memories=first.memories[:1], round=2)
    run_ranks(life, alone, 2, 1)
    grown = replace(first, memories=(first.memories[0], *(memory() for _ in range(3))), round=3)
    for found in run_ranks(life, grown, 4, 4):
        assert (found.metrics["start"], found.metrics["memory"]) == (5, True)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dies_at(cls: type, method: str, call: int, env: Env) -> None:
    """Rank 1 dies at a call of a method, from 0."""
    before, calls = getattr(cls, method), iter(range(1 << 30))

    def called(self: Any, *of: Any) -> Any:
        if next(calls) == call:
            die()
        return before(self, *of)

    if env.rank == 1:
        setattr(cls, method, called)


MOMENTS = {
    "writes": partial(dies_at, MemoryCheckpoints, "_write", 3),
    "sends": partial(dies_at, MemoryCheckpoints, "_exchange", 3),
    "receives": partial(dies_at, MemoryCheckpoints, "_pass", 7),  # two a copy: the header, and the body
    "agrees": partial(dies_at, MemoryCheckpoints, "_agree", 3),
    "has changed a part of the state": None,  # in the optimizer's step
}


@pytest.mark.parametrize("kind", ["shards", ci("whole")])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_rank_that_is_killed_during_a_copy_or_a_step_costs_at_most_one(first: Life, kind: str, moment: str) -> None:
    first, prepare = replace(first, kind=kind), MOMENTS[moment]
    with pytest.raises(RanksFailedError, match="rank 1 died"):
        run_ranks(life, replace(first, half=-1 if prepare else 4), 4, 2, prepare=prepare)
    results = run_ranks(life, replace(first, round=1), 4, 2)
    (start,) = {found.metrics["start"] for found in results}
    assert start in ((3, 4) if prepare else (2, 3))  # the newest, or that before: the newest was being made
    for rank, found in enumerate(results):
        assert (found.metrics["memory"], found.metrics["own"]["rank"]) == (True, rank)
        assert found.metrics["before"] == {"large": [total(start)] * SIZE, "small": total(start)}


@pytest.mark.parametrize("kind", ["shards", ci("whole")])
def test_a_node_that_is_lost_before_the_next_copy_costs_nothing(first: Life, kind: str) -> None:
    """The copy before was written, and not sent to the other node, when a rank died."""
    first = replace(first, kind=kind)
    with pytest.raises(RanksFailedError, match="rank 1 died"):
        run_ranks(life, first, 4, 2, prepare=MOMENTS["sends"])
    (start,) = {found.metrics["start"] for found in run_ranks(life, replace(first, round=1, last=3), 4, 2)}
    then = replace(first, memories=(first.memories[0], memory()), round=2)
    for found in run_ranks(life, then, 4, 2):
        assert (found.metrics["start"], found.metrics["memory"]) == (start, True)


@pytest.mark.parametrize("kind", ["shards", ci("whole")])
def test_a_second_failure_while_copies_are_fetched_loses_nothing(first: Life, kind: str) -> None:
    """Rank 2, of a new node, dies when it has got a copy, before it has sealed it."""
    first = replace(first, kind=kind)
    run_ranks(life, first, 4, 2)
    then = replace(first, memories=(first.memories[0], memory()), round=1)
    with pytest.raises(RanksFailedError, match="rank 2 died"):
        run_ranks(life, then, 4, 2, prepare=dies_while_it_fetches)
    for found in run_ranks(life, replace(then, round=2), 4, 2):
        assert (found.metrics["start"], found.metrics["memory"]) == (5, True)
        assert found.metrics["before"] == {"large": [total(5)] * SIZE, "small": total(5)}


def dies_while_it_fetches(env: Env) -> None:
    if env.rank == 2:
        MemorySlot.write_header = lambda *_: die()  # type: ignore[method-assign]


def test_an_error_of_one_rank_while_copies_are_sent_ends_them_on_all_at_once(first: Life) -> None:
    began = time.monotonic()
    for found in run_ranks(life, first, 4, 2, prepare=cannot_send):
        assert found.metrics["every"] == 0
    assert time.monotonic() - began < 20  # the timeout of a copy


def cannot_send(env: Env) -> None:
    def fails(*_: Any) -> None:
        raise MemoryError("no memory to receive")

    if env.rank == 1:
        MemoryCheckpoints._exchange = fails  # type: ignore[method-assign]


def test_nodes_with_different_numbers_of_ranks_copy_to_each_other(first: Life) -> None:
    for found in run_ranks(life, first, 3, 1, prepare=two_and_one):
        assert (found.metrics["start"], found.metrics["every"]) == (0, 1)


def two_and_one(env: Env) -> None:
    object.__setattr__(env, "node_ranks", (0, 0, 1))


def test_what_ranks_restore_themselves_does_not_wait_for_what_the_peers_get(first: Life) -> None:
    run_ranks(restored_life, first, 2, 1)
    for found in run_ranks(restored_life, replace(first, round=1), 2, 1):
        assert found.metrics["told"] == ["restored at step 3", "sends step 3"]


def restored_life(it: Life, env: Env) -> dict[str, Any]:
    os.environ["LAUNCHER_ROUND"], os.environ["GROUP_RANK"] = str(it.round), str(env.node_rank)
    shared_with_agent.share_memory(os.open(it.memories[env.node_rank], os.O_RDWR), env.local_rank)
    told: list[str] = []
    MemoryCheckpoints.share = lambda _, step: told.append(f"sends step {step}")  # type: ignore[method-assign]
    saved, state = Checkpointer(it.folder, env, identity={}, memory=1, timeout=20), {"tensor": torch.zeros(3)}
    saved.load(state, then=lambda loaded: told.append(f"restored at step {loaded.step}"))
    saved.keep(3, state)
    saved.close()
    return {"told": told}


# -- trainers that load files alone


def trainer_life(it: Life, env: Env) -> dict[str, Any]:
    file = os.open(it.memories[env.node_rank], os.O_RDWR)
    os.environ["LAUNCHER_ROUND"], os.environ["GROUP_RANK"] = str(it.round), str(env.node_rank)
    shared_with_agent.share_memory(file, env.local_rank)
    run = Settings(replace(CHECKPOINT, memory=1, peers=it.peers, timeout=20), run_dir=it.folder)
    memory = TrainerMemory(it.folder, run, env)
    folder = memory.files(
        lambda: it.save_at,
        lambda kept: {"state.pt": partial(torch.save, kept.state)},
        lambda kept: {} if kept.rank_state is None else {f"own-{env.rank}.pt": partial(torch.save, kept.rank_state)},
    )
    found: dict[str, Any] = {"found": folder is not None}
    if folder is not None:
        state = torch.load(folder / "state.pt", weights_only=True)
        found |= {
            "step": state["step"],
            "weights": state["weights"].tolist(),
            "beside": sorted(path.name for path in folder.iterdir()),
        }
        found["own"] = (
            torch.load(folder / f"own-{env.rank}.pt", weights_only=True)
            if (folder / f"own-{env.rank}.pt").exists()
            else None
        )
        memory.loaded()
        memory.loaded()  # nothing is left to free
        dist.barrier()
        found["left"] = os.path.lexists(folder)
    for step in range(1, it.last + 1):
        weights = torch.full((SIZE,), float(step)) + (1000 * env.rank if it.kind == "single" else 0)
        memory.keep(step, lambda step=step, weights=weights: {"weights": weights, "step": step}, {"rank": env.rank})  # type: ignore[misc]
    memory._memory.wait()
    return found


@pytest.mark.parametrize(
    ("kind", "lost", "ranks"), [("whole", None, 4), ("whole", 0, 4), ("single", 1, 4), ("whole", 0, 2)]
)
def test_a_trainer_gets_files_of_the_newest_copy(first: Life, kind: str, lost: int | None, ranks: int) -> None:
    first = replace(first, kind=kind)
    run_ranks(trainer_life, first, 4, 2)
    memories = tuple(memory() if node == lost else path for node, path in enumerate(first.memories))
    then = replace(first, memories=memories, round=1, last=0)
    for rank, each in enumerate(run_ranks(trainer_life, then, ranks, 2)):
        found = each.metrics
        assert found["step"] == 5 and not found["left"]
        assert found["weights"] == [5.0 + (1000 * rank if kind == "single" else 0)] * SIZE
        assert found["own"] == ({"rank": rank} if ranks == 4 else None)
        own = [f"own-{rank}.pt"] if kind == "single" else [f"own-{rank - rank % 2 + one}.pt" for one in (0, 1)]
        assert found["beside"] == [*(own if ranks == 4 else []), "state.pt"]


def test_a_trainer_gets_no_files_of_different_states_at_another_number_of_ranks(first: Life) -> None:
    first = replace(first, kind="single")
    run_ranks(trainer_life, first, 4, 2)
    assert [each.metrics["found"] for each in run_ranks(trainer_life, replace(first, round=1, last=0), 2, 2)] == [
        False
    ] * 2


def test_a_trainer_gets_no_files_of_a_copy_that_is_no_newer_than_the_disk(first: Life) -> None:
    run_ranks(trainer_life, first, 4, 2)
    then = replace(first, round=1, last=0, save_at=5)
    assert [each.metrics["found"] for each in run_ranks(trainer_life, then, 4, 2)] == [False] * 4


def views(folder: Path, env: Env) -> dict[str, Any]:
    """What ranks take for the newest checkpoint if they see different ones, and if rank 0 cannot read."""
    os.environ |= {"RANK": str(env.rank), "WORLD_SIZE": str(env.world_size)}
    plan = SimpleNamespace(checkpoint=replace(CHECKPOINT, read_timeout=0))
    trainers.current_attempt = lambda: SimpleNamespace(run=SimpleNamespace(plan=lambda: plan))  # type: ignore[assignment]
    checkpoints._entries = lambda _: {"a" if env.rank == 0 else "b": False}
    found: dict[str, Any] = {"newest": trainers.newest(folder, ".", ["last"], lambda _: True)}

    def unreadable(_: Path) -> dict[str, bool]:
        if env.rank == 0:
            raise OSError(errno.EIO, "no answer")
        return {"b": False}

    checkpoints._entries = unreadable
    try:
        trainers.newest(folder, ".", ["last"], lambda _: True)
    except CannotRead as error:
        found["error"] = str(error)
    return found


def test_rank_0_chooses_the_checkpoint_of_a_trainer(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    (tmp_path / "b").touch()
    for each in run_ranks(views, tmp_path, 3):
        assert each.metrics == {"newest": tmp_path / "a", "error": f"{tmp_path} could not be read: no answer"}
