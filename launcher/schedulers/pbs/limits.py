"""What PBS refuses: a plan against its queues and nodes, `doctor`'s checks, and `site init`."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from launcher.config.scheduler_table import own_settings
from launcher.config.schema import Cluster
from launcher.errors import ConfigError
from launcher.formatting import format_hours, format_size, plural
from launcher.plan.limits import NodeGroup, too_much_for
from launcher.plan.plan import JobPlan, settings_of
from launcher.schedulers import site
from launcher.schedulers.base import QueryError
from launcher.schedulers.pbs.client import PBS, PBSNode, PBSQueue, section
from launcher.schedulers.pbs.settings import GpuDirective, PBSSettings
from launcher.schedulers.qsub import detect, notes_on_folder
from launcher.schedulers.site import Finding, ok, problem, warning


def check_queue(plan: JobPlan, queues: Sequence[PBSQueue]) -> str | None:
    """Returns the queue of a plan's job, None: the server chooses; raises ConfigError: it would refuse the job."""
    known = {queue.name: queue for queue in queues}
    asked = settings_of(plan, PBSSettings).queue or ""
    name = asked.partition("@")[0]  # queue@server
    queue = known.get(name) if name else next((queue for queue in queues if queue.default), None)
    if name and queue is None and queues:
        raise ConfigError(f"{site.no_such('queue', f'cluster.queue={asked}', name, known)} Known: {', '.join(known)}")
    if queue is None:
        return None  # the server's rules choose a queue
    if queue.inner:
        routes = [each.name for each in queues if queue.name in each.destinations]
        instead = f"use cluster.queue={routes[0] if routes else '...'}"
        raise ConfigError(f"cluster.queue={queue.name}: users cannot submit to it: {instead}")
    if problem := _refusal(plan, queue) or _no_destination(plan, queue, known):
        others = [q.name for q in queues if q.open and _refusal(plan, q) is None]
        hint = f"; or cluster.queue={others[0]}, which takes it as it is" if others else ""
        raise ConfigError(f"{problem}{hint}")
    return None if queue.routes else queue.name


def never(plan: JobPlan, groups: Sequence[NodeGroup]) -> str | None:
    """Returns why a plan could never start on these nodes, with the fix; None if it could, or there are none."""
    settings = settings_of(plan, PBSSettings)
    where = f"queue {settings.queue}" if settings.queue else "this PBS"
    total = sum(group.nodes for group in groups)
    if not groups:
        return None
    if plan.nodes > total and settings.place is None:
        has = plural(total, "node")
        return f"{plan.nodes_key}={plan.nodes}: {where} has {has} in all: use {plan.nodes_key}={total} or less"
    problem = too_much_for(plan if settings.place is None else dataclasses.replace(plan, nodes=1), groups, where)
    if problem and plan.gpus_per_node and not any(group.gpus for group in groups):
        problem += "; where GPUs are not counted as ngpus, cluster.gpu_directive=none"
    return problem


def node_groups(nodes: Sequence[PBSNode], plan: JobPlan, queue: str | None) -> list[NodeGroup]:
    """Returns the total resources of each host that a job may use, free or not.

    | resource | amount of the host |
    |---|---|
    | set in `cluster.chunk` | unlimited, because the value in the chunk replaces the plan's |
    | reported as an amount | this |
    | reported by a vnode as a text (`@host`: shared with another vnode) | unlimited: texts cannot be added |
    | any, if none is reported (the host was never up) | unlimited: not known yet |
    | not reported | 0 |
    """
    settings = settings_of(plan, PBSSettings)

    def has(node: PBSNode, resource: str) -> int:
        unknown = resource in settings.chunk or resource in node.others or not node.has
        return sys.maxsize if unknown else node.has.get(resource, 0)

    counts_gpus = settings.gpu_directive is GpuDirective.ngpus
    return [
        NodeGroup(1, has(node, "ncpus"), has(node, "mem"), has(node, "ngpus") if counts_gpus else sys.maxsize)
        for node in nodes
        if queue is None or node.queue in ("", queue)
    ]


def _no_destination(plan: JobPlan, queue: PBSQueue, known: Mapping[str, PBSQueue]) -> str | None:
    # The reason is that of the destination with the fewest problems. Also returns None if not all destinations are
    # known and accept jobs now: PBS keeps the job in the routing queue until a destination accepts it.
    queues = [known[name] for name in queue.destinations if name in known and known[name].accepts]
    if not queues or len(queues) < len(queue.destinations):
        return None
    reasons = [_refusals(plan, each, f"queue {queue.name} (its {each.name})") for each in queues]
    return min(reasons, key=len)[0] if all(reasons) else None


