"""Checks of the schedulers that are found here, and of the profile against the live limits."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.config.schema import Cluster, Scheduler
from launcher.errors import near
from launcher.findings import Finding, ok, problem, warning
from launcher.formatting import format_hours, format_size, format_time
from launcher.schedulers.base import QueryError
from launcher.schedulers.detect import Kind, Qsub, detect
from launcher.schedulers.pbs.client import PBS, section
from launcher.schedulers.slurm.client import Slurm
from launcher.schedulers.slurm.facts import slurm_version
from launcher.spec.limits import Partition, Queue
from launcher.units import parse_memory, parse_time

SHOWN = 30  # partitions or queues that are listed
SLOW = 5.0  # seconds for one answer, from which on the scheduler is slow


@dataclass(frozen=True)
class Answer:
    """What a scheduler's command printed and how long it took (seconds); or why it did not answer."""

    text: str = ""
    took: float = 0.0
    error: str = ""


def which(slurm: str | None, qsub: Qsub, wanted: Scheduler) -> Iterator[Finding]:
    """Which schedulers there are on PATH and why they are thought to be that; whether the profile's is one of them.

    Args:
        slurm: where sbatch is; None: nowhere.
        qsub: whose qsub is on PATH.
        wanted: the profile's scheduler.
    """
    found = []
    if slurm:
        found.append(f"Slurm (sbatch is {slurm})")
    if qsub.kind is Kind.PBS:
        found.append(f"PBS {qsub.version} ({qsub.path} --version says {qsub.evidence})")
    elif qsub.kind is not Kind.NONE:
        found.append(f"a qsub that is not PBS's: {qsub.path}, {qsub.kind.value} ({qsub.evidence})")
    told = "; ".join(found) or "none found: neither sbatch nor qsub is on PATH"
    if wanted is Scheduler.slurm and not slurm:
        yield problem(
            "scheduler", f"{told}; the profile wants Slurm", "go to a login node, or load its module; or cluster=local"
        )
    elif wanted is Scheduler.pbs and (why := qsub.problem()):
        yield problem("scheduler", f"{told}; the profile wants PBS", why)
    else:
        yield ok("scheduler", told)
        if wanted is Scheduler.local and (slurm or qsub.kind is Kind.PBS):
            name = "slurm" if slurm else "pbs"
            yield ok("scheduler", f"the profile runs on this machine; `doctor --cluster {name}` looks at the scheduler")


def reachable(name: str, version: str, answer: Answer) -> Iterator[Finding]:
    """Whether a scheduler answers, and how fast."""
    told = f"{name} {version}".strip()
    if answer.error:
        yield problem(
            "reachable", f"{told} does not answer: {answer.error}",
            "try again later; if it stays so, ask who runs the scheduler (its server may be down, or SLURM_CONF, "
            "PBS_SERVER wrong)",
        )  # fmt: skip
    elif answer.took > SLOW:
        yield warning("reachable", f"{told} answered after {answer.took:.1f} s", "it is busy: raise "
                      "cluster.submit_timeout if submissions fail")  # fmt: skip
    else:
        yield ok("reachable", f"{told} answered in {answer.took * 1000:.0f} ms")


def partitions(cluster: Cluster, found: Sequence[Partition]) -> Iterator[Finding]:
    """Each partition with its limits, and the profile against the one that it uses."""
    names = {each.name: each for each in found}
    wanted = cluster.partition.split(",") if cluster.partition else [each.name for each in found if each.default]
    for each in found[:SHOWN]:
        marks = [word for word, is_so in (("default", each.default), ("this profile's", each.name in wanted)) if is_so]
        yield ok("partition", f"{each.name}{_in_brackets(marks)}: {_partition(each)}")
    if len(found) > SHOWN:
        yield ok("partition", f"... and {len(found) - SHOWN} more (sinfo)")
    for name in wanted:
        if name not in names:
            yield problem(
                "profile", f"cluster.partition={name}: there is no such partition.{near(name, names)}",
                f"set cluster.partition to one of {', '.join(names)}",
            )  # fmt: skip
    if not wanted:
        yield problem("profile", "cluster.partition is not set, and the site has no default partition",
                      f"set cluster.partition to one of {', '.join(names)}")  # fmt: skip
    used = [names[name] for name in wanted if name in names]
    if used:
        groups = [group for each in used for group in each.groups]
        times = [each.time for each in used]
        live = {
            "nodes": max((_most(each) for each in used), default=0),
            "gpus_per_node": max((group.gpus for group in groups), default=0),
            "cpus_per_node": max((group.cpus for group in groups), default=0),
            "mem_per_node": max((group.mem for group in groups), default=0),
            "time": None if None in times else max(time for time in times if time is not None),
        }
        yield from profile(cluster, live, f"partition {'/'.join(each.name for each in used)}")


