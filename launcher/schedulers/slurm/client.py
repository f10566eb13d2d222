"""What Slurm is asked: its job commands (sbatch, squeue, sacct, scontrol, scancel), each with its parser."""

from __future__ import annotations

import getpass
import os
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, ClassVar

from launcher.fast_dataclasses import Struct
from launcher.schedulers.base import (
    AnswerLost,
    JobExecution,
    JobOrigin,
    JobState,
    NoCommand,
    QueryError,
    SchedulerJob,
)
from launcher.schedulers.pending import Form
from launcher.schedulers.run_command import NoAnswer, SubmissionRefused, SubmitCommand, query, run_submission
from launcher.units import parse_local_time, size_or_none, time_or_none

if TYPE_CHECKING:
    from launcher.plan.plan import JobPlan


# Slurm's long state names (man squeue, JOB STATE CODES; job_state_string in slurm_protocol_defs.c of 26.05). For a job
# with a flag, such as COMPLETING, squeue prints only the flag. Without REVOKED: another cluster of a federation has it.
STATES = {
    # EXPEDITING since 25.11: requeued with --requeue=expedite; RESV_DEL_HOLD: held, since its reservation was deleted
    **dict.fromkeys(
        ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "EXPEDITING", "RESV_DEL_HOLD",
         "CONFIGURING"), JobState.PENDING),
    **dict.fromkeys(("RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING", "STOPPED", "RESIZING"), JobState.RUNNING),
    "SUSPENDED": JobState.SUSPENDED, "COMPLETED": JobState.DONE, "CANCELLED": JobState.CANCELLED,
    **dict.fromkeys(
        ("FAILED", "PREEMPTED", "BOOT_FAIL", "DEADLINE", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT"), JobState.FAILED),
}  # fmt: skip
# Error messages of Slurm's commands (slurm_errno.c) if the controller was not reached.
_UNREACHED = r"Unable to contact|Connection refused|standby mode|No route to host"
UNREACHED = re.compile(_UNREACHED, re.IGNORECASE)
# Error messages if the controller was not reached or its reply was lost, so that the job may exist.
NO_ANSWER = re.compile(
    rf"{_UNREACHED}|timed out|Connection reset|Zero Bytes|Transport endpoint|Unexpected message|communication"
    "|try again|temporarily unable",
    re.IGNORECASE,
)
# Error messages if the user, or Slurm as a whole (MaxJobCount), has too many jobs. The text with "job submit limit"
# comes with each refusal of an association or QOS; newer versions print before it which limit it is
# (QOSMaxWallDurationPerJobLimit). The last two are printed while sbatch itself tries again, for two minutes (sbatch.c).
JOB_LIMIT = re.compile(
    r"\b(Assoc|QOS)\w*Submit|\A(?!.*\b(Assoc|QOS)\w{3}).*submit limit"
    "|job queue full, sleeping|temporarily unable to accept job",
    re.IGNORECASE | re.DOTALL,
)
NO_ACCOUNTING = re.compile("accounting storage is disabled")  # sacct; unlike a database that does not answer


class Slurm(Struct):
    timeout: float = 60  # timeout of each command in seconds
    terse: ClassVar[tuple[str, ...]] = ()  # --parsable is always there

    def run(self, *command: str) -> str:
        """Returns a command's output; raises QueryError, also if SLURM_CLUSTERS has several (equal job numbers)."""
        if problem := several_clusters(os.environ):
            raise QueryError(problem)
        text = query(*command, timeout=self.timeout, environment=quiet_environment()).stdout
        # With SLURM_CLUSTERS squeue and sinfo print this first, despite --noheader (squeue.c, _multi_cluster).
        return re.sub(r"\ACLUSTER: .*\n", "", text)

    def jobs(self) -> dict[str, SchedulerJob]:
        # `squeue --jobs` would fail if one id is unknown
        return parse_jobs(self.run("squeue", "--me", "--noheader", "--states=all", "--array", f"--Format={_SQUEUE}"))

    def count_jobs(self) -> Counter[str]:
        return parse_counts(self.run("squeue", "--me", "--noheader", "--array", "--format=%P|%q"))

    def accounting(self, ids: Sequence[str]) -> dict[str, SchedulerJob]:
        """Returns these jobs' accounting records by id; {} where there is no accounting. QueryError: not known now."""
        try:
            text = self.sacct("--allocations", "--jobs", ",".join(ids), f"--format={_SACCT}")
        except QueryError as error:
            if isinstance(error, NoCommand) or NO_ACCOUNTING.search(str(error)):
                return {}
            raise
        return parse_accounting(text)

    def sacct(self, *options: str) -> str:
        return self.run("sacct", *in_cluster(), "--noheader", "--parsable2", *options)

    def ended_all(self, job_ids: Sequence[str]) -> dict[str, SchedulerJob]:
        arrays = Counter(map(array_of, job_ids))  # several elements of one are asked for by the array's id
        ids = list(dict.fromkeys(each if arrays[array_of(each)] == 1 else array_of(each) for each in job_ids))
        parts = [ids[start : start + _MOST_IDS] for start in range(0, len(ids), _MOST_IDS)]
        return {job_id: job for part in parts for job_id, job in self.accounting(part).items()}

    def key(self, job_id: str) -> str:
        return job_id

    def find(self, token: str, name: str) -> str | None:
        return next((array_of(job.id) for job in self.jobs().values() if job.comment == token), None)

    def origins(self, numbers: Sequence[str]) -> dict[str, JobOrigin]:
        found = parse_origins(self.run("squeue", "--me", "--noheader", "--format=%F|%k|%o"))
        return {number: found[number] for number in numbers if number in found}

    def request(self, script: str, environment: Mapping[str, str], *arguments: str) -> SubmitCommand:
        return SubmitCommand(["sbatch", "--parsable", *in_cluster(), *arguments, script], environment, umask=0o077)

    def submit(self, script: str, environment: Mapping[str, str], *arguments: str) -> str:
        try:
            done = run_submission(self.request(script, environment, *arguments), timeout=self.timeout)
        except NoAnswer as error:
            raise NoAnswer(str(error), job_limit=JOB_LIMIT.search(str(error)) is not None) from None
        # --parsable prints ID or ID;CLUSTER, and a site's wrapper may print more around it
        ids = re.findall(r"^\s*(\d+)(?:;\S*)?\s*$", done.stdout, re.MULTILINE) if done.returncode == 0 else []
        if len(ids) == 1:
            return str(ids[0])
        if ids:  # the job is found by its token
            raise NoAnswer(f"sbatch printed several numbers: {' '.join(done.stdout.split())}")
        words = done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}"
        too_many = JOB_LIMIT.search(words) is not None
        if NO_ANSWER.search(words):
            raise NoAnswer(words, job_limit=too_many)
        # fatal: sbatch exited before it sent the request (for instance without a configuration).
        raise SubmissionRefused(
            f"sbatch refused the job: {words}",
            definite="sbatch: fatal:" in words,
            job_limit=too_many,
        )

    def options(self, jobs: Sequence[str], token: str | None = None) -> list[str]:
        return [*dependency(jobs), *([] if token is None else [f"--comment={token}"])]

    def wait_for(self, job_id: str, jobs: Sequence[str]) -> None:
        options = [option.removeprefix("--") for option in dependency(jobs)]
        self.run("scontrol", "update", f"JobId={job_id}", *options)

    def max_array_size(self, plan: JobPlan) -> int | None:
        """Returns MaxArraySize, or less, if SchedulerParameters has max_array_tasks (man slurm.conf)."""
        shown = self.run("scontrol", "show", "config")
        sizes = re.findall(r"^MaxArraySize\s*=\s*(\d+)|\bmax_array_tasks=(\d+)", shown, re.MULTILINE)
        return min((int(size or tasks) for size, tasks in sizes), default=None)

    def throttle(self, job_id: str, most: int) -> None:
        self.run("scontrol", "update", f"JobId={job_id}", f"ArrayTaskThrottle={most}")

    def state_and_reason(self, job_id: str) -> tuple[str, str]:
        state, _, reason = self.run("squeue", "--noheader", "--jobs", job_id, "--format=%T|%r").strip().partition("|")
        return state, reason

    def preempted(self, job_id: str) -> float | None:
        """Returns when the preemption of a live job started (since the epoch), or None."""
        text = self.run("squeue", "--noheader", "--jobs", job_id, "--Format=PreemptTime:64").strip()
        return parse_local_time(text)  # N/A: it has not

    def restarts(self, job_id: str) -> int:
        """Returns how often a live job was requeued: in the job SLURM_RESTART_COUNT has the number of its start."""
        return int(self.run("squeue", "--noheader", "--jobs", job_id, "--Format=RestartCnt:32").strip() or -1)

    def requeue(self, job_id: str) -> None:
        self._change("scontrol", "requeue", job_id)

    def cancel(self, *job_ids: str) -> None:
        try:
            self._change("scancel", *job_ids)
        except QueryError as error:
            if not all("already" in line or "Invalid job id" in line for line in str(error).splitlines()):
                raise

    def version(self) -> str:
        """Returns the version of Slurm's commands (`22.05.8`), without the controller; raises QueryError."""
        return self.run("sinfo", "--version").split()[-1]

    def settings(self) -> dict[str, str]:
        return parse_settings(self.run("scontrol", "show", "config"))

    def pending(self, job_id: str) -> Pending:
        return parse_pending(self.run("scontrol", "show", "job", job_id))

    def nodes(self) -> list[NodeCounts]:
        return parse_nodes(self.run(*NODES))

    def reservations(self) -> list[Reservation]:
        return parse_reservations(self.run("scontrol", "--oneliner", "show", "reservation"))

    def limit(self, scope: str, name: str, column: str) -> str:
        """Describes a limit of scope `qos` or `association` (`QOS normal: MaxJobsPU=2`); empty: none is visible."""
        if scope == "qos":
            text = self.run(*SACCTMGR, "show", "qos", f"name={name}", f"format=Name,{column}")
            return parse_limit(text, "QOS", column)
        text = self.run(*SACCTMGR, "show", "associations", f"account={name}", f"format=Account,User,{column}")
        rows = [line for line in text.splitlines() if line.split("|")[1:2] in ([""], [getpass.getuser()])]
        return parse_limit("\n".join(rows), "account", column)

    def trial(self, options: Sequence[str], environment: Mapping[str, str]) -> tuple[float | None, str]:
        """Returns when a job with these sbatch options would start (`sbatch --test-only`), or None and why not."""
        command = ("sbatch", "--test-only", *in_cluster(), *options, "--wrap=true")
        done = query(*command, timeout=self.timeout, environment=environment, good=(0, 1))
        if done.returncode and NO_ANSWER.search(done.stderr):
            raise QueryError(done.stderr.strip())
        return parse_trial(done.stderr + done.stdout)

    def _change(self, *command: str) -> None:
        try:
            self.run(*command)
        except QueryError as error:
            words = str(error)
            if NO_ANSWER.search(words) and not UNREACHED.search(words):
                raise AnswerLost(words) from None
            raise


