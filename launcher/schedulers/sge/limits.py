"""What Grid Engine refuses: a plan against its queues and resources, `doctor`'s checks, and `site init`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from launcher.config.scheduler_table import own_settings
from launcher.config.schema import Cluster
from launcher.errors import ConfigError, near
from launcher.formatting import format_hours, plural
from launcher.plan.plan import JobPlan, settings_of
from launcher.schedulers import site
from launcher.schedulers.base import QueryError
from launcher.schedulers.qsub import detect, notes_on_folder
from launcher.schedulers.sge.client import SGE, ClusterQueue, Complex, Host, ParallelEnvironment, QueueInstance
from launcher.schedulers.sge.script import amounts, slots_per_node
from launcher.schedulers.sge.settings import GpuDirective, SGESettings
from launcher.schedulers.site import Finding, ok, problem, warning


def unknown_queue(names: Sequence[str], queues: Sequence[ClusterQueue]) -> str | None:
    """Returns the first name that is neither a queue's nor an expression (`gpu*`, `!(a|b)`; sge_types(1), wc_queue)."""
    known = {queue.name for queue in queues}
    return next((name for name in names if name not in known and not set(name) & set("*?[!&|(")), None)


def queues_named(names: Sequence[str], queues: Sequence[ClusterQueue]) -> list[ClusterQueue]:
    """Returns the queues that these names may stand for; [] if that is not known."""
    if any(set(name) & set("!&|(") for name in names):
        return []
    return [queue for queue in queues if any(fnmatchcase(queue.name, name) for name in names)]


def check_queue(plan: JobPlan, queues: Sequence[ClusterQueue]) -> list[ClusterQueue]:
    """Returns the queues that could run the job (all, if it is not known which); raises ConfigError: none could."""
    settings = settings_of(plan, SGESettings)
    if name := unknown_queue(settings.queue_names, queues):
        known, setting = [queue.name for queue in queues], f"cluster.queue={settings.queue}"
        raise ConfigError(f"{site.no_such('queue', setting, name, known)} Known: {', '.join(known)}")
    mine = queues_named(settings.queue_names or ["*"], queues)
    if not mine:
        return list(queues)
    where = f"queue {', '.join(each.name for each in mine)}" if settings.queue else "this Grid Engine's queues"
    longest = [each for each in mine if each.time is None or each.time >= plan.time]
    if not longest:
        most = format_hours(max(each.time or 0 for each in mine))
        raise ConfigError(f"time={format_hours(plan.time)}: {where} ends jobs after {most}: use time={most} or less")
    wants = settings.parallel_environment
    fitting = [each for each in longest if not wants or any(fnmatchcase(pe, wants) for pe in each.environments)]
    if not fitting:
        others = sorted({other for each in longest for other in each.environments})
        raise ConfigError(
            f"cluster.parallel_environment={wants}: {where} has no such parallel environment."
            f"{near(wants or '', others)} It has: {', '.join(others) or 'none'}"
        )
    return fitting


def check_environment(plan: JobPlan, own: ParallelEnvironment | None, others: Sequence[ParallelEnvironment]) -> None:
    """Raises ConfigError unless the plan's parallel environment (None: it does not exist) gives each node its slots.

    | allocation_rule | accepted with one node | accepted with several nodes |
    |---|---|---|
    | a number | this number of slots | this number of slots on each node |
    | $pe_slots | any number of slots | never: all slots are on one node |
    | $fill_up, $round_robin | one slot | never: the number of slots on each node is not known |
    """
    name = settings_of(plan, SGESettings).parallel_environment
    if name is None:
        return
    key, each = f"cluster.parallel_environment={name}", slots_per_node(plan)
    usable = [pe.name for pe in others if refusal(plan, pe) is None]
    instead = f"use cluster.parallel_environment={usable[0]}" if usable else ask_for(each)
    if own is None:
        known = [pe.name for pe in others]
        there = f"{near(name, usable)} Known: {', '.join(known) or 'none'}"
        raise ConfigError(f"{key}: there is no such parallel environment.{there}; {instead}")
    if own.per_host is not None and own.per_host != each:
        gives = f"it gives each node {plural(own.per_host, 'slot')} (allocation_rule), and the run asks for {each}"
        raise ConfigError(f"{key}: {gives}: use cluster.slots={own.per_host}")
    if why := refusal(plan, own):
        raise ConfigError(f"{key}: {why}: {instead}")


