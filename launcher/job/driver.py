"""The driver: runs one job of a run, from the lease to the exit code. The job script ends with `exec` of this program.

Its exit code is one of `launcher.errors`, or another one if the run failed; 0 also if the run goes on in another job.
It starts everything else as a command: `wait_for_others`, the program that starts the nodes' agents, `requeue`. Set-up
lines have run in the job script. A signal that asks the job to stop reaches the agents from the scheduler.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from launcher import processes
from launcher.errors import DONE, NO_RETRY, RESUME, RunError, UnavailableError, is_transient
from launcher.failures.codes import FaultCode, NextReason, StopReason
from launcher.fast_dataclasses import Struct, replace
from launcher.files import retried_reads
from launcher.files.json_types import from_json, misfit
from launcher.files.retried_reads import Ok, Unavailable, exists, list_names, read_json, read_text, unwrap
from launcher.runs import event_files
from launcher.runs.events import Ended, Event, Fault, SetupFailed, Started, Stays, Stop, StopRequested, every
from launcher.runs.job_file import BEGUN, FunctionFile, JobFile, ends_in, parse_exports, uptime
from launcher.runs.lease_and_locks import LeaseLost, RaceLost, RunLease, held, require, require_not_lost, win

J = TypeVar("J", bound=Struct)
HERE = 10  # exit code of `requeue` (the run goes on in this job), and of `wait_for_others` (in another one)
AWAY = 600.0  # seconds for which a scheduler is waited for that is away when the agents are to start or have ended
SPARE = 10.0  # seconds before the scheduler's SIGKILL in which the job has to continue the run; at most half of them
# Variables of an earlier attempt, and those by which begin.sh tells the driver something.
OF_ANOTHER = ("LAUNCHER_DEADLINE", "LAUNCHER_TIME_LEFT", "LAUNCHER_DEADLINE_UPTIME", BEGUN)
STOP = "LAUNCHER_STOP"


class Over(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Failed(Struct):
    """The step of the job script that failed before the driver began: `setup`, `environment` or `folder`."""

    what: str
    line: int = 0
    code: int = 0
    path: str = ""  # what the script did not see, although it has waited

    @classmethod
    def of(cls, what: str, *words: str) -> Failed:
        """Returns the failure that these arguments of begin.sh tell."""
        return cls(what, int(words[0]), int(words[1])) if what == "setup" else cls(what, path=words[0])

    def exit_code(self) -> int:
        """Returns RESUME if the path is there now, or nobody can tell whether it is; else NO_RETRY."""
        found = exists(self.path) if self.what == "folder" else read_text(self.path)
        later = found.is_transient if isinstance(found, Unavailable) else found not in (Ok(False), Ok(None))
        return RESUME if later else NO_RETRY


def end_of(
    command: int, recorded: Ok[str | None] | Unavailable, *, all_nodes: bool, may_resume: Callable[[], bool]
) -> tuple[int, Stop | None]:  # fmt: skip
    """Returns the exit code of an attempt, and why it counts as stopped early. The first row that applies decides.

    | condition | exit code |
    |---|---|
    | the agents' exit code cannot be read now, and the command failed | 75 |
    | they recorded none, and the command ended with 0, as srun does when Slurm takes a node away | 75 |
    | the agents recorded an exit code (0 does not count if the run needs all its nodes) | that one |
    | the command was killed by a signal, or ended with an error number of Slurm, and the run can be resumed | 75 |
    | otherwise | the command's |

    The exit code of the agent that failed first counts more than the command's, which may be that of an agent that was
    killed because of it. An agent that came too late may fail although the run is done, but only in an elastic run.
    """
    if isinstance(recorded, Unavailable):
        return (RESUME, Stop(reason=StopReason.EXIT_UNREAD)) if command else (DONE, None)
    if recorded.value is None and command == DONE:
        return RESUME, Stop(reason=StopReason.EXIT_UNREAD)
    word = (recorded.value or "").strip()
    if word.isdecimal():
        return command if all_nodes and int(word) == DONE else int(word), None
    if 128 < command < 255 and may_resume():
        return RESUME, Stop(reason=StopReason.KILLED, exit_code=command)
    return command, None


def main(arguments: Sequence[str]) -> int:
    job_file, failed = arguments[0], None
    if len(arguments) > 1:
        failed = Failed.of(*arguments[2:])
    retried_reads.in_a_job, umask = True, os.umask(0o077)
    try:
        job = _element(read_job(job_file, JobFile))
    except (RunError, OSError) as error:
        return refuse(error)
    stops = _Stops(job.signals, job.kill_wait)
    environ = dict(os.environ)
    while True:
        try:
            _race(job, require_not_lost)
            waiting = partial(_waiting, job, stops)
            with held(job.run_dir, environ.get("LAUNCHER_JOB_ID", ""), job.lease, waiting) as lease:
                return Job(job, lease, stops, failed, umask).run()
        except Over as over:
            if over.code != HERE:
                return _exit_code(job, over.code, stops.requested)
        except (RunError, OSError) as error:
            return _exit_code(job, refuse(error), stops.requested)
        os.umask(0o077)
        os.environ.clear()
        os.environ.update(environ)
        os.environ[BEGUN] = str(uptime())  # each attempt has the whole time


def _waiting(job: JobFile, stops: _Stops) -> None:
    # Is called while the job waits for the lease
    stops.end_if_requested()
    _race(job, require_not_lost)


def _race(job: JobFile, look: Callable[[str, str, str], None]) -> None:
    if job.race is not None:
        try:
            look(job.run_dir, job.race, os.environ.get("LAUNCHER_JOB_ID", ""))
        except RaceLost as error:
            print(f"launcher: {error}", file=sys.stderr)
            raise Over(DONE) from None


def refuse(error: Exception) -> int:
    """Prints why the job's files cannot be used; returns the exit code."""
    where = "" if isinstance(error, RunError) and not is_transient(error) else f"{socket.gethostname()}: "
    print(f"launcher: {where}{error}", file=sys.stderr)
    return RESUME if is_transient(error) else NO_RETRY


