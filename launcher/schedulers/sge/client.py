"""What Grid Engine is asked: its job commands (qsub, qstat, qacct, qalter, qdel), each with its parser."""

from __future__ import annotations

import contextlib
import getpass
import math
import os
import re
import shlex
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from launcher import io_bounds
from launcher.fast_dataclasses import Struct
from launcher.schedulers.base import (
    OUTCOMES,
    AnswerLost,
    AnswerTooLong,
    JobExecution,
    JobOrigin,
    JobState,
    QueryError,
    SchedulerJob,
)
from launcher.schedulers.pending import Form
from launcher.schedulers.qsub import TOKEN, QsubCommands
from launcher.schedulers.run_command import SubmitCommand, query
from launcher.units import seconds_or_none, size_or_none

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element


def find(command: str) -> str | None:
    """Returns the path of a Grid Engine command: on PATH, SGE_O_PATH (the submission's) or in $SGE_ROOT/bin/ARCH."""
    root, arch = os.environ.get("SGE_ROOT"), os.environ.get("SGE_ARCH") or os.environ.get("ARC")
    folders = [os.environ.get("PATH"), os.environ.get("SGE_O_PATH"), f"{root}/bin/{arch}" if root and arch else None]
    return shutil.which(command, path=os.pathsep.join(filter(None, folders)))


def hosts_of(pe_hostfile: str) -> list[str]:
    """Returns the hosts in a PE_HOSTFILE's lines `HOST SLOTS QUEUE PROCESSORS`; the first runs the job script."""
    return list(dict.fromkeys(line.split()[0] for line in pe_hostfile.splitlines() if line.strip()))


# -- Runs Grid Engine's job commands, each with a timeout, and parses their output
# The first array element has the id `17_0` here, as for the other schedulers; Grid Engine counts array tasks from 1.


# Error messages of the commands if the qmaster was not reached.
_UNREACHED = (
    r"unable to (contact|read|send message to) qmaster|can't (get|read) (the )?qmaster|cannot reach qmaster"
    r'|error: commlib error|SGE_ROOT is not set|set the environment variable SGE_ROOT|/bootstrap"\) failed'
)
UNREACHED = re.compile(_UNREACHED, re.IGNORECASE)
# Error messages if the qmaster was not reached or its reply was lost, so that the job may exist.
NO_ANSWER = re.compile(rf"{_UNREACHED}|failed receiving gdi request|timeout|got read error", re.IGNORECASE)
JOB_LIMIT = re.compile(r"jobs are allowed per (?:user|cluster)", re.IGNORECASE)
# Lines of qdel about a job that it ends, or that has ended.
CANCELLED = re.compile(r"\bhas (deleted|registered) |job.* does not exist|denied: .*not found|is already in deletion")
SUBMITTED = re.compile(r'^Your job(?:-array)? (\d+)(?:\.\S+)? \("', re.MULTILINE)
FEW = 3  # up to this number of ended jobs or arrays, each is queried by itself; more with one query
# Codes in the field `failed` of an accounting record (sge_status(5)): a limit ended the job; the job was rescheduled.
LIMIT, RESCHEDULED = "37", "25"


