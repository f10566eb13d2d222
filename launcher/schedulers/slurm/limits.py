"""What Slurm refuses: a plan against its partitions and QOS, `doctor`'s checks, and `site init`."""

from __future__ import annotations

import contextlib
import getpass
import importlib
import re
import textwrap
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from launcher.config.scheduler_table import own_settings
from launcher.config.schema import Cluster
from launcher.errors import ConfigError
from launcher.fast_dataclasses import Struct
from launcher.formatting import format_size, format_time, plural
from launcher.plan.limits import NodeGroup, too_much_for
from launcher.plan.plan import JobPlan, settings_of
from launcher.schedulers import site
from launcher.schedulers.base import QueryError
from launcher.schedulers.site import Finding, Level, ok, problem, worst
from launcher.schedulers.slurm.client import SACCTMGR, NodeCounts, Slurm, has_accounting, pairs, text_of
from launcher.schedulers.slurm.script import effective
from launcher.schedulers.slurm.settings import SlurmSettings
from launcher.units import parse_time, time_or_none

SINFO = ("sinfo", "--all", "--noheader", "--noconvert", "--exact", "--format=%P|%l|%s|%D|%c|%m|%G")


class Partition(Struct):
    """A live partition. `groups` are known from sinfo, and what follows them from scontrol."""

    name: str  # name of the partition
    default: bool  # whether it is the site's default partition
    time: int | None  # time limit in seconds; None: no limit
    max_nodes: int | None  # maximum number of nodes of one job; None: no limit
    groups: tuple[NodeGroup, ...] = ()  # the partition's nodes, grouped by their resources
    state: str = ""
    min_nodes: int = 0  # minimum number of nodes of one job
    total: int = 0  # number of nodes
    cpus: int = 0  # number of CPUs on all nodes together
    accounts: tuple[str, ...] = ()  # accounts that may use it; empty: all
    denied: tuple[str, ...] = ()  # accounts that may not
    qos: str = ""  # name of the partition's QOS; empty: none
    tier: int = 0  # PriorityTier; jobs in a higher tier start first and may preempt
    root_only: bool = False  # whether only root can submit to the partition
    lifted_by: str = ""  # name of the QOS from which `time` or `max_nodes` are; empty: they are the partition's own

    def takes(self, nodes: int, time: int) -> bool:
        fewer = self.max_nodes is None or nodes <= self.max_nodes
        return self.min_nodes <= nodes and fewer and (self.time is None or time <= self.time)


class Qos(Struct):
    """A QOS, whose flags may lift limits of a job's partition (not those of a partition's own QOS: seen on 22.05)."""

    name: str
    lifts_time: bool  # flag PartitionTimeLimit
    lifts_nodes: bool  # flag PartitionMaxNodes
    time: int | None = None  # its own limit in seconds; None: none, or Slurm enforces no limits of QOS
    max_nodes: int | None = None

    def within(self, partition: Partition) -> Partition:
        time = self.time if self.lifts_time else partition.time
        max_nodes = self.max_nodes if self.lifts_nodes else partition.max_nodes
        name = self.name if self.lifts_time or self.lifts_nodes else ""
        return replace(partition, time=time, max_nodes=max_nodes, lifted_by=name)


def partitions_of(slurm: Slurm) -> list[Partition]:
    text = slurm.run(*SINFO)
    try:
        return parse_partitions(text)
    except ValueError as error:
        raise QueryError(f"sinfo's answer could not be read: {error}") from None


def parse_partitions(text: str) -> list[Partition]:
    """Parses the output of the command `SINFO`: one line per partition and kind of node."""
    rows: dict[str, list[list[str]]] = {}
    for line in text.splitlines():
        name, *fields = line.strip().split("|")
        if len(fields) == 6:
            rows.setdefault(name, []).append(fields)
    partitions = []
    for name, lines in rows.items():
        time, most = lines[0][0], lines[0][1].rpartition("-")[2]
        groups = tuple(
            NodeGroup(int(nodes), int(cpus.rstrip("+")), int(mem.rstrip("+")) * 1024**2, *_gpus_in(gres))
            for _, _, nodes, cpus, mem, gres in lines
            if int(nodes)
        )
        longest = None if time in ("infinite", "n/a") else parse_time(time)
        default = name.endswith("*")
        partitions.append(
            Partition(name.rstrip("*"), default, longest, int(most) if most.isdecimal() else None, groups)
        )
    return partitions


