"""Measures and verifies collective operations over many sizes: the workload `collective`.

All ranks decide together, before an operation starts, whether the backend has it, whether a size fits into memory, and
how many iterations a time budget allows. So no rank waits for another one that has decided otherwise.

The columns of the tables are those of nccl-tests. Values that are equal in all rows of a table (type, redop, root) are
in its title.
"""

from __future__ import annotations

import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from launcher import formatting, progress
from launcher.formatting import format_size
from launcher.torch_compat import destroy_without_gil
from launcher.worker import devices
from workloads import benchmark_results, hardware_limits, measurement
from workloads.across_ranks import WorkloadError, gather, introduce, name_ranks
from workloads.benchmark_keys import (
    OPERATIONS,
    REDUCING,
    Members,
    backends_for,
    check_root,
    choose,
    chooses_all,
    groups_text,
    members_of,
    parse_groups,
    parse_seconds,
    parse_sizes,
    places_of,
)
from workloads.collective_operations import BY_NAME, Buffers, Call, Case, Operation, count_of

if TYPE_CHECKING:
    from launcher import Env
    from launcher.config.schema import Collective


LATE = 0.01  # seconds by which the root comes late to a verified barrier; a rank that does not wait for it is found
MOST_ITERATIONS = 100_000  # most iterations with a time budget
_met: Counter[str] = Counter()  # number of verified barriers by name: each needs a key of its own in the store


class Run:
    """The runs of one operation at one size on this rank. Without case and buffers it is in no group, and only joins
    the gathers of all ranks."""

    def __init__(
        self, config: Collective, operation: Operation, env: Env, case: Case | None, buffers: Buffers | None
    ) -> None:
        self.config, self.operation, self.env, self.case, self.buffers = config, operation, env, case, buffers
        self.checked = 0  # elements compared so far
        self.wrong: int | None = 0  # of these; for a barrier, number of ranks that had not arrived; None: unknown
        on_stream = devices.ON_STREAM.get(env.backend) == env.device.type
        self._time: Callable[[Call, Call, int], list[float]] = (
            partial(measurement.time_on_device, device=env.device) if on_stream else measurement.time_calls
        )
        if case is not None and buffers is not None:
            self._meet: Call = partial(dist.barrier, group=case.group)
            call = operation.bind(case, buffers, config.async_op)
            self._call = self._until_done(call) if env.device.type != "cpu" and not on_stream else call

    def _until_done(self, call: Call) -> Call:
        def call_and_finish() -> None:
            call()
            devices.synchronize(self.env.device)

        return call_and_finish

    def warm_up(self) -> int:
        """Makes the warm-up iterations; returns the number of iterations to time, the same on all ranks."""
        config = self.config
        budget = None if config.budget is None else parse_seconds(config.budget)
        count = max(config.warmup, 1) if budget else config.warmup
        began = time.perf_counter()
        self.times(count)
        if budget is None:
            return config.iterations
        cost = measurement.slowest([(time.perf_counter() - began) / count], self.env)[0]
        return max(2, min(MOST_ITERATIONS, int(budget / max(cost, 1e-7))))

    def timed(self, iterations: int) -> list[float]:
        """Returns the seconds of each iteration. The first and the last one use new data, which is verified."""
        seconds = self._verified("first")
        if iterations > 1:
            seconds += self.times(iterations - 2)
            seconds += self._verified("last")
        return seconds

    def times(self, count: int) -> list[float]:
        """Runs `count` iterations on the current data; returns the seconds of each; 0 if this rank is in no group."""
        return self._time(self._call, self._meet, count) if self.case is not None and count else [0.0] * count

    def _verified(self, when: str) -> list[float]:
        if self.case is None or self.buffers is None:
            return [0.0]
        operation, case = self.operation, self.case.again(when)
        if operation.name == "barrier":
            seconds = self.times(1)
            missing = _missing_at_barrier(case, self._call)
            self.wrong = None if missing is None or self.wrong is None else self.wrong + missing
            return seconds
        operation.fill(case, self.buffers)
        seconds = self.times(1)
        devices.synchronize(self.env.device)
        wrong, checked = operation.check(case, self.buffers)
        self.wrong = (self.wrong or 0) + wrong
        self.checked += checked
        return seconds


def _missing_at_barrier(case: Case, barrier: Call) -> int | None:
    # The root arrives LATE seconds late.
    # None: unknown, since there is no store in which ranks are counted (MPI).
    store = dist.distributed_c10d._get_default_store()
    name = f"barrier/{case.key}/{case.ranks}"
    _met[name] += 1
    key = f"{name}/{_met[name]}"
    if case.is_root:
        time.sleep(LATE)
    if store:
        store.add(key, 1)
    barrier()
    return case.n - store.add(key, 0) if store else None