def environments_named(name: str, known: Sequence[ParallelEnvironment]) -> list[ParallelEnvironment]:
    """Returns the parallel environments that a name, or a pattern (`mpi*`), stands for: the job gets one of them."""
    return [each for each in known if fnmatchcase(each.name, name)]


def refusal(plan: JobPlan, pe: ParallelEnvironment) -> str | None:
    each = slots_per_node(plan)
    if pe.per_host is None and plan.nodes > 1:
        return f"its allocation_rule is {pe.rule}, which does not give each of {plan.nodes} nodes its slots"
    if pe.per_host is None and pe.rule != "$pe_slots" and each > 1:
        return f"its allocation_rule is {pe.rule}, which may spread {each} slots over several nodes"
    if pe.per_host is not None and pe.per_host != each:
        return f"it gives each node {plural(pe.per_host, 'slot')}"
    if plan.nodes > 1 and not pe.starts_tasks:
        return "it lets a job start nothing on its other nodes (control_slaves FALSE)"
    if pe.slots < plan.nodes * each:
        return f"it has {plural(pe.slots, 'slot')} in all, and the run asks for {plan.nodes * each}"
    return None


def ask_for(slots: int) -> str:
    return (
        f"ask the administrator for a parallel environment with `allocation_rule {slots}` and `control_slaves TRUE` "
        "(qconf -ap NAME) in the pe_list of the queue"
    )


def check_resources(plan: JobPlan, complexes: Sequence[Complex]) -> None:
    """Raises ConfigError if a resource does not exist, jobs cannot request it, or it counts otherwise than planned."""
    known = {name: each for each in complexes for name in (each.name, each.shortcut)}
    asked = ["h_rt", *amounts(plan).resources()]
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
            raise ConfigError(f"{name}: only the first node of a job gives it (qconf -sc: consumable JOB): use nodes=1")
        if slots_per_node(plan) > 1 and (name in settings.per_node) is kind.per_slot:
            how, right = ("for each slot", others) if kind.per_slot else ("once for a node", [*others, name])
            raise ConfigError(
                f"{name}: its amount counts {how} (qconf -sc: consumable {kind.consumed}): use "
                f"cluster.per_node=[{','.join(right)}]"
            )


