"""What PBS is asked: its job commands (qsub, qstat, qselect, qalter, qdel), each with its parser."""

from __future__ import annotations

import contextlib
import getpass
import json
import re
import shlex
import signal
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from launcher.failures.messages import signal_name
from launcher.fast_dataclasses import Struct
from launcher.files.retried_reads import read_text, unwrap
from launcher.schedulers.base import OUTCOMES, AnswerLost, JobExecution, JobOrigin, JobState, QueryError, SchedulerJob
from launcher.schedulers.pbs.in_job import find as find
from launcher.schedulers.pending import Form
from launcher.schedulers.qsub import TOKEN, QsubCommands
from launcher.schedulers.run_command import SubmitCommand
from launcher.units import parse_size, parse_time, size_or_none

# -- Runs PBS's job commands, each with a timeout, and parses their output


# Job states of qstat(1B). T: it moves to another queue. B: an array that has started. U: the workstation's owner works.
LETTERS = {
    **dict.fromkeys("QHWT", JobState.PENDING), **dict.fromkeys("REB", JobState.RUNNING),
    **dict.fromkeys("SU", JobState.SUSPENDED), **dict.fromkeys("XF", JobState.GONE),
}  # fmt: skip
# Patterns of the comments of ended jobs, each with the outcome. `terminated by` names the deleting user.
ENDS = (
    (r" and terminated( by \S+)?$", "CANCELLED"), (r"exceeded resource walltime$", "TIMEOUT"),
    (r"^Job run at .* and failed$", "FAILED"), (r"^Job run at .* and finished$", "COMPLETED"),
)  # fmt: skip
# Exit codes are PBSE_* modulo 256 (pbs_error.h): 15001, 15139 (a job in the history), 15159 (an ended subjob), 15136.
UNKNOWN_JOB, FINISHED, FINISHED_SUBJOB, UNKNOWN_QUEUE, UNAUTHORIZED, HOOK = 153, 35, 55, 170, 159, 32
DELETED = "91"  # substate of a deleted job
# Error messages of PBS's commands if the server was not reached.
_UNREACHED = r"cannot connect|Connection refused|Unknown Host|No route to host|Server shutting down"
UNREACHED = re.compile(_UNREACHED, re.IGNORECASE)
# Error messages if the server was not reached or its reply was lost, so that the job may exist.
NO_ANSWER = re.compile(
    rf"{_UNREACHED}|Communication failure|End of File|Premature|timed out|Protocol|try again", re.IGNORECASE
)
JOB_LIMIT = re.compile(r"max_queued|Maximum number of jobs|would exceed|exceeds .*limit on", re.IGNORECASE)
HINTS = {
    159: "you may not use the project (-P), the account (-A) or the queue (acl_users, acl_groups, acl_hosts)",
    166: "PBS does not take the value of a resource, of the place statement, or of the project or account",
    170: "`qstat -Q` lists the queues",
    175: "PBS takes no jobs from root, or from users whom its hosts do not know",
    187: "`pbsnodes -av` shows what the nodes have",
    188: "`qstat -Qf` shows the limits of the queues",
}
FEW = 3  # up to this number of ended jobs, each is queried by itself; more, and elements of one array, with one list
NEWEST = 100  # maximum number of jobs with the same name in which a token is looked for, the newest first


