"""The collective sweep in several ranks: every operation is right, and all ranks tell what is not."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

import launcher
from launcher import Env
from launcher.config.schema import Collective
from launcher.torch_compat import reduce_scatter_single
from tests.markers import ci
from tests.processes.workload_ranks import RankResult, run_ranks
from workloads import benchmark_results, collective, collective_operations, hardware_limits
from workloads.benchmark_keys import OPERATIONS, REDOPS, REDUCING, places_of

BOTH = [name for name in OPERATIONS if len(places_of(name, "both")) == 2]


def config_of(**changes: Any) -> Collective:
    few = {"name": "collective", "entry": "", "seed": 0, "sizes": "4K", "iterations": 3}
    return Collective(**{**few, **changes})


def quick(env: Env) -> None:
    """The roof is not what is tested here, and takes half a second."""
    patch.object(hardware_limits, "measure", lambda env: hardware_limits.Roof(2e9, 8e9, "not measured")).start()


def run(config: Collective, world_size: int, nnodes: int = 1, *, prepare: Any = quick, **options: Any) -> Any:
    return run_ranks(collective.main, config, world_size, nnodes, prepare=prepare, **options)


def the_error(found: list[RankResult]) -> str:
    errors = {result.error for result in found}
    assert len(errors) == 1, errors
    return errors.pop().removeprefix("WorkloadError: ")


@pytest.mark.parametrize(("world_size", "nnodes"), [(1, 1), (2, 1), ci(3, 3), (4, 2)])
def test_all_collectives_are_right_in_all_groups(world_size: int, nnodes: int) -> None:
    kinds = ["world", "node", "stride"]
    first, *others = run(config_of(groups=kinds), world_size, nnodes)
    alone = sum(size == 1 for size in (world_size, world_size // nnodes, nnodes))  # nobody to send to
    assert (first.metrics["operations"], first.metrics["wrong"]) == (len(OPERATIONS) * 3 - alone, 0)
    assert first.metrics["checked"] > 0
    titles = [line.split(" (")[0] for line in first.printed.splitlines() if re.match(r"\w+: \w+ \(", line)]
    assert titles == [f"{op}: {kind}" for kind in kinds for op in OPERATIONS]
    assert first.progress[-1] == (33, 33)
    assert all(len(line) <= 76 for line in first.printed.splitlines())
    assert [result.printed.count("\n") for result in others] == [1] * (world_size - 1)


@pytest.mark.parametrize("dtype", ["float16", ci("bfloat16"), ci("float64"), "int32", ci("int64"), ci("int8")])
def test_collectives_are_right_for_every_type_and_reduction(dtype: str) -> None:
    config = config_of(dtype=dtype, op="all", iterations=2, sizes="1K")
    first, _ = run_ranks(with_every_reduction, config, 2, prepare=quick)
    operations_of = {redop: metrics["operations"] for redop, metrics in first.metrics.items()}
    lacking = len(REDUCING) if dtype.startswith("int") and "avg" in operations_of else 0
    assert operations_of == {redop: len(OPERATIONS) - (lacking if redop == "avg" else 0) for redop in operations_of}
    assert not any(metrics["wrong"] for metrics in first.metrics.values())
    told = " ".join(first.printed.split())
    assert told.count(f"left out: gloo lacks it for {dtype} avg (") == told.count("nccl and xccl have it") == lacking


def with_every_reduction(config: Collective, env: Env) -> dict[str, Any]:
    largest = torch.zeros(1)
    reduce_scatter_single(largest, torch.ones(2), dist.ReduceOp.MAX)
    # gloo of torch 2.4 adds in reduce_scatter, whatever reduction is asked for; the workload finds that.
    redops = ["sum"] if largest.item() == 2 else REDOPS
    return {redop: collective.main(dataclasses.replace(config, redop=redop), env) for redop in redops}


def test_odd_sizes_roots_and_async_operations() -> None:
    config = config_of(sizes=["1", "100", "4001"], dtype="int8", root=2, async_op=True, iterations=1, warmup=0)
    first, *_ = run(config, 3)
    assert (first.metrics["operations"], first.metrics["wrong"]) == (len(OPERATIONS), 0)
    assert "reduce: world (3 ranks), int8, sum, root 2, async" in first.printed
    sizes = re.findall(r"^ +(\d+) +\d+ ", first.printed.split("all_gather: ")[1].split("gather: ")[0], re.MULTILINE)
    assert sizes == ["3", "99", "3999"]  # whole blocks


def test_explicit_groups_leave_ranks_out() -> None:
    first, *_ = run(config_of(groups=["2,0"], op=["all_reduce", "gather", "send_recv"]), 3)
    assert (first.metrics["operations"], first.metrics["wrong"]) == (3, 0)
    assert "all_reduce: 2,0 (2 ranks)" in first.printed


def test_groups_of_unequal_sizes() -> None:
    first, *_ = run(config_of(groups=["0/1-2"], sizes="1K:4K:2"), 3)
    assert (first.metrics["operations"], first.metrics["wrong"]) == (len(OPERATIONS) - 1, 0)


def test_a_budget_decides_how_many_iterations_on_all_ranks() -> None:
    first, _ = run(config_of(op="all_reduce", budget="100ms"), 2, prepare=keeps_results)
    (row,) = json.loads(first.printed.splitlines()[-1])["rows"]
    assert 2 <= row["iterations"] <= collective.MOST_ITERATIONS and row["wrong"] == 0


def keeps_results(env: Env) -> None:
    """Prints what would be in results.json at the end."""
    quick(env)
    real = benchmark_results.Results.write

    def write(self: benchmark_results.Results) -> None:
        real(self)
        if self.complete or self.reason:
            print(json.dumps(self.as_dict()), flush=True)

    if env.rank == 0:
        patch.object(benchmark_results.Results, "write", write).start()
        patch.object(collective.Report, "say", lambda self, *lines: None).start()


def corrupt_rank_1(env: Env) -> None:
    """The last element that rank 1 gets is off by one."""
    quick(env)

    def corrupt(operation: collective_operations.Operation) -> collective_operations.Operation:
        def bind(
            case: collective_operations.Case, buffers: collective_operations.Buffers, wait: bool
        ) -> collective_operations.Call:
            call = operation.bind(case, buffers, wait)

            def call_and_corrupt() -> None:
                call()
                if env.rank == 1 and buffers.out.numel():
                    buffers.out[-1] += 1

            return call_and_corrupt

        return dataclasses.replace(operation, bind=bind)

    collective.BY_NAME = {name: corrupt(operation) for name, operation in collective_operations.BY_NAME.items()}


def test_a_wrong_result_of_any_collective_is_told() -> None:
    with_data = [name for name in OPERATIONS if name != "barrier"]
    config = config_of(op=with_data, place="both", sizes="4K", root=1, iterations=2)
    found = run(config, 3, 3, prepare=corrupt_rank_1, fails=True)
    faults = the_error(found).split("; ")
    assert (
        len(faults) == benchmark_results.FAULTS + 1
        and faults[-1] == f"and {len(with_data) + 4 - benchmark_results.FAULTS} more"
    )
    for fault in faults[:-1]:
        assert re.fullmatch(r"\w+ of 40\d\d bytes in group world: 2 wrong of \d+ elements on rank 1 on node1", fault)
    rows = [line.split() for line in found[0].printed.splitlines() if re.match(r" +40\d\d ", line)]
    assert len(rows) == len(with_data)
    for name, cells in zip(with_data, rows, strict=True):
        assert [cells[5], cells[9]] == ["2" if place in places_of(name, "both") else "-" for place in ("out", "in")]


def no_barrier(env: Env) -> None:
    quick(env)
    patch.object(dist, "barrier").start()


def test_a_barrier_that_lets_ranks_pass_is_told() -> None:
    error = the_error(run(config_of(op="barrier"), 2, prepare=no_barrier, fails=True))
    assert "barrier in group world: rank" in error and "left before" in error


def lack_reduce_scatter(env: Env) -> None:
    """One rank alone is refused."""
    quick(env)

    def bind(
        case: collective_operations.Case, buffers: collective_operations.Buffers, wait: bool
    ) -> collective_operations.Call:
        if env.rank == 1:
            raise RuntimeError("this backend does not support reduce_scatter\nmore")
        return lambda: None

    operation = dataclasses.replace(collective_operations.BY_NAME["reduce_scatter"], bind=bind)
    collective.BY_NAME = {**collective_operations.BY_NAME, "reduce_scatter": operation}


def test_an_operation_that_the_backend_lacks_is_told() -> None:
    first, _ = run(config_of(), 2, prepare=lack_reduce_scatter)
    assert first.metrics["operations"] == len(OPERATIONS) - 1
    reason = "gloo lacks it for float32 sum (this backend does not support reduce_scatter); nccl and xccl have it"
    assert f"left out: {reason}" in " ".join(first.printed.split())
    error = the_error(run(config_of(op="reduce_scatter"), 2, prepare=lack_reduce_scatter, fails=True))
    assert error == f"reduce_scatter cannot be run: {reason}"


def little_memory_on_rank_1(env: Env) -> None:
    keeps_results(env)
    patch.object(hardware_limits, "available_memory", lambda env: 20_000 if env.rank == 1 else None).start()


def test_a_size_that_would_not_fit_ends_the_sweep_with_what_was_measured() -> None:
    config = config_of(op=["all_reduce", "send_recv"], sizes="1K:1M:2")
    first, _ = run(config, 2, prepare=little_memory_on_rank_1)
    written = json.loads(first.printed.splitlines()[-1])
    assert written["complete"] is False
    assert written["reason"] == (
        "all_reduce in group world ends before 16K: rank 1 on node0 needs 0.00 GiB of memory, and 0.00 GiB is left for "
        "it; send_recv in group world ends before 8K: rank 1 on node0 needs 0.00 GiB of memory, and 0.00 GiB is left "
        "for it"
    )
    assert [(row["op"], row["size"]) for row in written["rows"]] == [
        *(("all_reduce", 1024 * 2**power) for power in range(4)),
        *(("send_recv", 1024 * 2**power) for power in range(3)),
    ]


def the_allocator_refuses_on_rank_1(env: Env) -> None:
    quick(env)
    real = torch.empty

    def empty(count: int, **options: Any) -> Any:
        if env.rank == 1 and count > 2000:
            raise RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory: ...")
        return real(count, **options)

    patch.object(torch, "empty", empty).start()


def test_an_allocator_that_refuses_ends_the_sweep_on_all_ranks() -> None:
    first, _ = run(config_of(op="all_reduce", sizes="1K:1M:2"), 2, prepare=the_allocator_refuses_on_rank_1)
    assert "all_reduce in group world ends before 8K: rank 1 on node0 is out of memory ([enforce" in " ".join(
        first.printed.split()
    )
    assert first.metrics["operations"] == 1
    config = config_of(op="all_reduce", sizes="8K:1M:2")
    error = the_error(run(config, 2, prepare=the_allocator_refuses_on_rank_1, fails=True))
    assert re.search(r"does not fit into memory at 8K: rank 1 on node0 is out of memory \(.*\): use less$", error)


def measured_twice(config: Collective, env: Env) -> dict[str, Any]:
    """A run, and another one that is compared with it."""
    quick(env)
    folder = Path(config.entry)
    for module in (launcher, collective, benchmark_results):  # which have imported it by its name
        patch.object(module, "run_dir", lambda: folder, create=True).start()
    collective.main(dataclasses.replace(config, baseline=None), env)
    if env.rank == 0:
        kept = json.loads((folder / "results.json").read_text())
        kept["rows"] = kept["rows"] if config.seed else []
        for row in kept["rows"]:
            row["busbw"] = row["busbw"] and row["busbw"] * config.seed  # what the baseline had
        (folder / "baseline.json").write_text(json.dumps(kept))
    dist.barrier()
    return collective.main(dataclasses.replace(config, seed=1, baseline=str(folder / "baseline.json")), env)


def test_a_run_is_compared_with_its_baseline(tmp_path: Path) -> None:
    config = config_of(op=["all_reduce", "all_gather"], entry=str(tmp_path), seed=1000)
    found = run_ranks(measured_twice, config, 2, fails=True)
    error = the_error(found)
    assert re.match(r"3 of 3 rows are slower than baseline=.*; the worst: all_\w+ world 2 4096 ", error)
    assert "slower than the baseline by more than 20 %: 3 of 3 rows" in found[0].printed
    config = dataclasses.replace(config, seed=0)  # nothing was measured then
    assert "nothing can be compared with baseline=" in the_error(run_ranks(measured_twice, config, 2, fails=True))


def test_results_are_written_with_their_conditions(tmp_path: Path) -> None:
    config = config_of(op=["all_reduce", "all_gather"], entry=str(tmp_path), sizes="1K:4K:2", seed=1, tolerance=0.999)
    first, _ = run_ranks(measured_twice, config, 2, nnodes=2)
    assert "9 rows compared with the baseline, none slower by more than 99.9 %" in first.printed
    written = benchmark_results.read(tmp_path)
    assert (tmp_path / "results.json").stat().st_mode & 0o777 == 0o600
    assert written.complete and len(written.rows) == 9
    conditions = written.conditions
    assert isinstance(conditions, dict)
    assert (conditions["hosts"], conditions["ranks_per_node"]) == (["node0", "node1"], [1, 1])
    assert (conditions["backend"], conditions["interface"], conditions["device"]) == ("gloo", "lo", "cpu")
    assert conditions["torch"] == torch.__version__
    assert written.roof == {"socket": 2e9, "memory": 8e9, "how": "not measured"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["baseline.json", "results.csv", "results.json"]
    assert len((tmp_path / "results.csv").read_text().splitlines()) == 10


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"op": "allreduce"}, "Did you mean all_reduce"),
        ({"groups": ["nodes"]}, "Did you mean node"),
        ({"groups": ["0-1"]}, "there is no rank 1"),
        ({"dtype": "float"}, "is no dtype"),
        ({"sizes": "many"}, "is not a size"),
        ({"op": "broadcast", "root": 1}, "workload.root=1: the smallest group of world has 1"),
        ({"op": "all_reduce", "place": "out"}, "torch.distributed has it in place only"),
        ({"baseline": "/no/such/results.json"}, "there is no /no/such/results.json"),
    ],
)
def test_collective_settings_are_checked(changes: dict[str, Any], text: str) -> None:
    assert text in the_error(run(config_of(**changes), 1, fails=True))


def test_every_operation_of_the_login_node_exists() -> None:
    assert tuple(collective_operations.BY_NAME) == tuple(each.name for each in collective_operations.ALL)
    assert set(collective_operations.BY_NAME) == set(OPERATIONS)
    for operation in collective_operations.ALL:
        places = places_of(operation.name, "both")
        assert ("in" in places) == (operation.one_buffer or operation.shared is not None)
        assert ("out" in places) == (not operation.one_buffer)
    assert BOTH == ["all_gather", "gather", "scatter", "reduce_scatter"]