SACCTMGR = ("sacctmgr", "--noheader", "--parsable2")
NODES = ("sinfo", "--all", "--noheader", "--format=%P|%D|%T|%f|%N|%E")
NOTHING = re.compile(r"(None|\(null\)|N/A|Unknown|none|)")  # how the commands print that there is no value
_SQUEUE = "JobArrayID:64,State:32,Reason:64,Comment:256,TimeLeft:32"
_SACCT = "JobID,End,State,Reason,Comment"
_MOST_IDS = 2000  # maximum number of job ids for one sacct: Linux limits an argument to 128 KiB


def array_of(job_id: str) -> str:
    return job_id.partition("_")[0]


def dependency(jobs: Sequence[str]) -> list[str]:
    return [f"--dependency=afterany:{':'.join(jobs)}"] if jobs else []


def in_cluster() -> list[str]:
    # sacct does not read the variable. sbatch does, and would hand it on to the job, whose commands would ask slurmdbd.
    cluster = os.environ.get("SLURM_CLUSTERS")
    return [f"--clusters={cluster}"] if cluster else []


def several_clusters(environ: Mapping[str, str]) -> str | None:
    clusters = environ.get("SLURM_CLUSTERS", "")
    several = "," in clusters or clusters == "all"
    return f"SLURM_CLUSTERS={clusters}: a job's number is that of one cluster: name one" if several else None


