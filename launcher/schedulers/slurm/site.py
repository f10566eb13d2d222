"""`site init` and `site check` for Slurm: queries a site's facts, and writes or compares a profile."""

from __future__ import annotations

import getpass
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from launcher.config.scheduler_table import own_settings
from launcher.config.schema import Cluster
from launcher.errors import near
from launcher.findings import Finding, ok, problem
from launcher.formatting import format_time, plural
from launcher.schedulers.site import ErrorCollector, Site, head, memory, plain_name, requested, scalar
from launcher.schedulers.slurm import doctor
from launcher.schedulers.slurm.commands import Slurm
from launcher.schedulers.slurm.limits import Partition
from launcher.schedulers.slurm.resource_queries import (
    NODES,
    SACCTMGR,
    Nodes,
    PartitionFacts,
    has_accounting,
    parse_nodes,
    parse_partitions,
    parse_settings,
    slurm_version,
)
from launcher.schedulers.slurm.settings import SlurmSettings


@dataclass(frozen=True)
class Account:
    """An account of this user; `default` is whether it is the user's default account."""

    name: str
    default: bool = False


@dataclass(frozen=True)
class SlurmSite(Site):
    """The facts of a Slurm site."""

    pool = "partition"

    cluster: str  # name of the cluster
    version: str  # version of Slurm
    partitions: tuple[Partition, ...]  # all partitions that the user can see, from sinfo
    # further attributes of each partition from scontrol, by the partition's name
    facts: Mapping[str, PartitionFacts] = field(default_factory=dict)
    # features of the nodes of each partition, by the partition's name
    features: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    accounts: tuple[Account, ...] = ()  # accounts of this user, the default one first
    settings: Mapping[str, str] = field(default_factory=dict)  # values of `scontrol show config`
    problems: tuple[str, ...] = ()  # one text per failed query, with the reason

    def default_name(self) -> str:
        return plain_name(self.cluster)

    def profile(self, name: str, wanted: str | None, day: str) -> Iterator[str]:
        chosen, why = choose_partition(self.partitions, wanted)
        yield from head(f"Slurm {self.version}, cluster {self.cluster or 'without a name'},", name, day, self.problems)
        yield "# Partitions (sinfo):"
        yield from (f"#   {line}" for line in doctor.lines(self.partitions))
        yield from _notes(self)
        yield "defaults: [slurm, _self_]"
        yield ""
        yield f"name: {scalar(name)}"
        if chosen is None:
            yield "required: [partition]  # the site has no default one"
        else:
            yield f"partition: {scalar(chosen.name)}  # {why}"
        yield from _accounts(self, chosen)
        if chosen is None:
            return
        types = list(dict.fromkeys(kind for group in chosen.groups for kind in group.gpu_types))
        if _gpus(chosen):
            yield "gpu_directive: gres  # sinfo: its nodes have gres gpu"
            if len(types) == 1:
                yield f"gpu_type: {scalar(types[0])}  # sinfo: gres gpu:{types[0]}"
            elif types:
                yield f"# gpu_type: {scalar(types[0])}  # sinfo: {', '.join(types)}; without it any of them"
        if features := self.features.get(chosen.name):
            yield f"# constraint: {scalar(features[0])}  # sinfo: features are {', '.join(features)}"
        yield from _limits(self, chosen)

    def differences(self, cluster: Cluster) -> Iterator[Finding]:
        yield from doctor.compared(cluster, self.partitions)
        names = [each.name for each in self.accounts]
        if cluster.account and names:
            if cluster.account in names:
                yield ok("account", f"{cluster.account} is one of yours")
            else:
                yield problem(
                    "account", f"cluster.account={cluster.account} is none of yours.{near(cluster.account, names)}",
                    f"set cluster.account to one of {', '.join(names)}",
                )  # fmt: skip
        own, settings = doctor.wanted(cluster, self.partitions), own_settings(cluster, SlurmSettings)
        used = [partition for partition in self.partitions if partition.name in own]
        types = sorted({kind for partition in used for group in partition.groups for kind in group.gpu_types})
        if settings.gpu_type and used and settings.gpu_type not in types:
            has = ", ".join(types) or "no GPUs with a type"
            yield problem(
                "GPUs", f"cluster.gpu_type={settings.gpu_type}: the nodes have {has}", "correct it, or leave it out"
            )
        features = {feature for partition in used for feature in self.features.get(partition.name, ())}
        plain = settings.constraint and re.fullmatch(r"[\w.-]+", settings.constraint)
        if plain and features and settings.constraint not in features:
            text = f"cluster.constraint={settings.constraint}: no node of the partition has this feature"
            yield problem("features", text, f"they have {', '.join(sorted(features))}")


