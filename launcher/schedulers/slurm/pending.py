"""Why a Slurm job is pending."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import re
import time
from collections.abc import Sequence
from dataclasses import replace

from launcher.formatting import format_time, plural
from launcher.plan.plan import JobPlan, settings_of
from launcher.schedulers.base import JobState, QueryError
from launcher.schedulers.pending import (
    CLEARLY,
    Answers,
    Explanation,
    Option,
    PendingFacts,
    Reason,
    Waiting,
    Why,
    commands,
    explained,
    find_reason,
    may_offer_fewer_nodes,
    sooner,
)
from launcher.schedulers.registry import job_environment
from launcher.schedulers.slurm import script
from launcher.schedulers.slurm.client import STATES, NodeCounts, Pending, Reservation, Slurm
from launcher.schedulers.slurm.limits import Partition, Qos, partition_records, qos_of
from launcher.schedulers.slurm.settings import SlurmSettings
from launcher.structs import Struct

# -- Explains Slurm's reason codes of pending jobs
# The codes are those of slurm.schedmd.com/job_reason_codes.html and of job_state_reason.c (20.11 to 26.05). Codes of
# limits consist of a scope, a resource and a unit, which a pattern separates.


_HELD = "`scontrol release {job}` lets it go on"
_LOOK = "the end of its log may tell why (launcher logs RUN); "
# Patterns that match a whole reason; the first match applies.
TABLE: tuple[tuple[str, Reason], ...] = (
    (r"None|", Reason(Why.ROOM, "Slurm has not looked at it yet", "ask again in a minute")),
    (r"Resources", Reason(Why.ROOM, "it is among the first in the queue; the nodes it asks for are in use")),
    (r"Priority", Reason(Why.ROOM, "jobs of higher priority are in front of it in the queue",
     "`sprio -l -j {job}` tells what its priority is made of; a smaller or shorter job may fit into a gap before "
     "them")),
    (r"Dependency", Reason(Why.WAITS, "it waits for other jobs",
     "it starts by itself when they have ended and its dependency is satisfied")),
    (r"DependencyNeverSatisfied", Reason(Why.HELD, "it waits for a job that has ended otherwise than it wants",
     "cancel it, and resume it without the dependency", never=True)),
    (r"BeginTime", Reason(Why.WAITS,
     "it was asked to begin later (--begin), or Slurm lets some time pass after a requeue",
     "`scontrol update JobId={job} StartTime=now` begins now")),
    (r"JobArrayTaskLimit", Reason(Why.THROTTLED, "as many elements of its array run as may run at once",
     "it starts when one of them ends")),
    (r"JobHeldUser", Reason(Why.HELD, "it is held by you, or by a coordinator of your account", _HELD)),
    (r"JobHeldAdmin", Reason(Why.HELD, "it is held by an administrator, or its priority is 0",
     "ask the site's support")),
    (r"JobHoldMaxRequeue", Reason(Why.HELD, "it was requeued more often than the site allows (MAX_BATCH_REQUEUE)",
     _LOOK + _HELD)),
    (r"(job )?requeued in held state", Reason(Why.HELD, "it was requeued and held", _HELD)),
    (r"(user env retrieval|launch) failed requeued held|JobLaunchFailure|launch_failed_requeued_held", Reason(Why.HELD,
     "a node could not start it, so it was requeued and is held: a broken node, prolog or file system",
     "`scontrol show job {job}` and the site's support know the node; " + _HELD)),
    (r"Reservation", Reason(Why.RESERVATION, "it waits for the reservation that it asks for to begin",
     "without cluster.reservation it may start now")),
    (r"ReservationDeleted|Reservation .* was deleted", Reason(Why.RESERVATION,
     "the reservation that it asks for is gone", "cancel it, and resume it with cluster.reservation=null", never=True)),
    (r"ReservationInvalid|Reservation .* is invalid", Reason(Why.HELD,
     "the reservation that it asks for cannot be used by it any more, so it is held",
     "cancel it, and resume it with cluster.reservation=null")),
    (r"ReqNodeNotAvail, ?Reserved for maintenance", Reason(Why.NODES, "its time would reach into a maintenance window",
     "a shorter time may end before it")),
    (r"ReqNodeNotAvail, ?May be reserved for other job", Reason(Why.NODES,
     "nodes that it could use may be reserved for another job, or for maintenance")),
    (r"ReqNodeNotAvail, ?UnavailableNodes:(?P<what>.*)", Reason(Why.NODES,
     "nodes that it needs are down, drained or do not answer: {what}", "see the nodes below")),
    (r"ReqNodeNotAvail.*", Reason(Why.NODES, "a node that it needs is in use, reserved, down or drained")),
    (r"Nodes required for job are DOWN, DRAINED.*", Reason(Why.NODES,
     "too few nodes are left that could run it: the others are down, drained, or reserved for partitions of higher "
     "priority")),
    (r"NodeDown", Reason(Why.NODES, "a node that it needs is down")),
    (r"BadConstraints", Reason(Why.NODES,
     "no nodes of the partition have the features, GPUs, memory or CPUs that it asks for",
     "compare with `sinfo -N -o '%N %f %G %c %m'`", never=True)),
    (r"Constraints", Reason(Why.NODES, "no nodes satisfy its constraints at this time")),
    (r"PartitionTimeLimit", Reason(Why.PARTITION, "its time is more than the partition allows",
     "cancel it, and resume it with less time, or in another partition", never=True)),
    (r"PartitionNodeLimit", Reason(Why.PARTITION,
     "it asks for more nodes than the partition gives a job (or less than it must), or too many nodes are down",
     "cancel it, and resume it with another number of nodes")),
    (r"PartitionDown", Reason(Why.PARTITION, "its partition takes jobs and starts none (state DOWN)",
     "wait until the site opens it again, or use another partition")),
    (r"PartitionInactive", Reason(Why.PARTITION, "its partition is inactive and starts no jobs",
     "wait until the site opens it again, or use another partition")),
    (r"PartitionConfig", Reason(Why.PARTITION, "it violates a limit of the partition")),
    (r"AccountNotAllowed|Job's account not permitted to use this partition.*", Reason(Why.PARTITION,
     "its account may not use this partition", "set cluster.account, or use another partition")),
    (r"Job's QOS not permitted to use this partition.*|QOSNotAllowed", Reason(Why.PARTITION,
     "its QOS is not allowed for this account or partition",
     "set cluster.qos: `sacctmgr show assoc user=$USER format=account,partition,qos` lists yours")),
    (r"InvalidAccount", Reason(Why.HELD, "its account does not exist, or is not yours",
     "set cluster.account: `sacctmgr show assoc user=$USER format=account,partition,qos` lists yours")),
    (r"InvalidQOS", Reason(Why.HELD, "its QOS does not exist, or is not yours",
     "set cluster.qos: `sacctmgr show assoc user=$USER format=account,partition,qos` lists yours")),
    (r"Licenses", Reason(Why.WAITS, "it waits for a licence", "`scontrol show licenses` shows how many are free")),
    (r"MaxMemPerLimit", Reason(Why.HELD, "it asks for more memory per CPU or node than the site allows",
     "cancel it, and resume it with less mem")),
    (r"QOSUsageThreshold", Reason(Why.LIMIT, "its account has used so much that this QOS is closed to it",
     "use another QOS (cluster.qos), or wait until the use has decayed")),
    (r"DeadLine", Reason(Why.HELD, "it cannot end before the deadline that it was given", "cancel it, and resume it")),
    (r"Prolog", Reason(Why.WAITS, "the site's prolog prepares its nodes", "it starts by itself", of_nodes=True)),
    (r"Cleaning", Reason(Why.WAITS, "its last attempt is still being cleaned up", "it starts by itself")),
    (r"SchedDefer", Reason(Why.WAITS, "the site puts off all jobs until the next round of its scheduler")),
    (r"FedJobLock", Reason(Why.WAITS, "the clusters of a federation agree on where it starts")),
    (r"BurstBuffer(Resources|StageIn|Operation).*", Reason(Why.WAITS, "it waits for the burst buffer")),
    (r"MaxPoweredUpNodes", Reason(Why.WAITS, "the site lets no more nodes be powered up at a time (max_powered_nodes)",
     "it starts when others are powered down, or fewer nodes do", of_nodes=True)),
    (r"MpiPortsBusy", Reason(Why.WAITS, "all ports that the site keeps for MPI are taken on its nodes (MpiParams)",
     "it starts when another job gives some back", of_nodes=True)),
    (r"NvidiaImexChannels", Reason(Why.WAITS, "all channels for memory shared between nodes (NVIDIA IMEX) are taken",
     "it starts when another job gives one back", of_nodes=True)),
    (r"NonZeroExitCode|RaisedSignal|TimeLimit|InactiveLimit|OutOfMemory", Reason(Why.ROOM,
     "Slurm has not looked at it since its last attempt, which ended so", "ask again in a minute")),
    (r"FrontEndDown", Reason(Why.WAITS, "no front-end node is there to start it", "ask the site's support")),
    (r"SystemFailure", Reason(Why.WAITS, "Slurm, a file system or the network has failed", "ask the site's support")),
    (r"AssociationJobLimit", Reason(Why.LIMIT, "your account has reached its number of jobs",
     "it waits for one to end")),
    (r"AssociationResourceLimit|AccountingPolicy", Reason(Why.LIMIT, "your account has reached one of its limits")),
    (r"AssociationTimeLimit", Reason(Why.LIMIT, "your account has used up its time")),
    (r"QOSJobLimit", Reason(Why.LIMIT, "its QOS has reached its number of jobs", "it waits for one to end")),
    (r"QOSResourceLimit", Reason(Why.LIMIT, "its QOS has reached one of its limits")),
    (r"QOSTimeLimit", Reason(Why.LIMIT, "its QOS has used up its time")),
)  # fmt: skip
NEVER = ", so it will never start"

_LIMIT = re.compile(
    r"(?P<scope>Assoc|QOS|(?=Max\w+Per(Account|User)))(?P<how>Grp|Max|Min)"
    r"(?P<what>BB|Billing|CPU|Cpu|Energy|GRES|Jobs?|License|Memory|Mem|Node|SubmitJobs?|Unknown|Wall(Duration)?)"
    r"(?P<run>Run)?(?P<minutes>Min(ute)?s)?(?P<per>PerJob|PerNode|PerUser|PerAccount)?(Limit|NotSatisfied)?"
)
_RESOURCES = {
    **{"BB": "burst buffer", "Billing": "billing units", "CPU": "CPUs", "Cpu": "CPUs", "Energy": "energy"},
    **{"GRES": "GPUs (or other GRES)", "Job": "jobs", "Jobs": "jobs", "License": "licences", "Mem": "memory"},
    **{"Memory": "memory", "Node": "nodes", "SubmitJob": "submitted jobs", "SubmitJobs": "submitted jobs"},
    **{"Unknown": "a resource", "Wall": "wall time", "WallDuration": "wall time"},
}  # fmt: skip


def in_words(code: str) -> Reason:
    """Explains a reason code of squeue (`ReqNodeNotAvail, UnavailableNodes:n1`) or scontrol, or quotes it."""
    plain = code.replace("_", " ").strip().removeprefix("(").removesuffix(")")
    if reason := find_reason(TABLE, plain):
        return replace(reason, words=reason.words + (NEVER if reason.never else ""))
    if limit := _LIMIT.fullmatch(code):
        return _limit(limit)
    return Reason(Why.UNKNOWN, f"Slurm says {plain}", "`man squeue` (JOB REASON CODES) or the site's support knows it")


def _limit(found: re.Match[str]) -> Reason:
    scope, how, per = found["scope"] or "QOS", found["how"], found["per"] or ""
    what = _RESOURCES[found["what"]]
    if found["minutes"]:
        what = f"minutes of {what}" + (" of running jobs" if found["run"] else "")
    whose = "your account (association)" if scope == "Assoc" else "its QOS"
    scope = "association" if scope == "Assoc" else "qos"
    reason = functools.partial(Reason, Why.LIMIT, column=_column(found), scope=scope)
    if how == "Min":
        return reason(f"it asks for less than {whose} wants at least: {what}", "cancel it, and resume it with more")
    if how == "Grp":
        words = f"all jobs of {whose} together have reached their limit of {what}"
        do = "it starts when enough of them have ended; a smaller one may fit"
        if found["minutes"] and not found["run"]:
            do = "wait until the use has decayed, or use another account or QOS"
        return reason(words, do)
    if per == "PerUser" or (found["what"] in ("Job", "Jobs", "SubmitJob", "SubmitJobs") and per == ""):
        words = f"your jobs have reached the limit of {what} that {whose} gives one user"
        return reason(words, "it starts when enough of them have ended")
    if per == "PerAccount":
        words = f"the jobs of your account have reached the limit of {what} that {whose} gives one account"
        return reason(words, "it starts when enough of them have ended")
    where = " on one node" if per == "PerNode" else ""
    words = f"it asks for more {what}{where} than {whose} gives one job{NEVER}"
    return reason(words, "cancel it, and resume it with less", never=True)


def _column(found: re.Match[str]) -> str:
    # Returns the sacctmgr column of a limit's value (man sacctmgr, SPECIFICATIONS FOR ASSOCIATIONS and QOS)
    how, what, per = found["how"], found["what"], found["per"] or ""
    group = f"{'Grp' if how == 'Grp' else 'Max'}"
    user = {"PerUser": "PU", "PerAccount": "PA"}.get(per, "PU" if found["scope"] == "QOS" and how == "Max" else "")
    if what in ("Job", "Jobs"):
        return f"{group}Jobs{user}"
    if what in ("SubmitJob", "SubmitJobs"):
        return f"{group}Submit{user}"
    if what in ("Wall", "WallDuration"):
        return f"{group}Wall"
    if how == "Min":
        return "MinTRES"
    if found["minutes"]:
        return f"{group}TRES{'Run' if found['run'] else ''}Mins{user if per in ('PerUser', 'PerAccount') else ''}"
    if per == "PerNode":
        return "MaxTRESPerNode"
    return f"{group}TRES" + ({"PerUser": "PU", "PerAccount": "PA"}.get(per, ""))


TRIED = (Why.ROOM, Why.PARTITION, Why.NODES, Why.RESERVATION)  # reasons for which changes of the run are tried
OVERLOOKED = 300.0  # seconds without a reason after which this is reported itself: Slurm schedules every minute
TRIALS = 16.0  # seconds since the first query after which no further trial is started


def explain(waiting: Waiting, slurm: Slurm) -> Explanation:
    """Explains why a pending job does not start, and tries changes; raises QueryError for the job's own query."""
    began, queries = time.monotonic(), Answers()
    plan, job_id = waiting.plan, waiting.job
    job = slurm.pending(job_id)
    now = time.time()
    reason = reason_of(job, now)
    if STATES.get(job.state) is not JobState.PENDING or job.state == "CONFIGURING":  # the job has its nodes already
        return Explanation(
            waiting.run,
            job.state.lower(),
            Why.ALLOCATED,
            job_id,
            facts=PendingFacts(scheduler="Slurm", job_state=job.state),
        )
    partitions: list[Partition] = []
    nodes: list[NodeCounts] = []
    windows: list[Reservation] = []
    if reason.kind not in (Why.WAITS, Why.THROTTLED):
        partitions = queries.get(lambda: partition_records(slurm), partitions)
    if reason.kind not in (Why.WAITS, Why.THROTTLED, Why.HELD) or reason.of_nodes:
        nodes = queries.get(slurm.nodes, nodes)
    if reason.kind in (Why.NODES, Why.RESERVATION):
        windows = queries.get(slurm.reservations, [])
    partitions = _lifted(job, plan, partitions, slurm, queries)
    limits = limits_of(job, plan, reason, partitions, windows, now)
    if reason.column:
        value = _value(job, reason, partitions, slurm, queries)
        limits += (value,) if value else ()
    tried: tuple[Option, ...] = ()
    if reason.kind in TRIED and job.state == "PENDING":
        found = changes(plan, job, partitions, nodes, windows, now=now, fixed_nodes=waiting.fixed_nodes)
        if reason.kind is Why.RESERVATION:  # no other change helps
            found = [each for each in found if each.overrides == ("cluster.reservation=null",)]
        tried = _trials(plan, found[: waiting.most], slurm, queries, began + TRIALS)
        tried = corrected(tried, job, partitions, windows, now)
        if reason.never and tried:
            tried = (replace(tried[0], starts=None, note="never"), *tried[1:])
    better = sooner(tried, now)
    if tried:
        queries.notes.append("estimates of changes are trials (sbatch --test-only), which know the queue only roughly")
    return replace(
        explained(waiting, reason, job_id),
        code=job.reason.replace("_", " "),
        starts=job.starts if job.starts and job.starts > now - 60 else None,
        limits=limits,
        nodes=node_lines(_mine(job, nodes), job.partition, job.features) if nodes else (),
        options=better,
        tried=tried,
        commands=commands(waiting, better),
        notes=tuple(queries.notes),
    )