@dataclass(frozen=True)
class PBS(QsubCommands):
    terse: ClassVar[tuple[str, ...]] = ()
    unanswered = NO_ANSWER
    refusal = HOOK
    job_limit = JOB_LIMIT

    def jobs(self, *also_over: str) -> dict[str, SchedulerJob]:
        return parse_jobs(self.run("qstat", *also_over, "-t", "-w", "-s", "-u", getpass.getuser()))

    def count_jobs(self) -> Counter[str]:
        return parse_counts(self.run("qstat", "-t", "-w", "-s", "-u", getpass.getuser()))

    def ended(self, job_id: str) -> SchedulerJob | None:
        record = self.record(job_id)
        return None if record is None else parse_record(native_id(job_id), record)

    def ended_all(self, job_ids: Sequence[str]) -> dict[str, SchedulerJob]:
        if len(job_ids) > FEW or len(set(map(array_of, job_ids))) < len(job_ids):
            history = self.jobs("-x")
            return {key: history[key] for key in map(short, job_ids) if key in history}
        found = ((short(job_id), self.ended(job_id)) for job_id in job_ids)
        return {key: job for key, job in found if job is not None}

    def key(self, job_id: str) -> str:
        return short(job_id)

    def record(self, job_id: str) -> dict[str, Any] | None:
        """Returns all attributes of one job as texts and dictionaries of texts, or None if the job is unknown."""
        wanted = short(job_id)
        for also_over in (["-x"], []):  # without job history, -x finds nothing, not even running jobs
            command = ["qstat", *also_over, "-f", "-F", "json", native_id(job_id)]
            answer = self.run(*command, good=(0, UNKNOWN_JOB, FINISHED))
            for name, record in (section(answer, "Jobs") if answer.strip() else {}).items():
                if short(name) == wanted:
                    return dict(record)
        return None

    def origins(self, numbers: Sequence[str]) -> dict[str, JobOrigin]:
        # One or two commands for each number
        found = {}
        for number in numbers:
            for job_id in (number, f"{number}[]"):
                if record := self.record(job_id):
                    file = str(record.get("Output_Path", "")).partition(":")[2].rstrip("/") + "/output"
                    found[number] = JobOrigin(job_id, str(_variables(record).get(TOKEN, "")), file)
                    break
        return found

    def holds(self, job_id: str) -> bool:
        """Returns whether PBS knows the job; False also for a job that ended without having run."""
        record = self.record(job_id)
        return record is not None and (record.get("job_state") not in ("F", "X") or "run_count" in record)

    def find(self, token: str, name: str) -> str | None:
        found = [self.run("qselect", *over, "-u", getpass.getuser(), "-N", name).split() for over in ((), ("-x",))]
        for job_id in sorted({*found[0], *found[1]}, key=_number, reverse=True)[:NEWEST]:
            if (record := self.record(job_id)) and _variables(record).get(TOKEN) == token:
                return job_id
        return None

    def request(
        self, script: str, environment: Mapping[str, str], *arguments: str, text: str | None = None
    ) -> SubmitCommand:
        kept = {name: value for name, value in environment.items() if name != "PBS_DPREFIX"}
        words = list(arguments)
        if "-v" in words:  # it replaces those of the script
            ours = words.index("-v") + 1
            given = (unwrap(read_text(script)) or "") if text is None else text
            words[ours] = ",".join([words[ours], *other_variables(given, words[ours])])
        return SubmitCommand(["qsub", *words, script if text is None else "-"], kept, text)

    def _accepted(self, done: subprocess.CompletedProcess[str]) -> str | None:
        ids = re.findall(r"^\s*(\d+(?:\[\])?\.\S+)\s*$", done.stdout, re.MULTILINE)  # a site's wrapper may print more
        return str(ids[-1]) if done.returncode == 0 and ids else None

    def options(self, jobs: Sequence[str], token: str | None = None) -> list[str]:
        # Without -f, qsub leaves a process through which later qsubs submit, even after they have exceeded the timeout.
        return ["-f", *([] if token is None else ["-v", f"{TOKEN}={token}"]), *dependency(jobs)]

    def wait_for(self, job_id: str, jobs: Sequence[str]) -> None:
        self.run("qalter", *dependency(jobs), job_id)

    def _hint(self, code: int, words: str) -> str | None:
        if code == UNAUTHORIZED:
            with contextlib.suppress(QueryError):
                queues = self.queues()
                if not any(queue.only for queue in queues):
                    return "you may not use the project (-P) or the account (-A)"
                if others := ", ".join(queue.name for queue in queues if queue.open):
                    return (
                        f"you may not use the project (-P), the account (-A) or the queue; queues for anybody: {others}"
                    )
        if words.endswith("Unknown resource: ngpus"):
            return "GPUs are not counted as ngpus there: cluster.gpu_directive=none (PBSExecutor: pbs_chunk)"
        if "Unknown resource Resource_List." in words:
            return "the site has no such resource of a whole job"
        return HINTS.get(code)

    def cancel(self, *job_ids: str) -> None:
        """See `Queries.cancel`. A job that has ended already is an error if it is one of several."""
        try:
            over = (FINISHED, FINISHED_SUBJOB, UNKNOWN_JOB) if len(job_ids) == 1 else ()  # the code of the last error
            self.run("qdel", *map(native_id, job_ids), good=(0, *over))
        except QueryError as error:
            words = str(error)
            if NO_ANSWER.search(words) and not UNREACHED.search(words):
                raise AnswerLost(words) from None
            raise

    def throttle(self, job_id: str, most: int) -> None:
        match = re.fullmatch(r"(\d+)(?:\[\])?(\..*)?", job_id)
        array = f"{match[1]}[]{match[2] or ''}" if match else job_id
        self.run("qalter", "-W", f"max_run_subjobs={most}", array)

    def queues(self) -> list[PBSQueue]:
        _, server = self.server()
        found = self._queues()
        try:
            return [_queue(name, values, name == server.get("default_queue")) for name, values in found.items()]
        except ValueError as error:
            raise QueryError(f"qstat -Q has a limit that could not be read: {error}") from None

    def nodes(self) -> list[PBSNode]:
        return parse_nodes(self.run("pbsnodes", "-a"))

    def queue_facts(self, name: str) -> QueueFacts | None:
        return next((queue_facts(each, values) for each, values in self._queues(name).items()), None)

    def largest_array(self, queue: str | None) -> int | None:
        _, server = self.server()
        sizes, queue = [server.get("max_array_size")], queue or server.get("default_queue")
        if queue:
            sizes += [values.get("max_array_size") for values in self._queues(queue).values()]
        return min((int(size) for size in sizes if size and size.isdecimal()), default=None)

    def _queues(self, *names: str) -> dict[str, Any]:
        return section(self.run("qstat", "-Q", "-f", "-F", "json", *names, good=(0, UNKNOWN_QUEUE)), "Queue")

    def server(self) -> tuple[str, dict[str, Any]]:
        found = section(self.run("qstat", "-B", "-f", "-F", "json"), "Server")
        return next(iter(found.items()), ("", {}))


