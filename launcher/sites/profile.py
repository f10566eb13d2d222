"""From what a scheduler tells to the text of a profile, each value with where it came from. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from launcher.config.schema import Cluster, GpuDirective
from launcher.errors import ConfigError, near
from launcher.findings import Finding, ok, problem, warning
from launcher.formatting import format_hours, format_time, plural
from launcher.schedulers.pbs import doctor as pbs_doctor
from launcher.schedulers.pbs.facts import Node
from launcher.schedulers.slurm import doctor as slurm_doctor
from launcher.sites.survey import PBSSite, SlurmSite
from launcher.spec.limits import Partition, Queue

PLAIN = re.compile(r"[A-Za-z_][\w.+/-]*")
READ_AS_OTHERS = {"true", "false", "yes", "no", "on", "off", "null", "none"}  # by YAML


def default_name(site: SlurmSite | PBSSite) -> str:
    """A name for the profile: the cluster's own."""
    name = site.cluster if isinstance(site, SlurmSite) else site.server.partition(".")[0]
    return re.sub(r"[^\w.+-]", "-", name).lstrip("-+.") or "site"


def write(site: SlurmSite | PBSSite, name: str, wanted: str | None, day: str) -> str:
    """The text of a profile.

    Args:
        site: what its scheduler tells.
        name: of the profile.
        wanted: partition or queue to use; None: the default one, or the largest that has GPUs.
        day: when the site was asked.

    Raises:
        ConfigError: there is no such partition or queue.
    """
    lines = _of_slurm(site, name, wanted, day) if isinstance(site, SlurmSite) else _of_pbs(site, name, wanted, day)
    return "\n".join([*lines, ""])


def scalar(value: object) -> str:
    """A value as YAML reads it back."""
    text = str(value)
    plain = PLAIN.fullmatch(text) and text.lower() not in READ_AS_OTHERS
    return text if isinstance(value, int) or plain else json.dumps(text)


def _head(what: str, name: str, day: str, problems: Sequence[str]) -> Iterator[str]:
    yield f"# {what} as it was on {day}, written by `launcher site init`."
    yield f"# `launcher site check {name}` tells what has changed since. Change it as you like: the site itself refuses"
    yield "# what it does not allow, and limits here only make that known before a job is submitted."
    for each in problems:
        yield f"# Not found out: {each}"
    yield "#"


# -- Slurm


def choose_partition(partitions: Sequence[Partition], wanted: str | None) -> tuple[Partition | None, str]:
    """The partition of a profile, and why.

    Raises:
        ConfigError: the wanted one is not there.
    """
    known = {each.name: each for each in partitions}
    if wanted is not None:
        if wanted not in known:
            raise ConfigError(
                f"--partition={wanted}: there is no such partition.{near(wanted, known)} Known: {', '.join(known)}"
            )
        return known[wanted], "as you asked for"
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


def _of_slurm(site: SlurmSite, name: str, wanted: str | None, day: str) -> Iterator[str]:
    chosen, why = choose_partition(site.partitions, wanted)
    yield from _head(f"Slurm {site.version}, cluster {site.cluster or 'without a name'},", name, day, site.problems)
    yield "# Partitions (sinfo):"
    yield from (f"#   {line}" for line in slurm_doctor.lines(site.partitions))
    yield from _slurm_notes(site)
    yield "defaults: [slurm, _self_]"
    yield ""
    yield f"name: {scalar(name)}"
    if chosen is None:
        yield "required: [partition]  # the site has no default one"
    else:
        yield f"partition: {scalar(chosen.name)}  # {why}"
    yield from _accounts(site, chosen)
    if chosen is None:
        return
    types = list(dict.fromkeys(kind for group in chosen.groups for kind in group.gpu_types))
    if _gpus(chosen):
        yield "gpu_directive: gres  # sinfo: its nodes have gres gpu"
        if len(types) == 1:
            yield f"gpu_type: {scalar(types[0])}  # sinfo: gres gpu:{types[0]}"
        elif types:
            yield f"# gpu_type: {scalar(types[0])}  # sinfo: {', '.join(types)}; without it any of them"
    if features := site.features.get(chosen.name):
        yield f"# constraint: {scalar(features[0])}  # sinfo: features are {', '.join(features)}"
    yield from _slurm_limits(site, chosen)


