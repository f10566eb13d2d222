"""Copies of a state in memory: which of them are loaded, and that nothing is loaded from bad ones."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from launcher import Env
from launcher.checkpoint import memory_copies as memory_module
from launcher.checkpoint import memory_format
from launcher.checkpoint.checkpointer import Checkpointer
from launcher.checkpoint.format import Damaged
from launcher.checkpoint.memory_copies import MemoryCheckpoints
from launcher.checkpoint.memory_format import (
    AREA,
    AUTO_FREE,
    HEADER,
    MOST_FREE,
    OWN,
    PEER,
    REPLICA,
    SHARDS,
    SINGLE,
    WHOLE,
    Header,
    Held,
    MemorySlot,
    Needs,
    Pair,
    choose,
    interval,
    missing,
    needed,
    shortage,
)
from launcher.worker import shared_with_agent
from tests.fakes import cuda

ALONE = Env(0, 0, 1, 1, 0, 1, (), "here", "gloo", torch.device("cpu"), "test", (0,))
FOUR = (0, 0, 2, 2)  # two agents with two ranks


def held(holder: int, kind: str, rank: int, step: int = 5, **changes: Any) -> Held:
    header = Header("lineage", WHOLE, "layout", 0, step, rank, 4)
    return Held(holder, kind, replace(header, **changes))


def all_of(step: int = 5, *, without: tuple[int, ...] = (), **changes: Any) -> list[Held]:
    """The copies of four ranks on two nodes, without those in the memory of the nodes of some ranks."""
    mode = changes.get("mode", WHOLE)
    found = [held(rank, OWN, rank, step, **changes) for rank in range(4)]
    found += [held((rank + 2) % 4, PEER, rank, step, **changes) for rank in range(4)]
    found += [held(rank, REPLICA, rank, step, **changes) for rank in (0, 2) if mode == WHOLE]
    return [each for each in found if each.holder not in without]


@pytest.mark.parametrize(
    ("there", "first_ranks", "least", "wanted"),
    [
        ([], FOUR, 0, None),
        (all_of(), FOUR, 0, (0, 5)),
        (all_of(), FOUR, 5, (0, 5)),
        (all_of(), FOUR, 6, None),
        (all_of(5) + all_of(4), FOUR, 0, (0, 5)),
        (all_of(5, without=(1,))[:-3] + all_of(4), FOUR, 0, (0, 4)),  # of step 5 no replica is left
        (all_of(9) + all_of(7, round=1), FOUR, 0, (1, 7)),  # the newer round comes first
        (all_of(without=(2, 3)), FOUR, 0, (0, 5)),  # rank 0 and 1 have copies of what was theirs
        (all_of(without=(1, 2)), FOUR, 0, (0, 5)),
        (all_of(without=(0, 2)), FOUR, 0, None),  # nobody has rank 0's own
        ([*all_of(without=(0, 2))[:1], held(0, REPLICA, 2)], (0, 0), 0, (0, 5)),  # ... which two ranks do not need
        ([held(0, OWN, 0)], (0, 0), 0, None),
        (all_of(mode=SHARDS), FOUR, 0, (0, 5)),
        (all_of(mode=SHARDS), (0, 0, 0), 0, (0, 5)),
        (all_of(mode=SHARDS, without=(1, 3)), (0, 0), 0, None),
        (all_of(mode=SINGLE), FOUR, 0, (0, 5)),
        (all_of(mode=SINGLE), (0, 0, 0), 0, None),
        ([*all_of()[:-1], held(2, REPLICA, 2, layout="another")], FOUR, 0, None),
        ([*all_of(mode=SHARDS)[1:], held(0, OWN, 0, mode=SHARDS, layout="a stage")], FOUR, 0, (0, 5)),
        ([*all_of(mode=SHARDS)[1:], held(0, OWN, 0, mode=SHARDS, layout="a stage")], (0, 0), 0, None),
        (all_of() + all_of(mode=SINGLE), FOUR, 0, None),
        (all_of() + all_of(world_size=2), FOUR, 0, None),
    ],
)
def test_the_newest_complete_step_is_chosen(
    there: list[Held], first_ranks: tuple[int, ...], least: int, wanted: tuple[int, int] | None
) -> None:
    source = choose(there, first_ranks, least)
    assert (None if source is None else (source.round, source.step)) == wanted


@given(st.lists(st.integers(0, 7), unique=True, min_size=1, max_size=7), st.integers(1, 8))
def test_every_rank_gets_what_it_needs_from_one_that_has_it_by_then(lost: list[int], agents: int) -> None:
    first_ranks = [2 * agent for agent in range(agents) for _ in range(2)]
    there = [held(2 * agent, REPLICA, 2 * agent, world_size=99) for agent in range(agents) if agent not in lost]
    source = choose(there, first_ranks, 0)
    assert (source is None) == (not there)
    if source is None:
        return
    have = {each.holder: each.header for each in there}
    for each in source.transfers:
        assert each.held in there
        assert have[each.sender] == each.held.header
        have[each.to] = each.held.header
    assert have.keys() == set(first_ranks)
    senders = [each.sender for each in source.transfers if each.moves]
    assert max(map(senders.count, senders), default=0) <= agents.bit_length()


def test_a_rank_keeps_what_it_has() -> None:
    source = choose(all_of(), FOUR, 0)
    assert source is not None
    assert not any(each.moves for each in source.transfers)


def test_choosing_among_the_copies_of_32768_ranks_is_not_quadratic() -> None:
    ranks = 32768
    there = [held(rank, OWN, rank, world_size=ranks) for rank in range(ranks)]
    there += [held(rank, REPLICA, rank, world_size=ranks) for rank in range(0, ranks, 8)]
    source = choose(there, [rank // 8 * 8 for rank in range(ranks)], 0)
    assert source is not None
    assert len(source.transfers) == ranks + ranks // 8


@pytest.mark.parametrize(
    ("blocked", "whole", "step", "wanted"),
    [
        (0.0, 0.0, 0.05, 1),
        (0.0003, 0.0, 0.05, 1),
        (0.00034, 0.0, 0.05, 1),
        (0.00036, 0.0, 0.05, 2),
        (0.05, 0.1, 0.05, 143),
        (0.0, 0.5, 0.05, 10),
        (1.0, 1.0, 0.0, 1),
    ],
)
def test_copies_cost_at_most_a_hundredth_of_the_time(blocked: float, whole: float, step: float, wanted: int) -> None:
    assert interval(blocked, whole, step) == wanted


@pytest.mark.parametrize(
    ("needed", "free", "share", "fits"),
    [
        (89, 100, MOST_FREE, True), (90, 100, MOST_FREE, True), (91, 100, MOST_FREE, False),
        (49, 100, AUTO_FREE, True), (50, 100, AUTO_FREE, True), (51, 100, AUTO_FREE, False),
        (1 << 50, None, AUTO_FREE, True),
    ],
)  # fmt: skip
def test_a_part_of_the_free_memory_stays_free(needed: int, free: int | None, share: float, fits: bool) -> None:
    assert (shortage(needed, free, share) == "") == fits


def ranks_with(*of_ranks: tuple[int, int, int], nodes: int = 2) -> list[Needs]:
    """Needs of ranks in equal numbers on each node, from bytes of tensors, of rank_state, and free ones."""
    here = len(of_ranks) // nodes
    return [
        Needs(rank // here, rank % here == 0, free, 10 * (rank % here == 0), tensors, rank_state)
        for rank, (tensors, rank_state, free) in enumerate(of_ranks)
    ]


@pytest.mark.parametrize(
    ("ranks", "mode", "peer", "wanted"),
    [
        (ranks_with(*[(100, 0, 0)] * 4), WHOLE, 2, [250, 250]),  # two copies, and what both ranks write of it
        (ranks_with(*[(100, 7, 0)] * 4), WHOLE, 0, [278, 278]),
        (ranks_with(*[(100, 7, 0)] * 4), WHOLE, 2, [306, 306]),
        (ranks_with(*[(100, 0, 0)] * 4), SHARDS, 2, [1000, 1000]),
        (ranks_with(*[(100, 7, 0)] * 4), SHARDS, 0, [628, 628]),
        (ranks_with((40, 0, 0), (5, 1, 0)), SINGLE, 1, [40 + 2 * 40 + 2 * 6, 5 + 2 * 6 + 2 * 40]),  # a pipeline
        (ranks_with((9, 0, 0), (9, 0, 0), nodes=1), SINGLE, 0, [54]),
        ([replace(each, pinned=100) for each in ranks_with(*[(100, 0, 0)] * 4)], WHOLE, 2, [350, 350]),
        ([replace(each, pinned=100) for each in ranks_with(*[(100, 0, 0)] * 4)], SHARDS, 2, [1200, 1200]),
        ([replace(each, pinned=128) for each in ranks_with(*[(100, 0, 0)] * 4)], WHOLE, 2, [392, 392]),
        ([replace(each, pinned=128) for each in ranks_with(*[(100, 0, 0)] * 4)], SHARDS, 2, [1312, 1312]),
    ],
)
def test_what_a_node_needs_is_what_it_will_hold(ranks: list[Needs], mode: str, peer: int, wanted: list[int]) -> None:
    assert list(needed(ranks, mode, peer).values()) == wanted


@pytest.mark.parametrize(("free", "fits"), [(268, True), (267, False)])  # 250 are 90 % of 278, of which the file has 10
def test_each_node_must_have_room(free: int, fits: bool) -> None:
    ranks = ranks_with((100, 0, 999), (100, 0, 999), (100, 0, 300), (100, 0, free))
    assert (missing(ranks, WHOLE, 2) == "") == fits


@pytest.fixture
def slot() -> Iterator[MemorySlot]:
    file = shared_with_agent.make_memory()
    yield MemorySlot(file, 7)
    os.close(file)


def test_tensors_of_all_types_and_sizes_come_back(slot: MemorySlot) -> None:
    tensors = {
        "none": torch.zeros(0), "one": torch.tensor(True), "half": torch.randn(3, 5).half(),
        "many": torch.arange(1000), "complex": torch.randn(2, dtype=torch.complex64), "empty rows": torch.zeros(3, 0),
    }  # fmt: skip
    for name, room in slot.buffers(tensors).items():
        room.copy_(tensors[name])
    slot.seal(Header("lineage", WHOLE, "", 0, 1, 0, 1), tensors, {"more": [1, 2]})
    header = slot.header()
    assert header is not None and header.about == ["lineage", 0, 1, 0]
    body = slot.body(header.size)
    memory_format.sound_index(body, header)
    index = memory_format.index_of(body, header)
    assert index["more"] == [1, 2]
    for name, tensor in memory_format.tensors_in(body, index).items():
        assert torch.equal(tensor, tensors[name])
        assert tensor.dtype == tensors[name].dtype


def test_what_an_earlier_process_has_written_is_given_back(slot: MemorySlot) -> None:
    slot.body(1 << 20).fill_(1)
    later = MemorySlot(slot._file, slot._number)
    later.free()
    assert os.fstat(slot._file).st_blocks * 512 < 1 << 16
    assert later.header() is None and not later.body(1 << 20).any()


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_a_slot_holds_as_much_as_its_area(slot: MemorySlot, more: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_format, "AREA", HEADER + (1 << 20))
    if more <= 0:
        assert len(slot.body((1 << 20) + more)) == (1 << 20) + more
    else:
        with pytest.raises(ValueError, match="more than a slot can hold"):
            slot.body((1 << 20) + more)


def test_the_slots_of_the_largest_node_fit_into_the_file() -> None:
    assert (2 + 4 * 64) * AREA <= shared_with_agent._MEMORY_SIZE


# -- bad copies


class Training:
    """A training of one rank, and the memory of its agent."""

    memory: int | None = 1

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.file = shared_with_agent.make_memory()
        monkeypatch.setenv(shared_with_agent.MEMORY, f"{os.getpid()}:{self.file}:0")
        monkeypatch.setattr(memory_module, "_in_use", False)
        self.patch, self.folder, self.round = monkeypatch, folder, 0

    def begin(self, **state: Any) -> tuple[int, dict[str, Any], Checkpointer]:
        """Starts a round; returns the step at which it begins, the state, and the checkpointer."""
        self.patch.setenv("LAUNCHER_ROUND", str(self.round))
        self.round += 1
        saved = Checkpointer(self.folder, ALONE, identity={}, memory=self.memory, read_timeout=0)
        state = {"weights": torch.zeros(100), "steps": {"done": 0}, **state}
        loaded = saved.load(state)
        return (0 if loaded is None else loaded.step), state, saved

    def go_on(self, state: dict[str, Any], saved: Checkpointer, steps: range) -> None:
        for step in steps:
            state["weights"] = torch.full((100,), float(step))
            saved.keep(step, state)
        saved.close()

    def pair(self, kind: str) -> Pair:
        return Pair(self.file, {REPLICA: 0, OWN: 2}[kind])


@pytest.fixture
def training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Training]:
    it = Training(tmp_path / "checkpoints", monkeypatch)
    yield it
    os.close(it.file)


def flipped(slot: MemorySlot, header: Header, number: int) -> None:
    slot.body(header.size)[number * 7919 % header.size] ^= 1 << number % 8


def torn(slot: MemorySlot, header: Header, number: int) -> None:
    slot.erase()
    slot.body(header.size)[: number * 40 % header.size] = 0


def damaged_header(slot: MemorySlot, header: Header, number: int) -> None:
    data = bytearray(header.data())
    data[number * 13 % len(data.rstrip(b"\0"))] ^= 1
    slot.write_header(bytes(data))


def wrong_step(slot: MemorySlot, header: Header, number: int) -> None:
    slot.write_header(replace(header, step=header.step + 1 + number).data())


def another_training(slot: MemorySlot, header: Header, number: int) -> None:
    slot.write_header(replace(header, lineage=f"other {number}").data())


def another_layout(slot: MemorySlot, header: Header, number: int) -> None:
    slot.write_header(replace(header, layout=f"other {number}").data())


def short(slot: MemorySlot, header: Header, number: int) -> None:
    slot.write_header(replace(header, size=header.size - 1 - number % 50).data())


BAD = (flipped, torn, damaged_header, wrong_step, another_training, another_layout, short)


@pytest.mark.parametrize("kind", [REPLICA, OWN])
@pytest.mark.parametrize("damage", BAD, ids=lambda damage: damage.__name__)
def test_nothing_is_loaded_from_a_bad_copy_and_the_one_before_is_taken(
    training: Training, damage: Any, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    begun, state, saved = training.begin()
    assert begun == 0
    training.go_on(state, saved, range(1, 6))
    for number in range(8):
        last = 5 + number
        pair = training.pair(kind)
        header = pair.slots[pair.last].header()
        assert header is not None
        assert header.step == last
        damage(pair.slots[pair.last], header, number)
        capsys.readouterr()
        begun, state, saved = training.begin()
        printed = capsys.readouterr().out
        assert begun == last - 1
        assert torch.equal(state["weights"], torch.full((100,), float(last - 1)))
        assert "in memory" in printed
        assert ("are not used" in printed) == (damage not in (torn, wrong_step, another_layout))
        training.go_on(state, saved, range(last, last + 2))


def test_a_model_that_was_changed_between_two_rounds_is_refused_as_from_disk(training: Training) -> None:
    _, state, saved = training.begin()
    training.go_on(state, saved, range(1, 3))
    begun, state, saved = training.begin(more=torch.zeros(3))
    assert begun == 0
    saved.close()


@pytest.mark.parametrize("elements", [100, 1 << 20])
def test_a_copy_of_what_is_on_a_gpu_is_that_of_its_step_whatever_is_queued(
    elements: int, training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = cuda.install(monkeypatch)
    weights = fake.tensor(torch.zeros(elements), 0)
    _, _, saved = training.begin()
    for step in (1, 2, 3):
        saved.staged()  # before the optimizer's step
        fake.kernel(weights, float(step))
        saved.keep(step, {"weights": weights, "steps": {"done": step}})
    saved.staged()
    fake.kernel(weights, -1.0)
    fake.synchronize()
    saved.close()
    copies = [call for call in fake.calls if call.what == "copy"]
    assert {call.thread for call in copies} == {"memory-checkpoint"}  # training goes on meanwhile
    assert fake.current_stream().number not in {call.stream for call in copies}
    begun, state, saved = training.begin(weights=torch.zeros(elements))
    assert (begun, state["weights"].unique().tolist()) == (3, [3.0])
    saved.close()


def test_a_header_that_is_not_ours_is_damage() -> None:
    assert Header.of(bytes(HEADER)) is None
    with pytest.raises(Damaged):
        Header.of(b"x" * HEADER)


def test_a_training_that_goes_back_gets_the_disk_and_copies_go_on(training: Training) -> None:
    _, state, saved = training.begin()
    state["weights"] = torch.full((100,), 2.0)
    saved.save(2, state, wait=True)
    for step in (3, 4):
        state["weights"] = torch.full((100,), float(step))
        saved.keep(step, state)
    loaded = saved.load(state)
    assert loaded is not None
    assert (loaded.step, loaded.path is None) == (2, False)
    assert torch.equal(state["weights"], torch.full((100,), 2.0))
    training.go_on(state, saved, range(3, 4))
    begun, state, saved = training.begin()
    assert begun == 3
    saved.close()


def test_copies_that_take_long_are_rare_from_the_first_on_also_in_the_next_round(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, copies = MemoryCheckpoints._write, list[int]()

    def slowly(self: MemoryCheckpoints, copy: Any) -> None:
        write(self, copy)
        copies.append(copy.step)
        time.sleep(0.5)

    monkeypatch.setattr(MemoryCheckpoints, "_write", slowly)
    training.memory = None  # auto
    _, state, saved = training.begin()
    step = 0
    while len(copies) < 2:
        time.sleep(0.01)
        saved.staged()  # before the optimizer's step
        saved.keep(step := step + 1, state)
    saved.close()
    assert copies[1] > 20  # 0.5 s are 50 steps
    begun, state, saved = training.begin()
    began = time.perf_counter()
    for step in range(begun + 1, begun + 11):
        time.sleep(0.01)
        saved.staged()
        saved.keep(step, state)
    assert time.perf_counter() - began < 0.4  # a later round knows that from the beginning
    saved.close()
    assert copies[2:] == [begun + 1]


@pytest.mark.parametrize(("device", "counts"), [("cpu", True), ("cuda", False)])
def test_what_a_copy_computes_on_the_cores_of_a_training_is_a_cost(
    device: str, counts: bool, training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = list[float]()
    monkeypatch.setattr(memory_module.time, "thread_time", lambda: 1000.0)
    monkeypatch.setattr(memory_format, "interval", lambda blocked, *_: given.append(blocked) or 1)
    training.memory = None  # auto
    _, state, saved = training.begin()
    assert saved._memory is not None
    saved._memory._env = replace(ALONE, device=torch.device(device))
    for step in (1, 2, 3):
        saved.keep(step, state)
    saved.close()
    assert given and {blocked >= 1000 for blocked in given} == {counts}


@pytest.mark.parametrize(("every", "complete"), [(1, 1), (2, 0)])
def test_no_step_is_done_before_the_copy_of_the_one_before_is_complete(
    every: int, complete: int, training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has done two steps since the last complete copy would do two again; longer intervals allow that."""
    agree, may_go_on, copies = MemoryCheckpoints._agree, threading.Event(), list[int]()

    def waits(self: MemoryCheckpoints, copy: Any, cost: tuple[float, float]) -> None:
        may_go_on.wait(0.2 if every == 1 else 60)
        agree(self, copy, cost)
        copies.append(copy.step)

    monkeypatch.setattr(MemoryCheckpoints, "_agree", waits)
    training.memory = every
    _, state, saved = training.begin()
    saved.keep(1, state)
    saved.staged()
    assert len(copies) == complete
    may_go_on.set()
    saved.close()
    assert copies == [1]