def short(job_id: str) -> str:
    """Returns a job id without the server, and with the subjob in brackets; raises ValueError if it is none of PBS.

    150[5].pbs-srv and submitit's 150.pbs-srv_5 both become 150[5]. qstat truncates long ids, but never their number.
    """
    match = re.match(r"(\d+)(\[\d*\])?", job_id)
    if match is None:
        raise ValueError(f"{job_id!r} is not the id of a PBS job")
    element = re.search(r"_(\d+)$", job_id)
    return match[1] + (match[2] or (f"[{element[1]}]" if element else ""))


def native_id(job_id: str) -> str:
    """Converts submitit's id of an array element to PBS's: `150[5].pbs-srv` for 150.pbs-srv_5; keeps any other id."""
    if match := re.fullmatch(r"(\d+)(\..*)?_(\d+)", job_id):
        return f"{match[1]}[{match[3]}]{match[2] or ''}"
    return job_id


def array_of(job_id: str) -> str:
    return re.sub(r"\[\d+\]", "[]", native_id(job_id))


def other_variables(script: str, given: str) -> list[str]:
    """Returns what the `#PBS -v` lines of a script name, without those that `given` (`NAME=VALUE,...`) names."""
    names = {each.partition("=")[0] for each in given.split(",")} | {TOKEN}
    lines = re.findall(r"^#PBS -v (.+)$", script, re.MULTILINE)
    found = (each for line in lines for word in shlex.split(line) for each in word.split(","))
    return [each for each in found if each.partition("=")[0] not in names]


def dependency(jobs: Sequence[str]) -> list[str]:
    return ["-W", f"depend=afterany:{':'.join(map(native_id, jobs))}"] if jobs else []


def _number(job_id: str) -> int:
    return int(re.match(r"\d*", job_id)[0] or 0)  # type: ignore[index]


def parse_jobs(text: str) -> dict[str, SchedulerJob]:
    """Parses the output of `qstat -w -s -u USER`, eleven columns and an indented comment, into jobs by `short` id."""
    jobs: dict[str, SchedulerJob] = {}
    last = None
    for line in text.splitlines():
        columns = line.split()
        if re.match(r"\d+(\[\d*\])?[.*]", line) and len(columns) == 11:
            last, letter = short(columns[0]), columns[9]
            jobs[last] = SchedulerJob(last, LETTERS.get(letter, JobState.UNKNOWN), letter)
        elif last is not None and line.startswith("   ") and (comment := line.strip()) != "--":
            jobs[last] = _with_comment(jobs[last], comment)
    return jobs


