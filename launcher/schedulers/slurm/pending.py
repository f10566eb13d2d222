"""Why a Slurm job is pending."""

from __future__ import annotations

import functools
import os
import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from launcher.fast_dataclasses import Struct
from launcher.formatting import format_time, plural
from launcher.plan.plan import JobPlan, settings_of
from launcher.schedulers import pending
from launcher.schedulers.base import JobState
from launcher.schedulers.pending import Answers, Explanation, Option, Reason, Waiting, Why
from launcher.schedulers.registry import job_environment
from launcher.schedulers.slurm import script
from launcher.schedulers.slurm.client import STATES, NodeCounts, Pending, Reservation, Slurm
from launcher.schedulers.slurm.limits import Partition, Qos, partition_records, qos_of
from launcher.schedulers.slurm.settings import SlurmSettings

# -- Explains Slurm's reason codes of pending jobs
# The codes are those of slurm.schedmd.com/job_reason_codes.html and of job_state_reason.c (20.11 to 26.05). Codes of
# limits consist of a scope, a resource and a unit, which a pattern separates.


_HELD = "`scontrol release {job}` lets it go on"
_ASSOC = "`sacctmgr show assoc user=$USER format=account,partition,qos` lists yours"
_LOOK = "the end of its log may tell why (launcher logs RUN); "
TABLE: tuple[tuple[str, Reason], ...] = (
    (r"None|", Reason(Why.ROOM, "Slurm has not looked at it yet", "ask again in a minute")),
    (r"Resources", Reason(Why.ROOM, "it is among the first in the queue; the nodes it asks for are in use")),
    # IS_TOPO_ERROR in slurm_errno.h of 26.05
    (r"Required nodes (lack available resources|do not fit topology)|No suitable topology unit found.*"
     r"|Insufficient resources in topology unit|No available nodes in topology"
     r"|Weight-based selection .*topology unit|Exceeded maximum node limit during topology allocation", Reason(Why.ROOM,
     "no part of the network (a switch, a block) that it may use has enough free nodes",
     "it starts when one has; with fewer nodes, or without `switches` or `segment` in cluster.directives, it may fit")),
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
     "set cluster.qos: " + _ASSOC)),
    (r"InvalidAccount", Reason(Why.HELD, "its account does not exist, or is not yours",
     "set cluster.account: " + _ASSOC)),
    (r"InvalidQOS", Reason(Why.HELD, "its QOS does not exist, or is not yours", "set cluster.qos: " + _ASSOC)),
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
    r"(?P<what>BB|Billing|CPU|Cpu|Energy|GRES|Job|License|Mem|Node|SubmitJob|Unknown|Wall)(s|ory|Duration)?"
    r"(?P<run>Run)?(?P<minutes>Min(ute)?s)?(?P<per>PerJob|PerNode|PerUser|PerAccount)?(Limit|NotSatisfied)?"
)
_RESOURCES = {
    "BB": "burst buffer", "Billing": "billing units", "CPU": "CPUs", "Cpu": "CPUs", "Energy": "energy",
    "GRES": "GPUs (or other GRES)", "Job": "jobs", "License": "licences", "Mem": "memory", "Node": "nodes",
    "SubmitJob": "submitted jobs", "Unknown": "a resource", "Wall": "wall time",
}  # fmt: skip


def in_words(code: str) -> Reason:
    """Explains a reason code of squeue (`ReqNodeNotAvail, UnavailableNodes:n1`) or scontrol, or quotes it."""
    plain = code.replace("_", " ").strip().removeprefix("(").removesuffix(")")
    if reason := pending.find_reason(TABLE, plain):
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
    one = "account" if per == "PerAccount" else "user"
    if per in ("PerUser", "PerAccount") or (found["what"] in ("Job", "SubmitJob") and not per):
        whom = "the jobs of your account" if one == "account" else "your jobs"
        words = f"{whom} have reached the limit of {what} that {whose} gives one {one}"
        return reason(words, "it starts when enough of them have ended")
    where = " on one node" if per == "PerNode" else ""
    words = f"it asks for more {what}{where} than {whose} gives one job{NEVER}"
    return reason(words, "cancel it, and resume it with less", never=True)