def _slurm_notes(site: SlurmSite) -> Iterator[str]:
    if size := site.settings.get("MaxArraySize"):
        yield f"# Arrays: numbers below MaxArraySize={size}; larger sweeps become several arrays."
    if requeue := site.settings.get("JobRequeue"):
        told = "jobs are requeued" if requeue == "1" else "jobs are not requeued unless they ask for it, as ours do"
        yield f"# JobRequeue={requeue}: by default {told}."
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
        yield "# account: my_project  # sacctmgr told of none"


def _slurm_limits(site: SlurmSite, chosen: Partition) -> Iterator[str]:
    total = sum(group.nodes for group in chosen.groups)
    most = total if chosen.max_nodes is None else min(total, chosen.max_nodes)
    where = "its nodes" if chosen.max_nodes is None or chosen.max_nodes > total else "its MaxNodes"
    facts = site.facts.get(chosen.name)
    yield "limits:"
    yield f"  nodes: {most}  # sinfo: {where}"
    if facts and facts.min_nodes > 1:
        yield f"  # scontrol: at least {plural(facts.min_nodes, 'node')}"
    yield f"  gpus_per_node: {_gpus(chosen)}  # sinfo: gres"
    yield f"  cpus_per_node: {max(group.cpus for group in chosen.groups)}  # sinfo: CPUs"
    yield f"  mem_per_node: {_memory(max(group.mem for group in chosen.groups))}  # sinfo: memory"
    if chosen.time is not None:
        yield f"  time: {json.dumps(format_time(chosen.time))}  # sinfo: its time limit"


def _memory(octets: int) -> str:
    """In whole MiB, rounded down."""
    return f"{octets // 1024**2}M"


# -- PBS


def choose_queue(queues: Sequence[Queue], wanted: str | None) -> tuple[Queue | None, str]:
    """The queue of a profile, and why.

    Raises:
        ConfigError: the wanted one is not there.
    """
    known = {each.name: each for each in queues}
    if wanted is not None:
        if wanted not in known:
            raise ConfigError(
                f"--queue={wanted}: there is no such queue.{near(wanted, known)} Known: {', '.join(known)}"
            )
        return known[wanted], "as you asked for"
    default = next((each for each in queues if each.default), None)
    if default is not None:
        return default, "qstat -Q: the default queue"
    open_ones = [each for each in queues if each.open]
    return (open_ones[0], "qstat -Q: the only one that takes anybody's jobs") if len(open_ones) == 1 else (None, "")


def _of_pbs(site: PBSSite, name: str, wanted: str | None, day: str) -> Iterator[str]:
    chosen, why = choose_queue(site.queues, wanted)
    yield from _head(f"PBS {site.version}, server {site.server or 'without a name'},", name, day, site.problems)
    yield "# Queues (qstat -Q -f):"
    yield from (f"#   {line}" for line in pbs_doctor.lines(site.queues))
    remembers = "remembers" if site.settings.get("job_history_enable") == "True" else "forgets"
    yield f"# PBS {remembers} jobs that are over (qstat -B -f, job_history_enable)."
    yield "#"
    yield "defaults: [pbs, _self_]"
    yield ""
    yield f"name: {scalar(name)}"
    yield f"queue: {scalar(chosen.name)}  # {why}" if chosen else "required: [queue]  # the server has no default one"
    yield "# account: my_project  # -A; PBS does not tell which you may charge"
    nodes = [node for node in site.nodes if chosen is None or node.queue in ("", chosen.name)]
    gpus = max((node.has.get("ngpus", 0) for node in nodes), default=0)
    if site.nodes:
        directive = (GpuDirective.ngpus, "have ngpus") if gpus else (GpuDirective.none, "have no resource ngpus")
        yield f"gpu_directive: {directive[0].value}  # pbsnodes: nodes {directive[1]}"
    words = _resources(nodes)
    if words:
        yield f"# chunk: {{{words[0][0]}: {scalar(words[0][1])}}}  # pbsnodes: nodes differ in " + ", ".join(
            f"{key}={value}" for key, value in words[:8]
        )
    yield from _pbs_limits(chosen, nodes, gpus)


