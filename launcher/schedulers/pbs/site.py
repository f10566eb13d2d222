"""`site init` and `site check` for PBS: queries a site's facts, and writes or compares a profile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from launcher.config.scheduler_table import own_settings
from launcher.config.schema import Cluster
from launcher.findings import Finding, warning
from launcher.formatting import format_hours
from launcher.schedulers.pbs import doctor
from launcher.schedulers.pbs.commands import PBS, section
from launcher.schedulers.pbs.limits import Queue
from launcher.schedulers.pbs.resource_queries import Node, ResourceQueries
from launcher.schedulers.pbs.settings import GpuDirective, PBSSettings
from launcher.schedulers.site import ErrorCollector, Site, head, limit_lines, memory, plain_name, requested, scalar


@dataclass(frozen=True)
class PBSSite(Site):
    """The facts of a PBS site."""

    pool = "queue"

    server: str  # name of the server
    version: str  # version of PBS
    queues: tuple[Queue, ...]  # all queues
    nodes: tuple[Node, ...] = ()  # all vnodes
    settings: Mapping[str, Any] = field(default_factory=dict)  # attributes of the server
    problems: tuple[str, ...] = ()  # one text per failed query, with the reason

    def default_name(self) -> str:
        return plain_name(self.server.partition(".")[0])

    def profile(self, name: str, wanted: str | None, day: str) -> Iterator[str]:
        chosen, why = choose_queue(self.queues, wanted)
        yield from head(f"PBS {self.version}, server {self.server or 'without a name'},", name, day, self.problems)
        yield "# Queues (qstat -Q -f):"
        yield from (f"#   {line}" for line in doctor.lines(self.queues))
        remembers = "remembers" if self.settings.get("job_history_enable") == "True" else "forgets"
        yield f"# PBS {remembers} jobs that are over (qstat -B -f, job_history_enable)."
        yield "#"
        yield "defaults: [pbs, _self_]"
        yield ""
        yield f"name: {scalar(name)}"
        yield (
            f"queue: {scalar(chosen.name)}  # {why}" if chosen else "required: [queue]  # the server has no default one"
        )
        yield "# account: my_project  # -A; PBS does not tell which you may charge"
        nodes = [node for node in self.nodes if chosen is None or node.queue in ("", chosen.name)]
        gpus = max((node.has.get("ngpus", 0) for node in nodes), default=0)
        if self.nodes:
            directive = (GpuDirective.ngpus, "have ngpus") if gpus else (GpuDirective.none, "have no resource ngpus")
            yield f"gpu_directive: {directive[0].value}  # pbsnodes: nodes {directive[1]}"
        words = _resources(nodes)
        if words:
            yield f"# chunk: {{{words[0][0]}: {scalar(words[0][1])}}}  # pbsnodes: nodes differ in " + ", ".join(
                f"{key}={value}" for key, value in words[:8]
            )
        yield from limit_lines(_limits(chosen, nodes, gpus))

    def differences(self, cluster: Cluster) -> Iterator[Finding]:
        yield from doctor.compared(cluster, self.queues)
        settings = own_settings(cluster, PBSSettings)
        gpus = max((node.has.get("ngpus", 0) for node in self.nodes), default=0)
        if self.nodes and settings.gpu_directive is GpuDirective.ngpus and not gpus:
            text = "cluster.gpu_directive=ngpus, and no node has the resource ngpus"
            do = "set cluster.gpu_directive=none, and name the site's own resource in cluster.chunk"
            yield warning("GPUs", text, do)
        known = {key for node in self.nodes for key in (*node.has, *node.others)}
        ours = {"ncpus", "mpiprocs", "ompthreads", "mem"}
        for key, value in settings.chunk.items():
            if self.nodes and value is not None and key not in known | ours:
                text = f"cluster.chunk.{key}: no node has such a resource"
                yield warning("nodes", text, f"they have {', '.join(sorted(known))}")
        most = {"cpus_per_node": "ncpus", "gpus_per_node": "ngpus"}
        for limit, resource in most.items():
            stated = getattr(cluster.limits, limit)
            there = max((node.has.get(resource, 0) for node in self.nodes), default=0)
            if self.nodes and stated is not None and stated > there:
                yield warning("profile", f"cluster.limits.{limit}={stated} is more than any node has ({there})")


def survey(pbs: PBS, version: str) -> PBSSite:
    """Collects the facts of a site, with four commands.

    Args:
        pbs: PBS's queries.
        version: version of qsub, used if the server does not report its own.

    Raises:
        QueryError: the query of the queues failed. Facts of other failed queries are left out.
    """
    ask = ErrorCollector()
    queues = tuple(pbs.queues())
    found: dict[str, Any] = {}
    nodes: list[Node] = []
    found = ask(lambda: section(pbs.run("qstat", "-B", "-f", "-F", "json"), "Server"), found, "the server")
    name = next(iter(found), "")
    settings: dict[str, Any] = found.get(name, {})
    nodes = ask(lambda: ResourceQueries(pbs).nodes(), nodes, "nodes")
    return PBSSite(name, str(settings.get("pbs_version", version)), queues, tuple(nodes), settings, tuple(ask.problems))


def choose_queue(queues: Sequence[Queue], wanted: str | None) -> tuple[Queue | None, str]:
    """Chooses the queue of a profile, and returns it with the reason; (None, "") if none can be chosen.

    The first that exists is chosen: the wanted queue, the default queue, the only queue that all users can use.

    Raises:
        ConfigError: the wanted queue does not exist.
    """
    if (own := requested(queues, wanted, "queue")) is not None:
        return own, "as you asked for"
    default = next((each for each in queues if each.default), None)
    if default is not None:
        return default, "qstat -Q: the default queue"
    open_ones = [each for each in queues if each.open]
    return (open_ones[0], "qstat -Q: the only one that takes anybody's jobs") if len(open_ones) == 1 else (None, "")


def _resources(nodes: Sequence[Node]) -> list[tuple[str, str]]:
    found: dict[tuple[str, str], None] = {}
    for node in nodes:
        found.update(((key, value), None) for key, value in node.others.items() if key not in ("host", "vnode", "arch"))
    return list(found)


def _limits(chosen: Queue | None, nodes: Sequence[Node], gpus: int) -> list[tuple[str, object, str]]:
    has = [node.has for node in nodes]
    found: list[tuple[str, object, str]] = []
    if chosen and chosen.nodes is not None:
        found.append(("nodes", chosen.nodes, "qstat -Q: resources_max.nodect"))
    elif nodes:
        found.append(("nodes", len(nodes), "pbsnodes: nodes of the queue"))
    if nodes:
        found.append(("gpus_per_node", gpus, "pbsnodes: ngpus"))
    if cpus := max((each.get("ncpus", 0) for each in has), default=0):
        found.append(("cpus_per_node", cpus, "pbsnodes: ncpus"))
    if most := max((each.get("mem", 0) for each in has), default=0):
        found.append(("mem_per_node", memory(most), "pbsnodes: mem"))
    if chosen and chosen.time is not None:
        found.append(("time", format_hours(chosen.time), "qstat -Q: resources_max.walltime"))
    return found