@dataclass(frozen=True)
class SGE(QsubCommands):
    terse: ClassVar[tuple[str, ...]] = ("-terse",)
    unanswered = NO_ANSWER
    job_limit = JOB_LIMIT

    def jobs(self) -> dict[str, SchedulerJob]:
        return parse_jobs(self.run("qstat", "-xml", "-g", "d", "-u", getpass.getuser()))

    def count_jobs(self) -> Counter[str]:
        return parse_counts(self.run("qstat", "-xml", "-r", "-g", "d", "-u", getpass.getuser()))

    def key(self, job_id: str) -> str:
        return job_id

    def ended_all(self, job_ids: Sequence[str]) -> dict[str, SchedulerJob]:
        found: dict[str, SchedulerJob] | None = None
        if len(set(map(array_of, job_ids))) > FEW:
            with contextlib.suppress(AnswerTooLong):
                found = self._accounting("-o", getpass.getuser(), "-j")
        if found is None:
            found = {}
            for arguments in accounted(job_ids):
                found |= self._accounting(*arguments)
        return {job_id: found[job_id] for job_id in job_ids if job_id in found}

    def _accounting(self, *arguments: str) -> dict[str, SchedulerJob]:
        try:
            return {job_id: last_of(each) for job_id, each in records(self.run("qacct", *arguments)).items()}
        except AnswerLost:
            raise
        except QueryError:  # no accounting file, or no such job in it
            return {}

    def details(self, job: str) -> Element | None:
        """Returns qstat's XML with all attributes of live jobs (numbers with commas, or a name), or None."""
        answer = self.run("qstat", "-xml", "-j", job, good=(0, 1))
        root = parsed(answer)
        return None if root.tag == "unknown_jobs" or root.find(".//JB_job_number") is None else root

    def origins(self, numbers: Sequence[str]) -> dict[str, JobOrigin]:
        found = {}
        for job in jobs_of(self.details(",".join(numbers))) if numbers else ():
            number, file = job.findtext("JB_job_number", ""), job.findtext("JB_stdout_path_list//PN_path", "")
            found[number] = JobOrigin(number, _token(job), file)
        return found

    def find(self, token: str, name: str) -> str | None:
        numbers = [job.findtext("JB_job_number") for job in jobs_of(self.details(name)) if _token(job) == token]
        return numbers[-1] if numbers else None

    def request(
        self, script: str, environment: Mapping[str, str], *arguments: str, text: str | None = None
    ) -> SubmitCommand:
        noted = command_line(os.fsdecode(Path(script).read_bytes()) if text is None else text)
        named = [script] if text is None else []  # without a path, qsub reads stdin
        return SubmitCommand(["qsub", *noted, *arguments, *named], environment, text)

    def _accepted(self, done: subprocess.CompletedProcess[str]) -> str | None:
        ids = SUBMITTED.findall(f"{done.stdout}\n{done.stderr}")
        return str(ids[-1]) if ids else None

    def _hint(self, code: int, words: str) -> str | None:
        return next((hint for pattern, hint in HINTS if re.search(pattern, words)), None)

    def options(self, jobs: Sequence[str], token: str | None = None) -> list[str]:
        return [*([] if token is None else ["-ac", f"{TOKEN}={token}"]), *dependency(jobs)]

    def wait_for(self, job_id: str, jobs: Sequence[str]) -> None:
        self.run("qalter", *(dependency(jobs) or ["-hold_jid", ""]), native_id(job_id))

    def cancel(self, *job_ids: str) -> None:
        done = query("qdel", *map(native_id, job_ids), timeout=self.timeout, environment=os.environ, good=(0, 1))
        lines = f"{done.stdout}\n{done.stderr}".splitlines()
        problem = " ".join(" ".join(line for line in lines if not CANCELLED.search(line)).split())
        if UNREACHED.search(problem):
            raise QueryError(problem)
        if NO_ANSWER.search(problem):
            raise AnswerLost(problem)
        if done.returncode and (problem or not any(map(str.strip, lines))):
            raise QueryError(f"qdel failed (exit {done.returncode}): {problem or 'no message'}")

    def throttle(self, job_id: str, most: int) -> None:
        self.run("qalter", "-tc", str(most), array_of(job_id))

    def largest_array(self, queue: str | None) -> int | None:
        """Returns the maximum size of an array (max_aj_tasks of the configuration), or None without a limit (0)."""
        match = re.search(r"^max_aj_tasks\s+(\d+)", self.run("qconf", "-sconf"), re.MULTILINE)
        return (int(match[1]) or None) if match else None

    def environments(self) -> list[ParallelEnvironment]:
        names = self.run("qconf", "-spl", good=(0, 1)).split("\n")
        return [each for name in names if name.strip() and (each := self.environment(name.strip()))]

    def environment(self, name: str) -> ParallelEnvironment | None:
        text = self.run("qconf", "-sp", name, good=(0, 1))
        return environment_of(attributes(text)) if "allocation_rule" in text else None

    def queues(self) -> list[ClusterQueue]:
        names = self.run("qconf", "-sql", good=(0, 1)).split()
        if not names:
            return []
        text = self.run("qconf", "-sq", ",".join(names))
        return [queue_of(attributes(block)) for block in re.split(r"(?m)^(?=qname\s)", text) if block.strip()]

    def instances(self) -> list[QueueInstance]:
        return parse_instances(self.run("qstat", "-f", "-xml"))

    def hosts(self) -> list[Host]:
        return parse_hosts(self.run("qhost", "-F", "-xml"))

    def complexes(self) -> list[Complex]:
        return parse_complexes(self.run("qconf", "-sc"))

    def verified(self, job: str) -> tuple[str, bool]:
        """Returns what `qalter -w v` says of a job as if it were alone, and whether it could never start."""
        said = self.run("qalter", "-w", "v", job, good=(0, 1))
        return said, "no suitable queues" in said


