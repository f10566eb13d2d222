"""`why`: changes with which a pending Slurm run may start sooner, and the nodes that it could use."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from launcher.formatting import format_time, plural
from launcher.schedulers.explanation import may_offer_fewer_nodes
from launcher.schedulers.slurm import directives
from launcher.schedulers.slurm.resource_queries import Nodes, PartitionFacts, Pending, Reservation
from launcher.schedulers.slurm.settings import SlurmSettings
from launcher.spec.plan import JobPlan, settings_of

MOST = 4  # maximum number of changes to try; each is a query
SHORTEST = 120  # minimum wall time in seconds to suggest
BROKEN = ("down", "drain", "fail", "error", "unknown", "maint", "reboot", "power")


@dataclass(frozen=True)
class Change:
    """A change of a run to try."""

    overrides: tuple[str, ...]  # config overrides for `resume` (`nodes=2`)
    plan: JobPlan  # the plan with the change
    note: str = ""  # disadvantage of the change


def base_state(state: str) -> str:
    """Returns a node state without sinfo's suffix: `down` for `down*`, `idle` for `idle~`."""
    return state.rstrip("*~#!%$@^-+")


def usable(nodes: Sequence[Nodes], partitions: Sequence[str], constraint: str) -> list[Nodes]:
    """Returns the nodes of these partitions that have all features of a constraint.

    A constraint with other operators than `&` and `,` is ignored.
    """
    wanted = set(re.split(r"[&,]", constraint)) if re.fullmatch(r"[\w.&,-]+", constraint) else set()
    return [each for each in nodes if each.partition in partitions and wanted <= set(each.features)]


def count(nodes: Sequence[Nodes]) -> dict[str, int]:
    """Returns the number of nodes by state, the most frequent state first."""
    found: dict[str, int] = {}
    for each in nodes:
        state = base_state(each.state)
        found[state] = found.get(state, 0) + each.count
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def idle(nodes: Sequence[Nodes]) -> int:
    """Returns the number of idle nodes, including those that Slurm plans to give to another job."""
    return sum(each.count for each in nodes if base_state(each.state) in ("idle", "planned"))


def node_lines(nodes: Sequence[Nodes], partition: str, constraint: str) -> tuple[str, ...]:
    """Returns a summary line, `partition gpu: 4 nodes: 2 allocated, 1 idle, 1 drained`, and lines for broken nodes.

    Args:
        nodes: nodes that the job could use.
        partition: the job's partition, for the text.
        constraint: the job's features, for the text; empty: none.
    """
    with_features = f" with {constraint}" if constraint else ""
    if not nodes:
        return (f"partition {partition} has no nodes{with_features}",)
    states = count(nodes)
    counts = ", ".join(f"{number} {state}" for state, number in states.items())
    total = sum(states.values())
    lines = [f"partition {partition}: {total} node{'' if total == 1 else 's'}{with_features}: {counts}"]
    for each in nodes:
        if base_state(each.state).startswith(BROKEN):
            why = f": {each.reason}" if each.reason else ""
            lines.append(f"{each.names} {'is' if each.count == 1 else 'are'} {base_state(each.state)}{why}")
    return tuple(lines)


def changes(
    plan: JobPlan,
    job: Pending,
    partitions: Sequence[PartitionFacts],
    nodes: Sequence[Nodes],
    reservations: Sequence[Reservation],
    *,
    now: float,
    fixed_nodes: bool = False,
) -> list[Change]:
    """Returns the changes to try, at most MOST, the smallest change first.

    | change | tried if |
    |---|---|
    | no exclude, no constraint, no reservation | the run has one |
    | less time | the run would overlap with a reservation, or exceeds the time limit of its partition |
    | another partition | the user may use it, and it accepts the run; those with most idle nodes first |
    | as many nodes as are idle; half the nodes; min_nodes | fewer than now, and min_nodes and the workload allow it |
    | a partition of a higher tier | as for another partition |
    | half the time | no other shorter time is tried |

    A change with a time or number of nodes that its partition does not accept is not tried.

    Args:
        plan: the run's plan.
        job: the run's pending job, as Slurm reports it.
        partitions: all partitions.
        nodes: nodes of all partitions.
        reservations: reservations of the site; empty if they were not queried.
        now: current time in seconds since the epoch.
        fixed_nodes: whether the user has set min_nodes, so that fewer nodes are not suggested.
    """
    mine = job.partition.split(",")
    shorter = _shorter(plan, job, partitions, reservations, now)
    cheap, expensive = _other_partitions(plan, job, partitions, nodes)
    smaller = _smaller(plan, idle(usable(nodes, mine, settings_of(plan, SlurmSettings).constraint or "")), fixed_nodes)
    half = [] if shorter or plan.time // 2 < SHORTEST else [_in_time(plan, plan.time // 2, "half the time")]
    # A trial may accept what exceeds the limits of its partition (EnforcePartLimits=NO); the job would never start.
    kinds = [
        [each for each in found if _allowed(each.plan, mine, partitions)]
        for found in (_without(plan), shorter, cheap, smaller, expensive, half)
    ]
    # One change of each kind comes before a second one of any kind.
    picked = [(kind, each) for turn in (0, 1) for kind, found in enumerate(kinds) for each in found[turn : turn + 1]]
    picked = sorted(picked[: MOST - bool(reservations)], key=lambda pair: (pair[0], -pair[1].plan.nodes))
    return [change for _, change in picked]