def parse_counts(text: str) -> Counter[str]:
    """Counts the live jobs in the output of `qstat -t -w -s -u USER` by queue, its third column; "" is the total."""
    rows = [columns for line in text.splitlines() if len(columns := line.split()) == 11]
    live = [columns for columns in rows if LETTERS.get(columns[9]) is not JobState.GONE]
    queues = [columns[2] for columns in live if re.match(r"\d+(\[\d+\])?[.*]", columns[0])]
    return Counter(queues) + Counter({"": len(queues)})


def _with_comment(job: SchedulerJob, comment: str) -> SchedulerJob:
    word = job.raw_state
    if job.state is JobState.GONE:  # qstat truncates long comments, so the outcome may be missing
        word = next((outcome for pattern, outcome in ENDS if re.search(pattern, comment)), word)
    elif comment == "Subjob finished":  # PBS writes it to queued siblings too
        return job
    return SchedulerJob(job.id, OUTCOMES.get(word, job.state), word, comment)


def parse_record(job_id: str, record: Mapping[str, Any]) -> SchedulerJob:
    """Returns a job with the state and outcome that its full record (`PBS.record`) shows.

    The raw state of an ended job is one of Slurm's names, which submitit knows.

    | state | run_count | Exit_status, substate, comment | JobState |
    |---|---|---|---|
    | not F or X | any | any: they may be left from before a requeue | by the state letter |
    | F, X | missing | comment `Subjob finished`, or any Exit_status | GONE: the status is the array's |
    | | missing | no Exit_status, substate 91 | CANCELLED: deleted before it ran |
    | | missing | no Exit_status, other substates | FAILED: a dependency was not met |
    | | present | substate 91, any Exit_status | CANCELLED |
    | | present | no Exit_status | GONE |
    | | present | -29, or a comment with `exceeded resource walltime` | FAILED: timeout |
    | | present | 0 | DONE |
    | | present | anything else | FAILED |
    """
    letter, comment = str(record.get("job_state", "")), str(record.get("comment", ""))
    state = LETTERS.get(letter, JobState.UNKNOWN)
    if state is not JobState.GONE:
        return SchedulerJob(job_id, state, letter, comment)
    status, ran, number = record.get("Exit_status"), "run_count" in record, None
    if not ran and (status is not None or comment == "Subjob finished"):
        word = "FORGOTTEN"
    elif record.get("substate") == DELETED:
        word = "CANCELLED"
    elif not ran:
        word, comment = "FAILED", comment or "never started: a dependency was not met"
    elif status is None:
        word = "FORGOTTEN"
    elif status == "-29" or "exceeded resource walltime" in comment:
        word = "TIMEOUT"
    elif status == "0":
        word = "COMPLETED"
    else:
        word, number = "FAILED", _signal(status)
        end = f"exit status {status}" if number is None else f"killed by {signal_name(number)}"
        comment = f"{end}; {comment}"
    return SchedulerJob(job_id, OUTCOMES[word], word, comment, signal=number)


def _signal(status: str) -> int | None:
    # Negative values are PBS's own codes (pbs_job_purge, JOB_EXEC_*)
    number = int(status) - 256 if status.isdecimal() else 0
    return number if number in signal.valid_signals() else None


def section(text: str, name: str) -> dict[str, Any]:
    """Returns a section of the output of `qstat -F json`, with all values as texts; {}: none; raises QueryError.

    The JSON may be invalid: `inf` and `+5` have no quotes, and quotes, backslashes and line breaks are not always
    escaped. But each value starts on a new line, and ends where the next one or the section's end is, so it is cut out.
    """
    try:
        section = json.loads(VALUE.sub(_requoted, text)).get(name, {})
    except ValueError as error:
        raise QueryError(f"qstat's answer could not be read: {error}") from None
    return dict(section)


