"""The run directory: its layout, its record and its attempts. Only this module reads and writes their format.

    RUN/                    0700, files 0600
      record.json           plan, config, versions, commit; written once, by the submitter
      script.sh, job.json   the job script as it was submitted, and what its driver needs; after.sh: for its end
      code/, code-N/        with env.snapshot: the code that the run executes (points: in the sweep's directory)
      lib-VERSION/          the launcher itself, for another Python (env.activate), unless it runs from a checkout
      environment.sh        on PBS: the submitter's environment that the job inherits
      journal.jsonl         what the submitter did: token, job ids, cancellations
      stop, save            made by the user: save a checkpoint and stop; save a checkpoint and continue
      cancelled, over       no further attempt may start; no further job of the chain (resume.how=chain) may start
      lease                 the job and attempt that hold the run now
      checkpoints/          see launcher/checkpoint/format.py
      record-N.json         the record before resume number N (from 0)
      submitit/             submitit's own files (payload and results)
      output-JOB.log        the job's output, written by the scheduler (PBS: JOB.OU)
      attempts/N/events/    script.jsonl, node-K.jsonl, rank-0.jsonl: one writer per file
      attempts/N/logs/      rank-R.out, rank-R.err
      attempts/N/tasks/     with pbsdsh: pbsdsh's input, and each task's output and exit status
      attempts/N/preflight/ member-I: written by agent I, so that other agents can test the shared file system;
          rank-R.out, rank-R.err: what the checks of rank R have printed
      attempts/N/attach*    requests of commands to the attempt's agents, and the replies; see launcher/attach.py
      attempts/N/exit_code  exit code of the attempt's agents
      result.json           metrics of rank 0, written when the run is done
      tensorboard/, mlflow_run   with `track`: TensorBoard's files; the id of the run in MLflow
      wandb/, wandb_run     with `track`: W&B's files; the id of the run in W&B and the last step

`runs_dir/latest` is a link to the newest run; the default runs_dir also has a link to every run kept elsewhere.
Works without torch, hydra and submitit, because login nodes and compute nodes both use it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import socket
import stat
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher import io_bounds
from launcher.errors import FULL, NO_RETRY, RESUME, ConfigError, RunError, UnavailableError, is_transient
from launcher.failures import messages
from launcher.failures.codes import FaultCode
from launcher.fast_dataclasses import Struct
from launcher.files import folder_checks, safe_io
from launcher.files.json_types import misfit
from launcher.files.retried_reads import (
    Ok,
    Outcome,
    Unavailable,
    Wrong,
    exists,
    list_names,
    read_json,
    read_text,
    retry_read,
    unwrap,
)
from launcher.formatting import log_line
from launcher.runs import event_files, live_runs_index
from launcher.runs.events import Bound, Event, Fault, Submitting

FORMAT = 5  # version of the run directory's format; a launcher reads only its own
# Fields of a record and their types, except for `plan`, whose fields are those of JobPlan.
_RECORD = {
    "format": int, "config": dict, "overrides": list[str], "token": str, "launcher": str, "python": str,
    "hydra": str, "submitit": str, "host": str, "commit": str | None,
}  # fmt: skip
GROWING = ("rank-0", "checkpoint")  # writers of events whose number grows with the run
MOST_PROBLEMS = 20  # messages of `problems`; further ones are only counted
UNWRITTEN = 1000  # newest events that are kept in memory until they can be written
SECRET = "secret"  # noqa: S105  name of the secret's file; see `files.folder_checks`
_WITHOUT_RECORD = {"submitit", "attempts", "code", SECRET}  # names that may exist before the record does
_UNFINISHED = (".record.json.", ".code-", "lib-", f".{SECRET}.", ".submitting")  # prefixes of more, mostly temporary

if TYPE_CHECKING:
    from launcher.plan.plan import JobPlan


TOKEN = "launcher-"  # noqa: S105  prefix of all job tokens


def chain_tokens(plan: JobPlan, token: str) -> list[str]:
    """Returns the tokens of the jobs that are submitted at once for a run: with resume.how=chain several, else one."""
    following = plan.resume.max_attempts if plan.resume.how == "chain" else 1
    return [token, *(f"{token}-{number}" for number in range(1, following))]


def token_of(folder: str) -> str:
    """Returns the token by which the scheduler's jobs of the run or sweep in this directory are recognised."""
    return TOKEN + hashlib.sha256(f"{_uid()}:{folder}".encode()).hexdigest()[:20]