def _resources(nodes: Sequence[Node]) -> list[tuple[str, str]]:
    """Resources in words that tell nodes apart."""
    found: dict[tuple[str, str], None] = {}
    for node in nodes:
        found.update(((key, value), None) for key, value in node.others.items() if key not in ("host", "vnode", "arch"))
    return list(found)


def _pbs_limits(chosen: Queue | None, nodes: Sequence[Node], gpus: int) -> Iterator[str]:
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
    if memory := max((each.get("mem", 0) for each in has), default=0):
        found.append(("mem_per_node", _memory(memory), "pbsnodes: mem"))
    if chosen and chosen.time is not None:
        found.append(("time", format_hours(chosen.time), "qstat -Q: resources_max.walltime"))
    if found:
        yield "limits:"
    for key, value, why in found:
        text = json.dumps(value) if key == "time" else str(value)
        yield f"  {key}: {text}  # {why}"


# -- a profile against its site


def differences(cluster: Cluster, site: SlurmSite | PBSSite) -> list[Finding]:
    """What a profile says that its site does not, or no longer."""
    if isinstance(site, SlurmSite):
        return [*slurm_doctor.compared(cluster, site.partitions), *_other_than_slurm(cluster, site)]
    return [*pbs_doctor.compared(cluster, site.queues), *_other_than_pbs(cluster, site)]


def _other_than_slurm(cluster: Cluster, site: SlurmSite) -> Iterator[Finding]:
    names = [each.name for each in site.accounts]
    if cluster.account and names:
        if cluster.account in names:
            yield ok("account", f"{cluster.account} is one of yours")
        else:
            yield problem(
                "account", f"cluster.account={cluster.account} is none of yours.{near(cluster.account, names)}",
                f"set cluster.account to one of {', '.join(names)}",
            )  # fmt: skip
    wanted = cluster.partition.split(",") if cluster.partition else [p.name for p in site.partitions if p.default]
    used = [partition for partition in site.partitions if partition.name in wanted]
    types = sorted({kind for partition in used for group in partition.groups for kind in group.gpu_types})
    if cluster.gpu_type and used and cluster.gpu_type not in types:
        yield problem(
            "GPUs", f"cluster.gpu_type={cluster.gpu_type}: the nodes have {', '.join(types) or 'no GPUs with a type'}",
            "correct it, or leave it out",
        )  # fmt: skip
    features = {feature for partition in used for feature in site.features.get(partition.name, ())}
    plain = cluster.constraint and re.fullmatch(r"[\w.-]+", cluster.constraint)
    if plain and features and cluster.constraint not in features:
        told = f"cluster.constraint={cluster.constraint}: no node of the partition has this feature"
        yield problem("features", told, f"they have {', '.join(sorted(features))}")


def _other_than_pbs(cluster: Cluster, site: PBSSite) -> Iterator[Finding]:
    gpus = max((node.has.get("ngpus", 0) for node in site.nodes), default=0)
    if site.nodes and cluster.gpu_directive is GpuDirective.ngpus and not gpus:
        yield warning("GPUs", "cluster.gpu_directive=ngpus, and no node has the resource ngpus",
                      "set cluster.gpu_directive=none, and name the site's own resource in cluster.chunk")  # fmt: skip
    known = {key for node in site.nodes for key in (*node.has, *node.others)}
    ours = {"ncpus", "mpiprocs", "ompthreads", "mem"}
    for key, value in cluster.chunk.items():
        if site.nodes and value is not None and key not in known | ours:
            told = f"cluster.chunk.{key}: no node has such a resource"
            yield warning("nodes", told, f"they have {', '.join(sorted(known))}")
    most = {"cpus_per_node": "ncpus", "gpus_per_node": "ngpus"}
    for limit, resource in most.items():
        stated = getattr(cluster.limits, limit)
        there = max((node.has.get(resource, 0) for node in site.nodes), default=0)
        if site.nodes and stated is not None and stated > there:
            yield warning("profile", f"cluster.limits.{limit}={stated} is more than any node has ({there})")
