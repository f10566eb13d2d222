"""The record of a job, and its attributes as a user's qstat gets them.

Their order is that of lib/Libattr/master_job_attr_def.xml in OpenPBS 23.06.06.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.pbs.stand_in.arguments import SERVER
from tests.pbs.stand_in.resources import Request, clock
from tests.pbs.stand_in.variables import listed

Attribute = tuple[str, "str | None", str]  # name, resource, value
PROJECT = "_pbs_project_default"
# Substates (job.h).
QUEUED, HELD, HELD_BY_DEPENDENCY, WAITING, STARTING, RUNNING = 10, 20, 22, 30, 41, 42
DELIVERING, RERUNNING, BEGUN = 51, 60, 70
DELETED, FINISHED, FAILED = 91, 92, 93


@dataclass
class Submission:
    """What the options of qsub asked for. An array and its elements share one object."""

    name: str
    owner: str
    host: str
    queue: str
    request: Request
    variables: dict[str, str]
    output: str
    error: str
    arguments: str
    script: bytes | None = None
    executable: str | None = None
    arg_list: list[str] = field(default_factory=list)
    account: str | None = None
    project: str = PROJECT
    join: str = "n"
    keep: str = "n"
    remove: str | None = None
    rerunable: bool = True
    shell: str | None = None
    checkpoint: str = "u"
    mail_points: str = "a"
    mail_users: str | None = None
    priority: str = "0"
    umask: str | None = None
    group_list: str | None = None
    held: bool = False
    start_after: int | None = None
    indices: list[int] | None = None
    indices_text: str = ""
    max_run_subjobs: int | None = None


@dataclass
class Job:
    """The record of a job, an array, or an element of an array (then `parent` and `index` are set).

    All times are in seconds since the epoch.

    Attributes:
        run_count: how often the job has started; None: never.
        purge: whether to remove the record at the job's end, although history is kept.
        depend: ids of the jobs that it depends on and of those that depend on it, by kind of dependency:
            {"afterok": ["3.pbs-srv@pbs-srv"]}.
        forgotten: whether this element's own record has been removed (it was deleted before it ran, or there is no
            history), so that qstat shows attributes of its array.
    """

    number: int
    submission: Submission
    state: str = "Q"
    substate: int = QUEUED
    created: float = field(default_factory=time.time)
    changed: float = field(default_factory=time.time)
    eligible: float | None = None
    started: float | None = None
    ended: float | None = None
    hold: str = "n"
    comment: str | None = None
    exec_host: str | None = None
    exec_vnode: str | None = None
    session: int | None = None
    run_count: int | None = None
    exit_status: int | None = None
    used_s: int | None = None
    history_since: float | None = None
    deleted_by: str | None = None
    purge: bool = False
    depend: dict[str, list[str]] = field(default_factory=dict)
    jobdir: str | None = None
    stage_out: bool = False
    parent: Job | None = None
    index: int | None = None
    forgotten: bool = False
    subjobs: dict[int, Job] = field(default_factory=dict)

    @property
    def id(self) -> str:
        if self.index is not None:
            return f"{self.number}[{self.index}].{SERVER}"
        return f"{self.number}{'[]' * self.is_array}.{SERVER}"

    @property
    def is_array(self) -> bool:
        return self.submission.indices is not None and self.index is None

    @property
    def over(self) -> bool:
        return self.state in ("F", "X")

    def say(self, state: str, substate: int) -> None:
        """Sets the state and substate, and the time of this change."""
        self.state, self.substate, self.changed = state, substate, time.time()

    def path(self, which: str, index: str) -> str:
        """Returns where the output (`o`) or error file (`e`) goes, `host:/path`; `index` is an element's, or empty."""
        given = self.submission.output if which == "o" else self.submission.error
        dot = f".{index}" if index else ""
        made = given.replace("\0", f"{self.submission.name}.{which}{self.number}{dot}")
        return made.replace("^array_index^", index) if index else made


def attributes(job: Job) -> list[Attribute]:
    """Returns all attributes of a job that its owner may see, as (name, resource or None, value)."""
    return list(_attributes(job))