def survey(slurm: Slurm) -> SlurmSite:
    """Collects the facts of a site, with six commands.

    Raises:
        QueryError: the query of the partitions (sinfo) failed. Facts of other failed queries are left out.
    """
    ask = ErrorCollector()
    partitions = tuple(slurm.partitions())
    settings: dict[str, str] = {}
    facts: list[PartitionFacts] = []
    nodes: list[Nodes] = []
    accounts: tuple[Account, ...] = ()
    features: dict[str, dict[str, None]] = {}
    settings = ask(lambda: parse_settings(slurm.run("scontrol", "show", "config")), settings, "scontrol show config")
    show = ("scontrol", "--all", "--oneliner", "show", "partition")
    facts = ask(lambda: parse_partitions(slurm.run(*show)), facts, "scontrol show partition")
    nodes = ask(lambda: parse_nodes(slurm.run(*NODES)), nodes, "features of nodes")
    for each in nodes:
        features.setdefault(each.partition, {}).update(dict.fromkeys(each.features))
    if not has_accounting(settings):
        ask.problems.append("accounts: the site keeps no accounting")
    else:
        # `show associations` leaves the default account empty (22.05 and 26.05).
        command = (*SACCTMGR, "show", "user", getpass.getuser(), "withassoc", "format=Account,User,DefaultAccount")
        accounts = ask(lambda: parse_accounts(slurm.run(*command)), accounts, "accounts")
    return SlurmSite(
        settings.get("ClusterName", ""), ask(lambda: slurm_version(slurm), "", "version"), partitions,
        {each.name: each for each in facts}, {name: tuple(found) for name, found in features.items()}, accounts,
        settings, tuple(ask.problems),
    )  # fmt: skip


def choose_partition(partitions: Sequence[Partition], wanted: str | None) -> tuple[Partition | None, str]:
    """Chooses the partition of a profile, and returns it with the reason; (None, "") if none can be chosen.

    The wanted partition is chosen, else the default one, unless only other partitions have GPUs: then the one with the
    most GPU nodes is chosen.

    Raises:
        ConfigError: the wanted partition does not exist.
    """
    if (own := requested(partitions, wanted, "partition")) is not None:
        return own, "as you asked for"
    default = next((each for each in partitions if each.default), None)
    with_gpus = [each for each in partitions if _gpus(each)]
    if default is not None and (_gpus(default) or not with_gpus):
        return default, "sinfo: the default partition"
    if with_gpus:
        best = max(with_gpus, key=lambda each: sum(group.nodes for group in each.groups if group.gpus))
        return best, "sinfo: of those with GPUs the one with most nodes"
    return None, ""


def _gpus(partition: Partition) -> int:
    return max((group.gpus for group in partition.groups), default=0)


def _notes(site: SlurmSite) -> Iterator[str]:
    if size := site.settings.get("MaxArraySize"):
        yield f"# Arrays: numbers below MaxArraySize={size}; larger sweeps become several arrays."
    if requeue := site.settings.get("JobRequeue"):
        default = "jobs are requeued" if requeue == "1" else "jobs are not requeued unless they ask for it, as ours do"
        yield f"# JobRequeue={requeue}: by default {default}."
    yield "#"


def _accounts(site: SlurmSite, chosen: Partition | None) -> Iterator[str]:
    names = [each.name for each in site.accounts]
    facts = site.facts.get(chosen.name) if chosen else None
    if facts and facts.accounts:
        yield f"# scontrol: the partition is for the accounts {', '.join(facts.accounts)}"
        names = [name for name in names if name in facts.accounts]
    if names:
        why = "your default one" if site.accounts[0].default and site.accounts[0].name == names[0] else "one of yours"
        more = f"; others: {', '.join(names[1:])}" if names[1:] else ""
        yield f"account: {scalar(names[0])}  # sacctmgr: {why}{more}"
    else:
        yield "# account: my_project  # sacctmgr lists none"


def _limits(site: SlurmSite, chosen: Partition) -> Iterator[str]:
    total = sum(group.nodes for group in chosen.groups)
    where = "its nodes" if chosen.max_nodes is None or chosen.max_nodes > total else "its MaxNodes"
    facts = site.facts.get(chosen.name)
    yield "limits:"
    yield f"  nodes: {doctor.most_nodes(chosen)}  # sinfo: {where}"
    if facts and facts.min_nodes > 1:
        yield f"  # scontrol: at least {plural(facts.min_nodes, 'node')}"
    yield f"  gpus_per_node: {_gpus(chosen)}  # sinfo: gres"
    yield f"  cpus_per_node: {max(group.cpus for group in chosen.groups)}  # sinfo: CPUs"
    yield f"  mem_per_node: {memory(max(group.mem for group in chosen.groups))}  # sinfo: memory"
    if chosen.time is not None:
        yield f"  time: {json.dumps(format_time(chosen.time))}  # sinfo: its time limit"


def parse_accounts(text: str) -> tuple[Account, ...]:
    """Parses sacctmgr's lines `Account|User|DefaultAccount`; returns each account once, the default one first."""
    rows = [line.split("|") for line in text.splitlines() if line.count("|") >= 2]
    default = next((row[2] for row in rows if row[2]), "")
    names = dict.fromkeys(row[0] for row in rows if row[0] and row[1])
    return tuple(sorted((Account(name, name == default) for name in names), key=lambda each: not each.default))
