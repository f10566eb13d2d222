"""What a pending Slurm job waits for, queried with one command each, and what would start sooner."""

from __future__ import annotations

import dataclasses
import getpass
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from launcher.formatting import format_time, plural
from launcher.schedulers.base import QueryError
from launcher.schedulers.pending import may_offer_fewer_nodes
from launcher.schedulers.run_command import query
from launcher.schedulers.slurm import script
from launcher.schedulers.slurm.client import Qos, Slurm, in_cluster, quiet_environment
from launcher.schedulers.slurm.settings import SlurmSettings
from launcher.spec.plan import JobPlan, settings_of
from launcher.structs import Struct
from launcher.units import parse_local_time, time_or_none

# -- Queries one pending job, and the partitions, nodes and limits that it depends on: one command each, and pure
# parsers Only formats that Slurm 20.11 to 24.11 share are parsed: scontrol's KEY=VALUE, and sinfo and sacctmgr with
# --format.


SACCTMGR = ("sacctmgr", "--noheader", "--parsable2")
NODES = ("sinfo", "--all", "--noheader", "--format=%P|%D|%T|%f|%N|%E")
NEVER = re.compile(r"(None|\(null\)|N/A|Unknown|none|)")


class Pending(Struct):
    """A pending job, parsed from `scontrol show job`. An empty text means that the job has no such value."""

    id: str
    state: str
    reason: str
    starts: float | None = None  # planned start in seconds since the epoch; None: not planned
    eligible: float | None = None  # time from which the job can start, in seconds since the epoch
    submitted: float | None = None  # submit time in seconds since the epoch
    partition: str = ""
    nodes: int = 1  # number of requested nodes
    cpus: int = 1  # number of CPUs on all nodes together
    time: int | None = None  # requested wall time in seconds; None: unlimited or unknown
    qos: str = ""
    account: str = ""
    features: str = ""
    exclude: str = ""
    reservation: str = ""
    dependency: str = ""
    throttle: int | None = None  # maximum number of array elements that run at once; None: no limit, or no array


class PartitionFacts(Struct):
    """A partition, parsed from `scontrol show partition`."""

    name: str
    default: bool
    state: str
    time: int | None = None  # time limit in seconds; None: no limit
    max_nodes: int | None = None  # maximum number of nodes of one job; None: no limit
    min_nodes: int = 0  # minimum number of nodes of one job
    total: int = 0  # number of nodes
    cpus: int = 0  # number of CPUs on all nodes together
    accounts: tuple[str, ...] = ()  # accounts that may use the partition; empty: all
    denied: tuple[str, ...] = ()  # accounts that may not use the partition
    qos: str = ""  # name of the partition's QOS; empty: none
    tier: int = 0  # PriorityTier; jobs in a higher tier start first and may preempt
    root_only: bool = False  # whether only root can submit to the partition


class NodeCounts(Struct):
    """Nodes of one partition with the same state and features."""

    partition: str  # name of the partition
    count: int  # number of nodes
    state: str  # state as sinfo prints it, in lower case (`idle`, `down*`)
    features: tuple[str, ...] = ()  # features of the nodes
    names: str = ""  # compressed node list (`n[01-04]`)
    reason: str = ""  # the administrator's reason for taking the nodes out of service; empty: none


class Reservation(Struct):
    """A reservation."""

    name: str  # name of the reservation
    starts: float | None  # start in seconds since the epoch; None: unknown
    ends: float | None  # end in seconds since the epoch; None: unknown
    nodes: str = ""  # compressed node list; empty: none
    flags: tuple[str, ...] = ()  # flags as scontrol prints them
    who: str = ""  # users of the reservation or, without any, its accounts, as scontrol prints them

    @property
    def maintenance(self) -> bool:
        return "MAINT" in self.flags


class StartTrial(Struct):
    """The result of `sbatch --test-only`."""

    starts: float | None  # estimated start in seconds since the epoch; None: the job would not start
    words: str = ""  # Slurm's message if the job would not start