HINTS = (
    (r"parallel environment .* does not exist", "`qconf -spl` lists the parallel environments"),
    (r"unknown queue", "`qconf -sql` lists the queues"),
    (r"unknown resource", "`qconf -sc` lists the resources that a job can ask for"),
    (r"requested project", "`qconf -sprjl` lists the projects"),
    (r"no suitable queues", "`qalter -w v` and `qconf -sq QUEUE` show why"),
    (r"no access to project|not allowed", "ask the site who may use it"),
)


def command_line(script: str) -> list[str]:
    # The options in lines `#qsub -g GROUP`: Altair's qsub takes some on its command line only
    return shlex.split(" ".join(re.findall(r"^#qsub (-.*)$", script, re.MULTILINE)))


def array_of(job_id: str) -> str:
    return job_id.partition("_")[0]


def native_id(job_id: str) -> str:
    """Converts an id to Grid Engine's syntax: `17.1` for the first element of an array, 17_0."""
    number, _, element = job_id.partition("_")
    return f"{number}.{int(element) + 1}" if element else number


def dependency(jobs: Sequence[str]) -> list[str]:
    """Returns the options with which a job starts when all `jobs` have ended; for an element, its whole array."""
    return ["-hold_jid", ",".join(dict.fromkeys(map(array_of, jobs)))] if jobs else []


def state_of(letters: str) -> JobState:
    """Returns the state of a job from the letters that qstat prints (qstat(1)).

    | letters (the first row that matches applies) | state |
    |---|---|
    | with z | GONE |
    | with q or w, also Eqw: its start failed, and it waits for `qmod -cj` | PENDING |
    | with s, S, T, N or P | SUSPENDED |
    | with r or t | RUNNING |
    | anything else | UNKNOWN |
    """
    if "z" in letters:
        return JobState.GONE
    if "q" in letters or "w" in letters:
        return JobState.PENDING
    if set(letters) & set("sSTNP"):
        return JobState.SUSPENDED
    if set(letters) & set("rt"):
        return JobState.RUNNING
    return JobState.UNKNOWN


def parse_elements(text: str) -> list[int]:
    """Parses the numbers of array elements: `3`, `1-3,7`, `1-7:2`."""
    found: list[int] = []
    for part in re.finditer(r"(\d+)(?:-(\d+))?(?::(\d+))?", text):
        found += range(int(part[1]), int(part[2] or part[1]) + 1, int(part[3] or 1))
    return found


def parse_jobs(text: str) -> dict[str, SchedulerJob]:
    """Parses `qstat -xml -g d` into jobs and array elements by id; raises QueryError."""
    jobs: dict[str, SchedulerJob] = {}
    for each in parsed(text).iter("job_list"):
        letters, number = each.findtext("state", ""), each.findtext("JB_job_number", "")
        elements = [f"{number}_{element - 1}" for element in parse_elements(each.findtext("tasks", ""))]
        for job_id in elements or [number]:
            jobs[job_id] = SchedulerJob(job_id, state_of(letters), letters)
    return jobs


def accounted(job_ids: Iterable[str]) -> list[list[str]]:
    """Returns the arguments of each qacct needed for these jobs; none lists more than io_bounds.QACCT_ELEMENTS."""
    parts: dict[tuple[str, int], list[int]] = {}
    for job_id in job_ids:
        array, _, element = job_id.partition("_")
        part = int(element) // io_bounds.QACCT_ELEMENTS if element else -1
        parts.setdefault((array, part), []).append(int(element or 0) + 1)
    return [
        ["-j", array, *(["-t", f"{min(tasks)}-{max(tasks)}"] if part >= 0 else [])]
        for (array, part), tasks in parts.items()
    ]


