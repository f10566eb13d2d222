"""Measures transfers between ranks in several patterns, and verifies the received data: the workload `p2p`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from launcher import progress
from launcher.formatting import format_size, long_size
from launcher.worker import devices, process_group
from launcher.worker.stop import how_to_exclude
from workloads import benchmark_keys, benchmark_results, hardware_limits, measurement, p2p_matrix, p2p_patterns
from workloads.across_ranks import WorkloadError, gather, introduce, name_ranks
from workloads.benchmark_keys import parse_seconds, parse_sizes
from workloads.p2p_patterns import AT_ONCE, EXCHANGES, Case

if TYPE_CHECKING:
    from launcher import Env
    from launcher.config.schema import P2P

COLUMNS = "{:<13}  {:>11}  {:>11}  {:>9}  {:>9}  {:>5}  {:>6}"
HEAD = COLUMNS.format("pattern", "size(B)", "time(us)", "lat(us)", "MB/s", "%roof", "#wrong")


@dataclass(frozen=True)
class Measured:
    """The result of one pattern at one size."""

    row: benchmark_results.Row  # the row of results.json
    faults: tuple[str, ...]  # texts about wrong results

    def line(self, top: float | None) -> str:
        """Returns the line of the table; top: the hardware's speed for this pattern in bytes/s, None: unknown."""
        row = self.row
        speed, latency = row["bandwidth"], row["latency"]
        return COLUMNS.format(
            row["pattern"], row["size"], measurement.microseconds(row["seconds"]["median"]),
            "-" if latency is None else measurement.microseconds(latency), f"{speed / 1e6:.2f}",
            "-" if top is None else f"{speed / top * 100:.0f}", row["wrong"],
        )  # fmt: skip