def read_job(path: str, kind: type[J]) -> J:
    """Reads the file that tells a driver about its job; raises RunError."""
    values = unwrap(read_json(path))
    if values is None:
        raise RunError(f"{socket.gethostname()} cannot see {path}: is it on a file system that all nodes share?")
    if wrong := misfit(values, kind, "job"):
        raise RunError(f"{path} cannot be used: {wrong}")
    job: J = from_json(values, kind)
    return job


def _element(job: JobFile) -> JobFile:
    # Links an array element's output file into its directory, too
    if job.elements is None:
        return job
    index, output = int(os.environ.pop("LAUNCHER_ARRAY_INDEX")), os.environ.pop("LAUNCHER_OUTPUT")
    names = (unwrap(read_text(job.elements)) or "").splitlines()
    if not 0 <= index < len(names):
        raise RunError(f"{socket.gethostname()} cannot find the array element {index} in {job.elements}")
    job = replace(job, **job.of_element(names[index]))
    os.environ["LAUNCHER_RUN_DIR"] = job.run_dir
    made = Path(job.run_dir, f".{output}.{os.getpid()}")
    try:
        made.unlink(missing_ok=True)
        made.symlink_to(Path(job.elements or "").with_name(output))
        made.replace(Path(job.run_dir, output))
    except OSError as error:
        if is_transient(error):
            raise UnavailableError(str(error)) from None
        raise RunError(f"{socket.gethostname()} cannot write to {job.run_dir}: {error}") from None
    return job


def _exit_code(job: JobFile, code: int, requested: str | None) -> int:
    # Or the code that makes the scheduler start the job again, if `requeue` has asked for it
    if code != DONE and not requested:  # a job that it ends itself, as by a preemption, it may start again
        _of_scheduler(job.for_good)
    if job.again is not None:
        with contextlib.suppress(OSError):
            os.unlink(os.environ[job.again[0]])
            return job.again[1]
    return code