@dataclass
class ResourceQueries:
    """Queries of Slurm for one pending job. Each method runs one command and raises QueryError if it fails."""

    timeout: float = 10  # timeout of each command in seconds
    environment: Mapping[str, str] = field(default_factory=quiet_environment)  # environment of the commands
    asked: int = 0  # number of commands run so far

    def _run(self, *command: str) -> str:
        self.asked += 1
        return query(*command, timeout=self.timeout, environment=self.environment).stdout

    def pending(self, job_id: str) -> Pending:
        return parse_pending(self._run("scontrol", "show", "job", job_id))

    def partitions(self) -> list[PartitionFacts]:
        return parse_partitions(self._run("scontrol", "--all", "--oneliner", "show", "partition"))

    def nodes(self) -> list[NodeCounts]:
        return parse_nodes(self._run(*NODES))

    def reservations(self) -> list[Reservation]:
        return parse_reservations(self._run("scontrol", "--oneliner", "show", "reservation"))

    def limit(self, scope: str, name: str, column: str) -> str:
        """Describes a limit of scope `qos` or `association` (`QOS normal: MaxJobsPU=2`); empty: none is visible."""
        if scope == "qos":
            text = self._run(*SACCTMGR, "show", "qos", f"name={name}", f"format=Name,{column}")
            return parse_limit(text, "QOS", column)
        user = getpass.getuser()
        text = self._run(*SACCTMGR, "show", "associations", f"account={name}", f"format=Account,User,{column}")
        rows = [line for line in text.splitlines() if line.split("|")[1:2] in ([""], [user])]
        return parse_limit("\n".join(rows), "account", column)

    def qos(self, name: str | None, account: str | None) -> list[Qos]:
        """Returns the QOS that a new job of this user may get; [] if the site has none.

        name: the QOS that the job asks for, perhaps several (`a,b`); None: it gets the default one of its account.
        account: the job's account; None: any of the user's.
        """
        settings = parse_settings(self._run("scontrol", "show", "config"))
        if not has_accounting(settings):
            return []
        known = parse_qos(
            self._run(*SACCTMGR, "show", "qos", "format=Name,Flags,MaxWall,MaxTRES"),
            enforced="limits" in settings.get("AccountingStorageEnforce", ""),
        )
        names = {each.lower() for each in (name or "").split(",")}  # newer versions take several (--qos=a,b)
        if name is None:
            cluster, user = settings.get("ClusterName", ""), getpass.getuser()
            text = self._run(
                *SACCTMGR, "show", "associations", f"cluster={cluster}", f"user={user}",
                "format=Account,DefaultQOS,QOS",
            )  # fmt: skip
            names = {*default_qos(text, account)}
        return [each for each in known if each.name.lower() in names]  # as Slurm compares them

    def trial(self, options: Sequence[str], environment: Mapping[str, str]) -> StartTrial:
        """Returns when a job with these sbatch options would start (`sbatch --test-only`). Submits nothing."""
        self.asked += 1
        done = query(
            *("sbatch", "--test-only", *in_cluster(), *options, "--wrap=true"),
            timeout=self.timeout, environment=environment, good=(0, 1),
        )  # fmt: skip
        return parse_trial(done.stderr + done.stdout)


# -- answers


def pairs(text: str) -> dict[str, str]:
    """Parses scontrol's KEY=VALUE pairs with values without blanks; the first value of a repeated key is used."""
    found: dict[str, str] = {}
    for key, value in re.findall(r"(?<!\S)([A-Za-z][\w/:]*)=(\S*)", text):
        found.setdefault(key, value)
    return found


def parse_pending(text: str) -> Pending:
    """Parses `scontrol show job ID` (of an array, its first record); raises QueryError if there is no job."""
    values = pairs(text.split("\n\n")[0])
    if "JobId" not in values:
        raise QueryError(f"scontrol's answer could not be read: {text.strip()[:200]!r}")
    throttle = values.get("ArrayTaskThrottle", "")
    return Pending(
        id=values["JobId"],
        state=values.get("JobState", ""),
        reason=_text(values.get("Reason", "")),
        starts=parse_local_time(values.get("StartTime", "")),
        eligible=parse_local_time(values.get("EligibleTime", "")),
        submitted=parse_local_time(values.get("SubmitTime", "")),
        partition=values.get("Partition", ""),
        nodes=int(re.match(r"\d*", values.get("NumNodes", "1"))[0] or 1),  # type: ignore[index]  # 2-4: at least 2
        cpus=int(re.match(r"\d*", values.get("NumCPUs", "1"))[0] or 1),  # type: ignore[index]
        time=time_or_none(values.get("TimeLimit", "")),
        qos=_text(values.get("QOS", "")),
        account=_text(values.get("Account", "")),
        features=_text(values.get("Features", "")),
        exclude=_text(values.get("ExcNodeList", "")),
        reservation=_text(values.get("Reservation", "")),
        dependency=_text(values.get("Dependency", "")),
        throttle=int(throttle) if throttle.isdecimal() else None,
    )


def parse_partitions(text: str) -> list[PartitionFacts]:
    """Parses the output of `scontrol --oneliner show partition`."""
    found = []
    for line in text.splitlines():
        values = pairs(line)
        if "PartitionName" not in values:
            continue
        most, least = values.get("MaxNodes", ""), values.get("MinNodes", "0")
        found.append(
            PartitionFacts(
                name=values["PartitionName"],
                default=values.get("Default") == "YES",
                state=values.get("State", ""),
                time=time_or_none(values.get("MaxTime", "")),
                max_nodes=int(most) if most.isdecimal() else None,
                min_nodes=int(least) if least.isdecimal() else 0,
                total=int(values.get("TotalNodes", "0")),
                cpus=int(values.get("TotalCPUs", "0")),
                accounts=_names(values.get("AllowAccounts", "ALL")),
                denied=_names(values.get("DenyAccounts", "ALL")),
                qos=_text(values.get("QoS", "")),
                tier=int(values.get("PriorityTier", "0")),
                root_only=values.get("RootOnly") == "YES",
            )
        )
    return found