def runs_dir_of(run_dir: str | Path) -> Path:
    """Returns the folder of all runs that a run, or a point of a sweep, belongs to; looks at its path alone."""
    path = Path(run_dir)
    return path.parents[1] if path.name.isdecimal() else path.parent


def _uid() -> int:
    return os.getuid()


class Run(Struct):
    path: Path

    @property
    def is_point(self) -> bool:
        """Whether the run is a point of a sweep: its directory is in the sweep's, and named by a number."""
        return unwrap(self._in_sweep())

    @property
    def id(self) -> str:
        """The run's id: the name of its directory; for a point, SWEEP/NUMBER (`lr-3f9c/7`)."""
        found = self._in_sweep(retry_seconds=0)  # no retries: messages need an id even if reads fail
        point = found.value if isinstance(found, Ok) else True
        return f"{self.path.parent.name}/{self.path.name}" if point else self.path.name

    def _in_sweep(self, *, retry_seconds: float | None = None) -> Outcome[bool]:
        named = self.path.name.isdecimal()
        return exists(self.path.parent / "sweep.json", retry_seconds=retry_seconds) if named else Ok(False)

    @property
    def submitit_folder(self) -> Path:
        return self.path / "submitit"

    # -- written by the submitter

    @classmethod
    def create(cls, path: Path) -> Run:
        """Makes a run directory, or completes one if its submitter was killed before it wrote the record.

        Raises ConfigError: the directory cannot be made (`runs_dir` is not writable, or others could replace it), or
            exists already.
        Raises RunError: the directory is incomplete, and others can write to it.
        """
        with making_in(path.parent), contextlib.ExitStack() as undo:
            safe_io.make_folder(path.parent)
            try:
                path.mkdir(mode=0o700)
                undo.callback(_remove_empty, path)
            except FileExistsError:
                names = {entry.name for entry in path.iterdir()} if path.is_dir() else {"a file"}
                if not {name for name in names if not name.startswith(_UNFINISHED)} <= _WITHOUT_RECORD:
                    raise ConfigError(f"{path} is there already: choose another run_id") from None
                require_private(path)
            for folder in (path / "submitit", path / "attempts"):
                folder.mkdir(mode=0o700, exist_ok=True)
            if not (path / SECRET).exists():
                folder_checks.make_secret(path / SECRET)
            undo.pop_all()
        return cls(path)

    def recorded(self) -> bool:
        """Whether the run's record exists. Nothing is submitted before the record is written."""
        return self.has("record.json")

    def has(self, name: str) -> bool:
        """Whether the directory has a file of this name, such as a mark (`stop`, `cancelled`, `over`)."""
        return unwrap(exists(self.path / name))

    def write_record(
        self, plan: JobPlan, config: Mapping[str, Any], facts: Mapping[str, Any], *, sync: bool = True
    ) -> None:
        """Writes the run's record; `sync=False`, ten times as fast, does not wait until it is on disk.

        facts: about the submitting machine, with the run's token and overrides.
        Raises ConfigError: the record could not be read again: it is too large, or an integer or its nesting is.
        """
        from launcher.plan.plan import plan_misfit

        try:
            text = safe_io.json_text(record_of(plan, config, facts), io_bounds.RECORD_BYTES, lines=sync)
            wrong = plan_misfit(json.loads(text)["plan"])
        except ValueError as error:
            wrong = str(error)
        if wrong:
            raise ConfigError(f"the record of {self.id} could not be read again: {wrong}")
        safe_io.write(self.path / "record.json", text, sync=sync)

    def mark(self, name: str) -> None:
        (self.path / name).touch(mode=0o600)

    def unmark(self, *names: str) -> None:
        for name in names:
            (self.path / name).unlink(missing_ok=True)

    def clear_for_resume(self) -> None:
        """Copies the record to record-N.json, and calls `clear_marks`, so that the next attempt can start."""
        self._write(f"record-{self._earlier_records()}.json", (self.path / "record.json").read_text())
        self.clear_marks()

    def _earlier_records(self) -> int:
        found = unwrap(list_names(self.path)) or ()
        return sum(name.startswith("record-") and name.endswith(".json") for name in found)

    def clear_marks(self) -> None:
        """Removes `stop`, `cancelled` and `over`, which would stop the next attempt, and the lease of a dead job."""
        self.unmark("stop", "cancelled", "over", "lease")

    def restore_record(self) -> None:
        (self.path / f"record-{self._earlier_records() - 1}.json").replace(self.path / "record.json")

    def write_script(self, text: str, member: int = 0) -> Path:
        """Writes the job script. member: number of the job in a race."""
        return self._write(f"script-{member}.sh" if member else "script.sh", text)

    def write_environment(self, text: str) -> None:
        self._write("environment.sh", text)

    def write_result(self, metrics: Mapping[str, Any]) -> list[str]:
        """Writes the run's metrics. Returns the name of each that is left out since it could not be read, and why."""
        text, left = safe_io.json_that_fits(metrics, io_bounds.RESULT_BYTES)
        self._write("result.json", text)
        return left

    def journal(self, event: Event, *, sync: bool = True) -> None:
        """Appends an event to the submitter's journal; with `sync`, waits until it is on disk."""
        if isinstance(event, Submitting):
            live_runs_index.add(self.path.parent if self.is_point else self.path)
        event_files.append(self.path / "journal.jsonl", event, sync=sync)

    def link(self, index: Path, *, latest: bool = True) -> None:
        """Links the run as its id in `index`, and as `latest` there and beside it; errors are ignored."""
        for folder in {self.path.parent, index}:
            with contextlib.suppress(OSError):  # the job does not need the links
                safe_io.make_folder(folder)
                if folder != self.path.parent:
                    _relink(folder / self.id, self.path)
                    live_runs_index.add_to(folder, self.id)
                if latest:
                    _relink(folder / "latest", self.path)

    def unlink(self, index: Path) -> None:
        """Removes the link of a run that was not submitted after all; errors are ignored."""
        link = index / self.path.name
        with contextlib.suppress(OSError):
            if link.readlink() == self.path:
                link.unlink()

    def _write(self, name: str, text: str) -> Path:
        return safe_io.write(self.path / name, text)

    # -- read by commands and by the job

    def record(self, name: str = "record.json") -> dict[str, Any]:
        """Returns the run's record; `record-N.json` is that before resume number N.

        Raises RunError: there is no record, it is damaged, or another version of the launcher wrote it.
        """
        path = f"{self.path}/{name}"
        record = unwrap(read_json(path))
        if record is None and not unwrap(exists(path)):
            raise RunError(f"{self.path} is not a run: it has no {name}")
        if not isinstance(record, dict):
            raise RunError(f"{path} cannot be read: it is no record of a run")
        if record.get("format", FORMAT) != FORMAT:
            raise RunError(
                f"{path} was written by another version ({record.get('launcher', 'unknown')}, format "
                f"{record['format']}; this one knows {FORMAT}): use that one"
            )
        for key, kind in _RECORD.items():
            if key in record and (wrong := misfit(record[key], kind, key)):
                raise RunError(f"{path} cannot be read: {wrong}")
        return record

    def plan(self, name: str = "record.json") -> JobPlan:
        """Returns the plan from the record in file `name`. Raises UnavailableError, RunError: as for `record`."""
        from launcher.plan.plan import from_dict, member_plan, plan_misfit

        record = self.record(name)
        version = record.get("launcher", "unknown")
        if wrong := plan_misfit(record.get("plan")):
            raise RunError(f"{self.path}/{name} was written by another version ({version}): {wrong}")
        plan = from_dict(record["plan"])
        member = os.environ.get("LAUNCHER_MEMBER", "")  # of the race that this process's job has won
        mine = plan.race and member.isdecimal() and os.environ.get("LAUNCHER_RUN_DIR") == str(self.path)
        return member_plan(plan, int(member)) if mine else plan

    def first_plan(self) -> JobPlan:
        """Returns the plan of the first submission, before any `resume`."""
        return self.plan("record-0.json" if self.has("record-0.json") else "record.json")

    def result(self) -> dict[str, Any] | None:
        """Returns the final metrics of rank 0 (result.json); None: the run has written none, or the file is damaged."""
        found = self.read_result()
        metrics = None if isinstance(found, Wrong) else unwrap(found)
        return metrics if isinstance(metrics, dict) else None

    def read_result(self) -> Outcome[Any]:
        return read_json(self.path / "result.json", io_bounds.RESULT_BYTES)

    def attempts(self) -> list[Attempt]:
        """Returns all attempts of the run, oldest first. Raises UnavailableError: the directory cannot be read now."""
        found = unwrap(list_names(f"{self.path}/attempts")) or ()
        return [Attempt(self, number) for number in sorted(int(name) for name in found if name.isdecimal())]

    def lease_age(self) -> float | None:
        """Returns the seconds since the last heartbeat of the lease; None: there is none; raises UnavailableError."""
        found = unwrap(retry_read((self.path / "lease").stat, self.path))
        return None if found is None else time.time() - found.st_mtime

    def outputs(self) -> list[Path]:
        """Returns the jobs' output files, oldest first; a point's links into its sweep's `arrays` are resolved."""
        arrays = os.path.realpath(self.path.parent / "arrays")
        found = []
        for path in (*self.path.glob("output-*.log"), *self.path.glob("*.OU")):
            target = os.path.realpath(path)
            path = Path(target) if target == f"{arrays}/{path.name}" else path
            with contextlib.suppress(FileNotFoundError):  # the scheduler is moving it
                found.append((path.lstat().st_mtime, path))
        return [path for _, path in sorted(found)]

    def secret(self) -> bytes:
        """Returns the run's secret, made if missing; raises RunError if it is damaged or others can read it."""
        path = self.path / SECRET
        secret = unwrap(retry_read(lambda: folder_checks.secret_of_file(path), path))
        if secret is None:
            raise RunError(f"{path} is gone")
        return secret

    def require_private(self) -> None:
        """Raises RunError if the run directory is incomplete or others can write to it: payloads are unpickled."""
        for path in (self.path, self.submitit_folder):
            if not unwrap(exists(path)):
                raise RunError(f"{self.path} is not a whole run: it has no folder {path.name}")
            require_private(path)