VALUE = re.compile(r'^( *"[^"\n]*":)(?!\{$)(.*?)(,?)$(?=\n *(?:"[^"\n]*":|\})|\Z)', re.MULTILINE | re.DOTALL)
ESCAPED = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


def _requoted(match: re.Match[str]) -> str:
    value = match[2]
    if len(value) > 1 and value[0] == value[-1] == '"':
        value = re.sub(r'\\(["\\/bfnrt])', lambda found: ESCAPED.get(found[1], found[1]), value[1:-1])
    return match[1] + json.dumps(value) + match[3]


def _variables(record: Mapping[str, Any]) -> Mapping[str, Any]:
    found = record.get("Variable_List")
    return found if isinstance(found, dict) else {}


def _queue(name: str, values: Mapping[str, Any], default: bool) -> PBSQueue:
    most, least = values.get("resources_max") or {}, values.get("resources_min") or {}
    routes = values.get("queue_type") == "Route"
    destinations = values.get("route_destinations", "").split(",") if routes else []
    return PBSQueue(
        name,
        default,
        accepts=values.get("enabled") == "True",
        routes=routes,
        time=parse_time(most["walltime"]) if "walltime" in most else None,
        nodes=int(most["nodect"]) if "nodect" in most else None,
        cpus=int(most["ncpus"]) if "ncpus" in most else None,
        gpus=int(most["ngpus"]) if "ngpus" in most else None,
        mem=parse_size(most["mem"]) if "mem" in most else None,
        least_time=parse_time(least["walltime"]) if "walltime" in least else 0,
        least_nodes=int(least.get("nodect", 0)),
        least_gpus=int(least.get("ngpus", 0)),
        destinations=tuple(each.partition("@")[0] for each in destinations if each),
        inner=values.get("from_route_only") == "True",
        started=values.get("started") != "False",
        only=tuple(f"{kind}s" for kind in ("user", "group", "host") if values.get(f"acl_{kind}_enable") == "True"),
    )


def queue_facts(name: str, values: Mapping[str, Any]) -> QueueFacts:
    """Parses the attributes of a queue or server in `qstat -Qf` or `qstat -Bf`. Nested limits become one text."""
    found = {key: values[key] for key in LIMITS if key in values}
    found |= {key: value for key, value in values.items() if key.partition(".")[0] in LIMITS}  # max_run_res.ncpus
    for key, value in found.items():
        if isinstance(value, Mapping):
            found[key] = ", ".join(f"{name}: {each}" for name, each in value.items())
    found |= {f"resources_max.{key}": value for key, value in (values.get("resources_max") or {}).items()}
    limits = {key: str(value) for key, value in found.items()}
    return QueueFacts(name, started=values.get("started", "True") == "True", limits=limits)


def parse_nodes(text: str) -> list[PBSNode]:
    """Parses the output of `pbsnodes -a`: each vnode's name is followed by its indented attributes.

    The vnodes of a host are one node: a chunk may use several of them, but none that is broken.
    """
    found: list[tuple[str, dict[str, str]]] = []
    for line in text.splitlines():
        if line and not line[0].isspace():
            found.append((line.strip(), {}))
        elif found and (match := re.match(r"\s+(\S+) = (.*)", line)):
            found[-1][1][match[1]] = match[2].strip()
    hosts: dict[tuple[str, str], list[PBSNode]] = {}
    for vnode in (_node(name, values) for name, values in found):
        hosts.setdefault((vnode.others.get("host", vnode.name), vnode.queue), []).append(vnode)
    return [vnodes[0] if len(vnodes) == 1 else _joined(vnodes) for vnodes in hosts.values()]


def _node(name: str, values: Mapping[str, str]) -> PBSNode:
    prefix = "resources_available."
    texts = {key.removeprefix(prefix): value for key, value in values.items() if key.startswith(prefix)}
    has = {key: number for key, value in texts.items() if (number := amount(value)) is not None}
    taken = {key: amount(values.get(f"resources_assigned.{key}", "0")) or 0 for key in has}
    free = {key: max(number - taken[key], 0) for key, number in has.items()}
    others = {key: value for key, value in texts.items() if key not in has}
    return PBSNode(name, values.get("state", ""), has, free, values.get("comment", ""), values.get("queue", ""), others)


