"""What PBS and Grid Engine share: which of them the qsub on PATH belongs to, their queries, and their scheduler."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import socket
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from launcher.config.schema import ResumeHow
from launcher.errors import ConfigError
from launcher.fast_dataclasses import Struct
from launcher.files import folder_checks
from launcher.files.retried_reads import exists, unwrap
from launcher.redaction import without_secrets
from launcher.schedulers import run_command
from launcher.schedulers.base import FolderQueue, QueryError, in_folder
from launcher.schedulers.job_cache import cache_file, read_cached, write_cached
from launcher.schedulers.job_environment import Scrubbed, scrubbed
from launcher.schedulers.run_command import NoAnswer, SubmissionRefused, SubmitCommand
from launcher.schedulers.templates import require_plain

if TYPE_CHECKING:
    from launcher.plan.plan import JobPlan
    from launcher.runs.directory import Run

# -- Detects which scheduler the qsub on PATH belongs to: PBS, Torque, Grid Engine and Slurm all install one


class QsubKind(Enum):
    """Which scheduler a qsub belongs to. The value is its name in messages."""

    NONE = "no qsub"
    PBS = "PBS"
    SLURM = "Slurm's wrapper around sbatch"
    TORQUE = "Torque"
    GRID_ENGINE = "Grid Engine"
    UNKNOWN = "unknown"


# The value of `cluster` to suggest for each supported scheduler.
CLUSTERS = {QsubKind.PBS: "pbs", QsubKind.SLURM: "slurm", QsubKind.GRID_ENGINE: "sge"}


class Qsub(Struct):
    kind: QsubKind
    path: str = ""
    version: str = ""
    evidence: str = ""  # for this kind

    def problem(self, wanted: QsubKind) -> str | None:
        """Returns why this qsub cannot submit to the wanted scheduler and what to do, or None if it can."""
        if self.kind is wanted:
            return None
        if self.kind is QsubKind.NONE:
            return f"qsub is not on this machine's PATH: submit from a login node of the {wanted.value} cluster"
        if self.kind is QsubKind.UNKNOWN:
            do = f"submit from a login node of the {wanted.value} cluster, or put its commands in front on PATH"
            return f"{self.path} is not known to be {wanted.value}'s qsub ({self.evidence}): {do}"
        what = f"{self.path} is not {wanted.value}'s qsub but {self.kind.value} ({self.evidence})"
        if cluster := CLUSTERS.get(self.kind):
            return f"{what}: use cluster={cluster}"
        do = f"put the {wanted.value} commands in front of it on PATH, if there are any"
        return f"{what}, which is not supported: {do}"


def detect() -> Qsub:
    path = shutil.which("qsub")
    return Qsub(QsubKind.NONE) if path is None else _look(path, os.stat(path).st_mtime_ns)


def detect_kind() -> QsubKind:
    """As `detect`, which starts qsub once or twice; it remembers on disk whose an unchanged qsub is."""
    path = shutil.which("qsub")
    if path is None:
        return QsubKind.NONE
    noted = cache_file("qsub", (path, os.stat(path).st_mtime_ns, os.environ.get("SGE_ROOT")))
    with contextlib.suppress(OSError, ValueError):
        return QsubKind(read_cached(noted))
    if (kind := detect().kind) is not QsubKind.UNKNOWN:  # which it is while its server is not reached
        write_cached(noted, kind.value)
    return kind


@functools.cache
def _look(path: str, changed: int) -> Qsub:
    def run(*arguments: str) -> str:
        try:
            done = run_command.run([path, *arguments], timeout=20)
        except (OSError, subprocess.SubprocessError) as error:
            return str(error)
        return f"{done.stdout}\n{done.stderr}"

    try:
        with open(path, "rb") as file:
            beginning = file.read(8192)
    except OSError:  # executable, but not readable
        beginning = b""
    return judge(path, beginning, run)


def judge(path: str, beginning: bytes, run: Callable[..., str]) -> Qsub:
    """Determines the scheduler of a qsub by the first bytes of its file (`beginning`), and what it prints."""
    if beginning.startswith(b"#!") and re.search(rb"slurm|sbatch", beginning, re.IGNORECASE):
        return Qsub(QsubKind.SLURM, path, evidence="a script that calls Slurm")
    output = run("--version")
    if match := re.search(r"pbs_version\s*=\s*(\S+)", output):
        return Qsub(QsubKind.PBS, path, match[1], match[0])
    if match := re.search(r"^Version:\s*(\d\S*)", output, re.MULTILINE):
        return Qsub(QsubKind.TORQUE, path, match[1], match[0])
    grid_engine = re.compile(r"^(?:SGE|UGE|OGS|GE|AGE)(?:/GE)?\s+([\w.]+)", re.MULTILINE)
    if match := grid_engine.search(output) or grid_engine.search(run("-help")):
        return Qsub(QsubKind.GRID_ENGINE, path, match[1], match[0])
    first = next((line.strip() for line in output.splitlines() if line.strip()), "nothing")
    return Qsub(QsubKind.UNKNOWN, path, evidence=f"`qsub --version` says {first!r}")


TOKEN = "LAUNCHER_TOKEN"  # noqa: S105  name of a job's token, by which it is found: a variable, or in Grid Engine's context


@dataclass(frozen=True)
class QsubCommands(ABC):
    """The commands that PBS and Grid Engine share. With `text`, this text is submitted instead of the file `script`."""

    timeout: float = 60  # timeout of each command in seconds

    unanswered: ClassVar[re.Pattern[str]]  # messages if the server was not reached, or its reply was lost
    refusal: ClassVar[int | None] = None  # exit code of qsub after a site's hook has refused the job, whatever it says
    job_limit: ClassVar[re.Pattern[str]]  # messages if the user has reached a limit on the number of jobs

    def run(self, *command: str, good: tuple[int, ...] = (0,)) -> str:
        """Returns the output of a command; raises QueryError unless it exits in time with a code in `good`."""
        done = run_command.query(*command, timeout=self.timeout, environment=os.environ, good=good)
        # Without a server Grid Engine's qconf exits as if what it shows were missing, and qstat -j with 0
        if self.unanswered.search(done.stderr):
            raise QueryError(f"{command[0]} failed: {' '.join(done.stderr.split())}")
        return done.stdout

    @abstractmethod
    def request(
        self, script: str, environment: Mapping[str, str], *arguments: str, text: str | None = None
    ) -> SubmitCommand: ...

    @abstractmethod
    def largest_array(self, queue: str | None) -> int | None: ...  # of this queue, None: the default one

    def max_array_size(self, plan: JobPlan) -> int | None:
        return self.largest_array(plan.cluster.settings["queue"])

    @abstractmethod
    def _accepted(self, done: subprocess.CompletedProcess[str]) -> str | None: ...  # the id that qsub has printed

    @abstractmethod
    def _hint(self, code: int, words: str) -> str | None: ...  # about a refusal, by qsub's exit code and message

    def submit(self, script: str, environment: Mapping[str, str], *arguments: str, text: str | None = None) -> str:
        """Submits a script with qsub, and returns the job's id.

        | qsub prints | exit code | result |
        |---|---|---|
        | a job's id | 0; Grid Engine: or 1, after a warning | the job's id |
        | anything | `refusal` | SubmissionRefused, with the message and a hint |
        | a message that the server was not reached, or its reply was lost | any | NoAnswer |
        | anything else | 0 | NoAnswer |
        | anything else | not 0 | SubmissionRefused, with the message and a hint |
        """
        request = self.request(script, environment, *arguments, text=text)
        done = run_command.run_submission(request, timeout=self.timeout)
        if job_id := self._accepted(done):
            return job_id
        printed = (done.stderr.strip() or done.stdout.strip()).split("usage:")[0].strip().removesuffix("Exiting.")
        words = " ".join(printed.split()).removeprefix("Unable to run job: ").removeprefix("qsub: ")
        words = words or f"exit code {done.returncode}"
        if done.returncode == 0 or (done.returncode != self.refusal and self.unanswered.search(words)):
            raise NoAnswer(words)
        hint = self._hint(done.returncode, words)
        raise SubmissionRefused(
            f"qsub refused the job: {words}" + (f" ({hint})" if hint else ""),
            # Else a site's wrapper script may have failed after the scheduler accepted the job.
            definite=done.stderr.lstrip().startswith(("Unable to run job: ", "qsub: ")),
            job_limit=self.job_limit.search(words) is not None,
        )


def notes_on_folder(folder: Path, nodes: Sequence[str]) -> tuple[str, ...]:
    """Returns a note if these nodes may not see a folder of runs; raises ConfigError if they cannot."""
    here = {"localhost", socket.gethostname(), socket.gethostname().partition(".")[0]}
    seen = unwrap(exists(folder / folder_checks.SEEN))
    note = folder_checks.check_visible(folder, folder_checks.kind_of(folder), seen=seen, nodes=nodes, here=here)
    return (note,) if note else ()


# -- What a job asks for, and its lines in the script


@dataclass(frozen=True, kw_only=True)
class Request:
    name: str
    token: str  # unique text by which a later query finds the job
    walltime: int | None = None  # wall time in seconds; None: the site's default
    queue: str | None = None  # qsub -q
    project: str | None = None  # qsub -P
    account: str | None = None  # qsub -A
    array: str | None = None  # indices and throttle of an array (`0-14%4`); None: a plain job
    rerunnable: bool = True  # whether the scheduler may start the job again, after a preemption or the loss of its node
    directives: Mapping[str, Any] = field(default_factory=dict)  # further options; a list repeats one, True: no value


def fields_of(plan: JobPlan, settings: Any, token: str, array: str | None) -> dict[str, Any]:
    return {
        "name": plan.name, "token": token, "walltime": plan.time, "queue": settings.queue, "project": settings.project,
        "account": plan.cluster.account, "array": array, "rerunnable": plan.resume.how != ResumeHow.never.value,
        "directives": plan.cluster.directives,
    }  # fmt: skip


class OptionNames(Struct):
    """A scheduler's options of qsub, as `cluster.directives` takes them."""

    pattern: re.Pattern[str]  # of an option's name without the dash
    kind: str  # what this name is: a `letter` or a `name`
    instead: str  # keys of the profile that take resources
    taken: Mapping[str, str]  # options that are the launcher's, and what to use instead
    repeatable: frozenset[str]  # options that do not replace those of the launcher

    def checked(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Returns cluster.directives by option; a list repeats the option; raises ConfigError."""
        for option, value in values.items():
            if not self.pattern.fullmatch(str(option)):
                raise ConfigError(
                    f"cluster.directives: {option!r} is not the {self.kind} of a qsub option (write `m`, not `-m`; for "
                    f"a resource use {self.instead})"
                )
            for each in listed(value):
                require_plain(option, each)
        return dict(values)

    def merged(
        self, ours: Sequence[tuple[str, str | None]], directives: Mapping[str, Any]
    ) -> list[tuple[str, str | None]]:
        """Returns our options with a value (not None), then `directives`, which replace ours; raises ConfigError."""
        extra: list[tuple[str, str | None]] = []
        for option, value in directives.items():
            if option in self.taken:
                raise ConfigError(f"the qsub option -{option} cannot be among the directives: {self.taken[option]}")
            if not self.pattern.fullmatch(option):
                raise ConfigError(f"directives: {option!r} is not the {self.kind} of a qsub option")
            if value == "":
                raise ConfigError(f"directives: {option!r} has an empty text: `true` is for an option without a value")
            if value is True:
                extra.append((option, ""))
            elif value is not None and value is not False:
                extra += [(option, str(each)) for each in listed(value)]
        replaced = directives.keys() - self.repeatable
        return [*((name, value) for name, value in ours if value is not None and name not in replaced), *extra]


def listed(value: Any) -> Sequence[Any]:
    """Returns the values of an option that may be repeated."""
    return value if isinstance(value, (list, tuple)) else [value]


FIRST_JOB = "LAUNCHER_FIRST_JOB"  # variable of a function's resubmitted job with the id of the first job


class QsubScheduler(FolderQueue):
    command = "qsub"
    secrets_in_files = True

    kind: QsubKind  # what the qsub on PATH must belong to
    of_server: tuple[str, ...]  # variables that select the server for the commands
    job_variable: str  # variable with the id of the job that a process is in
    kept: Collection[str] = ()  # variables that new jobs inherit although the scheduler's other variables are dropped
    usr_signal_kills = False  # whether the scheduler sends SIGUSR2 as a warning before it kills a job

    @abstractmethod
    def queries(self, timeout: float = 60) -> Any: ...

    native_id = in_folder("client:native_id")  # converts submitit's id of an array element to the scheduler's
    find = in_folder("client:find")  # returns the path of a scheduler command on a job's node, or None

    @abstractmethod
    def of_a_job(self, name: str) -> bool:
        """Returns whether the scheduler sets this variable in each job."""

    @abstractmethod
    def resubmission(self, script: str, token: str, first: str) -> tuple[str, tuple[str, ...]]:
        """Returns script and options of a plain job that continues a function's; first: its id for submitit."""

    def inherited(self, environ: Mapping[str, str]) -> Scrubbed:
        """Returns the environment that a new job inherits from `environ`, without what the scheduler itself sets."""
        own = set(filter(self.of_a_job, environ))
        if self.job_variable in environ:  # in a job the scheduler has set OMP_NUM_THREADS; elsewhere it is the user's
            own.add("OMP_NUM_THREADS")
        return scrubbed(environ, kept=self.kept, own=own)

    def job_environment(self, environ: Mapping[str, str], plan: JobPlan) -> Scrubbed:
        return self.inherited(environ)

    def put_on_path(self) -> None:
        """Adds the folder of qsub, which a job's PATH may lack, to this process's PATH."""
        if qsub := self.find("qsub"):
            os.environ["PATH"] = f"{os.environ.get('PATH', os.defpath)}{os.pathsep}{Path(qsub).parent}"

    def environment_within(self, plan: JobPlan, run: Run) -> dict[str, str]:
        """See `Queue.environment_within`. Adds qsub's folder to this process's PATH."""
        ours = run.path / "environment.sh"
        own = Path(os.environ.get("LAUNCHER_ENVIRONMENT_FILE", ours))
        if own != ours and os.environ.get("LAUNCHER_RUN_DIR") == str(run.path):
            shutil.copy(own, ours)  # this job is an array's element, and continues as a plain job
        self.put_on_path()
        return without_secrets(os.environ, plan.env.secrets)

    def problem(self) -> str | None:
        return detect().problem(self.kind)

    def here(self) -> bool:
        return detect_kind() is self.kind  # other schedulers have a qstat too

    def server(self) -> tuple[str | None, ...]:
        return (shutil.which("qstat"), *map(os.environ.get, self.of_server))
