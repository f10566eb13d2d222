"""`site init` and `site check` for Grid Engine: queries a site's facts, and writes or compares a profile."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from launcher.config.schema import Cluster
from launcher.findings import Finding, warning
from launcher.formatting import format_hours
from launcher.schedulers.sge import doctor
from launcher.schedulers.sge.commands import SGE
from launcher.schedulers.sge.resource_queries import (
    ClusterQueue,
    Complex,
    Host,
    ParallelEnvironment,
    QueueInstance,
    ResourceQueries,
)
from launcher.schedulers.sge.settings import GpuDirective
from launcher.schedulers.site import ErrorCollector, Site, head, limit_lines, memory, plain_name, requested, scalar


@dataclass(frozen=True)
class SGESite(Site):
    """The facts of a Grid Engine site."""

    pool = "queue"

    cell: str  # name of the cell
    version: str  # version of Grid Engine
    queues: tuple[ClusterQueue, ...]  # all queues
    environments: tuple[ParallelEnvironment, ...] = ()  # all parallel environments
    complexes: tuple[Complex, ...] = ()  # all resources of the site
    hosts: tuple[Host, ...] = ()  # all execution hosts
    instances: tuple[QueueInstance, ...] = ()  # instances of the queues on the hosts
    problems: tuple[str, ...] = ()  # one text per failed query, with the reason

    def default_name(self) -> str:
        return plain_name(self.cell)

    def profile(self, name: str, wanted: str | None, day: str) -> Iterator[str]:
        chosen, why = choose_queue(self.queues, wanted)
        yield from head(f"Grid Engine {self.version}, cell {self.cell},", name, day, self.problems)
        yield "# Queues (qconf -sq):"
        yield from (f"#   {line}" for line in doctor.lines(self.queues))
        yield "# Parallel environments (qconf -sp):"
        yield from (
            f"#   {pe.name}: allocation_rule {pe.rule}, {pe.slots} slots in all"
            + ("" if pe.starts_tasks else ", control_slaves FALSE: it starts nothing on other nodes")
            + (", for some only" if pe.restricted else "")
            for pe in self.environments
        )
        yield "#"
        yield "defaults: [sge, _self_]"
        yield ""
        yield f"name: {scalar(name)}"
        yield f"queue: {scalar(chosen.name)}  # {why}" if chosen else "# queue: NAME  # empty: any that fits"
        yield "# project: my_project  # -P, where the site wants one"
        yield from self._environment(chosen)
        yield from self._gpus()
        yield from limit_lines(self._limits(chosen))

    def _environment(self, chosen: ClusterQueue | None) -> Iterator[str]:
        mine = [pe for pe in self.environments if chosen is None or pe.name in chosen.environments]
        several = [pe for pe in mine if pe.per_host and pe.starts_tasks]
        one = [pe for pe in mine if pe.rule == "$pe_slots"]
        if several:
            # The largest number of slots on each node, because other jobs may use the CPUs beyond a job's slots.
            best = max(several, key=lambda pe: pe.per_host or 0)
            yield f"parallel_environment: {scalar(best.name)}  # qconf -sp: allocation_rule {best.rule}"
            yield f"slots: {best.per_host}  # on each node"
        else:
            yield f"# parallel_environment: none gives each of several nodes its slots: {doctor.instead(())}"
        if one:
            yield f"# for one node: cluster.parallel_environment={one[0].name} cluster.slots=N  # $pe_slots"

    def _gpus(self) -> Iterator[str]:
        if not self.complexes:
            return
        if found := doctor.gpus(self.complexes):
            kind = next(each for each in self.complexes if each.name == found[0])
            yield f"gpu_resource: {scalar(found[0])}  # qconf -sc: {kind.type}, consumable {kind.consumed}"
            if not kind.per_slot:
                yield f"per_node: [{scalar(found[0])}]  # its amount counts once for a node, not for each slot"
        else:
            yield f"gpu_directive: {GpuDirective.none.value}  # qconf -sc: no resource counts GPUs"

    def _limits(self, chosen: ClusterQueue | None) -> list[tuple[str, object, str]]:
        hosts = self._hosts_of(chosen)
        gpus = doctor.gpus(self.complexes)
        found: list[tuple[str, object, str]] = []
        if hosts:
            found.append(("nodes", len(hosts), "qstat -f: hosts of the queue"))
        busy = {each.host for each in self.instances if each.used}  # qhost shows only the amounts that are free
        if gpus and (idle := [host for host in hosts if host.name not in busy]):
            most = max(int(host.consumables.get(gpus[0], 0)) for host in idle)
            found.append(("gpus_per_node", most, f"qhost -F: {gpus[0]} of a host without jobs"))
        if cpus := max((host.cpus or 0 for host in hosts), default=0):
            found.append(("cpus_per_node", cpus, "qhost: NCPU"))
        if most_memory := max((host.mem or 0 for host in hosts), default=0):
            found.append(("mem_per_node", memory(most_memory), "qhost: MEMTOT"))
        if chosen and chosen.time is not None:
            found.append(("time", format_hours(chosen.time), "qconf -sq: h_rt, s_rt"))
        return found

    def _hosts_of(self, chosen: ClusterQueue | None) -> list[Host]:
        named = {each.host for each in self.instances if chosen is None or each.queue == chosen.name}
        return [host for host in self.hosts if host.name in named]

    def differences(self, cluster: Cluster) -> Iterator[Finding]:
        yield from doctor.compared(cluster, self.queues)
        if self.environments:
            yield from doctor.environment(cluster, self.environments)
        if self.complexes:
            yield from doctor.resources(cluster, self.complexes)
        stated = cluster.limits.cpus_per_node
        there = max((host.cpus or 0 for host in self.hosts), default=0)
        if there and stated is not None and stated > there:
            yield warning("profile", f"cluster.limits.cpus_per_node={stated} is more than any node has ({there})")


def survey(sge: SGE, version: str) -> SGESite:
    """Collects the facts of a site with a few commands, and one for each parallel environment.

    Raises:
        QueryError: the query of the queues failed. Facts of other failed queries are left out.
    """
    ask, resources = ErrorCollector(), ResourceQueries(sge)
    queues = resources.queues()
    environments: list[ParallelEnvironment] = ask(resources.environments, [], "parallel environments")
    complexes: list[Complex] = ask(resources.complexes, [], "resources")
    hosts: list[Host] = ask(resources.hosts, [], "hosts")
    instances: list[QueueInstance] = ask(resources.instances, [], "hosts of queues")
    return SGESite(
        os.environ.get("SGE_CELL", "default"), version, tuple(queues), tuple(environments), tuple(complexes),
        tuple(hosts), tuple(instances), tuple(ask.problems),
    )  # fmt: skip


def choose_queue(queues: Sequence[ClusterQueue], wanted: str | None) -> tuple[ClusterQueue | None, str]:
    """Chooses the queue of a profile, and returns it with the reason; (None, "") if none can be chosen.

    The first that exists is chosen: the wanted queue, the only queue that all users can use.

    Raises:
        ConfigError: the wanted queue does not exist.
    """
    if (own := requested(queues, wanted, "queue")) is not None:
        return own, "as you asked for"
    open_ones = [each for each in queues if not each.restricted]
    return (open_ones[0], "qconf -sq: the only one for anybody") if len(open_ones) == 1 else (None, "")