def ambiguous_cluster(environ: Mapping[str, str]) -> str | None:
    """Returns why these variables do not name one cluster for all of Slurm's commands, or None if they do."""
    clusters, of_sbatch = environ.get("SLURM_CLUSTERS", ""), environ.get("SBATCH_CLUSTERS", "")
    if problem := several_clusters(environ):
        return problem
    if of_sbatch not in ("", clusters):
        return (
            f"SBATCH_CLUSTERS={of_sbatch}: only sbatch follows it: unset it, and set SLURM_CLUSTERS={of_sbatch}, which "
            "all of Slurm's commands follow"
        )
    return None


def quiet_environment() -> dict[str, str]:
    """Returns this process's environment without variables that change Slurm's output, such as SQUEUE_FORMAT."""
    return {
        name: value
        for name, value in os.environ.items()
        if not re.match(r"(SQUEUE|SINFO|SACCT|SCONTROL|SCANCEL)_|SLURM_TIME_FORMAT$", name)
    }


def parse_jobs(text: str) -> dict[str, SchedulerJob]:
    """Parses squeue's output with the fixed columns of `_SQUEUE`; returns jobs by id."""
    ends = [0, *accumulate(int(column.partition(":")[2]) for column in _SQUEUE.split(","))]
    rows = ([line[start:end].strip() for start, end in pairwise(ends)] for line in text.splitlines())
    return {fields[0]: _job(*fields) for fields in rows if fields[0]}