class _Stops:
    # `requested` is the name of the first signal

    def __init__(self, names: Sequence[str], kill_wait: str | None) -> None:
        self.requested: str | None = None
        self._agents: subprocess.Popen[bytes] | None = None
        self._kill_wait = kill_wait
        self._signals = [getattr(signal, f"SIG{name}") for name in names]
        for number in self._signals:
            signal.signal(number, self._note)
        self.requested = os.environ.pop(STOP, None) or self.requested

    def _note(self, number: int, _: object) -> None:
        first, self.requested = not self.requested, self.requested or signal.Signals(number).name
        if first and self._agents is not None:
            self.follow(self._agents)

    def follow(self, agents: subprocess.Popen[bytes]) -> None:
        """`agents` is the command that starts the agents; a stop may have been requested while it was being started."""
        self._agents = agents
        if self.requested:
            threading.Thread(target=self._end_in_time, args=[agents], daemon=True).start()

    def _end_in_time(self, agents: subprocess.Popen[bytes]) -> None:
        # Not their ranks, which may save as long as there is time
        if (left := _of_scheduler(self._kill_wait)) is not None:
            time.sleep(left - min(SPARE, left / 2))
            agents.kill()

    def end_if_requested(self) -> None:
        if self.requested:
            raise Over(128 + getattr(signal, self.requested))

    @contextlib.contextmanager
    def ignored_by_children(self) -> Iterator[None]:
        for number in self._signals:
            signal.signal(number, signal.SIG_IGN)
        try:
            yield
        finally:
            for number in self._signals:
                signal.signal(number, self._note)