def _refusal(plan: JobPlan, queue: PBSQueue) -> str | None:
    return next(iter(_refusals(plan, queue, f"queue {queue.name}")), None)


def _refusals(plan: JobPlan, queue: PBSQueue, where: str) -> list[str]:
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
        (f"{plan.nodes_key}={plan.nodes}", plan.nodes, queue.least_nodes, queue.nodes, "node"),
        (f"{gpus} on {plan.nodes_key}={plan.nodes}", all_gpus, queue.least_gpus, queue.gpus, "GPU"),
        (f"{cpus} on {plan.nodes_key}={plan.nodes}", plan.cpus_per_node * plan.nodes, 0, queue.cpus, "CPU"),
    ):
        if limit is not None and wanted > limit:
            found.append(f"{what}: {where} gives a job at most {plural(limit, unit)}: ask for less")
        if wanted < least:
            found.append(f"{what}: {where} wants {plural(least, unit)} at least: ask for more")
    if queue.mem is not None and plan.mem is not None and plan.mem * plan.nodes > queue.mem:
        asked, most = f"mem={format_size(plan.mem)} on {plan.nodes_key}={plan.nodes}", format_size(queue.mem)
        found.append(f"{asked}: {where} gives a job at most {most}: ask for less")
    return found


def compare(plan: JobPlan, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Returns notes on a plan from the live queues and nodes; raises ConfigError (it could not start), QueryError."""
    pbs, settings = PBS(plan.cluster.submit_timeout), settings_of(plan, PBSSettings)
    queues, asked = pbs.queues(), settings.queue or ""
    if "@" in asked and asked.partition("@")[0] not in {queue.name for queue in queues}:
        return (f"not compared with the live queues: cluster.queue={asked} is one of another server",)
    queue, nodes = check_queue(plan, queues), pbs.nodes()
    if problem := never(plan, node_groups(nodes, plan, queue)):  # PBS leaves it pending for ever
        raise ConfigError(problem)
    # PBS tries twenty times to start a job that cannot open its output, and then holds it
    names = [node.others.get("host", node.name) for node in nodes]
    notes = notes_on_folder(Path(plan.run_dir).parent, names)
    if not settings.totals or plan.nodes == 1:
        return notes
    unsaid = "cluster.totals=true does not say on how many nodes: where PBS gives fewer than"
    return (*notes, f"{unsaid} {plan.nodes_key}={plan.nodes}, the attempt ends with 93")


# -- The checks of `doctor` for PBS, and for a profile against its queues


def check(cluster: Cluster, pbs: PBS) -> Iterator[Finding]:
    ask = partial(pbs.run, "qstat", "-B", "-f", "-F", "json")
    answer = yield from site.reachable("PBS", detect().version, ask, "PBS_SERVER")
    if answer is None:
        return
    try:
        server: dict[str, Any] = next(iter(section(answer, "Server").values()), {})
        found = pbs.queues()
    except QueryError as error:
        yield problem("queue", str(error), "try `qstat -Qf`")
        return
    for line in lines(found, wanted(cluster, found)):
        yield ok("queue", line)
    yield from compared(cluster, found)
    yield history(str(server.get("job_history_enable", "False")))


def wanted(cluster: Cluster, found: Sequence[PBSQueue]) -> str | None:
    queue = own_settings(cluster, PBSSettings).queue
    return (queue or "").partition("@")[0] or next((each.name for each in found if each.default), None)


def lines(found: Sequence[PBSQueue], own: str | None = None) -> list[str]:
    """Returns a line for each queue with its limits. Marks the default, and the profile's own (`own`)."""
    rows = []
    for each in found:
        marks = (
            ("default", each.default), ("this profile's", each.name == own), ("takes no jobs", not each.accepts),
            ("routes to others", each.routes), ("stopped: its jobs wait", not each.started),
            (f"for some {' and '.join(each.only)} only", bool(each.only)),
        )  # fmt: skip
        rows.append((each.name, marks, _stated_limits(each)))
    return site.listed(rows, "qstat -Q")


def compared(cluster: Cluster, found: Sequence[PBSQueue]) -> Iterator[Finding]:
    names, own = {each.name: each for each in found}, wanted(cluster, found)
    if own is None:
        yield ok("profile", "cluster.queue is not set and the server has no default: its own rules choose")
    elif own not in names:
        yield site.missing("queue", f"cluster.queue={own}", own, names)
    elif not names[own].accepts:
        yield problem("profile", f"queue {own} takes no jobs now", "set cluster.queue to another one, or wait")
    elif not names[own].started:
        yield warning("profile", f"queue {own} is stopped: its jobs wait", "set cluster.queue to another one, or wait")
    else:
        yield from site.stated_limits(cluster, {"nodes": names[own].nodes, "time": names[own].time}, f"queue {own}")


def _stated_limits(each: PBSQueue) -> str:
    counts = (("node", each.nodes), ("CPU", each.cpus), ("GPU", each.gpus))
    limits = [plural(value, what) for what, value in counts if value is not None]
    limits += [] if each.mem is None else [f"{format_size(each.mem)} memory"]
    most = f"a job gets at most {', '.join(limits)}" if limits else "no limits of a job"
    return f"{most}; up to {'any time' if each.time is None else format_hours(each.time)}"


def history(value: str) -> Finding:
    forgets = "forgets jobs when they are over (job_history_enable), which the launcher does without"
    return ok("history", f"PBS {'remembers jobs that are over (job_history_enable)' if value == 'True' else forgets}")


# -- `site init` for PBS: queries a site's facts, and writes a profile


class PBSSite(site.Site):
    scheduler = "pbs"
    pool = "queue"
    no_pool = "required: [queue]  # the server has no default one"

    queues: tuple[PBSQueue, ...]
    nodes: tuple[PBSNode, ...]
    settings: Mapping[str, Any]  # attributes of the server

    def facts(self) -> Iterator[str]:
        yield "Queues (qstat -Q -f):"
        yield from (f"  {line}" for line in lines(self.queues))
        remembers = "remembers" if self.settings.get("job_history_enable") == "True" else "forgets"
        yield f"PBS {remembers} jobs that are over (qstat -B -f, job_history_enable)."

    def best(self) -> tuple[PBSQueue | None, str]:
        if default := next((each for each in self.queues if each.default), None):
            return default, "qstat -Q: the default queue"
        open_ones = [each for each in self.queues if each.open]
        return (open_ones[0], "qstat -Q: the only one that takes anybody's jobs") if len(open_ones) == 1 else (None, "")

    def keys(self, chosen: PBSQueue | None) -> Iterator[str]:
        yield "# account: my_project  # -A; PBS does not tell which you may charge"
        nodes = self._nodes(chosen)
        if self.nodes:
            has = any(node.has.get("ngpus") for node in nodes)
            directive = (GpuDirective.ngpus, "have ngpus") if has else (GpuDirective.none, "have no resource ngpus")
            yield f"gpu_directive: {directive[0].value}  # pbsnodes: nodes {directive[1]}"
        texts = (item for node in nodes for item in node.others.items() if item[0] not in ("host", "vnode", "arch"))
        if words := list(dict.fromkeys(texts)):
            differ = ", ".join(f"{key}={value}" for key, value in words[:8])
            yield f"# chunk: {{{words[0][0]}: {site.scalar(words[0][1])}}}  # pbsnodes: nodes differ in {differ}"

    def limits(self, chosen: PBSQueue | None) -> Iterator[tuple[str, object, str]]:
        nodes = self._nodes(chosen)
        most = {key: max((node.has.get(key, 0) for node in nodes), default=0) for key in ("ngpus", "ncpus", "mem")}
        if chosen and chosen.nodes is not None:
            yield "nodes", chosen.nodes, "qstat -Q: resources_max.nodect"
        elif nodes:
            yield "nodes", len(nodes), "pbsnodes: nodes of the queue"
        if nodes:
            yield "gpus_per_node", most["ngpus"], "pbsnodes: ngpus"
        if most["ncpus"]:
            yield "cpus_per_node", most["ncpus"], "pbsnodes: ncpus"
        if most["mem"]:
            yield "mem_per_node", site.memory(most["mem"]), "pbsnodes: mem"
        if chosen and chosen.time is not None:
            yield "time", format_hours(chosen.time), "qstat -Q: resources_max.walltime"

    def _nodes(self, chosen: PBSQueue | None) -> list[PBSNode]:
        return [node for node in self.nodes if chosen is None or node.queue in ("", chosen.name)]


def survey(pbs: PBS) -> PBSSite:
    ask = site.ErrorCollector()
    queues = pbs.queues()
    server, settings = ask(pbs.server, ("", dict[str, Any]()), "the server")
    nodes = ask(pbs.nodes, list[PBSNode](), "nodes")
    version = str(settings.get("pbs_version", detect().version))
    name, title = server.partition(".")[0], f"PBS {version}, server {server or 'without a name'}"
    return PBSSite(name, title, tuple(ask.problems), tuple(queues), tuple(nodes), settings)