def _gpus_in(gres: str) -> tuple[int, tuple[str, ...]]:
    # The number of GPUs and their types in `gpu:a100:4(S:0-1),gpu:2`
    items = [item.split(":") for item in re.sub(r"\([^)]*\)", "", gres).split(",")]
    gpus = [item for item in items if item[0] == "gpu"]
    types = dict.fromkeys(item[1] for item in gpus if len(item) > 2)
    return sum(int(item[-1]) for item in gpus if item[-1].isdecimal()), tuple(types)


def partition_records(slurm: Slurm) -> list[Partition]:
    return parse_partition_records(slurm.run("scontrol", "--all", "--oneliner", "show", "partition"))


def parse_partition_records(text: str) -> list[Partition]:
    return [
        Partition(
            name=values["PartitionName"],
            default=values["Default"] == "YES",
            time=time_or_none(values["MaxTime"]),
            max_nodes=int(values["MaxNodes"]) if values["MaxNodes"].isdecimal() else None,
            state=values["State"],
            min_nodes=int(values["MinNodes"]) if values["MinNodes"].isdecimal() else 0,
            total=int(values["TotalNodes"] or 0),
            cpus=int(values["TotalCPUs"] or 0),
            accounts=_names(values["AllowAccounts"]),
            denied=_names(values["DenyAccounts"]),
            qos=text_of(values["QoS"]),
            tier=int(values["PriorityTier"] or 0),
            root_only=values["RootOnly"] == "YES",
        )
        for values in map(pairs, text.splitlines())
        if "PartitionName" in values
    ]


def qos_of(slurm: Slurm, name: str | None, account: str | None) -> list[Qos]:
    """Returns the QOS that a new job may get; name: one or several (`a,b`), None: the default of its account."""
    settings = slurm.settings()
    if not has_accounting(settings):
        return []
    text = slurm.run(*SACCTMGR, "show", "qos", "format=Name,Flags,MaxWall,MaxTRES")
    known = parse_qos(text, enforced="limits" in settings.get("AccountingStorageEnforce", ""))
    names = {each.lower() for each in (name or "").split(",")}  # newer versions take several (--qos=a,b)
    if name is None:
        mine = (f"cluster={settings.get('ClusterName', '')}", f"user={getpass.getuser()}")
        text = slurm.run(*SACCTMGR, "show", "associations", *mine, "format=Account,DefaultQOS,QOS")
        names = {*default_qos(text, account)}
    return [each for each in known if each.name.lower() in names]  # as Slurm compares them


def parse_qos(text: str, *, enforced: bool) -> list[Qos]:
    """Parses sacctmgr's lines `Name|Flags|MaxWall|MaxTRES`; a QOS has limits if Slurm enforces those of QOS."""
    found = []
    for line in text.splitlines():
        name, flags, time, resources = (line.split("|") + [""] * 4)[:4]
        most = re.search(r"(?:^|,)node=(\d+)", resources)
        limits = (time_or_none(time), int(most[1]) if most else None) if enforced else (None, None)
        found.append(Qos(name, "PartitionTimeLimit" in flags, "PartitionMaxNodes" in flags, *limits))
    return found


def default_qos(text: str, account: str | None) -> set[str]:
    """Returns the QOS that jobs which ask for none get, from sacctmgr's lines `Account|DefaultQOS|QOS`."""
    rows = [(line.split("|") + [""] * 3)[:3] for line in text.splitlines()]
    mine = [row for row in rows if account is None or row[0].lower() == account.lower()]
    found = {default or (own if own and "," not in own else "normal") for _, default, own in mine} or {"normal"}
    return {each.lower() for each in found}


def _names(value: str) -> tuple[str, ...]:
    return () if value in ("ALL", "(null)", "") else tuple(value.split(","))


# -- Checks a plan against Slurm's partitions before submission
# Slurm would accept some of the jobs that are refused here, and leave them pending for ever