def _in_brackets(marks: Sequence[str]) -> str:
    return f" ({', '.join(marks)})" if marks else ""


def _most(partition: Partition) -> int:
    total = sum(group.nodes for group in partition.groups)
    return total if partition.max_nodes is None else min(total, partition.max_nodes)


def _partition(each: Partition) -> str:
    """`4 nodes (at most 2 a job) of 4 CPUs, 5.9G, 2 GPUs; up to 02:00:00`."""
    kinds = []
    for group in each.groups[:4]:
        gpus = f", {group.gpus} GPU{'' if group.gpus == 1 else 's'}" if group.gpus else ""
        kinds.append(f"{group.nodes} of {group.cpus} CPUs, {format_size(group.mem)}{gpus}")
    more = f" and {len(each.groups) - 4} other kinds" if len(each.groups) > 4 else ""
    nodes = "; ".join(kinds) + more if kinds else "no nodes"
    most = f", at most {each.max_nodes} a job" if each.max_nodes is not None else ""
    return f"nodes: {nodes}{most}; up to {'any time' if each.time is None else format_time(each.time)}"


def profile(cluster: Cluster, live: dict[str, int | None], where: str) -> Iterator[Finding]:
    """The limits that the profile states, against those that are live (None: no limit). Lower ones are its business."""
    limits, wrong = cluster.limits, []
    try:
        stated = {
            "nodes": limits.nodes, "gpus_per_node": limits.gpus_per_node, "cpus_per_node": limits.cpus_per_node,
            "mem_per_node": None if limits.mem_per_node is None else parse_memory(limits.mem_per_node),
            "time": None if limits.time is None else parse_time(limits.time),
        }  # fmt: skip
    except ValueError as error:
        yield problem("profile", f"cluster.limits: {error}", "correct it in the profile")
        return
    for key, value in stated.items():
        most = live.get(key)
        if value is not None and key in live and most is not None and value > most:
            mine, theirs = _shown(key, value), _shown(key, most)
            wrong.append(f"cluster.limits.{key}={mine} is more than {where} gives ({theirs})")
    if wrong:
        yield warning("profile", "; ".join(wrong), "lower them in the profile, or leave them out")
    else:
        known = [key for key, value in stated.items() if value is not None]
        told = f"its limits ({', '.join(known)}) agree with" if known else "it states no limits of its own; those of"
        yield ok("profile", f"cluster={cluster.name}: {told} {where}" + ("" if known else " count"))


def _shown(key: str, value: int) -> str:
    if key == "mem_per_node":
        return format_size(value)
    return format_time(value) if key == "time" else str(value)