def parse_counts(text: str) -> Counter[str]:
    """Counts the jobs in `squeue --format=%P|%q` for each of their partitions, their QOS, and "" for all."""
    lines = [line.strip().split("|") for line in text.splitlines() if line.strip()]
    names = (name for partitions, *qos in lines for name in {"", *partitions.split(","), *qos})
    return Counter(names)


def parse_origins(text: str) -> dict[str, JobOrigin]:
    """Parses the output of `squeue --format=%F|%k|%o`: number, comment and script of jobs and arrays, by number."""
    lines = (line.split("|", 2) for line in text.splitlines())
    return {each[0]: JobOrigin(each[0], text_of(each[1]), each[2]) for each in lines if len(each) == 3}


def parse_accounting(text: str) -> dict[str, SchedulerJob]:
    """Parses sacct's lines of `_SACCT` into jobs by id; with an end and an unknown state a job is GONE, not UNKNOWN."""
    jobs = {}
    for line in text.splitlines():
        fields = line.split("|", 4)
        if len(fields) == 5 and "." not in fields[0]:
            job_id, end, *values = fields
            job = _job(job_id, *values)
            over = job.state is JobState.UNKNOWN and job.raw_state != "REVOKED" and end[:1].isdigit()
            jobs[job_id] = replace(job, state=JobState.GONE) if over else job
    return jobs


def _job(job_id: str, state: str, reason: str, comment: str, left: str = "") -> SchedulerJob:
    word = state.split()[0] if state else ""  # "CANCELLED by 1000"
    raised = re.match(r"RaisedSignal:(\d+)", reason)
    return SchedulerJob(
        job_id, STATES.get(word, JobState.UNKNOWN), word, "" if reason == "None" else reason, text_of(comment),
        time_or_none(left), int(raised[1]) if raised else None,
    )  # fmt: skip