# -- One operation over many sizes


Row = dict[str, Any]


@dataclass(frozen=True)
class Groups:
    """All groups of one kind."""

    kind: str  # the kind (see `workloads.benchmark_keys`)
    members: Members  # the ranks of each group
    mine: dist.ProcessGroup | None  # process group of this rank; None: this rank is in no group
    ranks: tuple[int, ...]  # ranks of this rank's group

    @property
    def n(self) -> int:
        """Number of ranks of the smallest group."""
        return min(map(len, self.members))

    def __str__(self) -> str:
        return groups_text(self.members)


@dataclass(frozen=True)
class Measured:
    """The result of one size."""

    rows: tuple[Row, ...] = ()  # a row for each place, out of place and in place
    faults: tuple[str, ...] = ()  # texts about wrong results
    no_room: str = ""  # why the size does not fit into memory; empty: it fits


def make_groups(kind: str, env: Env, *, anew: bool = False) -> Groups:
    """Creates the process groups of a kind; raises ValueError. All ranks call it, for the same kinds in the same order.

    anew: whether to create a new group for `world`, too, and not to return the default group.
    """
    members = members_of(kind, env.node_ranks)
    if kind == "world" and not anew:
        return Groups(kind, members, dist.group.WORLD, members[0])
    timeout = _timeout(env)
    made = [dist.new_group(list(ranks), timeout=timeout) for ranks in members]
    for ranks, group in zip(members, made, strict=True):
        destroy_without_gil(group)
        if env.rank in ranks:
            assert group is not None
            return Groups(kind, members, group, ranks)
    return Groups(kind, members, None, ())


def _timeout(env: Env) -> timedelta | None:
    assert dist.group.WORLD is not None
    options = getattr(dist.group.WORLD._get_backend(env.device), "options", None)
    return getattr(options, "_timeout", None)


def _remade(groups: Groups, env: Env) -> Groups:
    # After an operation has failed in a gloo group, barriers in that group repeat its error
    if groups.mine is not None and groups.mine is not dist.group.WORLD:
        dist.destroy_process_group(groups.mine)
    return make_groups(groups.kind, env, anew=True)