def parse_nodes(text: str) -> list[NodeCounts]:
    """Parses the output of the command `NODES`: one line per partition, state and features."""
    found = []
    for line in text.splitlines():
        fields = line.strip().split("|", 5)
        if len(fields) == 6 and fields[1].isdecimal():
            partition, count, state, features, names, reason = fields
            found.append(
                NodeCounts(
                    partition.rstrip("*"), int(count), state.lower(),
                    () if NEVER.fullmatch(features) else tuple(features.split(",")),
                    names, "" if NEVER.fullmatch(reason) else reason,
                )
            )  # fmt: skip
    return found


def parse_reservations(text: str) -> list[Reservation]:
    """Parses the output of `scontrol --oneliner show reservation`; [] if scontrol prints that there are none."""
    found = []
    for line in text.splitlines():
        values = pairs(line)
        if "ReservationName" in values:
            who = _text(values.get("Users", "")) or _text(values.get("Accounts", ""))
            found.append(
                Reservation(
                    values["ReservationName"],
                    parse_local_time(values.get("StartTime", "")), parse_local_time(values.get("EndTime", "")),
                    _text(values.get("Nodes", "")), tuple(values.get("Flags", "").split(",")), who,
                )
            )  # fmt: skip
    return found


def parse_settings(text: str) -> dict[str, str]:
    """Parses the `KEY = VALUE` lines of `scontrol show config`."""
    return dict(re.findall(r"^(\w+)\s*= (.*?)\s*$", text, re.MULTILINE))


def has_accounting(settings: Mapping[str, str]) -> bool:
    """Returns whether a site keeps accounting, and so has accounts and QOS, from `parse_settings`."""
    return not settings.get("AccountingStorageType", "").endswith(("/none", "(null)"))


def parse_qos(text: str, *, enforced: bool) -> list[Qos]:
    """Parses sacctmgr's lines `Name|Flags|MaxWall|MaxTRES`; a QOS has limits if Slurm enforces those of QOS."""
    found = []
    for line in text.splitlines():
        name, flags, time, resources = (line.split("|") + [""] * 4)[:4]
        most = re.search(r"(?:^|,)node=(\d+)", resources)
        found.append(
            Qos(
                name, "PartitionTimeLimit" in flags, "PartitionMaxNodes" in flags,
                time_or_none(time) if enforced else None, int(most[1]) if enforced and most else None,
            )
        )  # fmt: skip
    return found


def default_qos(text: str, account: str | None) -> set[str]:
    """Returns the QOS that jobs which ask for none get, from sacctmgr's lines `Account|DefaultQOS|QOS`."""
    rows = [(line.split("|") + [""] * 3)[:3] for line in text.splitlines()]
    mine = [row for row in rows if account is None or row[0].lower() == account.lower()]
    found = {default or (own if own and "," not in own else "normal") for _, default, own in mine} or {"normal"}
    return {each.lower() for each in found}


def parse_limit(text: str, what: str, column: str) -> str:
    """Describes the first limit in sacctmgr's lines, of which it is the last field; empty if no line has one."""
    for line in text.splitlines():
        *names, value = line.split("|")
        if value.strip():
            who = [name for name in names if name]
            return f"{what} {who[0]}{f', user {who[1]}' if len(who) > 1 else ''}: {column}={value.strip()}"
    return ""


def parse_trial(text: str) -> StartTrial:
    """Parses the output of `sbatch --test-only`."""
    if match := re.search(r"Job \S+ to start at (\S+)", text):
        return StartTrial(parse_local_time(match[1]))
    *_, last = ["", *text.strip().splitlines()]
    words = re.sub(r"^(sbatch: )?(error: |fatal: )?(allocation failure: )?", "", last)
    return StartTrial(None, words or "sbatch did not say why")


def _text(value: str) -> str:
    return "" if NEVER.fullmatch(value) else value


def _names(value: str) -> tuple[str, ...]:
    return () if value in ("ALL", "(null)", "") else tuple(value.split(","))


def slurm_version(slurm: Slurm) -> str:
    """Returns the version of Slurm's commands (`22.05.8`), without the controller; raises QueryError."""
    return slurm.run("sinfo", "--version").split()[-1]


# -- `why`: changes with which a pending Slurm run may start sooner, and the nodes that it could use


MOST = 4  # maximum number of changes to try; each is a query
SHORTEST = 120  # minimum wall time in seconds to suggest
BROKEN = ("down", "drain", "fail", "error", "unknown", "maint", "reboot", "power")


class Change(Struct):
    """A change of a run to try."""

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
    """Returns the number of nodes by state, the most frequent state first."""
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
    partitions: Sequence[PartitionFacts],
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


def _allowed(plan: JobPlan, mine: Sequence[str], partitions: Sequence[PartitionFacts]) -> bool:
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
    plan: JobPlan, job: Pending, partitions: Sequence[PartitionFacts], reservations: Sequence[Reservation], now: float
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
    plan: JobPlan, job: Pending, partitions: Sequence[PartitionFacts], nodes: Sequence[NodeCounts]
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