def refusal(plan: JobPlan, partitions: Sequence[Partition], default: str | None = None) -> str | None:
    """Returns why no partition of the plan (else `default`, else the site's) could start the job; None: one could."""
    known = {partition.name: partition for partition in partitions}
    partition = settings_of(plan, SlurmSettings).partition or default
    names = partition.split(",") if partition else [each.name for each in partitions if each.default]
    if not names:
        there = f"the site has no default partition: choose one of {', '.join(known)}"
        return f"cluster.partition is not set and {there}"
    for name in names:  # like sbatch, which takes a blank for a part of the name
        if name not in known:
            setting = site.no_such("partition", f"cluster.partition={name}", name, known)
            return f"{setting} Known: {', '.join(known)}"
    wanted = [known[name] for name in names]
    problems = [_problem(plan, partition) for partition in wanted]
    if not all(problems):
        return None
    others = [p.name for p in partitions if p not in wanted and _problem(plan, p) is None]
    return f"{problems[0]}" + (f"; or cluster.partition={others[0]}, which takes it as it is" if others else "")


def _problem(plan: JobPlan, partition: Partition) -> str | None:
    where = f"partition {partition.name}" + (f" with QOS {partition.lifted_by}" if partition.lifted_by else "")
    most = most_nodes(partition)
    if most == 0:
        return f"cluster.partition={partition.name}: {where} gives nobody any nodes: choose another"
    if plan.nodes > most:
        key = plan.nodes_key
        return f"{key}={plan.nodes}: {where} gives a job at most {plural(most, 'node')}: use {key}={most} or less"
    if partition.time is not None and plan.time > partition.time:
        limit = format_time(partition.time)
        return f"time={format_time(plan.time)}: {where} ends jobs after {limit}: use time={limit} or less"
    return too_much_for(plan, partition.groups, where)


NO_QOS, ANY = (Qos("", lifts_time=lifts, lifts_nodes=lifts) for lifts in (False, True))