def compare(plan: JobPlan, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Returns notes on a plan from the live Grid Engine; raises ConfigError (it could not start), QueryError."""
    sge = SGE(plan.cluster.submit_timeout)
    if name := settings_of(plan, SGESettings).parallel_environment:
        own = None if "*" in name else sge.environment(name)
        if own is None or refusal(plan, own) is not None:
            known = sge.environments()
            found: list[ParallelEnvironment | None] = [*environments_named(name, known)]
            for each in found or [None]:
                check_environment(plan, each, known)
    mine, instances = {each.name for each in check_queue(plan, sge.queues())}, sge.instances()
    check_resources(plan, sge.complexes())
    hosts = {each.host for each in instances}
    if name and 0 < (most := len({each.host for each in instances if each.queue in mine})) < plan.nodes:
        key, where = plan.nodes_key, "its queues have" if len(mine) > 1 else f"queue {min(mine)} has"
        raise ConfigError(f"{key}={plan.nodes}: {where} {plural(most, 'host')}: use {key}={most} or less")
    return notes_on_folder(Path(plan.run_dir).parent, sorted(hosts))


# -- The checks of `doctor` for Grid Engine, and for a profile against its queues, parallel environments and resources


def check(cluster: Cluster, sge: SGE) -> Iterator[Finding]:
    ask = partial(sge.run, "qconf", "-sql", good=(0, 1))
    if (yield from site.reachable("Grid Engine", detect().version, ask, "SGE_ROOT, SGE_CELL")) is None:
        return
    try:
        queues, environments, complexes = sge.queues(), sge.environments(), sge.complexes()
    except QueryError as error:
        yield problem("queue", str(error), "try `qconf -sql` and `qconf -spl`")
        return
    for line in lines(queues, own_settings(cluster, SGESettings).queue):
        yield ok("queue", line)
    yield from compared(cluster, queues)
    yield from environment(cluster, environments)
    yield from resources(cluster, complexes)
    text = "qacct has records of jobs that are over"
    try:
        sge.run("qacct", "-j", "1")
    except QueryError as error:
        unread = "no accounting can be read here, which the launcher does without"
        text = "qacct answers" if "not found" in str(error) else unread
    yield ok("history", text)


def lines(queues: Sequence[ClusterQueue], own: str | None = None) -> list[str]:
    """Returns a line for each queue with its time limit. Marks the queues of the profile (`own`: `a,b`)."""
    wanted = set(own.split(",")) if own else set()
    rows = []
    for each in queues:
        marks = (("this profile's", each.name in wanted), ("for some only", each.restricted))
        time = "any time" if each.time is None else format_hours(each.time)
        environments = ", ".join(each.environments) or "none"
        rows.append((each.name, marks, f"up to {time}; parallel environments: {environments}"))
    return site.listed(rows, "qconf -sql")


def compared(cluster: Cluster, queues: Sequence[ClusterQueue]) -> Iterator[Finding]:
    settings = own_settings(cluster, SGESettings)
    own = settings.queue_names
    if name := unknown_queue(own, queues):
        yield site.missing("queue", f"cluster.queue={settings.queue}", name, [each.name for each in queues])
        return
    mine = queues_named(own, queues) or list(queues)
    times = [each.time for each in mine if each.time is not None]
    longest = max(times) if times and len(times) == len(mine) else None
    yield from site.stated_limits(cluster, {"time": longest}, f"queue {settings.queue}" if own else "its queues")


def environment(cluster: Cluster, environments: Sequence[ParallelEnvironment]) -> Iterator[Finding]:
    settings = own_settings(cluster, SGESettings)
    usable = [each for each in environments if each.per_host and each.starts_tasks]
    own = next(iter(environments_named(settings.parallel_environment or "", environments)), None)
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
        text = "cluster.parallel_environment is not set: runs have one slot on one node"
        yield warning("profile", text, instead(usable))


def instead(usable: Sequence[ParallelEnvironment]) -> str:
    each = ", ".join(f"{pe.name} (cluster.slots={pe.per_host})" for pe in usable[:8])
    return f"set cluster.parallel_environment to {each}" if usable else ask_for(1)


def resources(cluster: Cluster, complexes: Sequence[Complex]) -> Iterator[Finding]:
    known = {name: each for each in complexes for name in (each.name, each.shortcut)}
    settings = own_settings(cluster, SGESettings)
    named = {"gpu_resource": settings.gpu_resource, "mem_resource": settings.mem_resource}
    for key, name in [*named.items(), *((f"resources.{name}", name) for name in settings.resources)]:
        if name and name not in known:
            text = f"cluster.{key}: the site has no resource {name}.{near(name, [each.name for each in complexes])}"
            yield problem("profile", text, "`qconf -sc` lists them")
    unnamed = settings.gpu_directive is GpuDirective.resource and settings.gpu_resource is None
    if unnamed and (found := gpu_resources(complexes)):
        text = f"cluster.gpu_resource is not set, and the site has {', '.join(found)}"
        yield warning("GPUs", text, f"set cluster.gpu_resource={found[0]}")


def gpu_resources(complexes: Sequence[Complex]) -> list[str]:
    counted = (each for each in complexes if each.requestable and each.consumed != "NO")
    return [each.name for each in counted if "gpu" in each.name.lower() and each.type in ("INT", "RSMAP")]


# -- `site init` for Grid Engine: queries a site's facts, and writes a profile


class SGESite(site.Site):
    scheduler = "sge"
    pool = "queue"
    no_pool = "# queue: NAME  # empty: any that fits"

    queues: tuple[ClusterQueue, ...]
    environments: tuple[ParallelEnvironment, ...]
    complexes: tuple[Complex, ...]  # all resources of the site
    hosts: tuple[Host, ...]
    instances: tuple[QueueInstance, ...]

    def facts(self) -> Iterator[str]:
        yield "Queues (qconf -sq):"
        yield from (f"  {line}" for line in lines(self.queues))
        yield "Parallel environments (qconf -sp):"
        for pe in self.environments:
            alone = "" if pe.starts_tasks else ", control_slaves FALSE: it starts nothing on other nodes"
            some = ", for some only" if pe.restricted else ""
            yield f"  {pe.name}: allocation_rule {pe.rule}, {plural(pe.slots, 'slot')} in all{alone}{some}"

    def best(self) -> tuple[ClusterQueue | None, str]:
        open_ones = [each for each in self.queues if not each.restricted]
        return (open_ones[0], "qconf -sq: the only one for anybody") if len(open_ones) == 1 else (None, "")

    def keys(self, chosen: ClusterQueue | None) -> Iterator[str]:
        yield "# project: my_project  # -P, where the site wants one"
        mine = [pe for pe in self.environments if chosen is None or pe.name in chosen.environments]
        if several := [pe for pe in mine if pe.per_host and pe.starts_tasks]:
            # The largest number of slots on each node, because other jobs may use the CPUs beyond a job's slots.
            best = max(several, key=lambda pe: pe.per_host or 0)
            yield f"parallel_environment: {site.scalar(best.name)}  # qconf -sp: allocation_rule {best.rule}"
            yield f"slots: {best.per_host}  # on each node"
        else:
            yield f"# parallel_environment: none gives each of several nodes its slots: {ask_for(1)}"
        if one := [pe for pe in mine if pe.rule == "$pe_slots"]:
            yield f"# for one node: cluster.parallel_environment={one[0].name} cluster.slots=N  # $pe_slots"
        if found := gpu_resources(self.complexes):
            kind = next(each for each in self.complexes if each.name == found[0])
            yield f"gpu_resource: {site.scalar(found[0])}  # qconf -sc: {kind.type}, consumable {kind.consumed}"
            if not kind.per_slot:
                yield f"per_node: [{site.scalar(found[0])}]  # its amount counts once for a node, not for each slot"
        elif self.complexes:
            yield f"gpu_directive: {GpuDirective.none.value}  # qconf -sc: no resource counts GPUs"

    def limits(self, chosen: ClusterQueue | None) -> Iterator[tuple[str, object, str]]:
        named = {each.host for each in self.instances if chosen is None or each.queue == chosen.name}
        hosts, gpus = [host for host in self.hosts if host.name in named], gpu_resources(self.complexes)
        if hosts:
            yield "nodes", len(hosts), "qstat -f: hosts of the queue"
        busy = {each.host for each in self.instances if each.used}  # qhost shows only the amounts that are free
        if gpus and (idle := [host for host in hosts if host.name not in busy]):
            most = max(int(host.consumables.get(gpus[0], 0)) for host in idle)
            yield "gpus_per_node", most, f"qhost -F: {gpus[0]} of a host without jobs"
        if cpus := max((host.cpus or 0 for host in hosts), default=0):
            yield "cpus_per_node", cpus, "qhost: NCPU"
        if most_memory := max((host.mem or 0 for host in hosts), default=0):
            yield "mem_per_node", site.memory(most_memory), "qhost: MEMTOT"
        if chosen and chosen.time is not None:
            yield "time", format_hours(chosen.time), "qconf -sq: h_rt, s_rt"


def survey(sge: SGE) -> SGESite:
    """Collects the facts of a site, a command for each parallel environment; raises QueryError without the queues."""
    ask, queues = site.ErrorCollector(), sge.queues()
    environments = ask(sge.environments, list[ParallelEnvironment](), "parallel environments")
    complexes = ask(sge.complexes, list[Complex](), "resources")
    hosts = ask(sge.hosts, list[Host](), "hosts")
    instances = ask(sge.instances, list[QueueInstance](), "hosts of queues")
    cell = os.environ.get("SGE_CELL", "default")
    return SGESite(
        cell, f"Grid Engine {detect().version}, cell {cell}", tuple(ask.problems), tuple(queues), tuple(environments),
        tuple(complexes), tuple(hosts), tuple(instances),
    )  # fmt: skip
