"""The checks of `doctor` for Grid Engine, and for a profile against its queues, parallel environments and resources."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from launcher.config.scheduler_table import own_settings
from launcher.config.schema import Cluster
from launcher.errors import near
from launcher.findings import Finding, ok, problem, warning
from launcher.formatting import format_hours
from launcher.schedulers.checks import listed, reachable, stated_limits, timed
from launcher.schedulers.queries import QueryError
from launcher.schedulers.sge.commands import SGE
from launcher.schedulers.sge.resource_queries import ClusterQueue, Complex, ParallelEnvironment, ResourceQueries
from launcher.schedulers.sge.settings import GpuDirective, SGESettings


def check(cluster: Cluster, sge: SGE, version: str) -> Iterator[Finding]:
    """Yields findings about Grid Engine (reachable, queues, accounting), and about the profile compared with it."""
    answer = timed(lambda: sge.run("qconf", "-sql", good=(0, 1)))
    yield from reachable("Grid Engine", version, answer, "SGE_ROOT, SGE_CELL")
    if answer.error:
        return
    queries = ResourceQueries(sge)
    try:
        queues, environments, complexes = queries.queues(), queries.environments(), queries.complexes()
    except QueryError as error:
        yield problem("queue", str(error), "try `qconf -sql` and `qconf -spl`")
        return
    for line in lines(queues, own_settings(cluster, SGESettings).queue):
        yield ok("queue", line)
    yield from compared(cluster, queues)
    yield from environment(cluster, environments)
    yield from resources(cluster, complexes)
    try:
        sge.accounting("-j", "1")
        yield ok("history", "qacct has records of jobs that are over")
    except QueryError as error:
        known = "not found" in str(error)
        text = "qacct answers" if known else "no accounting can be read here, which the launcher does without"
        yield ok("history", text)


def lines(queues: Sequence[ClusterQueue], own: str | None = None) -> list[str]:
    """Returns a line for each queue with its time limit. Marks the queues of the profile (`own`: `a,b`)."""
    wanted = set(own.split(",")) if own else set()
    rows = []
    for each in queues:
        marks = [
            word
            for word, is_so in (("this profile's", each.name in wanted), ("for some only", each.restricted))
            if is_so
        ]
        time = "any time" if each.time is None else format_hours(each.time)
        rows.append(
            (each.name, marks, f"up to {time}; parallel environments: {', '.join(each.environments) or 'none'}")
        )
    return listed(rows, "qconf -sql")


def compared(cluster: Cluster, queues: Sequence[ClusterQueue]) -> Iterator[Finding]:
    """Yields findings on whether a profile's queues exist, and the profile's time limit fits the queues."""
    known, settings = {each.name: each for each in queues}, own_settings(cluster, SGESettings)
    own = [name.partition("@")[0] for name in settings.queue.split(",")] if settings.queue else []
    for name in own:
        if name not in known and not set(name) & set("*?["):
            text = f"cluster.queue={settings.queue}: there is no such queue.{near(name, known)}"
            yield problem("profile", text, f"set cluster.queue to one of {', '.join(known)}")
            return
    mine = [known[name] for name in own if name in known] or list(queues)
    times = [each.time for each in mine]
    longest = None if None in times or not times else max(time for time in times if time is not None)
    where = f"queue {settings.queue}" if own else "its queues"
    yield from stated_limits(cluster, {"time": longest}, where)


def environment(cluster: Cluster, environments: Sequence[ParallelEnvironment]) -> Iterator[Finding]:
    """Yields findings on whether a profile's parallel environment exists and gives each node its slots."""
    settings = own_settings(cluster, SGESettings)
    usable = [each for each in environments if each.per_host and each.starts_tasks]
    own = next((each for each in environments if each.name == settings.parallel_environment), None)
    if settings.parallel_environment and own is None:
        known = [each.name for each in environments]
        text = f"cluster.parallel_environment={settings.parallel_environment}: there is none of that name."
        yield problem("profile", text + near(settings.parallel_environment, known), f"there are {', '.join(known)}")
    elif own is not None and own not in usable and own.rule != "$pe_slots":
        text = f"parallel environment {own.name} has allocation_rule {own.rule}, control_slaves {own.starts_tasks}"
        yield problem("profile", text, instead(usable))
    elif own is not None and own.per_host not in (None, settings.slots or 1):
        text = f"parallel environment {own.name} gives each node {own.per_host} slots"
        text += f", and cluster.slots={settings.slots or 1}"
        yield problem("profile", text, f"set cluster.slots={own.per_host}")
    elif own is not None:
        nodes = "one node" if own.per_host is None else "any number of nodes"
        yield ok("profile", f"parallel environment {own.name} (allocation_rule {own.rule}): runs on {nodes}")
    else:
        yield warning(
            "profile", "cluster.parallel_environment is not set: runs have one slot on one node", instead(usable)
        )


def instead(usable: Sequence[ParallelEnvironment]) -> str:
    """Returns advice for the user: a usable parallel environment to set, or what to ask the administrator for."""
    if usable:
        each = ", ".join(f"{pe.name} (cluster.slots={pe.per_host})" for pe in usable[:8])
        return f"set cluster.parallel_environment to {each}"
    return (
        "ask the administrator for a parallel environment with `allocation_rule 1` and `control_slaves TRUE` "
        "(qconf -ap NAME) in the pe_list of the queue"
    )


def resources(cluster: Cluster, complexes: Sequence[Complex]) -> Iterator[Finding]:
    """Yields problems with resources that a profile names, and a warning if cluster.gpu_resource is not set."""
    known = {name: each for each in complexes for name in (each.name, each.shortcut)}
    settings = own_settings(cluster, SGESettings)
    named = {"gpu_resource": settings.gpu_resource, "mem_resource": settings.mem_resource}
    for key, name in [*named.items(), *((f"resources.{name}", name) for name in settings.resources)]:
        if name and name not in known:
            text = f"cluster.{key}: the site has no resource {name}.{near(name, [each.name for each in complexes])}"
            yield problem("profile", text, "`qconf -sc` lists them")
    unnamed = settings.gpu_directive is GpuDirective.resource and settings.gpu_resource is None
    if unnamed and (found := gpus(complexes)):
        text = f"cluster.gpu_resource is not set, and the site has {', '.join(found)}"
        yield warning("GPUs", text, f"set cluster.gpu_resource={found[0]}")


def gpus(complexes: Sequence[Complex]) -> list[str]:
    """Returns the names of the resources that seem to count GPUs."""
    return [
        each.name
        for each in complexes
        if "gpu" in each.name.lower() and each.requestable and each.consumed != "NO" and each.type in ("INT", "RSMAP")
    ]