def compare(plan: JobPlan, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Returns notes on a plan from the live partitions; raises ConfigError (none could ever start it), QueryError."""
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(partitions_of, Slurm(plan.cluster.submit_timeout))
        # 30 ms; the submission needs it next, and Slurm answers meanwhile
        importlib.import_module("launcher.schedulers.executor")
    if not (partitions := answer.result()):
        return ()
    values = effective(plan, environ)

    def refusal_with(qos: Qos) -> str | None:
        return refusal(plan, [qos.within(each) for each in partitions], values["partition"])

    if (why := refusal_with(NO_QOS)) is None:
        return ()
    slurm = Slurm(plan.cluster.submit_timeout)
    if values["partition"] is None and (chooses := filters(slurm)):
        return (f"{why}, unless the site chooses another partition (JobSubmitPlugins={chooses})",)
    if never := refusal_with(ANY):
        raise ConfigError(never)
    try:
        found = qos_of(slurm, values["qos"], values["account"])
    except QueryError as error:
        return (f"{why}, unless the job's QOS lifts this limit, which is not known ({error})",)
    for qos in found:
        if (why := refusal_with(qos)) is None:
            return ()
    raise ConfigError(why)


def filters(slurm: Slurm) -> str:
    """Returns the site's filters, which may choose the partition of a job that names none; empty: none, or unknown."""
    with contextlib.suppress(QueryError):
        return text_of(slurm.settings().get("JobSubmitPlugins", ""))
    return ""


# -- The checks of `doctor` for Slurm, and for a profile against its partitions


def check(cluster: Cluster, slurm: Slurm) -> Iterator[Finding]:
    version = ""
    with contextlib.suppress(QueryError):
        version = slurm.version()
    ask = partial(slurm.run, "squeue", "--me", "--noheader", "--format=%i")
    if (yield from site.reachable("Slurm", version, ask, "SLURM_CONF")) is None:
        return
    try:
        found = partitions_of(slurm)
    except QueryError as error:
        yield problem("partition", str(error), "try `sinfo`")
    else:
        for line in lines(found, wanted(cluster, found)):
            yield ok("partition", line)
        yield from with_qos(cluster, found)
    yield accounting(slurm)


def wanted(cluster: Cluster, found: Sequence[Partition]) -> list[str]:
    """Returns the names of the partitions that a profile uses: cluster.partition, else the site's default."""
    partition = own_settings(cluster, SlurmSettings).partition
    return partition.split(",") if partition else [each.name for each in found if each.default]


def lines(found: Sequence[Partition], own: Collection[str] = ()) -> list[str]:
    """Returns a line for each partition with its limits. Marks the default, and the profile's own (`own`)."""
    rows = []
    for each in found:
        kinds = []
        for group in each.groups[:4]:
            gpus = f", {plural(group.gpus, 'GPU')}" if group.gpus else ""
            kinds.append(f"{group.nodes} of {plural(group.cpus, 'CPU')}, {format_size(group.mem)}{gpus}")
        more = f" and {plural(len(each.groups) - 4, 'other kind')}" if len(each.groups) > 4 else ""
        most = f", at most {each.max_nodes} a job" if each.max_nodes is not None else ""
        time = "any time" if each.time is None else format_time(each.time)
        limits = f"nodes: {'; '.join(kinds) + more or 'no nodes'}{most}; up to {time}"
        rows.append((each.name, (("default", each.default), ("this profile's", each.name in own)), limits))
    return site.listed(rows, "sinfo")


def with_qos(cluster: Cluster, found: Sequence[Partition]) -> list[Finding]:
    """Returns what `compared` finds. If the partitions do not fit, the limits that the jobs' QOS lifts do not count."""
    findings, known = list(compared(cluster, found)), list[Qos]()
    if worst(findings) is not Level.OK:
        slurm, asked = Slurm(cluster.submit_timeout), own_settings(cluster, SlurmSettings)
        if asked.partition is None and (chooses := filters(slurm)):
            return [ok("profile", f"not compared: the site may choose the partition (JobSubmitPlugins={chooses})")]
        with contextlib.suppress(QueryError):
            known = qos_of(slurm, asked.qos, cluster.account)
    for qos in known:
        findings = list(compared(cluster, [qos.within(each) for each in found]))
        if worst(findings) is Level.OK:
            break
    return findings


def compared(cluster: Cluster, found: Sequence[Partition]) -> Iterator[Finding]:
    names, own = {each.name: each for each in found}, wanted(cluster, found)
    for name in own:
        if name not in names:
            yield site.missing("partition", f"cluster.partition={name}", name, names)
    if not own:
        yield problem("profile", "cluster.partition is not set, and the site has no default partition",
                      f"set cluster.partition to one of {', '.join(names)}")  # fmt: skip
    if used := [names[name] for name in own if name in names]:
        groups = [group for each in used for group in each.groups]
        times = [each.time for each in used if each.time is not None]
        live = {
            "nodes": max(map(most_nodes, used)),
            "gpus_per_node": max((group.gpus for group in groups), default=0),
            "cpus_per_node": max((group.cpus for group in groups), default=0),
            "mem_per_node": max((group.mem for group in groups), default=0),
            "time": max(times) if len(times) == len(used) else None,
        }
        qos = next((f" with QOS {each.lifted_by}" for each in used if each.lifted_by), "")
        yield from site.stated_limits(cluster, live, f"partition {'/'.join(each.name for each in used)}{qos}")


def most_nodes(partition: Partition) -> int:
    total = sum(group.nodes for group in partition.groups)
    return total if partition.max_nodes is None else min(total, partition.max_nodes)


def accounting(slurm: Slurm) -> Finding:
    """Returns a finding on whether sacct works. Without it, the launcher knows less about failed jobs."""
    began = time.monotonic()
    try:
        slurm.sacct("--allocations", "--starttime=now", "--format=JobID")
    except QueryError as error:
        why = textwrap.shorten(str(error), 120, placeholder="...")
        return ok("accounting", f"not there, which the launcher does without ({why})")
    return ok("accounting", f"sacct answered in {(time.monotonic() - began) * 1000:.0f} ms")


# -- `site init` for Slurm: queries a site's facts, and writes a profile


class SlurmSite(site.Site):
    scheduler = "slurm"
    pool = "partition"
    no_pool = "required: [partition]  # the site has no default one"

    partitions: tuple[Partition, ...]  # all partitions that the user can see, from sinfo
    features: Mapping[str, tuple[str, ...]]  # of its nodes, by name of the partition
    accounts: tuple[str, ...]  # accounts of this user, the default one first
    default_account: str
    settings: Mapping[str, str]  # values of `scontrol show config`

    def facts(self) -> Iterator[str]:
        yield "Partitions (sinfo):"
        yield from (f"  {line}" for line in lines(self.partitions))
        if size := self.settings.get("MaxArraySize"):
            yield f"Arrays: numbers below MaxArraySize={size}; larger sweeps become several arrays."
        if requeue := self.settings.get("JobRequeue"):
            how = "requeued" if requeue == "1" else "not requeued unless they ask for it, as ours do"
            yield f"JobRequeue={requeue}: by default jobs are {how}."

    def best(self) -> tuple[Partition | None, str]:
        default = next((each for each in self.partitions if each.default), None)
        with_gpus = [each for each in self.partitions if _gpus(each)]
        if default is not None and (_gpus(default) or not with_gpus):
            return default, "sinfo: the default partition"
        if not with_gpus:
            return None, ""
        most = max(with_gpus, key=lambda each: sum(group.nodes for group in each.groups if group.gpus))
        return most, "sinfo: of those with GPUs the one with most nodes"

    def keys(self, chosen: Partition | None) -> Iterator[str]:
        names = list(self.accounts)
        if chosen and chosen.accounts:
            yield f"# scontrol: the partition is for the accounts {', '.join(chosen.accounts)}"
            names = [name for name in names if name in chosen.accounts]
        if names:
            why = "your default one" if names[0] == self.default_account else "one of yours"
            more = f"; others: {', '.join(names[1:])}" if names[1:] else ""
            yield f"account: {site.scalar(names[0])}  # sacctmgr: {why}{more}"
        else:
            yield "# account: my_project  # sacctmgr lists none"
        if chosen is None:
            return
        types = list(dict.fromkeys(kind for group in chosen.groups for kind in group.gpu_types))
        if _gpus(chosen):
            yield "gpu_directive: gres  # sinfo: its nodes have gres gpu"
            if len(types) == 1:
                yield f"gpu_type: {site.scalar(types[0])}  # sinfo: gres gpu:{types[0]}"
            elif types:
                yield f"# gpu_type: {site.scalar(types[0])}  # sinfo: {', '.join(types)}; without it any of them"
        if features := self.features.get(chosen.name):
            yield f"# constraint: {site.scalar(features[0])}  # sinfo: features are {', '.join(features)}"

    def limits(self, chosen: Partition | None) -> Iterator[tuple[str, object, str]]:
        if chosen is None or not chosen.groups:  # a partition without nodes has no limits to tell
            return
        total = sum(group.nodes for group in chosen.groups)
        where = "its nodes" if chosen.max_nodes is None or chosen.max_nodes > total else "its MaxNodes"
        least = f"\n  # scontrol: at least {plural(chosen.min_nodes, 'node')}" if chosen.min_nodes > 1 else ""
        yield "nodes", most_nodes(chosen), f"sinfo: {where}{least}"
        yield "gpus_per_node", _gpus(chosen), "sinfo: gres"
        yield "cpus_per_node", max(group.cpus for group in chosen.groups), "sinfo: CPUs"
        yield "mem_per_node", site.memory(max(group.mem for group in chosen.groups)), "sinfo: memory"
        if chosen.time is not None:
            yield "time", format_time(chosen.time), "sinfo: its time limit"


def survey(slurm: Slurm) -> SlurmSite:
    ask = site.ErrorCollector()
    found = partitions_of(slurm)
    settings = ask(slurm.settings, dict[str, str](), "scontrol show config")
    records = ask(lambda: partition_records(slurm), list[Partition](), "scontrol show partition")
    named = {each.name: each for each in records}
    partitions = tuple(replace(named.get(each.name, each), groups=each.groups) for each in found)
    features: dict[str, dict[str, None]] = {}
    for each in ask(slurm.nodes, list[NodeCounts](), "features of nodes"):
        features.setdefault(each.partition, {}).update(dict.fromkeys(each.features))
    accounts: list[str] = []
    default = ""
    if not has_accounting(settings):
        ask.problems.append("accounts: the site keeps no accounting")
    else:
        # `show associations` leaves the default account empty (22.05 and 26.05).
        command = (*SACCTMGR, "show", "user", getpass.getuser(), "withassoc", "format=Account,User,DefaultAccount")
        rows = [line.split("|") for line in ask(lambda: slurm.run(*command), "", "accounts").splitlines()]
        rows = [row for row in rows if len(row) >= 3]
        default = next((row[2] for row in rows if row[2]), "")
        names = dict.fromkeys(row[0] for row in rows if row[0] and row[1])
        accounts = sorted(names, key=lambda name: name != default)
    name, version = settings.get("ClusterName", ""), ask(slurm.version, "", "version")
    return SlurmSite(
        name, f"Slurm {version}, cluster {name or 'without a name'}", tuple(ask.problems), partitions,
        {name: tuple(each) for name, each in features.items()}, tuple(accounts), default, settings,
    )  # fmt: skip


def _gpus(partition: Partition) -> int:
    return max((group.gpus for group in partition.groups), default=0)