def _joined(vnodes: Sequence[PBSNode]) -> PBSNode:
    has, free = Counter[str](), Counter[str]()
    for each in vnodes:
        has.update(each.has)
        free.update({} if each.broken else each.free)
    others = {key: value for each in reversed(vnodes) for key, value in each.others.items()}
    first = next((each for each in vnodes if not each.broken), vnodes[0])
    return replace(first, name=vnodes[0].name, has=has, free=free, others=others)


def amount(value: str) -> int | None:
    """Parses the value of a resource to a count, or a size in bytes; None if it is a text."""
    if value.isdecimal():
        return int(value)
    if re.fullmatch(r"0+[kmgtp]?[bw]?", value):
        return 0
    return parse_size(value) if re.fullmatch(r"\d+[kmgtp]?b", value) else None


# Words in the state of a node that takes no jobs (pbs_node_attributes(7B)); other states are free, job-busy ...
BROKEN = ("down", "offline", "stale", "unknown", "unresolvable", "maintenance", "provisioning", "sleep")
LIMITS = (
    "max_run", "max_run_soft", "max_run_res", "max_queued", "max_queued_res", "max_user_run", "max_group_run",
    "max_running", "max_queuable", "max_user_res", "max_group_res",
)  # fmt: skip


class PBSQueue(Struct):
    """A live queue. Its limits are those of one job on all nodes together."""

    name: str  # name of the queue
    default: bool  # whether it is the server's default queue
    accepts: bool  # whether the queue accepts jobs now
    routes: bool  # whether this is a routing queue, which moves jobs to other queues; the limits of those apply
    time: int | None  # maximum wall time in seconds; None: no limit
    nodes: int | None  # maximum number of nodes; None: no limit
    cpus: int | None  # maximum number of CPUs; None: no limit
    gpus: int | None  # maximum number of GPUs; None: no limit
    mem: int | None  # maximum memory in bytes; None: no limit
    least_time: int = 0  # minimum wall time in seconds
    least_nodes: int = 0  # minimum number of nodes
    least_gpus: int = 0  # minimum number of GPUs
    destinations: tuple[str, ...] = ()  # names of a routing queue's destinations
    inner: bool = False  # whether the queue accepts jobs from routing queues only
    started: bool = True  # whether jobs in the queue can start
    only: tuple[str, ...] = ()  # kinds of its access lists (`users`, `groups`, `hosts`); empty: anybody can submit jobs

    @property
    def open(self) -> bool:
        return self.accepts and self.started and not self.routes and not self.inner and not self.only


@dataclass(frozen=True)
class PBSNode:
    name: str  # name as PBS prints it
    state: str  # state as PBS prints it
    has: Mapping[str, int]  # total amount of each countable resource; memory in bytes
    free: Mapping[str, int]  # unassigned amount of each countable resource
    comment: str = ""  # comment as PBS prints it, which may say why the node takes no jobs
    queue: str = ""  # name of the only queue that may use the vnode; empty: all queues
    others: Mapping[str, str] = field(default_factory=dict)  # texts, which a chunk may require (`gpu_model=a100`)

    @property
    def broken(self) -> bool:
        return any(word in self.state for word in BROKEN)


class QueueFacts(Struct):
    name: str  # name of the queue or server
    started: bool  # whether jobs in the queue or server can start
    limits: Mapping[str, str]  # values of the attributes in LIMITS, and of resources_max, as PBS prints them


def history(job_id: str, pbs: PBS) -> list[JobExecution]:
    """Returns the last execution of a job, with the memory of all its nodes together; [] without a record."""
    if (record := pbs.record(job_id)) is None:
        return []
    by = re.search(r"terminated by (\S+?)@", str(record.get("comment", "")))
    used = record.get("resources_used")
    text = str(used.get("mem", "")) if isinstance(used, dict) else ""
    return [JobExecution("", by[1] if by else "", used=size_or_none(text))]


NOTICES: tuple[Form, ...] = (
    ("TIMEOUT", re.compile(r"=>> PBS: job killed: (walltime|cput) ")),
    ("OUT_OF_MEMORY", re.compile(r"=>> PBS: job killed: p?v?mem |^Cgroup mem(sw)? limit exceeded")),
)