def queues(cluster: Cluster, found: Sequence[Queue]) -> Iterator[Finding]:
    """Each queue with its limits, and the profile against the one that it uses."""
    names = {each.name: each for each in found}
    wanted = (cluster.queue or "").partition("@")[0] or next((each.name for each in found if each.default), None)
    for each in found[:SHOWN]:
        marks = [word for word, is_so in (
            ("default", each.default), ("this profile's", each.name == wanted), ("takes no jobs", not each.accepts),
            ("routes to others", each.routes), ("stopped: its jobs wait", not each.started),
            (f"for some {' and '.join(each.only)} only", bool(each.only)),
        ) if is_so]  # fmt: skip
        yield ok("queue", f"{each.name}{_in_brackets(marks)}: {_queue(each)}")
    if len(found) > SHOWN:
        yield ok("queue", f"... and {len(found) - SHOWN} more (qstat -Q)")
    if wanted is None:
        yield ok("profile", "cluster.queue is not set and the server has no default: its own rules choose")
    elif wanted not in names:
        yield problem(
            "profile", f"cluster.queue={wanted}: there is no such queue.{near(wanted, names)}",
            f"set cluster.queue to one of {', '.join(names)}",
        )  # fmt: skip
    elif not names[wanted].accepts:
        yield problem("profile", f"queue {wanted} takes no jobs now", "set cluster.queue to another one, or wait")
    elif not names[wanted].started:
        yield warning(
            "profile", f"queue {wanted} is stopped: its jobs wait", "set cluster.queue to another one, or wait"
        )
    else:
        used = names[wanted]
        yield from profile(cluster, {"nodes": used.nodes, "time": used.time}, f"queue {wanted}")


def _queue(each: Queue) -> str:
    limits = [
        f"{value} {what}" for what, value in (
            ("nodes", each.nodes), ("CPUs", each.cpus), ("GPUs", each.gpus),
            ("memory", None if each.mem is None else format_size(each.mem)),
        ) if value is not None
    ]  # fmt: skip
    most = f"a job gets at most {', '.join(limits)}" if limits else "no limits of a job"
    return f"{most}; up to {'any time' if each.time is None else format_hours(each.time)}"


def accounting(answer: Answer) -> Finding:
    """Whether sacct works. The launcher does without, and knows less of jobs that ended badly."""
    if answer.error:
        return ok("accounting", f"not there, which the launcher does without ({_short(answer.error)})")
    return ok("accounting", f"sacct answered in {answer.took * 1000:.0f} ms")


def history(value: str) -> Finding:
    """Whether PBS remembers jobs that are over (job_history_enable)."""
    if value == "True":
        return ok("history", "PBS remembers jobs that are over (job_history_enable)")
    return ok("history", "PBS forgets jobs when they are over (job_history_enable), which the launcher does without")


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 120 else f"{line[:117]}..."


# -- asking


def probe(cluster: Cluster, timeout: float) -> Iterator[Finding]:
    """All of the profile's scheduler, command by command."""
    slurm = shutil.which("sbatch")
    yield from which(slurm, detect(), cluster.scheduler)
    if cluster.scheduler is Scheduler.slurm and slurm:
        yield from _probe_slurm(cluster, Slurm(timeout))
    elif cluster.scheduler is Scheduler.pbs and detect().kind is Kind.PBS:
        yield from _probe_pbs(cluster, PBS(timeout))


def timed(ask: Callable[[], str]) -> Answer:
    began = time.monotonic()
    try:
        text = ask()
    except QueryError as error:
        return Answer(error=str(error))
    return Answer(text, time.monotonic() - began)


def _probe_slurm(cluster: Cluster, slurm: Slurm) -> Iterator[Finding]:
    version = timed(lambda: slurm_version(slurm))
    answer = timed(lambda: slurm.run("squeue", "--me", "--noheader", "--format=%i"))
    yield from reachable("Slurm", version.text, answer)
    if answer.error:
        return
    try:
        yield from partitions(cluster, slurm.partitions())
    except QueryError as error:
        yield problem("partition", str(error), "try `sinfo`")
    yield accounting(
        timed(lambda: slurm.run("sacct", "--noheader", "--allocations", "--starttime=now", "--format=JobID"))
    )


def _probe_pbs(cluster: Cluster, pbs: PBS) -> Iterator[Finding]:
    answer = timed(lambda: pbs.run("qstat", "-B", "-f", "-F", "json"))
    yield from reachable("PBS", detect().version, answer)
    if answer.error:
        return
    try:
        server: dict[str, Any] = next(iter(section(answer.text, "Server").values()), {})
        yield from queues(cluster, pbs.queues())
        yield history(str(server.get("job_history_enable", "False")))
    except QueryError as error:
        yield problem("queue", str(error), "try `qstat -Qf`")
