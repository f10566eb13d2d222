"""The interface of a scheduler: what it can do, what it is asked about jobs, and the states of jobs."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from launcher.config.scheduler_table import load
from launcher.errors import LauncherError
from launcher.failures.codes import NextReason
from launcher.fast_dataclasses import Struct
from launcher.schedulers.job_environment import Scrubbed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from launcher.config.schema import Cluster
    from launcher.plan.plan import JobPlan
    from launcher.runs.directory import Run
    from launcher.schedulers.executor import RunExecutor
    from launcher.schedulers.pending import Explanation, Form, Waiting
    from launcher.schedulers.run_command import SubmitCommand
    from launcher.schedulers.site import Finding, Site


class QueryError(LauncherError):
    """A query of the scheduler failed, so the state of the queried jobs is unknown."""


class AnswerLost(QueryError):
    """The output of a scheduler command was lost, so it is unknown whether the command took effect."""


class QueryTimeout(AnswerLost): ...


class AnswerTooLong(AnswerLost): ...


class NoCommand(QueryError):
    """This machine does not have the command."""


class Ending(Struct):
    reason: NextReason  # TIME_LIMIT (of an allocation), STOP_REQUESTED, SCHEDULER_ENDS or PREEMPTED
    scheduler: str = ""  # title of the scheduler; empty unless the reason is SCHEDULER_ENDS or PREEMPTED
    state: str = ""  # job state as the scheduler shows it; empty unless the scheduler is named


class JobState(Enum):
    """State of one job, for all schedulers. Neither GONE nor UNKNOWN counts as success, UNKNOWN never as ended."""

    PENDING = "pending"
    RUNNING = "running"
    SUSPENDED = "suspended"  # started, and the scheduler has stopped its processes for now
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    GONE = "gone"  # ended, and the scheduler does not report the outcome
    UNKNOWN = "unknown"

    @property
    def live(self) -> bool:
        return self in (JobState.PENDING, JobState.RUNNING, JobState.SUSPENDED)


# Outcomes of ended jobs by Slurm's names, which submitit knows. FORGOTTEN is ours: no outcome is recorded.
OUTCOMES = {
    "COMPLETED": JobState.DONE, "CANCELLED": JobState.CANCELLED, "FORGOTTEN": JobState.GONE,
    **dict.fromkeys(("FAILED", "TIMEOUT", "OUT_OF_MEMORY"), JobState.FAILED),
}  # fmt: skip


class SchedulerJob(Struct):
    id: str  # job id as the scheduler prints it
    state: JobState  # job state, the same for all schedulers
    raw_state: str  # job state as the scheduler prints it
    reason: str = ""  # pending reason as the scheduler prints it
    comment: str | None = None  # which is the token in jobs of the launcher; None if the query does not return it
    time_left: int | None = None  # seconds of wall time left at the time of the query; None if unlimited or unknown
    signal: int | None = None  # number of the signal that ended the job; None: none did, or it is not printed


def state_text(raw_state: str, reason: str) -> str:
    return raw_state + (f" ({reason})" if reason else "")


class JobOrigin(Struct):
    id: str  # of a job or array, as the scheduler's commands take it
    token: str  # unique text that the launcher stored with the job; empty if the job has none
    file: str  # path of the job script, or of another file in the same folder


BY_HAND = ""  # id of a job that the user has yet to submit (submit=false)


class Queries(Protocol):
    """Queries and commands of a live scheduler; each raises QueryError when the scheduler does not answer."""

    terse: ClassVar[tuple[str, ...]]  # options of `request` with which the command prints the job's id alone

    def jobs(self) -> dict[str, SchedulerJob]:
        """Returns all jobs of this user by `key`, with one command. Ended jobs may be missing."""

    def key(self, job_id: str) -> str:
        """Returns the key of a job in the results of `jobs` and `ended_all`."""

    def ended_all(self, job_ids: Sequence[str]) -> dict[str, SchedulerJob]:
        """Returns the records of ended jobs by `key`, with as few commands as possible, without unknown jobs."""

    def find(self, token: str, name: str) -> str | None:
        """Returns the id of the job that was submitted with this token and job name, or None if there is none."""

    def origins(self, numbers: Sequence[str]) -> dict[str, JobOrigin]:
        """Returns the script and token of this user's known jobs and arrays, by job number (`17`)."""

    def options(self, jobs: Sequence[str], token: str | None = None) -> list[str]:
        """Returns options of `submit` for a job behind others; token: for `find`, None: that of the script."""

    def request(self, script: str, environment: Mapping[str, str], *arguments: str) -> SubmitCommand: ...

    def submit(self, script: str, environment: Mapping[str, str], *arguments: str) -> str:
        """Submits a script, and returns the job's id; raises SubmissionRefused, NoAnswer (the job may exist)."""

    def wait_for(self, job_id: str, jobs: Sequence[str]) -> None:
        """Replaces the dependencies of a pending job: it now starts when all jobs in `jobs` have ended."""

    def cancel(self, *job_ids: str) -> None:
        """Cancels jobs and elements, ended ones too. Raises QueryError: some of several may have been cancelled."""

    def max_array_size(self, plan: JobPlan) -> int | None:
        """Returns the maximum size of a job array for this plan, or None if it is unlimited or unknown."""

    def throttle(self, job_id: str, most: int) -> None: ...