class Job:
    def __init__(self, job: JobFile, lease: RunLease, stops: _Stops, failed: Failed | None, umask: int) -> None:
        self._job, self._lease, self._stops, self._failed, self._umask = job, lease, stops, failed, umask
        self._run_dir, self._host = Path(job.run_dir), socket.gethostname()
        self._attempt = self._run_dir
        self._id = os.environ.get("LAUNCHER_JOB_ID", "")
        self._ends_others: subprocess.Popen[bytes] | None = None  # the command that cancels the other jobs of a race

    def run(self) -> int:
        """Runs the attempt, and returns the job's exit code; raises Over: the job ends before the agents, or goes on.

        Raises UnavailableError, RunError: the run directory cannot be used; nothing was recorded.
        """
        begun, since = self._begin(), time.monotonic()
        try:
            return self._run(begun)
        except (RunError, OSError) as error:
            code = refuse(error)
            # What is refused at once would be refused 100 times in a row. A job here does its set-up once.
            again = not self._job.here if self._failed else time.monotonic() - since >= retried_reads.IN_A_JOB
            if code != RESUME or not again:
                self._ended(code)
            return self._end(RESUME, Stop(reason=StopReason.UNREADABLE, error=str(error)))

    def _run(self, begun: float) -> int:
        self._stop_if_marked()
        self._set_deadline(begun)
        self._report_failure()
        self._set_environment()
        if self._job.won:  # the other jobs end by themselves when they start: this only takes them out of the queue
            with contextlib.suppress(OSError):
                self._ends_others = subprocess.Popen(self._job.won, stdin=subprocess.DEVNULL)
        self._wait_for_others()
        command = self._start()
        if self._ends_others is not None:
            self._ends_others.wait()
        if self._job.after is not None:
            _command(["bash", self._job.after], {"LAUNCHER_EXIT_CODE": str(command)})
        return self._end(*self._end_of(command))

    # -- before the agents

    def _begin(self) -> float:
        # Returns the uptime at which the job script began
        if self._job.chain and self._marked("over", "stop", "cancelled"):
            raise Over(DONE)
        _race(self._job, win)
        if self._done():
            print(f"launcher: {self._run_dir} is done already: job {self._id} ends", file=sys.stderr)
            raise Over(DONE)
        number = self._new_attempt()
        self._lease.record(number)
        os.environ.update(
            LAUNCHER_ATTEMPT=str(number), LAUNCHER_LEASE=str(self._lease.path), LAUNCHER_RUN_DIR=str(self._run_dir)
        )
        events = self._attempt / "events"
        retried_reads.retry_read(partial(_mkdir, events), events)
        if self._job.seen is not None:
            with contextlib.suppress(OSError), open(self._job.seen, "a"):
                pass
        written = 0  # bytes of the output: earlier attempts of the job may have written to it
        with contextlib.suppress(OSError):
            written = os.fstat(1).st_size
        self._event(Started(job=self._id, host=self._host, output=written))
        payload = self._run_dir / f"submitit/{self._id}_submitted.pkl"
        with contextlib.suppress(OSError):
            payload.unlink(missing_ok=True)
            payload.symlink_to("payload.pkl")
        return float(os.environ.get(BEGUN) or 0)

    def _done(self) -> bool:
        # An attempt of the run may have ended with 0: it may have been submitted twice by mistake
        attempts = self._run_dir / "attempts"
        files = [attempts / name / "events/script.jsonl" for name in unwrap(list_names(attempts)) or ()]
        return any(event.code == DONE for file in files for event in every(event_files.read(file), Ended))

    def _new_attempt(self) -> int:
        folder = self._run_dir / "attempts"
        known = [int(name) for name in unwrap(list_names(folder)) or () if name.isdecimal()]
        number = max(known, default=-1) + 1
        while True:
            path = folder / str(number)
            made = retried_reads.retry_read(partial(_mkdir, path), path)
            if isinstance(made, Unavailable) and made.is_transient:
                raise UnavailableError(made.reason)
            if not isinstance(made, Ok) or made.value is None:
                raise RunError(f"{self._host} cannot write to {folder}: is it on a file system that all nodes share?")
            if made.value:
                self._attempt = path
                return number
            number += 1

    def _marked(self, *names: str) -> bool:
        # Raises UnavailableError if that is not known
        found = [exists(self._run_dir / name) for name in names]
        return any(isinstance(each, Ok) and each.value for each in found) or any(map(unwrap, found))

    def _stop_if_marked(self) -> None:
        if self._marked("stop", "cancelled"):
            self._event(Stop(reason=StopReason.CANCELLED if self._marked("cancelled") else StopReason.STOP_FILE))
            self._ended(RESUME)

    def _start(self) -> int:
        if request := self._stops.requested:  # in a job that is being deleted PBS starts no more tasks
            self._event(StopRequested(signal=request, host=self._host))
            self._event(Stop(reason=StopReason.SIGNAL, signal=request, host=self._host))
            return RESUME  # nothing is lost
        # srun starts nothing, and ends with 1, while Slurm's controller is away, as during a restart
        code = _command([*self._job.start, *self._job.node, str(self._run_dir)], stops=self._stops)
        if code == DONE or self._has_begun():
            return code
        for waited in retried_reads.backoff(AWAY, 5.0, 20.0):
            if self._stops.requested or not _of_scheduler(self._job.away):
                return self._start() if waited else code
            if not waited:
                print("launcher: the scheduler does not answer: the agents start when it does", file=sys.stderr)
        raise UnavailableError(f"{self._host} could not start the agents: no answer of the scheduler for {AWAY:g} s")

    def _has_begun(self) -> bool:
        # Whether an agent has written an event, or that is not known
        found = list_names(self._attempt / "events")
        return not isinstance(found, Ok) or any(name.startswith("node-") for name in found.value or ())

    def _set_deadline(self, begun: float) -> None:
        # From the scheduler or the requested wall time
        left = _of_scheduler(self._job.time_left)
        if left is None and self._job.seconds is not None:
            since = max(uptime() - begun, 0.0) if begun else 0.0
            left = self._job.seconds - since
        for name in OF_ANOTHER:
            os.environ.pop(name, None)
        if left is not None:
            ends_in(round(left))

    def _report_failure(self) -> None:
        failed = self._failed
        if failed is None or self._stops.requested:  # the signal has ended the set-up line
            return
        code = failed.exit_code()
        if failed.what == "setup":
            ended = "a set-up line, which ended the shell,"
            words = f"{self._job.setup[failed.line - 1].words if failed.line else ended} failed"
            why = f"{words} on {self._host} (exit {failed.code})"
            self._event(SetupFailed(line=failed.line, host=self._host, message=words, code=failed.code))
        elif failed.what == "folder":
            why = self._job.no_workdir
            self._event(Fault(code=FaultCode.NO_FOLDER, host=self._host, error=why, ends_with=code))
        else:
            why = f"{self._host} cannot read the run's environment.sh"
        raise UnavailableError(why) if code == RESUME else RunError(why)

    def _set_environment(self) -> None:
        job = self._job
        os.umask(self._umask)  # set-up lines may have changed the user's
        if job.secrets:
            os.environ["LAUNCHER_SECRETS"] = ",".join(job.secrets)
        if job.environment_file is not None:
            os.environ["LAUNCHER_ENVIRONMENT_FILE"] = job.environment_file
        self._read_secrets()
        if job.threads is not None and not os.environ.get("OMP_NUM_THREADS"):
            os.environ["OMP_NUM_THREADS"] = str(job.threads)
        for name, value in job.environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        for name in job.secret_variables:
            if name not in os.environ:
                text = f"the secret {name} did not reach {self._host}: does the site drop the environment (--export)?"
                print(f"launcher: {text}", file=sys.stderr)
                self._ended(NO_RETRY)
        if path := job.python_path(os.environ.get("PYTHONPATH", "")):
            os.environ["PYTHONPATH"] = path

    def _read_secrets(self) -> None:
        # The file is outside of the run's directory, and removed when the run is over
        if self._job.secrets_file is None:
            return
        path = Path(self._job.secrets_file)
        os.environ["LAUNCHER_SECRETS_FILE"] = str(path)
        found = read_text(path)
        with contextlib.suppress(OSError, ValueError):  # ValueError: the file is damaged
            if isinstance(found, Ok) and found.value is not None and path.stat().st_uid == os.geteuid():
                os.environ.update(parse_exports(found.value))
                return
        known = read_text(self._job.environment_file or "")
        text = (known.value or "") if isinstance(known, Ok) else ""
        hidden = [line.removeprefix("# not here: ") for line in text.splitlines() if line.startswith("# not here: ")]
        if hidden:
            print(f"launcher: {self._host} cannot read {path}: without {' '.join(hidden)}", file=sys.stderr)

    def _wait_for_others(self) -> None:
        # One that this run waits for may have continued in another job, or have failed
        if not self._job.wait or self._stops.requested:
            return
        code = _command(self._job.wait)
        if code == HERE:
            import shutil  # only here: it takes a while

            shutil.rmtree(self._attempt, ignore_errors=True)  # no attempt: another job waits now
            raise Over(DONE)
        if self._stops.requested:
            return
        if code == RESUME:
            self._stop_if_marked()
            raise UnavailableError("the state of a run that it waits for is not known now")
        if code != DONE:
            self._ended(code)
        if self._job.here and self._job.seconds is not None:
            ends_in(self._job.seconds)

    # -- the end

    def _end(self, code: int, stop: Stop | None) -> int:
        lost, secrets_for_later = None, False
        try:
            require()
        except LeaseLost as error:
            lost = error
        except RunError:  # that is not known now
            secrets_for_later = True
        if lost is not None and lost.taken:
            code, stop = RESUME, Stop(reason=StopReason.LEASE_LOST, host=self._host, error=str(lost))
        if stop is not None:
            self._event(stop)
        self._event(Ended(code=code))
        if lost is not None:  # another job decides what becomes of the run, and needs the secrets
            print(f"launcher: {lost}", file=sys.stderr)
            return code
        requested = self._stops.requested
        if code == RESUME:
            code, goes_on = self._continue()
            secrets_for_later |= goes_on or (self._job.chain and code == RESUME)  # then the next job starts, too
        # If PBS has stopped the job, it may start it once more (preemption, qrerun), and then the secrets are needed.
        if code == DONE or not (requested or secrets_for_later):
            self._remove_secrets()
        self._end_chain(code)
        return _exit_code(self._job, code, requested)

    def _end_of(self, command: int) -> tuple[int, Stop | None]:
        for _ in retried_reads.backoff(retried_reads.IN_A_JOB if command == DONE else 0.0):
            recorded = read_text(self._attempt / "exit_code")
            if recorded != Ok(None):  # else an NFS client may show it late
                break
        return end_of(
            command, Ok(None) if isinstance(recorded, retried_reads.Wrong) else recorded, all_nodes=self._job.all_nodes,
            may_resume=lambda: self._may_resume(command),
        )  # fmt: skip

    def _may_resume(self, command: int) -> bool:
        # SIGTERM for the agents alone is a preemption, or the loss of a node, while they start; if none has begun, a
        # node's slurmd or prolog has failed: there need be no checkpoint yet
        preempted = command == 128 + signal.SIGTERM and not self._stops.requested
        if self._job.program_resumes or preempted or not self._has_begun():
            return True
        found = list_names(self._job.checkpoints)
        if not isinstance(found, Ok):
            return True
        return any(name.startswith("step-") for name in found.value or ())

    def _continue(self) -> tuple[int, bool]:
        # Returns the exit code, and whether another job goes on
        for waited in retried_reads.backoff(AWAY, 5.0, 10.0):
            if not _of_scheduler(self._job.away):
                break
            if not waited:
                print("launcher: the scheduler does not answer: the run continues when it does", file=sys.stderr)
        asked = ["stop_requested"] if self._stops.requested else []
        self._stops.requested = None  # a later request is for the next attempt
        # Slurm ends all processes of a job that it requeues; the one that requests it still has to record that.
        with self._stops.ignored_by_children():
            process = subprocess.Popen([*self._job.requeue, str(self._run_dir), *asked])
        code = _exit_code_of(process)
        if code == HERE:
            raise Over(HERE)
        if code == NO_RETRY:
            self._event(Ended(code=NO_RETRY))
            return NO_RETRY, False
        if code not in (DONE, RESUME):
            self._event(Stays(what="stays", reason=NextReason.LAUNCHER_ERROR))
        return RESUME, code == DONE

    # -- tools

    def _event(self, event: Event) -> None:
        path = self._attempt / "events/script.jsonl"
        event = replace(event, time=time.time())
        found = retried_reads.retry_read(partial(event_files.append, path, event), path)
        if not isinstance(found, Ok):
            print(f"launcher: {self._host}: {found.reason}", file=sys.stderr)

    def _ended(self, code: int) -> NoReturn:
        self._event(Ended(code=code))
        if code != RESUME and not self._stops.requested:
            self._remove_secrets()
        self._end_chain(code)
        raise Over(code)

    def _remove_secrets(self) -> None:
        if self._job.secrets_file is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._job.secrets_file)

    def _end_chain(self, code: int) -> None:
        if self._job.chain and code != RESUME:
            over = self._run_dir / "over"  # for the jobs that follow
            retried_reads.retry_read(over.touch, over)


