"""The explanation that `why` prints: why a run is pending, and changes with which it would start sooner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from launcher.spec.plan import JobPlan

CLEARLY = 60.0  # seconds that a change must save at least
PART = 0.1  # part of the wait that a change must save at least


@dataclass(frozen=True)
class Waiting:
    """A run whose job is pending.

    Attributes:
        run, job: their ids.
        plan: of the run.
        program: how the launcher was called, for commands that can be copied.
        fixed_nodes: the user has set min_nodes.
    """

    run: str
    job: str
    plan: JobPlan
    program: str
    fixed_nodes: bool = False


@dataclass(frozen=True)
class Option:
    """One change of what the run asks for, and when it would start with it.

    Attributes:
        overrides: what `resume` takes (`nodes=2`); none: as it is.
        starts: seconds since the epoch; None: unknown.
        note: what it costs, or why it would not start at all.
    """

    overrides: tuple[str, ...]
    starts: float | None
    note: str = ""


@dataclass(frozen=True)
class Explanation:
    """Why a run is where it is.

    Attributes:
        run: its id.
        state: a word of launcher/monitoring/state.py, or of launcher/monitoring/sweep.py for points.
        why: the reason in words.
        job: id of its job.
        code: the reason as the scheduler prints it.
        do: what its user can do about it.
        starts: the scheduler's estimate, in seconds since the epoch; None: it has none.
        limits: limits that bind, each with its value and where it is set.
        nodes: how many nodes there are for it, and what is wrong with the others.
        options: changes that start sooner, the smallest first.
        tried: all changes that were looked at, the first one is the run as it is.
        commands: what to type for the first option.
        notes: further remarks, such as queries that failed.
        throttled: as many elements of its array run as may: a higher limit starts it.
    """

    run: str
    state: str
    why: str
    job: str | None = None
    code: str = ""
    do: str = ""
    starts: float | None = None
    limits: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    options: tuple[Option, ...] = ()
    tried: tuple[Option, ...] = ()
    commands: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    throttled: bool = False


def sooner(tried: tuple[Option, ...], now: float) -> tuple[Option, ...]:
    """The changes that start clearly sooner than the run as it is, in the order in which they were tried. Pure.

    | the run as it is starts | a change starts | it is sooner |
    |---|---|---|
    | unknown | unknown | no |
    | unknown | at some time | yes |
    | at some time | unknown | no |
    | at some time | earlier by more than a minute and a tenth of the wait | yes |

    Args:
        tried: the first one is the run as it is.
        now: seconds since the epoch.
    """
    if not tried:
        return ()
    before = tried[0].starts
    least = 0.0 if before is None else max(CLEARLY, PART * (before - now))
    return tuple(
        each for each in tried[1:]
        if each.starts is not None and (before is None or before - each.starts >= least)
    )  # fmt: skip


def may_offer_fewer_nodes(plan: JobPlan, nodes: int, *, fixed: bool) -> bool:
    """Whether a run may be offered fewer nodes: more than min_nodes if that was set, and ranks enough for it. Pure."""
    least = plan.min_nodes if fixed or plan.min_nodes < plan.nodes else 1
    return least <= nodes < plan.nodes and nodes * plan.procs_per_node >= int(
        plan.workload.params.get("min_ranks") or 1
    )


def commands(waiting: Waiting, options: Sequence[Option]) -> tuple[str, ...]:
    """Returns the commands that apply the first option; () without options.

    A pending run must be cancelled first, because only a run that is over can be resumed.
    """
    if not options:
        return ()
    program, run = waiting.program, waiting.run
    return (f"{program} cancel {run}", f"{program} resume {run} {' '.join(options[0].overrides)}")


def as_json(explanation: Explanation) -> dict[str, Any]:
    """Plain JSON types."""
    return asdict(explanation)
