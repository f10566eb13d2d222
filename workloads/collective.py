"""Measures and verifies collective operations over many sizes: the workload `collective`.

The columns are those of nccl-tests. Values that are equal in all rows of a table (type, redop, root) are in its title.
"""

from __future__ import annotations

import os
import statistics
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher import formatting, progress, run_dir
from launcher.worker import devices
from workloads import bench, results, roof
from workloads.keys import OPERATIONS, REDUCING, choose, chooses_all, parse_groups, parse_sizes
from workloads.operations import BY_NAME
from workloads.ranks import WorkloadError, gather, introduce, say
from workloads.sweep import Groups, Row, Sweep, make_groups

if TYPE_CHECKING:
    from launcher import Env
    from launcher.config.schema import Collective


TableRow = Mapping[str, Any]


def table_title(operation: str, kind: str, ranks: str, dtype: str, redop: str, root: int | None, async_op: bool) -> str:
    """Returns the title of a table: `all_reduce: world (4 ranks), float32, sum`; ranks: as `keys.groups_text`."""
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


def table_line(out: TableRow | None, in_place: TableRow | None) -> str:
    """Returns the line of one size, from the rows out of place and in place; None: not measured."""
    row = out or in_place
    assert row is not None
    size = (row["size"], row["count"]) if row["size"] else ("-", "-")
    return f"{size[0]:>10} {size[1]:>9} {_cells(out)} {_cells(in_place)}".rstrip()


def _cells(row: TableRow | None) -> str:
    if row is None:
        return f"{'-':>8} {'-':>5} {'-':>5} {'-':>6}"
    wrong = "-" if row["wrong"] is None else row["wrong"]
    time = bench.microseconds(row["seconds"]["median"])
    return f"{time:>8} {_speed(row['algbw']):>5} {_speed(row['busbw']):>5} {wrong:>6}"


def _speed(value: float | None) -> str:
    if value is None:
        return "-"
    speed = value / 1e9
    for limit, digits in ((9.9995, 3), (99.995, 2), (999.95, 1)):
        if speed < limit:
            return f"{speed:.{digits}f}"
    return f"{speed:.0f}"


def table_summary(rows: Sequence[TableRow], roof: float | None, of: str) -> str:
    """Returns the last line of a table: `average busbw 0.431 GB/s; the best is 43 % of the socket's 2.4 GB/s`.

    With one row the line is `busbw is 43 % of the socket's 2.4 GB/s`; empty if no row has a busbw. roof: bytes/s.
    """
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


WIDTH = 76  # characters of a line: 80 of a terminal, without the rank's prefix


class Report:
    """The benchmark's output on the terminal and in files, which only rank 0 writes."""

    def __init__(self, config: Collective, env: Env) -> None:
        self.config, self.env = config, env
        self.roof = roof.measure(env)
        folder = run_dir() if env.rank == 0 else None
        conditions = results.conditions(config, env)
        self.results = results.Results("collective", conditions, vars(self.roof), folder)
        self.table: list[Row] = []
        self.headed = False

    def say(self, *lines: str) -> None:
        if self.env.rank == 0:
            for line in lines:
                say(line)

    def say_wrapped(self, text: str) -> None:
        """Prints a text on rank 0, wrapped to WIDTH characters."""
        self.say(*textwrap.wrap(text, WIDTH, subsequent_indent="    "))

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

    def stop(self, reason: str) -> None:
        self.results.reason = "; ".join(filter(None, [self.results.reason, reason]))
        self.results.write()
        self.say_wrapped(reason)


def main(config: Collective, env: Env) -> dict[str, float | int | str]:
    """Measures and verifies the chosen operations, and returns the metrics of the run. All ranks must call it.

    The metrics are, for each operation on each kind of group, `OP/GROUP/busbw` (the best, in 10^9 bytes/s) and
    `OP/GROUP/us` (median time of the first size, in microseconds); and `operations`, `checked` (number of elements
    compared) and `wrong` (number of wrong ones).

    Raises WorkloadError: a result was wrong or slower than the baseline allows (raised after measuring everything), the
        backend lacks an operation that was chosen by name, the first size does not fit into memory, or the config is
        not valid.
    """
    try:
        kinds, operations = parse_groups(config.groups), choose("operation", config.op, OPERATIONS)
        introduce(env)
        gather(None, env)
        baseline = results.read_baseline(config.baseline, env)
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
    return conclude(report, faults, baseline, config)


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
        report.results.add({**sweep.identity(0, sweep.config.place), **_NOTHING, "missing": missing})
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


_NOTHING: Row = {
    "iterations": 0, "seconds": None, "algbw": None, "busbw": None, "wrong": None, "checked": 0,
}  # fmt: skip


def conclude(
    report: Report, faults: list[str], baseline: results.Results | None, config: Collective
) -> dict[str, float | int | str]:
    """Writes the results, and returns the metrics; raises WorkloadError for wrong results, or slow ones."""
    written = report.results
    results.conclude(written, faults)
    rows = [row for row in written.rows if not row["missing"]]
    operations = len({(row["op"], row["group"]) for row in rows})
    report.say(f"{formatting.plural(operations, 'operation')}, every result verified: all right")
    if baseline is not None:
        slower = results.against(written.rows, baseline, config.tolerance, report.say_wrapped, str(config.baseline))
        if slower:
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
