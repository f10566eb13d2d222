"""A plan against PBS's queues and nodes, before PBS sees it. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from launcher.errors import ConfigError, near
from launcher.formatting import format_hours, format_size, plural
from launcher.spec.limits import NodeGroup, too_much_for
from launcher.spec.plan import JobPlan


@dataclass(frozen=True)
class Queue:
    """A live PBS queue and what one job may get of it in all (None: no limit; time in seconds, memory in bytes).

    `only` are the kinds of access lists that it has (`users`, `groups`, `hosts`): who is not on them is refused.
    """

    name: str
    default: bool
    accepts: bool
    routes: bool  # it hands jobs on to other queues, whose limits count
    time: int | None
    nodes: int | None
    cpus: int | None
    gpus: int | None
    mem: int | None
    started: bool = True  # else what it takes waits
    only: tuple[str, ...] = ()

    @property
    def open(self) -> bool:
        """Whether anybody's job may be submitted to it, and may start there."""
        return self.accepts and self.started and not self.routes and not self.only


def check_queue(plan: JobPlan, queues: Sequence[Queue]) -> str | None:
    """A plan against the live PBS queue it asks for (the default one if it names none).

    Returns:
        The queue that the job stays in; None: that is not known, for the server or the queue hands jobs on to others.

    Raises:
        ConfigError: the queue is unknown, or takes no such job.
    """
    known = {queue.name: queue for queue in queues}
    name = (plan.cluster.queue or "").partition("@")[0]  # queue@server
    queue = known.get(name) if name else next((queue for queue in queues if queue.default), None)
    if name and queue is None and queues:
        raise ConfigError(
            f"cluster.queue={plan.cluster.queue}: there is no such queue.{near(name, known)} Known: {', '.join(known)}"
        )
    if queue is None:
        return None  # the server has rules of its own for jobs that name no queue
    if problem := _refusal(plan, queue):
        others = [q.name for q in queues if q.open and _refusal(plan, q) is None]
        hint = f"; or cluster.queue={others[0]}, which takes it as it is" if others else ""
        raise ConfigError(f"{problem}{hint}")
    return None if queue.routes else queue.name


def check_nodes(plan: JobPlan, groups: Sequence[NodeGroup]) -> None:
    """A plan against the live nodes of a PBS that a job of its queue may get.

    Raises:
        ConfigError: they could never hold it. PBS would accept the job, and it would wait for ever.
    """
    if problem := never(plan, groups):
        raise ConfigError(problem)


def never(plan: JobPlan, groups: Sequence[NodeGroup]) -> str | None:
    """Why the nodes of a PBS can never hold a plan, with the fix; None when they can, or it tells of none. Pure."""
    where = f"queue {plan.cluster.queue}" if plan.cluster.queue else "this PBS"
    total = sum(group.nodes for group in groups)
    if not groups:
        return None
    if plan.nodes > total and plan.cluster.place is None:
        has = plural(total, "node")
        return f"nodes={plan.nodes}: {where} has {has} in all: use nodes={total} or less"
    problem = too_much_for(plan if plan.cluster.place is None else dataclasses.replace(plan, nodes=1), groups, where)
    if problem and plan.gpus_per_node and not any(group.gpus for group in groups):
        problem += "; where GPUs are not counted as ngpus, cluster.gpu_directive=none"
    return problem


def _refusal(plan: JobPlan, queue: Queue) -> str | None:
    """Returns why the queue would refuse the plan, with the fix; None: it would accept it."""
    where = f"queue {queue.name}"
    if not queue.accepts:
        return f"cluster.queue={queue.name}: {where} takes no jobs now: choose another"
    if queue.time is not None and plan.time > queue.time:
        longest = format_hours(queue.time)
        return f"time={format_hours(plan.time)}: {where} ends jobs after {longest}: use time={longest} or less"
    gpus, cpus = plural(plan.gpus_per_node, "GPU"), plural(plan.cpus_per_node, "CPU")
    for what, wanted, limit, unit in (
        (f"nodes={plan.nodes}", plan.nodes, queue.nodes, "node"),
        (f"{gpus} on nodes={plan.nodes}", plan.gpus_per_node * plan.nodes, queue.gpus, "GPU"),
        (f"{cpus} on nodes={plan.nodes}", plan.cpus_per_node * plan.nodes, queue.cpus, "CPU"),
    ):
        if limit is not None and wanted > limit:
            return f"{what}: {where} gives a job at most {plural(limit, unit)}: ask for less"
    if queue.mem is not None and plan.mem is not None and plan.mem * plan.nodes > queue.mem:
        most = format_size(queue.mem)
        return f"mem={format_size(plan.mem)} on nodes={plan.nodes}: {where} gives a job at most {most}: ask for less"
    return None
