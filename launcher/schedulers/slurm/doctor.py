"""The checks of `doctor` for Slurm, and for a profile against its partitions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from launcher.config.scheduler_table import own_settings
from launcher.config.schema import Cluster
from launcher.errors import near
from launcher.findings import Finding, Level, ok, problem
from launcher.formatting import format_size, format_time
from launcher.schedulers.checks import TimedOutput, listed, reachable, stated_limits, timed
from launcher.schedulers.queries import QueryError
from launcher.schedulers.slurm.commands import Slurm
from launcher.schedulers.slurm.limits import Partition
from launcher.schedulers.slurm.resource_queries import slurm_version
from launcher.schedulers.slurm.settings import SlurmSettings


def check(cluster: Cluster, slurm: Slurm) -> Iterator[Finding]:
    """Yields findings about Slurm (reachable, partitions, accounting), and about the profile's partition and limits."""
    version = timed(lambda: slurm_version(slurm))
    answer = timed(lambda: slurm.run("squeue", "--me", "--noheader", "--format=%i"))
    yield from reachable("Slurm", version.text, answer, "SLURM_CONF")
    if answer.error:
        return
    try:
        found = slurm.partitions()
    except QueryError as error:
        yield problem("partition", str(error), "try `sinfo`")
    else:
        for line in lines(found, wanted(cluster, found)):
            yield ok("partition", line)
        yield from with_qos(cluster, found)
    yield accounting(timed(lambda: slurm.sacct("--allocations", "--starttime=now", "--format=JobID")))


def wanted(cluster: Cluster, found: Sequence[Partition]) -> list[str]:
    """Returns the names of the partitions that a profile uses: cluster.partition, else the site's default."""
    partition = own_settings(cluster, SlurmSettings).partition
    return partition.split(",") if partition else [each.name for each in found if each.default]


def lines(found: Sequence[Partition], own: Collection[str] = ()) -> list[str]:
    """Returns a line for each partition with its limits. Marks the default, and the profile's own (`own`)."""
    rows = []
    for each in found:
        marks = (("default", each.default), ("this profile's", each.name in own))
        rows.append((each.name, [word for word, is_so in marks if is_so], _limits(each)))
    return listed(rows, "sinfo")


def with_qos(cluster: Cluster, found: Sequence[Partition]) -> list[Finding]:
    """Returns what `compared` finds. If the partitions do not fit, the limits that the jobs' QOS lifts do not count."""
    findings = list(compared(cluster, found))
    if all(each.level is Level.OK for each in findings):
        return findings
    # Lazily: 15 ms, and most profiles need no QOS
    from launcher.schedulers.slurm.resource_queries import ResourceQueries

    settings = own_settings(cluster, SlurmSettings)
    try:
        known = ResourceQueries(cluster.submit_timeout).qos(settings.qos, cluster.account)
    except QueryError:
        return findings
    for qos in known:
        findings = list(compared(cluster, [qos.within(each) for each in found]))
        if all(each.level is Level.OK for each in findings):
            break
    return findings


def compared(cluster: Cluster, found: Sequence[Partition]) -> Iterator[Finding]:
    """Yields findings on whether a profile's partitions exist, and the profile's limits fit the partitions."""
    names, own = {each.name: each for each in found}, wanted(cluster, found)
    for name in own:
        if name not in names:
            yield problem(
                "profile", f"cluster.partition={name}: there is no such partition.{near(name, names)}",
                f"set cluster.partition to one of {', '.join(names)}",
            )  # fmt: skip
    if not own:
        yield problem("profile", "cluster.partition is not set, and the site has no default partition",
                      f"set cluster.partition to one of {', '.join(names)}")  # fmt: skip
    used = [names[name] for name in own if name in names]
    if used:
        groups = [group for each in used for group in each.groups]
        times = [each.time for each in used]
        live = {
            "nodes": max((most_nodes(each) for each in used), default=0),
            "gpus_per_node": max((group.gpus for group in groups), default=0),
            "cpus_per_node": max((group.cpus for group in groups), default=0),
            "mem_per_node": max((group.mem for group in groups), default=0),
            "time": None if None in times else max(time for time in times if time is not None),
        }
        qos = next((f" with QOS {each.qos}" for each in used if each.qos), "")
        yield from stated_limits(cluster, live, f"partition {'/'.join(each.name for each in used)}{qos}")


def most_nodes(partition: Partition) -> int:
    """Returns the maximum number of nodes of one job in a partition."""
    total = sum(group.nodes for group in partition.groups)
    return total if partition.max_nodes is None else min(total, partition.max_nodes)


def _limits(each: Partition) -> str:
    kinds = []
    for group in each.groups[:4]:
        gpus = f", {group.gpus} GPU{'' if group.gpus == 1 else 's'}" if group.gpus else ""
        kinds.append(f"{group.nodes} of {group.cpus} CPUs, {format_size(group.mem)}{gpus}")
    more = f" and {len(each.groups) - 4} other kinds" if len(each.groups) > 4 else ""
    nodes = "; ".join(kinds) + more if kinds else "no nodes"
    most = f", at most {each.max_nodes} a job" if each.max_nodes is not None else ""
    return f"nodes: {nodes}{most}; up to {'any time' if each.time is None else format_time(each.time)}"


def accounting(answer: TimedOutput) -> Finding:
    """Returns a finding on whether sacct works. Without it, the launcher knows less about failed jobs."""
    if answer.error:
        return ok("accounting", f"not there, which the launcher does without ({_short(answer.error)})")
    return ok("accounting", f"sacct answered in {answer.took * 1000:.0f} ms")


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 120 else f"{line[:117]}..."