# -- What `why`, `doctor` and `site init` ask about: jobs, partitions, nodes, reservations and limits
# Only formats that Slurm 20.11 to 24.11 share are parsed: scontrol's KEY=VALUE, and sinfo and sacctmgr with --format.


def pairs(text: str) -> defaultdict[str, str]:
    """Parses scontrol's KEY=VALUE pairs with values without blanks; the first of a repeated key counts; missing: ""."""
    found: list[tuple[str, str]] = re.findall(r"(?<!\S)([A-Za-z][\w/:]*)=(\S*)", text)
    return defaultdict(str, reversed(found))


def parse_pending(text: str) -> Pending:
    """Parses `scontrol show job ID` (of an array, its first record); raises QueryError if there is no job."""
    values = pairs(text.split("\n\n")[0])
    if "JobId" not in values:
        raise QueryError(f"scontrol's answer could not be read: {text.strip()[:200]!r}")
    nodes, cpus = (re.findall(r"^\d+", values[key]) for key in ("NumNodes", "NumCPUs"))  # 2-4: at least 2
    throttle = values["ArrayTaskThrottle"]
    return Pending(
        id=values["JobId"],
        state=values["JobState"],
        reason=text_of(values["Reason"]),
        starts=parse_local_time(values["StartTime"]),
        eligible=parse_local_time(values["EligibleTime"]),
        submitted=parse_local_time(values["SubmitTime"]),
        partition=values["Partition"],
        nodes=int(nodes[0]) if nodes else 1,
        cpus=int(cpus[0]) if cpus else 1,
        time=time_or_none(values["TimeLimit"]),
        qos=text_of(values["QOS"]),
        account=text_of(values["Account"]),
        features=text_of(values["Features"]),
        reservation=text_of(values["Reservation"]),
        dependency=text_of(values["Dependency"]),
        throttle=int(throttle) if throttle.isdecimal() else None,
    )


def parse_nodes(text: str) -> list[NodeCounts]:
    rows = (line.strip().split("|", 5) for line in text.splitlines())
    return [
        NodeCounts(
            row[0].rstrip("*"), int(row[1]), row[2].lower(), tuple(filter(None, text_of(row[3]).split(","))), row[4],
            text_of(row[5]),
        )
        for row in rows if len(row) == 6 and row[1].isdecimal()
    ]  # fmt: skip


def parse_reservations(text: str) -> list[Reservation]:
    """Parses the output of `scontrol --oneliner show reservation`; [] if scontrol prints that there are none."""
    return [
        Reservation(
            values["ReservationName"], parse_local_time(values["StartTime"]), parse_local_time(values["EndTime"]),
            text_of(values["Nodes"]), tuple(values["Flags"].split(",")),
            text_of(values["Users"]) or text_of(values["Accounts"]),
        )
        for values in map(pairs, text.splitlines()) if "ReservationName" in values
    ]  # fmt: skip


def parse_settings(text: str) -> dict[str, str]:
    return dict(re.findall(r"^(\w+)\s*= (.*?)\s*$", text, re.MULTILINE))


def has_accounting(settings: Mapping[str, str]) -> bool:
    """Returns whether a site keeps accounting, and so has accounts and QOS, from `parse_settings`."""
    return not settings.get("AccountingStorageType", "").endswith(("/none", "(null)"))


def parse_limit(text: str, what: str, column: str) -> str:
    """Describes the first limit in sacctmgr's lines, of which it is the last field; empty if no line has one."""
    for line in text.splitlines():
        *names, value = line.split("|")
        if value.strip():
            return f"{what} {', user '.join(filter(None, names))}: {column}={value.strip()}"
    return ""


def parse_trial(text: str) -> tuple[float | None, str]:
    if match := re.search(r"Job \S+ to start at (\S+)", text):
        return parse_local_time(match[1]), ""
    *_, last = ["", *text.strip().splitlines()]
    words = re.sub(r"^(sbatch: )?(error: |fatal: )?(allocation failure: )?", "", last)
    return None, words or "sbatch did not say why"