def parts(count: int, most: int | None) -> list[range]:
    """Splits the indices 0 to `count` - 1 into ranges of at most `most` indices; `most=None` gives one range."""
    step = most or count
    return [range(start, min(start + step, count)) for start in range(0, count, step)]


# -- The interface of a scheduler: one class per scheduler, returned by `registry.scheduler(name)`


JOB_TIMEOUT = 30.0  # seconds for one command within a job, which may be about to end


class JobVariables(Struct):
    """The shell expressions with which a job script finds its job. Some are used within double quotes."""

    job_id: str = "${LAUNCHER_JOB_ID:-}"  # within quotes, as element_id and output
    element_id: str = "${LAUNCHER_JOB_ID:-}"  # id of an array's element
    index: str = "LAUNCHER_ARRAY_INDEX"  # number of the element, from 0, in arithmetic
    output: str = "output-$LAUNCHER_JOB_ID.log"  # the element's output file
    # `module:function` of the standard library only that takes the job's environment, and returns the seconds until the
    # scheduler ends the job, or None: not known; None: the scheduler does not tell.
    time_left: str | None = None
    away: str | None = None  # the same, that returns whether the scheduler, without which no agent starts, is away
    kill_wait: str | None = None  # the same, that returns the seconds between SIGTERM and SIGKILL of the job, or None
    for_good: str | None = None  # the same, that keeps the scheduler from restarting the job for its exit code
    # A variable with the path of a file, and the exit code with which the script ends if that file exists, so that the
    # scheduler starts the job again; None: the scheduler does not do so.
    again: tuple[str, int] | None = None
    signals: str = "TERM INT"  # names of the signals by which the scheduler stops the script
    limited: bool = True  # whether the scheduler ends the job after the requested time


class JobExecution(Struct):
    raw_state: str  # state as the scheduler prints it; empty if not reported
    by: str = ""  # name or id of the user who cancelled the job; empty if it was not cancelled
    begin: str = ""  # start in local time (`2026-11-21T20:00:00`); any other text means unknown
    end: str = ""  # end, in the same form
    used: int | None = None  # peak memory in bytes, per task, node or job as in `Scheduler.memory`; None: not measured


class Allocation(Struct):
    nodes: int
    starter: str  # command that starts tasks on the nodes: `srun`, or a key of registry.STARTERS
    cpus: tuple[int, ...] = ()  # number of allocated CPUs on each node; empty if unknown
    job: str = ""  # id of the interactive job


