"""Checks a plan against Grid Engine's queues, parallel environments and resources before submission."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.errors import ConfigError, near
from launcher.formatting import format_hours
from launcher.schedulers.sge.directives import slots_per_node
from launcher.schedulers.sge.resource_queries import ClusterQueue, Complex, ParallelEnvironment
from launcher.schedulers.sge.settings import SGESettings
from launcher.spec.plan import JobPlan, settings_of


def check_queue(plan: JobPlan, queues: Sequence[ClusterQueue]) -> list[ClusterQueue]:
    """Checks that a queue of the plan (any queue if the plan names none) could run the plan's job.

    Returns:
        The queues that could run the job; all queues if the plan names only patterns.

    Raises:
        ConfigError: a queue does not exist, or no queue allows the plan's wall time and parallel environment.
    """
    known, settings = {queue.name: queue for queue in queues}, settings_of(plan, SGESettings)
    wanted = [name.partition("@")[0] for name in settings.queue.split(",")] if settings.queue else list(known)
    for name in wanted:
        if name not in known and not set(name) & set("*?["):  # a pattern may match several
            raise ConfigError(
                f"cluster.queue={settings.queue}: there is no such queue.{near(name, known)} Known: {', '.join(known)}"
            )
    mine = [known[name] for name in wanted if name in known]
    if not mine:
        return list(queues)
    where = f"queue {', '.join(each.name for each in mine)}" if settings.queue else "this Grid Engine's queues"
    longest = [each for each in mine if each.time is None or each.time >= plan.time]
    if not longest:
        most = format_hours(max(each.time or 0 for each in mine))
        raise ConfigError(f"time={format_hours(plan.time)}: {where} ends jobs after {most}: use time={most} or less")
    wants = settings.parallel_environment
    fitting = [each for each in longest if not wants or wants in each.environments]
    if not fitting:
        others = sorted({other for each in longest for other in each.environments})
        raise ConfigError(
            f"cluster.parallel_environment={wants}: {where} has no such parallel environment."
            f"{near(wants or '', others)} It has: {', '.join(others) or 'none'}"
        )
    return fitting


def check_environment(
    plan: JobPlan, own: ParallelEnvironment | None, others: Sequence[ParallelEnvironment] = ()
) -> None:
    """Checks that the plan's parallel environment gives each node its slots.

    | allocation_rule | accepted with one node | accepted with several nodes |
    |---|---|---|
    | a number | this number of slots | this number of slots on each node |
    | $pe_slots | any number of slots | never: all slots are on one node |
    | $fill_up, $round_robin | one slot | never: the number of slots on each node is not known |

    Args:
        plan: the run's plan.
        own: the plan's parallel environment; None: it does not exist.
        others: all parallel environments of the site, for the error.

    Raises:
        ConfigError: the parallel environment does not exist, does not give each node its slots, has too few slots, or
            lets a job start nothing on its other nodes.
    """
    name = settings_of(plan, SGESettings).parallel_environment
    if name is None:
        return
    key, each = f"cluster.parallel_environment={name}", slots_per_node(plan)
    usable = [pe.name for pe in others if problem(plan, pe) is None]
    instead = f"use cluster.parallel_environment={usable[0]}" if usable else ask_for(plan)
    if own is None:
        known = [pe.name for pe in others]
        raise ConfigError(
            f"{key}: there is no such parallel environment.{near(name, known)} Known: "
            f"{', '.join(known) or 'none'}; {instead}"
        )
    if own.per_host is not None and own.per_host != each:
        raise ConfigError(
            f"{key}: it gives each node {own.per_host} slots (allocation_rule), and the run asks for {each}: use "
            f"cluster.slots={own.per_host}"
        )
    if why := problem(plan, own):
        raise ConfigError(f"{key}: {why}: {instead}")


def problem(plan: JobPlan, pe: ParallelEnvironment) -> str | None:
    """Returns why a plan cannot use a parallel environment, or None if it can."""
    each = slots_per_node(plan)
    if pe.per_host is None and plan.nodes > 1:
        return f"its allocation_rule is {pe.rule}, which does not give each of {plan.nodes} nodes its slots"
    if pe.per_host is None and pe.rule != "$pe_slots" and each > 1:
        return f"its allocation_rule is {pe.rule}, which may spread {each} slots over several nodes"
    if pe.per_host is not None and pe.per_host != each:
        return f"it gives each node {pe.per_host} slots"
    if plan.nodes > 1 and not pe.starts_tasks:
        return "it lets a job start nothing on its other nodes (control_slaves FALSE)"
    if pe.slots < plan.nodes * each:
        return f"it has {pe.slots} slots in all, and the run asks for {plan.nodes * each}"
    return None


def ask_for(plan: JobPlan) -> str:
    """Returns what a user should ask the administrator for if no parallel environment is usable for the plan."""
    each = slots_per_node(plan)
    return (
        f"ask the administrator for a parallel environment with `allocation_rule {each}` and `control_slaves TRUE` "
        "(qconf -ap NAME) in the pe_list of the queue"
    )


def check_resources(plan: JobPlan, asked: Sequence[str], complexes: Sequence[Complex]) -> None:
    """Checks that the site has the resources of a job, and that jobs can request them.

    Args:
        plan: the run's plan.
        asked: names of the job's resources.
        complexes: resources of the site.

    Raises:
        ConfigError: a resource does not exist, jobs cannot request it, or it counts otherwise than the plan says.
    """
    known = {name: each for each in complexes for name in (each.name, each.shortcut)}
    for name in asked:
        if name not in known:
            raise ConfigError(
                f"{name}: the site has no such resource (qconf -sc).{near(name, [each.name for each in complexes])}"
            )
        if not known[name].requestable:
            raise ConfigError(f"{name}: no job can ask for this resource (qconf -sc: requestable NO)")
    settings = settings_of(plan, SGESettings)
    for name in [each for each in asked if each in (settings.gpu_resource, settings.mem_resource)]:
        kind, others = known[name], [each for each in settings.per_node if each != name]
        if kind.consumed == "JOB" and plan.nodes > 1:
            raise ConfigError(
                f"{name}: only the first node of a job gives it (qconf -sc: consumable JOB): use nodes=1, or ask the "
                "administrator for consumable YES"
            )
        if slots_per_node(plan) > 1 and (name in settings.per_node) is kind.per_slot:
            how, right = ("for each slot", others) if kind.per_slot else ("once for a node", [*others, name])
            raise ConfigError(
                f"{name}: its amount counts {how} (qconf -sc: consumable {kind.consumed}): use "
                f"cluster.per_node=[{','.join(right)}]"
            )