def _lifted(
    job: Pending, plan: JobPlan, partitions: list[Partition], slurm: Slurm, queries: Answers
) -> list[Partition]:
    wanted = job.time if job.time is not None else plan.time
    exceeded = any(
        (each.time is not None and wanted > each.time) or (each.max_nodes is not None and job.nodes > each.max_nodes)
        for each in partitions
        if each.name in job.partition.split(",")
    )
    if not exceeded or not job.qos:
        return partitions
    unknown: list[Qos] = []
    for qos in queries.get(lambda: qos_of(slurm, job.qos, job.account), unknown):
        partitions = [qos.within(each) for each in partitions]
    return partitions


def reason_of(job: Pending, now: float) -> Reason:
    """Explains the pending reason, or that Slurm has given none for OVERLOOKED seconds."""
    since = max(job.submitted or now, job.eligible or 0.0)
    if job.reason or now - since < OVERLOOKED:
        return in_words(job.reason)
    return Reason(
        Why.ROOM,
        f"Slurm has given no reason since {clock(since)}: its queue is long, or there is no such account"
        f"{f' ({job.account})' if job.account else ''} or QOS",
        "if other jobs start meanwhile, cancel it and resume it with another cluster.account or cluster.qos (null: "
        "your default); slurmctld's log, which the site's support can read, names the reason",
    )