def records(text: str) -> dict[str, list[dict[str, str]]]:
    """Parses the output of `qacct -j`; returns the records of each job, oldest first, by job id.

    With accounting_summary FALSE, each task that a job starts on a node has a record of its own, before the job's. Only
    its start tells it from an execution of the job: it is not before that of the next one.
    """
    found: dict[str, list[dict[str, str]]] = {}
    for block in re.split(r"^=+$", text, flags=re.MULTILINE):
        pairs = (line.split(None, 1) for line in block.splitlines())
        record = {pair[0]: pair[1].strip() if len(pair) > 1 else "" for pair in pairs if pair}
        if number := record.get("jobnumber"):
            task = record.get("taskid", "undefined")
            found.setdefault(number if not task.isdecimal() else f"{number}_{int(task) - 1}", []).append(record)
    return {job_id: _of_job(each) for job_id, each in found.items()}


def _of_job(times: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    executions: list[dict[str, str]] = []  # the newest first
    begin = ""  # of the last of them
    for record in reversed(times):
        its_begin = _moment(record.get("start_time", ""))
        if not (record.get("granted_pe", "NONE") != "NONE" and begin and begin <= its_begin):
            executions.append(record)
            begin = its_begin
    return executions[::-1]


def parse_counts(text: str) -> Counter[str]:
    """Counts the jobs in `qstat -xml -r -g d` by each queue that they run in or request ("": all); QueryError."""
    found: Counter[str] = Counter()
    for each in parsed(text).iter("job_list"):
        queues = each.findtext("queue_name", "") or each.findtext("hard_req_queue", "")
        found.update({"", *(queue.partition("@")[0] for queue in queues.split(","))})
    return found


def outcome(record: Mapping[str, str]) -> str:
    """Returns the outcome of one execution of a job, with Slurm's state names, which submitit knows.

    | failed | exit_status | outcome |
    |---|---|---|
    | 25 (rescheduled) | any | REQUEUED: it was started again, or deleted before that |
    | 37 (h_rt, h_cpu or h_vmem), ran for its h_rt | any | TIMEOUT |
    | 37, used its h_vmem | any | OUT_OF_MEMORY |
    | any, with a `deleted_by` (only Univa's and Altair's) | any | CANCELLED |
    | 0 | 0, without any page fault (ru_minflt 0) | FORGOTTEN: no node reported the end (`qdel -f`) |
    | 0 | 0 | COMPLETED |
    | anything else | any | FAILED |
    """
    code = record.get("failed", "").split(" ")[0]
    if code == RESCHEDULED:
        return "REQUEUED"
    if code == LIMIT:
        limits = dict(re.findall(r"(h_rt|h_vmem)=([^\s,]+)", record.get("category", "")))
        ran = seconds_or_none(record.get("ru_wallclock", "").partition("s")[0])
        used = size_or_none(record.get("maxvmem", ""))
        if (ran or 0) >= (seconds_or_none(limits.get("h_rt", "")) or math.inf):
            return "TIMEOUT"
        return "OUT_OF_MEMORY" if (used or 0) >= (size_or_none(limits.get("h_vmem", "")) or math.inf) else "FAILED"
    if deleter(record):
        return "CANCELLED"
    if code != "0" or record.get("exit_status", "").split(" ")[0] != "0":
        return "FAILED"
    return "FORGOTTEN" if record.get("ru_minflt") == "0" else "COMPLETED"


def deleter(record: Mapping[str, str]) -> str:
    """Returns the user who deleted the job; empty if nobody did, or not recorded (only Univa's and Altair's do)."""
    by = record.get("deleted_by", "NONE").partition("@")[0]
    return "" if by == "NONE" else by


def last_of(times: Sequence[Mapping[str, str]]) -> SchedulerJob:
    """Returns the job with the outcome of its last execution. times: accounting records of the job, oldest first."""
    record = times[-1]
    task, state = record.get("taskid", ""), outcome(record)
    job_id = record["jobnumber"] + (f"_{int(task) - 1}" if task.isdecimal() else "")
    if state in ("REQUEUED", "FORGOTTEN"):
        return SchedulerJob(job_id, JobState.GONE, "FORGOTTEN")
    why = record.get("failed", "").partition(" ")[2].strip().removeprefix(": ")
    if state == "FAILED" and not why:
        why = f"exit status {record.get('exit_status', '')}"
    return SchedulerJob(job_id, OUTCOMES[state], state, why)


def parsed(text: str) -> Element:
    """Parses a command's XML (`unknown_jobs` if it knows none); raises QueryError if it is not valid."""
    from xml.etree import ElementTree

    # qstat prints elements of `unknown_jobs` with names that are empty or start with a digit, which is invalid XML.
    if "<unknown_jobs" in text:
        return ElementTree.Element("unknown_jobs")
    try:
        return ElementTree.fromstring(text)  # noqa: S314  the user's own qstat
    except ElementTree.ParseError as error:
        raise QueryError(f"qstat's answer could not be read: {error}") from None


def jobs_of(root: Element | None) -> list[Element]:
    """Returns the XML element of each job in the output of `qstat -xml -j` (`SGE.details`)."""
    found = () if root is None else root.iterfind("djob_info/*")
    return [each for each in found if each.find("JB_job_number") is not None]


def _token(job: Element) -> str:
    for each in job.iterfind("JB_context/*"):
        if each.findtext("VA_variable") == TOKEN:
            return each.findtext("VA_value", "")
    return ""


ACCESS = ("user_lists", "xuser_lists", "projects", "xprojects")
BY_HOST = re.compile(r"\[[^=\]]+=([^\]]*)\]")
LIMITS = ("h_vmem", "s_vmem", "h_data", "s_data")  # limits of a job's processes, which Grid Engine multiplies by slots
NO_LIMIT = ("INFINITY", "NONE", "")
# Explanations of the state letters of a queue instance that takes no jobs now (qstat(1)).
QUEUE_STATES = {
    "u": "its host does not answer", "d": "it is disabled", "D": "its calendar disables it", "E": "it is in error",
    "a": "its load is too high", "A": "its load is too high", "s": "it is suspended", "S": "it is suspended by another",
    "C": "its calendar suspends it", "c": "its configuration is ambiguous", "o": "it is orphaned",
}  # fmt: skip


class ParallelEnvironment(Struct):
    """A parallel environment, which gives jobs more than one slot (sge_pe(5))."""

    name: str  # name for qsub -pe
    slots: int  # maximum number of slots of all jobs in the parallel environment together
    rule: str  # allocation_rule: number of slots on each host, or $pe_slots (all on one host), $fill_up, $round_robin
    starts_tasks: bool  # whether `qrsh -inherit` may start tasks on the hosts (control_slaves)
    restricted: bool = False  # whether only some users can use the parallel environment

    @property
    def per_host(self) -> int | None:
        """Number of slots on each host; None if the rule does not fix it."""
        return int(self.rule) if self.rule.isdecimal() else None


class ClusterQueue(Struct):
    name: str
    # longest wall-time limit of its hosts in seconds: the lower one of h_rt and s_rt, at which Grid Engine ends a
    # parallel job, too; None: no limit
    time: int | None
    environments: tuple[str, ...]  # names of the parallel environments that the queue offers
    restricted: bool = False  # whether only some users or projects can use the queue


class QueueInstance(Struct):
    queue: str
    host: str
    used: int  # number of used slots
    total: int  # number of slots
    state: str = ""  # state letters as qstat prints them; QUEUE_STATES explains those of an instance that takes no jobs

    @property
    def broken(self) -> bool:
        return any(letter in QUEUE_STATES for letter in self.state)


@dataclass(frozen=True)
class Host:
    name: str
    cpus: int | None  # number of CPUs; None: the host does not answer
    mem: int | None  # memory in bytes; None: the host does not answer
    consumables: Mapping[str, float] = field(default_factory=dict)  # free amount of each consumable resource by name


class Complex(Struct):
    name: str  # long name of the resource
    shortcut: str  # short name, which jobs can use as well
    type: str  # type of the resource's values, such as INT, MEMORY or RSMAP
    requestable: bool  # whether jobs can request the resource
    consumed: str  # whether jobs consume the resource: NO, YES (the amount counts per slot), JOB (per job) or HOST

    @property
    def per_slot(self) -> bool:
        """Whether the amount of a request counts for each slot of a job; else once for a node (JOB: for its first)."""
        return self.consumed == "YES" or (self.consumed == "NO" and self.name in LIMITS)


def attributes(text: str) -> dict[str, str]:
    """Parses qconf's lines `NAME VALUE`; a line that ends with a backslash continues on the next line."""
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    pairs = (line.split(None, 1) for line in lines if line.strip() and not line.startswith("#"))
    return {pair[0]: pair[1].strip() if len(pair) > 1 else "" for pair in pairs}


def environment_of(values: Mapping[str, str]) -> ParallelEnvironment:
    return ParallelEnvironment(
        values.get("pe_name", ""), int(values.get("slots", "0")), values.get("allocation_rule", ""),
        values.get("control_slaves", "").upper() == "TRUE",
        any(values.get(key, "NONE").upper() != "NONE" for key in ("user_lists", "xuser_lists")),
    )  # fmt: skip


def queue_of(values: Mapping[str, str]) -> ClusterQueue:
    """Converts `qconf -sq`, whose values may differ by host group (`01:00:00,[@long=INFINITY]`), to what one has."""
    found = {key: [value.partition(",[")[0].strip(), *BY_HOST.findall(value)] for key, value in values.items()}
    limits = [[seconds_or_none(each) for each in found.get(name, [])] for name in ("h_rt", "s_rt")]
    longest = [max(each for each in limit if each is not None) for limit in limits if limit and None not in limit]
    names = re.split(r"[\s,]+", " ".join(found.get("pe_list", [])))
    return ClusterQueue(
        found.get("qname", [""])[0],
        min(longest, default=None),
        tuple(dict.fromkeys(each for each in names if each.upper() not in NO_LIMIT)),
        any(all(each.upper() != "NONE" for each in found[key]) for key in ACCESS if key in found),
    )


def parse_instances(text: str) -> list[QueueInstance]:
    found = []
    for each in parsed(text).iter("Queue-List"):
        queue, _, host = each.findtext("name", "").partition("@")
        used, total = (int(each.findtext(name, "0")) for name in ("slots_used", "slots_total"))
        found.append(QueueInstance(queue, host, used, total, each.findtext("state", "")))
    return found


def parse_hosts(text: str) -> list[Host]:
    """Parses the output of `qhost -F -xml`, which shows the free amount of each consumable. Skips the host `global`."""
    found = []
    for each in parsed(text).iter("host"):
        if (name := each.get("name", "")) == "global":
            continue
        values = {value.get("name"): value.text or "" for value in each.iter("hostvalue")}
        cpus, mem = values.get("num_proc", "-"), size_or_none(values.get("mem_total", "-"))
        free = (one for one in each.iter("resourcevalue") if one.get("dominance", "").endswith("c"))
        numbers = {one.get("name", ""): re.match(r"\d+(?:\.\d+)?", one.text or "") for one in free}
        consumables = {key: float(number[0]) if number else 0.0 for key, number in numbers.items()}
        found.append(Host(name, int(cpus) if cpus.isdecimal() else None, mem, consumables))
    return found


def parse_complexes(text: str) -> list[Complex]:
    rows = [line.split() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [
        Complex(row[0], row[1], row[2], row[4].upper() in ("YES", "FORCED"), row[5].upper())
        for row in rows if len(row) >= 8
    ]  # fmt: skip


def history(job_id: str, sge: SGE) -> list[JobExecution]:
    return of_records(records(sge.run("qacct", *accounted([job_id])[0])).get(job_id, []))


def of_records(times: Sequence[Mapping[str, str]]) -> list[JobExecution]:
    return [
        JobExecution(
            outcome(each), deleter(each), _moment(each.get("start_time", "")),
            _moment(each.get("end_time", "")), size_or_none(each.get("maxvmem", "")),
        )
        for each in times
    ]  # fmt: skip


def _moment(text: str) -> str:
    try:
        return time.strftime("%Y-%m-%dT%H:%M:%S", time.strptime(text, "%a %b %d %H:%M:%S %Y"))
    except ValueError:  # -/- for a job that did not run; Univa Grid Engine prints another format
        return ""


NOTICES: tuple[Form, ...] = ()  # Grid Engine writes none into the output of a job that it kills
