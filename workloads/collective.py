"""Run collective operations on all ranks or on groups of them, and verify every result: the workload `collective`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch.distributed as dist
from torch import Tensor

from workloads import bench, names
from workloads.operations import BY_NAME, Case, Operation
from workloads.ranks import WorkloadError, gather, introduce, name_ranks, raise_together, say

if TYPE_CHECKING:
    from launcher.config import Collective
    from launcher.node import Env

TABLE = bench.Table(("op", -14), ("group", -6), ("ranks", 8), ("bytes", 12), ("time(us)", 10), ("#wrong", 7))


@dataclass(frozen=True)
class Groups:
    """All groups of one kind. Every rank is in exactly one of them: `mine`, which has `ranks`."""

    kind: str
    members: tuple[tuple[int, ...], ...]
    mine: dist.ProcessGroup
    ranks: tuple[int, ...]

    def __str__(self) -> str:
        """`4` ranks, or `2 x 3`: 2 groups of 3 ranks."""
        sizes = sorted({len(ranks) for ranks in self.members})
        size = str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]}-{sizes[-1]}"
        return size if len(self.members) == 1 else f"{len(self.members)} x {size}"


@dataclass(frozen=True)
class Outcome:
    """One operation on one kind of groups: its largest buffer in bytes, time in seconds, wrong and checked elements.

    `wrong` counts over all ranks and iterations, and is None where nobody can know. `faults` says who had how many
    wrong. `missing` is the reason if the backend does not have the operation.
    """

    operation: str
    group: str
    ranks: str
    bytes: int
    seconds: float
    wrong: int | None
    checked: int
    faults: tuple[str, ...] = ()
    missing: str = ""

    def row(self) -> str:
        if self.missing:
            return f"{TABLE.row(self.operation, self.group, self.ranks, self.bytes, '-', '-')}  {self.missing}"
        wrong = "-" if self.wrong is None else self.wrong
        size = self.bytes if self.checked or self.operation != "barrier" else "-"
        return TABLE.row(self.operation, self.group, self.ranks, size, bench.microseconds(self.seconds), wrong)


def members_of(kind: str, env: Env) -> tuple[tuple[int, ...], ...]:
    """The global ranks of each group of a kind: `world` is all ranks, `node` those of a node, `stride` those that have
    the same local rank. Every rank is in one group."""
    nodes: dict[int, list[int]] = {}
    for rank in range(env.world_size):
        nodes.setdefault(env.node_of(rank), []).append(rank)
    if kind == "world":
        return (tuple(range(env.world_size)),)
    if kind == "node":
        return tuple(tuple(ranks) for ranks in nodes.values())
    widest = max(len(ranks) for ranks in nodes.values())
    return tuple(tuple(ranks[local] for ranks in nodes.values() if local < len(ranks)) for local in range(widest))


def make_groups(kind: str, env: Env) -> Groups:
    """The process groups of a kind. All ranks must call it, for the same kinds in the same order."""
    members = members_of(kind, env)
    made = [dist.new_group(list(ranks)) if len(members) > 1 else dist.group.WORLD for ranks in members]
    mine = next(index for index, ranks in enumerate(members) if env.rank in ranks)
    group = made[mine]
    assert group is not None  # the default group, or one that this rank is in
    return Groups(kind, members, group, members[mine])


def cases(config: Collective, operation: str, groups: Groups, env: Env) -> Iterator[Case]:
    """This rank's runs of an operation, each with fresh data and the next root; the first `warmup` are not timed."""
    values = bench.Values(bench.torch_dtype(config.dtype), env.device, config.seed)
    n = len(groups.ranks)
    block = max(1, bench.parse_bytes(config.size) // values.dtype.itemsize // n)
    me = groups.ranks.index(env.rank)
    for run in range(config.warmup + config.iterations):
        yield Case(groups.mine, groups.ranks, me, run % n, block, values, (operation, groups.kind, run))


@dataclass
class Tally:
    """What one rank found in its runs of one operation."""

    host: str
    bytes: int = 0
    checked: int = 0
    wrong: int | None = 0
    missing: str | None = None

    def check(self, operation: Operation, case: Case, out: Tensor) -> None:
        """Compare what this rank got with the definition."""
        if operation.verify:
            found = operation.verify(case)
            self.wrong = None if found is None or self.wrong is None else self.wrong + found
        elif self.wrong is not None and (expected := operation.expected(case)) is not None:
            self.wrong += bench.count_wrong(out, expected)
            self.checked += expected.numel()


def measure(config: Collective, operation: Operation, groups: Groups, env: Env) -> Outcome:
    """Run one operation on all groups of a kind, verify every run on every rank, time it by the slowest rank.

    All ranks must call it.
    """
    seconds: list[float] = []
    mine = Tally(env.host)
    for run, case in enumerate(cases(config, operation.name, groups, env)):
        data, out = operation.make(case)
        if operation.verify is None:
            mine.bytes = case.count * out.element_size()
        dist.barrier(group=case.group)
        try:
            took = bench.timed(env.device, operation.run, case, data, out)
        except (NotImplementedError, RuntimeError, ValueError) as error:
            if run or "support" not in str(error):
                raise
            mine.missing = f"{env.backend}: {str(error).splitlines()[0]}"
            break
        if run >= config.warmup:
            seconds.append(took)
        mine.check(operation, case, out)
    tallies = gather(mine, env)
    largest = max(tally.bytes for tally in tallies)
    if all(tally.missing for tally in tallies):
        return Outcome(operation.name, groups.kind, str(groups), largest, 0.0, None, 0, missing=mine.missing or "")
    raise_together(mine.missing, env)
    slowest = bench.slowest_median(seconds, config.iterations, env)
    wrong = [tally.wrong for tally in tallies if tally.wrong is not None]
    return Outcome(
        operation.name,
        groups.kind,
        str(groups),
        largest,
        slowest,
        sum(wrong) if len(wrong) == len(tallies) else None,
        sum(tally.checked for tally in tallies),
        _faults(operation.name, groups.kind, tallies),
    )


def _faults(operation: str, kind: str, tallies: list[Tally]) -> tuple[str, ...]:
    hosts = [tally.host for tally in tallies]
    return tuple(
        f"{operation} in group {kind}: {tally.wrong} wrong of {tally.checked} elements on {name_ranks([rank], hosts)}"
        if tally.checked
        else f"{operation} in group {kind}: {name_ranks([rank], hosts)} left before {tally.wrong} others had come"
        for rank, tally in enumerate(tallies)
        if tally.wrong
    )


def main(config: Collective, env: Env) -> dict[str, float | int | str]:
    """Run and verify the chosen operations; the metrics are `<op>/<group>/us` for each, `operations`, `checked`
    (elements that were compared) and `wrong`.

    Raises:
        WorkloadError: a result was wrong (all operations have run by then), the backend lacks an operation that was
            chosen by name, or the config makes no sense.
    """
    from launcher.node import progress

    try:
        chosen = names.choose("operation", config.op, names.OPERATIONS)
        kinds = names.choose("group", config.groups, names.GROUPS)
        bench.torch_dtype(config.dtype)
        bench.parse_bytes(config.size)
    except ValueError as error:
        raise WorkloadError(str(error)) from error
    bench.check_iterations(config.iterations, config.warmup)
    introduce(env)
    gather(None, env)
    if env.rank == 0:
        say(TABLE.head())
    outcomes = []
    for kind in kinds:
        groups = make_groups(kind, env)
        for name in chosen:
            outcomes.append(measure(config, BY_NAME[name], groups, env))
            if env.rank == 0:
                say(outcomes[-1].row())
                progress(len(outcomes), len(kinds) * len(chosen), op=name, group=kind)
    faults = [fault for outcome in outcomes for fault in outcome.faults]
    if names.ALL not in config.op:
        faults += [f"{outcome.operation} cannot be run: {outcome.missing}" for outcome in outcomes if outcome.missing]
    if faults:
        raise WorkloadError("; ".join(faults))
    metrics: dict[str, float | int | str] = {
        f"{outcome.operation}/{outcome.group}/us": round(outcome.seconds * 1e6, 1)
        for outcome in outcomes
        if not outcome.missing
    }
    if env.rank == 0:
        say(f"{len(metrics)} operations, every result verified: all right")
    return {
        **metrics,
        "operations": len(metrics),
        "checked": sum(outcome.checked for outcome in outcomes),
        "wrong": sum(outcome.wrong or 0 for outcome in outcomes),
    }
