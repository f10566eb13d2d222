"""p2p: every pattern brings the right data, says how fast, and tells what is wrong, too slow, or makes no sense."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from launcher import Env, io_bounds
from launcher.config.schema import P2P, MatrixOf
from launcher.errors import ConfigError
from launcher.reports.collect import parse
from launcher.reports.figures import matrix_figures
from tests.chaos.slow_node import delay
from tests.markers import ci
from tests.processes.workload_ranks import RankResult, run_ranks
from tests.unit.plans import plan_of
from workloads import benchmark_keys, benchmark_results, hardware_limits, p2p, p2p_matrix, p2p_patterns
from workloads.across_ranks import WorkloadError
from workloads.benchmark_keys import PATTERNS
from workloads.hooks import Benchmark
from workloads.p2p_matrix import WRITTEN_ROWS, WRITTEN_SLOW, Matrix


def p2p_config(**changes: Any) -> P2P:
    few = {"name": "p2p", "entry": "", "seed": 0, "sizes": "4K", "iterations": 2, "window": 8}
    return P2P(**{**few, "baseline": None, "tolerance": 0.2, **changes})


def no_roof(env: Env) -> None:
    """It has tests of its own."""
    patch.object(hardware_limits, "measure", lambda env: hardware_limits.Roof(1e9, 1e10, "not measured")).start()


def run(
    config: P2P, world_size: int, nnodes: int = 1, *also: Callable[[Env], None], **options: Any
) -> list[RankResult]:
    return run_ranks(p2p.main, config, world_size, nnodes, prepare=partial(prepared, (no_roof, *also)), **options)


def prepared(steps: tuple[Callable[[Env], None], ...], env: Env) -> None:
    for step in steps:
        step(env)


def the_error(results: list[RankResult]) -> str:
    """The one error that all ranks raised."""
    errors = {result.error for result in results}
    assert len(errors) == 1, errors
    return errors.pop()


def in_a_run(folder: Path, env: Env) -> None:
    os.environ.update(LAUNCHER_RUN_DIR=str(folder), LAUNCHER_ATTEMPT="0")


def table(results: list[RankResult]) -> list[list[str]]:
    """The cells of each line of the table."""
    lines = results[0].printed.splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("pattern"))
    assert lines[start].split() == ["pattern", "size(B)", "time(us)", "lat(us)", "MB/s", "%roof", "#wrong"]
    rows = [line.split() for line in lines[start + 1 :]]
    return [row for row in rows if row[0] in PATTERNS and row[1].isdigit()]


@pytest.mark.parametrize(("world_size", "nnodes"), [(2, 1), ci(3, 3), (4, 2)])
def test_all_patterns_are_right(world_size: int, nnodes: int, tmp_path: Path) -> None:
    results = run(p2p_config(sizes="4K:16K:4"), world_size, nnodes, partial(in_a_run, tmp_path))
    expected = [name for name in PATTERNS if name != "matrix"]
    assert [(row[0], row[1], row[-1]) for row in table(results)] == [
        (name, size, "0") for name in expected for size in ("4096", "16384")
    ]
    assert [line for line in results[0].printed.splitlines() if len(line) > 76] == []
    metrics = results[0].metrics
    assert metrics["patterns"] == 8 + (nnodes > 1)
    assert all(metrics[f"{name}/us"] > 0 and metrics[f"{name}/mb_per_s"] > 0 for name in expected)
    assert results[0].progress[-1] == (16 + (nnodes > 1),) * 2
    assert [result.metrics for result in results[1:]] == [metrics] * (world_size - 1)

    written = json.loads((tmp_path / "results.json").read_text())
    assert written["complete"] and written["roof"]["socket"] == 1e9
    rows = {(row["pattern"], row["size"]): row for row in written["rows"]}
    pairs = world_size - 1
    assert {name: rows[name, 16384]["messages"] for name in expected} == {
        "pingpong": 2, "bandwidth": 8, "bidirectional": 16, "send": 2 * pairs, "isend": 2 * pairs,
        "batched": world_size * pairs, "ring": world_size**2, "fanout": pairs,
    }  # fmt: skip
    for (name, size), row in rows.items():
        more = 10 if size == 4096 and name in p2p_patterns.PATTERNS else 1
        assert (row["iterations"], row["count"], row["wrong"]) == (2 * more, size // 4, 0)
        assert row["bandwidth"] == pytest.approx(row["messages"] * size / row["seconds"]["median"])
        every = row["messages"] * row["iterations"] * row["count"]
        assert row["checked"] == (2 * row["messages"] * row["count"] if "b" in name[0] and name != "batched" else every)
    assert rows["pingpong", 4096]["latency"] == rows["pingpong", 4096]["seconds"]["median"] / 2
    assert rows["pingpong", 4096]["ranks"] == [0, 1 if world_size == 2 else 2 if nnodes > 1 else world_size - 1]
    assert (written["matrix"] is None) == (nnodes == 1)
    assert metrics["checked"] > sum(row["checked"] for row in rows.values()) - 1


def one_peer_at_once(env: Env) -> None:
    patch.object(p2p_patterns, "AT_ONCE", 1).start()


def test_patterns_take_many_peers_in_turns() -> None:
    config = p2p_config(pattern="isend,batched,fanout", dtype="int8", iterations=1)
    assert run(config, 4, 1, one_peer_at_once)[0].metrics["checked"] == (6 + 12 + 3) * 4096


def test_a_chosen_pair_and_a_budget_of_time() -> None:
    config = p2p_config(pattern="pingpong,ring", pair=[2, 1], budget="50ms", warmup=0, dtype="bfloat16")
    metrics = run(config, 3)[0].metrics
    assert metrics["patterns"] == 2 and metrics["checked"] >= 2 * 2048


def test_fewer_buffers_than_messages_are_enough() -> None:
    config = p2p_config(pattern="pingpong,bandwidth,bidirectional", sizes="1M", window=40, iterations=1)
    metrics = run(config, 2)[0].metrics
    assert metrics["checked"] == (2 + 32 + 64) * 2**18


def corrupt_what_rank_0_sends(env: Env) -> None:
    """The last element of each message is off by one."""
    if env.rank:
        return

    def spoiled(tensor: Tensor) -> Tensor:
        if tensor.numel() == 1:  # an acknowledgement
            return tensor
        tensor = tensor.clone()
        tensor[-1] += 1
        return tensor

    send, isend, batch = dist.send, dist.isend, dist.batch_isend_irecv

    def spoiled_batch(operations: list[dist.P2POp]) -> Any:
        return batch([
            dist.P2POp(one.op, spoiled(one.tensor), one.peer) if one.op is isend else one for one in operations
        ])  # fmt: skip

    patch.object(dist, "batch_isend_irecv", spoiled_batch).start()
    patch.object(dist, "send", lambda tensor, peer: send(spoiled(tensor), peer)).start()
    if os.environ.get("SPOIL") == "isend":
        patch.object(dist, "isend", lambda tensor, peer: isend(spoiled(tensor), peer)).start()


def spoil_isend(env: Env) -> None:
    os.environ["SPOIL"] = "isend"


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_wrong_value_is_told_with_the_peers(pattern: str) -> None:
    also = [spoil_isend] if pattern in ("isend", "fanout") else []
    config = p2p_config(pattern=pattern, iterations=1)
    results = run(config, 2, 2, *also, corrupt_what_rank_0_sends, fails=True)
    error = the_error(results)
    assert error.startswith(f"WorkloadError: {pattern}: ")
    assert "arrived on rank 1 on node1 from rank 0 on node0" in error
    if pattern != "matrix":
        assert int(table(results)[0][-1]) > 0


# The matrix


def test_a_slow_node_is_the_suspect(tmp_path: Path) -> None:
    config = p2p_config(
        pattern="matrix", sizes=["1K", "64K"], window=2, slow=0.3, slow_latency=10, warmup=0, iterations=1
    )
    results = run(config, 4, 4, delay, partial(in_a_run, tmp_path))
    matrix = json.loads((tmp_path / "results.json").read_text())["matrix"]
    assert (matrix["suspects"], matrix["exclude"]) == (["node2"], "node2")
    assert {("node0", "node2"), ("node1", "node2"), ("node2", "node3")} <= {
        (slow["a"], slow["b"]) for slow in matrix["slow"] if slow["against"] == "median" and slow["ratio"] < 0.3
    }
    assert (matrix["hosts"], matrix["size"], matrix["latency_size"]) == ([f"node{i}" for i in range(4)], 65536, 1024)
    assert all((matrix[what][a][b] is None) == (a == b)
               for what in ("latency", "bandwidth") for a in range(4) for b in range(4))  # fmt: skip
    printed = results[0].printed
    assert "slow: node0 - node2: " in printed and "suspects: node2" in printed
    assert results[0].metrics["matrix/exclude"] == "node2"


def test_slow_links_fail_the_run_where_that_is_asked_for() -> None:
    config = p2p_config(
        pattern="matrix",
        sizes=["1K", "64K"],
        window=2,
        slow=0.3,
        slow_latency=10,
        warmup=0,
        iterations=1,
        fail_on_slow=True,
    )
    error = the_error(run(config, 3, 3, delay, fails=True))
    assert "workload.fail_on_slow: " in error and "node2" in error


def test_a_link_that_is_slow_by_two_measures_is_one_link() -> None:
    hosts = [f"node{node}" for node in range(4)]
    links = matrix_of(hosts, {2: 0.5})
    worst = dataclasses.replace(links.slow[1], ratio=0.1, against="baseline")
    links = Matrix(**{**vars(links), "slow": [*links.slow, worst]})
    told = p2p.Told.of(links, hosts, p2p_config(fail_on_slow=True))
    assert told.metrics["matrix/slow"] == len(links.slow) - 1 == 3
    pair = p2p_matrix.pair_in_words(worst.pair, links)
    assert told.slower[-1] == f"workload.fail_on_slow: 3 slow links, {pair} the worst"


def test_a_matrix_of_ranks_has_all_of_them(tmp_path: Path) -> None:
    config = p2p_config(pattern="matrix", matrix=MatrixOf.ranks, iterations=1)
    results = run(config, 4, 2, partial(in_a_run, tmp_path))
    matrix = json.loads((tmp_path / "results.json").read_text())["matrix"]
    assert matrix["hosts"] == ["node0:0", "node0:1", "node1:2", "node1:3"]
    assert all((matrix["bandwidth"][a][b] is None) == (a == b) for a in range(4) for b in range(4))
    assert matrix["median"]["bandwidth"] > 0 and matrix["median_within_nodes"]["bandwidth"] > 0
    assert "matrix: 4 ranks in 5 rounds" in results[0].printed


def judge_on_rank_0(env: Env) -> None:
    if env.rank:
        patch.object(p2p_matrix, "Measured", side_effect=AssertionError("another rank has the matrix")).start()


def test_rank_0_alone_has_the_matrix(tmp_path: Path) -> None:
    config = p2p_config(pattern="matrix", iterations=1, warmup=0)
    results = run(config, 6, 3, judge_on_rank_0, partial(in_a_run, tmp_path))
    assert len({repr(result.metrics) for result in results}) == 1


def matrix_of(hosts: list[str], bad: dict[int, float], **changes: Any) -> Matrix:
    size = len(hosts)
    rows = [[None if a == b else 1e9 * min(bad.get(a, 1), bad.get(b, 1)) for b in range(size)] for a in range(size)]
    times = [[None if a == b else 1e-4 for b in range(size)] for a in range(size)]
    seen = p2p_matrix.Measured(list(range(size)), times, rows)
    slow = p2p_matrix.slow_pairs(seen, 0.7, 3)
    return Matrix(
        list(range(size)), hosts, hosts, seen, (1024, 2**20), slow, p2p_matrix.suspects(seen, slow), 3, 1, {}, **changes
    )


@pytest.mark.parametrize(
    ("bad", "how", "last"),
    [
        ({}, "exclude {}", ["no slow pair (below 70 % of the median, or over 3 x its latency)"]),
        ({2: 0.5}, "exclude {}", ["suspects: node2", "without them: exclude node2"]),
        ({2: 0.5, 5: 0.1}, "exclude {}", ["suspects: node5, node2", "without them: exclude node5,node2"]),
        ({2: 0.5}, "this scheduler cannot exclude nodes; name a resource of the good ones",
         ["without them: this scheduler cannot exclude nodes; name a resource of the", "  good ones"]),
        ({2: 0.5}, "", ["suspects: node2"]),
    ],
)  # fmt: skip
def test_the_verdict_ends_with_what_to_do(bad: dict[int, float], how: str, last: list[str]) -> None:
    lines = p2p_matrix.lines(matrix_of([f"node{node}" for node in range(8)], bad), p2p_config(), how.format)
    assert lines[-len(last) :] == last
    assert all(len(line) <= 76 for line in lines)


def test_one_slow_link_is_no_nodes_fault() -> None:
    found = matrix_of([f"node{node}" for node in range(6)], {})
    found.seen.bandwidth[1][4] = 1e8  # type: ignore[index]
    slow = p2p_matrix.slow_pairs(found.seen, 0.7, 3)
    lines = p2p_matrix.lines(Matrix(**{**vars(found), "slow": slow}), p2p_config(), "exclude {}".format)
    assert lines[-2:] == [
        "slow: node1 - node4: 0.10 GB/s, 10 % of the median (100.0 us)",
        "no node is slow with most of its partners: links are slow, and no node",
    ]


def test_nodes_that_share_a_name_are_not_excluded_by_it() -> None:
    found = matrix_of(["here"] * 4, {3: 0.1})
    found = Matrix(**{**vars(found), "labels": [f"here#{node}" for node in range(4)]})
    assert (found.suspected, found.exclude) == (["here#3"], "")
    assert p2p_matrix.lines(found, p2p_config(), "exclude {}".format)[-1] == "suspects: here#3"


# Thousands of nodes


def test_a_matrix_of_thousands_of_nodes_is_written_and_read(tmp_path: Path) -> None:
    size = 4096
    hosts = [f"node{node}" for node in range(size)]
    good, bad = [1e9] * size, [1e8] * size
    rows = [bad if node == 1000 else good for node in range(size)]
    seen = p2p_matrix.Measured(range(size), np.full((size, size), 1e-4), np.array(rows))
    slow = [
        p2p_matrix.Slow((1000, node), 1e-4, 1e8, "bandwidth", 0.1 + node / 1e9, "median") for node in range(size)
    ] * 6
    found = Matrix(range(size), hosts, hosts, seen, (1024, 2**20), slow, [1000], 4095, 1, {})
    values = found.as_dict()
    assert values["median"] == {"latency": 1e-4, "bandwidth": 1e9}
    kept = benchmark_results.Results("p2p", {"hosts": hosts}, {}, tmp_path, [], values, True)
    found.write(tmp_path)
    kept.write()
    assert (tmp_path / "results.json").stat().st_size < io_bounds.RESULT_BYTES / 2
    fabric = parse(json.loads((tmp_path / "results.json").read_text()))
    assert fabric.matrix and fabric.matrix["slow_pairs"] == len(slow) and len(fabric.matrix["slow"]) == WRITTEN_SLOW
    assert fabric.matrix["slow"][0]["b"] == "node0"
    heat = matrix_figures(fabric)[0]
    assert heat.caption == "Each cell is the worst of 16 x 16 nodes."
    assert [row[0] for row in heat.traces[0]["z"]] == [1e8 if row == 1000 // 16 else 1e9 for row in range(256)]
    whole = np.load(tmp_path / "matrix.npy", mmap_mode="r")
    assert whole.shape == (2, size, size) and whole[1, 1000, 7] == np.float32(1e8)


@pytest.mark.parametrize("size", [WRITTEN_ROWS - 1, WRITTEN_ROWS, WRITTEN_ROWS + 1])
def test_a_baseline_has_all_pairs_whether_they_are_in_its_json_or_not(tmp_path: Path, size: int) -> None:
    found = matrix_of([f"node{node}" for node in range(size)], {2: 0.5})
    kept = benchmark_results.Results("p2p", {}, {}, tmp_path, [], found.as_dict(), True)
    found.write(tmp_path)
    kept.write()
    assert (tmp_path / "matrix.npy").exists() == (size > WRITTEN_ROWS)
    then = benchmark_results.read(tmp_path).matrix
    assert then
    speeds = np.array(then["bandwidth"], float)
    assert speeds.shape == (size, size) and np.isnan(speeds[1, 1]) and (speeds[2, 1], speeds[3, 1]) == (5e8, 1e9)
    if size > WRITTEN_ROWS:
        (tmp_path / "matrix.npy").unlink()
        with pytest.raises(ValueError, match=r"there is no .*matrix\.npy"):
            benchmark_results.read(tmp_path)


# Baselines


def test_a_baseline_is_compared_with(tmp_path: Path) -> None:
    config = p2p_config(pattern="ring,matrix", warmup=0, slow_latency=1e6)
    run(config, 2, 2, partial(in_a_run, tmp_path))
    file = tmp_path / "results.json"
    before = json.loads(file.read_text())
    for name, factor, fails in (("slower", 1e-3, False), ("faster", 1e3, True)):
        then = json.loads(json.dumps(before))
        for row in then["rows"]:
            row["bandwidth"] *= factor
        then["matrix"]["bandwidth"] = [
            [None if value is None else value * factor for value in row] for row in then["matrix"]["bandwidth"]
        ]
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(then))
        results = run(p2p_config(**{**vars(config), "baseline": str(path)}), 2, 2, fails=fails)
        if fails:
            error = the_error(results)
            assert "1 of 1 rows are slower than baseline=" in error
            assert "1 links are slower than baseline=" in error
            assert "% of the baseline" in results[0].printed
        else:
            assert "1 rows compared with the baseline, none slower" in results[0].printed


def test_a_matrix_of_other_sizes_is_no_baseline(tmp_path: Path) -> None:
    config = p2p_config(pattern="matrix", iterations=1)
    run(config, 2, 2, partial(in_a_run, tmp_path))
    other = p2p_config(pattern="matrix", iterations=1, sizes=["1K", "8K"], baseline=str(tmp_path))
    printed = run(other, 2, 2)[0].printed
    assert "the baseline's matrix has other sizes (4K and 4K): not compared" in printed


# Refusals


def little_memory_on_rank_1(env: Env) -> None:
    patch.object(hardware_limits, "available_memory", lambda env: 2**20 if env.rank == 1 else 2**40).start()


def test_sizes_that_do_not_fit_end_the_sweep() -> None:
    config = p2p_config(pattern="ring", sizes=["1K", "1M"])
    results = run(config, 2, 1, little_memory_on_rank_1)
    assert [row[1] for row in table(results)] == ["1024"]
    assert "ring ends before 1M: it needs 7 MiB a rank, and 1 MiB are free" in results[0].printed
    error = the_error(run(p2p_config(pattern="ring", sizes="1M"), 2, 1, little_memory_on_rank_1, fails=True))
    assert "ring ends before 1M" in error and "use smaller workload.sizes" in error


@pytest.mark.parametrize(
    ("changes", "nodes", "text"),
    [
        ({"pattern": "rings"}, 2, "workload.pattern: 'rings' is no pattern; .* Did you mean ring"),
        ({"pattern": "matrix"}, 1, r"workload.pattern=matrix compares nodes, and there is one: use nodes=2"),
        ({"pair": [0, 2]}, 2, r"workload.pair=\[0,2\]: there is no rank 2; this run has ranks 0 to 1"),
        ({"pair": [1, 1]}, 2, r"workload.pair=\[1,1\] is not two ranks: write workload.pair=\[0,1\]"),
        ({"pair": [1]}, 2, r"workload.pair=\[1\] is not two ranks"),
        ({"window": 0}, 2, "workload.window=0: it must be at least 1"),
        ({"iterations": 0}, 2, "workload.iterations=0, workload.warmup=1: at least 1 iteration"),
        ({"warmup": -1}, 2, "workload.warmup=-1: it must be 0 or more"),
        ({"sizes": "1K:8"}, 2, "workload.sizes: "),
        ({"sizes": "many"}, 2, "workload.sizes: 'many' is not a size"),
        ({"dtype": "float"}, 2, "workload.dtype: 'float' is no dtype"),
        ({"budget": "soon"}, 2, "workload.budget: 'soon' is not a time"),
        ({"slow": 1.5}, 2, "workload.slow=1.5 is not a part of the median"),
        ({"slow_latency": 0.5}, 2, "workload.slow_latency=0.5 is not a multiple of the median"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes: dict[str, Any], nodes: int, text: str) -> None:
    defaults: dict[str, Any] = {"name": "p2p", "entry": "m:f", "seed": 0}
    with pytest.raises(ConfigError, match=text):
        Benchmark().check(plan_of(workload=P2P(**defaults, **changes), nodes=nodes, procs_per_node=2 // nodes))


@pytest.mark.parametrize(
    ("pair", "nodes", "expected"),
    [
        (None, [0, 0], (0, 1)),
        (None, [0, 0, 0], (0, 2)),
        (None, [0, 0, 1, 1], (0, 2)),
        (None, [0, 1, 2], (0, 2)),
        (None, [0], (0, 0)),  # nobody runs p2p with one rank, but its plan is made
        ([3, 1], [0, 0, 1, 1], (3, 1)),
    ],
)
def test_a_pair_is_of_two_nodes_where_there_are_two(
    pair: list[int] | None, nodes: list[int], expected: tuple[int, int]
) -> None:
    assert benchmark_keys.pair_of(pair, nodes) == expected


def test_gloo_is_given_no_memory_of_a_gpu() -> None:
    env: Any = SimpleNamespace(world_size=2, backend="gloo", device=torch.device("cuda", 0))
    with pytest.raises(WorkloadError, match=r"gloo sends and receives no GPU memory: add workload\.device=cpu"):
        p2p.main(p2p_config(), env)


def test_ranks_refuse_the_same_before_anything_is_sent() -> None:
    assert "p2p needs at least 2 ranks" in the_error(run(p2p_config(), 1, fails=True))
    assert "there is no rank 7" in the_error(run(p2p_config(pair=[0, 7]), 2, fails=True))
