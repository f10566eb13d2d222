"""Explains why a Slurm job is pending. The job's reason decides which queries are made, at most twelve."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from launcher.formatting import format_time, plural
from launcher.schedulers.explanation import CLEARLY, Explanation, Facts, Option, Waiting, Why, commands, sooner
from launcher.schedulers.job_environment import job_environment
from launcher.schedulers.queries import JobState, QueryError, QueryTimeout
from launcher.schedulers.slurm import suggestions
from launcher.schedulers.slurm.commands import STATES
from launcher.schedulers.slurm.limits import Qos
from launcher.schedulers.slurm.pending_reasons import Reason, in_words
from launcher.schedulers.slurm.resource_queries import Nodes, PartitionFacts, Pending, Reservation, ResourceQueries
from launcher.spec.plan import JobPlan

TRIED = (Why.ROOM, Why.PARTITION, Why.NODES, Why.RESERVATION)  # reasons for which changes of the run are tried
OVERLOOKED = 300.0  # seconds without a reason after which this is reported itself: Slurm schedules every minute
TRIALS = 16.0  # seconds since the first query after which no further trial is started

T = TypeVar("T")


@dataclass
class _Queries:
    """Runs queries, and collects the errors of failed ones in `notes`. Runs no further query after a timeout."""

    notes: list[str] = field(default_factory=list)
    timed_out: bool = False

    def get(self, what: Callable[[], T], other: T) -> T:
        """Returns the result of the query `what`, or `other` if it fails or a query has timed out."""
        if self.timed_out:
            return other
        try:
            return what()
        except QueryError as error:
            self.notes.append(f"not answered: {error}")
            self.timed_out = isinstance(error, QueryTimeout)
            return other


def explain(waiting: Waiting, resources: ResourceQueries) -> Explanation:
    """Explains why a pending job does not start, and tries changes with which it would start sooner.

    Raises:
        QueryError: the query of the job itself failed. Failures of other queries become notes.
    """
    began, queries = time.monotonic(), _Queries()
    plan, job_id = waiting.plan, waiting.job
    job = resources.pending(job_id)
    now = time.time()
    reason = reason_of(job, now)
    if STATES.get(job.state) is not JobState.PENDING or job.state == "CONFIGURING":  # the job has its nodes already
        return Explanation(
            waiting.run, job.state.lower(), Why.ALLOCATED, job_id, facts=Facts(scheduler="Slurm", job_state=job.state)
        )
    partitions: list[PartitionFacts] = []
    nodes: list[Nodes] = []
    windows: list[Reservation] = []
    if reason.kind not in (Why.WAITS, Why.THROTTLED):
        partitions = queries.get(resources.partitions, partitions)
    if reason.kind not in (Why.WAITS, Why.THROTTLED, Why.HELD) or reason.of_nodes:
        nodes = queries.get(resources.nodes, nodes)
    if reason.kind in (Why.NODES, Why.RESERVATION):
        windows = queries.get(resources.reservations, [])
    partitions = _lifted(job, plan, partitions, resources, queries)
    limits = limits_of(job, plan, reason, partitions, windows, now)
    if reason.column:
        value = _value(job, reason, partitions, resources, queries)
        limits += (value,) if value else ()
    tried: tuple[Option, ...] = ()
    if reason.kind in TRIED and job.state == "PENDING":
        changes = suggestions.changes(plan, job, partitions, nodes, windows, now=now, fixed_nodes=waiting.fixed_nodes)
        if reason.kind is Why.RESERVATION:  # no other change helps
            changes = [each for each in changes if each.overrides == ("cluster.reservation=null",)]
        tried = _trials(plan, changes, resources, queries, began + TRIALS)
        tried = corrected(tried, job, partitions, windows, now)
        if reason.never and tried:
            tried = (replace(tried[0], starts=None, note="never"), *tried[1:])
    better = sooner(tried, now)
    if tried:
        queries.notes.append("estimates of changes are trials (sbatch --test-only), which know the queue only roughly")
    return Explanation(
        run=waiting.run,
        state="queued",
        why=reason.kind,
        facts=Facts(meaning=reason.words),
        job=job_id,
        code=job.reason.replace("_", " "),
        do=reason.do.replace("{job}", job_id),
        starts=job.starts if job.starts and job.starts > now - 60 else None,
        limits=limits,
        nodes=suggestions.node_lines(_mine(job, nodes), job.partition, job.features) if nodes else (),
        options=better,
        tried=tried,
        commands=commands(waiting, better),
        notes=tuple(queries.notes),
    )


def _lifted(
    job: Pending, plan: JobPlan, partitions: list[PartitionFacts], resources: ResourceQueries, queries: _Queries
) -> list[PartitionFacts]:
    wanted = job.time if job.time is not None else plan.time
    exceeded = any(
        (each.time is not None and wanted > each.time) or (each.max_nodes is not None and job.nodes > each.max_nodes)
        for each in partitions
        if each.name in job.partition.split(",")
    )
    if not exceeded or not job.qos:
        return partitions
    unknown: list[Qos] = []
    for qos in queries.get(lambda: resources.qos(job.qos, job.account), unknown):
        new = [qos.limits(each.time, each.max_nodes) for each in partitions]
        partitions = [
            replace(each, time=time, max_nodes=nodes) for each, (time, nodes) in zip(partitions, new, strict=True)
        ]
    return partitions


def reason_of(job: Pending, now: float) -> Reason:
    """Explains the job's pending reason. If Slurm has given none for OVERLOOKED seconds, explains that instead.

    Args:
        job: the pending job.
        now: current time in seconds since the epoch.
    """
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


def _value(
    job: Pending, reason: Reason, partitions: Sequence[PartitionFacts], resources: ResourceQueries, queries: _Queries
) -> str:
    # A QOS limit is looked for in the job's QOS, then in its partitions' QOS; any other limit in the job's account
    owners = [job.account]
    if reason.scope == "qos":
        owners = [job.qos, *(each.qos for each in partitions if each.name in job.partition.split(","))]
    for owner in dict.fromkeys(filter(None, owners)):
        value = queries.get(functools.partial(resources.limit, reason.scope, owner, reason.column), "")
        if value:
            return value
    queries.notes.append(f"the value of the limit ({reason.column}) is not to be seen with sacctmgr")
    return ""


def _mine(job: Pending, nodes: Sequence[Nodes]) -> list[Nodes]:
    # Nodes in several partitions are listed once
    found: dict[tuple[str, str], Nodes] = {}
    for each in suggestions.usable(nodes, job.partition.split(","), job.features):
        found.setdefault((each.names, each.state), each)
    return [*found.values()]


def limits_of(
    job: Pending,
    plan: JobPlan,
    reason: Reason,
    partitions: Sequence[PartitionFacts],
    windows: Sequence[Reservation],
    now: float,
) -> tuple[str, ...]:
    """Returns a line for each limit that may keep the job pending, with its value and where it is set.

    Args:
        job: the pending job.
        plan: the run's plan.
        reason: the explained pending reason.
        partitions: partitions of the site.
        windows: reservations of the site.
        now: current time in seconds since the epoch.
    """
    found = []
    mine = [each for each in partitions if each.name in job.partition.split(",")]
    wanted = job.time if job.time is not None else plan.time
    for each in mine:
        if each.state != "UP":
            found.append(f"partition {each.name}: State={each.state}")
        if each.time is not None and wanted > each.time:
            found.append(
                f"partition {each.name}: MaxTime={format_time(each.time)}, and it asks for {format_time(wanted)}"
            )
        if each.max_nodes is not None and job.nodes > each.max_nodes:
            found.append(f"partition {each.name}: MaxNodes={each.max_nodes}, and it asks for {job.nodes}")
        if job.nodes < each.min_nodes:
            found.append(f"partition {each.name}: MinNodes={each.min_nodes}, and it asks for {job.nodes}")
        if job.nodes > each.total:
            found.append(f"partition {each.name}: {plural(each.total, 'node')}, and it asks for {job.nodes}")
        if each.accounts and job.account not in each.accounts:
            found.append(
                f"partition {each.name}: AllowAccounts={','.join(each.accounts)}, its account is {job.account}"
            )
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
    tried: Sequence[Option],
    job: Pending,
    partitions: Sequence[PartitionFacts],
    windows: Sequence[Reservation],
    now: float,
) -> tuple[Option, ...]:
    """Corrects the start estimates of trials (`sbatch --test-only`), which count the pending job as a competitor.

    For each job in front, Slurm adds that job's share of the whole partition: CPUs x time / all CPUs (job_scheduler.c,
    _delayed_job_start_time). The pending job would be replaced, so its share is subtracted. The unchanged run gets the
    start that Slurm has planned for the pending job, if there is one.

    Args:
        tried: trials' results; the one without overrides is the unchanged run.
        job: the pending job.
        partitions: partitions of the site.
        windows: reservations of the site.
        now: current time in seconds since the epoch.
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
    plan: JobPlan, changes: Sequence[suggestions.Change], resources: ResourceQueries, queries: _Queries, until: float
) -> tuple[Option, ...]:
    # No further trial starts after `until` (monotonic clock) or a failed query
    found: list[Option] = []
    environment = job_environment(os.environ, plan).environment
    for change in (suggestions.Change((), plan), *changes):
        if queries.timed_out:
            break
        if time.monotonic() > until:
            queries.notes.append("Slurm is slow: not all changes were tried")
            break
        try:
            trial = resources.trial(suggestions.arguments(change.plan), environment)
        except QueryError as error:
            queries.notes.append(f"not answered: {error}")
            break
        found.append(Option(change.overrides, trial.starts, change.note if trial.starts else trial.words))
    return tuple(found)