class Sweep:
    """One operation on all groups of a kind. All ranks create it, and call its methods together; raises ValueError."""

    def __init__(self, config: Collective, operation: Operation, groups: Groups, env: Env) -> None:
        self.config, self.operation, self.groups, self.env = config, operation, groups, env
        self.values = measurement.Values(measurement.torch_dtype(config.dtype), env.device, config.seed)
        self.places = places_of(operation.name, config.place)
        if operation.rooted:
            check_root(config.root, groups.kind, groups.members)

    def sizes(self) -> tuple[int, ...]:
        """Returns the sizes in bytes, rounded to whole elements and blocks; (0,) for a barrier."""
        if self.operation.name == "barrier":
            return (0,)
        one = self.values.dtype.itemsize
        counts = (count_of(self.operation.name, size, one, self.groups.n) for size in parse_sizes(self.config.sizes))
        return tuple(dict.fromkeys(count * one for count in counts))

    def missing(self) -> str:
        """Tries the operation on very little data; returns why it cannot be run here, or "" if it can."""
        name, config = self.operation.name, self.config
        if not self.places:
            return f"torch.distributed has it {'in' if config.place == 'out' else 'out of'} place only"
        if name == "send_recv" and self.groups.n < 2:
            return "it takes two ranks, and a group has one"
        for place in self.places:
            problem = self._try(place)
            if problem is not None:
                self.groups = _remade(self.groups, self.env)
                can = [each for each in backends_for(name, config.dtype, config.redop) if each != self.env.backend]
                have = f"; {' and '.join(can)} {'have' if len(can) > 1 else 'has'} it" if can else ""
                of = f" for {config.dtype}" + (f" {config.redop}" if self.operation.reduces else "")
                return f"{self.env.backend} lacks it{of} ({problem}){have}"
        return ""

    def _try(self, place: str) -> str | None:
        problem = None
        if self.groups.mine is not None:
            case = self.case(12 * len(self.groups.ranks), "try")
            try:
                buffers = self.operation.allocate(case, place)
                self.operation.fill(case, buffers)
                self.operation.bind(case, buffers, self.config.async_op)()
                devices.synchronize(self.env.device)
            except (NotImplementedError, RuntimeError, ValueError, TypeError) as error:
                problem = str(error).splitlines()[0]
        found = gather(problem, self.env)
        return next((theirs for theirs in found if theirs is not None), None)

    def measure(self, size: int) -> Measured:
        rows: list[Row] = []
        faults: list[str] = []
        for place in self.places:
            done = self._measure(size, place)
            if done.no_room:
                return done
            rows += done.rows
            faults += done.faults
        return Measured(tuple(rows), tuple(faults))

    def _measure(self, size: int, place: str) -> Measured:
        case = buffers = None
        reason = ""
        if self.groups.mine is not None:
            one = self.values.dtype.itemsize
            count = count_of(self.operation.name, size, one, len(self.groups.ranks)) if size else 0
            case = self.case(count, place, size)
            reason = self._no_room(case, place)
            if not reason:
                buffers, reason = _allocated(self.operation, case, place)
        if short := {rank: why for rank, why in enumerate(gather(reason, self.env)) if why}:
            hosts = gather(self.env.host, self.env)
            rank, why = next(iter(short.items()))
            return Measured(no_room=f"{format_size(size)}: {name_ranks([rank], hosts)} {why}")
        run = Run(self.config, self.operation, self.env, case, buffers)
        iterations = run.warm_up()
        seconds = run.timed(iterations)
        return self._outcome(size, place, seconds, run)

    def _outcome(self, size: int, place: str, seconds: list[float], run: Run) -> Measured:
        env, groups = self.env, self.groups
        tallies = gather((env.host, run.checked, run.wrong), env)
        hosts = [host for host, _, _ in tallies]
        name = self.operation.name
        of = f" of {size} bytes" if size else ""
        faults = tuple(
            f"{name}{of} in group {groups.kind}: "
            + (
                f"{wrong} wrong of {checked} elements on {name_ranks([rank], hosts)}"
                if checked
                else f"{name_ranks([rank], hosts)} left before {wrong} others had come"
            )
            for rank, (_, checked, wrong) in enumerate(tallies)
            if wrong
        )
        unknown = any(wrong is None for _, _, wrong in tallies)
        spread = measurement.spread(measurement.slowest(seconds, env))
        algbw, busbw = measurement.bandwidths(name, groups.n, size, spread["median"])
        row = {
            **self.identity(size, place),
            "iterations": len(seconds),
            "seconds": spread,
            "algbw": algbw,
            "busbw": busbw,
            "wrong": None if unknown else sum(wrong or 0 for _, _, wrong in tallies),
            "checked": sum(checked for _, checked, _ in tallies),
            "missing": "",
        }
        return Measured((row,), faults)

    def identity(self, size: int, place: str) -> Row:
        """Returns the keys of a row that say what is measured; place: "in" (an in-place operation) or "out"."""
        config, operation = self.config, self.operation
        return {
            "op": operation.name,
            "group": self.groups.kind,
            "ranks": str(self.groups),
            "n": self.groups.n,
            "size": size,
            "count": size // self.values.dtype.itemsize,
            "dtype": config.dtype,
            "redop": config.redop if operation.reduces else None,
            "root": config.root if operation.rooted else None,
            "place": place,
            "async": config.async_op,
        }

    def case(self, count: int, *key: object) -> Case:
        """Returns a case of `count` elements on this rank, which must be in a group. `key` makes its data different."""
        groups = self.groups
        assert groups.mine is not None
        me = groups.ranks.index(self.env.rank)
        key = (self.operation.name, groups.kind, *key)
        return Case(groups.mine, groups.ranks, me, self.config.root, count, self.values, self.config.redop, key)

    def _no_room(self, case: Case, place: str) -> str:
        # On a CPU the kernel would kill the rank, in place of an error of the allocation
        both, larger = self.operation.elements(case, place)
        need = (both + larger) * self.values.dtype.itemsize  # the library may need as much as the larger one
        have = hardware_limits.available_memory(self.env)
        if have is None or need <= have:
            return ""
        return f"needs {need / 2**30:.2f} GiB of memory, and {have / 2**30:.2f} GiB is left for it"


def _allocated(operation: Operation, case: Case, place: str) -> tuple[Buffers | None, str]:
    # Returns filled buffers and ""; or None and why they could not be allocated
    try:
        buffers = operation.allocate(case, place)
        operation.fill(case, buffers)
    except torch.OutOfMemoryError as error:
        return None, f"is out of memory ({_first_line(error)})"
    except RuntimeError as error:  # the CPU's allocator has no type of its own
        if "memory" not in str(error):
            raise
        return None, f"is out of memory ({_first_line(error)})"
    return buffers, ""


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]


