"""Which rank holds up the others on GPUs, from what each has enqueued, begun and ended."""

from __future__ import annotations

import json
import os
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from launcher.files.json_types import as_json, from_json
from launcher.torch_compat import destroy_without_gil
from launcher.worker.hang_diagnosis import CollectiveGroup, Recorder, Recorders, blame_by_collectives, parse

REDUCE, GATHER = "nccl:all_reduce", "nccl:_all_gather_base"


def entry(number: int, state: str = "completed", name: str = REDUCE, group: str = "0", **more: Any) -> dict[str, Any]:
    """An entry as torch 2.13 dumps it (FlightRecorderDetail.hpp, getCollectiveTrace)."""
    return {
        "record_id": number, "pg_id": int(group), "process_group": (group, "default_pg"), "thread_name": "python",
        "thread_id": "139687330896768", "collective_seq_id": number, "p2p_seq_id": 0, "op_id": number,
        "profiling_name": name, "time_created_ns": 1795330173863094496, "input_sizes": [[3]],
        "input_dtypes": ["Float"], "output_sizes": [[3]], "output_dtypes": ["Float"], "state": state,
        "time_discovered_started_ns": None, "time_discovered_completed_ns": None, "retired": state == "completed",
        "timeout_ms": 600000, "is_p2p": False, **more,
    }  # fmt: skip


def dump(*entries: dict[str, Any]) -> bytes:
    return pickle.dumps({
        "version": "2.10", "comm_lib_version": "2.27.3",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
        "pg_status": {"0": {"last_enqueued_collective": 1, "last_started_collective": 1}},
        **({"entries": list(entries)} if entries else {}),
    }, protocol=2)  # fmt: skip


@pytest.mark.parametrize(
    ("entries", "groups"),
    [
        ([], ()),
        ([entry(1), entry(2)], (CollectiveGroup("0", 2),)),
        ([entry(1), entry(2, "started"), entry(3, "scheduled")], (CollectiveGroup("0", 3, 2, REDUCE, True),)),
        ([entry(3, "scheduled", GATHER), entry(4, "scheduled")], (CollectiveGroup("0", 4, 3, GATHER),)),
        ([entry(7), entry(1, "scheduled", group="5")], (CollectiveGroup("0", 7), CollectiveGroup("5", 1, 1, REDUCE))),
        ([entry(1, "scheduled", "nccl:send 0->1", is_p2p=True)], ()),
        ([entry(1, "scheduled", "gloo:all_reduce", retired=True)], (CollectiveGroup("0", 1),)),
        (
            [entry(1, "started", retired=True)],
            (CollectiveGroup("0", 1, 1, REDUCE, True),),
        ),  # NCCL retires what has timed out
    ],
)
def test_what_is_read_from_a_dump(entries: list[dict[str, Any]], groups: tuple[CollectiveGroup, ...]) -> None:
    recorder = parse(3, dump(*entries))
    assert recorder == Recorder(3, groups)
    assert from_json(json.loads(json.dumps(as_json(recorder))), Recorder) == recorder


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"nonsense",
        dump(entry(1))[:-20],
        pickle.dumps([1]),
        pickle.dumps({"entries": [{}]}),
        pickle.dumps(os.system),
    ],
)
def test_what_is_no_whole_dump_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match="not a flight recorder's dump"):
        parse(0, text)


def test_torchs_own_dump_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    take = getattr(torch._C._distributed_c10d, "_dump_fr_trace", None)
    if take is None:
        pytest.skip("this torch records NCCL alone")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    destroy_without_gil(dist.group.WORLD)
    try:
        name = dist.group.WORLD.group_name  # type: ignore[union-attr]
        before = parse(0, take())
        earlier = sum(group.enqueued for group in before.groups if group.name == name)  # of a group of another test
        dist.all_reduce(torch.ones(3))
        dist.barrier()
        pending = True
        while pending:  # a thread of gloo's records the end of an operation, a moment after the call returned
            group = next(group for group in parse(0, take()).groups if group.name == name)
            pending = group.pending is not None
    finally:
        dist.destroy_process_group()
    assert before.rank == 0
    assert (group.enqueued - earlier, group.pending) == (2, None)


def at(rank: int, *groups: CollectiveGroup) -> Recorder:
    return Recorder(rank, groups)


def waits(number: int, name: str = "0", operation: str = REDUCE, *, started: bool = True) -> CollectiveGroup:
    return CollectiveGroup(name, number, number, operation, started)


WHAT = "all_reduce (number 5 of process group 0)"
UNFINISHED = f"does not finish {WHAT}, which the others have finished"