def _attributes(job: Job) -> Iterator[Attribute]:
    asked = job.submission
    # An element that has not run has no record of its own: qstat shows attributes of its array.
    bare = job.index is not None and job.run_count is None
    shown = job.parent if bare and job.parent else job
    own = job.index is None or bare
    yield "Job_Name", None, asked.name
    yield "Job_Owner", None, f"{asked.owner}@{asked.host}"
    if job.used_s is not None:
        yield from _used(job)
    yield "job_state", None, job.state
    yield "queue", None, asked.queue
    yield "server", None, SERVER
    if asked.account:
        yield "Account_Name", None, asked.account
    if own:
        yield "Checkpoint", None, asked.checkpoint
    yield "ctime", None, str(int(shown.created))
    if shown.depend:
        yield "depend", None, ",".join(":".join([kind, *ids]) for kind, ids in shown.depend.items())
    index = str(job.index) if job.index is not None and not bare else "^array_index^" * (asked.indices is not None)
    yield "Error_Path", None, job.path("e", index)
    if job.exec_host:
        yield "exec_host", None, job.exec_host
    if job.exec_vnode:
        yield "exec_vnode", None, job.exec_vnode
    if asked.start_after:
        yield "Execution_Time", None, str(asked.start_after)
    if asked.group_list:
        yield "group_list", None, asked.group_list
    if own:
        yield "Hold_Types", None, shown.hold
    yield "Join_Path", None, asked.join
    yield "Keep_Files", None, asked.keep
    yield "Mail_Points", None, asked.mail_points
    if asked.mail_users:
        yield "Mail_Users", None, asked.mail_users
    yield "mtime", None, str(int(shown.changed))
    yield "Output_Path", None, job.path("o", index)
    yield "Priority", None, asked.priority
    yield "qtime", None, str(int(shown.created))
    if asked.remove:
        yield "Remove_Files", None, asked.remove
    yield "Rerunable", None, str(asked.rerunable)
    for name, value in asked.request.values.items():
        yield "Resource_List", name, value
    if shown.started and not job.forgotten:
        yield "stime", None, str(int(shown.started))
    if shown.ended and not bare:
        yield "obittime", None, str(int(shown.ended))
    if job.session:
        yield "session_id", None, str(job.session)
    if asked.shell:
        yield "Shell_Path_List", None, asked.shell
    if job.jobdir:
        yield "jobdir", None, job.jobdir
    yield "substate", None, str(shown.substate if job.forgotten or (bare and shown.state == "H") else job.substate)
    yield "Variable_List", None, listed(asked.variables)
    if comment := "Subjob finished" if job.over and job.forgotten else shown.comment:
        yield "comment", None, comment
    if shown.eligible:
        yield "etime", None, str(int(shown.eligible))
    if asked.umask:
        yield "umask", None, str(int(asked.umask))
    if job.run_count is not None:
        yield "run_count", None, str(job.run_count)
    if job.stage_out:
        yield "Stageout_status", None, "1"
    if shown.exit_status is not None:
        yield "Exit_status", None, str(shown.exit_status)
    if own:
        yield "Submit_arguments", None, asked.arguments
    if asked.executable:
        yield "executable", None, f"<jsdl-hpcpa:Executable>{asked.executable}</jsdl-hpcpa:Executable>"
    if asked.arg_list:
        yield "argument_list", None, "".join(map(_argument, asked.arg_list))
    if bare:
        return
    if job.is_array:
        yield "array", None, "True"
    if job.parent is not None:
        yield "array_id", None, job.parent.id
        yield "array_index", None, str(job.index)
    if job.is_array:
        yield "array_state_count", None, state_count(job)
        yield "array_indices_submitted", None, asked.indices_text
        yield "array_indices_remaining", None, remaining(job)
    if job.history_since:
        yield "history_timestamp", None, str(int(job.history_since))
    yield "project", None, asked.project
    yield "Submit_Host", None, asked.host
    if job.is_array and asked.max_run_subjobs is not None:
        yield "max_run_subjobs", None, str(asked.max_run_subjobs)


def _used(job: Job) -> Iterator[Attribute]:
    values = {
        "cpupercent": "0", "cput": "00:00:00", "mem": "0kb", "ncpus": job.submission.request.values.get("ncpus", "1"),
        "vmem": "0kb", "walltime": clock(job.used_s or 0),
    }  # fmt: skip
    for name, value in values.items():
        yield "resources_used", name, value


def _argument(text: str) -> str:
    for char, name in (("&", "amp"), ("<", "lt"), (">", "gt"), ('"', "quot"), ("'", "apos")):
        text = text.replace(char, f"&{name};")
    return f"<jsdl-hpcpa:Argument>{text}</jsdl-hpcpa:Argument>"


def state_count(array: Job) -> str:
    """Returns the number of an array's elements in each state: `Queued:2 Running:2 Exiting:0 Expired:0`.

    Elements with records in the history are not counted.
    """
    counts = {"Queued": 0, "Running": 0, "Exiting": 0, "Expired": 0}
    words = {"Q": "Queued", "R": "Running", "E": "Exiting", "X": "Expired", "F": "Expired"}
    for subjob in array.subjobs.values():
        if not (array.over and not subjob.forgotten):
            counts[words[subjob.state]] += 1
    return " ".join(f"{name}:{count}" for name, count in counts.items())


def remaining(array: Job) -> str:
    """Returns the indices of an array's elements that are still queued: `2-3`, `0,5-7:2`, or `-` for none."""
    queued = [index for index, subjob in array.subjobs.items() if subjob.state == "Q"]
    return index_text(queued, _step(array.submission.indices or [])) or "-"


def index_text(indices: list[int], step: int) -> str:
    """Returns indices as text, with ranges of indices that are `step` apart: `0,5-7:2`."""
    parts, at = [], 0
    while at < len(indices):
        end = at
        while end + 1 < len(indices) and indices[end + 1] - indices[end] == step:
            end += 1
        if end == at:
            parts.append(str(indices[at]))
        else:
            parts.append(f"{indices[at]}-{indices[end]}" + (f":{step}" if step > 1 else ""))
        at = end + 1
    return ",".join(parts)


def _step(indices: list[int]) -> int:
    return indices[1] - indices[0] if len(indices) > 1 else 1