def _column(found: re.Match[str]) -> str:
    # Returns the sacctmgr column of a limit's value (man sacctmgr, SPECIFICATIONS FOR ASSOCIATIONS and QOS)
    how, what, per = found["how"], found["what"], found["per"] or ""
    group = "Grp" if how == "Grp" else "Max"
    user = {"PerUser": "PU", "PerAccount": "PA"}.get(per, "")
    if what in ("Job", "SubmitJob"):
        user = user or ("PU" if found["scope"] == "QOS" and how == "Max" else "")
        return f"{group}{'Jobs' if what == 'Job' else 'Submit'}{user}"
    if what == "Wall":
        return f"{group}Wall"
    if how == "Min":
        return "MinTRES"
    if found["minutes"]:
        return f"{group}TRES{'Run' if found['run'] else ''}Mins{user}"
    return "MaxTRESPerNode" if per == "PerNode" else f"{group}TRES{user}"


TRIED = (Why.ROOM, Why.PARTITION, Why.NODES, Why.RESERVATION)  # reasons for which changes of the run are offered
OVERLOOKED = 300.0  # seconds without a reason after which this is reported itself: Slurm schedules every minute


def explain(waiting: Waiting, slurm: Slurm) -> Explanation:
    """Explains why a pending job does not start, with changes; raises QueryError for the job's own query."""
    queries = Answers()
    plan, job_id = waiting.plan, waiting.job
    job = slurm.pending(job_id)
    now = time.time()
    reason = reason_of(job, now)
    if STATES.get(job.state) is not JobState.PENDING or job.state == "CONFIGURING":  # the job has its nodes already
        facts = pending.PendingFacts(scheduler="Slurm", job_state=job.state)
        return Explanation(waiting.run, job.state.lower(), Why.ALLOCATED, job_id, facts=facts)
    partitions, nodes, windows = list[Partition](), list[NodeCounts](), list[Reservation]()
    if reason.kind not in (Why.WAITS, Why.THROTTLED):
        partitions = queries.get(lambda: partition_records(slurm), partitions)
    if reason.kind not in (Why.WAITS, Why.THROTTLED, Why.HELD) or reason.of_nodes:
        nodes = queries.get(slurm.nodes, nodes)
    if reason.kind in (Why.NODES, Why.RESERVATION):
        windows = queries.get(slurm.reservations, windows)
    wanted = job.time if job.time is not None else plan.time
    mine = [each for each in partitions if each.name in job.partition.split(",")]
    if job.qos and not all(each.takes(max(job.nodes, each.min_nodes), wanted) for each in mine):  # but for MinNodes
        for qos in queries.get(lambda: qos_of(slurm, job.qos, job.account), list[Qos]()):
            partitions = [qos.within(each) for each in partitions]
        mine = [each for each in partitions if each.name in job.partition.split(",")]
    limits = limits_of(job, wanted, reason, mine, windows, now)
    if reason.column:
        values = _values(job, reason, mine, slurm, queries)
        limits, reason = limits + values, alone(job, reason, values)
    found = list[Change]()
    may_start_now = not job.reason and idle(_mine(job, nodes)) >= job.nodes
    if reason.kind in TRIED and job.state == "PENDING" and not may_start_now:
        found = changes(plan, job, partitions, nodes, windows, now=now, fixed_nodes=waiting.fixed_nodes)
        if reason.kind is Why.RESERVATION:  # no other change helps
            found = [each for each in found if each.overrides == ("cluster.reservation=null",)]
    planned = job.starts if job.starts and job.starts > now - 60 else None
    tried = corrected(_tried(waiting, found, slurm, queries), job, partitions, windows, now)
    if tried:
        tried = (Option((), None, "never") if reason.never else Option((), planned), *tried)
    better = pending.sooner(tried, now)
    return replace(
        pending.explained(waiting, reason, job_id),
        code=job.reason.replace("_", " "),
        starts=planned,
        limits=limits,
        nodes=node_lines(_mine(job, nodes), job.partition, job.features) if nodes else (),
        options=better,
        tried=tried,
        commands=pending.commands(waiting, better),
        notes=tuple(queries.notes),
    )