# -- The table


def table_title(operation: str, kind: str, ranks: str, dtype: str, redop: str, root: int | None, async_op: bool) -> str:
    """Returns the title of a table: `all_reduce: world (4 ranks), float32, sum`; ranks: as `groups_text`."""
    words = [f"{operation}: {kind} ({ranks} {'rank' if ranks == '1' else 'ranks'})"]
    if operation != "barrier":
        words.append(dtype)
    if operation in REDUCING:
        words.append(redop)
    if root is not None:
        words.append(f"root {root}")
    return ", ".join(words + (["async"] if async_op else []))


def table_head() -> list[str]:
    """Returns two header lines: out-of-place and in-place, and below them the columns; speeds in 10^9 bytes/s."""
    columns = f"{'time(us)':>8} {'algbw':>5} {'busbw':>5} {'#wrong':>6}"
    return [f"{'':20} {'out-of-place, GB/s':^27} {'in-place, GB/s':^27}".rstrip(),
            f"{'size(B)':>10} {'count':>9} {columns} {columns}"]  # fmt: skip


def table_line(out: Row | None, in_place: Row | None) -> str:
    """Returns the line of one size, from the rows out of place and in place; None: not measured."""
    row = out or in_place
    assert row is not None
    size = (row["size"], row["count"]) if row["size"] else ("-", "-")
    return f"{size[0]:>10} {size[1]:>9} {_cells(out)} {_cells(in_place)}".rstrip()


def _cells(row: Row | None) -> str:
    if row is None:
        return f"{'-':>8} {'-':>5} {'-':>5} {'-':>6}"
    wrong = "-" if row["wrong"] is None else row["wrong"]
    time = measurement.microseconds(row["seconds"]["median"])
    return f"{time:>8} {_speed(row['algbw']):>5} {_speed(row['busbw']):>5} {wrong:>6}"


def _speed(value: float | None) -> str:
    if value is None:
        return "-"
    speed = value / 1e9
    for limit, digits in ((9.9995, 3), (99.995, 2), (999.95, 1)):
        if speed < limit:
            return f"{speed:.{digits}f}"
    return f"{speed:.0f}"


def table_summary(rows: Sequence[Row], roof: float | None, of: str) -> str:
    """Returns the last line of a table: `average busbw 0.431 GB/s; the best is 43 % of the socket's 2.4 GB/s`."""
    speeds = [row["busbw"] for row in rows if row.get("busbw")]
    if not speeds:
        return ""
    best, average = max(speeds), statistics.fmean(speeds)
    text = f"average busbw {average / 1e9:.3g} GB/s"
    if not roof:
        return text
    part = f"is {best / roof * 100:.0f} % of the {of}'s {roof / 1e9:.3g} GB/s"
    return f"busbw {part}" if len(speeds) == 1 else f"{text}; the best {part}"


# -- The workload


class Report(benchmark_results.Report):
    """With a table for each operation."""

    def __init__(self, config: Collective, env: Env) -> None:
        super().__init__(config, env)
        self.config, self.table, self.headed = config, list[Row](), False

    def begin(self, sweep: Sweep) -> None:
        """Prints the column heads and the title of one operation's table. If there is only one size, the column heads
        are printed for the first table only."""
        config, row = self.config, sweep.identity(0, "")
        if len(parse_sizes(config.sizes)) > 1 or not self.headed:
            self.say(*[""] * self.headed, *table_head())
        self.headed, self.table = True, []
        of = (row["dtype"], config.redop, row["root"], config.async_op)
        self.say(table_title(row["op"], row["group"], row["ranks"], *of))

    def add(self, rows: tuple[Row, ...]) -> None:
        self.table += rows
        self.results.add(*rows)
        where = {row["place"]: row for row in rows}
        self.say(table_line(where.get("out"), where.get("in")))

    def end(self, groups: Groups) -> None:
        if text := table_summary(self.table, *self._roof_of(groups)):
            self.say(text)

    def _roof_of(self, groups: Groups) -> tuple[float | None, str]:
        """Returns the hardware speed with which a group's busbw is compared, in bytes/s, and the name of this speed.

        | the group | speed |
        |---|---|
        | spans nodes, or the run has one node and uses gloo or mpi | "socket" |
        | else: within a node NCCL and oneCCL use no sockets, and the measured socket connects two nodes | "memory" |
        """
        env = self.env
        nodes = max(len({env.node_of(rank) for rank in ranks}) for ranks in groups.members)
        if nodes > 1 or (env.backend not in devices.ON_STREAM and env.nnodes == 1):
            return self.roof.socket, "socket"
        return self.roof.memory, "memory"