def _mkdir(path: Path) -> bool:
    # False: it exists
    try:
        path.mkdir()
    except FileExistsError:
        return False
    return True


def _of_scheduler(function: str | None) -> Any:
    # What a function of the job's scheduler (`module:function`) says; None: there is none
    if function is None:
        return None
    module, _, name = function.partition(":")
    return getattr(importlib.import_module(module), name)(os.environ)


def _command(words: Sequence[str], more: Mapping[str, str] | None = None, stops: _Stops | None = None) -> int:
    try:
        process = subprocess.Popen(words, env={**os.environ, **(more or {})})
    except OSError as error:
        print(f"launcher: {words[0]}: {error.strerror}", file=sys.stderr)
        return 127 if isinstance(error, FileNotFoundError) else 126
    if stops is not None:
        stops.follow(process)
    return _exit_code_of(process)


def _exit_code_of(process: subprocess.Popen[bytes]) -> int:
    # 128 + N if signal N killed it
    code = process.wait()
    return code if code >= 0 else 128 - code


# -- The driver of a job of submitit functions: starts the tasks that call them. They have no lease, attempts or events


FIRST_JOB = "LAUNCHER_FIRST_JOB"  # see launcher.schedulers.qsub


def main_of_functions(arguments: Sequence[str]) -> int:
    """Runs the job of the file arguments[0]; the other arguments tell what failed in the job script before."""
    job_file, *failed = arguments
    retried_reads.in_a_job = True
    try:
        job = read_job(job_file, FunctionFile)
    except (RunError, OSError) as error:
        return refuse(error)
    for name in job.signals:  # the tasks get the signal too
        signal.signal(getattr(signal, f"SIG{name}"), lambda *_: None)
    begun, requested = float(os.environ.pop(BEGUN)), os.environ.pop(STOP)
    if requested:
        return 128 + getattr(signal, requested)
    if failed:
        return _report_failed(job, Failed.of(*failed[1:]))
    index, output = os.environ.pop("LAUNCHER_ARRAY_INDEX", job.index), os.environ.pop("LAUNCHER_OUTPUT")
    seconds = job.seconds - (uptime() - begun)
    os.environ.update(
        job.variables, LAUNCHER_PAYLOAD=f"{job.payload}_{index}.pkl", LAUNCHER_DEADLINE=str(int(time.time() + seconds)),
        LAUNCHER_JOB_ID=os.environ.get(FIRST_JOB) or os.environ["LAUNCHER_JOB_ID"],
    )  # fmt: skip
    if job.code_root is not None:
        os.environ["PYTHONPATH"] = ":".join(filter(None, (job.code_root, os.environ.get("PYTHONPATH"))))
    code = _run_tasks(job)
    if job.teardown:
        _command(["bash", "-c", "\n".join(job.teardown)])
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    path = Path(job.folder, output)  # of the scheduler itself, or of set-up lines
    if path.exists() and not path.stat().st_size:
        path.unlink(missing_ok=True)
    return code


def _report_failed(job: FunctionFile, failed: Failed) -> int:
    host = socket.gethostname()
    if failed.what == "setup":
        which = f"set-up line {failed.line}" if failed.line else "a set-up line, which ended the shell,"
        words = f"{which} failed on {host} (exit {failed.code})"
    elif failed.what == "folder":
        words = f"{host} cannot enter {job.workdir}"
    else:
        words = f"{host} cannot read {job.environment}: is it on a file system that all nodes share?"
    print(f"launcher: {words}", file=sys.stderr)
    return failed.exit_code()


def _run_tasks(job: FunctionFile) -> int:
    import shutil  # the driver of a run has no use for these

    from launcher.schedulers.tasks import environments

    if not job.start:
        (place,) = environments([socket.gethostname()], 1)
        return _command(job.task, {**place, processes.GUARD: f"{os.environ['LAUNCHER_OWN_JOB']}.{os.getpid()}"})
    files = f"{job.folder}/.tasks-{os.urandom(8).hex()}"
    try:
        return _command([*job.start, *job.task], {"LAUNCHER_TASK_FILES": files})
    finally:
        shutil.rmtree(files, ignore_errors=True)