def reason_of(job: Pending, now: float) -> Reason:
    """Explains the pending reason, or that Slurm has given none for OVERLOOKED seconds."""
    since = max(job.submitted or now, job.eligible or 0.0)
    if job.reason or now - since < OVERLOOKED:
        return in_words(job.reason)
    account = f" ({job.account})" if job.account else ""
    return Reason(
        Why.ROOM,
        f"Slurm has given no reason since {clock(since)}: its queue is long, or there is no such account{account} "
        "or QOS",
        "if other jobs start meanwhile, cancel it and resume it with another cluster.account or cluster.qos (null: "
        "your default); slurmctld's log, which the site's support can read, names the reason",
    )


def _values(job: Pending, reason: Reason, mine: Sequence[Partition], slurm: Slurm, queries: Answers) -> tuple[str, ...]:
    # A QOS limit is looked for in the job's QOS, then in its partitions' QOS; any other limit in the job's account
    owners = [job.qos, *(each.qos for each in mine)] if reason.scope == "qos" else [job.account]
    asked = (functools.partial(slurm.limit, reason.scope, each, reason.column) for each in filter(None, owners))
    if found := tuple(dict.fromkeys(value for each in asked if (value := queries.get(each, "")))):
        return found
    queries.notes.append(f"the value of the limit ({reason.column}) is not to be seen with sacctmgr")
    return ()


def alone(job: Pending, reason: Reason, values: Sequence[str]) -> Reason:
    """Returns the reason; says if the job by itself exceeds the limit, which Slurm only waits for (no DenyOnLimit).

    Of several values the largest counts: which QOS is the one that limits depends on flags (OverPartQOS). What a group
    has used (GrpTRESMins) decays, so that the job may start.
    """
    decays = reason.column.startswith("Grp") and "Mins" in reason.column and "Run" not in reason.column
    asks = {"node": job.nodes, "cpu": job.cpus}
    times = (job.time or 0) / 60 if "Mins" in reason.column else 1
    most = dict[str, int]()
    for what, limit in re.findall(r"\b(node|cpu)=(\d+)", " ".join(values)):
        most[what] = max(int(limit), most.get(what, 0))
    fits = all(asks[what] * times <= limit for what, limit in most.items())
    if reason.never or decays or fits or reason.column == "MinTRES":
        return reason
    words = f"{reason.words}, and it alone asks for more{NEVER}"
    return replace(reason, words=words, do="cancel it, and resume it with less", never=True)


def _mine(job: Pending, nodes: Sequence[NodeCounts]) -> list[NodeCounts]:
    found: dict[tuple[str, str], NodeCounts] = {}
    for each in usable(nodes, job.partition.split(","), job.features):
        found.setdefault((each.names, each.state), each)
    return [*found.values()]