@pytest.mark.parametrize(
    ("recorders", "guilty", "does"),
    [
        ([], [], None),
        ([at(0), at(1)], [], None),
        ([at(0, CollectiveGroup("0", 4)), at(1, CollectiveGroup("0", 4))], [], None),  # all ended: it is something else
        # not called
        (
            [at(0, waits(5)), at(1, CollectiveGroup("0", 4)), at(2, waits(5))],
            [1], f"has not called {WHAT}, in which ranks 0,2 wait",
        ),
        (
            [at(0, waits(5)), at(1, CollectiveGroup("0", 3)), at(2, CollectiveGroup("0", 4))],
            [1, 2], f"has not called {WHAT}, in which rank 0 waits",
        ),
        # another operation
        (
            [at(0, waits(5)), at(1, waits(5, operation=GATHER)), at(2, waits(5))],
            [1], f"has called _all_gather_base where the others have called {WHAT}",
        ),
        ([at(0, waits(5)), at(1, waits(5, operation=GATHER))], [], None),
        # not ended
        (
            [at(0, CollectiveGroup("0", 5)), at(1, waits(5)), at(2, CollectiveGroup("0", 5))], [1],
            UNFINISHED,
        ),
        (
            [at(0, waits(6)), at(1, CollectiveGroup("0", 6, 5, REDUCE, True)), at(2, waits(6))],
            [1], UNFINISHED,
        ),
        # not begun: a kernel before it does not end
        (
            [at(0, waits(5)), at(1, waits(5, started=False)), at(2, waits(5))],
            [1], f"has called {WHAT}, but its GPU does not begin it, and ranks 0,2 wait in it",
        ),
        ([at(0, waits(5)), at(1, waits(5))], [], None),
        ([at(0, waits(5, started=False)), at(1, waits(5, started=False))], [], None),
        # a rank that waits for another one in one group is not to blame in the next
        (
            [at(0, waits(5)), at(1, CollectiveGroup("0", 4), waits(2, "tp")), at(2, CollectiveGroup("tp", 1))],
            [2], "has not called all_reduce (number 2 of process group tp), in which rank 1 waits",
        ),
        # two that wait for each other
        (
            [at(0, waits(5, "a"), CollectiveGroup("b", 4)), at(1, CollectiveGroup("a", 4), waits(5, "b"))],
            [0, 1], None,
        ),
    ],
)  # fmt: skip
def test_who_is_blamed(recorders: list[Recorder], guilty: list[int], does: str | None) -> None:
    found = blame_by_collectives(recorders)
    assert list(found) == guilty
    assert does is None or set(found.values()) <= {does}


class Counted(tuple[CollectiveGroup, ...]):
    """The groups of a rank; counts how often they are gone through."""

    times = 0

    def __iter__(self) -> Any:
        Counted.times += 1
        return super().__iter__()


def test_recorders_are_gone_through_once_however_many_groups_there_are() -> None:
    size = 1000
    recorders = [Recorder(rank, Counted((waits(5, f"pair {rank // 2}"), waits(7)))) for rank in range(size - 1)]
    last = Recorder(size - 1, Counted((CollectiveGroup(f"pair {size // 2 - 1}", 4), CollectiveGroup("0", 6))))
    Counted.times = 0
    assert list(blame_by_collectives([*recorders, last])) == [size - 1]
    assert Counted.times == size


def test_ranks_that_wait_for_each_other_block_different_collectives() -> None:
    found = blame_by_collectives(
        [at(0, waits(5, "a"), CollectiveGroup("b", 4)), at(1, CollectiveGroup("a", 4), waits(5, "b"))]
    )
    assert [(rank, does.partition(" of ")[2]) for rank, does in found.items()] == [
        (0, "process group b), in which rank 1 waits"),
        (1, "process group a), in which rank 0 waits"),
    ]


@pytest.mark.parametrize(
    ("environ", "renamed", "names"),
    [
        ({}, True, {"TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE"}),
        ({}, False, {"TORCH_NCCL_TRACE_BUFFER_SIZE"}),
        ({"TORCH_FR_BUFFER_SIZE": "9"}, True, {"TORCH_FR_DUMP_TEMP_FILE"}),
    ],
)
def test_the_variables_are_those_that_this_torch_knows(
    environ: dict[str, str], renamed: bool, names: set[str], tmp_path: Path
) -> None:
    always = {"TORCH_NCCL_ENABLE_TIMING", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"}
    always.add("TORCH_NCCL_DUMP_ON_TIMEOUT")  # if it is off, as by default before some 2.7, the pipe is not looked at
    assert set(Recorders(tmp_path, environ, renamed=renamed).variables) == always | names


class Rank(threading.Thread):
    """Answers as a thread of torch does: on whatever is written to the pipe it writes a file, piece by piece."""

    def __init__(self, recorders: Recorders, rank: int, answer: bytes) -> None:
        super().__init__(daemon=True)
        variables = recorders.variables
        self.pipe = Path(f"{variables['TORCH_NCCL_DEBUG_INFO_PIPE_FILE']}{rank}.pipe")
        self.file = Path(f"{variables['TORCH_NCCL_DEBUG_INFO_TEMP_FILE']}{rank}")
        self.answer = answer
        os.mkfifo(self.pipe)
        self.reads = os.open(self.pipe, os.O_RDONLY | os.O_NONBLOCK)
        self.start()

    def run(self) -> None:
        os.set_blocking(self.reads, True)
        while not os.read(self.reads, 128):
            pass
        os.close(self.reads)
        with self.file.open("wb", buffering=0) as file:
            file.write(self.answer[:-5])
            file.write(self.answer[-5:])


def test_ranks_are_asked_and_those_that_do_not_answer_are_not_waited_for_for_ever(tmp_path: Path) -> None:
    recorders = Recorders(tmp_path, {}, renamed=True)
    rank = Rank(recorders, 4, dump(entry(1, "started")))
    rank.file.write_bytes(dump(entry(9)))  # of an earlier time
    os.mkfifo(tmp_path / "ask-6.pipe")  # nobody reads it: the rank has ended
    found = recorders.take([4, 5, 6], timeout=60)
    assert found[0] == Recorder(4, (CollectiveGroup("0", 1, 1, REDUCE, True),))
    assert found[1:] == [None, None]
    rank.join()

    silent = os.open(tmp_path / "ask-6.pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert recorders.take([6], timeout=0) == [None]
        assert os.read(silent, 128)
    finally:
        os.close(silent)