class Attempt(Struct):
    run: Run
    number: int

    @property
    def path(self) -> Path:
        return self.run.path / "attempts" / str(self.number)

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    def write_exit_code(self, code: int) -> None:
        """Writes the attempt's exit code for the job script: of the first failure, or of the first agent at success.

        The scheduler's exit status may be that of the last process killed, or of a node that joined too late.
        """
        path = self.path / "exit_code"

        def written() -> bool:
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                file.write(f"{code}\n")
            return True

        outcome = retry_read(written, path)
        if outcome != Ok(True):  # a full disk, say; then the script uses the scheduler's exit status
            reason = "its folder is gone" if isinstance(outcome, Ok) else outcome.reason
            print(f"launcher: the exit code {code} cannot be written to {path}: {reason}", file=sys.stderr)

    def exit_code(self) -> int | None:
        """Returns the exit code that `write_exit_code` wrote; None: it has not been written completely."""
        text = unwrap(read_text(f"{self.path}/exit_code")) or ""
        return int(text) if text.strip().isdecimal() else None

    def events_file(self, writer: str) -> Path:
        """Returns the path of the event file of one writer: `script`, `node-3`, `rank-0`, ..."""
        return self.path / "events" / f"{writer}.jsonl"

    def written_by(self, writer: str, *, retry_seconds: float | None = None) -> Iterator[dict[str, Any]]:
        """Yields the events of one writer, as `event_files.read`, and opens no other's file."""
        return event_files.read(self.events_file(writer), retry_seconds=retry_seconds)

    def events(self) -> list[dict[str, Any]]:
        """Returns the events of all writers by time, with `writer`; `latest_events` lacks the middle of long files."""
        return self._events(whole=True)

    def latest_events(self, *, bindings: bool = False) -> list[dict[str, Any]]:
        """Returns the same as `events`, but of what grows with the run only the ends (`event_files.read_ends`).

        bindings: whether the events `bound` are wanted, which take most of the time, as each has all ranks of a node.
        """
        return self._events(whole=False, without=None if bindings else Bound)

    def _events(self, *, whole: bool, without: type[Bound] | None = None) -> list[dict[str, Any]]:
        folder = f"{self.run.path}/attempts/{self.number}/events"
        found = unwrap(list_names(folder)) or ()
        events: list[dict[str, Any]] = []
        for name in sorted(name for name in found if name.endswith(".jsonl")):
            writer = name.removesuffix(".jsonl")
            path, ends = f"{folder}/{name}", writer in GROWING and not whole
            for event in event_files.read_ends(path) if ends else event_files.read(path, without=without):
                event["writer"] = writer
                events.append(event)
        return sorted(events, key=itemgetter("time"))