def _value(job: Pending, reason: Reason, partitions: Sequence[Partition], slurm: Slurm, queries: Answers) -> str:
    # A QOS limit is looked for in the job's QOS, then in its partitions' QOS; any other limit in the job's account
    owners = [job.account]
    if reason.scope == "qos":
        owners = [job.qos, *(each.qos for each in partitions if each.name in job.partition.split(","))]
    for owner in dict.fromkeys(filter(None, owners)):
        value = queries.get(functools.partial(slurm.limit, reason.scope, owner, reason.column), "")
        if value:
            return value
    queries.notes.append(f"the value of the limit ({reason.column}) is not to be seen with sacctmgr")
    return ""


def _mine(job: Pending, nodes: Sequence[NodeCounts]) -> list[NodeCounts]:
    # Nodes in several partitions are listed once
    found: dict[tuple[str, str], NodeCounts] = {}
    for each in usable(nodes, job.partition.split(","), job.features):
        found.setdefault((each.names, each.state), each)
    return [*found.values()]


def limits_of(
    job: Pending,
    plan: JobPlan,
    reason: Reason,
    partitions: Sequence[Partition],
    windows: Sequence[Reservation],
    now: float,
) -> tuple[str, ...]:
    found = []
    mine = [each for each in partitions if each.name in job.partition.split(",")]
    wanted = job.time if job.time is not None else plan.time
    for each in mine:
        where, asks = f"partition {each.name}", f"and it asks for {job.nodes}"
        if each.state != "UP":
            found.append(f"{where}: State={each.state}")
        if each.time is not None and wanted > each.time:
            found.append(f"{where}: MaxTime={format_time(each.time)}, and it asks for {format_time(wanted)}")
        if each.max_nodes is not None and job.nodes > each.max_nodes:
            found.append(f"{where}: MaxNodes={each.max_nodes}, {asks}")
        if job.nodes < each.min_nodes:
            found.append(f"{where}: MinNodes={each.min_nodes}, {asks}")
        if job.nodes > each.total:
            found.append(f"{where}: {plural(each.total, 'node')}, {asks}")
        if each.accounts and job.account not in each.accounts:
            found.append(f"{where}: AllowAccounts={','.join(each.accounts)}, its account is {job.account}")
    for window in windows:
        in_its_way = (window.starts or 0) < now + wanted and (window.ends or 0) > now
        if window.name != job.reservation and (reason.kind is Why.RESERVATION or not in_its_way):
            continue
        kind = "maintenance" if window.maintenance else "reservation"
        who = f" for {window.who}" if window.who else ""
        found.append(
            f"{kind} {window.name}{who}: {clock(window.starts)} to {clock(window.ends)} on {window.nodes or '-'}"
        )
    if job.reason.startswith("Dependency") and job.dependency:
        found.append(f"dependency: {job.dependency}")
    if job.throttle and reason.kind is Why.THROTTLED:
        found.append(f"its array: {job.throttle} at once (ArrayTaskThrottle, sweep.parallelism)")
    if job.reason == "BeginTime" and job.eligible:
        found.append(f"not before {clock(job.eligible)}")
    return tuple(found)