def _allowed(plan: JobPlan, mine: Sequence[str], partitions: Sequence[PartitionFacts]) -> bool:
    partition = settings_of(plan, SlurmSettings).partition
    names = partition.split(",") if partition else mine
    there = [each for each in partitions if each.name in names]
    return not there or any(
        (each.time is None or plan.time <= each.time)
        and each.min_nodes <= plan.nodes
        and (each.max_nodes is None or plan.nodes <= each.max_nodes)
        for each in there
    )


def arguments(plan: JobPlan) -> list[str]:
    """Returns a plan's options for `sbatch --test-only`: those of its script without output, comment and array."""
    options = directives.directives(plan, "trial")
    left_out = ("output", "error", "open-mode", "comment", "array")
    return [
        f"--{name}" if value is True else f"--{name}={value}"
        for name, value in options.items()
        if name not in left_out
    ]  # fmt: skip


def _with(plan: JobPlan, key: str, value: str | None) -> JobPlan:
    settings = {**plan.cluster.settings, key: value}
    return dataclasses.replace(plan, cluster=dataclasses.replace(plan.cluster, settings=settings))


def _without(plan: JobPlan) -> list[Change]:
    settings = settings_of(plan, SlurmSettings)
    notes = {
        "exclude": f"on any node, {settings.exclude} too",
        "constraint": f"on nodes without {settings.constraint}",
        "reservation": f"outside of the reservation {settings.reservation}",
    }
    return [
        Change((f"cluster.{key}=null",), _with(plan, key, None), note)
        for key, note in notes.items()
        if getattr(settings, key)
    ]


def _shorter(
    plan: JobPlan, job: Pending, partitions: Sequence[PartitionFacts], reservations: Sequence[Reservation], now: float
) -> list[Change]:
    names = job.partition.split(",")
    most = [each.time for each in partitions if each.name in names and each.time is not None]
    if most and len(most) == len(names) and plan.time > max(most):
        return [_in_time(plan, max(most), "what the partition allows")]
    own = settings_of(plan, SlurmSettings).reservation
    coming = [
        each.starts for each in reservations
        if each.starts is not None and now < each.starts < now + plan.time and each.name != own
    ]  # fmt: skip
    if not coming:
        return []
    left = int(min(coming) - now) - 60  # a minute for scheduling; time limits are whole minutes
    return [_in_time(plan, left - left % 60, "it ends before the reservation begins")] if left >= SHORTEST else []


def _in_time(plan: JobPlan, seconds: int, note: str) -> Change:
    lead = min(plan.resume.lead, max(seconds // 20, 10))
    return Change(
        (f"time={format_time(seconds)}",),
        dataclasses.replace(plan, time=seconds, resume=dataclasses.replace(plan.resume, lead=lead)),
        note,
    )


def _other_partitions(
    plan: JobPlan, job: Pending, partitions: Sequence[PartitionFacts], nodes: Sequence[Nodes]
) -> tuple[list[Change], list[Change]]:
    mine = job.partition.split(",")
    fitting = []
    for each in partitions:
        there = usable(nodes, [each.name], settings_of(plan, SlurmSettings).constraint or "")
        most = min(sum(group.count for group in there), math.inf if each.max_nodes is None else each.max_nodes)
        allowed = not each.accounts or job.account in each.accounts
        if (
            each.name not in mine and each.state == "UP" and not each.root_only
            and allowed and job.account not in each.denied
            and each.min_nodes <= plan.nodes <= most and (each.time is None or plan.time <= each.time)
        ):  # fmt: skip
            fitting.append((idle(there), each))
    fitting.sort(key=lambda pair: -pair[0])
    tier = max((each.tier for each in partitions if each.name in mine), default=0)
    cheap: list[Change] = []
    expensive: list[Change] = []
    for _, each in fitting:
        other = _with(plan, "partition", each.name)
        higher = each.tier > tier
        note = "its priority tier is higher: it may cost more, or preempt" if higher else ""
        (expensive if higher else cheap).append(Change((f"cluster.partition={each.name}",), other, note))
    return cheap, expensive


def _smaller(plan: JobPlan, free: int, fixed: bool) -> list[Change]:
    return [
        Change((f"nodes={n}",), dataclasses.replace(plan, nodes=n, min_nodes=min(plan.min_nodes, n)),
               f"{plural(n * plan.procs_per_node, 'rank')} instead of {plan.world_size}")
        for n in dict.fromkeys((free, plan.nodes // 2, plan.min_nodes)) if may_offer_fewer_nodes(plan, n, fixed=fixed)
    ]  # fmt: skip