def _remove_empty(folder: Path) -> None:
    for each in (folder / "submitit", folder / "attempts", folder):
        with contextlib.suppress(OSError):  # another process may have begun to use it
            each.rmdir()


@contextlib.contextmanager
def making_in(runs_dir: Path) -> Iterator[None]:
    """Makes ConfigErrors of the system's errors in the block, and of a folder that others could replace."""
    try:
        folder_checks.require_safe_way(runs_dir, f"runs_dir={runs_dir}")
        yield
    except UnavailableError:
        raise
    except OSError as error:
        do = "make room there, or set" if error.errno in FULL else "set"
        raise ConfigError(
            f"runs_dir={runs_dir}: a run cannot be made there ({error.strerror}): {do} runs_dir to a folder that you "
            "can write to and that all nodes share"
        ) from None


def require_private(folder: Path) -> None:
    """Raises RunError if others than the user can write to a folder, because files in it are unpickled."""
    status = unwrap(retry_read(folder.stat, folder))
    if status is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))
    if status.st_uid != os.getuid():
        raise RunError(f"{folder} belongs to user {status.st_uid}, not to you: it is not used")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise RunError(f"others can write to {folder}: it is not used; `chmod 700 {folder}` after a look into it")


def record_of(plan: JobPlan, config: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a run's record; facts: about the submitting machine, with the run's token and overrides."""
    from launcher.plan.plan import as_dict

    return {"format": FORMAT, "plan": as_dict(plan), "config": config, **facts}


def _relink(link: Path, target: Path) -> None:
    temporary = link.with_name(safe_io.temporary_name(link.name))
    temporary.symlink_to(target)
    try:
        temporary.replace(link)
    except OSError:  # a folder of this name, another run's, is there
        temporary.unlink()


# -- Lists the damaged files of a run, and the invalid lines of its event files


def problems(run: Run, *, whole: bool = False) -> list[str]:
    """Returns messages for damaged files of a run and invalid lines of its events, at most MOST_PROBLEMS and one more.

    Of files that grow with the run only the beginning and the end are checked, unless `whole`.
    """
    found: list[str] = []
    for outcome in (run.read_result(), read_json(run.path / "results.json", io_bounds.RESULT_BYTES)):
        found += _wrong(outcome)
    for output in run.outputs():
        found += _wrong(retry_read(partial(_require_regular, output), output))
    found += event_files.problems(f"{run.path}/journal.jsonl")
    for folder in (attempt.path / "events" for attempt in run.attempts()):
        for name in sorted(unwrap(list_names(folder)) or ()):
            grows = name.removesuffix(".jsonl") in GROWING
            if name.endswith(".jsonl"):
                found += event_files.problems(f"{folder}/{name}", ends=grows and not whole)
    more = len(found) - MOST_PROBLEMS
    return [*found[:MOST_PROBLEMS], f"... and {more} more"] if more > 0 else found


def _require_regular(path: Path) -> None:
    safe_io.open_regular(path).close()


def _wrong(outcome: Outcome[object]) -> list[str]:
    if isinstance(outcome, Unavailable):
        raise UnavailableError(outcome.reason)
    return [outcome.reason] if isinstance(outcome, Wrong) else []


# -- Writes the events of an agent or a rank; a failed write never fails the attempt


def current_attempt() -> Attempt | None:
    """Returns the attempt that this process belongs to, from its environment variables; None: it is in no run."""
    run_dir, number = os.environ.get("LAUNCHER_RUN_DIR"), os.environ.get("LAUNCHER_ATTEMPT")
    return Attempt(Run(Path(run_dir)), int(number)) if run_dir and number else None


class Events:
    """Writes the events of one writer of an attempt; attempt=None: drops them.

    An event that cannot be written (full disk, no file descriptor left) is written together with the next one. One that
    exceeds a bound is left out, and named in the log.
    """

    def __init__(self, attempt: Attempt | None, writer: str) -> None:
        self._path = attempt.events_file(writer) if attempt else None
        self._unwritten: deque[str] = deque(maxlen=UNWRITTEN)  # lines
        self._failing = False
        self._refused: set[str] = set()  # kinds of events that were left out

    def __call__(self, event: Event) -> bool:
        """Writes an event, at the present time if it has none; False: it is no JSON, or exceeds a bound."""
        if self._path is None:
            return True
        try:
            self._unwritten.append(event_files.line_of(event))
        except (TypeError, ValueError) as error:
            if event.event not in self._refused:
                log_line(f"an event {event.event} is not written to {self._path}: {error}", sys.stdout)
            self._refused.add(event.event)
            return False
        try:
            while self._unwritten:
                safe_io.append(self._path, self._unwritten[0])
                self._unwritten.popleft()
        except OSError as error:
            if not self._failing:
                log_line(f"cannot write to {self._path} now: {error}", sys.stdout)
            self._failing = True
        else:
            self._failing = False
        return True


def report_start_failure(
    plan: JobPlan | None, writer: str, error: Exception, what: FaultCode = FaultCode.UNREADABLE
) -> int:
    """Reports on stderr and as event `fault` why this agent cannot start (plan=None: it is unreadable); the exit code.

    Returns RESUME if `error` is transient, so that a retry may help, else NO_RETRY. `writer` gets host and process id
    added.
    """
    code = RESUME if is_transient(error) else NO_RETRY
    host = socket.gethostname()
    fault = Fault(code=what, host=host, error=str(error), ends_with=code)
    print(f"launcher: {messages.of_fault(fault)}", file=sys.stderr, flush=True)
    if attempt := current_attempt():
        Events(attempt, f"{writer}-{host}-{os.getpid()}")(fault)
        # If all nodes are needed, the other agents are killed while they wait; otherwise they write the code later.
        if plan is None or plan.min_nodes == plan.nodes:
            attempt.write_exit_code(code)
    return code