class Transfers:
    """Measures all patterns except the matrix. All ranks must call its methods together."""

    def __init__(self, config: P2P, env: Env) -> None:
        self.config, self.env = config, env
        self.values = measurement.Values(measurement.torch_dtype(config.dtype), env.device, config.seed)
        self.pair = benchmark_keys.pair_of(config.pair, env.node_ranks)
        self.budget = None if config.budget is None else parse_seconds(config.budget)
        self.sizes = parse_sizes(config.sizes)
        self.hosts = gather(env.host, env)

    def counts(self) -> list[int]:
        """Returns the number of elements of a message for each size of the config, without duplicates."""
        return list(dict.fromkeys(max(1, size // self.values.dtype.itemsize) for size in self.sizes))

    def missing(self, pattern: str, count: int) -> str:
        """Returns a text if a rank lacks the memory for a pattern with messages of `count` elements; else ""."""
        size = count * self.values.dtype.itemsize
        if pattern in EXCHANGES:
            messages = min(AT_ONCE, self.env.world_size - 1)
        else:
            room = p2p_matrix.ROOM if pattern == benchmark_keys.MATRIX else p2p_patterns.ROOM
            messages = max(1, min(room // size, max(p2p_patterns.BURST, self.config.window)))
        need = 3 * messages * size + 12 * count + size  # sent, received, expected; and to make and compare values
        there = [free for free in gather(hardware_limits.available_memory(self.env), self.env) if free is not None]
        if not there or need < min(there):
            return ""
        return f"{format_size(size)}: it needs {long_size(need)} a rank, and {long_size(min(there))} are free"

    def measure(self, pattern: str, count: int) -> Measured:
        return self._pair(pattern, count) if pattern in p2p_patterns.PATTERNS else self._exchange(pattern, count)

    def _pair(self, pattern: str, count: int) -> Measured:
        config, env = self.config, self.env
        a, b = self.pair
        timed = p2p_patterns.Timed()
        if env.rank in self.pair:
            runs = p2p_patterns.Runs(config.iterations, config.warmup, self.budget, config.window)
            timed = p2p_patterns.PATTERNS[pattern](p2p_patterns.Pair(env.rank, a, b, count, self.values, pattern), runs)
        everyone = gather(timed, env)
        seconds = everyone[a].seconds
        size, median = count * self.values.dtype.itemsize, measurement.spread(seconds)["median"]
        messages = {"pingpong": 2, "bandwidth": config.window, "bidirectional": 2 * config.window}[pattern]
        latency = median / 2 if pattern == "pingpong" else None
        row = self._row(pattern, count, messages, seconds)
        row |= {"window": 1 if latency else config.window, "latency": latency, "bandwidth": messages * size / median}
        wrong = {(rank, b if rank == a else a): theirs.wrong for rank, theirs in enumerate(everyone) if theirs.wrong}
        return self._measured(row, sum(theirs.checked for theirs in everyone), wrong)

    def _exchange(self, pattern: str, count: int) -> Measured:
        config, env = self.config, self.env
        took: list[float] = []
        for run in range(max(config.warmup, 0 if self.budget is None else 2)):
            took.append(sum(self._run(pattern, count, run, {})[0]))
        iterations = config.iterations
        if self.budget is not None:
            iterations = gather(max(1, min(p2p_patterns.MOST, int(self.budget / took[-1]))), env)[0]
        seconds: list[float] = []
        wrong: dict[int, int] = {}
        messages = checked = 0
        for iteration in range(iterations):
            times, sent, compared = self._run(pattern, count, config.warmup + iteration, wrong)
            seconds += times
            messages += sent
            checked += compared
        everyone = gather((messages, checked, wrong), env)
        slowest = torch.tensor(measurement.slowest(seconds, env)).view(iterations, -1).sum(1).tolist()
        messages = sum(messages for messages, *_ in everyone) // iterations
        row = self._row(pattern, count, messages, slowest)
        size = count * self.values.dtype.itemsize
        row |= {"window": 1, "latency": None, "bandwidth": messages * size / row["seconds"]["median"]}
        found = {(rank, peer): bad for rank, (*_, theirs) in enumerate(everyone) for peer, bad in theirs.items()}
        return self._measured(row, sum(checked for _, checked, _ in everyone), found)

    def _run(self, pattern: str, count: int, run: int, wrong: dict[int, int]) -> tuple[list[float], int, int]:
        seconds, messages, checked = [], 0, 0
        for exchange in EXCHANGES[pattern](Case(self.env.rank, self.env.world_size, count, self.values, run)):
            dist.barrier()
            seconds.append(measurement.timed(self.env.device, exchange.run, exchange))
            messages += len(exchange.sends)
            for receipt in exchange.receipts:
                checked += count
                if bad := measurement.count_wrong(receipt.buffer, receipt.expected):
                    wrong[receipt.peer] = wrong.get(receipt.peer, 0) + bad
        return seconds, messages, checked

    def _row(self, pattern: str, count: int, messages: int, seconds: Sequence[float]) -> dict[str, Any]:
        return {
            "pattern": pattern, "size": count * self.values.dtype.itemsize, "count": count, "dtype": self.config.dtype,
            "ranks": list(self.pair) if pattern in p2p_patterns.PATTERNS else self.env.world_size, "messages": messages,
            "iterations": len(seconds), "seconds": measurement.spread(seconds),
        }  # fmt: skip

    def _measured(self, row: dict[str, Any], checked: int, wrong: dict[tuple[int, int], int]) -> Measured:
        # `wrong` has the wrong elements by receiving and sending rank
        faults = tuple(
            f"{row['pattern']}: {bad} wrong elements of {row['count']} a message arrived on "
            f"{name_ranks([to], self.hosts)} from {name_ranks([source], self.hosts)}"
            for (to, source), bad in wrong.items()
        )
        return Measured({**row, "wrong": sum(wrong.values()), "checked": checked}, faults)


# -- The workload


def top_of(pattern: str, pair: tuple[int, int], measured: hardware_limits.Roof, env: Env) -> float | None:
    """Returns the hardware's speed with which a pattern is compared, in bytes/s; None: it is not known.

    | pattern | between two nodes, or gloo on one node | nccl or xccl, within a node | else |
    |---|---|---|---|
    | pingpong, bandwidth | one TCP stream | copy in memory | not known |
    | bidirectional | twice one TCP stream | twice a copy in memory | not known |
    | any other | not known | not known | not known |
    """
    if pattern not in p2p_patterns.PATTERNS:
        return None
    within = env.node_of(pair[0]) == env.node_of(pair[1])
    on_stream = env.backend in devices.ON_STREAM
    if within and on_stream:
        top = measured.memory
    elif not within or env.nnodes == 1:
        top = measured.socket
    else:
        top = None
    return None if top is None else top * (2 if pattern == "bidirectional" else 1)


def main(config: P2P, env: Env) -> dict[str, float | int | str]:
    """Measures and verifies the chosen patterns; returns the metrics that docs/fabric-and-benchmarks.md lists.

    Raises WorkloadError: a received value was wrong, a speed is lower than the baseline allows, or pairs are slow and
    `fail_on_slow` is set (these are raised after measuring everything); there is only one rank, the first size needs
    too much memory, or a key is not valid.
    """
    if env.world_size < 2:
        raise WorkloadError("p2p needs at least 2 ranks: set nodes=2 or procs_per_node=2")
    if env.backend == "gloo" and env.device.type != "cpu":
        raise WorkloadError(benchmark_keys.GLOO_ON_GPU)
    try:
        chosen = benchmark_keys.chosen_patterns(vars(config), env.node_ranks)
        this = Transfers(config, env)
    except ValueError as error:
        raise WorkloadError(str(error)) from error
    introduce(env)
    report = benchmark_results.Report(config, env)
    report.say(*report.roof.lines())
    ordered = [pattern for pattern in chosen if pattern != benchmark_keys.MATRIX]
    if ordered:
        report.say(HEAD)
    faults: list[str] = []
    done, total = 0, len(ordered) * len(this.counts()) + (benchmark_keys.MATRIX in chosen)
    for pattern in ordered:
        top = top_of(pattern, this.pair, report.roof, env)
        for count in this.counts():
            if missing := this.missing(pattern, count):
                report.stop(f"{pattern} ends before {missing}")
                break
            found = this.measure(pattern, count)
            report.say(found.line(top))
            report.results.add(found.row)
            faults += found.faults
            done += 1
            if env.rank == 0:
                progress(done, total, pattern=pattern, size=found.row["size"])
    told: Told | None = None
    if benchmark_keys.MATRIX in chosen:
        if missing := this.missing(benchmark_keys.MATRIX, max(this.counts())):
            report.stop(f"matrix is left out at {missing}")
        else:
            links = p2p_matrix.measure(config, this.sizes, report.baseline.matrix if report.baseline else None, env)
            if links is not None:
                report.results.matrix = links.as_dict()
                if report.folder:
                    links.write(report.folder)
                report.say(*p2p_matrix.lines(links, config, how_to_exclude))
                told = Told.of(links, this.hosts, config)
                progress(total, total, pattern=benchmark_keys.MATRIX)
            told = process_group.broadcast(told)
            faults += told.faults
    report.conclude(faults)
    _require_speed(report, told, config)
    return _metrics(report.results.rows, told)


@dataclass(frozen=True)
class Told:
    """What all ranks know of the matrix, which rank 0 has."""

    faults: Sequence[str]  # texts about wrong elements
    slower: Sequence[str]  # why the run fails
    metrics: Mapping[str, float | int | str]
    checked: int  # number of received elements that were compared

    @classmethod
    def of(cls, links: p2p_matrix.Matrix, hosts: Sequence[str], config: P2P) -> Told:
        slower = []
        if since := [slow for slow in links.slow if slow.against == "baseline"]:
            slower.append(
                f"{len(since)} links are slower than baseline={config.baseline} allows (tolerance={config.tolerance:g})"
            )
        count = len({slow.pair for slow in links.slow})  # a pair may be slow by the median, and by the baseline
        if config.fail_on_slow and links.slow:
            worst = p2p_matrix.pair_in_words(min(links.slow, key=lambda slow: slow.ratio).pair, links)
            slower.append(f"workload.fail_on_slow: {count} slow links, {worst} the worst")
        metrics: dict[str, float | int | str] = {"matrix/slow": count}
        if links.exclude:
            metrics["matrix/exclude"] = links.exclude
        return cls(p2p_matrix.faults(links, hosts), slower, metrics, links.checked)


def _require_speed(report: benchmark_results.Report, told: Told | None, config: P2P) -> None:
    slower, rows = [], report.results.rows
    if report.baseline is not None and rows:
        where = str(config.baseline)
        slower.append(benchmark_results.against(rows, report.baseline, config.tolerance, report.say, where))
    slower += told.slower if told else ()
    if reasons := [each for each in slower if each]:
        raise WorkloadError("; ".join(reasons))


def _metrics(rows: Sequence[benchmark_results.Row], told: Told | None) -> dict[str, float | int | str]:
    found: dict[str, float | int | str] = {}
    for row in sorted(rows, key=lambda row: int(row["size"])):
        pattern = row["pattern"]
        found.setdefault(f"{pattern}/us", round((row["latency"] or row["seconds"]["median"]) * 1e6, 1))
        best = max(float(found.get(f"{pattern}/mb_per_s", 0)), row["bandwidth"] / 1e6)
        found[f"{pattern}/mb_per_s"] = round(best, 1)
    checked = sum(row["checked"] for row in rows) + (told.checked if told else 0)
    found |= told.metrics if told else {}
    kinds = len({row["pattern"] for row in rows}) + bool(told)
    return {**found, "patterns": kinds, "checked": checked}