def text_of(value: str) -> str:
    return "" if NOTHING.fullmatch(value) else value


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
    reservation: str = ""
    dependency: str = ""
    throttle: int | None = None  # maximum number of array elements that run at once; None: no limit, or no array


class NodeCounts(Struct):
    """Nodes of one partition with the same state and features."""

    partition: str  # name of the partition
    count: int  # number of nodes
    state: str  # state as sinfo prints it, in lower case (`idle`, `down*`)
    features: tuple[str, ...] = ()  # features of the nodes
    names: str = ""  # compressed node list (`n[01-04]`)
    reason: str = ""  # the administrator's reason for taking the nodes out of service; empty: none


class Reservation(Struct):
    name: str  # name of the reservation
    starts: float | None  # start in seconds since the epoch; None: unknown
    ends: float | None  # end in seconds since the epoch; None: unknown
    nodes: str = ""  # compressed node list; empty: none
    flags: tuple[str, ...] = ()  # flags as scontrol prints them
    who: str = ""  # users of the reservation or, without any, its accounts, as scontrol prints them

    @property
    def maintenance(self) -> bool:
        return "MAINT" in self.flags


_FIELDS = "JobID,State,Start,End,MaxRSS"


def history(job_id: str, slurm: Slurm) -> list[JobExecution]:
    """Returns all executions of a job, oldest first; `used` is the largest task's MaxRSS in any step."""
    return parse_history(slurm.sacct("--duplicates", "--jobs", job_id, f"--format={_FIELDS}"))


def parse_history(text: str) -> list[JobExecution]:
    """Parses sacct's output: one line for each execution of the job, followed by one line for each of its steps."""
    lines = [line.split("|") for line in text.splitlines() if line.count("|") == _FIELDS.count(",")]
    groups: list[tuple[Sequence[str], list[int]]] = []
    for fields in lines:
        if "." not in fields[0]:
            groups.append((fields, []))
        elif groups and (used := size_or_none(fields[4])):
            groups[-1][1].append(used)
    found = []
    for (_, state, begin, end, _), sizes in groups:
        words = state.split()  # CANCELLED by 1000
        by = words[2] if words[1:2] == ["by"] and len(words) > 2 else ""
        found.append(JobExecution(words[0] if words else "", by, begin, end, max(sizes, default=None)))
    return found


# Notices in the output of a job that it kills, by slurmstepd and srun (20.11 to 26.05: slurmstepd/req.c, srun/launch.c,
# jobacct_gather.c, task_cgroup_memory.c). slurmstepd's lines start with its name, or since 25.05 with the time.
_STEPD = r"(slurmstepd[\w.-]*:|\[[^\[\]]+\]) error: "
_AT = r"CANCELLED AT (?P<at>\S+) "
_ENDED = _STEPD + r"\*\*\* (JOB|STEP) \S+ ON \S+ " + _AT
_WORDS = (
    ("TIMEOUT", _ENDED + r"DUE TO TIME LIMIT"),
    ("PREEMPTED", _ENDED + r"DUE TO PREEMPTION"),
    ("NODE_FAIL", _ENDED + r"DUE TO NODE FAILURE|srun: error: Node failure on"),
    ("REQUEUED", _ENDED + r"DUE TO JOB REQUEUE"),
    ("OUT_OF_MEMORY", _STEPD + r"([Dd]etected \d+ oom[-_]kill event|\S+ exceeded memory limit"
                      r"|Exceeded (job|step) memory limit)"
                      r"|srun: error: .*tasks? [\d,-]+: Out Of Memory"),
    # JOB only: with srun --kill-on-bad-exit, slurmstepd prints the notice for a STEP (DUE TO TASK FAILURE since 25.05).
    ("CANCELLED", _STEPD + r"\*\*\* JOB \S+ ON \S+ " + _AT + r"(DUE to SIGNAL .+ )?\*\*\*"),
)  # fmt: skip
NOTICES: tuple[Form, ...] = tuple((word, re.compile(pattern)) for word, pattern in _WORDS)
