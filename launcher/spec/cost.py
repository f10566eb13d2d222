"""Computes the cost of a submission in node-hours, GPU-hours and core-hours.

Hours are those of the requested wall time: the most that may be charged, not what will be used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from launcher.config.schema import ResumeHow
from launcher.formatting import exact_time, number, plural

if TYPE_CHECKING:
    from collections.abc import Iterable

    from launcher.spec.plan import JobPlan


@dataclass(frozen=True)
class Cost:
    """The cost of one or more jobs.

    Attributes:
        node_hours, gpu_hours, core_hours: number of nodes, GPUs and CPUs, each times the requested wall time in hours.
    """

    node_hours: float = 0.0
    gpu_hours: float = 0.0
    core_hours: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.node_hours + other.node_hours, self.gpu_hours + other.gpu_hours, self.core_hours + other.core_hours
        )

    def times(self, count: float) -> Cost:
        return Cost(self.node_hours * count, self.gpu_hours * count, self.core_hours * count)

    @property
    def counted(self) -> tuple[float, str]:
        """The number that `confirm_above` limits, and its unit: GPU-hours or, without GPUs, node-hours."""
        return (self.gpu_hours, "GPU-hours") if self.gpu_hours else (self.node_hours, "node-hours")

    def __str__(self) -> str:
        """Returns the cost as text: `24 node-hours, 96 GPU-hours`; without GPUs, node-hours and core-hours."""
        second = _hours_of(self.gpu_hours, "GPU") if self.gpu_hours else _hours_of(self.core_hours, "core")
        return f"{_hours_of(self.node_hours, 'node')}, {second}"


def of_plan(plan: JobPlan) -> Cost:
    """Returns the cost of one attempt; for resume.how=chain, which submits all jobs at once, that of all attempts."""
    hours = plan.time / 3600 * (plan.resume.max_attempts if plan.resume.how == ResumeHow.chain.value else 1)
    return Cost(plan.nodes * hours, plan.nodes * plan.gpus_per_node * hours, plan.nodes * plan.cpus_per_node * hours)


def of_plans(plans: Iterable[JobPlan]) -> Cost:
    """Returns the cost of several runs together."""
    return sum((of_plan(plan) for plan in plans), Cost())


def lines(plan: JobPlan) -> list[str]:
    """Returns the lines that show the cost of a plan, and how many attempts the run may have.

    The first is `2 nodes x 4 GPUs x 12h = 24 node-hours, 96 GPU-hours`.
    """
    jobs = f"{plan.resume.max_attempts} jobs x " if plan.resume.how == ResumeHow.chain.value else ""
    return [f"{jobs}{_shape(plan)} = {of_plan(plan)}", *_attempts([plan])]


def lines_of_all(plans: Iterable[JobPlan], count: int | None = None) -> list[str]:
    """Returns the lines that show the cost of a sweep, and how many attempts each of its runs may have.

    The first is `15 x 1 node x 1 GPU x 1h = 15 node-hours, 15 GPU-hours`.

    Args:
        plans: plans of the sweep's points, at least one.
        count: number of points, if more than these plans will be made; None: `plans` are all points.
    """
    each = list(plans)
    total = of_plans(each).times(1 if count is None else count / len(each))
    shapes = {_shape(plan) for plan in each}
    number_of = len(each) if count is None else count
    what = f"{number_of} x {shapes.pop()}" if len(shapes) == 1 else f"{number_of} points"
    return [f"{what} = {total}", *_attempts(each)]


def _attempts(plans: Iterable[JobPlan]) -> list[str]:
    most = max(
        (
            plan.resume.max_attempts
            for plan in plans
            if plan.resume.how not in (ResumeHow.never.value, ResumeHow.chain.value)
        ),
        default=1,
    )
    return [f"in one attempt, of at most {most} (resume.max_attempts)"] if most > 1 else []


def _shape(plan: JobPlan) -> str:
    many, what = (plan.gpus_per_node, "GPU") if plan.gpus_per_node else (plan.cpus_per_node, "CPU")
    return f"{plural(plan.nodes, 'node')} x {plural(many, what)} x {exact_time(plan.time)}"


def _hours_of(value: float, what: str) -> str:
    return f"{number(value)} {what}-hour" + ("" if value == 1 else "s")