def corrected(
    tried: Sequence[Option], job: Pending, partitions: Sequence[Partition], windows: Sequence[Reservation], now: float
) -> tuple[Option, ...]:
    """Corrects the start estimates of trials (`sbatch --test-only`), which count the pending job as a competitor.

    For each job in front, Slurm adds that job's share of the whole partition: CPUs x time / all CPUs (job_scheduler.c,
    _delayed_job_start_time). The pending job would be replaced, so its share is subtracted. The unchanged run gets the
    start that Slurm has planned for the pending job, if there is one.
    """
    mine = next((each for each in partitions if each.name == job.partition), None)
    own = 0.0
    if mine is not None and mine.cpus and mine.total and job.time:
        cpus = max(job.cpus, job.nodes * max(mine.cpus // mine.total, 1))
        own = cpus * job.time / mine.cpus
    found = []
    for each in tried:
        starts, elsewhere = each.starts, any("partition=" in word for word in each.overrides)
        if starts is not None and starts > now + CLEARLY and not elsewhere:
            # A trial may have waited for the end of a reservation: it cannot start before that.
            ends = [each.ends for each in windows if each.ends is not None and starts - own < each.ends <= starts]
            starts = max(starts - own, now, *ends)
        if not each.overrides and job.starts is not None and job.starts > now - CLEARLY:
            starts = job.starts
        found.append(replace(each, starts=starts))
    return tuple(found)


def clock(moment: float | None) -> str:
    """Formats a time (seconds since the epoch) as `Sat 21 Nov 21:10:00` in local time; `-` for None."""
    return "-" if moment is None else time.strftime("%a %d %b %H:%M:%S", time.localtime(moment))


def _trials(
    plan: JobPlan, changes: Sequence[Change], slurm: Slurm, queries: Answers, until: float
) -> tuple[Option, ...]:
    # No further trial starts after `until` (monotonic clock) or a failed query
    found: list[Option] = []
    environment = job_environment(os.environ, plan).environment
    for change in (Change((), plan), *changes):
        if queries.timed_out:
            break
        if time.monotonic() > until:
            queries.notes.append("Slurm is slow: not all changes were tried")
            break
        try:
            trial = slurm.trial(arguments(change.plan), environment)
        except QueryError as error:
            queries.notes.append(f"not answered: {error}")
            break
        found.append(Option(change.overrides, trial.starts, change.note if trial.starts else trial.words))
    return tuple(found)


# -- `why`: changes with which a pending Slurm run may start sooner, and the nodes that it could use


MOST = 4  # maximum number of changes to try; each is a query
SHORTEST = 120  # minimum wall time in seconds to suggest
BROKEN = ("down", "drain", "fail", "error", "unknown", "maint", "reboot", "power")


class Change(Struct):
    overrides: tuple[str, ...]  # config overrides for `resume` (`nodes=2`)
    plan: JobPlan  # the plan with the change
    note: str = ""  # disadvantage of the change


def base_state(state: str) -> str:
    """Returns a node state without sinfo's suffix: `down` for `down*`, `idle` for `idle~`."""
    return state.rstrip("*~#!%$@^-+")


def usable(nodes: Sequence[NodeCounts], partitions: Sequence[str], constraint: str) -> list[NodeCounts]:
    """Returns the nodes of these partitions with a constraint's features; it knows the operators `&` and `,`."""
    wanted = set(re.split(r"[&,]", constraint)) if re.fullmatch(r"[\w.&,-]+", constraint) else set()
    return [each for each in nodes if each.partition in partitions and wanted <= set(each.features)]


def count(nodes: Sequence[NodeCounts]) -> dict[str, int]:
    found: dict[str, int] = {}
    for each in nodes:
        state = base_state(each.state)
        found[state] = found.get(state, 0) + each.count
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def idle(nodes: Sequence[NodeCounts]) -> int:
    """Returns the number of idle nodes, including those that Slurm plans to give to another job."""
    return sum(each.count for each in nodes if base_state(each.state) in ("idle", "planned"))


def node_lines(nodes: Sequence[NodeCounts], partition: str, constraint: str) -> tuple[str, ...]:
    """Returns a summary line, `partition gpu: 4 nodes: 2 allocated, 1 idle, 1 drained`, and lines for broken nodes."""
    with_features = f" with {constraint}" if constraint else ""
    if not nodes:
        return (f"partition {partition} has no nodes{with_features}",)
    states = count(nodes)
    counts = ", ".join(f"{number} {state}" for state, number in states.items())
    total = sum(states.values())
    lines = [f"partition {partition}: {total} node{'' if total == 1 else 's'}{with_features}: {counts}"]
    for each in nodes:
        if base_state(each.state).startswith(BROKEN):
            why = f": {each.reason}" if each.reason else ""
            lines.append(f"{each.names} {'is' if each.count == 1 else 'are'} {base_state(each.state)}{why}")
    return tuple(lines)


def changes(
    plan: JobPlan,
    job: Pending,
    partitions: Sequence[Partition],
    nodes: Sequence[NodeCounts],
    reservations: Sequence[Reservation],
    *,
    now: float,
    fixed_nodes: bool = False,
) -> list[Change]:
    """Returns the changes to try, at most MOST, the smallest change first.

    | change | tried if |
    |---|---|
    | no exclude, no constraint, no reservation | the run has one |
    | less time | the run would overlap with a reservation, or exceeds the time limit of its partition |
    | another partition | the user may use it, and it accepts the run; those with most idle nodes first |
    | as many nodes as are idle; half the nodes; min_nodes | fewer than now, and min_nodes and the workload allow it |
    | a partition of a higher tier | as for another partition |
    | half the time | no other shorter time is tried |

    A change with a time or number of nodes that its partition does not accept is not tried.

    reservations: reservations of the site; empty if they were not queried.
    now: current time in seconds since the epoch.
    fixed_nodes: whether the user has set min_nodes, so that fewer nodes are not suggested.
    """
    mine = job.partition.split(",")
    shorter = _shorter(plan, job, partitions, reservations, now)
    cheap, expensive = _other_partitions(plan, job, partitions, nodes)
    smaller = _smaller(plan, idle(usable(nodes, mine, settings_of(plan, SlurmSettings).constraint or "")), fixed_nodes)
    half = [] if shorter or plan.time // 2 < SHORTEST else [_in_time(plan, plan.time // 2, "half the time")]
    # A trial may accept what exceeds the limits of its partition (EnforcePartLimits=NO); the job would never start.
    kinds = [
        [each for each in found if _allowed(each.plan, mine, partitions)]
        for found in (_without(plan), shorter, cheap, smaller, expensive, half)
    ]
    # One change of each kind comes before a second one of any kind.
    picked = [(kind, each) for turn in (0, 1) for kind, found in enumerate(kinds) for each in found[turn : turn + 1]]
    picked = sorted(picked[: MOST - bool(reservations)], key=lambda pair: (pair[0], -pair[1].plan.nodes))
    return [change for _, change in picked]


def _allowed(plan: JobPlan, mine: Sequence[str], partitions: Sequence[Partition]) -> bool:
    partition = settings_of(plan, SlurmSettings).partition
    names = partition.split(",") if partition else mine
    there = [each for each in partitions if each.name in names]
    return not there or any(
        (each.time is None or plan.time <= each.time)
        and each.min_nodes <= plan.nodes
        and (each.max_nodes is None or plan.nodes <= each.max_nodes)
        for each in there
    )


def arguments(plan: JobPlan) -> list[str]:
    """Returns a plan's options for `sbatch --test-only`: those of its script without output, comment and array."""
    options = script.directives(plan, "trial")
    left_out = ("output", "error", "open-mode", "comment", "array")
    return [
        f"--{name}" if value is True else f"--{name}={value}"
        for name, value in options.items()
        if name not in left_out
    ]  # fmt: skip


def _with(plan: JobPlan, key: str, value: str | None) -> JobPlan:
    settings = {**plan.cluster.settings, key: value}
    return dataclasses.replace(plan, cluster=dataclasses.replace(plan.cluster, settings=settings))


def _without(plan: JobPlan) -> list[Change]:
    settings = settings_of(plan, SlurmSettings)
    notes = {
        "exclude": f"on any node, {settings.exclude} too",
        "constraint": f"on nodes without {settings.constraint}",
        "reservation": f"outside of the reservation {settings.reservation}",
    }
    return [
        Change((f"cluster.{key}=null",), _with(plan, key, None), note)
        for key, note in notes.items()
        if getattr(settings, key)
    ]


def _shorter(
    plan: JobPlan, job: Pending, partitions: Sequence[Partition], reservations: Sequence[Reservation], now: float
) -> list[Change]:
    names = job.partition.split(",")
    most = [each.time for each in partitions if each.name in names and each.time is not None]
    if most and len(most) == len(names) and plan.time > max(most):
        return [_in_time(plan, max(most), "what the partition allows")]
    own = settings_of(plan, SlurmSettings).reservation
    coming = [
        each.starts for each in reservations
        if each.starts is not None and now < each.starts < now + plan.time and each.name != own
    ]  # fmt: skip
    if not coming:
        return []
    left = int(min(coming) - now) - 60  # a minute for scheduling; time limits are whole minutes
    return [_in_time(plan, left - left % 60, "it ends before the reservation begins")] if left >= SHORTEST else []


def _in_time(plan: JobPlan, seconds: int, note: str) -> Change:
    lead = min(plan.resume.lead, max(seconds // 20, 10))
    return Change(
        (f"time={format_time(seconds)}",),
        dataclasses.replace(plan, time=seconds, resume=dataclasses.replace(plan.resume, lead=lead)),
        note,
    )


def _other_partitions(
    plan: JobPlan, job: Pending, partitions: Sequence[Partition], nodes: Sequence[NodeCounts]
) -> tuple[list[Change], list[Change]]:
    mine = job.partition.split(",")
    fitting = []
    for each in partitions:
        there = usable(nodes, [each.name], settings_of(plan, SlurmSettings).constraint or "")
        most = min(sum(group.count for group in there), math.inf if each.max_nodes is None else each.max_nodes)
        allowed = not each.accounts or job.account in each.accounts
        if (
            each.name not in mine and each.state == "UP" and not each.root_only
            and allowed and job.account not in each.denied
            and each.min_nodes <= plan.nodes <= most and (each.time is None or plan.time <= each.time)
        ):  # fmt: skip
            fitting.append((idle(there), each))
    fitting.sort(key=lambda pair: -pair[0])
    tier = max((each.tier for each in partitions if each.name in mine), default=0)
    cheap: list[Change] = []
    expensive: list[Change] = []
    for _, each in fitting:
        other = _with(plan, "partition", each.name)
        higher = each.tier > tier
        note = "its priority tier is higher: it may cost more, or preempt" if higher else ""
        (expensive if higher else cheap).append(Change((f"cluster.partition={each.name}",), other, note))
    return cheap, expensive


def _smaller(plan: JobPlan, free: int, fixed: bool) -> list[Change]:
    return [
        Change((f"nodes={n}",), dataclasses.replace(plan, nodes=n, min_nodes=min(plan.min_nodes, n)),
               f"{plural(n * plan.procs_per_node, 'rank')} instead of {plan.world_size}")
        for n in dict.fromkeys((free, plan.nodes // 2, plan.min_nodes)) if may_offer_fewer_nodes(plan, n, fixed=fixed)
    ]  # fmt: skip