def main(config: Collective, env: Env) -> dict[str, float | int | str]:
    """Measures and verifies the chosen operations; returns the metrics that docs/fabric-and-benchmarks.md lists.

    Raises WorkloadError: a result was wrong or slower than the baseline allows (raised after measuring everything), the
    backend lacks an operation that was chosen by name, the first size needs too much memory, or a key is not valid.
    """
    try:
        kinds, operations = parse_groups(config.groups), choose("operation", config.op, OPERATIONS)
        introduce(env)
        gather(None, env)
        report = Report(config, env)
        faults: list[str] = []
        total = len(kinds) * len(operations)
        done = 0
        for kind in kinds:
            groups = make_groups(kind, env)
            for name in operations:
                sweep = Sweep(config, BY_NAME[name], groups, env)
                faults += run(sweep, report)
                groups = sweep.groups
                done += 1
                if done == 1 and env.backend == "nccl":
                    report.say(*networks(gather(own_network(env.rank), env)))
                if env.rank == 0:
                    progress(done, total, op=name, group=kind)
    except ValueError as error:  # from the config: groups are only known on the ranks
        raise WorkloadError(str(error)) from error
    return conclude(report, faults)


def own_network(rank: int) -> devices.Fabric | None:
    """Returns the network that NCCL uses on this rank, from its log; None: it has none, or one of the user's."""
    log = Path(os.environ.get("NCCL_DEBUG_FILE", ""))
    return devices.read_nccl_log(log) if log.name == devices.nccl_log_name(rank) else None


def networks(fabrics: Sequence[devices.Fabric | None]) -> list[str]:
    """Returns a line for each network that NCCL uses: `NCCL 2.19.3 uses IB (mlx5_0) on ranks 0-3`; None: unknown."""
    ranks: dict[str, list[int]] = {}
    for rank, fabric in enumerate(fabrics):
        if fabric is not None:
            ranks.setdefault(fabric.text, []).append(rank)
    if len(ranks) == 1 and None not in fabrics:
        return [f"{words} on all ranks" for words in ranks]
    return [f"{words} on {formatting.name_ranks(numbers)}" for words, numbers in ranks.items()]


def run(sweep: Sweep, report: Report) -> list[str]:
    """Measures and reports all sizes of one operation on one kind of group; returns texts about wrong results."""
    report.begin(sweep)
    name, kind = sweep.operation.name, sweep.groups.kind
    if missing := sweep.missing():
        if not chooses_all(report.config.op):
            raise WorkloadError(f"{name} cannot be run: {missing}")
        report.say_wrapped(f"  left out: {missing}")
        nothing = {"iterations": 0, **dict.fromkeys(("seconds", "algbw", "busbw", "wrong")), "checked": 0}
        report.results.add({**sweep.identity(0, sweep.config.place), **nothing, "missing": missing})
        return []
    faults: list[str] = []
    for size in sweep.sizes():
        measured = sweep.measure(size)
        if measured.no_room:
            if not report.table:
                raise WorkloadError(f"{name} in group {kind} does not fit into memory at {measured.no_room}: use less")
            report.stop(f"{name} in group {kind} ends before {measured.no_room}")
            break
        report.add(measured.rows)
        faults += measured.faults
    report.end(sweep.groups)
    return faults


def conclude(report: Report, faults: list[str]) -> dict[str, float | int | str]:
    """Writes the results, and returns the metrics; raises WorkloadError for wrong results, or slow ones."""
    report.conclude(faults)
    rows = [row for row in report.results.rows if not row["missing"]]
    operations = len({(row["op"], row["group"]) for row in rows})
    report.say(f"{formatting.plural(operations, 'operation')}, every result verified: all right")
    if report.baseline is not None:
        config, now = report.config, report.results.rows
        where = str(config.baseline)
        if slower := benchmark_results.against(now, report.baseline, config.tolerance, report.say_wrapped, where):
            raise WorkloadError(slower)
    metrics: dict[str, float | int | str] = {}
    for row in rows:
        key = f"{row['op']}/{row['group']}"
        metrics.setdefault(f"{key}/us", round(row["seconds"]["median"] * 1e6, 1))
        if row["busbw"]:
            metrics[f"{key}/busbw"] = max(float(metrics.get(f"{key}/busbw", 0)), round(row["busbw"] / 1e9, 4))
    return {
        **metrics,
        "operations": operations,
        "checked": sum(row["checked"] for row in rows),
        "wrong": sum(row["wrong"] or 0 for row in rows),
    }