def limits_of(
    job: Pending, wanted: int, reason: Reason, mine: Sequence[Partition], windows: Sequence[Reservation], now: float
) -> tuple[str, ...]:
    """Returns what stands in the way of a job in these partitions that asks for `wanted` seconds."""
    found = []
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
        if window.name == job.reservation or (reason.kind is not Why.RESERVATION and in_its_way):
            kind = "maintenance" if window.maintenance else "reservation"
            who, span = f" for {window.who}" if window.who else "", f"{clock(window.starts)} to {clock(window.ends)}"
            found.append(f"{kind} {window.name}{who}: {span} on {window.nodes or '-'}")
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

    Slurm adds its share of the whole partition: CPUs x time / all CPUs (job_scheduler.c, _delayed_job_start_time).
    """
    mine = next((each for each in partitions if each.name == job.partition), None)
    own = 0.0
    if mine is not None and mine.cpus and mine.total and job.time:
        cpus = max(job.cpus, job.nodes * max(mine.cpus // mine.total, 1))
        own = cpus * job.time / mine.cpus
    found = []
    for each in tried:
        starts, elsewhere = each.starts, any("partition=" in word for word in each.overrides)
        if starts is not None and starts > now + pending.CLEARLY and not elsewhere:
            # A trial may have waited for the end of a reservation: it cannot start before that.
            ends = [each.ends for each in windows if each.ends is not None and starts - own < each.ends <= starts]
            starts = max(starts - own, now, *ends)
        found.append(replace(each, starts=starts))
    return tuple(found)


def clock(moment: float | None) -> str:
    """Formats a time (seconds since the epoch) as `Sat 21 Nov 21:10:00` in local time; `-` for None."""
    return "-" if moment is None else time.strftime("%a %d %b %H:%M:%S", time.localtime(moment))


def _tried(waiting: Waiting, found: Sequence[Change], slurm: Slurm, queries: Answers) -> tuple[Option, ...]:
    environment = job_environment(os.environ, waiting.plan).environment
    tried = list[Option]()
    for number, change in enumerate(found):
        trial: tuple[float | None, str] = (None, "")
        if number < waiting.trials:
            trial = queries.get(functools.partial(slurm.trial, arguments(change.plan), environment), trial)
        starts, why_not = trial
        tried.append(Option(change.overrides, starts, why_not or change.note))
    if found:
        note = "the start of a change is a trial (sbatch --test-only), which knows the queue only roughly"
        more = f"; `{waiting.program} why {waiting.run} --trials {len(found)}` tries all of these changes"
        queries.notes.append(note + (more if len(found) > waiting.trials else ""))
    return tuple(tried)


# -- `why`: changes with which a pending Slurm run may start sooner, and the nodes that it could use


MOST = 4  # maximum number of changes
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


def idle(nodes: Sequence[NodeCounts]) -> int:
    """Returns the number of idle nodes, including those that Slurm plans to give to another job."""
    return sum(each.count for each in nodes if base_state(each.state) in ("idle", "planned"))


def node_lines(nodes: Sequence[NodeCounts], partition: str, constraint: str) -> tuple[str, ...]:
    """Returns a summary line, `partition gpu: 4 nodes: 2 allocated, 1 idle, 1 drained`, and lines for broken nodes."""
    with_features = f" with {constraint}" if constraint else ""
    if not nodes:
        return (f"partition {partition} has no nodes{with_features}",)
    states: Counter[str] = Counter()
    for each in nodes:
        states[base_state(each.state)] += each.count
    counts = ", ".join(f"{number} {state}" for state, number in states.most_common())
    lines = [f"partition {partition}: {plural(states.total(), 'node')}{with_features}: {counts}"]
    for each in nodes:
        if base_state(each.state).startswith(BROKEN):
            why = f": {each.reason}" if each.reason else ""
            lines.append(f"{each.names} {'is' if each.count == 1 else 'are'} {base_state(each.state)}{why}")
    return tuple(lines)


def changes(
    plan: JobPlan, job: Pending, partitions: Sequence[Partition], nodes: Sequence[NodeCounts],
    reservations: Sequence[Reservation], *, now: float, fixed_nodes: bool = False,
) -> list[Change]:  # fmt: skip
    """Returns the changes that may help, at most MOST, the smallest first; fixed_nodes: not fewer, as the user said.

    | change | if |
    |---|---|
    | no exclude, no constraint, no reservation | the run has one |
    | less time | the run would overlap with a reservation, or exceeds the time limit of its partition |
    | another partition | the user may use it, it accepts the run, and enough of its nodes are idle |
    | as many nodes as are idle, or half | fewer than now, and min_nodes and the workload allow it |
    | half the time | no other shorter time is there |
    """
    mine = job.partition.split(",")
    shorter = _shorter(plan, job, partitions, reservations, now)
    half = [] if shorter or plan.time // 2 < SHORTEST else [_in_time(plan, plan.time // 2, "half the time")]
    smaller = _smaller(plan, idle(usable(nodes, mine, settings_of(plan, SlurmSettings).constraint or "")), fixed_nodes)
    found = [*_without(plan), *shorter, *_other_partitions(plan, job, partitions, nodes), *smaller, *half]
    # A trial may accept what exceeds the limits of its partition (EnforcePartLimits=NO); the job would never start.
    return [each for each in found if _allowed(each.plan, mine, partitions)][:MOST]


def _allowed(plan: JobPlan, mine: Sequence[str], partitions: Sequence[Partition]) -> bool:
    partition = settings_of(plan, SlurmSettings).partition
    names = partition.split(",") if partition else mine
    there = [each for each in partitions if each.name in names]
    return not there or any(each.takes(plan.nodes, plan.time) for each in there)


def arguments(plan: JobPlan) -> list[str]:
    """Returns a plan's options for `sbatch --test-only`: those of its script without output, comment and array."""
    options = script.directives(plan, "trial").items()
    given = {key: value for key, value in options if key not in ("output", "error", "open-mode", "comment", "array")}
    return [f"--{key}" if value is True else f"--{key}={value}" for key, value in given.items()]