@pytest.mark.parametrize("when", ["the first copy begins", "a copy is agreed on"])
@pytest.mark.parametrize(("every", "slept"), [(1, [memory_module.ENDED]), (2, [])])
def test_no_step_is_done_in_a_round_that_ends_because_a_rank_is_gone(
    when: str, every: int, slept: list[float], training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its copy was not completed; with the next step two would be done again."""

    def fails(*_: object) -> Any:
        raise RuntimeError("Connection closed by peer")

    found = list[float]()
    monkeypatch.setattr(memory_module.time, "sleep", found.append)
    training.memory = every
    _, state, saved = training.begin()
    memory = saved._memory
    assert memory is not None
    monkeypatch.setattr(*(memory.group, "on_all") if when == "the first copy begins" else (memory, "_agree"), fails)
    saved.keep(1, state)
    saved.staged()
    assert found == slept
    saved.close()
    assert memory.every == 0


def test_no_step_waits_for_a_copy_that_was_loaded_and_is_being_sent(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = threading.Event()
    monkeypatch.setattr(MemoryCheckpoints, "_exchange", lambda _: sent.wait(60))
    _, _, saved = training.begin()
    memory = saved._memory
    assert memory is not None
    memory._unpaired, memory._peer = True, 1
    memory.share(1)
    late = threading.Timer(20, sent.set)
    late.start()
    saved.staged()
    assert not sent.is_set()
    late.cancel()
    sent.set()
    saved.close()


def test_a_copy_that_fails_leaves_the_one_before_as_it_is_and_later_ones_are_made(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, left = MemoryCheckpoints._write, list[tuple[int, int]]()

    def fails_once(self: MemoryCheckpoints, copy: Any) -> None:
        if copy.step == 3:
            raise MemoryError("no memory for a copy")
        left.append(max(memory_format.age_of(slot) for slot in training.pair(OWN).slots))
        write(self, copy)

    monkeypatch.setattr(MemoryCheckpoints, "_write", fails_once)
    _, state, saved = training.begin()
    training.go_on(state, saved, range(1, 8))
    # while a copy is made, the last one that is complete is there; a failure is followed by a pause
    assert left == [(-1, -1), (0, 1), (0, 2), (0, 5)]
    begun, state, saved = training.begin()
    assert begun == 7
    saved.close()


def test_only_one_checkpointer_of_a_process_has_the_memory(training: Training, tmp_path: Path) -> None:
    _, state, saved = training.begin()
    other = Checkpointer(tmp_path / "other", ALONE, identity={}, memory=1, read_timeout=0)
    for step in (1, 2):
        state["weights"] = torch.full((100,), float(step))
        saved.keep(step, state)
        other.keep(step, {"weights": torch.full((100,), -1.0)})
    other.close()
    saved.close()
    begun, state, saved = training.begin()
    assert begun == 2
    assert torch.equal(state["weights"], torch.full((100,), 2.0))
    saved.close()


def test_copies_come_before_the_older_checkpoint_if_the_newest_is_damaged(training: Training) -> None:
    _, state, saved = training.begin()
    saved.save(1, state, wait=True)
    training.go_on(state, saved, range(2, 4))
    _, state, saved = training.begin()
    saved.save(9, state, wait=True)
    saved.close()
    next(training.folder.glob("step-000000009/state.pt")).write_bytes(b"damaged")
    begun, state, saved = training.begin()
    assert begun == 3
    saved.close()


def test_memory_that_the_copies_have_already_counts_as_free(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    state: dict[str, Any] = {"large": torch.zeros(1 << 20)}
    before = os.fstat(training.file).st_blocks * 512

    def free() -> int:
        return 15_000_000 - (os.fstat(training.file).st_blocks * 512 - before)

    monkeypatch.setattr(memory_module.hardware, "free_memory", free)
    for number in range(3):  # 8 MiB and 4 more for a save, of 15 MB
        begun, state, saved = training.begin(large=torch.zeros(1 << 20))
        assert begun == 2 * number
        training.go_on(state, saved, range(begun + 1, begun + 3))


@pytest.mark.parametrize(("every", "fits"), [(1, True), (None, False)])
def test_auto_takes_half_of_what_is_free_at_most(
    every: int | None, fits: bool, training: Training, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(memory_module.hardware, "free_memory", lambda: 15_000_000)
    training.memory = every
    _, state, saved = training.begin(large=torch.zeros(1 << 20))  # 4 MiB: 8 for copies and 4 for a save
    saved.keep(1, state)
    assert saved.keeps(1000) == fits
    saved.close()
    assert ("they need 12 MiB on a node, over 50 % of" in capsys.readouterr().out) != fits


def test_what_a_save_and_the_state_of_a_rank_take_counts(
    training: Training, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(memory_module.hardware, "free_memory", lambda: 15_000_000)
    large = {"large": torch.zeros(1 << 20)}  # 4 MiB
    for own, fits in ((torch.zeros(10), True), (torch.zeros(1 << 20), False)):
        _, state, saved = training.begin(**large)
        saved.keep(1, state, rank_state={"replay": own})
        assert saved.keeps(2) == fits
        saved.close()
    assert "they need 20" in capsys.readouterr().out


def test_memory_in_a_file_system_is_limited_by_that(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    little = type("Status", (), {"f_blocks": 10, "f_bavail": 1, "f_frsize": 100})
    monkeypatch.setattr(memory_module.os, "fstatvfs", lambda _: little)
    _, state, saved = training.begin(large=torch.zeros(1 << 20))
    saved.keep(1, state)
    assert not saved.keeps(2)
    saved.close()
