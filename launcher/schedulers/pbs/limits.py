"""Checks a plan against PBS's queues and nodes before submission."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from launcher.errors import ConfigError, near
from launcher.formatting import format_hours, format_size, plural
from launcher.schedulers.pbs.settings import PBSSettings
from launcher.spec.limits import NodeGroup, too_much_for
from launcher.spec.plan import JobPlan, settings_of


@dataclass(frozen=True)
class Queue:
    """A live queue. Its limits are those of one job on all nodes together."""

    name: str  # name of the queue
    default: bool  # whether it is the server's default queue
    accepts: bool  # whether the queue accepts jobs now
    routes: bool  # whether this is a routing queue, which moves jobs to other queues; the limits of those apply
    time: int | None  # maximum wall time in seconds; None: no limit
    nodes: int | None  # maximum number of nodes; None: no limit
    cpus: int | None  # maximum number of CPUs; None: no limit
    gpus: int | None  # maximum number of GPUs; None: no limit
    mem: int | None  # maximum memory in bytes; None: no limit
    least_time: int = 0  # minimum wall time in seconds
    least_nodes: int = 0  # minimum number of nodes
    least_gpus: int = 0  # minimum number of GPUs
    destinations: tuple[str, ...] = ()  # names of a routing queue's destinations
    inner: bool = False  # whether the queue accepts jobs from routing queues only
    started: bool = True  # whether jobs in the queue can start
    # kinds of the queue's access lists (`users`, `groups`, `hosts`); empty: any user can submit jobs
    only: tuple[str, ...] = ()

    @property
    def open(self) -> bool:
        """Whether any user can submit to the queue, and its jobs can start."""
        return self.accepts and self.started and not self.routes and not self.inner and not self.only


def check_queue(plan: JobPlan, queues: Sequence[Queue]) -> str | None:
    """Checks that a plan's queue (default: the server's default queue) exists and would accept the job.

    Returns:
        The name of the queue in which the job will run, or None if the server or a routing queue chooses it.

    Raises:
        ConfigError: the queue does not exist, or would refuse the job.
    """
    known = {queue.name: queue for queue in queues}
    asked = settings_of(plan, PBSSettings).queue or ""
    name = asked.partition("@")[0]  # queue@server
    queue = known.get(name) if name else next((queue for queue in queues if queue.default), None)
    if name and queue is None and queues:
        raise ConfigError(
            f"cluster.queue={asked}: there is no such queue.{near(name, known)} Known: {', '.join(known)}"
        )
    if queue is None:
        return None  # the server's rules choose a queue
    if queue.inner:
        routes = [each.name for each in queues if queue.name in each.destinations]
        raise ConfigError(
            f"cluster.queue={queue.name}: users cannot submit to it, it takes jobs of other queues: use "
            f"cluster.queue={routes[0] if routes else '...'}"
        )
    if problem := _refusal(plan, queue) or _no_destination(plan, queue, known):
        others = [q.name for q in queues if q.open and _refusal(plan, q) is None]
        hint = f"; or cluster.queue={others[0]}, which takes it as it is" if others else ""
        raise ConfigError(f"{problem}{hint}")
    return None if queue.routes else queue.name


def check_nodes(plan: JobPlan, groups: Sequence[NodeGroup]) -> None:
    """Checks that a plan's job could start on the nodes that its queue may use.

    Raises:
        ConfigError: the job could never start. PBS would accept it, and leave it pending for ever.
    """
    if problem := never(plan, groups):
        raise ConfigError(problem)


def never(plan: JobPlan, groups: Sequence[NodeGroup]) -> str | None:
    """Returns why a plan could never start on these nodes, with the fix, or None if it could.

    Returns None without any nodes, too, because then the site's nodes are not known.
    """
    settings = settings_of(plan, PBSSettings)
    where = f"queue {settings.queue}" if settings.queue else "this PBS"
    total = sum(group.nodes for group in groups)
    if not groups:
        return None
    if plan.nodes > total and settings.place is None:
        has = plural(total, "node")
        return f"nodes={plan.nodes}: {where} has {has} in all: use nodes={total} or less"
    problem = too_much_for(plan if settings.place is None else dataclasses.replace(plan, nodes=1), groups, where)
    if problem and plan.gpus_per_node and not any(group.gpus for group in groups):
        problem += "; where GPUs are not counted as ngpus, cluster.gpu_directive=none"
    return problem


def _no_destination(plan: JobPlan, queue: Queue, known: Mapping[str, Queue]) -> str | None:
    # The reason is that of the destination with the fewest problems. Also returns None if not all destinations are
    # known and accept jobs now: PBS keeps the job in the routing queue until a destination accepts it.
    queues = [known[name] for name in queue.destinations if name in known and known[name].accepts]
    if not queues or len(queues) < len(queue.destinations):
        return None
    reasons = [_refusals(plan, each, f"queue {queue.name} (its {each.name})") for each in queues]
    return min(reasons, key=len)[0] if all(reasons) else None


def _refusal(plan: JobPlan, queue: Queue) -> str | None:
    return next(iter(_refusals(plan, queue, f"queue {queue.name}")), None)


def _refusals(plan: JobPlan, queue: Queue, where: str) -> list[str]:
    found = []
    if not queue.accepts:
        found.append(f"cluster.queue={queue.name}: {where} takes no jobs now: choose another")
    time = f"time={format_hours(plan.time)}"
    if queue.time is not None and plan.time > queue.time:
        longest = format_hours(queue.time)
        found.append(f"{time}: {where} ends jobs after {longest}: use time={longest} or less")
    if plan.time < queue.least_time:
        shortest = format_hours(queue.least_time)
        found.append(f"{time}: {where} wants {shortest} at least: use time={shortest}")
    gpus, cpus = plural(plan.gpus_per_node, "GPU"), plural(plan.cpus_per_node, "CPU")
    all_gpus = plan.gpus_per_node * plan.nodes
    for what, wanted, least, limit, unit in (
        (f"nodes={plan.nodes}", plan.nodes, queue.least_nodes, queue.nodes, "node"),
        (f"{gpus} on nodes={plan.nodes}", all_gpus, queue.least_gpus, queue.gpus, "GPU"),
        (f"{cpus} on nodes={plan.nodes}", plan.cpus_per_node * plan.nodes, 0, queue.cpus, "CPU"),
    ):
        if limit is not None and wanted > limit:
            found.append(f"{what}: {where} gives a job at most {plural(limit, unit)}: ask for less")
        if wanted < least:
            found.append(f"{what}: {where} wants {plural(least, unit)} at least: ask for more")
    if queue.mem is not None and plan.mem is not None and plan.mem * plan.nodes > queue.mem:
        most = format_size(queue.mem)
        found.append(
            f"mem={format_size(plan.mem)} on nodes={plan.nodes}: {where} gives a job at most {most}: ask for less"
        )
    return found