def _with(plan: JobPlan, key: str, value: str | None) -> JobPlan:
    settings = {**plan.cluster.settings, key: value}
    return replace(plan, cluster=replace(plan.cluster, settings=settings))


def _without(plan: JobPlan) -> list[Change]:
    settings = settings_of(plan, SlurmSettings)
    notes = {
        "exclude": f"on any node, {settings.exclude} too",
        "constraint": f"on nodes without {settings.constraint}",
        "reservation": f"outside of the reservation {settings.reservation}",
    }
    given = {key: note for key, note in notes.items() if getattr(settings, key)}
    return [Change((f"cluster.{key}=null",), _with(plan, key, None), note) for key, note in given.items()]


def _shorter(
    plan: JobPlan, job: Pending, partitions: Sequence[Partition], reservations: Sequence[Reservation], now: float
) -> list[Change]:
    names = job.partition.split(",")
    most = [each.time for each in partitions if each.name in names and each.time is not None]
    if most and len(most) == len(names) and plan.time > max(most):
        return [_in_time(plan, max(most), "what the partition allows")]
    own = settings_of(plan, SlurmSettings).reservation
    starts = [each.starts for each in reservations if each.starts is not None and each.name != own]
    coming = [each for each in starts if now < each < now + plan.time]
    if not coming:
        return []
    left = int(min(coming) - now) - 60  # a minute for scheduling; time limits are whole minutes
    return [_in_time(plan, left - left % 60, "it ends before the reservation begins")] if left >= SHORTEST else []


def _in_time(plan: JobPlan, seconds: int, note: str) -> Change:
    resume = replace(plan.resume, lead=min(plan.resume.lead, max(seconds // 20, 10)))
    return Change((f"time={format_time(seconds)}",), replace(plan, time=seconds, resume=resume), note)


def _other_partitions(
    plan: JobPlan, job: Pending, partitions: Sequence[Partition], nodes: Sequence[NodeCounts]
) -> list[Change]:
    mine = job.partition.split(",")
    tier = max((each.tier for each in partitions if each.name in mine), default=0)
    found = []
    for each in sorted(partitions, key=lambda each: each.tier > tier):
        free = idle(usable(nodes, [each.name], settings_of(plan, SlurmSettings).constraint or ""))
        allowed = (not each.accounts or job.account in each.accounts) and job.account not in each.denied
        if each.name not in mine and each.state == "UP" and not each.root_only and allowed and plan.nodes <= free:
            note = "its priority tier is higher: it may cost more, or preempt" if each.tier > tier else ""
            found.append(Change((f"cluster.partition={each.name}",), _with(plan, "partition", each.name), note))
    return found


def _smaller(plan: JobPlan, free: int, fixed: bool) -> list[Change]:
    nodes = free or plan.nodes // 2
    if not pending.may_offer_fewer_nodes(plan, nodes, fixed=fixed):
        return []
    smaller = replace(plan, nodes=nodes, min_nodes=min(plan.min_nodes, nodes))
    ranks = f"{plural(nodes * plan.procs_per_node, 'rank')} instead of {plan.world_size}"
    return [Change((f"nodes={nodes}",), smaller, ranks)]