class Scheduler(ABC):
    name: str  # value of cluster.scheduler
    title: str  # name of the scheduler in messages
    template: str  # job script template: name of a file in templates/, or an absolute path
    shell = JobVariables()  # shell expressions with which a job script reads its job id and array index
    run_executor = "launcher.schedulers.executor:RunExecutor"  # import path of what `executor` returns
    queued = False  # whether submitted jobs wait in a queue
    on_this_machine = False  # whether jobs are processes of the submitting machine
    secrets_in_files = False  # whether jobs read their environment and secrets from files that the executor writes

    def executor(self) -> type[RunExecutor]:
        """Returns the submitit executor class that submits runs. Imports it on use, because submitit takes 30 ms."""
        found: type[RunExecutor] = load(self.run_executor)
        return found

    def starter(self, cluster: Cluster) -> str | None:
        """Returns what starts tasks on a job's nodes: a `step_starter`, a key of STARTERS; None: one machine."""
        return None

    def options(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Returns cluster.directives as the plan stores them; raises ConfigError for an invalid name or value."""
        return dict(values)

    def directives(self, plan: JobPlan, token: str, array: str | None, folder: str | None) -> list[str]:
        """Returns the directive lines of a job script without their prefix (`#SBATCH`), quoted; raises ConfigError.

        token: unique text by which the job is found. array: indices and throttle of a job array (`0-14%4`), or None.
        folder: directory of the job's output; None: the run directory.
        """
        return []

    @abstractmethod
    def job_environment(self, environ: Mapping[str, str], plan: JobPlan) -> Scrubbed:
        """Returns the submitter's environment without other jobs' variables, commands' options, bash functions."""

    def problem(self) -> str | None:
        """Returns why this machine cannot submit jobs and what to do, or None if it can."""
        return None

    def held(self, environ: Mapping[str, str]) -> Allocation | None:
        """Returns this shell's allocation if runs start in it (cluster=allocation); raises ConfigError without one."""
        return None

    def ending(self, plan: JobPlan, *, stop_requested: bool, left: float) -> Ending | None:
        """Returns why the scheduler is ending the current job, or None: it is not, or only its time limit does.

        left: seconds of wall time left; infinite if there is no limit or it is unknown. With `left` <= 0 a queue: None.
        """
        return Ending(NextReason.STOP_REQUESTED) if stop_requested and left > 0 else None

    # -- What only some schedulers can do: the defaults are those of a scheduler that cannot

    # Name of the command that submits jobs (`sbatch`), which `doctor` checks and `site init` asks what there is;
    # empty: there is none, and the next three methods are not called.
    command = ""

    def found(self) -> str:
        """Returns text about the scheduler's commands on PATH, with the evidence for their scheduler; empty: none."""
        raise NotImplementedError

    def check(self, cluster: Cluster, timeout: float) -> Iterator[Finding]:
        """Yields findings about the live scheduler, and about a profile compared with it; timeout: seconds a query."""
        raise NotImplementedError

    def survey(self, timeout: float) -> Site:
        """Collects the facts of the site that a user can query; timeout: seconds a query; raises QueryError."""
        raise NotImplementedError

    interactive = ""  # example of a command that starts an interactive job, for messages
    # Variables that are all set inside an allocation in which runs can start (cluster=allocation); empty: they cannot.
    allocation_variables: Collection[str] = ()

    def allocation(self, environ: Mapping[str, str]) -> Allocation:
        """Returns the allocation that `allocation_variables` describe; raises ConfigError: unreadable node list."""
        raise NotImplementedError

    requeues = False  # whether users can requeue their running jobs, which keep their ids

    def requeue(self, job_id: str) -> None:
        """Requeues the job; raises QueryError (with the scheduler's message), AnswerLost if it may be requeued."""
        raise NotImplementedError

    def preempted(self, job_id: str) -> float | None:
        """Returns the start of the job's preemption (seconds since the epoch), or None; raises QueryError."""
        return None

    def count_jobs(self, timeout: float) -> Mapping[str, int] | None:
        """Counts the user's live jobs and elements by partition, queue or QOS ("": all); None: not counted."""
        return None

    # Name of a command that starts a process on a node of a running job, as another step of the job, and the tasks of
    # such jobs (`JobPlan.starter`); empty: there is none, and the next three methods are not called.
    step_starter = ""
    step_requirement = ""  # the command and the versions that support it, for messages after a failure

    def start_tasks(self, plan: JobPlan) -> list[str]:
        """Returns the first words of a command that runs another one, as the job's tasks, on all nodes."""
        raise NotImplementedError

    def step(self, argv: Sequence[str], job_id: str, host: str, folder: str, *, terminal: bool) -> list[str]:
        """Returns the command that runs another one in a running job, with a terminal on the node or without."""
        raise NotImplementedError

    def step_environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Returns the environment for the command of `step`: `environ` without variables that set options."""
        raise NotImplementedError

    def without(self, hosts: str, settings: Mapping[str, Any]) -> str:
        """Returns the quoted override with which `resume` excludes these hosts too; empty: it cannot."""
        return ""

    def explain(self, waiting: Waiting, timeout: float) -> Explanation | None:
        """Returns why a job is pending; None: unknown. timeout: seconds a query; raises QueryError."""
        return None

    def history(self, job_id: str, timeout: float) -> list[JobExecution]:
        """Returns a job's executions, oldest first; [] without a record or an answer. timeout: seconds a query."""
        return []

    def memory(self, plan: JobPlan) -> int | None:
        """Returns the requested memory in bytes, comparable to `JobExecution.used` (here that of one node), or None."""
        return plan.mem

    # Number of the signal with which the scheduler ends a job whose output file it cannot open; None: it has none.
    output_signal: int | None = None

    def notices(self) -> tuple[Form, ...]:
        """Returns the patterns of the notices that it writes into the output of a job that it kills, specific first."""
        return ()


class Queue(Scheduler):
    """A scheduler with a queue of pending jobs."""

    queued = True
    no_requeue = ""  # why users cannot requeue a running job, and what happens instead; empty if they can
    frees_dependents = True  # whether jobs that depend on a pending job may start when that job is deleted

    @abstractmethod
    def queries(self, timeout: float) -> Queries:
        """Returns the scheduler's queries and commands; each command has this timeout in seconds."""

    @abstractmethod
    def here(self) -> bool:
        """Returns whether the scheduler's commands are on PATH."""

    @abstractmethod
    def server(self) -> tuple[str | None, ...]:
        """Returns what identifies the scheduler's server: its command's path, and variables that select the server."""

    @abstractmethod
    def array_of(self, job_id: str) -> str:
        """Returns the array id of an array element's job id; the id of a plain job is returned unchanged."""

    def can_be_waited_for(self, job_id: str) -> bool:
        """Returns whether other jobs can depend on this one; some schedulers exclude array elements."""
        return True

    def keeps(self, job_id: str, timeout: float) -> bool:
        """Returns whether it kept a job submitted behind others: PBS deletes it if it has forgotten one of them."""
        return True

    @abstractmethod
    def compare(self, plan: JobPlan, environ: Mapping[str, str]) -> tuple[str, ...]:
        """Compares a plan with the live scheduler; returns notes; raises ConfigError: it could never start."""

    @abstractmethod
    def own_job(self, environ: Mapping[str, str]) -> str:
        """Returns the current job's id, from the variables of its environment, for use in a dependency."""

    @abstractmethod
    def environment_within(self, plan: JobPlan, run: Run) -> dict[str, str]:
        """Returns the environment for a submission from within a job of the run; writes the files of the new job."""

    def check_secrets(self, environ: Mapping[str, str], plan: JobPlan) -> None:
        """Raises ConfigError if the secret variables of `environ` cannot be handed to a plan's tasks."""


def in_folder(
    place: str, *, asks: bool = False, unanswered: Callable[[FolderQueue, QueryError], Any] | None = None
) -> Any:
    """Returns a method that calls a function of the scheduler's folder (`script:lines`), which is imported on use.

    asks: whether its last argument, the timeout of queries, becomes `queries(timeout)`.
    unanswered: returns the method's result after a QueryError; None: it is raised.
    """
    module, _, name = place.partition(":")

    def method(self: FolderQueue, *given: Any, **named: Any) -> Any:
        arguments = (*given[:-1], self.queries(given[-1])) if asks else given
        try:
            return getattr(importlib.import_module(f"{self.folder}.{module}"), name)(*arguments, **named)
        except QueryError as error:
            if unanswered is None:
                raise
            return unanswered(self, error)

    return method


class FolderQueue(Queue):
    """One of our queues: its folder has the modules script, client, limits and pending, each imported on use."""

    folder: ClassVar[str]  # the package of these modules, also for a site's own class that is derived from this one
    pools = "queues"  # what it calls its groups of nodes

    options = in_folder("script:extra_options")
    directives = in_folder("script:lines")
    array_of = in_folder("client:array_of")
    history = in_folder("client:history", asks=True, unanswered=lambda *_: [])
    compare = in_folder(
        "limits:compare", unanswered=lambda self, error: (f"not compared with the live {self.pools}: {error}",)
    )
    check = in_folder("limits:check", asks=True)
    survey = in_folder("limits:survey", asks=True)
    explain = in_folder("pending:explain", asks=True)

    def count_jobs(self, timeout: float) -> Any:
        queries: Any = self.queries(timeout)
        return queries.count_jobs()

    def notices(self) -> Any:
        return importlib.import_module(f"{self.folder}.client").NOTICES
